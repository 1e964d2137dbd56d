//! The ranks' calls to the library, and a record of the registrations. The library is the NCCL of gpu-sim, the crate
//! that simulates the CUDA driver and NCCL. From the record, the simulation detects errors that the library does not
//! report:
//! - Members register different segments (memory of their pools) in the same window. NCCL pairs the calls of the
//!   members by their order.
//! - A rank registers memory twice.
//! - Members deregister their windows in different orders.
//! - A rank frees registered memory.
//!
//! The *serial* of a window is its index among all windows that the rank has registered with the communicator,
//! including those that it has deregistered. Windows that members register together have the same serial. A *plain*
//! registration is one by `ncclCommRegister`.

use std::{
    collections::BTreeMap,
    fmt, mem,
    sync::{Arc, Mutex},
};

use cuda_driver::Context;
use nccl_sys::Api;
use process_group::group::GroupId;

use crate::{
    communicator::{Communicator, Registration},
    lock::lock,
    violation::{Violation, bail, ensure},
};

/// One creation of a group. A group can be created again with the same id: it then has a new communicator and the next
/// `number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) group: GroupId,
    pub(crate) number: u64,
}

impl fmt::Display for Life {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "group {}, life {}", self.group, self.number)
    }
}

/// The memory of a segment or a window on one rank. Extents of two ranks describe the same segments if their sizes and
/// identities are equal. Their addresses may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// A hash of all operations of the rank's pool up to the one for which the pool created the segment. For a window
    /// of several segments, a hash of their identities and sizes.
    pub(crate) identity: u64,
}

impl Extent {
    pub(crate) fn holds(&self, other: &Extent) -> bool {
        self.address <= other.address && other.address + other.bytes <= self.address + self.bytes
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address + bytes && address < self.address + self.bytes
    }
}

/// A member's call that registers windows, one for each of the `extents`. The caller of [`Library::register`] chooses
/// the `token`, and gets it back in the [`EndedCall`].
#[derive(Debug)]
struct WindowCall {
    extents: Vec<Extent>,
    token: u64,
}

/// One member's side of a group's communicator, with its calls and registrations.
#[derive(Debug)]
struct MemberState {
    context: Context,
    /// `None` before all members have joined, and after the member has left.
    communicator: Option<Communicator>,
    /// True after the member has left, see [`Library::leave`].
    gone: bool,
    /// All calls of the member that register windows, in order.
    calls: Vec<WindowCall>,
    /// The member's windows by serial. The handle is `None` after the window has been deregistered.
    windows: Vec<(Extent, Option<usize>)>,
    /// The serials of the windows that [`Library::deregister`] has deregistered, in the order of these calls.
    deregistered: Vec<u64>,
    /// Memory registered by [`Library::register_plainly`].
    plain: Vec<(Extent, Registration)>,
}

impl MemberState {
    fn communicator(&self) -> Result<&Communicator, Violation> {
        self.communicator.as_ref().ok_or_else(|| Violation("a call before all members have joined".into()))
    }

    fn live(&self) -> impl Iterator<Item = &Extent> {
        self.windows.iter().filter(|(_, live)| live.is_some()).map(|(extent, _)| extent)
    }
}

/// The communicator of one [`Life`] of a group. `sides` has the state of each member that has joined.
#[derive(Debug)]
struct Communicators {
    members: Vec<u32>,
    sides: BTreeMap<u32, MemberState>,
}

/// An ended call of [`Library::register`], with its `token`. `serials` has the serials of the call's windows, or a
/// description of the library's error.
pub(crate) struct EndedCall {
    pub(crate) group: Life,
    pub(crate) rank: u32,
    pub(crate) token: u64,
    /// The size of all windows of the call together.
    pub(crate) bytes: u64,
    pub(crate) serials: Result<Vec<u64>, String>,
}

/// The calls that have ended since [`Library::take_ended_calls`] last took them. Each entry has the member's group and
/// rank, the index of the call in [`MemberState::calls`], and the handles of the windows or a description of NCCL's
/// error.
type Ends = Arc<Mutex<Vec<(Life, u32, usize, Result<Vec<usize>, String>)>>>;

