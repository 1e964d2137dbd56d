//! Windows: the collective registration of memory that all ranks map.
//!
//! [`rules`] holds the differences between releases, [`space`] the placement in the symmetric address space, [`task`]
//! the calls, and [`peers`] the mappings of other ranks' windows. This file holds a communicator's table of windows.
//!
//! Local registration is in [`super::register`]; its handles are of another kind.

mod peers;
pub(crate) mod rules;
mod space;
mod task;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use space::Space;
pub(crate) use task::{Outcome, Registration, deregister};

use super::error::{Failure, Result};
use super::rma::Place;
use crate::memory::Physical;

/// Flag of `ncclCommWindowRegister` that collectives require.
pub(crate) const COLL_SYMMETRIC: i32 = 1;

/// One window of one rank.
#[derive(Debug)]
pub(crate) struct Window {
    /// Number of earlier registrations of the communicator.
    pub(crate) number: u64,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) flags: i32,
    /// Location of the physical segments, in order, by rank.
    places: Vec<Vec<Place>>,
    /// Mappings of other ranks' windows.
    peers: BTreeMap<usize, peers::Peer>,
    /// Keeps the memory alive, as real NCCL does by its handle.
    memory: Vec<Arc<Physical>>,
    /// Smallest handle of its segments. Handles ascend, so this orders the rank's memory by creation.
    age: u64,
    /// Number of its slot in `Windows::slots`, which holds its mapping.
    slot: u64,
}

/// Memory that is mapped into the symmetric address space.
#[derive(Debug)]
struct Slot {
    offset: u64,
    bytes: u64,
    windows: usize,
    /// Addresses of the physical segments' records, which identify them.
    memory: Vec<usize>,
}

/// A communicator's windows on one rank.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    live: BTreeMap<usize, Window>,
    slots: BTreeMap<u64, Slot>,
    space: Option<Space>,
    registered: u64,
    next_slot: u64,
}

impl Windows {
    /// Returns the window that contains `address`, as a number from 1 and an offset; (0, 0) for none. Only windows
    /// for collectives count. As in NCCL, the end of the buffer is not checked.
    pub(crate) fn find(&self, address: u64) -> (u64, u64) {
        let inside =
            |w: &&Window| w.flags & COLL_SYMMETRIC != 0 && address >= w.base && address - w.base < w.size;
        // If several windows cover the address, the last registered one counts.
        let found = self.live.values().filter(inside).max_by_key(|w| w.number);
        found.map_or((0, 0), |w| (w.number + 1, address - w.base))
    }

    /// Returns the location of `bytes` at `offset` of a rank's window, for a put. The library does not check the end.
    pub(crate) fn place(
        &self,
        handle: usize,
        rank: usize,
        offset: u64,
        bytes: u64,
        strict: bool,
    ) -> Result<Place> {
        let window = self.live.get(&handle).filter(|window| window.flags & COLL_SYMMETRIC != 0);
        let window =
            window.ok_or_else(|| Failure::argument(format!("{handle:#x} is no symmetric window")))?;
        if window.memory.len() > 1 {
            return Err(Failure::argument("a window over several physical segments"));
        }
        if strict && offset.checked_add(bytes).is_none_or(|end| end > window.size) {
            let text = format!("{bytes} bytes at {offset:#x} of a window of {} bytes", window.size);
            return Err(Failure::usage(text));
        }
        let place = window.places.get(rank).and_then(|segments| segments.first()).copied();
        place.ok_or_else(|| Failure::argument(format!("the window has no rank {rank}")))
    }

    /// True if the window with this number, counted from 1, is registered.
    pub(crate) fn is_live(&self, number: u64) -> bool {
        self.live.values().any(|w| w.number + 1 == number)
    }

    /// Returns the address that a window was registered with.
    pub(crate) fn base(&self, handle: usize) -> Option<u64> {
        self.live.get(&handle).map(|w| w.base)
    }
}
