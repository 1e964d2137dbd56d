//! Ends the meetings of ranks, and checks for leaks at the end of a run. A meeting is one agreement among ranks, for
//! example on a commit. The other terms are defined in [`super`].

use std::{
    mem,
    sync::{Arc, Mutex},
};

use bootstrap::{
    agreement::{remove_keys, remove_left},
    store::Store as _,
};
use cuda_driver::DevicePtr;
use symm_agreement::{Agreed, Ending, NoWindows, Place, Segment};
use symm_mem::{
    RegistrationState,
    internals::{Done, GroupState},
};

use crate::{
    device,
    library::Life,
    lock::lock,
    pools::state_of,
    rank::{Rank, Task},
    results::{Ended, Kind, Meeting, MeetingResult},
    violation::{Violation, bail, ensure},
    work::{MappingKey, Unregistered, Work},
    world::{Event, World, tell},
};

/// The description of a store failure. The simulation passes this text to the pool at the end of each commit,
/// retirement and agreement on plain registrations (`ncclCommRegister`). If the meeting has ended because the store
/// failed, the pool's error contains the text.
pub(crate) const LOST: &str = "the store is gone";
/// The longest time in µs for which a rank pauses after it has lost the store in a meeting.
const LONGEST_PAUSE: u64 = 10_000_000;

/// The work that remains after the result of a meeting has been passed to the pool.
#[derive(Default)]
struct Applied {
    /// The segments that a commit has left without windows, because the library does not support windows. They are then
    /// registered plainly (`ncclCommRegister`).
    unregistered: Option<Unregistered>,
    /// The name of the meeting, if it is a commit, a retirement or an agreement on a length, and has succeeded.
    met: Option<String>,
    /// Earlier meetings of the same kind, whose keys this rank can now remove from the store if they are still there.
    earlier: Vec<Place>,
}

impl World {
    /// Ends the rank's meeting: passes the result `said` to the pool, and checks and records it. If the store has not
    /// failed in the meeting and the rank can reach the store, removes these keys: the keys `read` (see
    /// [`Want::Done`](crate::work::Want::Done)), and those that earlier meetings of the same kind may have left.
    ///
    /// If a commit has left segments without windows because the library does not support windows, registers these
    /// segments plainly (`ncclCommRegister`) and begins the agreement on this registration. The end of that agreement
    /// then schedules the rank's next action. In all other cases, `end` itself schedules it.
    pub(crate) fn end(&mut self, rank: u32, said: MeetingResult, read: &[String]) -> Result<(), Violation> {
        let state = &mut self.ranks[rank as usize];
        let Some(Task { work, span, history, registered, record_prefix, .. }) = state.task.take() else {
            return Ok(());
        };
        let Meeting { kind, round, .. } = span.meeting;
        let groups = work.groups();
        self.exports.remove(&rank);
        let lost = said.store_failed();
        state.lost |= lost;
        let poisoned = |state: &Rank| {
            let pool = state.pool_of(kind);
            groups.iter().filter(|group| pool.poison(**group).is_some()).count()
        };
        let before = poisoned(state);
        let arrived = self.arrived(kind, record_prefix.as_deref());
        let Applied { unregistered, met, earlier } = self.apply(rank, kind, work, said.clone())?;
        let state = self.rank(rank);
        let poisoned = [before, poisoned(state)];
        if lost {
            self.judge_error(rank, kind, &said, &groups)?;
        }
        met.iter().for_each(|name| self.network.keys.meet(name));
        if !lost && self.reaches_store(rank) {
            let store = self.network.at_once();
            remove_keys(&store, read);
            earlier.iter().for_each(|place| remove_left(&store, place));
        }
        tell!(self, "rank {rank} ends {kind:?} {round}: {said:?}");
        let (ended, posted) = (self.now, record_prefix.is_some());
        self.ended.push(Ended {
            rank,
            span,
            said,
            ended,
            history,
            registered,
            posted,
            arrived,
            groups: groups.len(),
            poisoned,
        });
        self.observe(rank)?;
        if let Some(unregistered) = unregistered {
            return self.register_plainly(rank, unregistered, span);
        }
        // Without the pause, a rank that has lost the store ends its program before the store answers again.
        let pause = if lost && self.random.one_in(2) { self.random.below(LONGEST_PAUSE) } else { 0 };
        let next = self.now + pause + self.delay();
        self.at(next, Event::Resume(rank));
        Ok(())
    }

