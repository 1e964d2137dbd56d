//! Device memory: physical bytes in memfds, and device addresses that only executors can access.
//!
//! * `region`: the process's device address space, inaccessible to the host, and its *shadow* of the same shape,
//!   where executors read mapped memory: shadow address = device address + a constant.
//! * `physical`: memory of a device: a range of a sealed memfd, committed when touched, counted against capacity.
//! * `space`: the mappings from device addresses to physical memory, with their rights. An allocation is a
//!   reservation, a mapping and physical memory in one.
//! * `handles`: physical memory that a program holds by handle, its export and its import.
//! * `host`: pinned host memory.
//! * [`view()`]: the checked access from a device address to bytes.
//!
//! Invariants: a mapping keeps its physical memory alive, and a [`View`] keeps its mappings alive. A range of
//! addresses is not reused while anything refers to it, and is reused as late as possible after that. A use after
//! free therefore finds unmapped addresses rather than another allocation.

mod access;
mod handles;
mod host;
pub(crate) mod ipc;
mod physical;
mod region;
mod space;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use access::Access;
pub(crate) use handles::Handles;
pub(crate) use host::HostMemory;
pub(crate) use physical::{AS_DESCRIPTOR, Arena, Physical};
pub(crate) use region::Region;
pub(crate) use space::{Kind, Mapped, Space};
pub(crate) use view::{Accessor, Place, classify, view_as};
pub use view::{View, view};

use crate::world::{Leak, Machine, WorldError};

/// Granularity of virtual memory management in bytes, on every modelled device (measured on H200).
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Host page size, the unit of small allocations here.
pub(crate) const PAGE: u64 = 4096;

/// The world's memory, over all devices.
#[derive(Debug)]
pub(crate) struct Memory {
    region: Arc<Region>,
    space: Mutex<Space>,
    handles: Mutex<Handles>,
    host: Mutex<HostMemory>,
}

/// Why a memory call was refused. It becomes a `CUresult`; the text becomes a note of the world.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("device {device} has {free} bytes of {capacity} left, {wanted} were asked for")]
    OutOfMemory { device: usize, wanted: u64, free: u64, capacity: u64 },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    NotPermitted(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    NotOurs(String),
    #[error("{0}")]
    AlreadyRegistered(String),
    #[error("{0}")]
    NotRegistered(String),
    #[error("{what}: {source}")]
    Host { what: &'static str, source: rustix::io::Errno },
}

impl Memory {
    pub(crate) fn new(
        seed: Option<u64>,
        reuses_addresses: bool,
        is_private: bool,
    ) -> Result<Self, WorldError> {
        let region = Region::new(seed, reuses_addresses, is_private)
            .map_err(|source| WorldError::Host { what: "reserving the device address space", source })?;
        Ok(Self {
            region: Arc::new(region),
            space: Mutex::default(),
            handles: Mutex::default(),
            host: Mutex::default(),
        })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn host(&self) -> MutexGuard<'_, HostMemory> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let mut leaks = self.space().leaks();
        leaks.extend(self.handles().leaks());
        leaks.extend(self.host().leaks());
        leaks
    }
}

/// `value` rounded up to a multiple of `unit`; `None` on overflow.
pub(crate) fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit)
}

/// Maps segments, given by their handles, one after the other at fresh addresses, for all devices.
pub(crate) fn map_for_all(machine: &Machine, segments: &[(u64, Arc<Physical>)]) -> Result<u64, MemoryError> {
    let bytes = segments.iter().map(|(_, physical)| physical.size()).sum();
    let mut space = machine.memory.space();
    let base = space.reserve(machine.memory.region(), bytes, 0, 0)?;
    let mut end = base;
    for (handle, physical) in segments {
        if let Err(error) = space.map(end, physical.size(), 0, *handle, physical) {
            if end > base {
                space.unmap(base, end - base)?;
            }
            space.unreserve(base, bytes)?;
            return Err(error);
        }
        end += physical.size();
    }
    let everybody: Vec<_> = (0..machine.devices.len()).map(|device| (device, Access::all())).collect();
    space.set_access(base, bytes, &everybody)?;
    Ok(base)
}
