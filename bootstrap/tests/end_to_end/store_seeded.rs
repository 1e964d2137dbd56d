//! The store's state machines under schedules that seeds choose ([`World`]). The results that ranks see are consistent
//! with one order of operations. No pushed element is lost, except at most one for each pop whose connection broke.
//! Neither broken connections nor strangers (connections that send random bytes) affect other clients.

use std::collections::{BTreeMap, BTreeSet};

use super::store_world::{COUNTER, Event, Op, QUEUE, REGISTER, World};
use bootstrap::store::machine::{Failure, Reply, Request};

const STEPS: usize = 1000;

/// Returns the number of seeds: 500 times the environment variable `TEST_EFFORT`, or 500.
fn seeds() -> u64 {
    500 * crate::test_effort()
}

/// Runs the world of a seed. At every hundredth step, checks that no rank waits without need.
fn run(seed: u64) -> World {
    let mut world = World::new(seed, 2 + (seed % 5) as usize);
    for step in 1..=STEPS {
        world.step();
        if step % 100 == 0 {
            world.settle();
            nobody_waits_for_what_is_there(seed, &mut world);
        }
    }
    world
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert!(run(seed).history == run(seed).history, "seed {seed}");
    }
    assert!(run(0).history != run(5).history);
}

#[test]
fn what_ranks_see_is_one_order() {
    let (mut ended, seeds) = (0, seeds());
    for seed in 0..seeds {
        let mut world = run(seed);
        world.finish();
        check_counter(seed, &mut world);
        check_register(seed, &mut world);
        check_queue(seed, &mut world);
        check_waits(seed, &world.history);
        ended += world.history.iter().filter(|event| matches!(event.outcome, Some(Ok(_)))).count();
    }
    // On average, at least 20 operations of a run must complete. Otherwise the checks would show little.
    println!("{ended} operations in {seeds} runs");
    assert!(ended as u64 > seeds * 20, "{ended}");
}

fn nobody_waits_for_what_is_there(seed: u64, world: &mut World) {
    for op in world.under_way().cloned().collect::<Vec<_>>() {
        match &op {
            Op::Wait { keys, .. } => {
                let there = world.ask(Request::Check { keys: keys.clone() });
                assert_eq!(there, Reply::Status(1), "seed {seed}: {keys:?} are there and still waited for");
            }
            Op::Pop { .. } | Op::Watch { .. } => {
                let length = world.ask(Request::QueueLen { key: QUEUE.into() });
                assert_eq!(
                    length,
                    Reply::Integer(0),
                    "seed {seed}: {op:?} goes on while the queue has elements"
                );
            }
            op => panic!("seed {seed}: {op:?} was not answered"),
        }
    }
}

/// Returns true if `a` had ended before `b` was called.
fn before(a: &Event, b: &Event) -> bool {
    a.ended.is_some_and(|ended| ended < b.called)
}

/// Asserts that the positions in the store's order of operations agree with the order in time: an operation that ended
/// before another was called must not have a higher position.
fn assert_in_order(seed: u64, mut placed: Vec<(&Event, usize)>) {
    placed.sort_by_key(|(_, position)| *position);
    for (i, (later, high)) in placed.iter().enumerate() {
        for (earlier, low) in &placed[..i] {
            let wrong = before(later, earlier) && low < high;
            assert!(!wrong, "seed {seed}: {later:?} had ended before {earlier:?} was called");
        }
    }
}

fn check_counter(seed: u64, world: &mut World) {
    let Reply::Bytes(last) = world.ask(Request::Get { key: COUNTER.into() }) else { panic!() };
    let last: usize = if last.is_empty() { 0 } else { String::from_utf8(last).unwrap().parse().unwrap() };
    let counts = || world.history.iter().filter(|event| event.op == Op::Count);
    let sums: Vec<_> = counts()
        .filter_map(|event| match event.outcome {
            Some(Ok(Some(Reply::Integer(sum)))) => Some((event, sum as usize)),
            _ => None,
        })
        .collect();
    let distinct: BTreeSet<_> = sums.iter().map(|(_, sum)| *sum).collect();
    assert_eq!(distinct.len(), sums.len(), "seed {seed}: two additions gave the same sum");
    assert!(distinct.last().is_none_or(|sum| *sum <= last), "seed {seed}");
    assert!((sums.len()..=counts().count()).contains(&last), "seed {seed}: the counter is {last}");
    assert_in_order(seed, sums);
}

