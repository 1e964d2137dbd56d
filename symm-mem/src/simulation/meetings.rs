//! Meetings: how ranks begin them, and what their machines ask for.

use std::{collections::BTreeSet, mem, time::Duration};

use cuda_driver::DevicePtr;

use super::{
    Violation,
    library::{Extent, Life, Met},
    rank::{Home, Membership, Task},
    scenario::Subject,
    trouble::Trouble,
    work::{Answer, Want, Work},
    world::{Event, World, tell},
};
use crate::{
    CommitOptions, Standing,
    agreement::{
        Capabilities, Input, LogPoint, Outcome, Output, Policy, PoolId, Readiness, Release, WindowSupport,
        hash::chain,
    },
    commit::{lock, offer},
    pool,
    rendezvous::protocol::{self, Handles, Meeting, Record, Uuid},
};

impl World {
    pub(super) fn begin(
        &mut self,
        rank: u32,
        work: Work,
        round: u64,
        epoch: u64,
        deadline: Duration,
    ) -> Result<(), Violation> {
        let (begun, token) = (self.now, self.random.next());
        let deadline = deadline.as_micros() as u64;
        let state = self.rank(rank);
        state.token = token;
        let history = state.history().len();
        let (registered, waits, at) = (false, false, 0);
        state.task = Some(Task { work, round, epoch, begun, deadline, history, registered, waits, at });
        self.answer(rank, token, Answer::Store(Input::Start))
    }

