//! Members of a meeting, a store, and a virtual clock: seeded schedules for the common parts of rendezvous and
//! exchange. Requests and answers take random times. A request may be made twice, as by a client that has lost an
//! answer. Every member's clock has its own offset.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::Duration,
};

use crate::{
    agreement::{
        FLOORS, Input as Answer, Output as Ask,
        meeting::{Conclusion, Contribution, Input, Meeting, Outcome, Output},
    },
    simulation::Random,
};

/// The time that a meeting may take, in milliseconds.
pub(crate) const DEADLINE: u64 = 1000;

/// The fault of one rank, if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// It dies at this time.
    Dies(u64),
    /// The store does not answer it from this time on.
    CutOff(u64),
    /// It never arrives.
    Absent,
    /// It cannot open the memory that the others share.
    CannotOpen,
    /// Its contribution differs from the others'.
    Differs(usize),
}

impl Fault {
    /// Draws a fault of one rank, with `differences` ways to differ.
    pub(crate) fn draw(random: &mut Random, differences: usize) -> Self {
        let (time, early) = (random.below(900_000), random.below(5_000));
        *random.pick(&[
            Self::None,
            Self::None,
            Self::Dies(time),
            Self::Dies(early),
            Self::CutOff(time),
            Self::CutOff(early),
            Self::Absent,
            Self::CannotOpen,
            Self::Differs(time as usize % differences),
        ])
    }
}

enum Event {
    Request(u32, u64, Ask),
    Answer(u32, u64, Input),
}

/// A meeting in virtual time, in µs.
pub(crate) struct World<C: Contribution> {
    random: Random,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pending: HashMap<u64, Event>,
    members: Vec<Option<Meeting<C>>>,
    offsets: Vec<u64>,
    tokens: Vec<u64>,
    begun: Vec<u64>,
    store: BTreeMap<String, Vec<u8>>,
    counters: BTreeMap<String, u64>,
    waiting: Vec<(String, u32, u64)>,
    faulty: u32,
    fault: Fault,
    slowest: u64,
    repeated: bool,
    /// The members that were told to open memory.
    pub(crate) told_to_open: Vec<bool>,
    /// The conclusion of each member.
    pub(crate) ended: BTreeMap<u32, Conclusion<C>>,
}

impl<C: Contribution> World<C> {
    pub(crate) fn new(mut random: Random, members: Vec<Meeting<C>>, faulty: u32, fault: Fault) -> Self {
        let count = members.len();
        // The members' arrival times spread by up to `skew` µs: the last one arrives before a third of the deadline.
        let skew = *random.pick(&[1, 1000, 300_000]);
        let slowest = *random.pick(&[1, 50, 2000]);
        let mut world = Self {
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            members: members.into_iter().map(Some).collect(),
            offsets: (0..count).map(|_| random.below(1 << 40)).collect(),
            tokens: vec![0; count],
            begun: (0..count).map(|_| random.below(skew)).collect(),
            store: BTreeMap::new(),
            counters: BTreeMap::new(),
            waiting: Vec::new(),
            faulty,
            fault,
            slowest,
            repeated: false,
            told_to_open: vec![false; count],
            ended: BTreeMap::new(),
            random,
        };
        for rank in 0..count as u32 {
            if (fault, rank) != (Fault::Absent, faulty) {
                world.at(world.begun[rank as usize], Event::Answer(rank, 0, Input::Store(Answer::Start)));
            }
        }
        world
    }

