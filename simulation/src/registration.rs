//! The ranks' registrations with the library (NCCL): windows, which all members of a group register together, and plain
//! registrations (`ncclCommRegister`), which each rank makes alone. The terms *trouble*, *outcome*, *retire* and
//! *poisoned* are defined in [`super`].

use std::time::Duration;

use cuda_driver::DevicePtr;
use nccl_sys::ncclResult_t;
use symm_agreement::{
    ACTION_FLOOR, Attempt, Ending, Plain, RegistrationOutcome, Release, Start, WindowSupport, hash::chain,
};
use symm_mem::RegistrationState;

use crate::{
    ends::LOST,
    library::{EndedCall, Extent, Life},
    lock::lock,
    pools::state_of,
    rank::{Membership, Task},
    results::{Kind, Meeting, Span},
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    work::{Answer, Machine, Unregistered, Work},
    world::{Event, World},
};

impl World {
    /// Registers windows in a [commit](symm_mem::SymmetricPool::commit) of a rank. Each commit has a list of *new*
    /// segments: those of the pool that were not committed for the group before. This function registers the first
    /// `count` of them. A segment whose ordinal (its number in the pool) is in `joined` shares the window of the
    /// segment before it. `token` identifies the request, see [`Rank::token`](crate::rank::Rank::token). If the run's
    /// [`Trouble`] concerns this rank, it may delay the call into the library or make this call fail.
    pub(crate) fn register(
        &mut self,
        rank: u32,
        token: u64,
        count: usize,
        joined: &[u32],
    ) -> Result<(), Violation> {
        let trouble = self.scenario.trouble_of(rank);
        let state = self.rank(rank);
        let Some(task) = state.task.as_mut() else { return Ok(()) };
        task.registered = true;
        let Work::Commit { group_state, segments, .. } = &task.work else { return Ok(()) };
        let id = lock(group_state).log.group();
        let ordinals: Vec<u32> = segments.iter().take(count).map(|segment| segment.ordinal).collect();
        state.registrations += 1;
        let number = state.registrations;
        state.keep_memory(id.uid);
        let extents: Vec<Extent> = ordinals.iter().filter_map(|ordinal| state.extent(*ordinal)).collect();
        for extent in &extents {
            let found = state.pool.lookup(DevicePtr(extent.address), 1, id).map_err(Violation::of)?;
            ensure!(
                found.map(|found| found.state) == Some(RegistrationState::Pending),
                "rank {rank} takes {:#x} for committed before it is: {found:?}",
                extent.address
            );
        }
        let (extents, windows) = join(rank, &ordinals, &extents, joined)?;
        if let Some(Task { work: Work::Commit { window_indexes, .. }, .. }) = &mut state.task {
            *window_indexes = windows;
        }
        let id = state.life(id);
        let fails = trouble == Trouble::RegistrationFails(number);
        let delay = match trouble {
            Trouble::RegistrationSlow(at, ms) if at == number => 1000 * ms,
            Trouble::ShortDeadline(_) => self.random.below(30_000_000),
            _ => return self.enter(rank, token, id, extents, fails),
        };
        self.at(self.now + delay, Event::Enter(rank, token, id, extents));
        Ok(())
    }

    /// Begins a rank's window registration in the library. If `fails` is true, `ncclCommWindowRegister` fails at once.
    /// Exception: if not all members have joined the communicator, this NCCL function is not called.
    pub(crate) fn enter(
        &mut self,
        rank: u32,
        token: u64,
        group: Life,
        extents: Vec<Extent>,
        fails: bool,
    ) -> Result<(), Violation> {
        let Some(devices) = &self.devices else { return Ok(()) };
        if fails {
            devices.fail_next("ncclCommWindowRegister", ncclResult_t::ncclUnhandledCudaError.0)?;
        }
        let registered = self.library.register(group, rank, extents, token);
        // Remove the injected fault, so that no later call fails. The fault is still there if `register` has called no
        // NCCL function, because not all members have joined the communicator.
        devices.fail_no_more();
        registered
    }

    /// Passes the outcomes of window registrations that have ended to the [state machines](Work) of the ranks' commits.
    pub(crate) fn pass_ended_calls(&mut self) -> Result<(), Violation> {
        let ended = self.library.take_ended_calls();
        self.may_register(&ended)?;
        for EndedCall { group, rank, token, serials, .. } in ended {
            let without = self.scenario.trouble == Trouble::WithoutWindows
                || self.scenario.trouble_of(rank) == Trouble::SomeWithoutWindows;
            let (outcome, serials) = match serials {
                Ok(serials) if without => {
                    self.library.take_back(group, rank, &serials)?;
                    (RegistrationOutcome::Unsupported { reason: "no peer access".to_owned() }, Vec::new())
                }
                Ok(serials) => (RegistrationOutcome::Registered, serials),
                Err(cause) => (RegistrationOutcome::Failed { ordinal: None, cause }, Vec::new()),
            };
            self.answer_soon(rank, token, Answer::Registered(outcome, serials));
        }
        Ok(())
    }

