//! Commits of several ranks and overlapping groups under a seeded scheduler, with everything going wrong.
//!
//! Checked for every seed: members are given the same result; nobody enters a registration that not all enter,
//! unless the group ends poisoned; windows of different segments never pair; every commit ends before its
//! deadline; who is at fault is named; groups without the culprit go on.

mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use symm_mem::agreement::{Absentee, Divergence, Ending, Policy, Readiness, Refusal};
use world::{Action, Ended, Faults, World};

use crate::end_to_end::random::Random;

const DEADLINE: Duration = Duration::from_millis(800);
/// Long enough for a rank that has waited for the absent in all its other groups.
const PATIENCE: Duration = Duration::from_secs(60);

/// What goes wrong, on which rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    ExtraSegment,
    ExtraBlock,
    OtherSize,
    Capturing,
    PrepareFailed,
    Swapped,
    RegistrationFails,
    WithoutWindows,
    SomeWithoutWindows,
    Killed,
    Stopped,
    StoreDies,
}

const TROUBLES: [Trouble; 13] = [
    Trouble::None,
    Trouble::ExtraSegment,
    Trouble::ExtraBlock,
    Trouble::OtherSize,
    Trouble::Capturing,
    Trouble::PrepareFailed,
    Trouble::Swapped,
    Trouble::RegistrationFails,
    Trouble::WithoutWindows,
    Trouble::SomeWithoutWindows,
    Trouble::Killed,
    Trouble::Stopped,
    Trouble::StoreDies,
];

struct Scenario {
    trouble: Trouble,
    culprit: u32,
    /// The number of the culprit's operation that the others do not do, or do otherwise.
    parted: u64,
    groups: BTreeMap<u64, Vec<u32>>,
    programs: Vec<Vec<Action>>,
    faults: Faults,
}

fn scenario(random: &mut Random) -> Scenario {
    let world = 2 + random.below(5) as u32;
    let trouble = *random.pick(&TROUBLES);
    let culprit = random.below(world.into()) as u32;

    let mut groups: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for _ in 0..2 + random.below(4) {
        let mut members: Vec<u32> = (0..world).filter(|_| random.one_in(2)).collect();
        if members.is_empty() {
            members = (0..world).collect();
        }
        if random.one_in(2) {
            members.reverse();
        }
        groups.insert(1 + random.below(100), members);
    }

    let phases = 2 + random.below(2);
    let bad_phase = random.below(phases);
    let mut programs: Vec<Vec<Action>> = vec![Vec::new(); world as usize];
    let (mut operations, mut parted, mut live) = (0, 0, 0);
    for phase in 0..phases {
        let mut wanted = Vec::new();
        for _ in 0..random.below(50) {
            if live > 0 && random.one_in(4) {
                live -= 1;
                wanted.push(Action::Free);
            } else {
                live += 1;
                wanted.push(Action::Allocate { bytes: 1 + random.below(3 << 19) });
            }
        }
        let wrong_at = random.below(wanted.len() as u64 + 1) as usize;
        let wrong = phase == bad_phase;
        if wrong {
            parted = operations + wrong_at as u64;
        }
        operations += wanted.len() as u64;
        for (rank, program) in (0..).zip(&mut programs) {
            let wrong = wrong && rank == culprit;
            let mut wanted = wanted.clone();
            if wrong {
                mistake(trouble, wrong_at, &mut wanted);
            }
            program.extend(wanted);
            program.push(Action::Pause(random.below(1000)));
            program.extend(commits(&groups, rank, Policy::Strict, DEADLINE, wrong.then_some(trouble)));
        }
    }
    // In the end all try what is still possible: by then they know of the dead.
    let possible = groups
        .iter()
        .filter(|(_, members)| trouble != Trouble::Killed || !members.contains(&culprit))
        .map(|(group, members)| (*group, members.clone()))
        .collect();
    for (rank, program) in (0..).zip(&mut programs) {
        program.extend(commits(&possible, rank, Policy::Prefix, PATIENCE, None));
    }

    let time = random.below(30_000);
    let faults = match trouble {
        Trouble::Killed => Faults { kill: Some((culprit, time)), ..Faults::default() },
        Trouble::Stopped => {
            Faults { stop: Some((culprit, time, random.below(3_000_000))), ..Faults::default() }
        }
        Trouble::RegistrationFails => {
            Faults { registration: Some((culprit, 1 + random.below(3) as u32)), ..Faults::default() }
        }
        Trouble::WithoutWindows => Faults { without_windows: (0..world).collect(), ..Faults::default() },
        Trouble::SomeWithoutWindows => Faults { without_windows: vec![culprit], ..Faults::default() },
        Trouble::StoreDies => Faults { store_dies: Some(time), ..Faults::default() },
        _ => Faults::default(),
    };
    Scenario { trouble, culprit, parted, groups, programs, faults }
}

