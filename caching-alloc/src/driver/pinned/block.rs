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
/// The host accesses it by [`wait_ready`](Self::wait_ready). Copies and kernels take [`as_ptr`](Self::as_ptr) or
/// [`device_ptr`](Self::device_ptr); their `unsafe` calls promise that
/// - they are enqueued on the block's stream, or on a stream passed to [`record_stream`](Self::record_stream) before,
///   and the block is dropped after that;
/// - no slice of the bytes is in use before they have ended.
pub struct PinnedBlock {
    // Before the block: while it is allocated, its segment has another owner, which reports a failure to free it.
    segment: Arc<PinnedSegment>,
    block: Block,
    offset: usize,
    len: usize,
    events: Arc<DriverEvents>,
    /// Other streams that use it.
    users: Vec<StreamId>,
}

impl PinnedBlock {
    /// `block` lies in `segment` from `offset` on, whole, and is the only block there. `events` are its allocator's.
    pub(super) fn new(
        block: Block,
        (segment, offset): (Arc<PinnedSegment>, usize),
        events: Arc<DriverEvents>,
    ) -> Self {
        // Not longer than the block, which lies in memory of the host.
        let len = block.requested().min(block.bytes()) as usize;
        Self { segment, block, offset, len, events, users: Vec::new() }
    }

    /// Returns its length in bytes: the requested size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the stream on which it is used and freed.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.block.stream()
    }

    /// Returns the host address of its first byte, a multiple of 512, for work that is enqueued. The host must not
    /// access the bytes before [`wait_ready`](Self::wait_ready).
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.segment.memory.as_ptr().wrapping_add(self.offset)
    }

    /// Returns the address at which the device accesses its first byte; `None` if the source does not
    /// [map](cuda_driver::memory::PinnedFlags::DEVICE_MAPPED) its memory.
    #[must_use]
    pub fn device_ptr(&self) -> Option<DevicePtr> {
        self.segment.device.map(|base| base + self.offset)
    }

    /// Records that work on `stream` uses the block, now or in work enqueued before the block is dropped. Its memory is
    /// reused only after that work, and [`wait_ready`](Self::wait_ready) waits for it.
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

    /// Blocks the host until all work enqueued so far on the block's stream, and on the recorded ones, has ended; then
    /// lends the bytes. That covers all earlier uses of the memory, by this block and by blocks before it.
    ///
    /// The bytes hold what was written last, by anyone; they are never uninitialised.
    ///
    /// # Errors
    /// [`PinnedError::Capturing`] if one of the streams captures; the capture goes on. [`PinnedError::Event`] if the
    /// driver fails to record an event or to wait for it, also for what earlier asynchronous work did wrong.
    pub fn wait_ready(&mut self) -> Result<&mut [u8], PinnedError> {
        for stream in iter::once(self.block.stream()).chain(self.users.iter().copied()) {
            self.wait_for(stream)?;
        }
        // SAFETY: the memory is initialised, and `self` keeps it. `PinnedAllocator` lends each byte to one block at a
        // time, and `self` is borrowed exclusively. Earlier work has ended: it was on these streams, or the allocator
        // made the block's stream wait for it, or it ended before. Later work has promised not to overlap.
        Ok(unsafe { slice::from_raw_parts_mut(self.as_ptr(), self.len) })
    }

    /// Returns the block, for use in stream order only.
    #[must_use]
    pub fn into_block(self) -> Block {
        self.block
    }

    fn wait_for(&self, stream: StreamId) -> Result<(), PinnedError> {
        // An event of a capture is part of the graph, and waiting for it would end the capture.
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
