//! Segments of pinned host memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver::graph::RelaxedCapture;
use cuda_driver::memory::{PinnedFlags, PinnedMemory};
use cuda_driver::{Context, DevicePtr};

use super::host_memory;
use crate::core::{Block, MemoryInfo, SegmentMemory, SegmentSource, SourceError};
use crate::driver::{SEGMENT_GRANULARITY, Segments, failed, host_size, source_error};

/// A source of segments of pinned (page-locked) host memory, from `cuMemHostAlloc`.
///
/// Addresses of segments and blocks are host addresses. Copies between host and device need no flag. With
/// [`PinnedFlags::DEVICE_MAPPED`], [`device_ptr`](Self::device_ptr) returns the address that kernels use. Segments are
/// zeroed when they are made. Reused blocks are not. Pinning is slow, and releasing a segment waits for the device. The
/// memory cannot be exported to other processes.
///
/// Like device memory, a block is reused in stream order: work enqueued on its stream before the block was handed out
/// may still use it. A copy enqueued on that stream needs no wait, but the host must wait before it accesses the bytes.
/// Blocks of a [`PinnedAllocator`](super::PinnedAllocator) can wait. A program that uses an
/// [`Allocator`](crate::core::Allocator) over this source must wait itself.
///
/// [`memory_info`](SegmentSource::memory_info) returns the host's memory as reported by `/proc/meminfo`, which does not
/// show limits of containers. A [`LimitingSource`](crate::sources::LimitingSource) limits the pinned memory.
#[derive(Debug)]
pub struct PinnedHostSource {
    context: Context,
    flags: PinnedFlags,
    /// Shared with the live [`PinnedBlock`](super::PinnedBlock)s, so the memory lives at least as long as they do.
    segments: Segments<Arc<PinnedSegment>>,
    /// Number of segments made so far. It is the [`SegmentMemory::token`] of the next one.
    made: AtomicU64,
}

/// The memory of a segment.
#[derive(Debug)]
pub(super) struct PinnedSegment {
    pub(super) memory: PinnedMemory,
    /// The address at which the device accesses the first byte, if the memory is mapped.
    pub(super) device: Option<DevicePtr>,
}

impl PinnedHostSource {
    /// Makes a source that pins memory in `context`, with `flags` for every segment. [`PinnedFlags::PORTABLE`] pins it
    /// for all contexts. [`PinnedFlags::WRITE_COMBINED`] is for memory that the host only writes.
    #[must_use]
    pub fn new(context: &Context, flags: PinnedFlags) -> Self {
        Self { context: context.clone(), flags, segments: Segments::default(), made: AtomicU64::new(0) }
    }

    /// Returns the flags of all segments.
    #[must_use]
    pub fn flags(&self) -> PinnedFlags {
        self.flags
    }

    /// Returns the address at which the device accesses a block; `None` if the memory is not
    /// [mapped](PinnedFlags::DEVICE_MAPPED), or not of this source. The driver may map memory, for example
    /// write-combined memory, at another address than the host's.
    #[must_use]
    pub fn device_ptr(&self, block: &Block) -> Option<DevicePtr> {
        let (segment, offset) = self.place_of(block)?;
        segment.device.map(|base| base + offset)
    }

    /// Returns the segment that contains all of a block, and the block's offset in it in bytes; `None` if no live
    /// segment of this source does.
    pub(super) fn place_of(&self, block: &Block) -> Option<(Arc<PinnedSegment>, usize)> {
        let memory = block.segment().memory();
        let offset = usize::try_from(block.address().checked_sub(memory.address)?).ok()?;
        let end = offset.checked_add(usize::try_from(block.bytes()).ok()?)?;
        let segment = self.segment(&memory)?;
        (end <= segment.memory.bytes()).then_some((segment, offset))
    }

    fn segment(&self, memory: &SegmentMemory) -> Option<Arc<PinnedSegment>> {
        let of_token = |token, segment: &Arc<_>| (token == memory.token).then(|| Arc::clone(segment));
        self.segments.with(memory.address, of_token)?
    }
}

impl SegmentSource for PinnedHostSource {
    fn device(&self) -> u32 {
        self.context.device().ordinal()
    }

    fn granularity(&self) -> u64 {
        SEGMENT_GRANULARITY
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let size = host_size(bytes)?;
        let _relaxed = RelaxedCapture::enter(self.context.driver())
            .map_err(failed("cuThreadExchangeStreamCaptureMode"))?;
        let memory = PinnedMemory::new(&self.context, size, self.flags)
            .map_err(|error| source_error("cuMemHostAlloc", bytes, error))?;
        let mapped = self.flags.contains(PinnedFlags::DEVICE_MAPPED);
        let device = mapped.then(|| memory.device_ptr()).transpose();
        let device = device.map_err(failed("cuMemHostGetDevicePointer_v2"))?;
        let token = self.made.fetch_add(1, Ordering::Relaxed);
        let (address, bytes) = (memory.as_ptr().addr() as u64, memory.bytes() as u64);
        let made = SegmentMemory { address, bytes, token };
        self.segments.insert(&made, Arc::new(PinnedSegment { memory, device }));
        Ok(made)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let segment = self.segments.remove(memory)?;
        // If something other than the allocator releases the segment, a `PinnedBlock` may still share it. That block
        // then frees the memory when it is dropped.
        let segment = Arc::into_inner(segment);
        segment.map_or(Ok(()), |segment| segment.memory.free()).map_err(failed("cuMemFreeHost"))
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        host_memory::memory_info()
    }
}
