//! Checkpoints: listing the blocks that are handed out, and handing them out again later at the same addresses.

use std::sync::Arc;

use super::PoolCore;
use crate::core::block::Block;
use crate::core::fixed::Place;
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
        let mut ids = Vec::new();
        for (at, block) in missing {
            let (cache, state) = &mut states[at];
            // This cannot fail: the block was free above, and the saved blocks do not overlap.
            if let Some(id) = state.reserve_at(block.address, block.request.units) {
                ids.push(((*cache).clone(), id, block));
            }
        }
        drop(states);
        let hand_out = |(cache, id, block): (Arc<StreamCache>, _, SavedBlock)| {
            Block::hand_out(cache.state, &mut cache.state.lock(), id, block.request, block.stream)
        };
        Ok(ids.into_iter().map(hand_out).collect())
    }
}
