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

    /// Walks the segments or blocks in the `bytes` bytes at `at`. `visit` gets an address and returns the end of the
    /// segment or block there. If it returns `None`, the walk continues at the next live segment.
    pub(in crate::core) fn walk(&self, mut at: u64, bytes: u64, mut visit: impl FnMut(u64) -> Option<u64>) {
        let end = at.saturating_add(bytes);
        while at < end {
            at = visit(at).or_else(|| self.segment_after(at)).unwrap_or(end);
        }
    }

    /// Makes `graph` hold all live segments in this range. Returns true if there are any.
    fn segments_used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        let mut is_used = false;
        self.walk(address, bytes, |at| {
            let segment = self.segment_at(at)?;
            is_used |= graph.keep(self.kept_key(Some(segment.id())), || segment.hold(GRAPH).ok());
            Some(segment.memory().end())
        });
        is_used
    }
}

impl CapturedUses for Registry {
    fn used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        let engine = self.engine.get().and_then(Weak::upgrade);
        let is_used = match engine {
            Some(engine) => engine.used_by_graph(address, bytes, graph),
            // The allocator is dropped, so no request reuses the block. Its segments must stay.
            None => self.segments_used_by_graph(address, bytes, graph),
        };
        // With the registry, the memory is released after the graph's end even if the allocator is dropped meanwhile.
        is_used && graph.keep(self.kept_key(None), || self.me.upgrade())
    }
}
