//! Mappings of other ranks' windows: made at first use, kept as long as the window.

use std::collections::btree_map::Entry;
use std::sync::{Arc, Weak};

use rustix::fs::{Mode, OFlags};

use super::Windows;
use crate::memory::{MemoryError, Physical, map_for_all};
use crate::nccl::error::{Failure, Result};
use crate::nccl::group;
use crate::nccl::rma::Place;
use crate::world::Machine;

/// A peer's memory, mapped.
#[derive(Debug)]
pub(super) struct Peer {
    machine: Weak<Machine>,
    base: u64,
    bytes: u64,
}

impl Peer {
    fn map(machine: &Arc<Machine>, places: &[Place]) -> std::result::Result<Self, MemoryError> {
        let segments = places.iter().map(open).collect::<std::result::Result<Vec<_>, _>>()?;
        let bytes = segments.iter().map(|physical| physical.size()).sum();
        let add = |physical: Arc<Physical>| (machine.memory.handles().add(physical.clone()), physical);
        let segments: Vec<(u64, Arc<Physical>)> = segments.into_iter().map(add).collect();
        let mapped = map_for_all(machine, &segments);
        // The mapping keeps the memory.
        segments.iter().try_for_each(|(handle, _)| machine.memory.handles().release(*handle))?;
        Ok(Self { machine: Arc::downgrade(machine), base: mapped?, bytes })
    }
}

fn open(place: &Place) -> std::result::Result<Arc<Physical>, MemoryError> {
    let path = format!("/proc/{}/fd/{}", place.process, place.file);
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(|source| MemoryError::Host { what: "opening a peer's memory", source })?;
    Physical::import(file, Some((place.offset, place.size)))
}

impl Drop for Peer {
    fn drop(&mut self) {
        let Some(machine) = self.machine.upgrade() else { return };
        let mut space = machine.memory.space();
        // Only this object unmaps the range.
        let gone = space.unmap(self.base, self.bytes);
        let _ = space.unreserve(self.base, self.bytes);
        drop(space);
        drop(gone);
    }
}

impl Windows {
    /// Returns the address of `offset` of a rank's window in this process.
    pub(crate) fn pointer(
        &mut self,
        machine: &Arc<Machine>,
        handle: usize,
        own: usize,
        rank: usize,
        offset: u64,
    ) -> Result<u64> {
        let window = self.live.get_mut(&handle);
        let window = window.ok_or_else(|| Failure::argument(format!("{handle:#x} is no window")))?;
        if offset >= window.size {
            return Err(Failure::argument(format!("{offset:#x} in a window of {} bytes", window.size)));
        }
        let places = window.places.get(rank).filter(|segments| !segments.is_empty());
        let places = places.ok_or_else(|| Failure::argument(format!("the window has no rank {rank}")))?;
        if rank == own {
            return Ok(window.base + offset);
        }
        let peer = match window.peers.entry(rank) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                unknown.insert(Peer::map(machine, places).map_err(|error| group::cuda(error.into()))?)
            }
        };
        Ok(peer.base + places[0].start + offset)
    }
}