/// What the culprit does differently at `at`.
fn mistake(trouble: Trouble, at: usize, wanted: &mut Vec<Action>) {
    match trouble {
        Trouble::ExtraSegment => wanted.insert(at, Action::Allocate { bytes: 64 << 20 }),
        Trouble::ExtraBlock => wanted.insert(at, Action::Allocate { bytes: 7 }),
        Trouble::OtherSize => match wanted.get_mut(at) {
            Some(Action::Allocate { bytes }) => *bytes += 16 << 20,
            _ => wanted.insert(at, Action::Allocate { bytes: 16 << 20 }),
        },
        _ => {}
    }
}

fn commits(
    groups: &BTreeMap<u64, Vec<u32>>,
    rank: u32,
    policy: Policy,
    deadline: Duration,
    trouble: Option<Trouble>,
) -> Vec<Action> {
    let readiness = match trouble {
        Some(Trouble::Capturing) => Readiness::Capturing,
        Some(Trouble::PrepareFailed) => {
            Readiness::Failed { ordinal: Some(0), cause: "misaligned".to_owned() }
        }
        _ => Readiness::Ready,
    };
    let mut commits: Vec<Action> = groups
        .iter()
        .filter(|(_, members)| members.contains(&rank))
        .map(|(group, _)| Action::Commit { group: *group, policy, deadline, readiness: readiness.clone() })
        .collect();
    if trouble == Some(Trouble::Swapped) {
        commits.reverse();
    }
    commits
}

/// How often which result came of a commit.
type Tally = BTreeMap<&'static str, u64>;

/// Runs a seed and checks everything. Returns the hash of the order of events.
fn run(seed: u64, tally: &mut Tally) -> u64 {
    let mut random = Random(seed);
    let Scenario { trouble, culprit, parted, groups, programs, faults } = scenario(&mut random);
    let rounds: Vec<BTreeMap<u64, u64>> = programs.iter().map(|program| count_commits(program)).collect();
    let mut world = World::new(random, groups.clone(), programs);
    world.run(faults);

    let mut meetings: BTreeMap<(u64, u64), Vec<&Ended>> = BTreeMap::new();
    for ended in &world.ended {
        meetings.entry((ended.group, ended.round)).or_default().push(ended);
    }
    for ((group, round), ended) in &meetings {
        let members = &groups[group];
        let at =
            format!("seed {seed}, {trouble:?} on rank {culprit}, group {group} {members:?}, round {round}");
        let living: Vec<u32> = members.iter().copied().filter(|rank| !world.is_dead(*rank)).collect();
        assert!(
            living.iter().all(|rank| ended.iter().any(|it| it.rank == *rank)),
            "{at}: not all living members have a result: {ended:?}"
        );
        check_time(ended, trouble, culprit, &at);
        if trouble == Trouble::StoreDies {
            continue;
        }
        check_agreement(ended, &at);
        check_blame(ended, trouble, culprit, parted, &at);

        let last = rounds[members[0] as usize].get(group) == Some(round);
        if last
            && !(trouble == Trouble::Killed && members.contains(&culprit))
            && living.len() == members.len()
            && !world.is_poisoned(members[0], *group)
        {
            assert!(ended[0].conclusion.result.is_ok(), "{at}: the last commit fails: {ended:?}");
        }
        if !members.contains(&culprit) || matches!(trouble, Trouble::None | Trouble::WithoutWindows) {
            check_unaffected(ended, &living, &at, trouble);
        }
    }
    for ended in &world.ended {
        let name = match &ended.conclusion.result {
            Ok(agreed) if agreed.pending.is_some() => "prefix",
            Ok(agreed) if agreed.without.is_some() => "without windows",
            Ok(_) => "committed",
            Err(Ending::Refused(refusal)) => refusal.name(),
            Err(Ending::Poisoned(poison)) => poison.name(),
            Err(_) => "store failed",
        };
        *tally.entry(name).or_default() += 1;
    }
    world.trace
}

fn count_commits(program: &[Action]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for action in program {
        if let Action::Commit { group, .. } = action {
            *counts.entry(*group).or_default() += 1;
        }
    }
    counts
}

/// Every commit ends before its deadline; a rank that was stopped may be late by that.
fn check_time(ended: &[&Ended], trouble: Trouble, culprit: u32, at: &str) {
    for it in ended {
        let exempt = trouble == Trouble::Stopped && it.rank == culprit;
        assert!(exempt || it.ended - it.begun <= it.deadline, "{at}: rank {} is late: {it:?}", it.rank);
    }
}