/// All communicators of all groups, and the record of their registrations.
pub(crate) struct Library {
    api: Api,
    communicators: BTreeMap<Life, Communicators>,
    ends: Ends,
}

impl Library {
    pub(crate) fn new(api: Api) -> Self {
        Self { api, communicators: BTreeMap::new(), ends: Ends::default() }
    }

    /// Adds `rank` to the communicator of a group, with the device of `context`. The communicator is created when the
    /// last member has joined.
    pub(crate) fn join(
        &mut self,
        group: Life,
        members: &[u32],
        rank: u32,
        context: &Context,
    ) -> Result<(), Violation> {
        let new = || Communicators { members: members.to_vec(), sides: BTreeMap::new() };
        let Communicators { members, sides } = self.communicators.entry(group).or_insert_with(new);
        let side = MemberState {
            context: context.clone(),
            communicator: None,
            gone: false,
            calls: Vec::new(),
            windows: Vec::new(),
            deregistered: Vec::new(),
            plain: Vec::new(),
        };
        sides.insert(rank, side);
        let present =
            |member: &u32| sides.get(member).filter(|side| !side.gone).map(|side| side.context.clone());
        if let Some(contexts) = members.iter().map(present).collect::<Option<Vec<Context>>>() {
            let made = Communicator::make(&self.api, &contexts)?;
            for (member, communicator) in members.iter().zip(made) {
                sides.entry(*member).and_modify(|side| side.communicator = Some(communicator));
            }
        }
        Ok(())
    }

