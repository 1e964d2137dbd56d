//! Graphs as users of blocks.
//!
//! A graph uses the addresses of its capture at each launch. So a block that captured work uses stays out of use until
//! the graph is gone, although its owner may have dropped it long before.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use crate::sync::{Mutex, MutexGuard};

/// The name of the holder if a graph holds a segment.
pub(super) const GRAPH: &str = "captured graph";

/// A captured graph as a user of memory. Clones are the same graph. While any clone exists, the blocks that the graph
/// [uses](super::Allocator::used_by_graph) are not reused after their owners have dropped them, and their segments are
/// neither released nor moved. A graph that uses a block also keeps the internal state of its allocator, with the
/// sources of the memory and the [`StreamEvents`](super::StreamEvents). Over a source that is a handle of a larger
/// object, such as `PoolSource` of `symm-mem`, that whole object lives as long as the graph.
///
/// Drop the last clone when the graph and its executables are destroyed and their launches have ended, or are ordered
/// before later work of the blocks' streams. The next request that finds no free block then reuses the memory.
#[derive(Clone, Debug, Default)]
pub struct GraphUse(Arc<Kept>);

/// The objects that the graph keeps beside blocks. The registries of the allocators release memory after the graph's
/// end. Segments of graph pools stay in place, although their blocks may be reused.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<KeptObject>>);

type KeptObject = (KeptKey, Box<dyn Any + Send + Sync>);

/// Identifies a kept object: the address of the allocator's registry, and the segment's number, if it is a segment.
pub(super) type KeptKey = (usize, Option<u64>);

/// Refers to a graph without keeping it. Two references are equal if they are of the same graph.
#[derive(Clone, Debug)]
pub(super) struct GraphRef(Weak<Kept>);

impl Drop for Kept {
    /// Drops the segments before the registries: a registry that is dropped releases the segments that nobody holds.
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|((_, segment), _)| segment.is_none());
    }
}

impl GraphUse {
    pub(super) fn reference(&self) -> GraphRef {
        GraphRef(Arc::downgrade(&self.0))
    }

    /// Keeps the value that `make` returns, unless the graph keeps a value for this key already. Returns false if it
    /// keeps none.
    pub(super) fn keep<T: Any + Send + Sync>(&self, key: KeptKey, make: impl FnOnce() -> Option<T>) -> bool {
        if self.kept().iter().any(|(other, _)| *other == key) {
            return true;
        }
        let Some(made) = make() else { return false };
        self.kept().push((key, Box::new(made)));
        true
    }

    /// Never ends the graph's uses. For graphs whose end cannot be detected. Everything that the graph keeps stays for
    /// ever: the blocks, the internal state of their allocators, the sources, and the
    /// [`StreamEvents`](super::StreamEvents) with their streams and events.
    pub fn keep_for_ever(self) {
        std::mem::forget(self);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<KeptObject>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GraphRef {
    /// Returns true while a [`GraphUse`] of the graph exists.
    pub(super) fn exists(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl PartialEq for GraphRef {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}
