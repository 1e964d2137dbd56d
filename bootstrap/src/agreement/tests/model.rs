//! Every order of the steps of a small agreement, with crashes, time-outs, a lost store and repeated requests.

use std::{collections::HashSet, time::Duration};

use super::{
    super::{Agreement, Answer, Conclusion, Ending, Failure, Input, Output, Request},
    memory::Memory,
    sum::{Sum, seat},
};

/// The faults that the model may inject, and how many of each.
#[derive(Debug, Clone, Copy)]
struct Faults {
    /// Members that may crash.
    crashes: u32,
    /// Members that may lose the store permanently.
    losses: u32,
    /// Requests whose reply is lost, so that they are sent again.
    repeats: u32,
    /// Waits that may end although other members will still come.
    expiries: u32,
    /// Members whose action fails.
    failures: u32,
}

#[derive(Debug, Clone)]
enum State {
    Running(Box<Agreement<Sum>>, Output<Sum>),
    Crashed,
    Ended(Result<u64, Ending<Sum>>),
}

#[derive(Debug, Clone)]
struct World {
    members: Vec<State>,
    store: Memory,
    faults: Faults,
    /// The number of members that were to remove the keys.
    removers: u32,
}

const NOW: Duration = Duration::ZERO;

impl World {
    fn new(size: u32, numbers: &[u64], faults: Faults) -> Self {
        let member = |rank: u32| {
            let seat = seat(rank, size, Duration::from_secs(1));
            let mut machine = Agreement::new(seat, numbers[rank as usize], rank.into()).unwrap();
            let output = machine.begin(NOW);
            State::Running(Box::new(machine), output)
        };
        Self { members: (0..size).map(member).collect(), store: Memory::default(), faults, removers: 0 }
    }

    /// Executes a request. Returns `None` for a wait that goes on.
    fn execute(&mut self, request: &Request) -> Option<Answer> {
        let answer = self.store.execute(request);
        assert_ne!(answer, Some(Answer::Taken), "two values for the key of {request:?}");
        answer
    }

    /// Gives `input` to the member at `index`.
    fn give(mut self, index: usize, input: Input<Sum>) -> Self {
        let State::Running(machine, _) = &mut self.members[index] else { panic!("it does not run") };
        let mut machine = machine.clone();
        self.members[index] = match machine.step(input, NOW) {
            Output::Done(Conclusion { result, read, .. }) => {
                self.removers += u32::from(!read.is_empty());
                self.store.remove(&read);
                State::Ended(result)
            }
            output => State::Running(machine, output),
        };
        self
    }

    /// Returns all worlds that one step leads to.
    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            let State::Running(machine, output) = member else { continue };
            if self.faults.crashes > 0 {
                let mut world = self.clone();
                world.faults.crashes -= 1;
                world.members[index] = State::Crashed;
                all.push(world);
            }
            match output {
                Output::Act { .. } => {
                    all.push(self.clone().give(index, Input::Acted(true)));
                    if self.faults.failures > 0 {
                        let mut world = self.clone();
                        world.faults.failures -= 1;
                        all.push(world.give(index, Input::Acted(false)));
                    }
                }
                Output::Store(request) => {
                    if self.faults.losses > 0 {
                        let mut world = self.clone();
                        world.faults.losses -= 1;
                        all.push(world.clone().give(index, Input::Store(Answer::StoreFailed)));
                        // The request arrived, and only its answer was lost.
                        if world.execute(request).is_some() {
                            all.push(world.give(index, Input::Store(Answer::StoreFailed)));
                        }
                    }
                    let mut world = self.clone();
                    let Some(answer) = world.execute(request) else {
                        // A wait times out if all running members wait, or earlier, as an injected fault.
                        if self.faults.expiries > 0 || self.is_stuck() {
                            let mut world = self.clone();
                            world.faults.expiries = world.faults.expiries.saturating_sub(1);
                            all.push(world.give(index, Input::Store(Answer::Expired)));
                        }
                        continue;
                    };
                    if self.faults.repeats > 0 {
                        let mut world = world.clone();
                        world.faults.repeats -= 1;
                        world.members[index] = State::Running(machine.clone(), output.clone());
                        all.push(world);
                    }
                    all.push(world.give(index, Input::Store(answer)));
                }
                Output::Done(_) => unreachable!("the member would have ended"),
            }
        }
        all
    }

    /// Returns true if every member that runs waits for a key without a value.
    fn is_stuck(&self) -> bool {
        self.members.iter().all(|member| match member {
            State::Running(_, Output::Store(Request::Await { key, .. })) => !self.store.0.contains_key(key),
            State::Running(..) => false,
            State::Crashed | State::Ended(_) => true,
        })
    }

    /// Checks the results so far.
    fn check(&self) {
        let results = self.members.iter().filter_map(|member| match member {
            State::Ended(result) => Some(result),
            _ => None,
        });
        // The results of the members that have ended, except those that lost the store before they read a result.
        let told: Vec<_> =
            results.filter(|result| !matches!(result, Err(Ending::InDoubt | Ending::StoreFailed))).collect();
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "two results: {self:?}");
        let bad = told.iter().find(|result| matches!(result, Err(Ending::OutOfStep | Ending::Unreadable(_))));
        assert!(bad.is_none(), "{bad:?}: {self:?}");
    }
}

/// Without crashes and losses, every wait ends because its key gets a value, never by a timeout.
#[test]
fn progress_needs_no_time_out() {
    for faults in [NONE, Faults { repeats: 2, ..NONE }, Faults { failures: 1, ..NONE }] {
        let (mut seen, mut open) = (HashSet::new(), vec![World::new(2, &[1, 4], faults)]);
        while let Some(world) = open.pop() {
            if seen.insert(fingerprint(&world)) {
                let runs = |member: &State| matches!(member, State::Running(..));
                assert!(
                    !world.is_stuck() || !world.members.iter().any(runs),
                    "a wait needs a time-out: {world:?}"
                );
                let failed = |member: &State| matches!(member, State::Ended(Err(Ending::Failed(_))));
                assert!(!world.members.iter().any(failed), "nobody is absent: {world:?}");
                open.extend(world.next());
            }
        }
    }
}

