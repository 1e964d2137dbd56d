//! A reservation in which many pages are mapped and unmapped at a time.

use std::collections::BTreeMap;

use super::{Access, PhysicalMemory, Reservation};
use crate::call::call;
use crate::error::within;
use crate::{Device, DevicePtr, Error, Result, teardown};

/// A reservation and the pages mapped in it, for memory that is remapped many pages at a time.
///
/// A page is physical memory of any size, which is mapped whole. One call of [`set_access`](Self::set_access) or
/// [`unmap`](Self::unmap) covers many neighbouring pages; these calls make up most of the cost of remapping. A
/// [`Mapping`](super::Mapping), in contrast, is one handle mapped at one place.
///
/// The same page may be mapped at several places, in this table and in others. The table keeps the reservation alive,
/// and each page while it is mapped. Dropping the table unmaps all pages, without waiting for work that uses them.
///
/// ```no_run
/// use cuda_driver::vmm::{Access, HandleTypes, PageTable, PhysicalMemory, Reservation};
///
/// # fn main() -> cuda_driver::Result<()> {
/// let context = cuda_driver::Driver::load()?.device(0)?.retain_primary()?;
/// let mut table = PageTable::new(Reservation::new(context.driver(), 1 << 38, 0)?);
/// let page = 2 << 20;
/// for at in 0..4 {
///     table.map(at * page, &PhysicalMemory::create(&context, page, HandleTypes::empty())?)?;
/// }
/// table.set_access(0, 4 * page, &[(context.device(), Access::ReadWrite)])?;
/// table.unmap(page, 2 * page)?;
/// assert_eq!(table.pages().count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PageTable {
    reservation: Reservation,
    /// The mapped pages, by their offset in the reservation in bytes.
    pages: BTreeMap<usize, PhysicalMemory>,
    /// Pages that could not be unmapped.
    stuck: Vec<Run>,
}

/// Neighbouring pages without holes between them.
#[derive(Debug)]
struct Run {
    offset: usize,
    bytes: usize,
    pages: Vec<PhysicalMemory>,
}

impl PageTable {
    /// Creates a table without pages. Map memory in the reservation only by this table: the driver refuses to map a
    /// page where other memory is mapped, and the table neither lists nor unmaps that memory.
    #[must_use]
    pub fn new(reservation: Reservation) -> Self {
        Self { reservation, pages: BTreeMap::new(), stuck: Vec::new() }
    }

    /// The reservation in which the pages are mapped.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The mapped pages in ascending order, each with its offset in bytes from the reservation's start.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = (usize, &PhysicalMemory)> {
        self.pages.iter().map(|(offset, memory)| (*offset, memory))
    }

    /// Returns the page that contains byte `offset`, with the offset of its first byte; `None` if no page is mapped
    /// there.
    #[must_use]
    pub fn page_at(&self, offset: usize) -> Option<(usize, &PhysicalMemory)> {
        let (start, memory) = self.pages.range(..=offset).next_back()?;
        (offset - start < memory.bytes()).then_some((*start, memory))
    }

    /// Maps all of `memory` at byte `offset` of the reservation, and returns the address of the mapped page. No
    /// device can access the page before [`set_access`](Self::set_access).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the page is not inside the reservation; [`Error::DifferentDrivers`]; [`Error::Driver`]
    /// from `cuMemMap`, as for [`Reservation::map`]. After an error, nothing has changed.
    #[doc(alias = "cuMemMap")]
    pub fn map(&mut self, offset: usize, memory: &PhysicalMemory) -> Result<DevicePtr> {
        let bytes = memory.bytes();
        within("reservation", offset, bytes, self.reservation.bytes())?;
        self.reservation.require_driver_of(memory)?;
        let ptr = self.reservation.ptr() + offset;
        // SAFETY: the range is inside the reservation. The table keeps the reservation and the memory until the range
        // is unmapped. The driver refuses a range in which something is mapped.
        unsafe { call!(self.reservation.api(), cuMemMap(ptr.0, bytes, 0, memory.raw(), 0)) }?;
        self.pages.insert(offset, memory.clone());
        Ok(ptr)
    }

    /// Sets the access of devices to `bytes` bytes from byte `offset` on, by one call to the driver. The range must
    /// consist of whole pages without holes.
    ///
    /// # Errors
    /// As [`Reservation::set_access`].
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, offset: usize, bytes: usize, devices: &[(&Device, Access)]) -> Result<()> {
        self.reservation.set_access(offset, bytes, devices)
    }

    /// Unmaps the pages in `bytes` bytes from byte `offset` on, by one call to the driver. The range must consist of
    /// whole pages without holes. The call does not wait: the caller ensures that no work uses the addresses any more.
    ///
    /// # Errors
    /// [`Error::NotPages`] if the range is empty or does not consist of whole pages without holes;
    /// [`Error::OutOfBounds`] if the range is not inside the reservation. After these errors, nothing has changed.
    ///
    /// [`Error::Driver`] from `cuMemUnmap`: [`pages`](Self::pages) no longer returns the pages, but the table keeps
    /// them and their addresses, and tries to unmap them again when it is dropped.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(&mut self, offset: usize, bytes: usize) -> Result<()> {
        let starts = self.tiling(offset, bytes)?;
        let pages = starts.iter().filter_map(|start| self.pages.remove(start)).collect();
        let run = Run { offset, bytes, pages };
        let outcome = self.take_away(&run);
        if outcome.is_err() {
            self.stuck.push(run);
        }
        outcome
    }

    /// Returns the offsets of the pages in a range. Returns an error unless one or more pages fill the range exactly.
    fn tiling(&self, offset: usize, bytes: usize) -> Result<Vec<usize>> {
        within("reservation", offset, bytes, self.reservation.bytes())?;
        let mut starts = Vec::new();
        let mut at = offset;
        while at < offset + bytes {
            let Some(memory) = self.pages.get(&at) else { break };
            starts.push(at);
            at += memory.bytes();
        }
        if bytes > 0 && at == offset + bytes {
            return Ok(starts);
        }
        Err(Error::NotPages { start: self.reservation.ptr(), offset, bytes, up_to: at })
    }

    fn take_away(&self, run: &Run) -> Result<()> {
        let ptr = self.reservation.ptr() + run.offset;
        // SAFETY: unmaps whole pages that this table mapped. The caller ensures that no work uses them.
        unsafe { call!(self.reservation.api(), cuMemUnmap(ptr.0, run.bytes)) }
    }

    /// Removes all pages, and returns them as runs without holes.
    fn take_runs(&mut self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (offset, memory) in std::mem::take(&mut self.pages) {
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes == offset => {
                    run.bytes += memory.bytes();
                    run.pages.push(memory);
                }
                _ => runs.push(Run { offset, bytes: memory.bytes(), pages: vec![memory] }),
            }
        }
        runs
    }
}

impl Drop for PageTable {
    /// Unmaps all pages. Pages that cannot be unmapped are kept for ever, with their addresses.
    fn drop(&mut self) {
        let stuck = std::mem::take(&mut self.stuck);
        for run in self.take_runs().into_iter().chain(stuck) {
            let unmapped = self.take_away(&run);
            if unmapped.is_err() {
                super::keep(&self.reservation, run.pages);
            }
            teardown::report(unmapped);
        }
    }
}
