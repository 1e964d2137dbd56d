//! Begins the meetings of ranks, and executes the requests of the meetings' state machines. A meeting is one agreement
//! among ranks, for example on a commit. Its state machine, [`Work`], asks for one store request or action at a time.
//! The other terms are defined in [`super`].

use std::{
    collections::{BTreeSet, btree_map::Entry},
    mem,
    sync::Mutex,
    time::Duration,
};

use bootstrap::agreement::{Member, Protocol, Request, refusal};
use cuda_driver::sys::CUresult;
use memory_sharing::{Exports, Handle, Uuid};
use symm_agreement::{
    Capabilities, CommitPlan, CommitProtocol, LogPoint, Policy, PoolId, RegistrationOutcome, Release,
    Segment, Start, exchange::AllocationId, hash::chain, rendezvous as protocol,
    rendezvous::RendezvousRecord,
};
use symm_mem::{
    CommitOptions, Error,
    internals::{GroupState, LocalState, operation, readiness},
};

use crate::{
    exchanges::Allocation,
    lock::lock,
    pools::{memory_of, state_of},
    rank::Task,
    requests::{Goal, StoreRequest},
    results::{Kind, Meeting, Span},
    scenario::{DEADLINE, LAST_DEADLINE, LONG_DEADLINE, RendezvousInput},
    sharing::{export, offered, site},
    trouble::Trouble,
    versions::{of_other_version, to_other_version},
    violation::{Violation, bail},
    work::{Answer, Machine, MappingKey, Want, Work},
    world::{Event, World, tell},
};

impl World {
    /// Begins a meeting of a rank. The time limit `deadline` counts from now.
    pub(crate) fn begin(
        &mut self,
        rank: u32,
        work: Work,
        mut meeting: Meeting,
        deadline: Duration,
    ) -> Result<(), Violation> {
        // Under `Trouble::ExtraDomain`, the culprit's domain has another generation than the domains of the other
        // ranks. So the culprit meets no other rank in meetings about pools. These meetings of the culprit get another
        // epoch, so that `oracle` does not compare their results with those of other ranks.
        if self.scenario.trouble_of(rank) == Trouble::ExtraDomain && meeting.kind.is_of_pool() {
            meeting.epoch |= 1 << 63;
        }
        self.start(rank, work, Span { meeting, begun: self.now, deadline: deadline.as_micros() as u64 })
    }

    /// Returns the time limit of a rank in a meeting, counted from the start of the meeting. This is `deadline`, the
    /// time limit in the program, unless the trouble is [`Trouble::ShortDeadline`]. Under that trouble, a `deadline` of
    /// [`DEADLINE`] becomes the trouble's deadline on the culprit and [`LONG_DEADLINE`] on the other ranks.
    pub(crate) fn deadline(&self, rank: u32, deadline: Duration) -> Duration {
        match self.scenario.trouble {
            Trouble::ShortDeadline(_) if deadline != DEADLINE => deadline,
            Trouble::ShortDeadline(us) if self.scenario.is_culprit(rank) => Duration::from_micros(us),
            Trouble::ShortDeadline(_) => LONG_DEADLINE,
            _ => deadline,
        }
    }

    /// Starts the state machine of a rank's meeting, whose time limit counts from [`Span::begun`].
    pub(crate) fn start(&mut self, rank: u32, work: Work, span: Span) -> Result<(), Violation> {
        let token = self.random.next();
        let state = self.rank(rank);
        state.token = token;
        let history = state.operations();
        state.task = Some(Task {
            work,
            span,
            history,
            registered: false,
            record_prefix: None,
            waits: false,
            request_code: 0,
        });
        self.answer(rank, token, Answer::Start)
    }

