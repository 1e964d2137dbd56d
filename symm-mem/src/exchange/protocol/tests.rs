//! The protocol under seeded schedules: members that come late or die, requests that are slow, repeated or lost, and
//! every difference between members.

use proptest::prelude::*;

use super::{
    Agreement, AllocationId, Decision, End, Ending, ExchangeRefusal, Export, Held, Meeting, Outcome, Part,
    Record, Verdict, Way, decide, missing, verdict,
};
use crate::{
    rendezvous::protocol::{Readiness, Uuid},
    simulation::Random,
    simulation::schedule::{DEADLINE, Fault, World},
};

const COUNT: u32 = 4;

fn id(number: u64) -> AllocationId {
    AllocationId::Own { number }
}

fn end(peer: u32, part: Part, export: Option<u32>, slot: u32) -> End {
    End { peer, part, bytes: 4096, export, offset: 64, slot }
}

/// Record in a ring of `count` ranks: each puts to the next one, and gets from the one before.
fn record(rank: u32, count: u32) -> Record {
    let descriptor = Way::Virtual { descriptor: true, fabric: None };
    let export =
        |number, way: &Way| Export { id: id(number), bytes: 1 << 20, way: way.clone(), token: number };
    let legacy = Way::Legacy { handle: vec![7; 64] };
    let (next, last) = ((rank + 1) % count, (rank + count - 1) % count);
    let mut ends = vec![
        end(next, Part::PutInitiator, None, 0),
        end(next, Part::GetBy, Some(0), 1),
        end(last, Part::PutTarget, Some(1), 2),
        end(last, Part::GetFrom, None, 3),
    ];
    if count == 1 {
        ends.clear();
    }
    // With two ranks, the peer is both next and last: order the ends as the peer's.
    if count == 2 && rank == 1 {
        ends.rotate_left(2);
    }
    Record {
        rank,
        plan: "ring".into(),
        generation: 3,
        deadline_ms: DEADLINE,
        readiness: Readiness::Ready,
        host: 1,
        process: rank.into(),
        device: Uuid { low: rank.into(), high: 0 },
        unreachable: Vec::new(),
        card: vec![rank as u8; 20],
        channels: 16,
        exports: vec![export(10, &legacy), export(11, &descriptor)],
        held: Vec::new(),
        ends,
    }
}

fn records(count: u32) -> Vec<Record> {
    (0..count).map(|rank| record(rank, count)).collect()
}

fn refusal(records: &[Record]) -> ExchangeRefusal {
    match decide(records) {
        Decision::Refuse { refusal } => refusal,
        other => panic!("{other:?}"),
    }
}

