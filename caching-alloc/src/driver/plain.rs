//! Segments from `cuMemAlloc`.

use cuda_driver::Context;
use cuda_driver::graph::RelaxedCapture;
use cuda_driver::memory::DeviceMemory;

use super::{SEGMENT_GRANULARITY, Segments, failed, host_size, memory_info, source_error};
use crate::core::{MemoryInfo, SegmentMemory, SegmentSource, SourceError};

/// A source of segments from `cuMemAlloc`. Every peer with access to the device can access them, without a further call
/// for each segment. They cannot be exported as file descriptors or fabric handles. The release of a segment waits for
/// all work of the device.
#[derive(Debug)]
pub struct DriverSource {
    context: Context,
    segments: Segments<DeviceMemory>,
}

impl DriverSource {
    /// Makes a source of segments of the context's device.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), segments: Segments::default() }
    }
}

impl SegmentSource for DriverSource {
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
        let memory = DeviceMemory::new(&self.context, size)
            .map_err(|error| source_error("cuMemAlloc", bytes, error))?;
        let made = SegmentMemory { address: memory.ptr().0, bytes, token: 0 };
        self.segments.insert(&made, memory);
        Ok(made)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.segments.remove(memory)?.free().map_err(failed("cuMemFree"))
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        memory_info(&self.context)
    }
}
