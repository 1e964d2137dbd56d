//! Copies of a cache's state, made piece by piece, so that a hit waits for the copy of one piece at most.

use super::{CacheState, StreamCache};
use crate::core::block_meta::InUse;
use crate::core::ring::{Batch, RingCopy};
use crate::core::segment::Segment;
use crate::core::tracker::Slots;

/// The number of blocks, segments or entries that are copied per acquisition of the lock. It is small in tests, so that
/// copies of a few blocks take several steps.
const CHUNK: u32 = if cfg!(test) { 2 } else { 1024 };

/// A copy of a cache's state at one moment.
#[derive(Debug)]
pub(in crate::core) struct CacheCopy {
    pub(in crate::core) segments: Vec<Segment>,
    /// The blocks that were handed out, or that other streams might still use. In no particular order.
    pub(in crate::core) blocks: Vec<InUse>,
    /// The trace entries that the ring still had. Empty if they were not requested.
    pub(in crate::core) entries: RingCopy,
}

impl StreamCache {
    /// Locks the state, calls `first` with it, and returns a copy of the cache's state at that moment. With
    /// `with_entries`, copies the trace entries too. The caller holds the structure lock, so no segment is added or
    /// removed meanwhile, and no other copy is made.
    pub(in crate::core) fn copy(&self, with_entries: bool, first: impl FnOnce(&mut CacheState)) -> CacheCopy {
        let mut entries = {
            let mut state = self.state.lock();
            first(&mut state);
            state.blocks.begin_copy();
            state.ring.begin_copy()
        };
        let mut blocks = Vec::new();
        loop {
            blocks.reserve(2 * CHUNK as usize);
            if !self.state.lock().blocks.copy_next(&mut blocks, CHUNK) {
                break;
            }
        }
        if with_entries {
            entries.reserve();
            while self.state.lock().ring.copy_next(&mut entries, CHUNK.into()) {}
        }
        CacheCopy { segments: self.segments(), blocks, entries }
    }

    /// Returns the cache's segments. Without the structure lock, a segment that is being moved to another cache may be
    /// missing, or be in the results of both.
    pub(in crate::core) fn segments(&self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut next = 0;
        loop {
            segments.reserve(CHUNK as usize);
            let state = self.state.lock();
            let all = &state.fixed.segments;
            let end = all.len().min(next + CHUNK as usize);
            segments.extend(all[next..end].iter().flatten().cloned());
            if end == all.len() {
                return segments;
            }
            next = end;
        }
    }

    /// Makes `slots` the trackers for later block entries. Returns the previous trackers, and the entries that they
    /// have not received yet.
    pub(in crate::core) fn resubscribe(state: &mut CacheState, slots: &Slots) -> (Slots, Batch) {
        let mut before = Batch::default();
        state.ring.take_outbox(&mut before);
        state.ring.subscribed = !slots.is_empty();
        (std::mem::replace(&mut state.slots, slots.clone()), before)
    }
}
