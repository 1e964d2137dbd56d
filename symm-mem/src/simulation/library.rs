//! A model of the communication library's windows and plain registrations. The window registration calls of a
//! communicator are paired by their order alone. Such a call returns when all members have called, or at once if it
//! fails. Plain registration is local.

use std::{collections::BTreeMap, fmt};

use process_group::group::GroupId;

use super::violation::Violation;

/// One creation of a group. A group can be created again with the same id: it then has a new communicator and the next
/// `number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life {
    pub(super) group: GroupId,
    pub(super) number: u64,
}

impl fmt::Display for Life {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "group {}, life {}", self.group, self.number)
    }
}

/// The memory of a segment or a window on one rank. Extents of two ranks stand for the same segments if their sizes and
/// identities are equal. Their addresses may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// A hash of all requests to the rank's pool until the segment was created. A window of several segments chains
    /// their identities.
    pub(super) identity: u64,
}

impl Extent {
    pub(super) fn holds(&self, other: &Extent) -> bool {
        self.address <= other.address && other.address + other.bytes <= self.address + self.bytes
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address + bytes && address < self.address + self.bytes
    }
}

/// A member's call that registers windows. The `token` identifies the call when it returns.
#[derive(Debug)]
struct Call {
    extents: Vec<Extent>,
    token: u64,
    /// False if the call has failed at once, so that it does not wait for the other members' calls.
    open: bool,
}

/// The state of a communicator on one member.
#[derive(Debug, Default)]
struct Side {
    gone: bool,
    calls: Vec<Call>,
    /// The windows by serial, each with true if it is still registered.
    windows: Vec<(Extent, bool)>,
    deregistered: Vec<u64>,
    /// Memory registered by [`Library::register_plainly`].
    plain: Vec<Extent>,
}

impl Side {
    fn live(&self) -> impl Iterator<Item = &Extent> {
        self.windows.iter().filter(|(_, live)| *live).map(|(extent, _)| extent)
    }
}

#[derive(Debug)]
struct Communicator {
    members: Vec<u32>,
    sides: BTreeMap<u32, Side>,
}

/// A rank whose call returns, with the serials of its windows.
pub(super) struct Met {
    pub(super) rank: u32,
    pub(super) token: u64,
    pub(super) serials: Vec<u64>,
}

/// All communicators.
#[derive(Debug, Default)]
pub(super) struct Library {
    communicators: BTreeMap<Life, Communicator>,
}

impl Library {
    /// Rank `rank` joins the communicator of a group.
    pub(super) fn join(&mut self, group: Life, members: &[u32], rank: u32) {
        let all = || Communicator { members: members.to_vec(), sides: BTreeMap::new() };
        self.communicators.entry(group).or_insert_with(all).sides.insert(rank, Side::default());
    }

    /// Ends a rank's side of a communicator, with its windows and plain registrations.
    pub(super) fn leave(&mut self, group: Life, rank: u32) {
        if let Some(side) = self.side_mut(group, rank) {
            side.gone = true;
        }
    }

    pub(super) fn is_gone(&self, group: Life, rank: u32) -> bool {
        self.side(group, rank).is_none_or(|side| side.gone)
    }

    fn side(&self, group: Life, rank: u32) -> Option<&Side> {
        self.communicators.get(&group)?.sides.get(&rank)
    }

    fn side_mut(&mut self, group: Life, rank: u32) -> Option<&mut Side> {
        self.communicators.get_mut(&group)?.sides.get_mut(&rank)
    }

    /// Begins a member's call that registers windows. The last member's call completes the calls of all members, and
    /// the function returns all members. Earlier calls return an empty list. A call with `fails` fails at once and
    /// returns an empty list. If a member's call has failed, or a member has left, the calls of the other members never
    /// complete, and every later call returns an empty list.
    ///
    /// # Errors
    /// The member has left, one of the `extents` overlaps a window that it still has registered, or the members' calls
    /// are for different segments.
    pub(super) fn register(
        &mut self,
        group: Life,
        rank: u32,
        extents: Vec<Extent>,
        token: u64,
        fails: bool,
    ) -> Result<Vec<Met>, Violation> {
        let Some(communicator) = self.communicators.get_mut(&group) else { return Ok(Vec::new()) };
        let members = communicator.members.clone();
        let Some(side) = communicator.sides.get_mut(&rank) else { return Ok(Vec::new()) };
        if side.gone {
            return Err(Violation(format!("rank {rank} registers with {group}, which is dead")));
        }
        for extent in &extents {
            let Extent { address: at, bytes, .. } = *extent;
            if side.live().any(|window| window.overlaps(at, bytes)) {
                return Err(Violation(format!("rank {rank} registers {at:#x} twice with {group}")));
            }
        }
        side.calls.push(Call { extents, token, open: !fails });
        let turn = side.calls.len() - 1;
        if fails {
            return Ok(Vec::new());
        }
        let call = |member: &u32| communicator.sides.get(member)?.calls.get(turn);
        let Some(met) = members.iter().map(call).collect::<Option<Vec<&Call>>>() else {
            return Ok(Vec::new());
        };
        let same = |one: &Call, other: &Call| {
            one.extents.len() == other.extents.len()
                && one
                    .extents
                    .iter()
                    .zip(&other.extents)
                    .all(|(one, other)| (one.bytes, one.identity) == (other.bytes, other.identity))
        };
        if let Some(other) = met.iter().position(|call| !same(met[0], call)) {
            let (first, other) = (members[0], members[other]);
            let what = format!("ranks {first} and {other} pair windows of different segments in {group}");
            return Err(Violation(what));
        }
        if !met.iter().all(|call| call.open) || communicator.sides.values().any(|side| side.gone) {
            return Ok(Vec::new());
        }
        let all = members.iter().filter_map(|rank| {
            let side = communicator.sides.get_mut(rank)?;
            let Call { extents, token, .. } = &side.calls[turn];
            let first = side.windows.len() as u64;
            let serials = (first..first + extents.len() as u64).collect();
            side.windows.extend(extents.iter().map(|extent| (*extent, true)));
            Some(Met { rank: *rank, token: *token, serials })
        });
        Ok(all.collect())
    }

