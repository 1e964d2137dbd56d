//! Tests: each kind of difference between the members' records, the decision about the outcomes that members report
//! after they have opened memory, and the encoding.

use bootstrap::agreement::{Protocol, Report};
use proptest::prelude::*;

use super::{
    Agreement, AllocationId, End, ExchangeDecision, ExchangeProtocol, ExchangeRecord, ExchangeRefusal, Held,
    MemoryPiece, OpeningOutcome, Part, RegionOffer, RemotePiece, Route, SharedAllocation, SharedRegion,
    decide, missing,
};
use crate::{
    rendezvous::SharingReadiness,
    tests::{bytes, read},
};
use memory_sharing::{Handle, Site, Uuid};

const COUNT: u32 = 4;

fn id(number: u64) -> AllocationId {
    AllocationId::Own { number }
}

fn piece(export: u32, offset: u64, bytes: u64) -> MemoryPiece {
    MemoryPiece { export, offset, bytes }
}

fn end(peer: u32, part: Part, pieces: &[MemoryPiece], slot: u32) -> End {
    End { peer, part, bytes: 4096, pieces: pieces.to_vec(), slot }
}

/// The record of a rank in a ring of `count` ranks: each puts to the next one, and gets from the previous one.
fn record(rank: u32, count: u32) -> ExchangeRecord {
    let export = |number, handle| SharedAllocation {
        id: id(number),
        shared: memory_sharing::Export { bytes: 1 << 20, handle, token: number },
    };
    let legacy = Handle::Legacy { handle: vec![7; 64] };
    let (next, last) = ((rank + 1) % count, (rank + count - 1) % count);
    let mut ends = vec![
        end(next, Part::PutInitiator, &[], 0),
        end(next, Part::GetBy, &[piece(0, 64, 4096)], 1),
        end(last, Part::PutTarget, &[piece(1, 64, 4000), piece(1, 8192, 96)], 2),
        end(last, Part::GetFrom, &[], 3),
    ];
    if count == 1 {
        ends.clear();
    }
    // With two ranks, the next rank is also the previous one. The n-th end of rank 0 must match the n-th end of rank 1,
    // so rank 1 lists the ends with its previous rank first.
    if count == 2 && rank == 1 {
        ends.rotate_left(2);
    }
    ExchangeRecord {
        rank,
        plan: "ring".into(),
        generation: 3,
        readiness: SharingReadiness::Ready,
        site: Site { endpoint: vec![rank as u8; 20], ..Site::simulated(rank) },
        channels: 16,
        exports: vec![export(10, legacy), export(11, Handle::DESCRIPTOR)],
        held: Vec::new(),
        ends,
        regions: None,
    }
}

fn records(count: u32) -> Vec<ExchangeRecord> {
    (0..count).map(|rank| record(rank, count)).collect()
}

fn refusal(records: &[ExchangeRecord]) -> ExchangeRefusal {
    match decide(records) {
        ExchangeDecision::Refused { refusal } => refusal,
        other => panic!("{other:?}"),
    }
}

