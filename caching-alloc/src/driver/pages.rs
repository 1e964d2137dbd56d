//! Pages: physical memory that can be mapped at several addresses, and moved by mapping it elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver::vmm::{Access, PageTable, PhysicalMemory, Reservation};

use super::virtual_memory::VirtualMemorySource;
use super::{failed, host_size, source_error};
use crate::core::{PageSource, SegmentMemory, SegmentSource as _, SourceError};

/// The live pages and reserved address ranges of a source.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Keyed by token, which is the driver's handle.
    pages: Mutex<HashMap<u64, Page>>,
    /// Keyed by the first address.
    ranges: Mutex<BTreeMap<u64, Arc<Mutex<Range>>>>,
}

#[derive(Debug)]
struct Page {
    memory: PhysicalMemory,
    /// The number of mappings that were made and not successfully removed.
    mappings: u32,
}

#[derive(Debug)]
struct Range {
    table: PageTable,
    /// True after `unreserve`: no further page will be mapped here, and the addresses are released when the last page
    /// is unmapped.
    is_closing: bool,
}

/// The cause of a failed call: the page or range does not exist, the page has another length, or a page that was to be
/// released is still mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum PageError {
    #[error("page {token:#x} is not of this source, or has been released already")]
    NoPage { token: u64 },
    #[error("page {token:#x} has {found} bytes, not {bytes}")]
    Length { token: u64, bytes: u64, found: usize },
    #[error("{bytes} bytes at {address:#x} lie in no range that was reserved here")]
    NoRange { address: u64, bytes: u64 },
    #[error("page {token:#x} is still mapped {mappings} times: its memory is released with the last mapping")]
    Mapped { token: u64, mappings: u32 },
}

fn wrong(call: &'static str) -> impl FnOnce(PageError) -> SourceError {
    move |error| SourceError::Failed { call, source: Box::new(error) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    /// Returns the physical memory of the page whose mapping begins at `address`; `None` if there is none.
    pub(super) fn physical(&self, address: u64) -> Option<PhysicalMemory> {
        let (base, range) = self.range(address, 1).ok()?;
        let range = lock(&range);
        let (start, memory) = range.table.page_at(usize::try_from(address - base).ok()?)?;
        (base + start as u64 == address).then(|| memory.clone())
    }

    /// Returns true if the page with the token of `memory` is mapped at the address of `memory`.
    pub(super) fn has(&self, memory: &SegmentMemory) -> bool {
        self.physical(memory.address).is_some_and(|page| page.raw() == memory.token)
    }

    /// Returns the first address of the reserved range that contains `bytes` bytes at `address`, and the range.
    fn range(&self, address: u64, bytes: u64) -> Result<(u64, Arc<Mutex<Range>>), PageError> {
        let found =
            lock(&self.ranges).range(..=address).next_back().map(|(base, range)| (*base, range.clone()));
        let fits = |(base, range): &(u64, Arc<Mutex<Range>>)| {
            let end = address.checked_add(bytes);
            let limit = base + lock(range).table.reservation().bytes() as u64;
            end.is_some_and(|end| end <= limit)
        };
        found.filter(fits).ok_or(PageError::NoRange { address, bytes })
    }

    /// Returns the physical memory of a page. Returns an error unless its length is `bytes`.
    fn page(&self, token: u64, bytes: u64) -> Result<PhysicalMemory, PageError> {
        let pages = lock(&self.pages);
        let Page { memory, .. } = pages.get(&token).ok_or(PageError::NoPage { token })?;
        let found = memory.bytes();
        if found as u64 == bytes {
            Ok(memory.clone())
        } else {
            Err(PageError::Length { token, bytes, found })
        }
    }

    fn count(&self, token: u64, change: impl FnOnce(u32) -> u32) {
        if let Some(page) = lock(&self.pages).get_mut(&token) {
            page.mappings = change(page.mappings);
        }
    }

    /// Unmaps whole pages by one driver call. If the range was unreserved and has no other page, it is released too, also
    /// after a failure.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        const CALL: &str = "cuMemUnmap";
        let (base, range) = self.range(address, bytes).map_err(wrong(CALL))?;
        let (offset, size) = (host_size(address - base)?, host_size(bytes)?);
        let mut open = lock(&range);
        let inside = |at: &usize| (offset..offset + size).contains(at);
        let tokens: Vec<u64> =
            open.table.pages().filter(|(at, _)| inside(at)).map(|(_, memory)| memory.raw()).collect();
        let unmapped = open.table.unmap(offset, size).map_err(failed(CALL));
        if unmapped.is_ok() {
            tokens.into_iter().for_each(|token| self.count(token, |mappings| mappings.saturating_sub(1)));
        }
        // After a failure, the table no longer lists the pages. No later call for this range comes, so the range is
        // dropped here. The drop of the table tries again to unmap the pages.
        let is_over = open.is_closing && open.table.pages().len() == 0;
        drop(open);
        if is_over {
            lock(&self.ranges).remove(&base);
        }
        unmapped
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        const CALL: &str = "cuMemRelease";
        self.page(token, bytes).map_err(wrong(CALL))?;
        let page = lock(&self.pages).remove(&token);
        match page {
            // The ranges in which the page is mapped keep its memory until they unmap it.
            Some(Page { mappings, .. }) if mappings > 0 => {
                Err(wrong(CALL)(PageError::Mapped { token, mappings }))
            }
            _ => Ok(()),
        }
    }

    /// Unmaps a page and releases it. Tries both, and returns the first error.
    pub(super) fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let unmapped = self.unmap(memory.address, memory.bytes);
        let discarded = self.discard(memory.token, memory.bytes);
        unmapped.and(discarded)
    }
}

