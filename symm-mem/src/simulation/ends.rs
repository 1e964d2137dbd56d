//! Ends the meetings of ranks, and checks for leaks at the end of a run. A meeting is one agreement among ranks, such
//! as that of a commit (see `work`).

use std::{
    mem,
    sync::{Arc, Mutex},
};

use bootstrap::{
    agreement::{remove_keys, remove_left},
    store::Store as _,
};
use cuda_driver::DevicePtr;

use super::{
    library::Life,
    rank::{Span, Task},
    registration::Left,
    results::Ended,
    violation::Violation,
    work::{End, Work},
    world::{Event, Offer, World, tell},
};
use crate::{
    Standing,
    agreement::{Agreed, Ending, NoWindows, Segment},
    membership::{GroupState, commit::Done, lock},
};

/// The description of a store failure. At the end of each meeting, the simulation passes it to the pool. The pool uses
/// it in its error if the meeting has ended because the store failed.
pub(super) const LOST: &str = "the store is gone";

impl World {
    /// Ends the rank's meeting: passes the result to the pool, checks and records it, and schedules the next action. If
    /// a commit leaves segments for plain registration, registers them and begins the agreement on this registration.
    /// The end of that agreement then schedules the next action.
    pub(super) fn end(&mut self, rank: u32, end: End) -> Result<(), Violation> {
        let said = end.said();
        let now = self.now;
        let state = self.rank(rank);
        let Some(Task { work, span, history, registered, .. }) = state.task.take() else { return Ok(()) };
        let Span { round, epoch, begun, deadline } = span;
        let (kind, groups) = (work.kind(), work.groups());
        let lost = said.store_failed();
        state.lost |= lost;
        let (mut left, mut met, mut earlier) = (None, None, Vec::new());
        let read = match (work, end) {
            (
                Work::Commit { machine, group_state, group, mut segments, serials, .. },
                End::Commit(meeting),
            ) => {
                met = meeting.result.is_ok().then_some(machine.member.name);
                let without = self.end_commit(rank, &group_state, &segments, &serials, meeting.result)?;
                earlier = lock(&group_state).log.take_left();
                segments.truncate(without);
                left = (without > 0).then_some(Left { group_state, group, segments });
                meeting.read
            }
            (Work::Second { machine, group_state, .. }, End::Commit(meeting)) => {
                met = meeting.result.is_ok().then_some(machine.member.name);
                let (cause, mut group_state) = (Some(LOST.to_owned()), lock(&group_state));
                let ended = state.second.memberships().end_commit(
                    &mut group_state,
                    meeting.result,
                    cause,
                    &[],
                    Done::default(),
                );
                drop(ended);
                earlier = group_state.log.take_left();
                meeting.read
            }
            (Work::Plain { group_state, group, segments, registered, .. }, End::Plain(meeting)) => {
                self.end_plain(rank, Left { group_state, group, segments }, registered, meeting.result)?;
                meeting.read
            }
            (Work::Retire { machine, ordinals, group_states }, End::Retire(meeting)) => {
                met = meeting.result.is_ok().then(|| machine.member.name.clone());
                earlier = state.pool.memberships().meetings().end(&machine.member, meeting.result.is_ok());
                let only: Vec<_> = group_states.into_iter().map(|(_, group_state)| group_state).collect();
                let (_, dead) = state.pool.memberships().end_retirement(
                    &ordinals,
                    &only,
                    &meeting.result,
                    Some(LOST.to_owned()),
                );
                let dead: Vec<Life> = dead.into_iter().map(|id| state.life(id)).collect();
                dead.into_iter().try_for_each(|life| self.library.leave(life, rank))?;
                meeting.read
            }
            (Work::Length { machine }, End::Length(meeting)) => {
                met = meeting.result.is_ok().then(|| machine.member.name.clone());
                earlier = state.pool.memberships().meetings().end(&machine.member, meeting.result.is_ok());
                if let Ok(bytes) = meeting.result {
                    self.allocate(rank, bytes)?;
                }
                meeting.read
            }
            (Work::Meet { group, mapping, number, token, peers, .. }, End::Meet(conclusion)) => {
                let offered = self.offers.remove(&token);
                let state = self.rank(rank);
                let membership = state.groups.get_mut(&group);
                match (&conclusion.result, peers, membership) {
                    (Ok(since), Some(peers), Some(membership)) if *since == number => {
                        membership.peer_mappings.insert(mapping, (number, peers));
                    }
                    (Ok(since), _, Some(membership))
                        if membership.peer_mappings.get(&mapping).map(|(at, _)| at) != Some(since) =>
                    {
                        let what = format!("rank {rank} is to have memory mapped since {since}, and has not");
                        return Err(Violation(what));
                    }
                    _ => {}
                }
                let state = self.rank(rank);
                let has = state
                    .groups
                    .get(&group)
                    .and_then(|it| it.peer_mappings.get(&mapping))
                    .map(|(_, peers)| peers);
                let mapped = conclusion.result.is_ok().then_some(has).flatten();
                if let (Some(peers), Some(Offer { identity: own, .. })) = (mapped, offered)
                    && peers.iter().any(|peer| *peer != own)
                {
                    let what =
                        format!("rank {rank} maps other memory than it came with: {peers:x?} for {own:x}");
                    return Err(Violation(what));
                }
                conclusion.read
            }
            (Work::Exchange(work), End::Exchange(end)) => self.end_exchange(rank, *work, end)?,
            _ => return Err(Violation(format!("rank {rank} ends what it has not begun"))),
        };
        let state = self.rank(rank);
        let poisoned = groups.iter().all(|group| state.pool_of(kind).poison(*group).is_some());
        met.iter().for_each(|name| self.network.keys.meet(name));
        if !lost && self.reaches_store(rank) {
            let store = self.network.at_once();
            remove_keys(&store, &read);
            earlier.iter().for_each(|place| remove_left(&store, place));
        }
        tell!(self, "rank {rank} ends {kind:?} {round}: {said:?}");
        let ended = now;
        self.ended.push(Ended {
            rank,
            kind,
            epoch,
            round,
            said,
            begun,
            ended,
            deadline,
            history,
            registered,
            poisoned,
        });
        self.observe(rank)?;
        if let Some(left) = left {
            return self.register_plainly(rank, left, span);
        }
        self.soon(Event::Resume(rank));
        Ok(())
    }

