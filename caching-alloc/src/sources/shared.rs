//! An `Arc` of a source is a source.

use std::sync::Arc;

use crate::core::{
    MemoryInfo, PageSource, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError, SourceLimit,
};

/// Passes all calls on to the source. So a program can put an adapter over a source, and keep a handle of the source.
impl<S: SegmentSource + ?Sized> SegmentSource for Arc<S> {
    fn device(&self) -> u32 {
        (**self).device()
    }

    fn granularity(&self) -> u64 {
        (**self).granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        (**self).allocate(bytes)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        (**self).release(memory)
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        (**self).as_pages()
    }

    fn is_exportable(&self) -> bool {
        (**self).is_exportable()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        (**self).export(memory, kind)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        (**self).memory_info()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        (**self).source_limit()
    }
}
