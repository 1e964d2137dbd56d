//! A source for the models and flows, with addresses but no memory. Every method except `device` and `as_pages` asserts
//! that the caller holds no lock that a hit takes.

use std::sync::Arc;

use crate::core::lock::assert_may_call_out;
use crate::core::{MemoryInfo, PageSource, SegmentMemory, SegmentSource, SourceError};
use crate::host::HostSource;

#[derive(Debug)]
pub(super) struct Source(pub(super) Arc<HostSource>);

impl Source {
    fn host(&self) -> &HostSource {
        assert_may_call_out();
        &self.0
    }
}

impl SegmentSource for Source {
    fn device(&self) -> u32 {
        self.0.device()
    }
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.host().allocate(bytes)
    }
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.host().release(memory)
    }
    fn as_pages(&self) -> Option<&dyn PageSource> {
        Some(self)
    }
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.host().memory_info()
    }
}

impl PageSource for Source {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        self.host().reserve(bytes)
    }
    fn unreserve(&self, address: u64, bytes: u64) {
        self.host().unreserve(address, bytes);
    }
    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        self.host().create(bytes)
    }
    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        self.host().discard(token, bytes)
    }
    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.host().map(memory)
    }
    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.host().enable(address, bytes)
    }
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.host().unmap(address, bytes)
    }
}
