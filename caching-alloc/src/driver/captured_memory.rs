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

    /// Like [`MemoryOwner::used_by_graph`], for a new block that was requested for `stream`, which may be capturing. If
    /// the driver does not tell, the block is kept for ever.
    pub(super) fn note_allocation(&self, stream: &Stream, address: u64, bytes: u64) {
        if self.used_by_graph(DevicePtr(address), bytes, stream).is_err() {
            let unknown = GraphUse::default();
            self.use_blocks(address, bytes, &unknown);
            unknown.keep_for_ever();
        }
    }
}

impl MemoryOwner for CapturedMemory {
    fn used_by_graph(&self, DevicePtr(address): DevicePtr, bytes: u64, stream: &Stream) -> Result<()> {
        if !stream.context().driver().is_same(self.context.driver()) {
            return Ok(());
        }
        // Only an active capture has an id. An invalidated capture gives no graph.
        let Some(capture) = stream.capture_info()?.id else { return Ok(()) };
        let graph = self.graph(capture);
        if self.use_blocks(address, bytes, &graph) && !stream.keep_in_graph(graph.clone())? {
            // Another library began the capture, and its graph can own nothing. So the uses never end.
            std::mem::forget(graph);
        }
        Ok(())
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
