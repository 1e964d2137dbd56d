//! A block: memory with an owner.

use std::fmt;
use std::panic::Location;

use super::error::AllocError;
use super::heap::BlockId;
use super::segment::{PoolId, Segment};
use super::size::{Units, bytes_of};
use super::slot::CacheSlot;
use super::stream::StreamId;
use super::symmetric::Placement;

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
    #[inline]
    pub(super) fn new(
        slot: &'static CacheSlot,
        id: BlockId,
        address: u64,
        units: Units,
        stream: StreamId,
    ) -> Self {
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
        self.slot.lock().lease_of(self.id).requested
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
        self.slot.lock().site(self.id)
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

    /// Its place in its pool and stream; in a symmetric pool the same on every rank.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.slot.lock().placement(self.id)
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
    /// [`AllocError::SymmetricUse`] if the block is of a symmetric pool, whose reuse must not depend on when
    /// work ends. [`AllocError::UnknownStream`] if there is no such stream.
    #[doc(alias = "recordStream")]
    pub fn record_stream(&self, stream: StreamId) -> Result<(), AllocError> {
        if stream == self.stream {
            return Ok(());
        }
        let mut state = self.slot.lock();
        if state.symmetric.is_some() {
            let pool = state.origin.pool;
            return Err(AllocError::SymmetricUse { pool, bound: self.stream, stream });
        }
        if stream != state.origin.stream {
            let events = state.events();
            drop(state);
            if events.is_some_and(|events| !events.knows(stream)) {
                return Err(AllocError::UnknownStream { stream });
            }
            state = self.slot.lock();
            state.add_use(self.id, stream);
        }
        Ok(())
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
