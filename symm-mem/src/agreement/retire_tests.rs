//! Retirements in which a rank dies, at each of its steps, in seeded orders.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use proptest::prelude::*;

use super::{
    hash::chain,
    machine::FLOORS,
    retire::{Judged, judge_released},
    *,
};

const RANKS: u32 = 3;

const POOL: PoolId = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };

const DEADLINE: Duration = Duration::from_secs(16);

enum At {
    Ready(RetireInput),
    Waiting { key: String, until: Duration },
    Ended { result: Result<Retired, Ending>, at: Duration },
    Dead,
}

/// The result of a retirement.
struct Story {
    /// The result of each rank and its time; `None` for a rank that died before.
    told: Vec<Option<(Result<Retired, Ending>, Duration)>>,
    /// The ranks that deregistered their windows.
    deregistered: BTreeSet<u32>,
}

fn record(rank: u32) -> RetirementRecord {
    let held = Held { graphs: 0, blocks: 0 };
    RetirementRecord {
        rank,
        domain: RankList((0..RANKS).collect()),
        deadline_ms: DEADLINE.as_millis() as u64,
        readiness: Readiness::Ready,
        enqueued: Vec::new(),
        log: LogPoint::default(),
        groups: Vec::new(),
        segments: vec![Candidate { ordinal: 0, held, uncovered: Vec::new() }],
    }
}

/// A retirement in the order that `seed` draws, in which `victim` dies before its step number `step`.
fn story(seed: u64, victim: u32, step: u32) -> Story {
    let members: Vec<u32> = (0..RANKS).collect();
    let begin = |rank: u32| Retire::new(POOL, 0, &record(rank), members.clone());
    let mut machines: Vec<Retire> = members.iter().map(|rank| begin(*rank)).collect();
    let mut at: Vec<At> = members.iter().map(|_| At::Ready(RetireInput::Answer(Input::Start))).collect();
    let mut store: HashMap<String, Vec<u8>> = HashMap::new();
    let mut counters: HashMap<String, u64> = HashMap::new();
    let (mut now, mut random, mut steps) = (Duration::ZERO, seed, 0);
    let mut deregistered = BTreeSet::new();
    loop {
        for place in &mut at {
            if let At::Waiting { key, .. } = place
                && let Some(stands) = store.get(key)
            {
                *place = At::Ready(RetireInput::Answer(Input::Stands(stands.clone())));
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
                    *place = At::Ready(RetireInput::Answer(Input::Expired));
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
        let answer = match machines[rank].step(input, now) {
            RetireOutput::Quiesce { .. } => RetireInput::Quiet(Release::Done {}),
            RetireOutput::Deregister { .. } => {
                deregistered.insert(rank as u32);
                RetireInput::Deregistered(Release::Done {})
            }
            RetireOutput::Done(meeting) => {
                at[rank] = At::Ended { result: meeting.result, at: now };
                continue;
            }
            RetireOutput::Ask(Output::Await { key, until }) => {
                at[rank] = At::Waiting { key, until };
                continue;
            }
            RetireOutput::Ask(Output::Post { key, value }) => {
                assert_eq!(store.insert(key, value), None, "a member posts once");
                RetireInput::Answer(Input::Stored)
            }
            RetireOutput::Ask(Output::Set { key, value }) => {
                store.insert(key, value);
                RetireInput::Answer(Input::Stored)
            }
            RetireOutput::Ask(Output::Add { key }) => {
                let count = counters.entry(key).or_default();
                *count += 1;
                RetireInput::Answer(Input::Count(*count))
            }
            RetireOutput::Ask(Output::Fetch { keys }) => {
                RetireInput::Answer(Input::Values(keys.iter().map(|key| store.get(key).cloned()).collect()))
            }
            RetireOutput::Ask(Output::Propose { key, value }) => {
                RetireInput::Answer(Input::Stands(store.entry(key).or_insert(value).clone()))
            }
            RetireOutput::Ask(other) => panic!("a retirement asks for {other:?}"),
        };
        at[rank] = At::Ready(answer);
    }
    let told = at.into_iter().map(|at| match at {
        At::Ended { result, at } => Some((result, at)),
        _ => None,
    });
    Story { told: told.collect(), deregistered }
}

proptest! {
    /// If a rank dies, all other ranks get the same result in time. One possible result is a refusal, and then no
    /// rank deregistered windows. Another is success, and then all ranks deregistered them. The last one names the
    /// lost rank.
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
                Ok(Retired::Everywhere) => prop_assert_eq!(deregistered.len(), RANKS as usize),
                Ok(Retired::Poisoned { poison: Poison::MembersLost { missing, .. }, culprits, .. }) => {
                    prop_assert_eq!((missing, culprits), (&vec![victim], &vec![victim]));
                }
                Err(Ending::Refused(_)) => prop_assert!(deregistered.is_empty(), "{:?}", deregistered),
                other => prop_assert!(false, "{:?}", other),
            }
            if told[victim as usize].is_some() {
                prop_assert_eq!(first, &Ok(Retired::Everywhere));
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
    let judge = |releases: [Option<Release>; 3]| judge_released(&(0..).zip(releases).collect());
    let silent = judge([over(&[world, pair]), None, over(&[world])]);
    let poison = Poison::MembersLost { missing: vec![1], blocked: Vec::new() };
    assert_eq!(silent, Judged::Poison { poison, culprits: vec![1], over: vec![world, pair] });
    // A rank that died after it had posted its success.
    let late = judge([done(), done(), over(&[world])]);
    let poison = Poison::RetirementFailed { rank: 2, cause: "rank 1 is lost".to_owned() };
    assert_eq!(late, Judged::Poison { poison, culprits: Vec::new(), over: vec![world] });
    assert_eq!(judge([done(), done(), done()]), Judged::Done {});
    let failed = Some(Release::Failed { cause: "invalid usage".to_owned() });
    let Judged::Poison { poison: Poison::RetirementFailed { rank: 2, .. }, culprits, .. } =
        judge([over(&[world]), None, failed])
    else {
        panic!("rank 2 says what went wrong")
    };
    assert_eq!(culprits, [1, 2]);
}
