//! The ranks' registrations with the library: windows, which all members of a group register together, and plain
//! registrations, which each rank makes alone.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bootstrap::agreement::Agreement;
use cuda_driver::DevicePtr;

use super::{
    ends::LOST,
    library::{Extent, Life, Met},
    rank::{Membership, Span, Task},
    trouble::Trouble,
    violation::Violation,
    work::{Answer, Work},
    world::{Event, World},
};
use crate::{
    Standing,
    agreement::{
        ACTION_FLOOR, Attempt, Ending, Outcome, Plain, Release, Segment, WindowSupport, hash::chain,
    },
    membership::{GroupState, lock},
};

/// The new segments of a commit that are left without a window, because the commit found that windows are unsupported.
/// The rank then registers them plainly, by `ncclCommRegister`.
pub(super) struct Left {
    pub(super) group_state: Arc<Mutex<GroupState>>,
    pub(super) group: u64,
    pub(super) segments: Vec<Segment>,
}

impl World {
    /// Registers the first `count` new segments of a rank's commit as windows. A segment whose ordinal is in `joined`
    /// shares the window of the segment before it. `token` identifies the request, see
    /// [`Rank::token`](super::rank::Rank::token). On the culprit, the trouble may delay the call into the library or
    /// make it fail.
    pub(super) fn register(
        &mut self,
        rank: u32,
        token: u64,
        count: usize,
        joined: &[u32],
    ) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.is_culprit(rank));
        let state = self.rank(rank);
        let Some(task) = state.task.as_mut() else { return Ok(()) };
        task.registered = true;
        let Work::Commit { group_state, segments, group, .. } = &task.work else { return Ok(()) };
        let (id, group) = (lock(group_state).log.group(), *group);
        let ordinals: Vec<u32> = segments.iter().take(count).map(|segment| segment.ordinal).collect();
        state.registrations += 1;
        let number = state.registrations;
        let memory = state.pool.memory().clone();
        if let Some(membership) = state.groups.get_mut(&group) {
            membership.kept = Some(memory);
        }
        let extents: Vec<Extent> = ordinals.iter().filter_map(|ordinal| state.extent(*ordinal)).collect();
        for extent in &extents {
            let found = state.pool.lookup(DevicePtr(extent.address), 1, id).map_err(Violation::of)?;
            if found.map(|found| found.standing) != Some(Standing::Pending) {
                let at = extent.address;
                return Err(Violation(format!(
                    "rank {rank} takes {at:#x} for committed before it is: {found:?}"
                )));
            }
        }
        let (extents, windows) = join(rank, &ordinals, &extents, joined)?;
        if let Some(Task { work: Work::Commit { places, .. }, .. }) = &mut state.task {
            *places = windows;
        }
        let id = state.life(id);
        let fails = culprit && trouble == Trouble::RegistrationFails(number);
        match trouble {
            Trouble::RegistrationSlow(at, ms) if culprit && at == number => {
                let later = self.now + 1000 * ms;
                self.at(later, Event::Enter(rank, token, id, extents));
                Ok(())
            }
            Trouble::ShortDeadline(_) if culprit => {
                let later = self.now + self.random.below(30_000_000);
                self.at(later, Event::Enter(rank, token, id, extents));
                Ok(())
            }
            _ => self.enter(rank, token, id, extents, fails),
        }
    }

    /// Begins a rank's window registration in the library. If `fails` is true, the library's call fails at once.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        token: u64,
        group: Life,
        extents: Vec<Extent>,
        fails: bool,
    ) -> Result<(), Violation> {
        let Some(devices) = &self.devices else { return Ok(()) };
        if fails {
            devices.fail_next("ncclCommWindowRegister")?;
        }
        let registered = self.library.register(group, rank, extents, token);
        // If not all members have joined the communicator, `register` has made no call to the library. The injected
        // fault must not hit a later call, so it is removed.
        devices.fail_no_more();
        registered
    }

    /// Passes the outcomes of window registrations that have ended to the state machines of the ranks.
    pub(super) fn returned(&mut self) -> Result<(), Violation> {
        let met = self.library.returned();
        self.may_register(&met)?;
        for Met { group, rank, token, serials, .. } in met {
            let without = match self.scenario.trouble {
                Trouble::WithoutWindows => true,
                Trouble::SomeWithoutWindows => self.scenario.is_culprit(rank),
                _ => false,
            };
            let (outcome, serials) = match serials {
                Ok(serials) if without => {
                    self.library.take_back(group, rank, &serials)?;
                    (Outcome::Unsupported { reason: "no peer access".to_owned() }, Vec::new())
                }
                Ok(serials) => (Outcome::Registered, serials),
                Err(cause) => (Outcome::Failed { ordinal: None, cause }, Vec::new()),
            };
            self.answer_soon(rank, token, Answer::Registered(outcome, serials));
        }
        Ok(())
    }

    /// Checks that the ranks whose calls have succeeded were allowed to register windows together, because gpu-sim does
    /// not check it. If a check fails, the real NCCL would hang or fail in this registration.
    fn may_register(&self, met: &[Met]) -> Result<(), Violation> {
        let wrong = |rank: u32, what: &str| Err(Violation(format!("rank {rank} registers windows {what}")));
        for Met { group, rank, bytes, .. } in met.iter().filter(|met| met.serials.is_ok()) {
            // The device with the most memory determines the address space of all members. Each rank computes the space
            // from its own device, so the greatest value applies to all members.
            let uid = group.group.uid;
            let members = self.scenario.groups[&uid].iter();
            let space = members.map(|rank| self.scenario.address_space(uid, *rank)).max().unwrap_or(0);
            let state = &self.ranks[*rank as usize];
            if state.capture.is_some() {
                return wrong(*rank, "while it captures");
            }
            if space < *bytes {
                return wrong(*rank, "for which it has no addresses");
            }
            if self.scenario.library(*rank) != (self.scenario.release, WindowSupport::Available) {
                return wrong(*rank, "with another library than its peers, or one without");
            }
            let differs = |other: u32, (uid, mine): (&u64, &Membership)| {
                let groups = &self.ranks[other as usize].groups;
                let theirs = groups.get(uid).filter(|it| (it.id, it.life) == (mine.id, mine.life));
                theirs.is_some_and(|theirs| !mine.is_even(*rank, other, theirs))
            };
            let mut others = met
                .iter()
                .filter(|met| met.group == *group)
                .map(|met| met.rank)
                .filter(|other| other != rank);
            if others.any(|other| state.groups.iter().any(|group| differs(other, group))) {
                return wrong(*rank, "with collectives or messages that its peers have not enqueued");
            }
        }
        Ok(())
    }

    /// Deregisters the segments that a rank retires. Returns `Failed`, and deregisters nothing, if the trouble makes
    /// deregistration fail and a segment is registered. Else returns `Done`.
    pub(super) fn deregister(&mut self, rank: u32) -> Result<Release, Violation> {
        let fails = self.scenario.trouble == Trouble::DeregistrationFails && self.scenario.is_culprit(rank);
        let state = self.rank(rank);
        let Some(Task { work: Work::Retire { ordinals, group_states, .. }, .. }) = &state.task else {
            return Ok(Release::Done {});
        };
        let (mut plain, mut windows) = (Vec::new(), Vec::new());
        for (_, group_state) in group_states {
            let id = lock(group_state).log.group();
            for extent in ordinals.iter().filter_map(|ordinal| state.extent(*ordinal)) {
                let found = state.pool.lookup(DevicePtr(extent.address), 1, id).map_err(Violation::of)?;
                match found.map(|found| found.standing) {
                    Some(Standing::Window { serial }) => windows.push((state.life(id), serial)),
                    Some(Standing::Registered) => plain.push((state.life(id), extent)),
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
        // The ordinals ascend, so segments that share a window give adjacent equal entries. One entry per window
        // remains.
        windows.dedup();
        for (id, serial) in windows {
            self.library.deregister(id, rank, serial)?;
        }
        Ok(Release::Done {})
    }

    /// Registers the segments `left` by `ncclCommRegister`, and begins the agreement on whether all members keep these
    /// registrations. This agreement takes its number, epoch and time limit from `commit`, the commit that left the
    /// segments.
    pub(super) fn register_plainly(&mut self, rank: u32, left: Left, commit: Span) -> Result<(), Violation> {
        let Left { group_state, group, segments } = left;
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.is_culprit(rank));
        let state = &mut self.ranks[rank as usize];
        state.plain_registrations += 1;
        let mut attempt = match trouble {
            Trouble::PlainFails(at) if culprit && at == state.plain_registrations => {
                Attempt::Failed { cause: "unhandled cuda error".to_owned() }
            }
            Trouble::RegistersNothing if culprit => {
                Attempt::Failed { cause: "NCCL_LOCAL_REGISTER is 0".to_owned() }
            }
            _ => Attempt::Done {},
        };
        let (id, memory) = (lock(&group_state).log.group(), state.pool.memory().clone());
        if let Some(membership) = state.groups.get_mut(&group) {
            membership.kept = Some(memory);
        }
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
        let left = Duration::from_micros((commit.begun + commit.deadline).saturating_sub(self.now));
        let member = lock(&group_state).log.plain_member(left.max(ACTION_FLOOR));
        let machine = Agreement::new(member, attempt, self.random.next()).map_err(Violation)?;
        let machine = Box::new(machine);
        self.start(rank, Work::Plain { machine, group_state, group, segments, registered }, commit)
    }

    /// Ends the agreement on plain registration for a rank. If the members have agreed to undo their registrations,
    /// deregisters the segments that the rank has registered. Checks that the pool reports the segments as `Registered`
    /// if the members keep their registrations, else as `Agreed`.
    pub(super) fn end_plain(
        &mut self,
        rank: u32,
        left: Left,
        registered: bool,
        result: Result<Plain, Ending>,
    ) -> Result<(), Violation> {
        let Left { group_state, segments, .. } = left;
        let state = &self.ranks[rank as usize];
        let mut group_state = lock(&group_state);
        let (id, life) = (group_state.log.group(), state.life(group_state.log.group()));
        let extents: Vec<Extent> =
            segments.iter().filter_map(|segment| state.extent(segment.ordinal)).collect();
        if registered && matches!(result, Ok(Plain::Undone { .. })) {
            for extent in extents.iter().rev() {
                self.library.deregister_plainly(life, rank, *extent)?;
            }
        }
        let cause = Some(LOST.to_owned());
        let kept = state.pool.memberships().end_plain(
            &mut group_state,
            &segments,
            result,
            Ok(()),
            Vec::new(),
            cause,
        );
        if group_state.log.poison().is_some() {
            self.library.leave(life, rank)?;
        }
        drop(group_state);
        let Ok(kept) = kept else { return Ok(()) };
        for extent in extents {
            let found =
                state.pool.lookup(DevicePtr(extent.address), extent.bytes, id).map_err(Violation::of)?;
            let standing = if kept { Standing::Registered } else { Standing::Agreed };
            if found.map(|found| found.standing) != Some(standing) {
                let what = format!("rank {rank} of group {id} is to have {standing:?}, and has {found:?}");
                return Err(Violation(what));
            }
        }
        Ok(())
    }
}

/// Groups the segments `ordinals`, with the memory `extents`, into windows. A segment in `joined` shares the window of
/// the segment before it. Returns the windows, and for each segment the index of its window. Fails if a segment in
/// `joined` does not begin where the previous one ends in memory.
fn join(
    rank: u32,
    ordinals: &[u32],
    extents: &[Extent],
    joined: &[u32],
) -> Result<(Vec<Extent>, Vec<usize>), Violation> {
    let mut windows: Vec<Extent> = Vec::new();
    let mut places = Vec::new();
    for (ordinal, extent) in ordinals.iter().zip(extents) {
        match windows.last_mut().filter(|_| joined.contains(ordinal)) {
            None => windows.push(*extent),
            Some(last) if last.address + last.bytes == extent.address => {
                last.bytes += extent.bytes;
                last.identity = chain(last.identity, [extent.identity, extent.bytes]);
            }
            Some(_) => {
                let what = format!(
                    "rank {rank} makes one window of segment {ordinal} and one that it does not follow"
                );
                return Err(Violation(what));
            }
        }
        places.push(windows.len() - 1);
    }
    Ok((windows, places))
}