    /// Passes the result `said` of a meeting to the pool of its rank, and returns the work that remains. Exception: the
    /// result of a rendezvous or an exchange goes to the rank's state in the simulation.
    fn apply(
        &mut self,
        rank: u32,
        kind: Kind,
        work: Work,
        said: MeetingResult,
    ) -> Result<Applied, Violation> {
        let state = &mut self.ranks[rank as usize];
        let mut applied = Applied::default();
        match (work, said) {
            (
                Work::Commit { machine, group_state, mut segments, serials, .. },
                MeetingResult::Commit(result),
            ) => {
                applied.met = result.is_ok().then_some(machine.member.name);
                let without = self.end_commit(rank, kind, &group_state, &segments, &serials, result)?;
                applied.earlier = lock(&group_state).log.take_left();
                segments.truncate(without);
                applied.unregistered = (without > 0).then_some(Unregistered { group_state, segments });
            }
            (Work::Plain { unregistered, registered, .. }, MeetingResult::Plain(result)) => {
                self.end_plain(rank, &unregistered, registered, result)?;
            }
            (Work::Retire { machine, ordinals, group_states }, MeetingResult::Retire(result)) => {
                let memberships = state_of(&state.pool);
                applied.earlier = memberships.meetings().end(&machine.member, result.is_ok());
                let lost = Some(LOST.to_owned());
                if self.scenario.is_culprit(rank) {
                    self.device_work.take().map_or(Ok(()), device::DeviceWork::end)?;
                }
                let (_, dead) = memberships.end_retirement(&ordinals, &group_states, &result, lost);
                let mut dead = dead.into_iter().map(|id| state.life(id));
                dead.try_for_each(|life| self.library.leave(life, rank))?;
                applied.met = result.is_ok().then_some(machine.member.name);
            }
            (Work::Length { machine }, MeetingResult::Length(result)) => {
                applied.earlier = state_of(&state.pool).meetings().end(&machine.member, result.is_ok());
                if let Ok(bytes) = result {
                    applied.met = Some(machine.member.name);
                    self.allocate(rank, bytes)?;
                }
            }
            (Work::Meet { group, mapping, number, identity, peers, .. }, MeetingResult::Meet(result)) => {
                if let Ok(since) = result {
                    self.end_meet(rank, (group, mapping), (number, since), peers, identity)?;
                }
            }
            (Work::Exchange { exchanging, .. }, MeetingResult::Exchange(result)) => {
                self.end_exchange(rank, *exchanging, result)?;
            }
            _ => bail!("rank {rank} ends what it has not begun"),
        }
        Ok(applied)
    }

    /// Ends a successful rendezvous of a group on a rank. In the rendezvous, each member has offered memory, and the
    /// others map it.
    /// - `mapping` names the offered memory: a segment of the pool, or an allocation outside pools.
    /// - `number` is the number of the rendezvous.
    /// - `since` is the number of the rendezvous that mapped the peers' memory: this one or an earlier one.
    /// - `peers` are the numbers that the rank has read from the start of the peers' memory, if this rendezvous has
    ///   mapped it.
    /// - `own` is the number at the start of the memory that the rank has offered.
    ///
    /// Checks that the rank has the mapping, and that the memory of every peer begins with the number `own`.
    fn end_meet(
        &mut self,
        rank: u32,
        (group, mapping): (u64, MappingKey),
        (number, since): (u64, u64),
        peers: Option<Vec<u64>>,
        own: u64,
    ) -> Result<(), Violation> {
        let Some(membership) = self.rank(rank).groups.get_mut(&group) else { return Ok(()) };
        if let Some(peers) = peers.filter(|_| since == number) {
            membership.peer_mappings.insert(mapping, (number, peers));
        }
        let mapped = membership.peer_mappings.get(&mapping).filter(|(at, _)| *at == since);
        let Some((_, peers)) = mapped else {
            bail!("rank {rank} is to have memory mapped since {since}, and has not");
        };
        ensure!(
            peers.iter().all(|peer| *peer == own),
            "rank {rank} maps other memory than it came with: {peers:x?} for {own:x}"
        );
        Ok(())
    }

