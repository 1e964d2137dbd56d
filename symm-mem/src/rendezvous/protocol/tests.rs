//! The protocol under seeded schedules: members that come late or die, requests that are slow, repeated or lost, and
//! every difference between members.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::Duration,
};

use process_group::group::GroupId;
use proptest::prelude::*;

use super::{
    Conclusion, Decision, Ending, Handles, Input, Meeting, Outcome, Output, Readiness, Record,
    RendezvousRefusal, Subject, Uuid, Verdict, decide, verdict,
};
use crate::{
    agreement::{self, LogPoint, PoolId},
    simulation::Random,
};

/// In milliseconds.
const DEADLINE: u64 = 1000;

fn record(rank: u32) -> Record {
    Record {
        group: GroupId { uid: 5, epoch: 1 },
        life: 1,
        number: 3,
        rank,
        members: 99,
        deadline_ms: DEADLINE,
        readiness: Readiness::Ready,
        shared_devices: false,
        subject: Subject::Allocation,
        segment: 2 << 20,
        offset: 64,
        bytes: 4096,
        mapped: None,
        host: 1,
        process: rank.into(),
        device: Uuid { low: rank.into(), high: 0 },
        unreachable: Vec::new(),
        handles: Handles { descriptor: true, fabric: None, card: vec![rank as u8; 20], token: rank.into() },
    }
}

fn records(count: u32) -> Vec<Record> {
    (0..count).map(record).collect()
}

fn refusal(records: &[Record]) -> RendezvousRefusal {
    match decide(records) {
        Decision::Refuse { refusal } => refusal,
        other => panic!("{other:?}"),
    }
}

