//! Tests of the refusal for each difference between the members' records (the messages in which they describe their
//! memory), of the judgement of the members' mapping outcomes, and of the encodings.

use bootstrap::agreement::{Protocol, Report};
use process_group::group::GroupId;
use proptest::prelude::*;

use super::{
    OpeningOutcome, RendezvousDecision, RendezvousProtocol, RendezvousRecord, RendezvousRefusal,
    SharingReadiness, Subject, decide,
};
use crate::{
    LogPoint, PoolId,
    tests::{bytes, read},
};
use memory_sharing::{Export, Handle, Site, Uuid};

fn record(rank: u32) -> RendezvousRecord {
    RendezvousRecord {
        group: GroupId { uid: 5, epoch: 1 },
        generation: 1,
        number: 3,
        rank,
        members: 99,
        readiness: SharingReadiness::Ready,
        shared_devices: false,
        subject: Subject::Allocation,
        offset: 64,
        bytes: 4096,
        mapped: None,
        site: Site { endpoint: vec![rank as u8; 20], ..Site::simulated(rank) },
        export: Export { bytes: 2 << 20, handle: Handle::DESCRIPTOR, token: rank.into() },
    }
}

fn records(count: u32) -> Vec<RendezvousRecord> {
    (0..count).map(record).collect()
}

fn foreign(kind: &str, descriptor: bool) -> Handle {
    Handle::Foreign { kind: kind.into(), descriptor, handle: None }
}

fn refusal(records: &[RendezvousRecord]) -> RendezvousRefusal {
    match decide(records) {
        RendezvousDecision::Refused { refusal } => refusal,
        other => panic!("{other:?}"),
    }
}