    /// Checks conditions that the real NCCL has for window registrations, but gpu-sim does not check. If one of the
    /// calls that have succeeded breaks a condition, it would hang or fail in the real NCCL.
    fn may_register(&self, ended: &[EndedCall]) -> Result<(), Violation> {
        for EndedCall { group, rank, bytes, .. } in ended.iter().filter(|call| call.serials.is_ok()) {
            // The device with the most memory determines the address space of all members. Each rank computes the space
            // from its own device, so the greatest value applies to all members.
            let uid = group.group.uid;
            let members = self.scenario.groups[&uid].iter();
            let space = members.map(|rank| self.scenario.address_space(uid, *rank)).max().unwrap_or(0);
            let state = &self.ranks[*rank as usize];
            let differs = |other: u32, (uid, mine): (&u64, &Membership)| {
                let groups = &self.ranks[other as usize].groups;
                let theirs = groups.get(uid).filter(|it| (it.id, it.life) == (mine.id, mine.life));
                theirs.is_some_and(|theirs| !mine.is_even(*rank, other, theirs))
            };
            let others = ended.iter().filter(|call| call.group == *group && call.rank != *rank);
            let mut others = others.map(|call| call.rank);
            let wrong = if state.capture.is_some() {
                "while it captures"
            } else if space < *bytes {
                "for which it has no addresses"
            } else if self.scenario.library(*rank) != (self.scenario.release, WindowSupport::Available) {
                "with another library than its peers, or one without"
            } else if others.any(|other| state.groups.iter().any(|group| differs(other, group))) {
                "with collectives or messages that its peers have not enqueued"
            } else {
                continue;
            };
            bail!("rank {rank} registers windows {wrong}");
        }
        Ok(())
    }

    /// Deregisters the segments that a rank retires, and returns `Done`. If the trouble makes deregistration fail and a
    /// segment is registered, deregisters nothing and returns `Failed`.
    pub(crate) fn deregister(&mut self, rank: u32) -> Result<Release, Violation> {
        let fails = self.scenario.trouble_of(rank) == Trouble::DeregistrationFails;
        let state = self.rank(rank);
        let Some(Task { work: Work::Retire { ordinals, group_states, .. }, .. }) = &state.task else {
            return Ok(Release::Done {});
        };
        let (mut plain, mut windows) = (Vec::new(), Vec::new());
        for group_state in group_states {
            let id = lock(group_state).log.group();
            for extent in ordinals.iter().filter_map(|ordinal| state.extent(*ordinal)) {
                let found = state.pool.lookup(DevicePtr(extent.address), 1, id).map_err(Violation::of)?;
                match found.map(|found| found.state) {
                    Some(RegistrationState::Window { serial }) => windows.push((state.life(id), serial)),
                    Some(RegistrationState::Registered) => plain.push((state.life(id), extent)),
                    _ => {}
                }
            }
        }
        if fails && !(plain.is_empty() && windows.is_empty()) {
            return Ok(Release::Failed { cause: "invalid usage".to_owned() });
        }
        for (id, extent) in plain {
            self.library.deregister_plainly(id, rank, extent)?;
        }
        // The ordinals ascend, so segments that share a window give adjacent equal entries. Keep one entry of each
        // window.
        windows.dedup();
        for (id, serial) in windows {
            self.library.deregister(id, rank, serial)?;
        }
        Ok(Release::Done {})
    }

