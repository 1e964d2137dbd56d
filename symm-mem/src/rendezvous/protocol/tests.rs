//! The protocol under seeded schedules. Members come late or die; requests are slow, repeated or lost. Every
//! difference between members is tested.

use process_group::group::GroupId;
use proptest::prelude::*;

use super::{
    Decision, Ending, Handles, Meeting, Outcome, Readiness, Record, RendezvousRefusal, Subject, Uuid,
    Verdict, decide, verdict,
};
use crate::{
    agreement::{LogPoint, PoolId},
    simulation::Random,
    simulation::schedule::{DEADLINE, Fault, World},
};

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

/// The expected refusal, and the change of one member's record that causes it.
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
        let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
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
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
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
    assert!(matches!(decide(&same), Decision::Open { .. }));

    // In one process, no memory has to be exported.
    let mut together = records(2);
    together.iter_mut().for_each(|record| (record.process, record.handles.descriptor) = (0, false));
    assert!(matches!(decide(&together), Decision::Open { .. }));
}

/// For each rank: can its memory be shared by file descriptor, can it be shared by fabric handle, and its host.
type Ways = (bool, bool, u64);

proptest! {
    #[test]
    fn members_have_each_others_memory_where_each_two_have_a_way_in_common(
        ways in proptest::collection::vec(any::<(bool, bool, bool)>(), 2..6),
    ) {
        let ways: Vec<Ways> = ways.into_iter().map(|(fd, fabric, host)| (fd, fabric, host.into())).collect();
        let mut records = records(ways.len() as u32);
        for (record, (descriptor, fabric, host)) in records.iter_mut().zip(&ways) {
            let fabric = fabric.then(|| vec![0; 64]);
            (record.host, record.handles.descriptor, record.handles.fabric) = (*host, *descriptor, fabric);
        }
        let common = |a: &Ways, b: &Ways| (a.1 && b.1) || (a.0 && b.0 && a.2 == b.2);
        let pairs = |(at, a)| ways.iter().skip(at + 1).all(|b| common(a, b));
        match decide(&records) {
            Decision::Open { .. } => prop_assert!(ways.iter().enumerate().all(pairs)),
            Decision::Refuse { refusal } => {
                prop_assert!(!ways.iter().enumerate().all(pairs), "{}", refusal);
                let nobody = ways.iter().all(|(descriptor, fabric, _)| *descriptor && !fabric);
                prop_assert_eq!(refusal.name(), if nobody { "HostsApart" } else { "HandleKindMismatch" });
                // The report names the handle types of each rank correctly.
                if let RendezvousRefusal::HandleKindMismatch { kinds } = &refusal {
                    for (side, rank) in kinds.entries.iter().flat_map(|side| side.ranks.iter().map(move |rank| (side, *rank))) {
                        prop_assert_eq!(side.value.contains("fabric"), ways[rank as usize].1, "{}", refusal);
                    }
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn what_all_have_since_one_rendezvous_is_not_mapped_again() {
    let mut records = records(3);
    records.iter_mut().for_each(|record| record.mapped = Some(1));
    assert_eq!(decide(&records), Decision::Settled { agreed: 1 });
    // If members have mappings of different rendezvous, or some have none, the old mappings are not kept.
    records[1].mapped = Some(2);
    assert!(matches!(decide(&records), Decision::Open { .. }));
    records[1].mapped = None;
    assert!(matches!(decide(&records), Decision::Open { .. }));
}

#[test]
fn a_failure_outweighs_silence_and_silence_a_wait() {
    let failed = |cause: &str| Some(Outcome::Failed { cause: cause.into() });
    let alone = Some(Outcome::Alone { gone: vec![1] });
    let refused = |outcomes: &[(u32, Option<Outcome>)]| match verdict(outcomes) {
        Verdict::Failed { refusal } => refusal,
        Verdict::Opened => panic!(),
    };
    let all = [(0, alone.clone()), (1, None), (2, failed("no addresses"))];
    let cause = "no addresses".to_owned();
    assert_eq!(refused(&all), RendezvousRefusal::SharingFailed { rank: 2, cause });
    let lost = RendezvousRefusal::MembersLost { missing: vec![1], noticed: vec![0] };
    let outcomes = [(1, None), (0, alone.clone()), (2, Some(Outcome::Mapped))];
    assert_eq!(refused(&outcomes), lost);
    // A rank was found gone after it had posted its outcome.
    assert_eq!(refused(&[(0, alone), (1, Some(Outcome::Mapped)), (2, Some(Outcome::Mapped))]), lost);
    assert_eq!(verdict(&[(0, Some(Outcome::Mapped)), (1, Some(Outcome::Mapped))]), Verdict::Opened);
}

/// The stored bytes must not change, so that ranks of one protocol version can decode each other's records.
#[test]
fn what_stands_in_the_store_keeps_its_form() {
    use crate::agreement::wire::Message;
    let open = Decision::Open { opening: Vec::new(), deadline_ms: 5 };
    assert_eq!(open.to_bytes(), b"SY\x05\0\x11\0\0\0\0\0\x05\0\0\0\0\0\0\0");
    assert_eq!(Decision::Settled { agreed: 7 }.to_bytes(), b"SY\x05\0\x11\x01\x07\0\0\0\0\0\0\0");
    let refusal = RendezvousRefusal::RendezvousDuringCapture { ranks: Vec::new() };
    assert_eq!(Decision::Refuse { refusal: refusal.clone() }.to_bytes(), b"SY\x05\0\x11\x02\x04\0\0\0\0");
    assert_eq!(Verdict::Opened.to_bytes(), b"SY\x05\0\x13\0");
    assert_eq!(Verdict::Failed { refusal }.to_bytes(), b"SY\x05\0\x13\x01\x04\0\0\0\0");
    assert_eq!(record(2).prefix(), "symm/meeting/5.1/1/3");
}

proptest! {
    #[test]
    fn records_and_decisions_survive_the_wire(bytes in proptest::collection::vec(any::<u8>(), 0..200), rank in 0u32..9) {
        use crate::agreement::wire::Message;
        // No input causes a panic, and encoded values decode to themselves.
        let _ = (Record::decode(&bytes), Decision::from_bytes(&bytes), Verdict::from_bytes(&bytes));
        let mut record = record(rank);
        record.handles.card = bytes;
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        let decision = Decision::Open { opening: vec![record], deadline_ms: 5 };
        prop_assert_eq!(Decision::from_bytes(&decision.to_bytes()), Ok(decision));
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
    let fault = Fault::draw(&mut random, DIFFERENCES.len());
    let members: Vec<u32> = (0..count).collect();
    let meeting = |rank: u32| {
        let mut record = record(rank);
        if let (Fault::Differs(at), true) = (fault, rank == faulty) {
            // A rank whose store key differs meets no other rank, and so counts as absent.
            if !matches!(at, 0..=2 | 4) {
                DIFFERENCES[at].1(&mut record);
            }
        }
        Meeting::new(record.prefix(), record, members.clone())
    };
    let machines = members.iter().map(|rank| meeting(*rank)).collect();
    let mut world = World::new(random, machines, faulty, fault);
    world.run();

    let mut said: Vec<&Result<u64, Ending>> = Vec::new();
    for (rank, conclusion) in &world.ended {
        match &conclusion.result {
            Err(Ending::StoreFailed) => assert!(*rank == faulty && matches!(fault, Fault::CutOff(_))),
            Err(Ending::Unreadable(_) | Ending::OutOfStep) => panic!("rank {rank}: {conclusion:?}"),
            other => said.push(other),
        }
    }
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {said:?}");
    match (fault, said.first()) {
        (_, None) => {}
        (Fault::None, Some(end)) => assert_eq!(**end, Ok(3)),
        (Fault::Absent, Some(Err(Ending::Refused(RendezvousRefusal::RendezvousTimeout { missing, .. })))) => {
            assert_eq!(*missing, [faulty]);
        }
        (Fault::CannotOpen, Some(Err(Ending::Refused(RendezvousRefusal::SharingFailed { rank, .. })))) => {
            assert_eq!(*rank, faulty);
        }
        (Fault::Differs(at), Some(Err(Ending::Refused(refusal)))) => {
            assert_eq!(refusal.name(), DIFFERENCES[at].0);
        }
        // A group of one rank has no differences.
        (Fault::Differs(_), Some(Ok(_))) => {}
        (Fault::Dies(_) | Fault::CutOff(_), Some(Err(Ending::Refused(refusal)))) => match refusal {
            RendezvousRefusal::RendezvousTimeout { missing, .. }
            | RendezvousRefusal::MembersLost { missing, .. } => assert_eq!(*missing, [faulty]),
            other => panic!("{other}"),
        },
        (Fault::Dies(_) | Fault::CutOff(_), Some(Ok(_))) => {}
        (fault, end) => panic!("{fault:?} ended in {end:?}"),
    }
    // No member maps memory before all have agreed.
    let refused_early = matches!(said.first(), Some(Err(Ending::Refused(refusal)))
        if !matches!(refusal.name(), "SharingFailed" | "MembersLost"));
    assert!(!refused_early || !world.told_to_open.contains(&true));
}
