//! Memory of a device, with every call counted.

use std::sync::{Mutex, PoisonError};

use caching_alloc::core::{MemoryInfo, PageSource, SegmentMemory, SegmentSource, SourceError, SourceLimit};
use caching_alloc::host::Calls;

/// Another source, and the number of calls to it.
#[derive(Debug)]
pub(super) struct Counted<S> {
    source: S,
    calls: Mutex<Calls>,
}

impl<S> Counted<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, calls: Mutex::default() }
    }

    fn count(&self, change: impl FnOnce(&mut Calls)) {
        change(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Counts of the calls to a source.
pub(super) trait Counts: SegmentSource {
    fn calls(&self) -> Calls;
}

impl<S: SegmentSource> Counts for Counted<S> {
    fn calls(&self) -> Calls {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn came(calls: &mut Calls, bytes: u64) {
    calls.live_bytes += bytes;
    calls.peak_bytes = calls.peak_bytes.max(calls.live_bytes);
}

impl<S: SegmentSource> Counted<S> {
    fn pages(&self) -> Result<&dyn PageSource, SourceError> {
        let none = || SourceError::Failed { call: "a page", source: "the source has none".into() };
        self.source.as_pages().ok_or_else(none)
    }
}

impl<S: SegmentSource> SegmentSource for Counted<S> {
    fn device(&self) -> u32 {
        self.source.device()
    }

    fn granularity(&self) -> u64 {
        self.source.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.count(|calls| calls.allocate += 1);
        let memory = self.source.allocate(bytes)?;
        self.count(|calls| came(calls, bytes));
        Ok(memory)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.source.release(memory)?;
        self.count(|calls| {
            calls.release += 1;
            calls.live_bytes -= memory.bytes;
        });
        Ok(())
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        self.source.as_pages().map(|_| self as &dyn PageSource)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.source.memory_info()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        self.source.source_limit()
    }
}

impl<S: SegmentSource> PageSource for Counted<S> {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        self.pages()?.reserve(bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        if let Some(pages) = self.source.as_pages() {
            pages.unreserve(address, bytes);
        }
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        self.count(|calls| calls.create += 1);
        let token = self.pages()?.create(bytes)?;
        self.count(|calls| came(calls, bytes));
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        self.pages()?.discard(token, bytes)?;
        self.count(|calls| {
            calls.discard += 1;
            calls.live_bytes -= bytes;
        });
        Ok(())
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.count(|calls| calls.map += 1);
        self.pages()?.map(memory)
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.count(|calls| calls.enable += 1);
        self.pages()?.enable(address, bytes)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.count(|calls| calls.unmap += 1);
        self.pages()?.unmap(address, bytes)
    }
}