/// Visits every reachable world. Returns the number of worlds, and the final ones.
fn explore(first: World) -> (usize, Vec<World>) {
    let (mut seen, mut open, mut ends) = (HashSet::new(), vec![first], Vec::new());
    while let Some(world) = open.pop() {
        if !seen.insert(fingerprint(&world)) {
            continue;
        }
        world.check();
        let next = world.next();
        if next.is_empty() {
            let runs = |member: &State| matches!(member, State::Running(..));
            assert!(!world.members.iter().any(runs), "a member waits for ever: {world:?}");
            ends.push(world);
        } else {
            open.extend(next);
        }
    }
    (seen.len(), ends)
}

/// Returns two 64-bit hashes of the world's text. Two of them make a collision improbable.
fn fingerprint(world: &World) -> (u64, u64) {
    let text = format!("{world:?}");
    let reversed: Vec<u8> = text.bytes().rev().collect();
    (crate::hash::fnv64(text.as_bytes()), crate::hash::fnv64(&reversed))
}

const NONE: Faults = Faults { crashes: 0, losses: 0, repeats: 0, expiries: 0, failures: 0 };

fn results(ends: &[World]) -> HashSet<String> {
    let of = |world: &World| {
        world.members.iter().map(|member| format!("{member:?}")).collect::<Vec<_>>().join(" ")
    };
    ends.iter().map(of).collect()
}

#[test]
fn without_faults_all_agree() {
    for (size, numbers, sum) in [(2, &[1, 4][..], 5), (3, &[1, 2, 4], 7), (2, &[8, 8], 4)] {
        let (_, ends) = explore(World::new(size, numbers, NONE));
        let all = |world: &World| {
            world.members.iter().all(|member| matches!(member, State::Ended(Ok(found)) if *found == sum))
        };
        assert!(!ends.is_empty() && ends.iter().all(all), "{:?}", results(&ends));
        // The last member that acknowledges removes all keys except the places.
        assert!(ends.iter().all(|world| world.removers == 1));
        let is_clean = |world: &World| world.store.0.keys().all(|key| key.starts_with("places/"));
        assert!(ends.iter().all(is_clean), "{:?}", ends[0].store.0.keys());
    }
    let (_, ends) = explore(World::new(2, &[0, 1], NONE));
    let agreed = |member: &State| matches!(member, State::Ended(Ok(1)));
    assert!(ends.iter().all(|world| world.members.iter().all(agreed)), "no action is needed");
    assert!(ends.iter().all(|world| world.store.0.keys().all(|key| key.starts_with("places/"))));
    let (_, ends) = explore(World::new(2, &[0, 0], NONE));
    let refused =
        |member: &State| matches!(member, State::Ended(Err(Ending::Refused(why))) if why == "nothing to add");
    assert!(ends.iter().all(|world| world.members.iter().all(refused)));
}

#[test]
fn two_members_never_differ() {
    for faults in [
        Faults { crashes: 1, expiries: 1, ..NONE },
        Faults { losses: 1, expiries: 1, ..NONE },
        Faults { losses: 2, ..NONE },
        Faults { repeats: 2, expiries: 1, ..NONE },
        Faults { crashes: 1, failures: 1, expiries: 1, ..NONE },
        Faults { expiries: 3, failures: 1, ..NONE },
    ] {
        let (states, ends) = explore(World::new(2, &[1, 7], faults));
        assert!(states > 100 && !ends.is_empty());
    }
}

#[test]
fn three_members_never_differ() {
    for faults in [
        Faults { crashes: 1, ..NONE },
        Faults { losses: 1, ..NONE },
        Faults { expiries: 1, ..NONE },
        Faults { failures: 1, ..NONE },
        Faults { repeats: 1, ..NONE },
    ] {
        let (states, ends) = explore(World::new(3, &[1, 2, 4], faults));
        assert!(states > 1000 && !ends.is_empty());
    }
}

#[test]
fn a_member_that_lost_the_store_is_in_doubt_only_between_its_record_and_the_result() {
    let (_, ends) = explore(World::new(2, &[1, 4], Faults { losses: 1, ..NONE }));
    for world in &ends {
        let lost = |member: &State| match member {
            State::Ended(Err(Ending::InDoubt)) => Some(true),
            State::Ended(Err(Ending::StoreFailed)) => Some(false),
            _ => None,
        };
        let doubt = world.members.iter().find_map(lost);
        let agreed = world.members.iter().any(|member| matches!(member, State::Ended(Ok(_))));
        // A member that lost the store without being in doubt has posted no record, so the other one cannot agree.
        assert!(doubt != Some(false) || !agreed, "{world:?}");
    }
    assert!(
        ends.iter()
            .any(|world| results(std::slice::from_ref(world)).iter().any(|all| all.contains("InDoubt")))
    );
}

#[test]
fn a_crashed_member_is_named() {
    let (_, ends) = explore(World::new(2, &[1, 4], Faults { crashes: 1, ..NONE }));
    let mut named = 0;
    for world in &ends {
        for (rank, member) in world.members.iter().enumerate() {
            if let State::Ended(Err(Ending::Failed(failure))) = member {
                assert!(matches!(failure, Failure::Absent { .. }), "{failure:?}");
                assert_eq!(failure.culprits(), [1 - rank as u32]);
                named += 1;
            }
        }
    }
    assert!(named > 0);
}
