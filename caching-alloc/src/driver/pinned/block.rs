//! A block of pinned memory that the host may access.

use std::fmt;
use std::iter;
use std::slice;
use std::sync::Arc;

use cuda_driver::DevicePtr;

use super::error::PinnedError;
use super::source::PinnedSegment;
use crate::core::{AllocError, Block, StreamEvents as _, StreamId};
use crate::driver::DriverEvents;

/// A block of pinned host memory with one owner, from a [`PinnedAllocator`](super::PinnedAllocator). Dropping it frees
/// it on its stream, like a [`Block`].
///
/// The host gets the bytes from [`wait_ready`](Self::wait_ready). Copies and kernels take [`as_ptr`](Self::as_ptr) or
/// [`device_ptr`](Self::device_ptr). The caller of the `unsafe` function that enqueues them must ensure three things.
/// - They are enqueued on the block's stream, or on a stream that was passed to [`record_stream`](Self::record_stream)
///   before.
/// - The block is not dropped before they are enqueued.
/// - No slice of the bytes is in use until they have ended.
pub struct PinnedBlock {
    // This field is declared, and so dropped, before `block`. Until `block` is freed, the source has a reference to the
    // segment too. So the drop of this field does not free the memory. The source's `release` frees it later, and can
    // return an error.
    segment: Arc<PinnedSegment>,
    block: Block,
    offset: usize,
    len: usize,
    events: Arc<DriverEvents>,
    /// The recorded streams, other than the block's own.
    users: Vec<StreamId>,
}

impl PinnedBlock {
    /// Makes a pinned block of `block`, which must lie entirely in `segment`, `offset` bytes after the segment's start.
    /// No other block may have these bytes. `events` are those of the block's allocator.
    pub(super) fn new(
        block: Block,
        (segment, offset): (Arc<PinnedSegment>, usize),
        events: Arc<DriverEvents>,
    ) -> Self {
        // The cast is lossless: the length is at most that of the block, which lies in host memory.
        let len = block.requested().min(block.bytes()) as usize;
        Self { segment, block, offset, len, events, users: Vec::new() }
    }

    /// Returns the length in bytes, which is the requested size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the stream on which the block was allocated, and is freed.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.block.stream()
    }

    /// Returns the host address of the first byte, a multiple of 512, for work that is enqueued. The host must not
    /// access the bytes before [`wait_ready`](Self::wait_ready).
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.segment.memory.as_ptr().wrapping_add(self.offset)
    }

    /// Returns the address at which the device accesses the first byte; `None` if the source does not
    /// [map](cuda_driver::memory::PinnedFlags::DEVICE_MAPPED) its memory.
    #[must_use]
    pub fn device_ptr(&self) -> Option<DevicePtr> {
        self.segment.device.map(|base| base + self.offset)
    }

    /// Records that work on `stream` uses the block. The memory is reused only once all work enqueued on `stream`
    /// before the block is dropped has ended. [`wait_ready`](Self::wait_ready) then waits for `stream` too.
    ///
    /// # Errors
    /// As [`Block::record_stream`].
    pub fn record_stream(&mut self, stream: StreamId) -> Result<(), AllocError> {
        self.block.record_stream(stream)?;
        if stream != self.block.stream() && !self.users.contains(&stream) {
            self.users.push(stream);
        }
        Ok(())
    }

    /// Blocks the host until all work enqueued so far on the block's stream, and on the recorded ones, has ended, and
    /// then returns the bytes. All uses of the memory as part of earlier blocks have ended then, too.
    ///
    /// The bytes are always initialised, but may hold data of an earlier block.
    ///
    /// # Errors
    /// [`PinnedError::Capturing`] if one of the streams captures; the capture stays valid. [`PinnedError::Event`] if
    /// one of the streams was [forgotten](DriverEvents::forget), or if the driver fails to return a stream's capture
    /// status, to record an event or to wait for it, also because of an error of earlier asynchronous work.
    pub fn wait_ready(&mut self) -> Result<&mut [u8], PinnedError> {
        for stream in iter::once(self.block.stream()).chain(self.users.iter().copied()) {
            self.wait_for(stream)?;
        }
        // SAFETY: the memory is initialised, and `self` keeps it alive. `PinnedAllocator` gives each byte to one block
        // at a time, and `self` is borrowed exclusively. Earlier work has ended: it ran on these streams, or the
        // allocator made the block's stream wait for it, or it had ended before. Callers that enqueue later work
        // promise not to overlap the slice.
        Ok(unsafe { slice::from_raw_parts_mut(self.as_ptr(), self.len) })
    }

    /// Returns the underlying block. The host must not access it: it is for work enqueued on streams.
    #[must_use]
    pub fn into_block(self) -> Block {
        self.block
    }

    fn wait_for(&self, stream: StreamId) -> Result<(), PinnedError> {
        // An event recorded during a capture is part of the graph, and waiting for it would invalidate the capture.
        if self.events.is_capturing(stream)? {
            return Err(PinnedError::Capturing { stream });
        }
        let event = self.events.record(stream)?;
        let waited = self.events.synchronize(event);
        self.events.recycle(event);
        Ok(waited?)
    }
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBlock")
            .field("block", &self.block)
            .field("device_ptr", &self.device_ptr())
            .field("users", &self.users)
            .finish()
    }
}