    /// Begins a [commit](symm_mem::SymmetricPool::commit) of the rank's first pool for a group, or of its second pool
    /// if `second` is true. The second pool belongs to the same domain and stays empty. Its commits only test that
    /// commits of different pools for the same group are kept apart. So this function simulates troubles, such as
    /// [`Trouble::PrepareFails`], in commits of the first pool only.
    ///
    /// `last` is true for the commits at the end of the program. They have a longer deadline, and if the ranks'
    /// segments differ, they commit those before the first difference ([`Policy::Prefix`]).
    pub(crate) fn commit(
        &mut self,
        rank: u32,
        group: u64,
        second: bool,
        last: bool,
    ) -> Result<(), Violation> {
        let trouble = if second { Trouble::None } else { self.scenario.trouble_of(rank) };
        let (library, windows) = self.scenario.library(rank);
        let (policy, deadline) =
            if last { (Policy::Prefix, LAST_DEADLINE) } else { (Policy::Strict, DEADLINE) };
        let deadline = if second { deadline } else { self.deadline(rank, deadline) };
        let left = self.scenario.address_space(group, rank);
        let mut exports = Exports::new(self.registry.clone());
        let state = self.rank(rank);
        let Some(membership) = state.groups.get_mut(&group) else {
            bail!("rank {rank} has no group {group}")
        };
        let (id, members) = (membership.id, membership.members.clone());
        let count = if second { &mut membership.second_commits } else { &mut membership.commits };
        let round = mem::replace(count, *count + 1);
        if trouble == Trouble::HalfEnqueued && !mem::replace(&mut state.has_deviated, true) {
            membership.collectives += 1;
        }
        let peer = members.iter().find(|peer| **peer != rank);
        if let (Trouble::HalfSent, Some(peer)) = (trouble, peer)
            && !mem::replace(&mut state.has_deviated, true)
        {
            membership.send(*peer);
        }
        let fails = trouble == Trouble::PrepareFails && round == 1;
        let fails = fails.then(|| "misaligned".to_owned());
        let is_capturing = state.capture.is_some() && !second;
        let found = LocalState {
            readiness: readiness(false, fails, Ok(is_capturing)),
            capabilities: Capabilities { library, windows },
            enqueued: state.enqueued(),
            address_space_left: (!second).then_some(left),
        };
        let kind = if second { Kind::Second(group) } else { Kind::Commit(group) };
        let pool = state.pool_of(kind);
        let group_state = state_of(pool).group_state(id, members);
        let outside = lock(&group_state).outside(pool.domain());
        if let Some(error) = outside {
            return self.decline(rank, &group_state, &error);
        }
        let options = CommitOptions::default().policy(policy).deadline(deadline);
        let offer =
            |_: &mut GroupState, new: &[Segment]| offered(rank, pool, &state.device, new, &mut exports);
        let (start, segments) =
            state_of(pool).begin_commit(&mut lock(&group_state), options, found, |_| Ok(()), offer);
        self.exports.insert(rank, exports);
        let machine = Machine::new(start, self.random.next())?;
        let work =
            Work::Commit { machine, group_state, segments, window_indexes: Vec::new(), serials: Vec::new() };
        self.begin(rank, work, Meeting { kind, epoch: id.epoch, round }, deadline)
    }

    /// Skips a commit of the rank's first pool for a group if the rank has nothing new for it, as a commit without
    /// [`CommitOptions::verify`] does. Returns true if the rank skips the commit.
    pub(crate) fn skip_if_nothing_new(&mut self, rank: u32, group: u64) -> bool {
        let state = self.rank(rank);
        let Some(membership) = state.groups.get_mut(&group) else { return false };
        let memberships = state_of(&state.pool);
        let group_state = memberships.group_state(membership.id, membership.members.clone());
        let skips = memberships.skip(&mut lock(&group_state), CommitOptions::default()).is_some();
        membership.commits += u64::from(skips);
        skips
    }

    /// Counts a commit of a group, but begins no meeting. So the rank's later commits have the same numbers as on the
    /// members that have made this commit.
    pub(crate) fn skip_commit(&mut self, rank: u32, group: u64) {
        let state = self.rank(rank);
        if let Some(membership) = state.groups.get_mut(&group) {
            membership.commits += 1;
            lock(&state_of(&state.pool).group_state(membership.id, membership.members.clone())).log.skip();
        }
    }

    /// Declines a commit of a group that has members outside the domain of the rank's pool. Begins no meeting, but
    /// proposes a refusal in the store, with `error` as the reason, so that the other members do not wait for this
    /// rank. After that, the rank continues its program.
    fn decline(
        &mut self,
        rank: u32,
        group_state: &Mutex<GroupState>,
        error: &Error,
    ) -> Result<(), Violation> {
        let (place, declined) = lock(group_state).log.decline(error.to_string());
        let (key, value) = (place.decision_key(), refusal::<CommitProtocol>(declined.into()));
        self.ask(rank, Goal::Resume, StoreRequest::Agreement(Request::Propose { key, value }))
    }

