//! A world of ranks, a store and a library that registers windows, under one seeded scheduler.
//!
//! One thread and a virtual clock in microseconds. Every request to the store and to the library takes a drawn
//! time in each direction; events at the same moment happen in a drawn order. A rank sees the clock with an
//! offset of its own.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use caching_alloc::{
    core::symmetric::{Geometry, Placement, SymmetricArena},
    host::HostSource,
};
use symm_mem::agreement::{
    Capabilities, Commit, Conclusion, GroupId, Input, Outcome, Output, Policy, PoolId, Readiness, Seat,
    Segment, Situation, Verdict, WindowSupport,
};

use crate::end_to_end::{
    convert::{operation, point, segment},
    random::Random,
};

/// What a rank does next.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Allocate so many bytes.
    Allocate { bytes: u64 },
    /// Free what was allocated first and is still there.
    Free,
    /// Commit the pool for a group.
    Commit { group: u64, policy: Policy, deadline: Duration, readiness: Readiness },
    /// Work on something else.
    Pause(u64),
}

/// A commit as it went on one rank.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) rank: u32,
    pub(crate) group: u64,
    pub(crate) round: u64,
    pub(crate) conclusion: Conclusion,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) deadline: u64,
    pub(crate) entered_registration: bool,
}

/// A rank's call of the library: the segments to register.
#[derive(Debug)]
struct Call {
    segments: Vec<Segment>,
    token: u64,
    open: bool,
}

struct Rank {
    program: std::vec::IntoIter<Action>,
    arena: SymmetricArena,
    blocks: VecDeque<Placement>,
    seats: BTreeMap<u64, Seat>,
    rounds: BTreeMap<u64, u64>,
    commit: Option<Running>,
    clock_offset: Duration,
    dead: bool,
    stopped_until: u64,
}

struct Running {
    machine: Commit,
    group: u64,
    round: u64,
    segments: Vec<Segment>,
    begun: u64,
    deadline: u64,
    token: u64,
    entered_registration: bool,
}

#[derive(Debug)]
enum Event {
    /// The rank goes on with its program.
    Resume(u32),
    /// The store takes a request.
    Request(u32, u64, Output),
    /// An answer arrives at the rank.
    Answer(u32, u64, Input),
    /// The rank dies.
    Kill(u32),
    /// The rank stops for a while.
    Stop(u32, u64),
}

/// What is wrong with this world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The rank dies at this time.
    pub(crate) kill: Option<(u32, u64)>,
    /// The rank stops at this time, for so long.
    pub(crate) stop: Option<(u32, u64, u64)>,
    /// The rank's registration of this number fails.
    pub(crate) registration: Option<(u32, u32)>,
    /// Ranks whose library finds at registration that it has no windows.
    pub(crate) without_windows: Vec<u32>,
    /// The store stops answering at this time.
    pub(crate) store_dies: Option<u64>,
}

pub(crate) struct World {
    pub(crate) random: Random,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pending: HashMap<u64, Event>,
    ranks: Vec<Rank>,
    groups: BTreeMap<u64, Vec<u32>>,
    store: HashMap<String, Vec<u8>>,
    counters: HashMap<String, u64>,
    waiting: Vec<(String, u32, u64)>,
    watched: Vec<(String, u32, u64)>,
    calls: HashMap<(u64, u32), Vec<Call>>,
    registrations: HashMap<u32, u32>,
    faults: Faults,
    slowest: u64,
    pub(crate) ended: Vec<Ended>,
    pub(crate) trace: u64,
}