/// A deviation of rank 2: the name of the refusal that all members get, words of its message, and the change to the
/// record of rank 2.
type Difference = (&'static str, &'static [&'static str], fn(&mut ExchangeRecord));

const DIFFERENCES: [Difference; 15] = [
    ("PlanMismatch", &["\"chain\"", "\"ring\"", "rank 2"], |record| record.plan = "chain".into()),
    ("PeerPrepareFailed", &["rank 2", "no memory"], |record| {
        record.readiness = SharingReadiness::Failed { cause: "no memory".into() };
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
    ("OutOfReach", &["rank 1 (legacy handle)", "rank 2 cannot open", "another host"], |record| {
        record.site.host += 1
    }),
    ("OutOfReach", &["rank 2 (not at all)", "rank 1 cannot open"], |record| {
        record.exports[1].shared.handle = Handle::NONE;
    }),
    ("NoPeerAccess", &["rank 2 cannot reach that of rank 1"], |record| {
        record.site.unreachable.push(Uuid { low: 1, high: 0 });
    }),
    ("RecordUnreadable", &["rank 2", "of transfer 2 leave their allocation"], |record| {
        record.exports[1].shared.bytes = 100;
    }),
    ("RecordUnreadable", &["rank 2", "transfer 2 names export 9 of 2"], |record| {
        record.ends[2].pieces[1].export = 9;
    }),
    ("RecordUnreadable", &["rank 2", "transfer 2 of 4096 bytes has memory of 4000 bytes"], |record| {
        record.ends[2].pieces.pop();
    }),
    ("RecordUnreadable", &["rank 2", "slot 16 of 16"], |record| record.ends[0].slot = 16),
];

/// Applies each difference to the record of rank 2 in `records`, and checks the refusal that results.
fn check_differences(differences: &[Difference], records: &[ExchangeRecord]) {
    for (name, words, differ) in differences {
        let mut records = records.to_vec();
        differ(&mut records[2]);
        let refusal = refusal(&records);
        assert_eq!(refusal.name(), *name, "{refusal}");
        let text = refusal.to_string();
        assert!(text.starts_with(name), "{text}");
        for word in *words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        // The decision does not depend on the order of the records.
        records.reverse();
        assert_eq!(self::refusal(&records).name(), *name);
    }
}

#[test]
fn every_difference_is_refused_by_its_name_and_both_values() {
    check_differences(&DIFFERENCES, &records(COUNT));
}

#[test]
fn what_is_held_is_not_opened_again() {
    let mut records = records(COUNT);
    assert_eq!((missing(&records[1], &records[2]), missing(&records[2], &records[1])), (vec![0], vec![1]));
    assert!(matches!(decide(&records), ExchangeDecision::Act { .. }));
    for rank in 0..COUNT {
        let held = |peer: u32, number| Held { peer: peer % COUNT, id: id(number) };
        records[rank as usize].held = vec![held(rank + COUNT - 1, 10), held(rank + 1, 11)];
    }
    let ExchangeDecision::Agreed { agreed: Some(agreement) } = decide(&records) else { panic!() };
    assert_eq!((agreement.generation, agreement.records.len()), (3, 4));
    // Without this entry, rank 0 has yet to open an allocation of rank 1. So the decision is `Act`: all ranks must
    // report an outcome.
    records[0].held.pop();
    assert!(matches!(decide(&records), ExchangeDecision::Act { .. }));
    // Rank 0 needs allocation 11 of rank 1, but has opened allocation 11 of rank 2. That is another allocation, because
    // each rank numbers its own.
    records[0].held = vec![Held { peer: 2, id: id(11) }, Held { peer: 3, id: id(10) }];
    assert!(matches!(decide(&records), ExchangeDecision::Act { .. }));
}

#[test]
fn the_generation_is_that_of_who_has_counted_furthest() {
    let mut records = records(COUNT);
    records[3].generation = 8;
    let ExchangeDecision::Act { plan: agreement } = decide(&records) else { panic!() };
    assert_eq!(agreement.generation, 8);
}

/// Ranks of one protocol version must be able to read each other's messages. So a change of these bytes needs a new
/// `PROTOCOL_VERSION`.
#[test]
fn what_stands_in_the_store_keeps_its_form() {
    let agreement = Agreement { generation: 7, records: Vec::new() };
    let plan = b"\x07\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(bytes(&ExchangeDecision::Act { plan: agreement.clone() }), [b"\0", &plan[..]].concat());
    assert_eq!(
        bytes(&ExchangeDecision::Agreed { agreed: Some(agreement) }),
        [b"\x01\x01", &plan[..]].concat()
    );
    let refusal = ExchangeRefusal::NoPeerAccess { rank: 1, peer: 2 };
    assert_eq!(bytes(&ExchangeDecision::Refused { refusal }), b"\x02\x08\x01\0\0\0\x02\0\0\0");
    let pieces = b"\x01\0\0\0\x05\0\0\0\x40\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0";
    let end = end(9, Part::PutTarget, &[piece(5, 64, 4096)], 7);
    let expected = [b"\x09\0\0\0\x01\0\x10\0\0\0\0\0\0", &pieces[..], b"\x07\0\0\0"].concat();
    assert_eq!(bytes(&end), expected);
    let region = SharedRegion { name: "kv".to_owned(), pieces: end.pieces };
    assert_eq!(bytes(&region), [b"\x02\0\0\0kv", &pieces[..]].concat());
}

/// The route of the rank that copies lists the pieces of the peer's buffer, in the order of the buffer's bytes. The
/// rank opens every allocation that contains a piece. The peer's route lists no pieces.
#[test]
fn a_route_leads_to_every_piece_of_a_buffer() {
    let mut records = records(COUNT);
    records[2].ends[2].pieces = vec![piece(1, 1000, 4000), piece(0, 8, 96)];
    assert_eq!(missing(&records[2], &records[1]), [0, 1]);
    let ExchangeDecision::Act { plan } = decide(&records) else { panic!("memory is to be opened") };
    let remote = |id, offset, bytes| RemotePiece { id, offset, bytes };
    let pieces = vec![remote(id(11), 1000, 4000), remote(id(10), 8, 96)];
    assert_eq!(plan.routes(1).unwrap()[0], Route { peer: 2, remote: pieces, slot: 2 });
    assert_eq!(plan.routes(2).unwrap()[2], Route { peer: 1, remote: Vec::new(), slot: 0 });
}

proptest! {
    #[test]
    fn records_and_decisions_survive_the_wire(drawn in proptest::collection::vec(any::<u8>(), 0..300), rank in 0u32..4) {
        // Reading arbitrary bytes does not panic.
        let _ = read::<ExchangeRecord>(&drawn);
        let _ = read::<ExchangeDecision>(&drawn);
        // Reading a written message gives an equal message.
        let mut records = records(COUNT);
        let record = &mut records[rank as usize];
        record.site.endpoint = drawn;
        record.held.push(Held { peer: rank, id: id(10) });
        record.site.unreachable.push(Uuid { low: 1, high: 2 });
        prop_assert_eq!(read(&bytes(record)), Ok(record.clone()));
        record.site.unreachable.clear();
        let agreed = decide(&records);
        let is_action = matches!(agreed, ExchangeDecision::Act { .. });
        prop_assert!(is_action);
        for decision in [agreed, decide(&records[..1])] {
            prop_assert_eq!(read(&bytes(&decision)), Ok(decision));
        }
    }

    /// The decision does not depend on the order of the members' reports. It is `Agreed` exactly if every member
    /// reports that it has mapped the memory.
    #[test]
    fn outcomes_are_judged_in_no_order(kinds in proptest::collection::vec(0u8..4, 1..6), by in 0usize..6) {
        let report = |kind| match kind {
            0 => Report::Outcome(OpeningOutcome::Mapped),
            1 => Report::Outcome(OpeningOutcome::Failed { cause: "no addresses".into() }),
            2 => Report::Outcome(OpeningOutcome::Alone { gone: vec![0] }),
            _ => Report::Late,
        };
        let judge = |reports: &[_]| {
            ExchangeProtocol::judge(&Agreement { generation: 1, records: Vec::new() }, reports)
        };
        let mut reports: Vec<_> = (0..).zip(kinds.iter().map(|kind| report(*kind))).collect();
        let first = judge(&reports);
        let by = by % reports.len();
        reports.rotate_left(by);
        prop_assert_eq!(&first, &judge(&reports));
        prop_assert_eq!(first == ExchangeDecision::Agreed { agreed: None }, kinds.iter().all(|kind| *kind == 0));
    }
}

/// The record of a rank that shares two regions: the first has one piece, the second has two.
fn sharing(rank: u32) -> ExchangeRecord {
    let region = |name: &str, pieces| SharedRegion { name: name.to_owned(), pieces };
    let regions = vec![
        region("whole", vec![piece(0, 64, 4096)]),
        region("scattered", vec![piece(1, 0, 1 << 20), piece(0, 0, 8)]),
    ];
    let regions = Some(RegionOffer { regions, first_slot: 4 });
    ExchangeRecord { ends: Vec::new(), regions, ..record(rank, COUNT) }
}

fn offer(record: &mut ExchangeRecord) -> &mut RegionOffer {
    record.regions.as_mut().expect("the record has regions")
}

const DIFFERENT_REGIONS: [Difference; 9] = [
    ("PlanMismatch", &["\"ring\"", "\"regions ring\"", "rank 2"], |record| record.regions = None),
    ("PlanMismatch", &["\"regions chain\"", "rank 2"], |record| record.plan = "chain".into()),
    ("RecordUnreadable", &["rank 2", "1 transfers beside regions"], |record| {
        record.ends = vec![end(1, Part::PutInitiator, &[], 0)];
    }),
    ("RecordUnreadable", &["rank 2", "slots 14..17 of 16"], |record| offer(record).first_slot = 14),
    ("RecordUnreadable", &["rank 2", "\"scattered\" names export 7 of 2"], |record| {
        offer(record).regions[1].pieces[1].export = 7;
    }),
    ("RecordUnreadable", &["rank 2", "9 bytes at byte 18446744073709551615 of region \"whole\""], |record| {
        offer(record).regions[0].pieces[0] = piece(0, u64::MAX, 9);
    }),
    ("OutOfReach", &["rank 2 (not at all)", "rank 0 cannot open"], |record| {
        record.exports[1].shared.handle = Handle::NONE;
    }),
    ("NoPeerAccess", &["rank 2 cannot reach that of rank 1"], |record| {
        record.site.unreachable.push(Uuid { low: 1, high: 0 });
    }),
    // Rank 2 could not allocate slots, and reports this as its failure. Its `first_slot` is meaningless: regions need
    // one slot for each of the three other members, but rank 2 has only one slot (`channels`). The refusal must give
    // the failure, not complain about the slots.
    ("PeerPrepareFailed", &["rank 2", "no slots"], |record| {
        record.readiness = SharingReadiness::Failed { cause: "no slots".into() };
        (offer(record).first_slot, record.channels) = (0, 1);
    }),
];

#[test]
fn every_difference_of_regions_is_refused_by_its_name_and_both_values() {
    check_differences(&DIFFERENT_REGIONS, &(0..COUNT).map(sharing).collect::<Vec<_>>());
}

/// Every member opens all regions of the others. Rank 1 shares no regions, but the others have a route to it too. Each
/// rank has one slot for each peer, and no two peers have the same slot of a rank.
#[test]
fn regions_lead_to_every_member() {
    let mut records: Vec<ExchangeRecord> = (0..COUNT).map(sharing).collect();
    records[1].regions = Some(RegionOffer { regions: Vec::new(), first_slot: 9 });
    records[1].exports.clear();
    let ExchangeDecision::Act { plan } = decide(&records) else { panic!("memory is to be opened") };
    assert_eq!((missing(&records[0], &records[3]), missing(&records[1], &records[3])), (vec![0, 1], vec![]));
    let routes: Vec<_> = (0..COUNT).map(|rank| plan.region_routes(rank).unwrap()).collect();
    for (rank, own) in (0..).zip(&routes) {
        let peers: Vec<u32> = own.iter().map(|route| route.peer.rank).collect();
        assert_eq!(peers, (0..COUNT).filter(|peer| *peer != rank).collect::<Vec<_>>());
        let first = if rank == 1 { 9 } else { 4 };
        let slots: Vec<u32> = own.iter().map(|route| route.own_slot).collect();
        assert_eq!(slots, (first..first + COUNT - 1).collect::<Vec<_>>());
        for route in own {
            let peer = route.peer.rank;
            let other = routes[peer as usize].iter().find(|other| other.peer.rank == rank).unwrap();
            assert_eq!((route.slot, route.own_slot), (other.own_slot, other.slot));
            assert_eq!(route.peer, &records[peer as usize]);
        }
    }
    assert_eq!(
        (plan.region_routes(9), Agreement { generation: 1, records: self::records(3) }.region_routes(0)),
        (None, None)
    );
    assert_eq!(read(&bytes(&plan)), Ok(plan));
}