/// Checks the register. Every new value has replaced a known value, so the order of all values can be found by going
/// backwards from the last value.
fn check_register(seed: u64, world: &mut World) {
    let Reply::Bytes(mut value) = world.ask(Request::Get { key: REGISTER.into() }) else { panic!() };
    let swaps = || {
        world.history.iter().filter_map(|event| match &event.op {
            Op::Swap { expected, new } => Some((event, expected, new)),
            _ => None,
        })
    };
    let over: BTreeMap<_, _> = swaps().map(|(_, expected, new)| (new.clone(), expected.clone())).collect();
    let mut positions = BTreeMap::new();
    let mut position = over.len() + 1;
    while !value.is_empty() {
        positions.insert(value.clone(), position);
        value = over[&value].clone();
        position -= 1;
    }
    positions.insert(Vec::new(), position);
    let mut seen = Vec::new();
    for (event, expected, new) in swaps() {
        let Some(Ok(Some(Reply::Bytes(held)))) = &event.outcome else { continue };
        let Some(position) = positions.get(held) else {
            panic!("seed {seed}: {event:?} saw what never stood")
        };
        assert!(held == new || held != expected, "seed {seed}: {event:?} was not done, but could have been");
        seen.push((event, *position));
    }
    assert_in_order(seed, seen);
}

fn check_queue(seed: u64, world: &mut World) {
    let mut left = Vec::new();
    while let Reply::Popped(Some((_, token))) = world.ask(Request::QueuePop { key: QUEUE.into() }) {
        left.push(token);
    }
    let (mut pushes, mut pops, mut lost_pops) = (BTreeMap::new(), BTreeMap::new(), 0);
    for event in &world.history {
        match (&event.op, &event.outcome) {
            (Op::Push { token }, outcome) => drop(pushes.insert(token, (event, outcome.is_some()))),
            (Op::Pop { .. }, Some(Ok(Some(Reply::Popped(Some((_, token))))))) => {
                assert!(pops.insert(token, event).is_none(), "seed {seed}: {token:?} was popped twice");
            }
            (Op::Pop { .. }, None) => lost_pops += 1,
            _ => {}
        }
    }
    let mut gone = 0;
    for (token, (_, certain)) in &pushes {
        let ends = usize::from(pops.contains_key(token)) + left.iter().filter(|other| other == token).count();
        assert!(ends <= 1, "seed {seed}: {token:?} was both popped and left");
        gone += usize::from(*certain && ends == 0);
    }
    assert!(gone <= lost_pops, "seed {seed}: {gone} elements are lost, but only {lost_pops} pops");
    assert!(pops.keys().all(|token| pushes.contains_key(*token)), "seed {seed}: popped, but never pushed");
    // First in, first out: if one push ended before another began, the second element is not popped before the first.
    for (first, (push, _)) in &pushes {
        for (second, pop) in &pops {
            let (other, _) = &pushes[*second];
            let overtaken = match pops.get(*first) {
                Some(first_pop) => before(pop, first_pop),
                None => left.contains(*first),
            };
            assert!(!(before(push, other) && overtaken), "seed {seed}: {second:?} has overtaken {first:?}");
        }
    }
}

fn check_waits(seed: u64, history: &[Event]) {
    let sets = |key: &Vec<u8>| {
        let key = key.clone();
        history.iter().filter(move |event| matches!(&event.op, Op::Set { key: set } if *set == key))
    };
    for wait in history {
        let Op::Wait { keys, deadline } = &wait.op else { continue };
        let ended = wait.ended.unwrap();
        match &wait.outcome {
            Some(Ok(Some(Reply::Values(values)))) => {
                assert_eq!(values, keys, "seed {seed}");
                for key in keys {
                    let set = sets(key).any(|set| set.called < ended);
                    assert!(set, "seed {seed}: a wait for {key:?} has ended before anybody set it");
                }
            }
            Some(Err(Failure::TimedOut { missing })) => {
                assert!(ended.time >= *deadline, "seed {seed}: {wait:?} has ended early");
                assert!(!missing.is_empty(), "seed {seed}");
                for key in missing {
                    let there = sets(key).any(|set| {
                        set.outcome.is_some() && set.ended.is_some_and(|ended| ended.time < *deadline)
                    });
                    assert!(!there, "seed {seed}: {wait:?} did not see {key:?}");
                }
            }
            None => {}
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}