    /// Aborts a rank's side of a communicator. This ends the rank's windows and plain registrations in it.
    pub(crate) fn leave(&mut self, group: Life, rank: u32) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank) else { return Ok(()) };
        side.gone = true;
        side.communicator.take().map_or(Ok(()), Communicator::abort)
    }

    /// Makes a rank [leave](Self::leave) all its communicators.
    pub(crate) fn leave_all(&mut self, rank: u32) -> Result<(), Violation> {
        let groups: Vec<Life> = self.communicators.keys().copied().collect();
        groups.into_iter().try_for_each(|group| self.leave(group, rank))
    }

    /// Forgets all communicators. All ranks must have left them.
    pub(crate) fn end(&mut self) {
        self.communicators.clear();
    }

    pub(crate) fn is_gone(&self, group: Life, rank: u32) -> bool {
        self.side(group, rank).is_none_or(|side| side.gone)
    }

    fn side(&self, group: Life, rank: u32) -> Option<&MemberState> {
        self.communicators.get(&group)?.sides.get(&rank)
    }

    fn side_mut(&mut self, group: Life, rank: u32) -> Option<&mut MemberState> {
        self.communicators.get_mut(&group)?.sides.get_mut(&rank)
    }

    /// Begins a member's call that registers one window for each of the `extents`. When the call has ended,
    /// [`take_ended_calls`](Self::take_ended_calls) returns its outcome with the same `token`.
    ///
    /// # Errors
    /// The member has left, one of the `extents` overlaps a window that the member still has registered, or NCCL would
    /// pair calls for different segments.
    pub(crate) fn register(
        &mut self,
        group: Life,
        rank: u32,
        extents: Vec<Extent>,
        token: u64,
    ) -> Result<(), Violation> {
        let Some(communicators) = self.communicators.get_mut(&group) else { return Ok(()) };
        let Communicators { members, sides, .. } = communicators;
        let Some(side) = sides.get_mut(&rank) else { return Ok(()) };
        ensure!(!side.gone, "rank {rank} registers with {group}, which is dead");
        for Extent { address, bytes, .. } in extents.iter().copied() {
            ensure!(
                !side.live().any(|window| window.overlaps(address, bytes)),
                "rank {rank} registers {address:#x} twice with {group}"
            );
        }
        let memory = extents.iter().map(|extent| (extent.address, extent.bytes)).collect();
        side.calls.push(WindowCall { extents, token });
        let index = side.calls.len() - 1;
        let call = |member: &u32| Some((*member, sides.get(member)?.calls.get(index)?));
        if let Some(met) = members.iter().map(call).collect::<Option<Vec<(u32, &WindowCall)>>>() {
            let (first, own) = met[0];
            if let Some((other, _)) = met.iter().find(|(_, call)| !are_same(own, call)) {
                bail!("ranks {first} and {other} pair windows of different segments in {group}");
            }
        }
        let Some(side) = self.side(group, rank) else { return Ok(()) };
        // Before all members have joined, there is no communicator. The call into NCCL would wait for them, so it is
        // not made.
        let ends = self.ends.clone();
        let end = move |windows| {
            lock(&ends).push((group, rank, index, windows));
        };
        side.communicator.as_ref().map_or(Ok(()), |it| it.register(memory, end))
    }

    /// Returns the calls of [`register`](Self::register) that have ended since the last call of `take_ended_calls`.
    pub(crate) fn take_ended_calls(&mut self) -> Vec<EndedCall> {
        let mut ended = Vec::new();
        let ends = mem::take(&mut *lock(&self.ends));
        for (group, rank, index, windows) in ends {
            let Some(side) = self.side_mut(group, rank) else { continue };
            let WindowCall { extents, token } = &side.calls[index];
            let (bytes, token) = (extents.iter().map(|extent| extent.bytes).sum(), *token);
            let first = side.windows.len() as u64;
            let serials = windows.map(|windows| {
                side.windows.extend(extents.iter().copied().zip(windows.into_iter().map(Some)));
                (first..side.windows.len() as u64).collect()
            });
            ended.push(EndedCall { group, rank, token, bytes, serials });
        }
        ended
    }

    /// Deregisters windows that a rank has just registered. The simulation calls this function if the
    /// [trouble](crate::trouble) of the run makes the rank report that windows are unsupported, although gpu-sim's NCCL
    /// supports and has registered them.
    pub(crate) fn take_back(&mut self, group: Life, rank: u32, serials: &[u64]) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank) else { return Ok(()) };
        serials.iter().try_for_each(|serial| {
            let window = side.windows[*serial as usize].1.take();
            window.map_or(Ok(()), |window| side.communicator()?.deregister(window))
        })
    }

    /// Deregisters a window of a rank. Does nothing if the rank has left the communicator.
    ///
    /// # Errors
    /// The window is not registered, or the members deregister their windows in different orders.
    pub(crate) fn deregister(&mut self, group: Life, rank: u32, serial: u64) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(()) };
        let Some(window) = side.windows.get_mut(serial as usize).and_then(|(_, live)| live.take()) else {
            bail!("rank {rank} deregisters window {serial} of {group} twice");
        };
        side.communicator()?.deregister(window)?;
        side.deregistered.push(serial);
        let at = side.deregistered.len() - 1;
        let others = self.communicators[&group].sides.iter().filter(|(_, side)| !side.gone);
        for (other, side) in others {
            ensure!(
                side.deregistered.get(at).is_none_or(|its| *its == serial),
                "ranks {rank} and {other} deregister windows of {group} in different orders"
            );
        }
        Ok(())
    }

    /// Registers memory of a rank by `ncclCommRegister`. This call is local and does not wait for other ranks. Does
    /// nothing if the rank has left the communicator. If `ncclCommRegister` fails, the inner result describes its
    /// error.
    ///
    /// # Errors
    /// The memory overlaps a window or a plain registration that the rank has in this communicator.
    pub(crate) fn register_plainly(
        &mut self,
        group: Life,
        rank: u32,
        extent: Extent,
    ) -> Result<Result<(), String>, Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(Ok(())) };
        let Extent { address, bytes, .. } = extent;
        let mut others = side.live().chain(side.plain.iter().map(|(other, _)| other));
        let is_registered = others.any(|other| other.overlaps(address, bytes));
        drop(others);
        ensure!(!is_registered, "rank {rank} registers {address:#x} twice with {group}");
        let registered = side.communicator()?.register_plainly(address, bytes);
        Ok(registered.map(|registration| side.plain.push((extent, registration))))
    }

    /// Deregisters memory that [`register_plainly`](Self::register_plainly) has registered. Does nothing if the rank
    /// has left the communicator.
    ///
    /// # Errors
    /// The memory is not registered.
    pub(crate) fn deregister_plainly(
        &mut self,
        group: Life,
        rank: u32,
        extent: Extent,
    ) -> Result<(), Violation> {
        let Some(side) = self.side_mut(group, rank).filter(|side| !side.gone) else { return Ok(()) };
        let Some(at) = side.plain.iter().position(|(other, _)| *other == extent) else {
            bail!("rank {rank} deregisters {:#x}, which {group} has not registered", extent.address);
        };
        let (_, registration) = side.plain.swap_remove(at);
        side.communicator()?.deregister_plainly(registration)
    }

    /// Returns true if a rank has registered the memory at this address by
    /// [`register_plainly`](Self::register_plainly).
    pub(crate) fn is_plain(&self, group: Life, rank: u32, address: u64) -> bool {
        let side = self.side(group, rank).filter(|side| !side.gone);
        side.is_some_and(|side| side.plain.iter().any(|(extent, _)| extent.overlaps(address, 1)))
    }

    /// Returns the rank's side of the communicator, and the memory and the handle of its window `serial`. Returns
    /// `None` if the rank has left, or if the window is not registered.
    fn live_window(&self, group: Life, rank: u32, serial: u64) -> Option<(&MemberState, Extent, usize)> {
        let side = self.side(group, rank).filter(|side| !side.gone)?;
        let (extent, handle) = side.windows.get(serial as usize)?;
        Some((side, *extent, (*handle)?))
    }

    /// Returns the memory of the rank's window `serial`, or `None` if the window is not registered.
    pub(crate) fn window(&self, group: Life, rank: u32, serial: u64) -> Option<Extent> {
        self.live_window(group, rank, serial).map(|(_, extent, _)| extent)
    }

    /// Returns the address at which `rank` reaches the memory of the next member of its group in window `serial`. After
    /// the last member, the next one is the first. Returns `None` if the NCCL release has no function for this, or if
    /// `rank` or the next member has left or has deregistered the window.
    pub(crate) fn next_window(&self, group: Life, rank: u32, serial: u64) -> Result<Option<u64>, Violation> {
        let Some(Communicators { members, .. }) = self.communicators.get(&group) else { return Ok(None) };
        let own_index = members.iter().position(|member| *member == rank).unwrap_or(0);
        let next = (own_index + 1) % members.len();
        let peer = self.live_window(group, members[next], serial);
        match self.live_window(group, rank, serial).filter(|_| peer.is_some()) {
            Some((side, _, handle)) => side.communicator()?.peer_window(handle, next),
            None => Ok(None),
        }
    }

    /// If a communicator can still access any of the `bytes` bytes at `address` of `rank`, returns two values: its
    /// group, and the member whose registration gives the access. For a plain registration, this member is `rank`. For
    /// a window, it can be any member, because each member's window maps the memory of all members.
    pub(crate) fn reached(&self, rank: u32, address: u64, bytes: u64) -> Option<(Life, u32)> {
        self.communicators.iter().find_map(|(group, communicator)| {
            // If the rank has left, its registrations have ended.
            let side = communicator.sides.get(&rank).filter(|side| !side.gone)?;
            if side.plain.iter().any(|(extent, _)| extent.overlaps(address, bytes)) {
                return Some((*group, rank));
            }
            let over = |serial: usize| {
                side.windows.get(serial).is_some_and(|(window, _)| window.overlaps(address, bytes))
            };
            let holds = |side: &MemberState| {
                let live = side.windows.iter().enumerate().filter(|(_, (_, live))| live.is_some());
                !side.gone && live.map(|(serial, _)| serial).any(over)
            };
            communicator.sides.iter().find(|(_, side)| holds(side)).map(|(holder, _)| (*group, *holder))
        })
    }
}

/// Returns true if the calls are for the same segments.
fn are_same(one: &WindowCall, other: &WindowCall) -> bool {
    let what = |call: &WindowCall| call.extents.iter().map(|it| (it.bytes, it.identity)).collect::<Vec<_>>();
    what(one) == what(other)
}
