//! Executes small agreements in all orders of their steps, with crashes, early timeouts, failed actions, lost stores
//! and repeated requests. The test with four members visits only the orders that the reduction below selects, unless
//! `TEST_EFFORT` is above 1.
//!
//! # Reduction
//! A *world* is the state of all members and of the store. The next step of a member is *local* if it is independent of
//! all steps that other members can take before it: neither of the two steps changes the effect of the other. If some
//! members have a local step, only one of them is selected, and its local step is visited, with the faults that the
//! member can have instead. If no member has a local step, the steps of all members are visited. This loses no result:
//!
//! - A local step stays possible until its member takes a step or has a fault. So every complete order contains such a
//!   step or fault. If it is moved to the front of the order, the result is the same, because it is independent of all
//!   steps before it.
//! - A fault of another member changes only that member, and the part of the store that its next step would change. So
//!   the fault and the local step give the same world in either order, and it suffices to visit the fault after the
//!   step.
//! - A wait times out if all members wait. A member with a local step does not wait, so this kind of timeout cannot
//!   come before the step.
//! - Every step advances its member or consumes a fault. Members take finitely many steps, and faults are finitely
//!   many. So the steps of every member are visited in the end.
//!
//! | step | local, because |
//! |---|---|
//! | action | it uses no key |
//! | reads a result that exists | results do not change, and are removed after this member has acknowledged |
//! | proposes its member list | all members propose the same list, so it does not matter who is first |
//!
//! To *count* is to add 1 to a counter of the agreement, after a post or an acknowledgement.
//!
//! Suppose that no wait ends early and no request is repeated. Then a wait times out only if no member can take a step,
//! and a counter reaches the number of members only if all of them have posted. So at most one member at a time reads
//! the posts and proposes a result. All others wait meanwhile, or have ended or crashed. Therefore these steps are
//! local, too:
//!
//! | step | local, because |
//! |---|---|
//! | adds its place, posts | others read them after this member has counted, or when no member can take a step |
//! | reads posts and places, proposes | all others wait for this result |
//! | reads why members are missing | no member changes these keys |
//! | removes its place | there is a decision, so no member reads places again |
//! | acknowledges | others read the acknowledgement after this member has counted |
//! | checks all acknowledgements | all others have ended or crashed |
//!
//! If actions may fail, members may read the outcomes early. Then posts, reads and proposals of outcomes are not local.
//! Counting is never local, because the order of counting determines the member that reads the posts or checks the
//! acknowledgements.

use std::{
    collections::HashSet,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
    time::Duration,
};

use super::{
    super::{Agreement, Answer, Conclusion, Ending, Failure, Input, Memory, Output, Request},
    sum::{Sum, member_of, why_key},
};

/// The faults that the model may inject, and how many of each.
#[derive(Debug, Clone, Copy, Hash)]
struct Faults {
    /// Members that may crash.
    crashes: u32,
    /// Members that may lose the store permanently.
    losses: u32,
    /// Requests whose reply is lost. The member sends them again.
    repeats: u32,
    /// Waits that may time out although other members can still take steps.
    expiries: u32,
    /// Actions that may fail.
    failures: u32,
}

/// The state of a member.
#[derive(Debug)]
enum State {
    /// The member's state machine, and its output that is not yet executed.
    Running(Box<Agreement<Sum>>, Output<Sum>),
    Crashed,
    Ended(Result<u64, Ending<Sum>>),
}

/// A state, with two 64-bit hashes of it. Two hashes make a collision improbable.
#[derive(Debug)]
struct Hashed {
    state: State,
    hashes: [u64; 2],
}

impl State {
    fn hashed(self) -> Rc<Hashed> {
        let mut text = HashText(hashers());
        fmt::write(&mut text, format_args!("{self:?}")).expect("hashing does not fail");
        Rc::new(Hashed { state: self, hashes: text.0.map(|hasher| hasher.finish()) })
    }
}

fn hashers() -> [DefaultHasher; 2] {
    [0u8, 1].map(|salt| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher
    })
}

/// Hashes the text that is written to it.
struct HashText([DefaultHasher; 2]);

