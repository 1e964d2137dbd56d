//! The checks of a run.

use std::collections::{BTreeMap, BTreeSet};

use bootstrap::agreement::Ending;

use super::{Answer, Event, Last, Op, PROMPT, Run};

/// Returns true if `a` was answered before `b` was called. If the connection of `a` broke, its request may still be in
/// transit.
fn before(a: &Event, b: &Event) -> bool {
    a.answer.is_some() && a.ended.is_some_and(|ended| ended.number < b.called.number)
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

impl Run {
    /// Panics if the results of the run are wrong.
    pub(super) fn judge(&self) {
        assert_eq!(self.clients, 0, "seed {}: clients have not disconnected", self.seed);
        self.judge_counter();
        self.judge_register();
        self.judge_queue();
        self.judge_waits();
        self.judge_barrier();
        self.judge_agreement();
    }

    fn judge_counter(&self) {
        let seed = self.seed;
        let last = match &self.counter[..] {
            [] => 0,
            digits => std::str::from_utf8(digits).unwrap().parse().unwrap(),
        };
        let counts = || self.events.iter().filter(|event| event.op == Op::Count);
        let sums: Vec<_> = counts()
            .filter_map(|event| match event.answer {
                Some(Answer::Sum(sum)) => Some((event, sum as usize)),
                _ => None,
            })
            .collect();
        let distinct: BTreeSet<_> = sums.iter().map(|(_, sum)| *sum).collect();
        assert_eq!(distinct.len(), sums.len(), "seed {seed}: two additions gave the same sum");
        assert!(distinct.last().is_none_or(|sum| *sum <= last), "seed {seed}");
        assert!((sums.len()..=counts().count()).contains(&last), "seed {seed}: the counter is {last}");
        assert_in_order(seed, sums);
    }

    /// Checks the register. Every new value has replaced a known value, so the order of all values can be found by
    /// going backwards from the last value.
    fn judge_register(&self) {
        let (seed, mut value) = (self.seed, self.register.clone());
        let swaps = || {
            self.events.iter().filter_map(|event| match &event.op {
                Op::Swap { expected, new } => Some((event, expected, new)),
                _ => None,
            })
        };
        let over: BTreeMap<_, _> =
            swaps().map(|(_, expected, new)| (new.clone(), expected.clone())).collect();
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
            let Some(Answer::Value(held)) = &event.answer else { continue };
            let Some(position) = positions.get(held) else {
                panic!("seed {seed}: {event:?} saw a value that the register never had")
            };
            assert!(
                held == new || held != expected,
                "seed {seed}: {event:?} was not done, but could have been"
            );
            seen.push((event, *position));
        }
        assert_in_order(seed, seen);
    }

    /// Checks the queue. The host has popped all elements that were left.
    fn judge_queue(&self) {
        let seed = self.seed;
        let (mut pushes, mut pops, mut lost_pops) = (BTreeMap::new(), BTreeMap::new(), 0);
        for event in &self.events {
            match (&event.op, &event.answer) {
                (Op::Push { token }, answer) => drop(pushes.insert(token, (event, answer.is_some()))),
                (Op::Pop { .. }, Some(Answer::Value(token))) => {
                    assert!(pops.insert(token, event).is_none(), "seed {seed}: {token:?} was popped twice");
                }
                (Op::Pop { .. }, None) => lost_pops += 1,
                _ => {}
            }
        }
        let is_lost =
            |(token, (_, certain)): &(&&Vec<u8>, &(&Event, bool))| *certain && !pops.contains_key(**token);
        let lost = pushes.iter().filter(is_lost).count();
        assert!(lost <= lost_pops, "seed {seed}: {lost} elements are lost, but only {lost_pops} pops");
        assert!(
            pops.keys().all(|token| pushes.contains_key(*token)),
            "seed {seed}: popped, but never pushed"
        );
        // First in, first out: if one push ended before another began, the second element is not popped before the
        // first.
        for (first, (push, _)) in &pushes {
            let Some(first_pop) = pops.get(*first) else { continue };
            for (second, pop) in &pops {
                let is_overtaken = before(push, pushes[*second].0) && before(pop, first_pop);
                assert!(!is_overtaken, "seed {seed}: {second:?} has overtaken {first:?}");
            }
        }
    }

    fn judge_waits(&self) {
        let seed = self.seed;
        let sets = |key: &String| {
            let key = key.clone();
            self.events.iter().filter(move |event| matches!(&event.op, Op::Set { key: set } if *set == key))
        };
        for wait in &self.events {
            let (Op::Wait { keys, deadline }, Some(ended)) = (&wait.op, wait.ended) else { continue };
            // The time at which the first set of a key was acknowledged.
            let set_at = |key: &String| {
                let acknowledged = sets(key).filter(|set| set.answer.is_some());
                acknowledged
                    .filter_map(|set| set.ended)
                    .min_by_key(|ended| ended.number)
                    .map(|ended| ended.time)
            };
            match &wait.answer {
                Some(Answer::Values(values)) => {
                    let expected: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
                    assert_eq!(*values, expected, "seed {seed}");
                    for key in keys {
                        let is_set = sets(key).any(|set| set.called.number < ended.number);
                        assert!(is_set, "seed {seed}: a wait for {key:?} has ended before anybody set it");
                    }
                    let known: Option<Vec<_>> = keys.iter().map(set_at).collect();
                    if let Some(known) = known {
                        let since = known.into_iter().chain([wait.called.time]).max().unwrap();
                        let late = ended.time.saturating_duration_since(since);
                        assert!(late < PROMPT, "seed {seed}: {wait:?} has ended {late:?} after the last set");
                    }
                }
                Some(Answer::TimedOut(missing)) => {
                    assert!(ended.time >= *deadline, "seed {seed}: {wait:?} has ended early");
                    assert!(!missing.is_empty(), "seed {seed}");
                    for key in missing {
                        let is_set = set_at(key).is_some_and(|time| time < *deadline);
                        assert!(!is_set, "seed {seed}: {wait:?} did not see {key:?}");
                    }
                }
                None => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }

    /// Checks that no rank has passed the barrier unless all ranks have arrived at it.
    fn judge_barrier(&self) {
        let has_passed = self.last.iter().flatten().any(|last| last.barrier);
        assert!(!has_passed || self.arrived == self.last.len(), "seed {}: {:?}", self.seed, self.last);
    }

    /// Checks the agreement. The ranks with a known result have the same one. A sum contains the numbers of all ranks.
    fn judge_agreement(&self) {
        let size = self.last.len() as u64;
        let is_known = |last: &&Last| !matches!(last.agreement, Err(Ending::InDoubt | Ending::StoreFailed));
        let known: Vec<_> = self.last.iter().flatten().filter(is_known).map(|last| &last.agreement).collect();
        assert!(known.windows(2).all(|pair| pair[0] == pair[1]), "seed {}: {known:?}", self.seed);
        if let Some(Ok(sum)) = known.first() {
            assert_eq!(*sum, size * (size - 1) / 2, "seed {}", self.seed);
        }
    }
}