    pub(crate) fn retire(&mut self, rank: u32, nth: u64, count: u64) -> Result<(), Violation> {
        let deadline = self.deadline(rank, DEADLINE);
        let keeps = self.scenario.trouble_of(rank) == Trouble::KeepsBlocks;
        let state = self.rank(rank);
        let live = state.live_segments();
        let take = |at: u64| live.get(((nth + at) % live.len().max(1) as u64) as usize).copied();
        let ordinals: BTreeSet<u32> = (0..count).filter_map(take).collect();
        let ordinals: Vec<u32> = ordinals.into_iter().collect();
        let mut keep = usize::from(keeps);
        state.blocks.retain(|(block, _)| {
            let goes = ordinals.contains(&block.placement().ordinal);
            let kept = goes && keep > 0;
            keep -= usize::from(kept);
            !goes || kept
        });
        self.observe(rank)?;
        let state = self.rank(rank);
        let mut group_states = Vec::new();
        for membership in state.groups.values() {
            let group_state = state_of(&state.pool).group_state(membership.id, membership.members.clone());
            let outside = lock(&group_state).outside(state.pool.domain()).is_some();
            if !outside && lock(&group_state).log.poison().is_none() {
                group_states.push(group_state);
            }
        }
        let readiness = readiness(false, None, Ok(state.capture.is_some()));
        let memberships = state_of(&state.pool);
        let start =
            memberships.begin_retirement(&ordinals, &group_states, readiness, state.enqueued(), deadline);
        let round = state.retirements;
        state.retirements += 1;
        let work = Work::Retire { machine: Machine::new(start, self.random.next())?, ordinals, group_states };
        self.begin(rank, work, Meeting { kind: Kind::Retire, epoch: 0, round }, deadline)
    }

