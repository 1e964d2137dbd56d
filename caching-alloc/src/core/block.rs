//! A block: memory with an owner.

use std::fmt;
use std::panic::Location;

use super::error::AllocError;
use super::heap::BlockId;
use super::key::Key;
use super::request::{Name, Request};
use super::segment::{PoolId, Segment};
use super::size::{Units, bytes_of};
use super::slot::{CacheSlot, Open};
use super::stream::StreamId;
use super::stream_cache::BATCH;

/// Memory of one owner. Dropping it frees it, on its stream: work enqueued there before may still use it, work
/// enqueued after must not.
///
/// It keeps its pool's memory alive, even after the pool and the allocator are dropped.
pub struct Block {
    slot: &'static CacheSlot,
    address: u64,
    stream: StreamId,
    units: Units,
    id: BlockId,
}

impl Block {
    /// Takes a block of the key's cache, if the slot has that cache and a block is at hand.
    #[inline]
    pub(super) fn hit(slot: &'static CacheSlot, key: Key, request: Request) -> Option<Self> {
        let mut state = slot.lock_of(key)?;
        let id = state.reserve(request.units)?;
        Some(Self::hand_out(slot, state, id, request, key.stream))
    }

    /// Hands out a reserved block.
    #[inline]
    pub(super) fn hand_out(
        slot: &'static CacheSlot,
        mut state: Open<'_>,
        id: BlockId,
        request: Request,
        stream: StreamId,
    ) -> Self {
        let (address, units) = state.hand_out(id, request);
        if stream != state.origin.stream {
            // The block is lent. Its free counts as a use by `stream`, whose end the cache's stream must see.
            state.add_use(id, stream);
        }
        if state.ring.waiting() >= BATCH {
            deliver(state);
        }
        Self { slot, address, stream, units, id }
    }

    /// First byte, a device address; a multiple of 512.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes, at least the requested size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(self.units)
    }

    /// The requested size in bytes.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.slot.lock().meta_of(self.id).requested
    }

    /// The stream on which it is used and freed.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.slot.lock().origin.device
    }

    /// Its pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.slot.lock().origin.pool
    }

    /// The source location of the request.
    #[must_use]
    pub fn call_site(&self) -> &'static Location<'static> {
        self.slot.lock().info(self.id).call_site
    }

    /// The name that the request gave.
    #[must_use]
    pub fn name(&self) -> Option<Name> {
        self.slot.lock().info(self.id).name
    }

    /// The segment that contains it; in a re-mappable pool the first one.
    #[must_use]
    pub fn segment(&self) -> Segment {
        let segments = self.segments();
        segments.into_iter().next().expect("a block's segment stays while the block is handed out")
    }

    /// All segments that contain it, by address: one, except in a re-mappable pool, where a block may span
    /// pages.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        self.slot.lock().segments_of(self.id)
    }

    /// The streams and events of its allocator.
    #[cfg(feature = "cudarc")]
    pub(crate) fn events(&self) -> Option<std::sync::Arc<dyn super::stream::StreamEvents>> {
        self.slot.lock().events()
    }

    /// Records that work on `stream` uses the block, now or in work enqueued before the block is dropped. Its
    /// memory is reused only after that work.
    ///
    /// # Errors
    /// [`AllocError::UnknownStream`] if there is no such stream.
    #[doc(alias = "recordStream")]
    pub fn record_stream(&self, stream: StreamId) -> Result<(), AllocError> {
        if stream == self.stream {
            return Ok(());
        }
        let mut state = self.slot.lock();
        if stream != state.origin.stream {
            let events = state.events();
            drop(state);
            if events.is_some_and(|events| !events.is_registered(stream)) {
                return Err(AllocError::UnknownStream { stream });
            }
            state = self.slot.lock();
            state.add_use(self.id, stream);
        }
        Ok(())
    }
}

/// Delivers waiting entries to trackers.
#[cold]
fn deliver(state: Open<'_>) {
    let waiting = state.ring.waiting();
    let cache = state.owner_cache();
    drop(state);
    if let Some(cache) = cache {
        cache.deliver(waiting);
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        self.slot.free(self.id);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes())
            .field("requested", &self.requested())
            .field("stream", &self.stream)
            .field("pool", &self.pool().0)
            .field("asked_for_at", &format_args!("{}", self.call_site()))
            .finish()
    }
}