/// All members are given the same; a registration that not all entered is a poisoned group.
fn check_agreement(ended: &[&Ended], at: &str) {
    let first = &ended[0].conclusion.result;
    for it in ended {
        assert_eq!(&it.conclusion.result, first, "{at}: ranks {} and {} differ", ended[0].rank, it.rank);
    }
    let entered = ended.iter().filter(|it| it.entered_registration).count();
    if first.is_ok() {
        assert!(entered == 0 || entered == ended.len(), "{at}: some registered, some did not");
    }
    if matches!(first, Err(Ending::Refused(_))) {
        assert_eq!(entered, 0, "{at}: refused after registration");
    }
    assert!(
        matches!(first, Ok(_) | Err(Ending::Refused(_) | Ending::Poisoned(_))),
        "{at}: {first:?} is no agreed result"
    );
}

/// The error is of the kind that the trouble makes and names the culprit.
fn check_blame(ended: &[&Ended], trouble: Trouble, culprit: u32, parted: u64, at: &str) {
    let result = &ended[0].conclusion.result;
    let refusal = match result {
        Ok(agreed) => agreed.pending.as_ref(),
        Err(Ending::Refused(refusal)) => Some(refusal),
        Err(_) => None,
    };
    let Some(refusal) = refusal else { return };
    let text = refusal.to_string();
    let expected = match trouble {
        Trouble::ExtraSegment | Trouble::ExtraBlock | Trouble::OtherSize => {
            matches!(refusal.name(), "SegmentCountMismatch" | "SegmentShapeMismatch" | "AllocationDiverged")
        }
        Trouble::Capturing => *refusal == Refusal::CommitDuringCapture { ranks: vec![culprit] },
        Trouble::PrepareFailed => {
            matches!(refusal, Refusal::PeerPrepareFailed { rank, ordinal: Some(0), .. } if *rank == culprit)
        }
        Trouble::Swapped | Trouble::RegistrationFails | Trouble::Killed | Trouble::Stopped => {
            refusal.name() == "SyncTimeout"
        }
        _ => false,
    };
    assert!(expected, "{at}: {text}");
    if let Refusal::SyncTimeout { missing, .. } = refusal {
        assert!(!missing.is_empty(), "{at}: {text}");
        let in_group = |absentee: &Absentee| ended.iter().any(|it| it.rank == absentee.rank);
        assert!(missing.iter().all(|it| in_group(it) || it.rank == culprit), "{at}: {text}");
    }
    if let Some(Divergence::At { sequence, operations }) = refusal.divergence() {
        assert_eq!(*sequence, parted, "{at}: {text}");
        let culprits: BTreeSet<u32> = operations.sides.iter().flat_map(|side| side.ranks.clone()).collect();
        assert!(culprits.contains(&culprit) && operations.sides.len() == 2, "{at}: {text}");
    } else if matches!(refusal.name(), "SegmentCountMismatch" | "SegmentShapeMismatch" | "AllocationDiverged")
    {
        panic!("{at}: the first allocation that differs was not found: {text}");
    }
}

/// A group without the culprit succeeds, unless one of its members came late from waiting for the culprit.
fn check_unaffected(ended: &[&Ended], living: &[u32], at: &str, trouble: Trouble) {
    match &ended[0].conclusion.result {
        Ok(agreed) => assert_eq!(agreed.pending, None, "{at}"),
        Err(Ending::Refused(Refusal::SyncTimeout { missing, .. })) => {
            assert!(
                matches!(
                    trouble,
                    Trouble::Killed | Trouble::Stopped | Trouble::Swapped | Trouble::RegistrationFails
                ),
                "{at}: {ended:?}"
            );
            assert!(missing.iter().all(|absentee| living.contains(&absentee.rank)), "{at}: {missing:?}");
        }
        other => panic!("{at}: {other:?}"),
    }
}

/// How many seeds to run: `SYMM_MEM_SEEDS`, or enough for every trouble many times over.
fn seeds() -> u64 {
    std::env::var("SYMM_MEM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(5_000)
}

#[test]
fn members_agree_whatever_happens() {
    let (start, mut tally) = (Instant::now(), Tally::new());
    for seed in 0..seeds() {
        run(seed, &mut tally);
    }
    println!("{} seeds, {:.0} a second: {tally:?}", seeds(), seeds() as f64 / start.elapsed().as_secs_f64());
    // The scenarios reach every end that they are made for.
    for name in [
        "committed",
        "prefix",
        "without windows",
        "store failed",
        "SegmentCountMismatch",
        "SegmentShapeMismatch",
        "AllocationDiverged",
        "CommitDuringCapture",
        "PeerPrepareFailed",
        "SyncTimeout",
        "RegistrationFailed",
        "MembersLost",
        "WindowsUnsupported",
    ] {
        assert!(tally.get(name).is_some_and(|count| *count > 0), "{name} never happened: {tally:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in 0..100 {
        assert_eq!(run(seed, &mut Tally::new()), run(seed, &mut Tally::new()));
    }
}