    /// Registers segments by `ncclCommRegister`, all or none: if one fails, undoes those before it. Then begins the
    /// agreement on whether all members keep these registrations. `commit` is the commit that left the segments without
    /// windows. The agreement has the same time limit as this commit, which counts from the begin of the commit. It
    /// also has the same [epoch](Meeting::epoch) and [number](Meeting::round), but another kind.
    pub(crate) fn register_plainly(
        &mut self,
        rank: u32,
        unregistered: Unregistered,
        commit: Span,
    ) -> Result<(), Violation> {
        let Unregistered { group_state, segments } = &unregistered;
        let trouble = self.scenario.trouble_of(rank);
        let state = &mut self.ranks[rank as usize];
        state.plain_registrations += 1;
        let failed = |cause: &str| Attempt::Failed { cause: cause.to_owned() };
        let mut attempt = match trouble {
            Trouble::PlainFails(at) if at == state.plain_registrations => failed("unhandled cuda error"),
            Trouble::RegistersNothing => failed("NCCL_LOCAL_REGISTER is 0"),
            _ => Attempt::Done {},
        };
        let id = lock(group_state).log.group();
        state.keep_memory(id.uid);
        let life = state.life(id);
        let mut made = Vec::new();
        for extent in segments.iter().filter_map(|segment| state.extent(segment.ordinal)) {
            if attempt != (Attempt::Done {}) {
                break;
            }
            match self.library.register_plainly(life, rank, extent)? {
                Ok(()) => made.push(extent),
                Err(cause) => attempt = Attempt::Failed { cause },
            }
        }
        let registered = attempt == Attempt::Done {};
        if !registered {
            made.into_iter().try_for_each(|extent| self.library.deregister_plainly(life, rank, extent))?;
        }
        let patience = Duration::from_micros((commit.begun + commit.deadline).saturating_sub(self.now));
        let member = lock(group_state).log.plain_member(patience.max(ACTION_FLOOR));
        let machine = Machine::new(Start { member, record: attempt }, self.random.next())?;
        let meeting = Meeting { kind: Kind::Plain(id.uid), ..commit.meeting };
        self.start(rank, Work::Plain { machine, unregistered, registered }, Span { meeting, ..commit })
    }

    /// Ends the agreement on plain registration for a rank. If the members have agreed to undo their registrations,
    /// deregisters the segments that the rank has registered. If the group is poisoned, leaves its communicator.
    ///
    /// If the agreement has not failed, checks the state of the segments in the pool: `Registered` if the members keep
    /// their registrations, else `Agreed`.
    pub(crate) fn end_plain(
        &mut self,
        rank: u32,
        Unregistered { group_state, segments }: &Unregistered,
        registered: bool,
        result: Result<Plain, Ending>,
    ) -> Result<(), Violation> {
        let state = &self.ranks[rank as usize];
        let mut group_state = lock(group_state);
        let id = group_state.log.group();
        let life = state.life(id);
        let extents: Vec<Extent> =
            segments.iter().filter_map(|segment| state.extent(segment.ordinal)).collect();
        if registered && matches!(result, Ok(Plain::Undone { .. })) {
            for extent in extents.iter().rev() {
                self.library.deregister_plainly(life, rank, *extent)?;
            }
        }
        let (memberships, lost) = (state_of(&state.pool), Some(LOST.to_owned()));
        let kept = memberships.end_plain(&mut group_state, segments, result, Ok(()), Vec::new(), lost);
        if group_state.log.poison().is_some() {
            self.library.leave(life, rank)?;
        }
        drop(group_state);
        let Ok(kept) = kept else { return Ok(()) };
        let wanted = if kept { RegistrationState::Registered } else { RegistrationState::Agreed };
        for extent in extents {
            let found = state.pool.lookup(DevicePtr(extent.address), extent.bytes, id);
            let found = found.map_err(Violation::of)?;
            ensure!(
                found.map(|found| found.state) == Some(wanted),
                "rank {rank} of group {id} is to have {wanted:?}, and has {found:?}"
            );
        }
        Ok(())
    }
}

/// Groups the segments `ordinals`, with the memory `extents`, into windows. A segment in `joined` shares the window of
/// the segment before it. Returns the windows, and for each segment the index of its window. Fails if a segment in
/// `joined` does not begin at the address at which the segment before it ends.
fn join(
    rank: u32,
    ordinals: &[u32],
    extents: &[Extent],
    joined: &[u32],
) -> Result<(Vec<Extent>, Vec<usize>), Violation> {
    let mut windows: Vec<Extent> = Vec::new();
    let mut window_indexes = Vec::new();
    for (ordinal, extent) in ordinals.iter().zip(extents) {
        match windows.last_mut().filter(|_| joined.contains(ordinal)) {
            None => windows.push(*extent),
            Some(last) if last.address + last.bytes == extent.address => {
                last.bytes += extent.bytes;
                last.identity = chain(last.identity, [extent.identity, extent.bytes]);
            }
            Some(_) => {
                bail!("rank {rank} makes one window of segment {ordinal} and one that it does not follow")
            }
        }
        window_indexes.push(windows.len() - 1);
    }
    Ok((windows, window_indexes))
}
