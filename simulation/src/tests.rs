//! Runs the simulation with the seeds of the normal test run. Also tests the [`Library`], which records the
//! registrations of memory with NCCL and checks them.

use std::collections::BTreeSet;

use caching_alloc::core::SegmentSource as _;
use process_group::group::GroupId;

use crate::{
    Limits,
    device::Devices,
    explore,
    library::{EndedCall, Extent, Library, Life},
    run, shrink,
};

/// The number of seeds to run. With 2000 seeds, every trouble is drawn many times. The environment variable
/// `TEST_EFFORT` multiplies this number.
fn seeds() -> u64 {
    2_000
        * std::env::var("TEST_EFFORT")
            .map_or(1, |times| times.parse::<u64>().expect("TEST_EFFORT is a whole number"))
}

#[test]
fn limits_of_a_seed_without_violation_stay() {
    for limits in [Limits::default(), Limits { phases: 2, groups: 0, requests: 2, ..Limits::default() }] {
        assert_eq!(shrink(0, &limits), limits);
    }
}

#[test]
fn members_agree_whatever_happens() {
    let summary = explore(0..seeds(), &Limits::default(), 2, &|_| {});
    let first = summary.violations.iter().next();
    assert!(
        first.is_none(),
        "{} violations: {}",
        summary.violations.len(),
        first.map_or("", |(_, it)| &it.0)
    );
    println!("{} seeds, {} steps, {} states", summary.seeds, summary.steps, summary.states.len());
    // Each of these results of meetings must occur with at least one seed. So the simulation tests the code that leads
    // to it.
    let ends: BTreeSet<&str> = summary.tally.keys().map(|(_, end)| *end).collect();
    for end in [
        "committed",
        "prefix",
        "without windows",
        "registered plainly",
        "registration undone",
        "retired",
        "agreed length",
        "mapped",
        "exchanged",
        "store failed",
        "in doubt",
        "SegmentCountMismatch",
        "SegmentShapeMismatch",
        "AllocationDiverged",
        "CommitDuringCapture",
        "PeerPrepareFailed",
        "SyncTimeout",
        "CapabilityMismatch",
        "AddressSpaceExhausted",
        "CollectivesOutstanding",
        "MessagesOutstanding",
        "RetirementMismatch",
        "GenerationMismatch",
        "MembersMismatch",
        "VersionMismatch",
        "SegmentPinned",
        "SegmentInUse",
        "QuiesceFailed",
        "RegistrationFailed",
        "RegistrationBlocked",
        "RetirementFailed",
        "MembersLost",
        "WindowsUnsupported",
        "RendezvousTimeout",
        "SharingFailed",
        "SubjectMismatch",
        "SizeMismatch",
        "OffsetMismatch",
        "ExchangeTimeout",
        "OpeningFailed",
        "PlanMismatch",
        "CounterpartMissing",
        "PartMismatch",
        "NoPeerAccess",
        "RecordUnreadable",
    ] {
        assert!(ends.contains(end), "{end} never happened: {ends:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_on_any_number_of_threads() {
    let limits = Limits { ranks: Some(4), ..Limits::default() };
    for seed in 0..10 {
        assert!(run(seed, &limits, true) == run(seed, &limits, true), "seed {seed}: another run");
    }
    let (one, three) = (explore(0..40, &limits, 1, &|_| {}), explore(0..40, &limits, 3, &|_| {}));
    assert_eq!((one.seeds, one.steps, &one.tally), (three.seeds, three.steps, &three.tally));
    assert_eq!(one.states, three.states);
}

#[test]
fn the_library_pairs_calls_by_their_order_and_the_record_says_what_that_pairs() {
    const LIFE: Life = Life { group: GroupId { uid: 1, epoch: 0 }, number: 1 };
    let devices = Devices::start(1, 2, 22809).unwrap();
    let ranks = [0, 1].map(|rank| devices.of_rank(rank, 1 << 30, true).unwrap());
    let segment = |rank: usize, identity| {
        let memory = ranks[rank].allocate(2 << 20).unwrap();
        Extent { address: memory.address, bytes: memory.bytes, identity }
    };
    let mut library = devices.library();
    for (rank, device) in (0..).zip(&ranks) {
        library.join(LIFE, &[0, 1], rank, device.context()).unwrap();
    }
    let (first, second) = (segment(0, 7), segment(1, 7));
    library.register(LIFE, 0, vec![first], 1).unwrap();
    assert!(library.take_ended_calls().is_empty());
    library.register(LIFE, 1, vec![second], 2).unwrap();
    let mut met: Vec<_> = library.take_ended_calls().into_iter().map(|met| (met.rank, met.serials)).collect();
    met.sort();
    assert_eq!(met, [(0, Ok(vec![0])), (1, Ok(vec![0]))]);
    // The call with token 3 begins, and waits for the matching call of rank 1. `Library` rejects the call with token 4:
    // NCCL would match it with the call with token 3, whose segment has the same size, but another identity. `Library`
    // rejects the call with token 5, because the memory is already registered.
    library.register(LIFE, 0, vec![segment(0, 8)], 3).unwrap();
    assert!(library.register(LIFE, 1, vec![segment(1, 9)], 4).is_err());
    assert!(library.register(LIFE, 0, vec![first], 5).is_err());
    // A communicator can access the memory until all members have deregistered the window. `reached` returns a member
    // that has not deregistered it.
    let reached = |library: &Library| library.reached(0, first.address, 1);
    assert_eq!(reached(&library), Some((LIFE, 0)));
    assert!(library.deregister(LIFE, 0, 0).is_ok());
    assert_eq!(reached(&library), Some((LIFE, 1)));
    assert!(library.deregister(LIFE, 0, 0).is_err());
    assert!(library.deregister(LIFE, 1, 0).is_ok());
    assert_eq!(reached(&library), None);
    // The call with token 3 still waits for rank 1. It ends with an error when rank 0 aborts its communicator.
    library.leave_all(0).unwrap();
    assert!(matches!(&library.take_ended_calls()[..], [EndedCall { rank: 0, serials: Err(_), .. }]));
    library.leave_all(1).unwrap();
}
