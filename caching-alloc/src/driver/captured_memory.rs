//! Reports memory that captured work uses to the allocators that own it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_driver::graph_memory::{self, MemoryOwner};
use cuda_driver::{Context, DevicePtr, Result, Stream};

use crate::core::{CapturedUses, GraphUse};

/// The owner of the memory of all allocators that order their streams by the same
/// [`DriverEvents`](super::DriverEvents).
pub(super) struct CapturedMemory {
    context: Context,
    allocators: Mutex<Vec<Weak<dyn CapturedUses>>>,
    /// The graphs of captures and of captured graphs, by the driver's id of the capture.
    graphs: Mutex<HashMap<u64, Weak<GraphUse>>>,
}

impl CapturedMemory {
    pub(super) fn new(context: &Context) -> Arc<Self> {
        let (allocators, graphs) = Default::default();
        let memory = Arc::new(Self { context: context.clone(), allocators, graphs });
        graph_memory::register(Arc::downgrade(&memory) as Weak<dyn MemoryOwner>);
        memory
    }

    /// Reports captured work to `allocator` too.
    pub(super) fn add(&self, allocator: Weak<dyn CapturedUses>) {
        let mut allocators = lock(&self.allocators);
        allocators.retain(|allocator| allocator.strong_count() > 0);
        allocators.push(allocator);
    }

    /// Returns the graph of the capture with this id.
    fn graph(&self, capture: u64) -> Arc<GraphUse> {
        let mut graphs = lock(&self.graphs);
        if let Some(graph) = graphs.get(&capture).and_then(Weak::upgrade) {
            return graph;
        }
        graphs.retain(|_, graph| graph.strong_count() > 0);
        let graph = Arc::new(GraphUse::default());
        graphs.insert(capture, Arc::downgrade(&graph));
        graph
    }

    /// Makes `graph` a user of the blocks in this range. Returns true if an allocator has such a block.
    fn use_blocks(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        let allocators: Vec<_> = lock(&self.allocators).iter().filter_map(Weak::upgrade).collect();
        let mut is_used = false;
        for allocator in allocators {
            is_used |= allocator.used_by_graph(address, bytes, graph);
        }
        is_used
    }

    /// Like [`MemoryOwner::used_by_graph`], for a new block that was requested for `stream`, which may be capturing. The
    /// block is kept for ever if the stream captures and the driver does not tell whether the graph owns the use.
    pub(super) fn note_allocation(&self, stream: &Stream, address: u64, bytes: u64) {
        // If the query fails, the stream is not being captured, because the query succeeds for a captured stream. It
        // fails for the legacy default stream while a blocking stream captures.
        let Ok(Some(capture)) = self.capture_of(stream) else { return };
        let graph = self.graph(capture);
        if self.use_in_graph(address, bytes, stream, &graph).is_err() {
            std::mem::forget(graph);
        }
    }

    /// Returns the driver's id of the capture of `stream`. Only an active capture has an id. An invalidated capture
    /// gives no graph.
    fn capture_of(&self, stream: &Stream) -> Result<Option<u64>> {
        if !stream.context().driver().is_same(self.context.driver()) {
            return Ok(None);
        }
        Ok(stream.capture_info()?.id)
    }

    /// Makes `graph` a user of the blocks in this range until the graph of the stream's capture is dropped.
    fn use_in_graph(&self, address: u64, bytes: u64, stream: &Stream, graph: &Arc<GraphUse>) -> Result<()> {
        if self.use_blocks(address, bytes, graph) && !stream.keep_in_graph(graph.clone())? {
            // Another library began the capture, and its graph can own nothing. So the uses never end.
            std::mem::forget(graph.clone());
        }
        Ok(())
    }
}

impl MemoryOwner for CapturedMemory {
    fn used_by_graph(&self, DevicePtr(address): DevicePtr, bytes: u64, stream: &Stream) -> Result<()> {
        let Some(capture) = self.capture_of(stream)? else { return Ok(()) };
        self.use_in_graph(address, bytes, stream, &self.graph(capture))
    }
}

impl fmt::Debug for CapturedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapturedMemory")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