/// The name of the expected refusal, and the change of one member's record that causes it.
type RecordDifference = (&'static str, fn(&mut RendezvousRecord));

const DIFFERENCES: [RecordDifference; 17] = [
    ("IdentityMismatch", |record| record.group.epoch += 1),
    ("IdentityMismatch", |record| record.group.uid += 1),
    ("IdentityMismatch", |record| record.generation += 1),
    ("IdentityMismatch", |record| record.members += 1),
    ("IdentityMismatch", |record| record.number += 1),
    ("IdentityMismatch", |record| record.shared_devices = true),
    ("PeerPrepareFailed", |record| record.readiness = SharingReadiness::Failed { cause: "no memory".into() }),
    ("RendezvousDuringCapture", |record| record.readiness = SharingReadiness::Capturing),
    ("SubjectMismatch", |record| record.subject = Subject::Persistent { id: 7 }),
    ("SubjectMismatch", |record| {
        let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
        record.subject = Subject::Pool { pool, ordinal: 3, log: LogPoint::default() };
    }),
    ("HandleKindMismatch", |record| {
        // Rank 2's memory is on another kind of device and has another size. The refusal is about the kind, because a
        // difference in kind explains a difference in size: devices of different kinds round sizes differently.
        record.export = Export { bytes: 4096, handle: foreign("host", true), token: 7 };
    }),
    ("SizeMismatch", |record| record.bytes += 1),
    ("SizeMismatch", |record| record.export.bytes += 1),
    ("OffsetMismatch", |record| record.offset += 1),
    ("HandleKindMismatch", |record| record.export.handle = Handle::NONE),
    ("HostsApart", |record| record.site.host += 1),
    ("NoPeerAccess", |record| record.site.unreachable.push(Uuid { low: 0, high: 0 })),
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
    same[2].site.device = same[0].site.device;
    let RendezvousRefusal::SameDevice { ranks, .. } = refusal(&same) else { panic!() };
    assert_eq!(ranks, [0, 2]);
    same[2].site.device = (*b"gpu-sim device 0").into();
    same[0].site.device = same[2].site.device;
    let text = refusal(&same).to_string();
    assert!(text.contains("UUID 6770752d-7369-6d20-6465-766963652030 "), "{text}");
    same.iter_mut().for_each(|record| record.shared_devices = true);
    assert!(matches!(decide(&same), RendezvousDecision::Act { .. }));

    // In one process, no memory has to be exported.
    let mut together = records(2);
    together.iter_mut().for_each(|record| (record.site.process, record.export.handle) = (0, Handle::NONE));
    assert!(matches!(decide(&together), RendezvousDecision::Act { .. }));
}

#[test]
fn memory_of_another_kind_of_device_is_shared_in_its_ways() {
    let with = |handles: [Handle; 2]| {
        let mut records = records(2);
        records.iter_mut().zip(handles).for_each(|(record, handle)| record.export.handle = handle);
        records
    };
    let by_handle = Handle::Foreign { kind: "host".into(), descriptor: false, handle: Some(vec![1]) };
    let mut records = with([foreign("host", true), foreign("host", true)]);
    assert!(matches!(decide(&records), RendezvousDecision::Act { .. }));
    records[1].site.host += 1;
    assert_eq!(refusal(&records).name(), "HostsApart");
    let mut records = with([by_handle.clone(), by_handle.clone()]);
    records[1].site.host += 1;
    assert!(matches!(decide(&records), RendezvousDecision::Act { .. }));
    assert_eq!(refusal(&with([foreign("host", true), by_handle])).name(), "HandleKindMismatch");
    // The kinds must be equal even in one process.
    let mut records = with([foreign("host", false), foreign("disk", false)]);
    records.iter_mut().for_each(|record| record.site.process = 0);
    let text = refusal(&records).to_string();
    assert!(text.contains("rank 0: no handle of \"host\" memory"), "{text}");
    assert!(text.contains("rank 1: no handle of \"disk\" memory"), "{text}");
    records[1].export.handle = foreign("host", false);
    assert!(matches!(decide(&records), RendezvousDecision::Act { .. }));
}

/// Three values of one rank: whether its memory has a file descriptor, whether it has a fabric handle, and the rank's
/// host.
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
            let handle = Handle::Virtual { descriptor: *descriptor, fabric };
            (record.site.host, record.export.handle) = (*host, handle);
        }
        let common = |a: &Ways, b: &Ways| (a.1 && b.1) || (a.0 && b.0 && a.2 == b.2);
        let pairs = |(at, a)| ways.iter().skip(at + 1).all(|b| common(a, b));
        match decide(&records) {
            RendezvousDecision::Act { .. } => prop_assert!(ways.iter().enumerate().all(pairs)),
            RendezvousDecision::Refused { refusal } => {
                prop_assert!(!ways.iter().enumerate().all(pairs), "{}", refusal);
                let nobody = ways.iter().all(|(descriptor, fabric, _)| *descriptor && !fabric);
                prop_assert_eq!(refusal.name(), if nobody { "HostsApart" } else { "HandleKindMismatch" });
                // The refusal names the handle types of each rank correctly.
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
    assert_eq!(decide(&records), RendezvousDecision::Agreed { agreed: 1 });
    // If members have mappings of different rendezvous, or some have none, the memory is mapped again.
    records[1].mapped = Some(2);
    assert!(matches!(decide(&records), RendezvousDecision::Act { .. }));
    records[1].mapped = None;
    assert!(matches!(decide(&records), RendezvousDecision::Act { .. }));
}

#[test]
fn a_failure_outweighs_silence_and_silence_a_wait() {
    let failed = |cause: &str| Report::Outcome(OpeningOutcome::Failed { cause: cause.into() });
    let mapped = Report::Outcome(OpeningOutcome::Mapped);
    let alone = Report::Outcome(OpeningOutcome::Alone { gone: vec![1] });
    let judge =
        |reports: &[(u32, Report<OpeningOutcome>)]| RendezvousProtocol::judge(&vec![record(0)], reports);
    let refused = |reports: &[(u32, Report<OpeningOutcome>)]| match judge(reports) {
        RendezvousDecision::Refused { refusal } => refusal,
        other => panic!("{other:?}"),
    };
    let all = [(0, alone.clone()), (1, Report::Late), (2, failed("no addresses"))];
    let cause = "no addresses".to_owned();
    assert_eq!(refused(&all), RendezvousRefusal::SharingFailed { rank: 2, cause });
    let lost = RendezvousRefusal::MembersLost { missing: vec![1], noticed: vec![0] };
    assert_eq!(refused(&[(1, Report::Late), (0, alone.clone()), (2, mapped.clone())]), lost);
    // Rank 0 found that rank 1 was lost, although rank 1 had posted its outcome.
    assert_eq!(refused(&[(0, alone), (1, mapped.clone()), (2, mapped.clone())]), lost);
    assert_eq!(judge(&[(0, mapped.clone()), (1, mapped)]), RendezvousDecision::Agreed { agreed: 3 });
}

/// Ranks of one protocol version must be able to decode each other's messages. So a change of these bytes needs a new
/// `PROTOCOL_VERSION`.
#[test]
fn what_stands_in_the_store_keeps_its_form() {
    assert_eq!(bytes(&RendezvousDecision::Act { plan: Vec::new() }), b"\0\0\0\0\0");
    assert_eq!(bytes(&RendezvousDecision::Agreed { agreed: 7 }), b"\x01\x07\0\0\0\0\0\0\0");
    let refusal = RendezvousRefusal::RendezvousDuringCapture { ranks: Vec::new() };
    assert_eq!(bytes(&RendezvousDecision::Refused { refusal }), b"\x02\x04\0\0\0\0");
    assert_eq!(record(2).prefix(), "symm/meeting/5.1/1/3");
}

proptest! {
    #[test]
    fn records_and_decisions_survive_the_wire(drawn in proptest::collection::vec(any::<u8>(), 0..200), rank in 0u32..9) {
        // Decoding arbitrary bytes causes no panic. A value that is encoded and decoded again is unchanged.
        let _ = read::<RendezvousRecord>(&drawn);
        let _ = read::<RendezvousDecision>(&drawn);
        let mut record = record(rank);
        record.site.endpoint = drawn;
        let decision = RendezvousDecision::Act { plan: vec![record] };
        prop_assert_eq!(read(&bytes(&decision)), Ok(decision));
    }
}
