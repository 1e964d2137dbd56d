//! A reservation whose pages are mapped and unmapped many at a time.

use std::collections::BTreeMap;

use super::{Access, PhysicalMemory, Reservation};
use crate::call::call;
use crate::error::within;
use crate::{Device, DevicePtr, Error, Result, teardown};

/// A reservation and the pages mapped in it, for memory that is moved many pages at a time.
///
/// A [`Mapping`](super::Mapping) is one handle at one place. Here one call enables or unmaps many
/// neighbouring pages, which determines the cost of moving pages. A page is physical memory of any size,
/// mapped whole; the same page may be mapped at several places, of this table and of others. The table holds
/// its pages and its addresses until they are unmapped. Dropping it unmaps the rest, without waiting for work
/// that uses it.
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
    /// Keyed by offset.
    pages: BTreeMap<usize, PhysicalMemory>,
    /// Pages that could not be unmapped.
    stuck: Vec<Run>,
}

/// Pages without holes between them.
#[derive(Debug)]
struct Run {
    offset: usize,
    bytes: usize,
    pages: Vec<PhysicalMemory>,
}

impl PageTable {
    /// A table without pages. Nothing but the table should map into the reservation.
    #[must_use]
    pub fn new(reservation: Reservation) -> Self {
        Self { reservation, pages: BTreeMap::new(), stuck: Vec::new() }
    }

    /// The addresses.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The mapped pages, by offset (in bytes from the reservation's start).
    pub fn pages(&self) -> impl ExactSizeIterator<Item = (usize, &PhysicalMemory)> {
        self.pages.iter().map(|(offset, memory)| (*offset, memory))
    }

    /// The page around an offset, and where it begins.
    #[must_use]
    pub fn page_at(&self, offset: usize) -> Option<(usize, &PhysicalMemory)> {
        let (start, memory) = self.pages.range(..=offset).next_back()?;
        (offset - start < memory.bytes()).then_some((*start, memory))
    }

    /// Maps all of `memory` at `offset`. No device can access it before
    /// [`set_access`](Self::set_access).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if it leaves the reservation; [`Error::Driver`] from `cuMemMap`, as for
    /// [`Reservation::map`]. Nothing has changed then.
    #[doc(alias = "cuMemMap")]
    pub fn map(&mut self, offset: usize, memory: &PhysicalMemory) -> Result<DevicePtr> {
        let bytes = memory.bytes();
        within("reservation", offset, bytes, self.reservation.bytes())?;
        self.reservation.require_driver_of(memory)?;
        let ptr = self.reservation.ptr() + offset;
        // SAFETY: the range is inside the reservation, which with the memory is kept until it is unmapped; the driver
        // refuses a range that is mapped already.
        unsafe { call!(self.reservation.api(), cuMemMap(ptr.0, bytes, 0, memory.raw(), 0)) }?;
        self.pages.insert(offset, memory.clone());
        Ok(ptr)
    }

    /// Sets the access of devices to a range of whole pages without holes, by one call.
    ///
    /// # Errors
    /// As [`Reservation::set_access`].
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, offset: usize, bytes: usize, devices: &[(&Device, Access)]) -> Result<()> {
        self.reservation.set_access(offset, bytes, devices)
    }

    /// Takes away what is mapped in a range of whole pages without holes, by one call. It does not wait: no work may
    /// use the addresses any more.
    ///
    /// # Errors
    /// [`Error::NotPages`] if pages do not fill the range exactly: nothing has changed then. [`Error::Driver`] from
    /// `cuMemUnmap`: the table keeps the pages and the addresses, although it no longer shows them, and unmaps them
    /// once more when it is dropped.
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

    /// Returns the offsets of the pages that fill a range exactly.
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
        // SAFETY: whole pages that this table mapped; that no work uses them is the caller's to see to.
        unsafe { call!(self.reservation.api(), cuMemUnmap(ptr.0, run.bytes)) }
    }

    /// Removes all pages, as runs without holes.
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
    /// Pages that cannot be unmapped are kept for ever, with their addresses.
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
