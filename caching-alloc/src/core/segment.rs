//! Segments, and the holds that keep them.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::size::SizeClass;
use super::source::{SegmentMemory, SegmentSource};
use super::stream::StreamId;
use super::sync::atomic::{AtomicU64, Ordering};
use super::sync::{Mutex, MutexGuard};

/// A segment's number on its device, in order of creation; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SegmentId(pub u64);

/// A pool's number in its allocator; 0 is the default pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolId(pub u32);

/// A segment: memory that came from its [`SegmentSource`] in one piece, at a fixed address. The segments of a
/// re-mappable pool are its pages: one that moves is a new segment at its new address.
///
/// A cheap handle. It does not keep the memory alive; a [`Hold`] does.
#[derive(Clone)]
pub struct Segment(Arc<Inner>);

struct Inner {
    id: SegmentId,
    device: u32,
    pool: PoolId,
    stream: AtomicU64,
    class: SizeClass,
    memory: SegmentMemory,
    source: Arc<dyn SegmentSource>,
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    fate: Fate,
    next: u64,
    holders: Vec<(u64, Arc<str>)>,
}

/// The state of a segment's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// The allocator owns it.
    #[default]
    Live,
    /// It should have been released, but is held. No work runs on it.
    Quarantined,
    /// It has been released.
    Released,
}

/// The fields of a [`Segment`].
pub(super) struct SegmentParts {
    pub(super) id: SegmentId,
    pub(super) device: u32,
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
    pub(super) class: SizeClass,
    pub(super) memory: SegmentMemory,
    pub(super) source: Arc<dyn SegmentSource>,
}

impl Segment {
    pub(super) fn new(parts: SegmentParts) -> Self {
        let SegmentParts { id, device, pool, stream, class, memory, source } = parts;
        let stream = AtomicU64::new(stream.0);
        Self(Arc::new(Inner { id, device, pool, stream, class, memory, source, holds: Mutex::default() }))
    }

    /// Its number on the device.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.0.id
    }

    /// First byte, a device address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.memory.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.memory.bytes
    }

    /// The memory as its source returned it.
    #[must_use]
    pub fn memory(&self) -> SegmentMemory {
        self.0.memory
    }

    /// Ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.0.device
    }

    /// The pool that it serves.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.0.pool
    }

    /// The stream on which its blocks are freed and reused without further ordering. A segment without blocks
    /// can be moved to another stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        StreamId(self.0.stream.load(Ordering::Relaxed))
    }

    pub(super) fn set_stream(&self, stream: StreamId) {
        self.0.stream.store(stream.0, Ordering::Relaxed);
    }

    /// The class of requests that it serves.
    #[must_use]
    pub fn class(&self) -> SizeClass {
        self.0.class
    }

    /// The source of the memory.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.0.source
    }

    /// Prevents the memory from being released to its source until the hold is dropped.
    ///
    /// A registrar holds a segment as long as an outside user (a communicator, a peer, a graph) can access
    /// it. Before a segment is released, trackers get `SegmentFree`. If it is still held after that, it is
    /// quarantined, with `holder` as the name in reports.
    ///
    /// # Errors
    /// [`SegmentReleased`] if the memory has been released already.
    pub fn hold(&self, holder: &str) -> Result<Hold, SegmentReleased> {
        let mut holds = self.holds();
        if holds.fate == Fate::Released {
            return Err(SegmentReleased { id: self.id(), address: self.address(), holder: holder.into() });
        }
        let key = holds.next;
        holds.next += 1;
        holds.holders.push((key, holder.into()));
        drop(holds);
        Ok(Hold { segment: self.clone(), key })
    }

    /// The names of its current holders.
    #[must_use]
    pub fn holders(&self) -> Vec<Arc<str>> {
        self.holds().holders.iter().map(|(_, name)| name.clone()).collect()
    }

    /// Marks the memory as released, so it can no longer be held; or, if it is held, as quarantined. Returns
    /// whether it is released.
    pub(super) fn try_release(&self) -> bool {
        let mut holds = self.holds();
        holds.fate = if holds.holders.is_empty() { Fate::Released } else { Fate::Quarantined };
        holds.fate == Fate::Released
    }

    /// Returns true if it is held.
    pub(super) fn is_held(&self) -> bool {
        !self.holds().holders.is_empty()
    }

    /// Claims the page at this address unless it is held: from then on it cannot be held.
    pub(super) fn claim(&self) -> bool {
        let mut holds = self.holds();
        let free = holds.holders.is_empty();
        if free {
            holds.fate = Fate::Released;
        }
        free
    }

    /// Undoes [`claim`](Self::claim).
    pub(super) fn revive(&self) {
        self.holds().fate = Fate::Live;
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    /// A quarantined segment can outlive its allocator in its holds. The last one releases the memory.
    fn drop(&mut self) {
        let holds = self.holds.get_mut().unwrap_or_else(PoisonError::into_inner);
        if holds.fate == Fate::Quarantined {
            // A failure cannot be reported any more.
            let _ = self.source.release(&self.memory);
        }
    }
}

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Segment {}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.0.id.0)
            .field("address", &format_args!("{:#x}", self.address()))
            .field("bytes", &self.bytes())
            .field("device", &self.0.device)
            .field("pool", &self.0.pool.0)
            .field("stream", &self.stream())
            .field("class", &self.0.class)
            .finish_non_exhaustive()
    }
}

/// Keeps a segment's memory in place. Dropping it calls nobody: quarantined memory returns to its source when
/// the allocator next grows, trims or [reaps](super::Allocator::reap).
#[derive(Debug)]
pub struct Hold {
    segment: Segment,
    key: u64,
}

impl Hold {
    /// The segment that is held.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.segment.holds().holders.retain(|(key, _)| *key != self.key);
    }
}

/// The error of a hold that was requested too late.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{holder} cannot hold segment {} at {address:#x}: its memory has gone back to its source; take the hold while \
     the segment is live, from its SegmentAlloc entry or from a snapshot", id.0
)]
pub struct SegmentReleased {
    /// The segment.
    pub id: SegmentId,
    /// Its former address.
    pub address: u64,
    /// The name that was passed for the hold.
    pub holder: String,
}
