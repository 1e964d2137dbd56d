//! Runs the seeds of the normal test run, and tests the model of the library.

use std::collections::BTreeSet;

use process_group::group::GroupId;

use super::{
    Limits, explore,
    library::{Extent, Library, Life},
    run,
};

/// The number of seeds: 2000, which draws every trouble many times. The environment variable `TEST_EFFORT` multiplies
/// it.
fn seeds() -> u64 {
    2_000 * crate::common::test_effort()
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
    // Every expected result occurs in some seed.
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
        assert_eq!(run(seed, &limits, true), run(seed, &limits, true));
    }
    let (one, three) = (explore(0..40, &limits, 1, &|_| {}), explore(0..40, &limits, 3, &|_| {}));
    assert_eq!((one.seeds, one.steps, &one.tally), (three.seeds, three.steps, &three.tally));
    assert_eq!(one.states, three.states);
}

const LIFE: Life = Life { group: GroupId { uid: 1, epoch: 0 }, number: 1 };

fn pair() -> Library {
    let mut library = Library::default();
    [0, 1].into_iter().for_each(|rank| library.join(LIFE, &[0, 1], rank));
    library
}

#[test]
fn the_library_pairs_calls_by_their_order_and_says_what_that_pairs() {
    let at = |address, identity| vec![Extent { address, bytes: 2 << 20, identity }];
    let mut library = pair();
    assert!(library.register(LIFE, 0, at(0x20_0000, 7), 1, false).is_ok_and(|met| met.is_empty()));
    let met = library.register(LIFE, 1, at(0x80_0000, 7), 2, false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        met.iter().map(|met| (met.rank, met.serials.clone())).collect::<Vec<_>>(),
        [(0, vec![0]), (1, vec![0])]
    );
    // Rejected: a segment of the same size with another history, and memory that is already registered.
    assert!(library.register(LIFE, 0, at(0x40_0000, 8), 3, false).is_ok());
    assert!(library.register(LIFE, 1, at(0xa0_0000, 9), 4, false).is_err());
    assert!(library.register(LIFE, 0, at(0x20_0000, 9), 5, false).is_err());
    // Memory stays in use until all members have deregistered it.
    assert_eq!(library.reached(0, 0x20_0000, 1), Some((LIFE, 0)));
    assert!(library.deregister(LIFE, 0, 0).is_ok());
    assert_eq!(library.reached(0, 0x20_0000, 1), Some((LIFE, 1)));
    assert!(library.deregister(LIFE, 0, 0).is_err());
    assert!(library.deregister(LIFE, 1, 0).is_ok());
    assert_eq!(library.reached(0, 0x20_0000, 1), None);
}