/// A difference that one member makes, and what all are told.
type Difference = (&'static str, fn(&mut Record));

const DIFFERENCES: [Difference; 16] = [
    ("IdentityMismatch", |record| record.group.epoch += 1),
    ("IdentityMismatch", |record| record.group.uid += 1),
    ("IdentityMismatch", |record| record.life += 1),
    ("IdentityMismatch", |record| record.members += 1),
    ("IdentityMismatch", |record| record.number += 1),
    ("IdentityMismatch", |record| record.shared_devices = true),
    ("PeerPrepareFailed", |record| record.readiness = Readiness::Failed { cause: "no memory".into() }),
    ("RendezvousDuringCapture", |record| record.readiness = Readiness::Capturing),
    ("SubjectMismatch", |record| record.subject = Subject::Persistent { id: 7 }),
    ("SubjectMismatch", |record| {
        let pool = PoolId { domain: 1, generation: 1, pool: 0 };
        record.subject = Subject::Pool { pool, ordinal: 3, log: LogPoint::default() };
    }),
    ("SizeMismatch", |record| record.bytes += 1),
    ("SizeMismatch", |record| record.segment += 1),
    ("OffsetMismatch", |record| record.offset += 1),
    ("HandleKindMismatch", |record| record.handles.descriptor = false),
    ("HostsApart", |record| record.host += 1),
    ("NoPeerAccess", |record| record.unreachable.push(Uuid { low: 0, high: 0 })),
];

#[test]
fn every_difference_is_refused_by_its_name() {
    for (name, differ) in DIFFERENCES {
        let mut records = records(4);
        differ(&mut records[2]);
        let refusal = refusal(&records);
        assert_eq!(refusal.name(), name, "{refusal}");
        assert!(refusal.to_string().starts_with(name), "{refusal}");
        assert!(refusal.to_string().contains("rank 2"), "{refusal} does not name rank 2");
    }
}

#[test]
fn a_pool_with_another_history_is_another_memory() {
    let mut records = records(2);
    let pool = PoolId { domain: 1, generation: 1, pool: 0 };
    for (record, hash) in records.iter_mut().zip([7, 8]) {
        record.subject = Subject::Pool { pool, ordinal: 3, log: LogPoint { length: 5, hash } };
    }
    assert_eq!(refusal(&records).name(), "SubjectMismatch");
}

#[test]
fn devices_and_hosts() {
    let mut same = records(3);
    same[2].device = same[0].device;
    let RendezvousRefusal::SameDevice { ranks, .. } = refusal(&same) else { panic!() };
    assert_eq!(ranks, [0, 2]);
    same.iter_mut().for_each(|record| record.shared_devices = true);
    assert!(matches!(decide(&same), Decision::Share { .. }));

    // Fabric handles reach other hosts; in one process nothing has to be exported.
    let mut apart = records(2);
    apart[1].host = 2;
    apart.iter_mut().for_each(|record| record.handles.fabric = Some(vec![0; 64]));
    assert!(matches!(decide(&apart), Decision::Share { .. }));
    let mut together = records(2);
    together.iter_mut().for_each(|record| (record.process, record.handles.descriptor) = (0, false));
    assert!(matches!(decide(&together), Decision::Share { .. }));
}

#[test]
fn what_all_have_since_one_rendezvous_is_not_mapped_again() {
    let mut records = records(3);
    records.iter_mut().for_each(|record| record.mapped = Some(1));
    assert_eq!(decide(&records), Decision::Reuse { number: 1 });
    // Of those that have it since different ones, or not at all, none keeps the old.
    records[1].mapped = Some(2);
    assert!(matches!(decide(&records), Decision::Share { .. }));
    records[1].mapped = None;
    assert!(matches!(decide(&records), Decision::Share { .. }));
}

#[test]
fn a_failure_outweighs_silence_and_silence_a_wait() {
    let failed = |cause: &str| Some(Outcome::Failed { cause: cause.into() });
    let alone = Some(Outcome::Alone { gone: vec![1] });
    let refused = |outcomes: &[(u32, Option<Outcome>)]| match verdict(outcomes) {
        Verdict::Failed { refusal } => refusal,
        Verdict::Mapped => panic!(),
    };
    let all = [(0, alone.clone()), (1, None), (2, failed("no addresses"))];
    let cause = "no addresses".to_owned();
    assert_eq!(refused(&all), RendezvousRefusal::SharingFailed { rank: 2, cause });
    let lost = RendezvousRefusal::MembersLost { missing: vec![1], noticed: vec![0] };
    let outcomes = [(1, None), (0, alone.clone()), (2, Some(Outcome::Mapped))];
    assert_eq!(refused(&outcomes), lost);
    // One that was found gone after it had said so.
    assert_eq!(refused(&[(0, alone), (1, Some(Outcome::Mapped)), (2, Some(Outcome::Mapped))]), lost);
    assert_eq!(verdict(&[(0, Some(Outcome::Mapped)), (1, Some(Outcome::Mapped))]), Verdict::Mapped);
}

proptest! {
    #[test]
    fn records_and_decisions_survive_the_wire(bytes in proptest::collection::vec(any::<u8>(), 0..200), rank in 0u32..9) {
        use crate::agreement::wire::Message;
        // No input panics, and what was written is read back.
        let _ = (Record::decode(&bytes), Decision::from_bytes(&bytes), Verdict::from_bytes(&bytes));
        let mut record = record(rank);
        record.handles.card = bytes;
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        let decision = Decision::Share { records: vec![record], deadline_ms: 5 };
        prop_assert_eq!(Decision::from_bytes(&decision.to_bytes()), Ok(decision));
    }

    #[test]
    fn every_schedule_ends_alike_for_all(seed in any::<u64>()) {
        World::new(seed).run();
    }
}

/// What goes wrong on one rank, at most.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It dies at this time.
    Dies(u64),
    /// The store does not answer it from this time on.
    CutOff(u64),
    /// It never comes.
    Absent,
    /// It cannot map.
    CannotMap,
    /// It comes with something else.
    Differs(usize),
}

/// Members, a store, and a virtual clock in µs. Requests and answers take drawn times; a request may be made twice, as by
/// a client that has lost an answer. Every member's clock has an offset of its own.
struct World {
    random: Random,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    pending: HashMap<u64, Event>,
    machines: Vec<Option<Meeting>>,
    offsets: Vec<u64>,
    tokens: Vec<u64>,
    begun: Vec<u64>,
    store: BTreeMap<String, Vec<u8>>,
    counters: BTreeMap<String, u64>,
    waiting: Vec<(String, u32, u64)>,
    faulty: u32,
    fault: Fault,
    slowest: u64,
    shared: Vec<bool>,
    repeated: bool,
    ended: BTreeMap<u32, (u64, Conclusion)>,
}