    /// Ends a commit on a rank. Checks that the new segments have the agreed state. Returns the number of new segments
    /// that are left for plain registration: all of them if the commit found that windows are unsupported, else 0.
    fn end_commit(
        &mut self,
        rank: u32,
        group_state: &Arc<Mutex<GroupState>>,
        segments: &[Segment],
        serials: &[u64],
        result: Result<Agreed, Ending>,
    ) -> Result<usize, Violation> {
        let state = &mut self.ranks[rank as usize];
        let mut group_state = lock(group_state);
        let id = group_state.log.group();
        let cause = Some(LOST.to_owned());
        let result = state.pool.memberships().end_commit(
            &mut group_state,
            result,
            cause,
            segments,
            Done { windows: serials.iter().map(|serial| (*serial, None)).collect(), opened: None },
        );
        let dead = group_state.log.poison().is_some();
        drop(group_state);
        let life = state.life(id);
        if dead {
            self.library.leave(life, rank)?;
        }
        let Ok(report) = result else { return Ok(0) };
        let with = report.without.is_none();
        for (at, segment) in segments.iter().take(report.new_segments).enumerate() {
            let Some(extent) = state.extent(segment.ordinal) else { continue };
            let found = state.pool.lookup(DevicePtr(extent.address), extent.bytes, id);
            let standing = found.map_err(Violation::of)?.map(|found| found.standing);
            let right = match (standing, serials.get(at)) {
                (Some(Standing::Window { serial }), Some(made)) => {
                    let window = self.library.window(life, rank, serial);
                    with && serial == *made && window.is_some_and(|window| window.holds(&extent))
                }
                (Some(Standing::Agreed), _) => {
                    !with
                        && (report.without != Some(NoWindows::SingleMember {})
                            || self.scenario.groups[&id.uid].len() == 1)
                }
                _ => false,
            };
            if !right {
                let what =
                    format!("rank {rank} has segment {} of group {id} as {standing:?}", segment.ordinal);
                return Err(Violation(what));
            }
        }
        let left = matches!(report.without, Some(NoWindows::Unsupported { .. }));
        Ok(if left { report.new_segments } else { 0 })
    }

    /// Records that the watchdogs of `rank` report that rank `lost` is dead. If `rank` waits for a key of the store in
    /// a meeting that such a report ends (see [`Rank::is_over`](super::rank::Rank::is_over)), ends the wait.
    pub(super) fn noticed(&mut self, rank: u32, lost: u32) -> Result<(), Violation> {
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

    /// Drops the state of all live ranks, and checks that nothing is left: the store has no keys except those that
    /// [`Keys::left`](super::keys::Keys::left) allows, no device memory is allocated, and no exchange plans remain,
    /// except those that [`left_plans`](Self::left_plans) allows. Also checks that no rank frees memory that its own
    /// windows still cover.
    pub(super) fn tear_down(&mut self) -> Result<(), Violation> {
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
        if let Some(key) = self.network.keys.left(trouble, keys) {
            return Err(Violation(format!("under {trouble:?}: the store is left with {key}")));
        }
        self.left_plans()?;
        self.offers.clear();
        for mut state in mem::take(&mut self.ranks).into_iter().filter(|state| !state.dead) {
            let (rank, device) = (state.number, state.device.clone());
            let ids: Vec<(u64, Life)> =
                state.groups.iter().map(|(uid, it)| (*uid, state.life(it.id))).collect();
            let mut kept: Vec<_> = ids
                .iter()
                .map(|(uid, id)| (*id, state.groups.get_mut(uid).and_then(|it| it.kept.take())))
                .collect();
            drop(state);
            kept.reverse();
            for (id, memory) in kept {
                for memory in device.returned() {
                    if self
                        .library
                        .reached(rank, memory.address, memory.bytes)
                        .is_some_and(|(_, by)| by == rank)
                    {
                        return Err(Violation(format!(
                            "rank {rank} gives memory back under its own windows"
                        )));
                    }
                }
                self.library.leave(id, rank)?;
                drop(memory);
            }
            let (live, wrong) = (device.live(), device.wrong());
            if live > 0 || wrong.is_some() {
                return Err(Violation(format!(
                    "rank {rank} leaves {live} bytes of device memory: {wrong:?}"
                )));
            }
        }
        self.library.end();
        Ok(())
    }
}
