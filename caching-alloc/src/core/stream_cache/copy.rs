//! Copies of a cache, made piece by piece: a hit waits for one piece at most.

use super::{CacheState, StreamCache};
use crate::core::block_meta::InUse;
use crate::core::ring::{Batch, RingCopy};
use crate::core::segment::Segment;
use crate::core::tracker::Slots;

/// BlockTable, segments and entries that are copied per acquisition of the lock. Fewer in tests, whose few blocks
/// must make several steps.
const CHUNK: u32 = if cfg!(test) { 2 } else { 1024 };

/// A consistent copy of a cache's state.
#[derive(Debug)]
pub(in crate::core) struct CacheCopy {
    pub(in crate::core) segments: Vec<Segment>,
    /// Blocks that were handed out or in use by other streams, in no order.
    pub(in crate::core) blocks: Vec<InUse>,
    pub(in crate::core) entries: RingCopy,
}

impl StreamCache {
    /// Copies the cache as of the moment at which `first` sees it. The caller holds the structure lock, so no
    /// segment is added or removed meanwhile, and no other copy is running.
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

    /// Its segments. The caller holds the structure lock.
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

    /// Takes the undelivered entries, and delivers later ones to `slots`.
    pub(in crate::core) fn resubscribe(&self, state: &mut CacheState, slots: &Slots) -> (Slots, Batch) {
        let mut before = Batch::default();
        state.ring.take_outbox(&mut before);
        state.ring.subscribed = !slots.is_empty();
        (std::mem::replace(&mut state.slots, slots.clone()), before)
    }
}
