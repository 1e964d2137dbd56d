//! Pinned host memory: memory that devices may access by host address.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{MemoryError, PAGE};
use crate::sched::Signal;
use crate::world::Leak;

/// A pinned range. Dropping the last reference unmaps an allocated one.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) flags: u32,
    /// True for `cuMemHostAlloc`, false for `cuMemHostRegister`.
    pub(crate) allocated: bool,
    /// Notified after writes by executors.
    pub(crate) written: Signal,
}

/// The table of pinned ranges.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    ranges: BTreeMap<u64, Arc<Pinned>>,
}

impl HostMemory {
    /// Allocates zeroed pinned memory, committed when touched.
    pub(crate) fn allocate(&mut self, len: u64, flags: u32) -> Result<u64, MemoryError> {
        let Some(room) = len.checked_next_multiple_of(PAGE).filter(|room| *room != 0) else {
            return Err(MemoryError::Invalid(format!("pinned allocation of {len} bytes")));
        };
        let room = room as usize;
        let flags_ = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without `FIXED`, nothing that is mapped is touched.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags_) }
                .map_err(|source| MemoryError::Host { what: "allocating pinned memory", source })?
                as u64;
        self.ranges
            .insert(base, Arc::new(Pinned { base, len, flags, allocated: true, written: Signal::new() }));
        Ok(base)
    }

    /// Registers memory of the program. Ranges must not overlap.
    pub(crate) fn register(&mut self, base: u64, len: u64, flags: u32) -> Result<(), MemoryError> {
        let Some(end) = base.checked_add(len).filter(|_| base != 0 && len != 0) else {
            return Err(MemoryError::Invalid(format!("registering {len} bytes at {base:#x}")));
        };
        if let Some(p) =
            self.ranges.range(..end).next_back().map(|(_, p)| p).filter(|p| p.base + p.len > base)
        {
            return Err(MemoryError::AlreadyRegistered(format!(
                "registering {len} bytes at {base:#x}: {} bytes at {:#x} are pinned already",
                p.len, p.base
            )));
        }
        self.ranges
            .insert(base, Arc::new(Pinned { base, len, flags, allocated: false, written: Signal::new() }));
        Ok(())
    }

    /// Removes the range that begins at `base`.
    pub(crate) fn remove(&mut self, base: u64, allocated: bool) -> Result<Arc<Pinned>, MemoryError> {
        match self.ranges.get(&base) {
            Some(p) if p.allocated == allocated => {}
            Some(_) if allocated => {
                return Err(MemoryError::Invalid(format!("{base:#x} was registered, not allocated")));
            }
            Some(_) => return Err(MemoryError::Invalid(format!("{base:#x} was allocated, not registered"))),
            None => return Err(MemoryError::NotRegistered(format!("no pinned memory begins at {base:#x}"))),
        }
        let Some(range) = self.ranges.remove(&base) else { unreachable!("looked up just above") };
        Ok(range)
    }

    /// Returns the range that contains `address`.
    pub(crate) fn at(&self, address: u64) -> Option<&Arc<Pinned>> {
        self.ranges.range(..=address).next_back().map(|(_, p)| p).filter(|p| address < p.base + p.len)
    }

    pub(super) fn leaks(&self) -> Vec<Leak> {
        let kind = |p: &Pinned| if p.allocated { "pinned allocation" } else { "host registration" };
        self.ranges
            .values()
            .map(|p| Leak { kind: kind(p), what: format!("{} bytes at {:#x}", p.len, p.base) })
            .collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.allocated {
            // SAFETY: mapped by `allocate` with this length; views hold a reference, so nobody looks at it any more.
            let _ = unsafe { munmap(self.base as *mut _, self.len.next_multiple_of(PAGE) as usize) };
        }
    }
}