impl fmt::Write for HashText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.iter_mut().for_each(|hasher| hasher.write(text.as_bytes()));
        Ok(())
    }
}

/// The state of all members and of the store, and the faults that are left.
#[derive(Debug, Clone)]
struct World {
    members: Vec<Rc<Hashed>>,
    store: Rc<Memory>,
    /// The faults that were not injected yet.
    faults: Faults,
    /// The faults that are allowed in the whole run.
    all_faults: Faults,
    /// The number of members that were asked to remove the keys.
    removers: u32,
}

const NOW: Duration = Duration::ZERO;

impl World {
    fn new(size: u32, numbers: &[u64], faults: Faults) -> Self {
        let member = |rank: u32| {
            let own = member_of(rank, size, Duration::from_secs(1));
            let mut machine = Agreement::new(own, numbers[rank as usize], rank.into()).unwrap();
            let output = machine.begin(NOW);
            State::Running(Box::new(machine), output).hashed()
        };
        let (members, store) = ((0..size).map(member).collect(), Rc::default());
        Self { members, store, faults, all_faults: faults, removers: 0 }
    }

    /// Executes a request. Returns `None` for a wait for a key without a value. Panics if two values are posted under
    /// one key.
    fn execute(&mut self, request: &Request) -> Option<Answer> {
        if let Request::Await { key, .. } = request
            && !self.store.0.contains_key(key)
        {
            return None;
        }
        let answer = Rc::make_mut(&mut self.store).execute(request);
        assert_ne!(answer, Some(Answer::Taken), "two values for the key of {request:?}");
        answer
    }

    /// Passes `input` to the member at `index`, and returns the world after that.
    fn give(mut self, index: usize, input: Input<Sum>) -> Self {
        let State::Running(machine, _) = &self.members[index].state else { panic!("it does not run") };
        let mut machine = machine.clone();
        let state = match machine.step(input, NOW) {
            Output::Done(Conclusion { result, read, .. }) => {
                self.removers += u32::from(!read.is_empty());
                if !read.is_empty() {
                    Rc::make_mut(&mut self.store).remove(&read);
                }
                State::Ended(result)
            }
            output => State::Running(machine, output),
        };
        self.members[index] = state.hashed();
        self
    }

    /// Returns the worlds that one step or fault leads to. If `reduces` is true, returns only those that the reduction
    /// of the module docs visits.
    fn next(&self, reduces: bool) -> Vec<Self> {
        let mut members = 0..self.members.len();
        match members.clone().find(|index| reduces && self.is_local(*index)) {
            Some(index) => self.steps(index),
            None => members.by_ref().flat_map(|index| self.steps(index)).collect(),
        }
    }

    /// Returns true if the next step of the member at `index` is local by the tables of the module docs.
    fn is_local(&self, index: usize) -> bool {
        let State::Running(_, output) = &self.members[index].state else { return false };
        let Faults { repeats, expiries, failures, .. } = self.all_faults;
        let is_read_early =
            |key: &String| repeats > 0 || expiries > 0 || failures > 0 && key.contains("/outcomes");
        match output {
            Output::Act { .. } => true,
            Output::Store(Request::Await { key, .. }) => self.store.0.contains_key(key),
            Output::Store(Request::Propose { key, .. }) if key.ends_with("/members") => true,
            Output::Store(Request::Add { .. }) | Output::Done(_) => false,
            Output::Store(
                Request::Enter { key, .. }
                | Request::Leave { key, .. }
                | Request::Post { key, .. }
                | Request::Propose { key, .. },
            ) => !is_read_early(key),
            Output::Store(Request::Fetch { keys } | Request::Check { keys }) => {
                !keys.iter().any(is_read_early)
            }
        }
    }