    /// Ends a commit on a rank. Checks that the segments that this commit has committed are registered as the members
    /// have agreed. Returns how many of these segments the rank then registers plainly: all if the library does not
    /// support windows, else 0.
    fn end_commit(
        &mut self,
        rank: u32,
        kind: Kind,
        group_state: &Arc<Mutex<GroupState>>,
        segments: &[Segment],
        serials: &[u64],
        result: Result<Agreed, Ending>,
    ) -> Result<usize, Violation> {
        let is_second = matches!(kind, Kind::Second(_));
        ensure!(!is_second || segments.is_empty(), "rank {rank} commits {segments:?} of its second pool");
        let state = &self.ranks[rank as usize];
        let mut group_state = lock(group_state);
        let life = state.life(group_state.log.group());
        let windows = serials.iter().map(|serial| (*serial, None)).collect();
        let done = Done { windows, opened: None };
        let memberships = state_of(state.pool_of(kind));
        let lost = Some(LOST.to_owned());
        let result = memberships.end_commit(&mut group_state, result, lost, segments, done);
        // The rank leaves the communicator of a poisoned group. Exception: after a commit of the second pool, the rank
        // stays, because the first pool still uses the communicator.
        if group_state.log.poison().is_some() && !is_second {
            self.library.leave(life, rank)?;
        }
        drop(group_state);
        let Ok(report) = result else { return Ok(0) };
        let with = report.without.is_none();
        for (at, segment) in segments.iter().take(report.new_segments).enumerate() {
            let (id, ordinal) = (life.group, segment.ordinal);
            let Some(extent) = state.extent(ordinal) else { continue };
            let found = state.pool.lookup(DevicePtr(extent.address), extent.bytes, id);
            let registration = found.map_err(Violation::of)?.map(|found| found.state);
            let right = match (registration, serials.get(at)) {
                (Some(RegistrationState::Window { serial }), Some(made)) => {
                    let window = self.library.window(life, rank, serial);
                    with && serial == *made && window.is_some_and(|window| window.holds(&extent))
                }
                (Some(RegistrationState::Agreed), _) => {
                    !with
                        && (report.without != Some(NoWindows::SingleMember {})
                            || self.scenario.groups[&id.uid].len() == 1)
                }
                _ => false,
            };
            ensure!(right, "rank {rank} has segment {ordinal} of group {id} as {registration:?}");
        }
        let is_left = matches!(report.without, Some(NoWindows::Unsupported { .. }));
        Ok(if is_left { report.new_segments } else { 0 })
    }

    /// Records that the watchdogs of `rank` report that rank `lost` is dead. If `rank` waits for a key of the store in
    /// a meeting that such a report ends (see [`Rank::is_over`](crate::rank::Rank::is_over)), ends the wait.
    pub(crate) fn noticed(&mut self, rank: u32, lost: u32) -> Result<(), Violation> {
        tell!(self, "rank {rank} hears that rank {lost} is dead");
        let state = self.rank(rank);
        state.reported_dead = Some(lost);
        let waits = state.task.as_ref().is_some_and(|task| task.waits);
        let token = state.token;
        if waits && state.is_over() {
            let over = state.over();
            return self.answer(rank, token, over);
        }
        Ok(())
    }

    /// Drops the state of all live ranks, and checks:
    /// - The store has no keys except those that [`Keys::left`](crate::keys::Keys::left) allows.
    /// - No plans of [exchanges](crate::exchanges) remain except those that [`left_plans`](Self::left_plans) allows.
    /// - No rank frees memory that it still has registered.
    /// - No device memory is allocated at the end.
    pub(crate) fn tear_down(&mut self) -> Result<(), Violation> {
        for rank in 0..self.ranks.len() as u32 {
            let state = self.rank(rank);
            if state.dead {
                // Ends the calls of the dead rank into NCCL. They would otherwise wait for other ranks until the
                // gpu-sim world ends.
                self.library.leave_all(rank)?;
                continue;
            }
            state.capture = None;
            state.graphs.clear();
            state.blocks.clear();
            self.observe(rank)?;
        }
        let trouble = self.scenario.trouble;
        let keys = self.network.at_once().list_keys().map_err(Violation::of)?;
        let left = self.network.keys.left(trouble, keys);
        ensure!(left.is_none(), "under {trouble:?}: the store is left with {left:?}");
        self.left_plans()?;
        for mut state in mem::take(&mut self.ranks).into_iter().filter(|state| !state.dead) {
            let (rank, device) = (state.number, state.device.clone());
            let kept =
                state.groups.values_mut().map(|it| (Life { group: it.id, number: it.life }, it.kept.take()));
            let kept: Vec<_> = kept.collect();
            drop(state);
            for (life, memory) in kept.into_iter().rev() {
                for memory in device.take_freed() {
                    let holder = self.library.reached(rank, memory.address, memory.bytes);
                    ensure!(
                        holder.is_none_or(|(_, holder)| holder != rank),
                        "rank {rank} gives memory back under its own windows"
                    );
                }
                self.library.leave(life, rank)?;
                drop(memory);
            }
            device.check_released(rank)?;
        }
        self.library.end();
        Ok(())
    }
}