    /// Runs until no event is left. Present members end in time; if all succeed, nothing is left in the store.
    pub(crate) fn run(&mut self) {
        while let Some(Reverse((time, _, id))) = self.events.pop() {
            self.now = time;
            match self.pending.remove(&id).expect("every event is there once") {
                Event::Request(rank, ..) | Event::Answer(rank, ..) if self.is_dead(rank) => {}
                Event::Request(rank, token, request) => self.serve(rank, token, request),
                Event::Answer(rank, token, input) => self.answer(rank, token, input),
            }
        }
        for rank in 0..self.members.len() as u32 {
            let gone = rank == self.faulty && matches!(self.fault, Fault::Dies(_) | Fault::Absent);
            assert!(gone || self.ended.contains_key(&rank), "rank {rank} hangs");
        }
        // A repeated request that arrives after the end writes a key that nobody reads.
        let well = self.ended.values().filter(|end| end.result.is_ok()).count();
        if well == self.members.len() && !self.repeated && !matches!(self.fault, Fault::CutOff(_)) {
            assert!(self.store.is_empty() && self.counters.is_empty(), "left: {:?}", self.store.keys());
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.random.next(), self.sequence)));
        self.pending.insert(self.sequence, event);
    }

    fn soon(&mut self, event: Event) {
        let time = self.now + 1 + self.random.below(self.slowest);
        self.at(time, event);
    }

    fn is_dead(&self, rank: u32) -> bool {
        rank == self.faulty && matches!(self.fault, Fault::Dies(at) if at <= self.now)
    }

    fn answer(&mut self, rank: u32, token: u64, input: Input) {
        let at = rank as usize;
        if self.tokens[at] != token {
            return;
        }
        self.tokens[at] += 1;
        let token = self.tokens[at];
        let offset = self.offsets[at];
        let Some(member) = self.members[at].as_mut() else { return };
        match member.step(input, Duration::from_micros(self.now + offset)) {
            Output::Done(end) => {
                self.members[at] = None;
                for key in &end.read {
                    self.store.remove(key);
                    self.counters.remove(key);
                }
                let took = self.now - self.begun[at];
                let most = Duration::from_millis(DEADLINE) + FLOORS;
                assert!(u128::from(took) <= most.as_micros(), "rank {rank} took {took} us");
                self.ended.insert(rank, end);
            }
            Output::Open { until, .. } => {
                self.told_to_open[at] = true;
                let outcome = match (self.fault, rank == self.faulty) {
                    (Fault::CannotOpen, true) => Outcome::Failed { cause: "no addresses".into() },
                    // A member that looks for the dead one notices.
                    (Fault::Dies(when), false) if when <= self.now => {
                        Outcome::Alone { gone: vec![self.faulty] }
                    }
                    _ => Outcome::Mapped,
                };
                assert!(until.as_micros() as u64 > self.now + offset);
                self.soon(Event::Answer(rank, token, Input::Opened(outcome)));
            }
            Output::Store(request) => {
                if let Ask::Await { until, .. } = &request {
                    let until = (until.as_micros() as u64).saturating_sub(offset).max(self.now);
                    self.at(until, Event::Answer(rank, token, Input::Store(Answer::Expired)));
                }
                let repeats = matches!(request, Ask::Set { .. } | Ask::Add { .. } | Ask::Propose { .. });
                if repeats && self.random.one_in(8) {
                    self.repeated = true;
                    self.soon(Event::Request(rank, u64::MAX, request.clone()));
                }
                self.soon(Event::Request(rank, token, request));
            }
        }
    }

    fn serve(&mut self, rank: u32, token: u64, request: Ask) {
        if rank == self.faulty && matches!(self.fault, Fault::CutOff(at) if at <= self.now) {
            return self.soon(Event::Answer(rank, token, Input::Store(Answer::StoreFailed)));
        }
        let answer = match request {
            Ask::Set { key, value } => {
                self.store.insert(key, value);
                Answer::Stored
            }
            Ask::Post { key, value } => {
                let stands = self.store.entry(key).or_insert_with(|| value.clone());
                assert_eq!(*stands, value, "a member posts once");
                Answer::Stored
            }
            Ask::Add { key } => {
                let count = self.counters.entry(key).or_default();
                *count += 1;
                Answer::Count(*count)
            }
            Ask::Fetch { keys } => {
                Answer::Values(keys.iter().map(|key| self.store.get(key).cloned()).collect())
            }
            Ask::Propose { key, value } => {
                let stands = self.store.entry(key.clone()).or_insert(value).clone();
                for (at, rank, token) in std::mem::take(&mut self.waiting) {
                    match at == key {
                        true => {
                            let stands = Input::Store(Answer::Stands(stands.clone()));
                            self.soon(Event::Answer(rank, token, stands));
                        }
                        false => self.waiting.push((at, rank, token)),
                    }
                }
                Answer::Stands(stands)
            }
            Ask::Await { key, .. } => match self.store.get(&key) {
                Some(stands) => Answer::Stands(stands.clone()),
                None => return self.waiting.push((key, rank, token)),
            },
            other => panic!("{other:?} is no request to the store"),
        };
        self.soon(Event::Answer(rank, token, Input::Store(answer)));
    }
}