    pub(crate) fn meet(&mut self, rank: u32, group: u64, what: RendezvousInput) -> Result<(), Violation> {
        let otherwise = match self.scenario.trouble_of(rank) {
            Trouble::MeetsOtherwise(how) => Some(how),
            _ => None,
        };
        let deadline = self.deadline(rank, DEADLINE);
        let mut exports = Exports::new(self.registry.clone());
        let state = self.rank(rank);
        let capturing = state.capture.as_ref().is_some_and(|capture| capture.declared.is_some());
        let (nth, persistent) = match what {
            RendezvousInput::Block { nth } => (Some(nth), 2),
            RendezvousInput::Persistent { id } => (None, id),
        };
        let block = nth.and_then(|nth| state.block(nth)).map(|(block, _)| (block.placement(), block.bytes()));
        let segment =
            block.and_then(|(place, _)| Some((state.log_of(place.ordinal)?, state.extent(place.ordinal)?)));
        let (subject, mapping, identity, export, offset, bytes) = match block.zip(segment) {
            Some(((place, bytes), (log, extent))) => {
                let (pool, ordinal, offset) = (state.pool.id(), place.ordinal, place.offset);
                let subject = protocol::Subject::Pool { pool, ordinal, log };
                let export = export(&mut exports, &state.device, extent.address)?;
                (subject, MappingKey::Segment(ordinal), extent.identity, export, offset, bytes)
            }
            None => {
                let subject = protocol::Subject::Persistent { id: persistent };
                let id = AllocationId::Own { number: persistent };
                let allocation = match state.persistent.entry(persistent) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => entry.insert(Allocation::new(&state.lending, id, persistent)?),
                };
                let export = export(&mut exports, &state.lending, allocation.memory.address)?;
                (subject, MappingKey::Persistent(persistent), persistent, export, 0, 4096)
            }
        };
        let Some(membership) = state.groups.get_mut(&group) else {
            bail!("rank {rank} has no group {group}")
        };
        let (round, life, id) = (membership.rendezvous, membership.life, membership.id);
        membership.rendezvous += 1;
        let members = membership.members.clone();
        let capturing = capturing && matches!(mapping, MappingKey::Segment(_));
        let mut record = RendezvousRecord {
            group: id,
            generation: life,
            number: round,
            rank,
            members: chain(0, members.iter().map(|rank| u64::from(*rank))),
            readiness: if capturing {
                protocol::SharingReadiness::Capturing
            } else {
                protocol::SharingReadiness::Ready
            },
            shared_devices: false,
            subject,
            offset,
            bytes,
            mapped: membership.peer_mappings.get(&mapping).map(|(since, _)| *since),
            site: site(rank),
            export,
        };
        // The oracle compares the results of all ranks in meetings with the same kind, epoch and number. After each
        // creation of a group, the rank numbers the group's rendezvous from 0 again. So the epoch contains `life`,
        // the number of times that the rank has created the group with this id.
        let mut epoch = id.epoch << 32 | life;
        if let Some(how) = otherwise.filter(|_| !mem::replace(&mut state.has_deviated, true)) {
            differ(how, &mut record);
            // The changes 0, 1, 2 and 4 give the meeting another name, so the rank meets no other rank. The meeting
            // gets an epoch that no other meeting has, so that `oracle` does not compare it with those of other ranks.
            if matches!(how, 0 | 1 | 2 | 4) {
                epoch = u64::MAX;
            }
        }
        let number = record.number;
        let machine = self.agreement(rank, record.prefix(), members, deadline, record)?;
        self.exports.insert(rank, exports);
        let work = Work::Meet { machine, group, mapping, number, identity, peers: None };
        self.begin(rank, work, Meeting { kind: Kind::Meet(group), epoch, round }, deadline)
    }

    /// Returns the state machine of a rendezvous or of an exchange, with this name and record.
    pub(crate) fn agreement<P: Protocol>(
        &mut self,
        rank: u32,
        name: String,
        members: Vec<u32>,
        deadline: Duration,
        record: P::Record,
    ) -> Result<Box<Machine<P>>, Violation> {
        let (patience, deadline) = (deadline / 2, Some(deadline));
        let member = Member { name, rank, members, generation: 0, patience, deadline };
        Machine::new(Start { member, record }, self.random.next())
    }

    /// Waits until the rank's device is idle, see [`Device::rest`](crate::device::Device::rest). Two troubles change
    /// this on the culprit: under [`Trouble::RestsLate`], its device first gets work that lasts until the retirement
    /// ends, and under [`Trouble::NeverAtRest`], the wait fails.
    fn wait_until_idle(&mut self, rank: u32) -> Result<Option<Release>, Violation> {
        let device = self.ranks[rank as usize].device.clone();
        let Some(devices) = &self.devices else { return Ok(None) };
        match self.scenario.trouble_of(rank) {
            Trouble::RestsLate => self.device_work = Some(device.begin_work()?),
            Trouble::NeverAtRest => {
                devices.fail_next("cuCtxSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS.0)?;
            }
            _ => {}
        }
        let rested = device.rest();
        devices.fail_no_more();
        rested
    }

    /// Passes an answer to the state machine of the rank's meeting, and executes the machine's next request. Ignores
    /// the answer if `token` is not that of the machine's last request.
    pub(crate) fn answer(&mut self, rank: u32, token: u64, answer: Answer) -> Result<(), Violation> {
        let now = self.now;
        let mut answer = match answer {
            Answer::Store(input) if self.speaks_otherwise(rank) => Answer::Store(to_other_version(input)),
            answer => answer,
        };
        let state = &mut self.ranks[rank as usize];
        if state.token != token {
            return Ok(());
        }
        let time = state.time(now);
        let Some(task) = state.task.as_mut() else { return Ok(()) };
        loop {
            let want = task.work.step(answer, time);
            task.waits = false;
            task.request_code = want.code();
            match want {
                Want::Search(plan) => {
                    let arena = memory_of(&state.pool).arena();
                    let length = arena.log().state().length;
                    let operation = |sequence| arena.log().operation(sequence).map(operation);
                    answer = match plan {
                        CommitPlan::Hashes { range, .. } => {
                            Answer::Searched(symm_agreement::CommitOutcome::hashes(range, |at| {
                                arena.log().hash_at(at)
                            }))
                        }
                        CommitPlan::Recall { sequence, .. } => Answer::Searched(
                            symm_agreement::CommitOutcome::recalled(sequence, length, operation),
                        ),
                        CommitPlan::Register { .. } | CommitPlan::Open { .. } => {
                            bail!("a registration or an opening is no search");
                        }
                    };
                }
                want => {
                    task.waits = matches!(&want, Want::Store(request) if request.waits_until().is_some());
                    tell!(self, "rank {rank}, {}: {want:?}", self.ranks[rank as usize].doing());
                    return self.give(rank, want);
                }
            }
        }
    }

    /// Executes a request of the state machine of the rank's meeting.
    fn give(&mut self, rank: u32, want: Want) -> Result<(), Violation> {
        let token = self.random.next();
        self.rank(rank).token = token;
        if !matches!(want, Want::Done(..) | Want::Store(_) | Want::Search(_)) {
            self.count_action(rank, matches!(want, Want::Quiesce(_) | Want::Deregister(_)))?;
        }
        match want {
            Want::Done(said, read) => return self.end(rank, said, &read),
            Want::Store(request) => {
                let task = self.rank(rank).task.as_mut().filter(|task| task.record_prefix.is_none());
                if let (Some(task), StoreRequest::Agreement(Request::Post { key, .. })) = (task, &request) {
                    task.record_prefix = key.rsplit_once('/').map(|(prefix, _)| prefix.to_owned());
                }
                let request = match self.speaks_otherwise(rank) {
                    true => of_other_version(request),
                    false => request,
                };
                let over = request.waits_until().is_some() && self.ranks[rank as usize].is_over();
                self.ask(rank, Goal::Meeting(token), request)?;
                if over {
                    let over = self.rank(rank).over();
                    self.answer_soon(rank, token, over);
                }
            }
            Want::Register { segments, joined, until, verdict_key } => {
                self.answer_at(
                    until,
                    rank,
                    token,
                    Answer::Registered(RegistrationOutcome::Blocked, Vec::new()),
                );
                self.watched.push((verdict_key, rank, token));
                return self.register(rank, token, segments, &joined);
            }
            Want::Quiesce(until) => match self.wait_until_idle(rank)? {
                Some(release) => self.answer_soon(rank, token, Answer::Quiet(release)),
                None => self.answer_at(until, rank, token, Answer::Quiet(Release::Blocked {})),
            },
            Want::Deregister(until) => {
                self.answer_at(until, rank, token, Answer::Deregistered(Release::Blocked {}));
                let release = self.deregister(rank)?;
                self.answer_soon(rank, token, Answer::Deregistered(release));
            }
            Want::OpenSegments(agreed) => {
                let outcome = self.open_segments(rank, &agreed)?;
                self.answer_soon(rank, token, Answer::Opened(outcome));
            }
            Want::Share(records) => self.soon(Event::Share(rank, token, records)),
            Want::Open(agreement) => {
                let outcome = self.open(rank, &agreement)?;
                self.answer_soon(rank, token, Answer::Opened(outcome));
            }
            Want::Search(_) => {}
        }
        Ok(())
    }
}

