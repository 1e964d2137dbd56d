//! Tests of retirements in which one rank dies. There is one run for each step before which the rank can die. A seed
//! determines the order of the ranks' steps.

use std::{collections::BTreeSet, time::Duration};

use bootstrap::agreement::{Agreement, Answer, Input, Memory, Output, Request};
use proptest::prelude::*;

use super::{
    hash::chain,
    retire::{Posted, judge_released},
    *,
};

const RANKS: u32 = 3;

const POOL: PoolId = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };

const DEADLINE: Duration = Duration::from_secs(16);

/// The state of a rank between two of its steps.
enum At {
    /// The rank can take its next step with this input. `None` before the first step.
    Ready(Option<Input<RetireProtocol>>),
    /// The rank waits until `key` has a value in the store, or the time `until` has come.
    Waiting {
        key: String,
        until: Duration,
    },
    Ended {
        result: Result<Retired, Ending>,
        at: Duration,
    },
    Dead,
}

/// The result of a retirement.
struct Story {
    /// The result of each rank, and the time at which the rank got it. `None` for a rank that died before.
    told: Vec<Option<(Result<Retired, Ending>, Duration)>>,
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
    let mut machines: Vec<Agreement<RetireProtocol>> = (0..RANKS).map(machine).collect();
    let mut last: Vec<Option<RetirePlan>> = vec![None; RANKS as usize];
    let mut at: Vec<At> = (0..RANKS).map(|_| At::Ready(None)).collect();
    let mut store = Memory::default();
    let (mut now, mut random, mut steps) = (Duration::ZERO, seed, 0);
    let mut deregistered = BTreeSet::new();
    loop {
        for place in &mut at {
            if let At::Waiting { key, .. } = place
                && let Some(stands) = store.0.get(key)
            {
                *place = At::Ready(Some(Input::Store(Answer::Result(stands.clone()))));
            }
        }
        let ready: Vec<usize> = (0..at.len()).filter(|rank| matches!(at[*rank], At::Ready(_))).collect();
        if ready.is_empty() {
            let soonest = at.iter().filter_map(|at| match at {
                At::Waiting { until, .. } => Some(*until),
                _ => None,
            });
            let Some(soonest) = soonest.min() else { break };
            now = now.max(soonest);
            for place in &mut at {
                if matches!(place, At::Waiting { until, .. } if *until <= now) {
                    *place = At::Ready(Some(Input::Store(Answer::Expired)));
                }
            }
            continue;
        }
        random = chain(random, [1]);
        let rank = ready[random as usize % ready.len()];
        if rank == victim as usize {
            if steps == step {
                at[rank] = At::Dead;
                continue;
            }
            steps += 1;
        }
        let At::Ready(input) = std::mem::replace(&mut at[rank], At::Dead) else { continue };
        let output = match input {
            None => machines[rank].begin(now),
            Some(input) => machines[rank].step(input, now),
        };
        at[rank] = match output {
            Output::Act { plan, .. } => {
                last[rank] = Some(plan.clone());
                let release = Release::Done {};
                At::Ready(Some(Input::Acted(match plan {
                    RetirePlan::Quiesce {} => RetireOutcome::Quiet(release),
                    RetirePlan::Deregister {} => {
                        deregistered.insert(rank as u32);
                        RetireOutcome::Deregistered(release)
                    }
                })))
            }
            Output::Done(end) => {
                store.remove(&end.read);
                let member = start(rank as u32).member;
                let ending = |ending| retirement_ending(ending, &member, last[rank].as_ref());
                At::Ended { result: end.result.or_else(ending), at: now }
            }
            Output::Store(Request::Await { key, until }) => At::Waiting { key, until },
            Output::Store(request) => {
                let answer = store.execute(&request).expect("it is no wait");
                assert_ne!(answer, Answer::Taken, "a member posts once");
                At::Ready(Some(Input::Store(answer)))
            }
        };
    }
    let told = at.into_iter().map(|at| match at {
        At::Ended { result, at } => Some((result, at)),
        _ => None,
    });
    Story { told: told.collect(), deregistered }
}

proptest! {
    /// If a rank dies, all other ranks get the same result, at most [`FLOORS`] after the deadline. If the result is a
    /// refusal, no rank has deregistered windows. If it is a success, all ranks have deregistered theirs. The only
    /// other possible result is a poison that names the dead rank.
    #[test]
    fn who_dies_in_a_retirement_leaves_the_others_agreed(seed: u64, victim in 0..RANKS) {
        for step in 0.. {
            let Story { told, deregistered } = story(seed, victim, step);
            let mut others = (0..RANKS).zip(&told).filter(|(rank, _)| *rank != victim);
            let Some((_, Some((first, _)))) = others.next() else { panic!("a survivor was told nothing") };
            for (rank, told) in others {
                prop_assert_eq!(told.as_ref().map(|(result, _)| result), Some(first), "rank {}", rank);
            }
            for (_, at) in told.iter().flatten() {
                prop_assert!(*at <= DEADLINE + FLOORS, "{:?}", at);
            }
            match first {
                Ok(Retired::Everywhere {}) => prop_assert_eq!(deregistered.len(), RANKS as usize),
                Ok(Retired::Poisoned { poison: Poison::MembersLost { missing, .. }, culprits, .. }) => {
                    prop_assert_eq!((missing, culprits), (&vec![victim], &vec![victim]));
                }
                Err(Ending::Refused(_)) => prop_assert!(deregistered.is_empty(), "{:?}", deregistered),
                other => prop_assert!(false, "{:?}", other),
            }
            if told[victim as usize].is_some() {
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
    // Rank 1 posted its success and then died, so it is no culprit. The poison names rank 2, which reported the end of
    // the group.
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