    /// Removes windows that a call of a rank has just registered, so that the call can report them as unsupported.
    pub(super) fn take_back(&mut self, group: Life, rank: u32, serials: &[u64]) {
        if let Some(side) = self.side_mut(group, rank) {
            serials.iter().for_each(|serial| side.windows[*serial as usize].1 = false);
        }
    }

    /// Deregisters a window of a rank. Does nothing if the rank has left the communicator.
    ///
    /// # Errors
    /// The window is not registered, or the members deregister their windows in different orders.
    pub(super) fn deregister(&mut self, group: Life, rank: u32, serial: u64) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(()) };
        let window = side.windows.get_mut(serial as usize).filter(|(_, live)| *live);
        let Some((_, live)) = window else {
            return Err(Violation(format!("rank {rank} deregisters window {serial} of {group} twice")));
        };
        *live = false;
        side.deregistered.push(serial);
        let at = side.deregistered.len() - 1;
        let communicator = &self.communicators[&group];
        let others = communicator.sides.iter().filter(|(_, side)| !side.gone);
        for (other, side) in others {
            if side.deregistered.get(at).is_some_and(|its| *its != serial) {
                let what =
                    format!("ranks {rank} and {other} deregister windows of {group} in different orders");
                return Err(Violation(what));
            }
        }
        Ok(())
    }

    /// Registers memory of a rank, as `ncclCommRegister` does. This is local and does not wait. Does nothing if the
    /// rank has left the communicator.
    ///
    /// # Errors
    /// The memory overlaps memory that is registered already.
    pub(super) fn register_plainly(
        &mut self,
        group: Life,
        rank: u32,
        extent: Extent,
    ) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(()) };
        if side.live().chain(&side.plain).any(|other| other.overlaps(extent.address, extent.bytes)) {
            return Err(Violation(format!("rank {rank} registers {:#x} twice with {group}", extent.address)));
        }
        side.plain.push(extent);
        Ok(())
    }

    /// Deregisters memory that [`register_plainly`](Self::register_plainly) has registered. Does nothing if the rank
    /// has left the communicator.
    ///
    /// # Errors
    /// The memory is not registered.
    pub(super) fn deregister_plainly(
        &mut self,
        group: Life,
        rank: u32,
        extent: Extent,
    ) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(()) };
        match side.plain.iter().position(|other| *other == extent) {
            Some(at) => drop(side.plain.swap_remove(at)),
            None => {
                let what = format!(
                    "rank {rank} deregisters {:#x}, which {group} has not registered",
                    extent.address
                );
                return Err(Violation(what));
            }
        }
        Ok(())
    }

    /// Returns true if a rank has registered the memory at this address by
    /// [`register_plainly`](Self::register_plainly).
    pub(super) fn is_plain(&self, group: Life, rank: u32, address: u64) -> bool {
        let side = self.side(group, rank).filter(|side| !side.gone);
        side.is_some_and(|side| side.plain.iter().any(|extent| extent.overlaps(address, 1)))
    }

    /// Returns a window of a rank, if it is still registered.
    pub(super) fn window(&self, group: Life, rank: u32, serial: u64) -> Option<Extent> {
        let side = self.side(group, rank).filter(|side| !side.gone)?;
        side.windows.get(serial as usize).filter(|(_, live)| *live).map(|(extent, _)| *extent)
    }

    /// Returns a communicator that can still access the `bytes` bytes at `address` of `rank`, if there is one, and the
    /// member that has them registered. That is `rank` for a plain registration. For a window, it can be any member,
    /// because each member's window maps the memory of all members.
    pub(super) fn reached(&self, rank: u32, address: u64, bytes: u64) -> Option<(Life, u32)> {
        self.communicators.iter().find_map(|(group, communicator)| {
            // If the rank's own side is gone, so are its registrations.
            let side = communicator.sides.get(&rank).filter(|side| !side.gone)?;
            if side.plain.iter().any(|extent| extent.overlaps(address, bytes)) {
                return Some((*group, rank));
            }
            let over =
                side.windows.iter().enumerate().filter(|(_, (window, _))| window.overlaps(address, bytes));
            let serials: Vec<usize> = over.map(|(serial, _)| serial).collect();
            let holds = |side: &Side| {
                !side.gone
                    && serials.iter().any(|serial| side.windows.get(*serial).is_some_and(|(_, live)| *live))
            };
            communicator.sides.iter().find(|(_, side)| holds(side)).map(|(holder, _)| (*group, *holder))
        })
    }
}
