//! Captured work: the graphs that use memory of the allocator.

use std::sync::Weak;

use super::Registry;
use crate::core::graph_use::{GRAPH, GraphUse, KeptKey};
use crate::core::segment::SegmentId;
use crate::core::stream::CapturedUses;

impl Registry {
    /// Begins to receive reports of captured work. `engine` finds the blocks that this work uses.
    pub(in crate::core) fn report_captured_uses(&self, engine: Weak<dyn CapturedUses>) {
        if self.engine.set(engine).is_ok() {
            self.events.report_captured_uses(self.me.clone());
        }
    }

    /// The key under which a [`GraphUse`] keeps a segment of this registry, or the registry itself.
    pub(in crate::core) fn kept_key(&self, segment: Option<SegmentId>) -> KeptKey {
        (std::ptr::from_ref(self).addr(), segment.map(|segment| segment.0))
    }
}

impl CapturedUses for Registry {
    fn used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        let engine = self.engine.get().and_then(Weak::upgrade);
        let is_used = match engine {
            Some(engine) => engine.used_by_graph(address, bytes, graph),
            // The allocator is dropped, so no request reuses the block. Its segment must stay.
            None => self.segment_at(address).is_some_and(|segment| {
                graph.keep(self.kept_key(Some(segment.id())), || segment.hold(GRAPH).ok())
            }),
        };
        // With the registry, the memory is released after the graph's end even if the allocator is dropped meanwhile.
        is_used && graph.keep(self.kept_key(None), || self.me.upgrade())
    }
}