/// Changes the culprit's record of a rendezvous so that it differs from the records of its peers. `how`, the number in
/// [`Trouble::MeetsOtherwise`], selects the change. The changes 0, 1, 2 and 4 also change the name of the meeting. They
/// add 1000 to a number, so that no other meeting of the run has the new name.
fn differ(how: usize, record: &mut RendezvousRecord) {
    match how {
        0 => record.group.epoch += 1000,
        1 => record.group.uid += 1000,
        2 => record.generation += 1000,
        3 => record.members += 1,
        4 => record.number += 1000,
        5 => record.shared_devices = true,
        6 => record.readiness = protocol::SharingReadiness::Failed { cause: "no memory".into() },
        7 => record.readiness = protocol::SharingReadiness::Capturing,
        8 => record.subject = protocol::Subject::Persistent { id: 7 },
        9 => {
            let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 1 };
            record.subject = protocol::Subject::Pool { pool, ordinal: 3, log: LogPoint::default() };
        }
        10 => record.bytes += 1,
        11 => record.export.bytes += 1,
        12 => record.offset += 1,
        // A rank of another process, whose memory has no handle.
        13 => (record.site.process, record.export.handle) = (2, Handle::NONE),
        14 => record.site.host += 1,
        _ => record.site.unreachable.push(Uuid { low: 0, high: 0 }),
    }
}
