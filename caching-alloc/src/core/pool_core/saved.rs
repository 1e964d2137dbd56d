//! Checkpoints: listing the blocks that are handed out, and handing them out again later at the same addresses.

use std::sync::Arc;

use super::PoolCore;
use crate::core::block::Block;
use crate::core::fixed::Place;
use crate::core::heap::BlockId;
use crate::core::request::Request;
use crate::core::size::bytes_of;
use crate::core::stream::StreamId;
use crate::core::stream_cache::StreamCache;

/// A block that was handed out when a checkpoint was made.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct SavedBlock {
    address: u64,
    request: Request,
    /// The stream of the cache that the block belonged to.
    stream: StreamId,
}

/// The reason why saved blocks cannot be handed out again.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) enum Conflict {
    /// Some of this block's memory is in use.
    Occupied(SavedBlock),
    /// The segment of this block was released.
    Released(SavedBlock),
    /// The call was made inside a tracker.
    Reentrant,
}

impl SavedBlock {
    /// Returns the address of the first byte, and the length in bytes.
    pub(in crate::core) fn span(&self) -> (u64, u64) {
        (self.address, bytes_of(self.request.units))
    }
}

impl PoolCore {
    /// Returns the blocks that are handed out, grouped by stream cache.
    pub(in crate::core) fn owned_blocks(&self) -> Vec<SavedBlock> {
        // A request that borrows a block first reserves it in the lender's cache. `owned` lists such a block too. The
        // request holds the structure lock until it hands the block out or ends the reservation. So while this function
        // holds the lock, `owned` lists no block that is only reserved for a loan. Inside a tracker this function
        // cannot take the lock, and may list such a block.
        let _structure = self.registry().lock_structure();
        let saved = |cache: Arc<StreamCache>| {
            let owned = cache.state.lock().blocks.owned();
            let stream = cache.stream;
            owned.into_iter().map(move |(address, request)| SavedBlock { address, request, stream })
        };
        self.caches().into_iter().flat_map(saved).collect()
    }

    /// Hands out those saved blocks that are not handed out now, or none if that fails for any of them. Returns the
    /// blocks that it handed out.
    pub(in crate::core) fn restore(&self, saved: &[SavedBlock]) -> Result<Vec<Block>, Conflict> {
        // While the structure lock is held and no change is under way, every segment is in a cache. Only the thread
        // that holds the structure lock locks several caches at a time, so this cannot deadlock.
        let mut structure = self.registry().lock_structure().ok_or(Conflict::Reentrant)?;
        structure.wait_for_all_changes();
        let caches = self.caches();
        caches.iter().for_each(|cache| cache.merge());
        let mut states: Vec<_> = caches.iter().map(|cache| (cache, cache.state.lock())).collect();
        states.iter_mut().for_each(|(_, state)| state.merge_all());
        let mut missing = Vec::new();
        for block in saved {
            let SavedBlock { address, request, .. } = *block;
            // The segment may have moved to another stream, so all caches are searched.
            let places = states
                .iter()
                .enumerate()
                .map(|(at, (_, state))| (at, state.fixed.place(address, request.units)));
            match { places }.find(|(_, place)| *place != Place::Gone) {
                None => return Err(Conflict::Released(*block)),
                Some((at, Place::Free)) => missing.push((at, *block)),
                Some((at, Place::Used(id))) if states[at].1.blocks.is_owned(id) => {}
                Some(_) => return Err(Conflict::Occupied(*block)),
            }
        }
        let mut reserved: Vec<(usize, BlockId, SavedBlock)> = Vec::new();
        for (at, block) in missing {
            let Some(id) = states[at].1.reserve_at(block.address, block.request.units) else {
                // The block was free above, so it overlaps a saved block before it. Both were handed out, one after the
                // other, while the checkpoint was made inside a tracker.
                for (at, id, block) in reserved {
                    states[at].1.unreserve(id, block.request.units);
                }
                return Err(Conflict::Occupied(block));
            };
            reserved.push((at, id, block));
        }
        drop(states);
        let hand_out = |(at, id, block): (usize, _, SavedBlock)| {
            let cache = &caches[at];
            Block::hand_out(cache.state, &mut cache.state.lock(), id, block.request, block.stream)
        };
        Ok(reserved.into_iter().map(hand_out).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Allocator, Settings};
    use crate::host::{HostSource, HostStreams};

    #[test]
    fn of_saved_blocks_that_overlap_none_is_handed_out() {
        let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
        let allocator = Allocator::new(source, streams, Settings::default());
        let pool = allocator.default_pool();
        let block = allocator.allocate(1 << 20, StreamId(1)).unwrap();
        let saved = pool.owned_blocks();
        drop(block);
        let conflict = pool.restore(&[saved[0], saved[0]]).unwrap_err();
        assert!(matches!(conflict, Conflict::Occupied(_)), "{conflict:?}");
        assert_eq!(pool.stats().all.blocks.current, 0);
        assert_eq!(pool.restore(&saved).unwrap().len(), 1);
    }
}
