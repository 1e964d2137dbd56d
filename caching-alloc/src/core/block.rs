//! Blocks: the memory that requests return.

use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use super::error::AllocError;
use super::heap::BlockId;
use super::key::Key;
use super::pending::User;
use super::request::{Name, Request};
use super::segment::{PoolId, Segment};
use super::size::{Units, bytes_of};
use super::slot::{CacheSlot, Open};
use super::stream::StreamId;
use super::stream_cache::{BATCH, CacheState};

/// A range of device memory with one owner. Dropping the block frees the memory. Work that was enqueued on the block's
/// stream before the drop may still use the memory; work enqueued later must not.
///
/// The memory stays reserved as long as the block exists, even after all handles of the pool and the allocator are
/// dropped.
pub struct Block {
    slot: &'static CacheSlot,
    address: u64,
    stream: StreamId,
    units: Units,
    id: BlockId,
}

impl Block {
    /// Allocates a block from the stream cache with this key, whose state was in `slot` when the caller last used the
    /// cache. A stream cache has the memory of one stream in one pool. Returns `None` if the slot no longer has the
    /// state of a cache with this key, or if the cache finds no free block that fits.
    #[inline]
    pub(super) fn hit(slot: &'static CacheSlot, key: Key, request: Request) -> Option<Self> {
        let mut open = slot.lock_of(key)?;
        let state = &mut *open;
        let id = state.reserve(request.units)?;
        let block = Self::hand_out(slot, state, id, request, key.stream);
        if state.ring.waiting() >= BATCH {
            deliver(open);
        }
        Some(block)
    }

    /// Hands out block `id`, which was reserved in the cache with this state. Adds a block entry to the trace, but
    /// does not deliver it to trackers: the caller does so after it has unlocked the cache, or a later call does.
    #[inline]
    pub(super) fn hand_out(
        slot: &'static CacheSlot,
        state: &mut CacheState,
        id: BlockId,
        request: Request,
        stream: StreamId,
    ) -> Self {
        let (address, units) = state.hand_out(id, request);
        if stream != state.origin.stream {
            // The cache lends the block to `stream`. Because this use is recorded, the cache reuses the memory only
            // after the work of `stream`.
            state.add_use(id, User::Stream(stream));
        }
        Self { slot, address, stream, units, id }
    }

    /// Returns the device address of the first byte, a multiple of 512.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes, a multiple of 512. It is at least the requested size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(self.units)
    }

    /// Returns the requested size in bytes.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.slot.lock().meta_of(self.id).requested
    }

    /// Returns the stream on which the block is used and freed.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.slot.lock().origin.device
    }

    /// Returns the pool whose memory the block is in.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.slot.lock().origin.pool
    }

    /// Returns the source location of the request.
    #[must_use]
    pub fn call_site(&self) -> &'static Location<'static> {
        self.slot.lock().info(self.id).call_site
    }

    /// Returns the name that was passed with the request, if any.
    #[must_use]
    pub fn name(&self) -> Option<Name> {
        self.slot.lock().info(self.id).name
    }

    /// Returns the segment that contains the block. In a re-mappable pool, returns the first of the block's pages.
    #[must_use]
    pub fn segment(&self) -> Segment {
        let segments = self.segments();
        segments.into_iter().next().expect("a block's segment stays while the block is handed out")
    }

    /// Returns all segments that contain the block, in order of address. There is one, except in a re-mappable pool,
    /// where a block may span several pages.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        self.slot.lock().segments_of(self.id)
    }

    /// Returns true if the block's memory comes from `source` itself, and not from another source or an adapter.
    pub(crate) fn is_from<S: ?Sized>(&self, source: &Arc<S>) -> bool {
        let is_own = |segment: &Segment| ptr::addr_eq(Arc::as_ptr(segment.source()), Arc::as_ptr(source));
        self.slot.lock().first_segment(self.id, is_own).unwrap_or(false)
    }

    /// Returns the [`StreamEvents`](super::StreamEvents) of the block's allocator. Never `None` while the block is
    /// handed out.
    #[cfg(feature = "cudarc")]
    pub(crate) fn events(&self) -> Option<Arc<dyn super::stream::StreamEvents>> {
        self.slot.lock().events()
    }

    /// Records that work on `stream` uses the block. The memory is then reused only after all work that is enqueued on
    /// `stream` before the block is dropped.
    ///
    /// # Errors
    /// [`AllocError::UnknownStream`] if [`StreamEvents`](super::StreamEvents) does not know the stream.
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
            state.add_use(self.id, User::Stream(stream));
        }
        Ok(())
    }
}

/// Unlocks the cache, and delivers its undelivered block entries to trackers.
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