/// A deviation of rank 2 of [`COUNT`]: the refusal that all members are given, words of its message, and the change
/// to the record.
type Difference = (&'static str, &'static [&'static str], fn(&mut Record));

const DIFFERENCES: [Difference; 14] = [
    ("PlanMismatch", &["\"chain\"", "\"ring\"", "rank 2"], |record| record.plan = "chain".into()),
    ("PeerPrepareFailed", &["rank 2", "no memory"], |record| {
        record.readiness = Readiness::Failed { cause: "no memory".into() };
    }),
    ("SizeMismatch", &["ranks 2 and 3", "4097 bytes on rank 2", "4096 bytes on rank 3"], |record| {
        record.ends[0].bytes += 1;
    }),
    ("SizeMismatch", &["ranks 1 and 2", "4096 bytes on rank 1", "4095 bytes on rank 2"], |record| {
        record.ends[3].bytes -= 1;
    }),
    ("PartMismatch", &["rank 2 gets from its peer", "rank 3 takes a put"], |record| {
        record.ends[0].part = Part::GetFrom;
    }),
    ("CounterpartMissing", &["rank 3 has 2 transfers with rank 2", "which has 1"], |record| {
        record.ends.remove(0);
    }),
    ("CounterpartMissing", &["rank 2 has 3 transfers with rank 3", "which has 2"], |record| {
        let more = record.ends[0].clone();
        record.ends.push(more);
    }),
    ("CounterpartMissing", &["rank 2 has 1 transfers with rank 9"], |record| {
        let mut more = record.ends[0].clone();
        more.peer = 9;
        record.ends.push(more);
    }),
    ("OutOfReach", &["rank 1 (legacy handle)", "by rank 2", "another host"], |record| record.host += 1),
    ("OutOfReach", &["rank 2 (not at all)", "by rank 1"], |record| {
        record.exports[1].way = Way::Virtual { descriptor: false, fabric: None };
    }),
    ("NoPeerAccess", &["rank 2 cannot reach that of rank 1"], |record| {
        record.unreachable.push(Uuid { low: 1, high: 0 });
    }),
    ("RecordUnreadable", &["rank 2", "leaves its allocation"], |record| record.exports[1].bytes = 100),
    ("RecordUnreadable", &["rank 2", "export Some(9) of 2"], |record| record.ends[2].export = Some(9)),
    ("RecordUnreadable", &["rank 2", "slot 16 of 16"], |record| record.ends[0].slot = 16),
];

#[test]
fn every_difference_is_refused_by_its_name_and_both_values() {
    for (name, words, differ) in DIFFERENCES {
        let mut records = records(COUNT);
        differ(&mut records[2]);
        let refusal = refusal(&records);
        assert_eq!(refusal.name(), name, "{refusal}");
        let text = refusal.to_string();
        assert!(text.starts_with(name), "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        // The decision does not depend on the order of the records.
        records.reverse();
        assert_eq!(self::refusal(&records).name(), name);
    }
}

#[test]
fn what_is_held_is_not_opened_again() {
    let mut records = records(COUNT);
    assert_eq!((missing(&records[1], &records[2]), missing(&records[2], &records[1])), (vec![0], vec![1]));
    assert!(matches!(decide(&records), Decision::Open { deadline_ms: DEADLINE, .. }));
    for rank in 0..COUNT {
        let held = |peer: u32, number| Held { peer: peer % COUNT, id: id(number) };
        records[rank as usize].held = vec![held(rank + COUNT - 1, 10), held(rank + 1, 11)];
    }
    let Decision::Settled { agreed: agreement } = decide(&records) else { panic!() };
    assert_eq!((agreement.generation, agreement.records.len()), (3, 4));
    // If one rank lacks an allocation, all of them report an outcome.
    records[0].held.pop();
    assert!(matches!(decide(&records), Decision::Open { .. }));
    // The same number of another rank is another allocation.
    records[0].held = vec![Held { peer: 2, id: id(11) }, Held { peer: 3, id: id(10) }];
    assert!(matches!(decide(&records), Decision::Open { .. }));
}

#[test]
fn the_generation_is_that_of_who_has_counted_furthest() {
    let mut records = records(COUNT);
    records[3].generation = 8;
    let Decision::Open { opening: agreement, .. } = decide(&records) else { panic!() };
    assert_eq!(agreement.generation, 8);
}

/// Ranks of one protocol version can read each other's messages, so the encoding must not change.
#[test]
fn what_stands_in_the_store_keeps_its_form() {
    use crate::agreement::wire::Message;
    let agreement = Agreement { generation: 7, records: Vec::new() };
    let open = Decision::Open { opening: agreement.clone(), deadline_ms: 5 };
    let form = b"SY\x05\0\x15\0\x07\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0";
    assert_eq!(open.to_bytes(), form);
    let settled = Decision::Settled { agreed: agreement };
    assert_eq!(settled.to_bytes(), b"SY\x05\0\x15\x01\x07\0\0\0\0\0\0\0\0\0\0\0");
    let refusal = ExchangeRefusal::NoPeerAccess { rank: 1, peer: 2 };
    let refused = Decision::Refuse { refusal: refusal.clone() };
    assert_eq!(refused.to_bytes(), b"SY\x05\0\x15\x02\x08\x01\0\0\0\x02\0\0\0");
    assert_eq!(Verdict::Opened.to_bytes(), b"SY\x05\0\x16\0");
    assert_eq!(Verdict::Failed { refusal }.to_bytes(), b"SY\x05\0\x16\x01\x08\x01\0\0\0\x02\0\0\0");
}

proptest! {
    #[test]
    fn records_and_decisions_survive_the_wire(bytes in proptest::collection::vec(any::<u8>(), 0..300), rank in 0u32..4) {
        use crate::agreement::wire::Message;
        // No input panics, and a written record is read back.
        let _ = (Record::decode(&bytes), Decision::from_bytes(&bytes), Verdict::from_bytes(&bytes));
        let mut record = record(rank, COUNT);
        record.card = bytes;
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        let decision = decide(&[record]);
        prop_assert_eq!(Decision::from_bytes(&decision.to_bytes()), Ok(decision));
    }

    /// A verdict is the same for every order of the outcomes.
    #[test]
    fn outcomes_are_judged_in_no_order(kinds in proptest::collection::vec(0u8..4, 1..6), by in 0usize..6) {
        let outcome = |kind| match kind {
            0 => Some(Outcome::Mapped),
            1 => Some(Outcome::Failed { cause: "no addresses".into() }),
            2 => Some(Outcome::Alone { gone: vec![0] }),
            _ => None,
        };
        let mut outcomes: Vec<_> = (0..).zip(kinds.iter().map(|kind| outcome(*kind))).collect();
        let first = verdict(&outcomes);
        let by = by % outcomes.len();
        outcomes.rotate_left(by);
        prop_assert_eq!(&first, &verdict(&outcomes));
        prop_assert_eq!(first == Verdict::Opened, kinds.iter().all(|kind| *kind == 0));
    }

    #[test]
    fn every_schedule_ends_alike_for_all(seed in any::<u64>()) {
        schedule(seed);
    }
}

fn schedule(seed: u64) {
    let mut random = Random(seed);
    let count = 1 + random.below(5) as u32;
    let faulty = random.below(count.into()) as u32;
    // The deviations are written for rank 2 of 4.
    let (count, faulty, fault) = match Fault::draw(&mut random, DIFFERENCES.len()) {
        fault @ Fault::Differs(_) => (COUNT, 2, fault),
        fault => (count, faulty, fault),
    };
    let all_held = random.one_in(4);
    let members: Vec<u32> = (0..count).collect();
    let meeting = |rank: u32| {
        let mut record = record(rank, count);
        if all_held {
            let held = |peer, number| Held { peer, id: id(number) };
            record.held = members.iter().flat_map(|peer| [held(*peer, 10), held(*peer, 11)]).collect();
        }
        if let (Fault::Differs(at), true) = (fault, rank == faulty) {
            (DIFFERENCES[at].2)(&mut record);
        }
        Meeting::new("exchange".into(), record, members.clone())
    };
    let machines = members.iter().map(|rank| meeting(*rank)).collect();
    let mut world = World::new(random, machines, faulty, fault);
    world.run();

    let mut said = Vec::new();
    for (rank, conclusion) in &world.ended {
        match &conclusion.result {
            Err(Ending::StoreFailed) => {
                assert!(*rank == faulty && matches!(fault, Fault::CutOff(_)));
            }
            Err(Ending::Unreadable(_) | Ending::OutOfStep) => panic!("rank {rank}: {conclusion:?}"),
            other => said.push(other),
        }
    }
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {said:?}");
    let refusal = match said.first() {
        None => return,
        Some(Ok(agreement)) => {
            assert_eq!((agreement.generation, agreement.records.len()), (3, count as usize));
            None
        }
        Some(Err(Ending::Refused(refusal))) => Some(refusal),
        Some(other) => panic!("{other:?}"),
    };
    let nothing_to_open = all_held || count == 1;
    match (fault, refusal) {
        (Fault::None, None) => {}
        (Fault::Absent, Some(ExchangeRefusal::ExchangeTimeout { missing, .. })) => {
            assert_eq!(*missing, [faulty]);
        }
        (Fault::CannotOpen, Some(ExchangeRefusal::OpeningFailed { rank, .. })) => assert_eq!(*rank, faulty),
        (Fault::CannotOpen, None) => assert!(nothing_to_open),
        (Fault::Differs(at), Some(refusal)) => assert_eq!(refusal.name(), DIFFERENCES[at].0),
        // Memory that is already open need not be reachable by a handle.
        (Fault::Differs(at), None) => assert!(all_held && DIFFERENCES[at].0 == "OutOfReach", "{}", at),
        (
            Fault::Dies(_) | Fault::CutOff(_),
            Some(
                ExchangeRefusal::ExchangeTimeout { missing, .. }
                | ExchangeRefusal::MembersLost { missing, .. },
            ),
        ) => assert_eq!(*missing, [faulty]),
        (Fault::Dies(_) | Fault::CutOff(_), None) => {}
        (fault, end) => panic!("{fault:?} ended in {end:?}"),
    }
    // No member opens anything before all have agreed.
    let early = refusal.is_some_and(|refusal| !matches!(refusal.name(), "OpeningFailed" | "MembersLost"));
    assert!(!(early || nothing_to_open) || !world.told_to_open.contains(&true));
}
