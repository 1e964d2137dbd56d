//! A source and a tracker that compare their calls with the ledger.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caching_alloc::core::{
    Entry, MemoryInfo, PageSource, SegmentMemory, SegmentSource, Snapshot, SourceError, Tracker, TrackerError,
};
use caching_alloc::host::HostSource;

use super::ledger::Ledger;
use super::mirror::Mirror;

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) host: HostSource,
    pub(super) ledger: Arc<Shared>,
}

/// The ledger, shared by the model, the source and the tracker.
#[derive(Debug)]
pub(super) struct Shared(Mutex<Ledger>);

impl Shared {
    pub(super) fn new(ledger: Ledger) -> Arc<Self> {
        Arc::new(Self(Mutex::new(ledger)))
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Checks the size of memory that the source has just returned, and that the limit still holds.
    fn check_given(&self, bytes: u64) {
        let out = self.host.calls().live_bytes;
        let mut ledger = self.ledger.open();
        if !bytes.is_multiple_of(self.granularity()) {
            ledger.complain(format!("{bytes} bytes were asked for, no multiple of the granularity"));
        }
        if let Some(limit) = ledger.limit.filter(|limit| out > *limit) {
            ledger.complain(format!("{out} bytes were asked for under a limit of {limit}"));
        }
    }
}

impl SegmentSource for Watched {
    fn device(&self) -> u32 {
        self.host.device()
    }

    fn granularity(&self) -> u64 {
        self.host.granularity()
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        Some(self)
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let memory = self.host.allocate(bytes)?;
        self.check_given(bytes);
        Ok(memory)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut ledger = self.ledger.open();
        ledger.unmap(memory.address, memory.bytes);
        ledger.discard(memory.token);
        self.host.release(memory)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.host.memory_info()
    }
}

impl PageSource for Watched {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        self.host.reserve(bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        self.host.unreserve(address, bytes);
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let token = self.host.create(bytes)?;
        self.check_given(bytes);
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        self.ledger.open().discard(token);
        self.host.discard(token, bytes)
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.ledger.open().map(memory.token);
        self.host.map(memory)
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.host.enable(address, bytes)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.ledger.open().unmap(address, bytes);
        self.host.unmap(address, bytes)
    }
}

impl Tracker for Shared {
    fn name(&self) -> &str {
        "ledger"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        self.open().mirror = Mirror::of(snapshot);
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        entries.iter().for_each(|entry| self.open().observe(entry));
        Ok(())
    }
}