    /// Returns the worlds that one step or fault of the member at `index` leads to: none if the member has ended or
    /// crashed, and only those of faults if it waits while another member can take a step.
    fn steps(&self, index: usize) -> Vec<Self> {
        let mut all = Vec::new();
        if let State::Running(_, output) = &self.members[index].state {
            if self.faults.crashes > 0 {
                let mut world = self.clone();
                world.faults.crashes -= 1;
                world.members[index] = State::Crashed.hashed();
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
                        // The request has taken effect, and only its answer is lost.
                        if world.execute(request).is_some() {
                            all.push(world.give(index, Input::Store(Answer::StoreFailed)));
                        }
                    }
                    let mut world = self.clone();
                    let Some(answer) = world.execute(request) else {
                        // A wait can time out if all running members wait or, as an injected fault, earlier.
                        let is_stuck = self.is_stuck();
                        if self.faults.expiries > 0 || is_stuck {
                            let mut world = self.clone();
                            world.faults.expiries -= u32::from(!is_stuck);
                            all.push(world.give(index, Input::Store(Answer::Expired)));
                        }
                        return all;
                    };
                    if self.faults.repeats > 0 {
                        let mut world = world.clone();
                        world.faults.repeats -= 1;
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
        self.members.iter().all(|member| match &member.state {
            State::Running(_, Output::Store(Request::Await { key, .. })) => !self.store.0.contains_key(key),
            State::Running(..) => false,
            State::Crashed | State::Ended(_) => true,
        })
    }

    fn states(&self) -> impl Iterator<Item = &State> {
        self.members.iter().map(|member| &member.state)
    }

    /// Panics if two members that have read a result have different ones, or if a result is [`Ending::OutOfStep`] or
    /// [`Ending::Unreadable`].
    fn check(&self) {
        let results = self.states().filter_map(|state| match state {
            State::Ended(result) => Some(result),
            _ => None,
        });
        // Members that lost the store before they read a result have none to compare.
        let told: Vec<_> =
            results.filter(|result| !matches!(result, Err(Ending::InDoubt | Ending::StoreFailed))).collect();
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "two results: {self:?}");
        let bad = told.iter().find(|result| matches!(result, Err(Ending::OutOfStep | Ending::Unreadable(_))));
        assert!(bad.is_none(), "{bad:?}: {self:?}");
    }
}

/// Without crashes, losses and early timeouts, every wait ends because its key gets a value, and no member ends with
/// [`Ending::Failed`].
#[test]
fn progress_needs_no_time_out() {
    for faults in [NONE, Faults { repeats: 2, ..NONE }, Faults { failures: 1, ..NONE }] {
        let (mut seen, mut open) = (HashSet::new(), vec![World::new(2, &[1, 4], faults)]);
        while let Some(world) = open.pop() {
            if seen.insert(fingerprint(&world)) {
                let runs = |member: &State| matches!(member, State::Running(..));
                assert!(!world.is_stuck() || !world.states().any(runs), "a wait needs a time-out: {world:?}");
                let failed = |member: &State| matches!(member, State::Ended(Err(Ending::Failed(_))));
                assert!(!world.states().any(failed), "nobody is absent: {world:?}");
                open.extend(world.next(false));
            }
        }
    }
}

/// Visits and checks every world that can be reached from `first` or, if `reduces` is true, those that the reduction
/// visits. Returns the number of visited worlds, and the final ones, in which no member runs. Panics if a check fails
/// or a member waits for ever.
fn explore(first: World, reduces: bool) -> (usize, Vec<World>) {
    let (mut seen, mut open, mut ends) = (HashSet::new(), vec![first], Vec::new());
    while let Some(world) = open.pop() {
        if !seen.insert(fingerprint(&world)) {
            continue;
        }
        world.check();
        let next = world.next(reduces);
        if next.is_empty() {
            let runs = |member: &State| matches!(member, State::Running(..));
            assert!(!world.states().any(runs), "a member waits for ever: {world:?}");
            ends.push(world);
        } else {
            open.extend(next);
        }
    }
    (seen.len(), ends)
}

/// Returns two 64-bit hashes of the world.
fn fingerprint(world: &World) -> [u64; 2] {
    let mut both = hashers();
    for (index, hasher) in both.iter_mut().enumerate() {
        (world.faults, world.removers).hash(hasher);
        world.members.iter().for_each(|member| hasher.write_u64(member.hashes[index]));
        for (key, value) in &world.store.0 {
            (key, value).hash(hasher);
        }
    }
    both.map(|hasher| hasher.finish())
}

const NONE: Faults = Faults { crashes: 0, losses: 0, repeats: 0, expiries: 0, failures: 0 };

fn results(ends: &[World]) -> HashSet<String> {
    let of = |world: &World| world.states().map(|state| format!("{state:?}")).collect::<Vec<_>>().join(" ");
    ends.iter().map(of).collect()
}

#[test]
fn without_faults_all_agree() {
    for (size, numbers, sum) in [(2, &[1, 4][..], 5), (3, &[1, 2, 4], 7), (2, &[8, 8], 4)] {
        let (_, ends) = explore(World::new(size, numbers, NONE), false);
        let all = |world: &World| {
            world.states().all(|member| matches!(member, State::Ended(Ok(found)) if *found == sum))
        };
        assert!(!ends.is_empty() && ends.iter().all(all), "{:?}", results(&ends));
        // One member, the last that acknowledges, removes all keys except the places.
        assert!(ends.iter().all(|world| world.removers == 1));
        let is_clean = |world: &World| world.store.0.keys().all(|key| key.starts_with("places/"));
        assert!(ends.iter().all(is_clean), "{:?}", ends[0].store.0.keys());
    }
    let (_, ends) = explore(World::new(2, &[0, 1], NONE), false);
    let agreed = |member: &State| matches!(member, State::Ended(Ok(1)));
    assert!(ends.iter().all(|world| world.states().all(agreed)), "no action is needed");
    assert!(ends.iter().all(|world| world.store.0.keys().all(|key| key.starts_with("places/"))));
    let (_, ends) = explore(World::new(2, &[0, 0], NONE), false);
    let refused =
        |member: &State| matches!(member, State::Ended(Err(Ending::Refused(why))) if why == "nothing to add");
    assert!(ends.iter().all(|world| world.states().all(refused)));
}

/// Visits all worlds, and then those that the reduction visits. Checks that the final worlds of both have the same
/// states of the members and the same keys. Returns the number of all worlds.
fn explore_both(size: u32, numbers: &[u64], faults: Faults) -> usize {
    let first = World::new(size, numbers, faults);
    let ((all, ends), (few, reduced)) = (explore(first.clone(), false), explore(first, true));
    assert!(few < all && !ends.is_empty(), "{few} of {all} worlds");
    let kept = |ends: &[World]| {
        let of =
            |world: &World| (format!("{:?}", world.members), Vec::from_iter(world.store.0.keys().cloned()));
        ends.iter().map(of).collect::<HashSet<_>>()
    };
    assert_eq!(kept(&ends), kept(&reduced), "{faults:?}");
    all
}

#[test]
fn two_members_never_differ() {
    for faults in [
        NONE,
        Faults { crashes: 1, ..NONE },
        Faults { crashes: 2, ..NONE },
        Faults { failures: 2, ..NONE },
        Faults { losses: 2, ..NONE },
        Faults { crashes: 1, losses: 1, failures: 1, ..NONE },
        Faults { crashes: 1, expiries: 1, ..NONE },
        Faults { losses: 1, expiries: 1, ..NONE },
        Faults { repeats: 2, expiries: 1, ..NONE },
        Faults { crashes: 1, failures: 1, expiries: 1, ..NONE },
        Faults { expiries: 3, failures: 1, ..NONE },
    ] {
        assert!(explore_both(2, &[1, 7], faults) > 100);
    }
}

#[test]
fn three_members_never_differ() {
    for faults in [
        NONE,
        Faults { crashes: 1, ..NONE },
        Faults { crashes: 2, ..NONE },
        Faults { losses: 1, ..NONE },
        Faults { expiries: 1, ..NONE },
        Faults { failures: 1, ..NONE },
        Faults { repeats: 1, ..NONE },
    ] {
        assert!(explore_both(3, &[1, 2, 4], faults) > 1000);
    }
}

/// If the store has the reason why a member is missing, no member gets [`Failure::Absent`], and all get that reason.
#[test]
fn members_get_the_reason_why_another_is_missing() {
    for (size, numbers) in [(2, &[1, 7][..]), (3, &[1, 2, 4])] {
        for faults in [
            Faults { crashes: 1, ..NONE },
            Faults { crashes: 1, expiries: 1, ..NONE },
            Faults { crashes: 1, losses: 1, ..NONE },
        ] {
            let mut first = World::new(size, numbers, faults);
            let why = (0..size).map(|rank| (why_key("sum", rank), b"gone".to_vec()));
            Rc::make_mut(&mut first.store).0.extend(why);
            let (_, ends) = explore(first, size > 2);
            let absent =
                |member: &State| matches!(member, State::Ended(Err(Ending::Failed(Failure::Absent { .. }))));
            assert!(!ends.iter().flat_map(World::states).any(absent), "{faults:?}");
            let told = |member: &State| matches!(member, State::Ended(Err(Ending::Refused(why))) if why.ends_with("is missing: gone"));
            assert!(ends.iter().flat_map(World::states).any(told), "{faults:?}");
        }
    }
}

/// Visits the worlds that the reduction visits. With `TEST_EFFORT` above 1, also visits all worlds for some of the
/// faults, and the reduced worlds for one more fault: a wait that times out early.
#[test]
fn four_members_never_differ() {
    let effort: u64 =
        std::env::var("TEST_EFFORT").map_or(1, |times| times.parse().expect("TEST_EFFORT is a whole number"));
    let numbers = &[1, 2, 4, 6];
    for faults in [
        NONE,
        Faults { crashes: 1, ..NONE },
        Faults { crashes: 2, ..NONE },
        Faults { losses: 1, ..NONE },
        Faults { failures: 1, ..NONE },
        Faults { crashes: 1, failures: 1, ..NONE },
        Faults { crashes: 1, losses: 1, ..NONE },
        Faults { repeats: 1, ..NONE },
    ] {
        let (states, ends) = explore(World::new(4, numbers, faults), true);
        assert!(states > 100 && !ends.is_empty());
    }
    if effort > 1 {
        for faults in [
            NONE,
            Faults { crashes: 1, ..NONE },
            Faults { losses: 1, ..NONE },
            Faults { failures: 1, ..NONE },
            Faults { repeats: 1, ..NONE },
        ] {
            assert!(explore_both(4, numbers, faults) > 5000);
        }
        let (states, ends) = explore(World::new(4, numbers, Faults { expiries: 1, ..NONE }), true);
        assert!(states > 5000 && !ends.is_empty());
    }
}

#[test]
fn a_member_that_lost_the_store_is_in_doubt_only_between_its_record_and_the_result() {
    let (_, ends) = explore(World::new(2, &[1, 4], Faults { losses: 1, ..NONE }), false);
    for world in &ends {
        let lost = |member: &State| match member {
            State::Ended(Err(Ending::InDoubt)) => Some(true),
            State::Ended(Err(Ending::StoreFailed)) => Some(false),
            _ => None,
        };
        let doubt = world.states().find_map(lost);
        let agreed = world.states().any(|member| matches!(member, State::Ended(Ok(_))));
        // A member that has lost the store and is not in doubt has posted no record. So the other one cannot agree.
        assert!(doubt != Some(false) || !agreed, "{world:?}");
    }
    assert!(
        ends.iter()
            .any(|world| results(std::slice::from_ref(world)).iter().any(|all| all.contains("InDoubt")))
    );
}

#[test]
fn a_crashed_member_is_named() {
    let (_, ends) = explore(World::new(2, &[1, 4], Faults { crashes: 1, ..NONE }), false);
    let mut named = 0;
    for world in &ends {
        for (rank, member) in world.states().enumerate() {
            if let State::Ended(Err(Ending::Failed(failure))) = member {
                assert!(matches!(failure, Failure::Absent { .. }), "{failure:?}");
                assert_eq!(failure.culprits(), [1 - rank as u32]);
                named += 1;
            }
        }
    }
    assert!(named > 0);
}