enum Event {
    Request(u32, u64, agreement::Output),
    Answer(u32, u64, Input),
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(5) as u32;
        let faulty = random.below(count.into()) as u32;
        let time = random.below(900_000);
        let early = random.below(5_000);
        let fault = *random.pick(&[
            Fault::None,
            Fault::None,
            Fault::Dies(time),
            Fault::Dies(early),
            Fault::CutOff(time),
            Fault::CutOff(early),
            Fault::Absent,
            Fault::CannotMap,
            Fault::Differs(time as usize % DIFFERENCES.len()),
        ]);
        // Those that come together are in one place of the program; the last comes before a third of the deadline.
        let skew = *random.pick(&[1, 1000, 300_000]);
        let slowest = *random.pick(&[1, 50, 2000]);
        let members: Vec<u32> = (0..count).collect();
        let machine = |rank: u32| {
            let mut record = record(rank);
            if let (Fault::Differs(at), true) = (fault, rank == faulty) {
                // What differs in its key meets nobody, which is the absent's case.
                if !matches!(at, 0..=2 | 4) {
                    DIFFERENCES[at].1(&mut record);
                }
            }
            Some(Meeting::new(record, members.clone()))
        };
        let mut world = Self {
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            machines: members.iter().map(|rank| machine(*rank)).collect(),
            offsets: members.iter().map(|_| random.below(1 << 40)).collect(),
            tokens: vec![0; count as usize],
            begun: members.iter().map(|_| random.below(skew)).collect(),
            store: BTreeMap::new(),
            counters: BTreeMap::new(),
            waiting: Vec::new(),
            faulty,
            fault,
            slowest,
            shared: vec![false; count as usize],
            repeated: false,
            ended: BTreeMap::new(),
            random,
        };
        for rank in 0..count {
            if (fault, rank) != (Fault::Absent, faulty) {
                world.at(world.begun[rank as usize], Event::Answer(rank, 0, Input::Start));
            }
        }
        world
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

    fn run(mut self) {
        while let Some(Reverse((time, _, id))) = self.events.pop() {
            self.now = time;
            match self.pending.remove(&id).expect("every event is there once") {
                Event::Request(rank, ..) | Event::Answer(rank, ..) if self.is_dead(rank) => {}
                Event::Request(rank, token, request) => self.serve(rank, token, request),
                Event::Answer(rank, token, input) => self.answer(rank, token, input),
            }
        }
        self.judge();
    }

    fn answer(&mut self, rank: u32, token: u64, input: Input) {
        let at = rank as usize;
        if self.tokens[at] != token {
            return;
        }
        self.tokens[at] += 1;
        let token = self.tokens[at];
        let offset = self.offsets[at];
        let Some(machine) = self.machines[at].as_mut() else { return };
        match machine.step(input, Duration::from_micros(self.now + offset)) {
            Output::Done(conclusion) => {
                self.machines[at] = None;
                for key in &conclusion.read {
                    self.store.remove(key);
                    self.counters.remove(key);
                }
                self.ended.insert(rank, (self.now, conclusion));
            }
            Output::Share { records, until } => {
                assert_eq!(records.len(), self.tokens.len(), "all are known");
                self.shared[at] = true;
                let outcome = match (self.fault, rank == self.faulty) {
                    (Fault::CannotMap, true) => Outcome::Failed { cause: "no addresses".into() },
                    // Who looks for one that is gone notices.
                    (Fault::Dies(when), false) if when <= self.now => {
                        Outcome::Alone { gone: vec![self.faulty] }
                    }
                    _ => Outcome::Mapped,
                };
                assert!(until.as_micros() as u64 > self.now + offset);
                self.soon(Event::Answer(rank, token, Input::Shared(outcome)));
            }
            Output::Store(request) => {
                if let agreement::Output::Await { until, .. } = &request {
                    let until = (until.as_micros() as u64).saturating_sub(offset).max(self.now);
                    let expired = Input::Store(agreement::Input::Expired);
                    self.at(until, Event::Answer(rank, token, expired));
                }
                let repeated = matches!(
                    request,
                    agreement::Output::Set { .. }
                        | agreement::Output::Add { .. }
                        | agreement::Output::Propose { .. }
                );
                if repeated && self.random.one_in(8) {
                    self.repeated = true;
                    self.soon(Event::Request(rank, u64::MAX, request.clone()));
                }
                self.soon(Event::Request(rank, token, request));
            }
        }
    }

