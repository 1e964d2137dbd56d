//! Windows: the collective registration of memory that all ranks map.
//!
//! What a release answers when something is unusual is [`rules`]'s; where a window lies in the symmetric address
//! space is [`space`]'s; the call itself is [`task`]'s; other ranks' windows as addresses here are [`peers`]'s. This file keeps a communicator's table of them.
//!
//! Not here: [`super::register`], the local registration, whose handles are another kind.

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

/// Flag of `ncclCommWindowRegister` that collectives look for.
pub(crate) const COLL_SYMMETRIC: i32 = 1;

/// One window of one rank.
#[derive(Debug)]
pub(crate) struct Window {
    /// How many registrations of the communicator came before.
    pub(crate) number: u64,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) flags: i32,
    /// Where the ranks have it: the physical segments, one after the other.
    places: Vec<Vec<Place>>,
    /// What was mapped of other ranks'.
    peers: BTreeMap<usize, peers::Peer>,
    /// The memory, kept as real NCCL keeps it by its handle.
    memory: Vec<Arc<Physical>>,
    /// When the first of it was made, against the others of this rank.
    age: u64,
    /// Where its mapping lies.
    slot: u64,
}

/// Memory that is mapped in the symmetric address space.
#[derive(Debug)]
struct Slot {
    offset: u64,
    bytes: u64,
    windows: usize,
    /// The physical segments, by address of their records.
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
    /// The window that `[address, address + len)` begins in, as a number from 1 and an offset; (0, 0) for none.
    /// Only windows for collectives count. As in NCCL, the end is not looked at.
    pub(crate) fn find(&self, address: u64) -> (u64, u64) {
        let inside =
            |w: &&Window| w.flags & COLL_SYMMETRIC != 0 && address >= w.base && address - w.base < w.size;
        // Of several windows over one place, the one that was registered last.
        let found = self.live.values().filter(inside).max_by_key(|w| w.number);
        found.map_or((0, 0), |w| (w.number + 1, address - w.base))
    }

    /// Where `bytes` at `offset` of a rank's window begin, for a put. The library does not look where they end.
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

    /// Whether the window of a number from 1 is there.
    pub(crate) fn is_live(&self, number: u64) -> bool {
        self.live.values().any(|w| w.number + 1 == number)
    }

    /// The address that a window was registered with.
    pub(crate) fn base(&self, handle: usize) -> Option<u64> {
        self.live.get(&handle).map(|w| w.base)
    }
}
