//! Tests of retirements in which one rank dies. In a retirement, all ranks wait until their devices are idle, and then
//! deregister the windows of the retired segments. A step is one transition of a rank's state machine. For each step of
//! the rank that dies, there is one run in which the rank dies just before it. A seed determines the order of all
//! ranks' steps.

use std::{collections::BTreeSet, time::Duration};

use bootstrap::agreement::Agreement;

use proptest::prelude::*;

use super::{
    super::{
        retire::{Posted, judge_released},
        *,
    },
    drive::{EndedRank, drive},
};

const RANKS: u32 = 3;

const POOL: PoolId = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };

const DEADLINE: Duration = Duration::from_secs(16);

/// The results of one run.
struct Story {
    /// The result of each rank, and the time at which the rank got it. `None` for a rank that died before it got one.
    results: Vec<Option<(Result<Retired, Ending>, Duration)>>,
    /// The ranks that deregistered their windows.
    deregistered: BTreeSet<u32>,
}

fn start(rank: u32) -> Start<RetireProtocol> {
    let record = RetirementRecord {
        readiness: Readiness::Ready,
        enqueued: Vec::new(),
        log: LogPoint::default(),
        groups: Vec::new(),
        segments: vec![Candidate { ordinal: 0, graphs: 0, blocks: 0, uncovered: Vec::new() }],
    };
    Start::retirement(POOL, 0, rank, (0..RANKS).collect(), record, DEADLINE)
}

/// Runs a retirement. `seed` determines the order of the ranks' steps. `victim` dies before its step number `step`,
/// from 0.
fn story(seed: u64, victim: u32, step: u32) -> Story {
    let machine = |rank: u32| {
        let Start { member, record } = start(rank);
        Agreement::new(member, record, rank.into()).expect("it is a member")
    };
    let mut deregistered = BTreeSet::new();
    let act = |rank, plan, _, _: &mut Duration| {
        let release = Release::Done {};
        match plan {
            RetirePlan::Quiesce {} => RetireOutcome::Quiet(release),
            RetirePlan::Deregister {} => {
                deregistered.insert(rank);
                RetireOutcome::Deregistered(release)
            }
        }
    };
    let ends = drive((0..RANKS).map(machine).collect(), seed, Some((victim, step)), act);
    let results = (0..).zip(ends).map(|(rank, end): (u32, Option<EndedRank<RetireProtocol>>)| {
        let EndedRank { result, last, at } = end?;
        let ending = |ending| retirement_ending(ending, &start(rank).member, last.as_ref());
        Some((result.or_else(ending), at))
    });
    let results = results.collect();
    Story { results, deregistered }
}

proptest! {
    /// If a rank dies, all other ranks get the same result, at most [`RETIREMENT_FLOOR`] after the deadline. There are
    /// three possible results:
    /// - A refusal. Then no rank has deregistered windows.
    /// - A success. Then all ranks have deregistered their windows.
    /// - A [`Poison`] that names the dead rank: some windows may remain.
    #[test]
    fn who_dies_in_a_retirement_leaves_the_others_agreed(seed: u64, victim in 0..RANKS) {
        for step in 0.. {
            let Story { results, deregistered } = story(seed, victim, step);
            let mut others = (0..RANKS).zip(&results).filter(|(rank, _)| *rank != victim);
            let Some((_, Some((first, _)))) = others.next() else { panic!("a survivor was told nothing") };
            for (rank, result) in others {
                prop_assert_eq!(result.as_ref().map(|(result, _)| result), Some(first), "rank {}", rank);
            }
            for (_, at) in results.iter().flatten() {
                prop_assert!(*at <= DEADLINE + RETIREMENT_FLOOR, "{:?}", at);
            }
            match first {
                Ok(Retired::Everywhere {}) => prop_assert_eq!(deregistered.len(), RANKS as usize),
                Ok(Retired::Poisoned { poison: Poison::MembersLost { missing, .. }, culprits, .. }) => {
                    prop_assert_eq!((missing, culprits), (&vec![victim], &vec![victim]));
                }
                Err(Ending::Refused(_)) => prop_assert!(deregistered.is_empty(), "{:?}", deregistered),
                other => prop_assert!(false, "{:?}", other),
            }
            if results[victim as usize].is_some() {
                prop_assert_eq!(first, &Ok(Retired::Everywhere {}));
                break;
            }
        }
    }
}

#[test]
fn who_is_silent_is_to_blame_and_not_who_says_that_a_group_is_over() {
    let [world, pair] = [0, 1].map(|uid| GroupId { uid, epoch: 0 });
    let over = |groups: &[GroupId]| {
        Some(Release::Over { groups: groups.to_vec(), cause: "rank 1 is lost".to_owned() })
    };
    let done = || Some(Release::Done {});
    let judge = |releases: [Option<Release>; 3]| judge_released(&Posted::from_iter((0..).zip(releases)));
    let silent = judge([over(&[world, pair]), None, over(&[world])]);
    let poison = Poison::MembersLost { missing: vec![1], blocked: Vec::new() };
    assert_eq!(silent, Retired::Poisoned { poison, culprits: vec![1], over: vec![world, pair] });
    // Rank 1 died after it had posted its success, so it is no culprit: it has confirmed that its windows are gone. The
    // poison names rank 2, which reported the end of the group.
    let late = judge([done(), done(), over(&[world])]);
    let poison = Poison::RetirementFailed { rank: 2, cause: "rank 1 is lost".to_owned() };
    assert_eq!(late, Retired::Poisoned { poison, culprits: Vec::new(), over: vec![world] });
    assert_eq!(judge([done(), done(), done()]), Retired::Everywhere {});
    let failed = Some(Release::Failed { cause: "invalid usage".to_owned() });
    let Retired::Poisoned { poison: Poison::RetirementFailed { rank: 2, .. }, culprits, .. } =
        judge([over(&[world]), None, failed])
    else {
        panic!("rank 2 says what went wrong")
    };
    assert_eq!(culprits, [1, 2]);
}