impl World {
    pub(crate) fn new(
        mut random: Random,
        groups: BTreeMap<u64, Vec<u32>>,
        programs: Vec<Vec<Action>>,
    ) -> Self {
        let ranks = programs
            .into_iter()
            .map(|program| {
                // Every rank's memory lies elsewhere.
                let source = HostSource::at((1 + random.below(1 << 20)) << 21, 1 << 40);
                let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
                Rank {
                    program: program.into_iter(),
                    arena: SymmetricArena::new(Arc::new(source), geometry)
                        .expect("the host's steps are small"),
                    blocks: VecDeque::new(),
                    seats: BTreeMap::new(),
                    rounds: BTreeMap::new(),
                    commit: None,
                    clock_offset: Duration::from_micros(random.below(1 << 40)),
                    dead: false,
                    stopped_until: 0,
                }
            })
            .collect();
        let slowest = 1 + *random.pick(&[5, 50, 2000]);
        Self {
            random,
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            ranks,
            groups,
            store: HashMap::new(),
            counters: HashMap::new(),
            waiting: Vec::new(),
            watched: Vec::new(),
            calls: HashMap::new(),
            registrations: HashMap::new(),
            faults: Faults::default(),
            slowest,
            ended: Vec::new(),
            trace: 0,
        }
    }

    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.ranks[rank as usize].dead
    }

    pub(crate) fn is_poisoned(&self, rank: u32, group: u64) -> bool {
        self.ranks[rank as usize].seats.get(&group).is_some_and(|seat| seat.poison().is_some())
    }

    /// Lets all ranks run to their end.
    pub(crate) fn run(&mut self, faults: Faults) {
        if let Some((rank, at)) = faults.kill {
            self.at(at, Event::Kill(rank));
        }
        if let Some((rank, at, for_long)) = faults.stop {
            self.at(at, Event::Stop(rank, for_long));
        }
        self.faults = faults;
        for rank in 0..self.ranks.len() as u32 {
            let skew = self.delay();
            self.at(skew, Event::Resume(rank));
        }
        while let Some(Reverse((time, order, id))) = self.events.pop() {
            self.now = time;
            let event = self.pending.remove(&id).expect("every scheduled event is there once");
            self.trace = Random(self.trace ^ time ^ order).next() ^ id;
            self.happen(event);
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            assert!(rank.dead || rank.commit.is_none(), "rank {index} hangs in a commit");
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let order = self.random.next();
        self.events.push(Reverse((time, order, self.sequence)));
        self.pending.insert(self.sequence, event);
    }

    fn delay(&mut self) -> u64 {
        let slowest = self.slowest;
        1 + self.random.below(slowest)
    }

    fn soon(&mut self, event: Event) {
        let time = self.now + self.delay();
        self.at(time, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Kill(rank) => {
                self.ranks[rank as usize].dead = true;
                self.waiting.retain(|(_, waiting, _)| *waiting != rank);
            }
            Event::Stop(rank, for_long) => self.ranks[rank as usize].stopped_until = self.now + for_long,
            Event::Request(rank, token, request) => self.serve(rank, token, request),
            Event::Resume(rank) => {
                if let Some(event) = self.held_up(rank, Event::Resume(rank)) {
                    let Event::Resume(rank) = event else { unreachable!("it is given back as it was") };
                    self.resume(rank);
                }
            }
            Event::Answer(rank, token, input) => {
                if let Some(Event::Answer(rank, token, input)) =
                    self.held_up(rank, Event::Answer(rank, token, input))
                {
                    self.answer(rank, token, input);
                }
            }
        }
    }

    /// The event, unless the rank is dead (it is lost) or stopped (it comes later).
    fn held_up(&mut self, rank: u32, event: Event) -> Option<Event> {
        let state = &self.ranks[rank as usize];
        if state.dead {
            return None;
        }
        if state.stopped_until > self.now {
            let later = state.stopped_until;
            self.at(later, event);
            return None;
        }
        Some(event)
    }

    fn resume(&mut self, rank: u32) {
        let Some(action) = self.ranks[rank as usize].program.next() else { return };
        match action {
            Action::Pause(time) => {
                let later = self.now + time;
                return self.at(later, Event::Resume(rank));
            }
            Action::Allocate { bytes } => self.allocate(rank, bytes),
            Action::Free => self.free(rank),
            Action::Commit { group, policy, deadline, readiness } => {
                return self.begin(rank, group, policy, deadline, readiness);
            }
        }
        self.soon(Event::Resume(rank));
    }

    fn allocate(&mut self, rank: u32, bytes: u64) {
        let rank = &mut self.ranks[rank as usize];
        let placed = rank.arena.allocate(bytes).expect("the host has room");
        rank.blocks.push_back(placed.placement);
    }

    fn free(&mut self, rank: u32) {
        let rank = &mut self.ranks[rank as usize];
        if let Some(placement) = rank.blocks.pop_front() {
            rank.arena.free(placement).expect("it was allocated");
        }
    }

    fn begin(&mut self, rank: u32, group: u64, policy: Policy, deadline: Duration, readiness: Readiness) {
        let members = self.groups[&group].clone();
        let (now, token) = (self.now, self.random.next());
        let state = &mut self.ranks[rank as usize];
        let seat = state.seats.entry(group).or_insert_with(|| {
            let pool = PoolId { domain: 1, generation: 1, pool: 0 };
            Seat::new(pool, GroupId { uid: group, epoch: 0 }, rank, members)
        });
        let round = state.rounds.entry(group).or_default();
        *round += 1;
        let (machine, segments) = seat.begin(Situation {
            policy,
            deadline,
            readiness,
            capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
            enqueued: Vec::new(),
            address_space_left: None,
            log: point(state.arena.log().state()),
            log_since: state.arena.log().recent().next().map_or(0, |operation| operation.seq),
            segments: state.arena.segments().iter().map(segment).collect(),
        });
        state.commit = Some(Running {
            machine,
            group,
            round: *round,
            segments,
            begun: now,
            deadline: deadline.as_micros() as u64,
            token,
            entered_registration: false,
        });
        self.answer(rank, token, Input::Start);
    }

    /// An answer reaches the rank's machine, and what it asks next is sent off.
    fn answer(&mut self, rank: u32, token: u64, input: Input) {
        let fresh = self.random.next();
        let state = &mut self.ranks[rank as usize];
        let now = Duration::from_micros(self.now) + state.clock_offset;
        let Some(running) = state.commit.as_mut().filter(|running| running.token == token) else { return };
        running.token = fresh;
        let output = running.machine.step(input, now);
        match output {
            Output::Done(conclusion) => self.end(rank, conclusion),
            Output::Hashes { lengths } => {
                let hashes = lengths.iter().map(|length| state.arena.log().hash_at(*length)).collect();
                self.answer(rank, fresh, Input::Hashes(hashes));
            }
            Output::Recall { sequence } => {
                let operation = state.arena.log().operation(sequence).map(operation);
                self.answer(rank, fresh, Input::Operation(operation));
            }
            Output::Register { segments, until, verdict_key } => {
                self.watched.push((verdict_key, rank, fresh));
                let until = (until - state.clock_offset).as_micros() as u64;
                self.register(rank, fresh, segments as usize, until);
            }
            Output::Await { key, until } => {
                let until = (until - state.clock_offset).as_micros() as u64;
                self.at(until.max(self.now), Event::Answer(rank, fresh, Input::Expired));
                self.soon(Event::Request(rank, fresh, Output::Await { key, until: Duration::ZERO }));
            }
            request => self.soon(Event::Request(rank, fresh, request)),
        }
    }

    fn end(&mut self, rank: u32, conclusion: Conclusion) {
        let state = &mut self.ranks[rank as usize];
        let Some(running) = state.commit.take() else { return };
        let Running { group, round, segments, begun, deadline, entered_registration, .. } = running;
        let Some(seat) = state.seats.get_mut(&group) else { return };
        for key in seat.conclude(&conclusion, &segments) {
            self.store.remove(&key);
            self.counters.remove(&key);
        }
        let ended = self.now;
        self.ended.push(Ended {
            rank,
            group,
            round,
            conclusion,
            begun,
            ended,
            deadline,
            entered_registration,
        });
        self.soon(Event::Resume(rank));
    }

    fn serve(&mut self, rank: u32, token: u64, request: Output) {
        let input = if self.faults.store_dies.is_some_and(|at| at <= self.now) {
            Input::StoreFailed
        } else {
            match request {
                Output::Set { key, value } => {
                    self.store.insert(key, value);
                    Input::Stored
                }
                Output::Add { key } => {
                    let count = self.counters.entry(key).or_default();
                    *count += 1;
                    Input::Count(*count)
                }
                Output::Fetch { keys } => {
                    Input::Values(keys.iter().map(|key| self.store.get(key).cloned()).collect())
                }
                Output::Propose { key, value } => {
                    let stands = self.store.entry(key.clone()).or_insert(value).clone();
                    let (woken, waiting) =
                        std::mem::take(&mut self.waiting).into_iter().partition(|(at, ..)| *at == key);
                    self.waiting = waiting;
                    let woken: Vec<(String, u32, u64)> = woken;
                    self.free_the_blocked(&key, &stands);
                    for (_, rank, token) in woken {
                        self.soon(Event::Answer(rank, token, Input::Stands(stands.clone())));
                    }
                    Input::Stands(stands)
                }
                Output::Await { key, .. } => match self.store.get(&key) {
                    Some(stands) => Input::Stands(stands.clone()),
                    None => return self.waiting.push((key, rank, token)),
                },
                other => unreachable!("{other:?} is no request to the store"),
            }
        };
        self.soon(Event::Answer(rank, token, input));
    }

    /// A verdict of death frees those that are blocked in the registration, or not: that they are is no promise.
    fn free_the_blocked(&mut self, key: &str, stands: &[u8]) {
        let watching: Vec<(u32, u64)> = self
            .watched
            .extract_if(.., |(watched, ..)| watched == key)
            .map(|(_, rank, token)| (rank, token))
            .collect();
        if matches!(Verdict::decode(stands), Ok(Verdict::Poison { .. })) {
            for (rank, token) in watching {
                let outcome = Outcome::Failed { ordinal: None, cause: "aborted".to_owned() };
                if !self.random.one_in(4) {
                    self.soon(Event::Answer(rank, token, Input::Registered(outcome)));
                }
            }
        }
    }

    /// The library: the k-th call of one member pairs with the k-th of the others, and nothing returns before
    /// all are in.
    fn register(&mut self, rank: u32, token: u64, count: usize, until: u64) {
        let Some(running) = self.ranks[rank as usize].commit.as_mut() else { return };
        running.entered_registration = true;
        let (group, segments) = (running.group, running.segments[..count].to_vec());
        assert!(!self.is_poisoned(rank, group), "rank {rank} registers with the poisoned group {group}");
        let members = self.groups[&group].clone();
        let number = self.registrations.entry(rank).or_default();
        *number += 1;
        let fails = self.faults.registration == Some((rank, *number));
        let calls = self.calls.entry((group, rank)).or_default();
        calls.push(Call { segments, token, open: !fails });
        let turn = calls.len() - 1;
        self.at(until.max(self.now), Event::Answer(rank, token, Input::Registered(Outcome::Blocked)));
        if fails {
            let outcome = Outcome::Failed { ordinal: None, cause: "unhandled cuda error".to_owned() };
            return self.soon(Event::Answer(rank, token, Input::Registered(outcome)));
        }
        let met: Option<Vec<(u32, &Call)>> = members
            .iter()
            .map(|member| Some((*member, self.calls.get(&(group, *member))?.get(turn)?)))
            .collect();
        let Some(met) = met else { return };
        for (member, call) in &met {
            let mine = &met[0].1.segments;
            assert_eq!(&call.segments, mine, "rank {member} pairs other segments in group {group}");
        }
        if !met.iter().all(|(_, call)| call.open) {
            return;
        }
        let tokens: Vec<(u32, u64)> = met.iter().map(|(member, call)| (*member, call.token)).collect();
        for (member, token) in tokens {
            let outcome = match self.faults.without_windows.contains(&member) {
                true => Outcome::Unsupported { reason: "no peer access".to_owned() },
                false => Outcome::Registered,
            };
            self.soon(Event::Answer(member, token, Input::Registered(outcome)));
        }
    }
}