    pub(super) fn commit(
        &mut self,
        rank: u32,
        group: u64,
        policy: Policy,
        deadline: Duration,
    ) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.is_culprit(rank));
        let (library, windows) = self.scenario.library(rank);
        let left = self.scenario.address_space(rank);
        let state = self.rank(rank);
        let Some(membership) = state.groups.get_mut(&group) else {
            self.soon(Event::Resume(rank));
            return Ok(());
        };
        let (id, members, round) = (membership.id, membership.members.clone(), membership.commits);
        membership.commits += 1;
        if trouble == Trouble::HalfEnqueued && culprit && !mem::replace(&mut state.odd, true) {
            membership.operations += 1;
        }
        let fails = trouble == Trouble::PrepareFails && culprit && round == 1;
        let readiness = match fails {
            true => Readiness::Failed { ordinal: None, cause: "misaligned".to_owned() },
            false => Readiness::Ready,
        };
        let found = offer::Found {
            readiness,
            capabilities: Capabilities { library, windows },
            enqueued: state.enqueued(),
            address_space_left: Some(left),
        };
        let seated = state.pool.seated(id, members).map_err(Violation::of)?;
        let options = CommitOptions::default().policy(policy).deadline(deadline);
        let (machine, segments) = state.pool.begin_commit(&mut lock(&seated), options, found);
        let machine = Box::new(machine);
        let work = Work::Commit { machine, seated, group, segments, places: Vec::new(), serials: Vec::new() };
        self.begin(rank, work, round, id.epoch, deadline)
    }

    pub(super) fn retire(
        &mut self,
        rank: u32,
        nth: u64,
        count: u64,
        deadline: Duration,
    ) -> Result<(), Violation> {
        let keeps = self.scenario.trouble == Trouble::KeepsBlocks && self.scenario.is_culprit(rank);
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
        let mut seats = Vec::new();
        for (uid, membership) in &state.groups {
            let seated =
                state.pool.seated(membership.id, membership.members.clone()).map_err(Violation::of)?;
            if lock(&seated).seat.poison().is_none() {
                seats.push((*uid, seated));
            }
        }
        let found = pool::RetirementFound { readiness: Readiness::Ready, enqueued: state.enqueued() };
        let only: Vec<_> = seats.iter().map(|(_, seated)| seated.clone()).collect();
        let machine = state.pool.begin_retirement(&ordinals, &only, found, deadline);
        let round = state.retirements;
        state.retirements += 1;
        self.begin(rank, Work::Retire { machine, ordinals, seats }, round, 0, deadline)
    }

    pub(super) fn meet(
        &mut self,
        rank: u32,
        group: u64,
        what: Subject,
        deadline: Duration,
    ) -> Result<(), Violation> {
        let otherwise = match self.scenario.trouble {
            Trouble::MeetsOtherwise(how) if self.scenario.is_culprit(rank) => Some(how),
            _ => None,
        };
        let capturing = self.rank(rank).capture.is_some();
        let token = self.random.next();
        let state = self.rank(rank);
        let block = match what {
            Subject::Block { nth } => state.block(nth).map(|(block, _)| block.placement()),
            Subject::Persistent { .. } => None,
        };
        let bytes_of_block = match what {
            Subject::Block { nth } => state.block(nth).map_or(0, |(block, _)| block.bytes()),
            Subject::Persistent { .. } => 0,
        };
        let (subject, home, identity, segment, offset, bytes) = match block.zip(block.and_then(|it| {
            let (log, bytes) = state.made(it.ordinal)?;
            Some((log, bytes, state.extent(it.ordinal)?.identity))
        })) {
            Some((place, (log, segment, identity))) => {
                let (pool, ordinal) = (state.pool.id(), place.ordinal);
                let subject = protocol::Subject::Pool { pool, ordinal, log };
                (subject, Home::Segment(ordinal), identity, segment, place.offset, bytes_of_block)
            }
            None => {
                let id = match what {
                    Subject::Persistent { id } => id,
                    Subject::Block { .. } => 2,
                };
                (protocol::Subject::Persistent { id }, Home::Persistent(id), id, 2 << 20, 0, 4096)
            }
        };
        let Some(membership) = state.groups.get_mut(&group) else {
            self.soon(Event::Resume(rank));
            return Ok(());
        };
        let (round, life, id) = (membership.meetings, membership.life, membership.id);
        membership.meetings += 1;
        let members = membership.members.clone();
        let capturing = capturing && matches!(home, Home::Segment(_));
        let mut record = Record {
            group: id,
            life,
            number: round,
            rank,
            members: chain(0, members.iter().map(|rank| u64::from(*rank))),
            deadline_ms: deadline.as_millis() as u64,
            readiness: if capturing { protocol::Readiness::Capturing } else { protocol::Readiness::Ready },
            shared_devices: false,
            subject,
            segment,
            offset,
            bytes,
            mapped: membership.homes.get(&home).map(|(since, _)| *since),
            host: 1,
            process: rank.into(),
            device: Uuid { low: rank.into(), high: 0 },
            unreachable: Vec::new(),
            handles: Handles { descriptor: true, fabric: None, card: Vec::new(), token },
        };
        // A life is an epoch of its own to whoever looks at the meetings.
        let mut epoch = id.epoch << 32 | life;
        if let Some(how) = otherwise.filter(|_| !mem::replace(&mut state.odd, true)) {
            differ(how, &mut record);
            // Under another name it meets nobody.
            if matches!(how, 0 | 1 | 2 | 4) {
                epoch = u64::MAX;
            }
        }
        let number = record.number;
        let machine = Meeting::new(record, members);
        self.offers.insert(token, (rank, identity));
        let work = Work::Meet { machine, group, home, number, token, peers: None };
        self.begin(rank, work, round, epoch, deadline)
    }

    /// The rank looks for its peers' memory.
    pub(super) fn share(&mut self, rank: u32, token: u64, records: &[Record]) {
        let (mut gone, mut mapped) = (Vec::new(), Vec::new());
        for record in records {
            match self.offers.get(&record.handles.token) {
                Some((owner, identity)) if !self.ranks[*owner as usize].dead => mapped.push(*identity),
                _ => gone.push(record.rank),
            }
        }
        let fails = self.scenario.trouble == Trouble::CannotMap && self.scenario.is_culprit(rank);
        let (outcome, mapped) = if fails {
            (protocol::Outcome::Failed { cause: "no addresses".to_owned() }, None)
        } else if gone.is_empty() {
            (protocol::Outcome::Mapped, Some(mapped))
        } else {
            (protocol::Outcome::Alone { gone }, None)
        };
        self.soon(Event::Answer(rank, token, Answer::Shared(outcome, mapped)));
    }

    /// An answer reaches the rank's machine, and what it asks next is sent off.
    pub(super) fn answer(&mut self, rank: u32, token: u64, answer: Answer) -> Result<(), Violation> {
        let now = self.now;
        let state = &mut self.ranks[rank as usize];
        if state.token != token {
            return Ok(());
        }
        let time = state.time(now);
        let Some(task) = state.task.as_mut() else { return Ok(()) };
        let mut answer = answer;
        loop {
            let want = task.work.step(answer, time);
            task.waits = false;
            task.at = want.code();
            match want {
                Want::Hashes(lengths) => {
                    let arena = state.pool.memory().arena();
                    let hashes = lengths.iter().map(|length| arena.log().hash_at(*length)).collect();
                    answer = Answer::Store(Input::Hashes(hashes));
                }
                Want::Recall(sequence) => {
                    let arena = state.pool.memory().arena();
                    let operation = arena.log().operation(sequence).map(offer::operation);
                    answer = Answer::Store(Input::Operation(operation));
                }
                want => {
                    task.waits = matches!(want, Want::Store(Output::Await { .. }));
                    tell!(self, "rank {rank}, {}: {want:?}", self.ranks[rank as usize].doing());
                    return self.give(rank, want);
                }
            }
        }
    }

    /// Does what the rank's machine wants.
    fn give(&mut self, rank: u32, want: Want) -> Result<(), Violation> {
        let token = self.random.next();
        self.rank(rank).token = token;
        let until = |world: &Self, until| world.ranks[rank as usize].world_time(until);
        match want {
            Want::Done(end) => return self.end(rank, end),
            Want::Store(request) => {
                let over = matches!(request, Output::Await { .. }) && self.ranks[rank as usize].is_over();
                self.ask(rank, token, request);
                if over {
                    self.soon(Event::Answer(rank, token, Answer::Store(Input::Expired)));
                }
            }
            Want::Register { segments, joined, until: at, verdict_key } => {
                let at = until(self, at);
                self.at(at, Event::Answer(rank, token, Answer::Registered(Outcome::Blocked, Vec::new())));
                self.watched.push((verdict_key, rank, token));
                return self.register(rank, token, segments, &joined);
            }
            Want::Quiesce(at) => {
                let release = match self.scenario.trouble {
                    Trouble::NeverAtRest if self.scenario.is_culprit(rank) => {
                        Release::Failed { cause: "an illegal address".to_owned() }
                    }
                    Trouble::RestsLate if self.scenario.is_culprit(rank) => {
                        let at = until(self, at);
                        self.at(at, Event::Answer(rank, token, Answer::Quiet(Release::Blocked {})));
                        return Ok(());
                    }
                    _ => Release::Done {},
                };
                self.soon(Event::Answer(rank, token, Answer::Quiet(release)));
            }
            Want::Deregister(at) => {
                let at = until(self, at);
                self.at(at, Event::Answer(rank, token, Answer::Deregistered(Release::Blocked {})));
                let release = self.deregister(rank)?;
                self.soon(Event::Answer(rank, token, Answer::Deregistered(release)));
            }
            Want::Share(records) => self.soon(Event::Share(rank, token, records)),
            Want::Hashes(_) | Want::Recall(_) => {}
        }
        Ok(())
    }

    fn register(&mut self, rank: u32, token: u64, count: usize, joined: &[u32]) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.is_culprit(rank));
        let state = self.rank(rank);
        let Some(task) = state.task.as_mut() else { return Ok(()) };
        task.registered = true;
        let Work::Commit { seated, segments, group, .. } = &task.work else { return Ok(()) };
        let (id, group) = (lock(seated).seat.group(), *group);
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
            _ => self.enter(rank, token, id, extents, fails),
        }
    }

    /// The rank's call of the library.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        token: u64,
        group: Life,
        extents: Vec<Extent>,
        fails: bool,
    ) -> Result<(), Violation> {
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        let met = self.library.register(group, rank, extents, token, fails)?;
        self.may_register(&met, bytes)?;
        if fails {
            let outcome = Outcome::Failed { ordinal: None, cause: "unhandled cuda error".to_owned() };
            self.soon(Event::Answer(rank, token, Answer::Registered(outcome, Vec::new())));
        }
        for met in met {
            let without = match self.scenario.trouble {
                Trouble::WithoutWindows => true,
                Trouble::SomeWithoutWindows => self.scenario.is_culprit(met.rank),
                _ => false,
            };
            let answer = if without {
                self.library.take_back(group, met.rank, &met.serials);
                Answer::Registered(Outcome::Unsupported { reason: "no peer access".to_owned() }, Vec::new())
            } else {
                Answer::Registered(Outcome::Registered, met.serials)
            };
            self.soon(Event::Answer(met.rank, met.token, answer));
        }
        Ok(())
    }

    /// Whether these ranks may register `bytes` together: what the library does not look at, and then hangs or goes wrong.
    fn may_register(&self, met: &[Met], bytes: u64) -> Result<(), Violation> {
        let wrong = |rank: u32, what: &str| Err(Violation(format!("rank {rank} registers windows {what}")));
        for Met { rank, .. } in met {
            let state = &self.ranks[*rank as usize];
            if state.capture.is_some() {
                return wrong(*rank, "while it captures");
            }
            if self.scenario.address_space(*rank) < bytes {
                return wrong(*rank, "for which it has no addresses");
            }
            if self.scenario.library(*rank) != (self.scenario.release, WindowSupport::Available) {
                return wrong(*rank, "with another library than its peers, or one without");
            }
            let first = &self.ranks[met[0].rank as usize];
            let differs = |(uid, mine): (&u64, &Membership)| {
                let its = first.groups.get(uid).filter(|its| (its.id, its.life) == (mine.id, mine.life));
                its.is_some_and(|its| its.operations != mine.operations)
            };
            if state.groups.iter().any(differs) {
                return wrong(*rank, "with collectives that its peers have not enqueued");
            }
        }
        Ok(())
    }

    fn deregister(&mut self, rank: u32) -> Result<Release, Violation> {
        let fails = self.scenario.trouble == Trouble::DeregistrationFails && self.scenario.is_culprit(rank);
        let state = self.rank(rank);
        let Some(Task { work: Work::Retire { ordinals, seats, .. }, .. }) = &state.task else {
            return Ok(Release::Done {});
        };
        let mut windows = Vec::new();
        for (_, seated) in seats {
            let id = lock(seated).seat.group();
            for extent in ordinals.iter().filter_map(|ordinal| state.extent(*ordinal)) {
                let found = state.pool.lookup(DevicePtr(extent.address), 1, id);
                if let Some(Standing::Window { serial }) = found.map_err(Violation::of)?.map(|it| it.standing)
                {
                    windows.push((state.life(id), serial));
                }
            }
        }
        // Segments of one window follow each other.
        windows.dedup();
        for (id, serial) in windows {
            if fails {
                return Ok(Release::Failed { cause: "invalid usage".to_owned() });
            }
            self.library.deregister(id, rank, serial)?;
        }
        Ok(Release::Done {})
    }
}

/// The windows of the segments `ordinals`, of which those of `joined` share one with the segment before them; and of each
/// segment which it is.
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

/// What a rank can come to a rendezvous with that its peers have not.
fn differ(how: usize, record: &mut Record) {
    match how {
        0 => record.group.epoch += 1,
        1 => record.group.uid += 1000,
        2 => record.life += 1,
        3 => record.members += 1,
        4 => record.number += 1000,
        5 => record.shared_devices = true,
        6 => record.readiness = protocol::Readiness::Failed { cause: "no memory".into() },
        7 => record.readiness = protocol::Readiness::Capturing,
        8 => record.subject = protocol::Subject::Persistent { id: 7 },
        9 => {
            let pool = PoolId { domain: 1, generation: 1, pool: 1 };
            record.subject = protocol::Subject::Pool { pool, ordinal: 3, log: LogPoint::default() };
        }
        10 => record.bytes += 1,
        11 => record.segment += 1,
        12 => record.offset += 1,
        13 => record.handles.descriptor = false,
        14 => record.host += 1,
        _ => record.unreachable.push(Uuid { low: 0, high: 0 }),
    }
}