/// Only the source's own device can access pages: each peer would make every mapping slower by orders of magnitude. If
/// the driver fails to unmap pages, the source keeps the pages and their addresses. It tries again when it drops the
/// reserved range, at the latest when the source itself is dropped.
impl PageSource for VirtualMemorySource {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let (size, alignment) = (host_size(bytes)?, host_size(self.granularity())?);
        let reservation = Reservation::new(self.context.driver(), size, alignment)
            .map_err(failed("cuMemAddressReserve"))?;
        let base = reservation.ptr().0;
        let range = Range { table: PageTable::new(reservation), is_closing: false };
        lock(&self.pages.ranges).insert(base, Arc::new(Mutex::new(range)));
        Ok(base)
    }

    fn unreserve(&self, address: u64, _bytes: u64) {
        let mut ranges = lock(&self.pages.ranges);
        let Some(range) = ranges.get(&address).cloned() else { return };
        let is_empty = {
            let mut range = lock(&range);
            range.is_closing = true;
            range.table.pages().len() == 0
        };
        let gone = if is_empty { ranges.remove(&address) } else { None };
        // Dropping the range releases its addresses by a driver call, so no lock may be held.
        drop(ranges);
        drop((range, gone));
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let memory = PhysicalMemory::create(&self.context, host_size(bytes)?, self.sharing.handle_types)
            .map_err(|error| source_error("cuMemCreate", bytes, error))?;
        let token = memory.raw();
        lock(&self.pages.pages).insert(token, Page { memory, mappings: 0 });
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        self.pages.discard(token, bytes)
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        const CALL: &str = "cuMemMap";
        let SegmentMemory { address, bytes, token } = *memory;
        let page = self.pages.page(token, bytes).map_err(wrong(CALL))?;
        let (base, range) = self.pages.range(address, bytes).map_err(wrong(CALL))?;
        let mapped = lock(&range).table.map(host_size(address - base)?, &page);
        mapped.map_err(|error| source_error(CALL, bytes, error))?;
        self.pages.count(token, |mappings| mappings + 1);
        Ok(())
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        const CALL: &str = "cuMemSetAccess";
        let (base, range) = self.pages.range(address, bytes).map_err(wrong(CALL))?;
        let own = [(self.context.device(), Access::ReadWrite)];
        let enabled = lock(&range).table.set_access(host_size(address - base)?, host_size(bytes)?, &own);
        enabled.map_err(|error| source_error(CALL, bytes, error))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        self.pages.unmap(address, bytes)
    }
}