    fn serve(&mut self, rank: u32, token: u64, request: agreement::Output) {
        use agreement::{Input as Answer, Output as Ask};
        if rank == self.faulty && matches!(self.fault, Fault::CutOff(at) if at <= self.now) {
            return self.soon(Event::Answer(rank, token, Input::StoreFailed));
        }
        let answer = match request {
            Ask::Set { key, value } => {
                self.store.insert(key, value);
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
                let waiting = std::mem::take(&mut self.waiting);
                for (at, rank, token) in waiting {
                    match at == key {
                        true => {
                            let stands = Answer::Stands(stands.clone());
                            self.soon(Event::Answer(rank, token, Input::Store(stands)));
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

    fn judge(&self) {
        let mut said: Vec<&Result<u64, Ending>> = Vec::new();
        for rank in 0..self.machines.len() as u32 {
            let odd = rank == self.faulty;
            let gone = odd && matches!(self.fault, Fault::Dies(_) | Fault::Absent);
            let Some((at, conclusion)) = self.ended.get(&rank) else {
                assert!(gone, "rank {rank} hangs");
                continue;
            };
            let took = at - self.begun[rank as usize];
            assert!(took <= DEADLINE * 1000, "rank {rank} took {took} us");
            match &conclusion.result {
                Err(Ending::StoreFailed) => assert!(odd && matches!(self.fault, Fault::CutOff(_))),
                Err(Ending::Unreadable(_) | Ending::OutOfStep) => panic!("rank {rank}: {conclusion:?}"),
                other => said.push(other),
            }
        }
        assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {said:?}");
        let all_well = matches!(said.first(), Some(Ok(_)));
        match (self.fault, said.first()) {
            (_, None) => {}
            (Fault::None, Some(end)) => assert_eq!(**end, Ok(3)),
            (
                Fault::Absent,
                Some(Err(Ending::Refused(RendezvousRefusal::RendezvousTimeout { missing, .. }))),
            ) => {
                assert_eq!(*missing, [self.faulty]);
            }
            (Fault::CannotMap, Some(Err(Ending::Refused(RendezvousRefusal::SharingFailed { rank, .. })))) => {
                assert_eq!(*rank, self.faulty);
            }
            (Fault::Differs(at), Some(Err(Ending::Refused(refusal)))) => {
                assert_eq!(refusal.name(), DIFFERENCES[at].0);
            }
            // A group of one differs from nobody.
            (Fault::Differs(_), Some(Ok(_))) => {}
            (Fault::Dies(_) | Fault::CutOff(_), Some(Err(Ending::Refused(refusal)))) => match refusal {
                RendezvousRefusal::RendezvousTimeout { missing, .. }
                | RendezvousRefusal::MembersLost { missing, .. } => assert_eq!(*missing, [self.faulty]),
                other => panic!("{other}"),
            },
            (Fault::Dies(_) | Fault::CutOff(_), Some(Ok(_))) => {}
            (fault, end) => panic!("{fault:?} ended in {end:?}"),
        }
        // Nobody maps before all have agreed, and nothing is left where all were there to the end.
        let refused_early = matches!(said.first(), Some(Err(Ending::Refused(refusal)))
            if !matches!(refusal.name(), "SharingFailed" | "MembersLost"));
        assert!(!refused_early || !self.shared.contains(&true));
        // A repetition that comes when everything is over writes what nobody reads.
        if all_well
            && !self.repeated
            && self.ended.len() == self.machines.len()
            && !matches!(self.fault, Fault::CutOff(_))
        {
            assert!(self.store.is_empty() && self.counters.is_empty(), "left: {:?}", self.store.keys());
        }
    }
}
