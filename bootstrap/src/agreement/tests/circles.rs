//! Tests of circular waits of ranks whose threads wait in several agreements at a time, and of changes to lists of
//! places.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{
    super::{
        Absentee, Agreement, Answer, Conclusion, Ending, Failure, Input, Member, Memory, Output, Place,
        Request, Waiting, place, register, run,
    },
    sum::Sum,
};
use crate::{
    store::{Deadline, HashStore, Store},
    wire::Message,
};

const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

fn place(name: &str, members: &[u32]) -> Place {
    Place { name: name.into(), members: members.into() }
}

fn member(rank: u32, name: &str, members: &[u32], patience: Duration) -> Member {
    Member { name: name.into(), rank, members: members.into(), generation: 1, patience, deadline: None }
}

/// The threads of several ranks. Each thread takes part in agreements, one after the other.
#[derive(Default)]
struct Threads {
    store: Memory,
    all: Vec<Thread>,
    /// The results of the members that have ended, by the name of the agreement.
    results: BTreeMap<String, Vec<Result<u64, Ending<Sum>>>>,
}

struct Thread {
    rank: u32,
    /// The agreements in which the thread has yet to take part. The last element is next.
    program: Vec<Place>,
    /// The current agreement, and its output that is not yet executed. `None` between agreements.
    running: Option<(Agreement<Sum>, Output<Sum>)>,
}

impl Threads {
    /// Adds a thread of `rank`, and runs all threads until they wait or have ended.
    fn add(&mut self, rank: u32, program: &[(&str, &[u32])]) {
        let program = program.iter().rev().map(|(name, members)| place(name, members)).collect();
        self.all.push(Thread { rank, program, running: None });
        self.run(None);
    }

    /// Executes one step of the thread at `index`. Returns false if the thread waits or has ended.
    fn step(&mut self, index: usize) -> bool {
        let thread = &mut self.all[index];
        let Some((_, output)) = &thread.running else {
            let Some(Place { name, members }) = thread.program.pop() else { return false };
            let member = member(thread.rank, &name, &members, LONG);
            let mut machine = Agreement::new(member, 3, index as u64).unwrap();
            let output = machine.begin(NOW);
            thread.running = Some((machine, output));
            return true;
        };
        let input = match output {
            Output::Act { .. } => Input::Acted(true),
            Output::Store(request) => match self.store.execute(request) {
                Some(answer) => Input::Store(answer),
                None => return false,
            },
            Output::Done(_) => unreachable!("it would have ended"),
        };
        self.give(index, input);
        true
    }

    /// Passes `input` to the agreement of the thread at `index`, and keeps the next output or the result.
    fn give(&mut self, index: usize, input: Input<Sum>) {
        let thread = &mut self.all[index];
        let (machine, output) = thread.running.as_mut().expect("it runs");
        match machine.step(input, NOW) {
            Output::Done(Conclusion { result, read, .. }) => {
                self.store.remove(&read);
                self.results.entry(machine.name().to_owned()).or_default().push(result);
                thread.running = None;
            }
            next => *output = next,
        }
    }

    /// Runs all threads, except the one at `held` if it is given, until they wait or have ended.
    fn run(&mut self, held: Option<usize>) {
        while (0..self.all.len()).any(|index| Some(index) != held && self.step(index)) {}
    }

    /// Returns the pending request of a thread. Panics if there is none.
    fn request(&self, index: usize) -> &Request {
        match &self.all[index].running {
            Some((_, Output::Store(request))) => request,
            other => panic!("it sends no request: {other:?}"),
        }
    }

    /// Ends the patience of a thread, and runs the thread until a proposal is its next request. Before each request of
    /// the thread's search, calls `before` with the number of the request, counted from 0.
    fn expire(&mut self, index: usize, mut before: impl FnMut(&mut Self, usize)) {
        self.give(index, Input::Store(Answer::Expired));
        let mut reads = 0;
        while !matches!(self.request(index), Request::Propose { .. }) {
            before(self, reads);
            reads += 1;
            assert!(self.step(index), "it waits");
        }
    }

    /// Returns the circle in the result of each member of `name` that has ended; empty if no circle was found. Panics
    /// if a result is not [`Failure::Absent`].
    fn circles(&self, name: &str) -> Vec<Vec<Waiting>> {
        let circle = |result: &Result<u64, Ending<Sum>>| match result {
            Err(Ending::Failed(Failure::Absent { circle, .. })) => circle.clone(),
            other => panic!("{name}: {other:?}"),
        };
        self.results[name].iter().map(circle).collect()
    }
}

const BOTH: &[u32] = &[0, 1];

fn crossing() -> Vec<Waiting> {
    [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
        .map(|(rank, name)| Waiting { rank, place: place(name, BOTH) })
        .into()
}

/// Two threads of rank 0 wait for rank 1. Two threads of rank 1 wait for rank 0.
#[test]
fn all_agreements_of_ranks_with_several_threads_fail_with_the_circle() {
    for searching in 0..4 {
        let mut threads = Threads::default();
        for (rank, name) in [(0, "a"), (0, "b"), (1, "c"), (1, "d")] {
            threads.add(rank, &[(name, BOTH)]);
        }
        threads.expire(searching, |_, _| ());
        threads.run(None);
        for name in ["a", "b", "c", "d"] {
            assert_eq!(threads.circles(name), [crossing()], "{name}, searched by thread {searching}");
        }
        // Both ranks have removed all agreements from their lists.
        assert_eq!((threads.store.places("places/0"), threads.store.places("places/1")), (vec![], vec![]));
    }
}

/// Two ranks take part in `a` and `b` in different orders. Each arrives at its second agreement after that has failed,
/// and possibly after the keys of the first one were removed.
#[test]
fn ranks_that_arrive_after_the_circle_has_failed_leave_no_keys() {
    for searching in 0..2 {
        let mut threads = Threads::default();
        threads.add(0, &[("a", BOTH), ("b", BOTH)]);
        threads.add(1, &[("b", BOTH), ("a", BOTH)]);
        threads.expire(searching, |_, _| ());
        threads.run(None);
        let waits = [(0, "a"), (1, "b")].map(|(rank, name)| Waiting { rank, place: place(name, BOTH) });
        for name in ["a", "b"] {
            assert_eq!(threads.circles(name), [&waits, &waits], "{name}, searched by rank {searching}");
        }
        let left: Vec<_> = threads.store.0.keys().filter(|key| !key.starts_with("places/")).collect();
        assert!(left.is_empty(), "searched by rank {searching}: {left:?}");
    }
}

/// Two threads of each rank wait for the other rank, and one thread of each rank searches. Both searches end before the
/// first failure is stored.
#[test]
fn two_ranks_that_search_at_a_time_find_the_same_circle() {
    let mut threads = Threads::default();
    for (rank, name) in [(0, "a"), (0, "b"), (1, "c"), (1, "d")] {
        threads.add(rank, &[(name, BOTH)]);
    }
    threads.expire(0, |_, _| ());
    threads.expire(2, |_, _| ());
    threads.run(None);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(threads.circles(name), [crossing()], "{name}");
    }
}

/// Rank 0 waits in `a` for rank 1, which waits in `c` for rank 0. Another thread of rank 0 waits in `b` for rank 2.
/// Once rank 2 has arrived at `b`, that thread takes part in `c`.
#[test]
fn a_rank_of_which_one_thread_can_go_on_is_in_no_circle() {
    let mut threads = Threads::default();
    threads.add(0, &[("a", BOTH)]);
    threads.add(0, &[("b", &[0, 2]), ("c", BOTH)]);
    threads.add(1, &[("c", BOTH), ("a", BOTH)]);
    threads.expire(0, |_, _| ());
    let Request::Propose { key, value } = threads.request(0) else { panic!("it proposes") };
    let failure = super::super::messages::told_failure(value);
    let Some(Failure::Absent { missing, circle, .. }) = failure else { panic!("{failure:?}") };
    assert_eq!((&**key, circle), ("a/records/result", vec![]));
    assert_eq!((missing[0].rank, &missing[0].elsewhere), (1, &vec![place("c", BOTH)]));
    // Before thread 0 sends its proposal, `b` and `c` succeed and `a` is decided. So the proposal has no effect.
    threads.all.push(Thread { rank: 2, program: vec![place("b", &[0, 2])], running: None });
    threads.run(Some(0));
    threads.run(None);
    let agreed =
        |results: &Vec<Result<u64, Ending<Sum>>>| results.len() == 2 && results.iter().all(Result::is_ok);
    assert!(threads.results.len() == 3 && threads.results.values().all(agreed), "{:?}", threads.results);
}

/// Rank 0 waits in `a` for rank 1, and in `b` for rank 2. Rank 1 waits in `c` for rank 0, and rank 2 waits in `e` for
/// rank 0. So both agreements in which rank 0 waits are blocked.
#[test]
fn a_circle_leads_through_all_agreements_of_a_rank() {
    let mut threads = Threads::default();
    threads.add(0, &[("a", BOTH)]);
    threads.add(0, &[("b", &[0, 2])]);
    threads.add(1, &[("c", BOTH)]);
    threads.add(2, &[("e", &[0, 2])]);
    threads.expire(2, |_, _| ());
    threads.run(None);
    for name in ["a", "b", "c", "e"] {
        let circle = threads.circles(name).concat();
        let waits: Vec<_> = circle.iter().map(|it| (it.rank, &*it.place.name)).collect();
        assert_eq!(waits, [(0, "a"), (0, "b"), (1, "c"), (2, "e")], "{name}");
    }
}

/// Rank 0 waits in `a` for rank 1, which waits in `c` for rank 0. A search reads the places and decisions twice, and
/// reports a circle only if both reads agree (see `agreement::trace`). Between the reads, a second thread of rank 1
/// begins to wait in `d`. This thread might arrive at `a` later, so no circle is reported.
#[test]
fn a_search_during_which_a_blocked_rank_can_go_on_finds_no_circle() {
    let mut threads = Threads::default();
    threads.add(0, &[("a", BOTH)]);
    threads.add(1, &[("c", BOTH)]);
    let mut reads = 0;
    threads.expire(0, |threads, read| {
        reads = read;
        // Requests 0 (records and places) and 1 (decision keys) are the first read. Request 2 is the second. Request 3
        // reads the places of rank 2 and the decision key of `d`. Request 4 reads why rank 1 is missing.
        if read == 2 {
            threads.all.push(Thread { rank: 1, program: vec![place("d", &[1, 2])], running: None });
            threads.run(Some(0));
        }
    });
    assert_eq!(reads, 4);
    threads.run(None);
    assert_eq!(threads.circles("a"), [[]]);
    assert!(!threads.results.contains_key("c"));
}

/// Rank 0 waits in `a` for rank 1, which waits in `c` for rank 0. Rank 2 waits in `d` for rank 0, and is missing in
/// `c`. Before one of the requests of rank 0's search, a second thread of rank 0 arrives at `d`, and rank 2 goes on to
/// `c`. Ranks 0 and 1 wait for each other all the time, so the search finds them, whatever it has read of rank 2.
#[test]
fn a_search_finds_the_circle_of_ranks_that_stay_while_others_move() {
    const ALL: &[u32] = &[0, 1, 2];
    for moves_before in 0..6 {
        let mut threads = Threads::default();
        threads.add(0, &[("a", BOTH)]);
        threads.add(1, &[("c", ALL)]);
        threads.add(2, &[("d", &[0, 2]), ("c", ALL)]);
        threads.expire(0, |threads, read| {
            if read == moves_before {
                threads.all.push(Thread { rank: 0, program: vec![place("d", &[0, 2])], running: None });
                threads.run(Some(0));
            }
        });
        threads.run(None);
        let circles = threads.circles("a");
        let waits = |rank, name: &str| circles[0].iter().any(|it| (it.rank, &*it.place.name) == (rank, name));
        assert!(waits(0, "a") && waits(1, "c"), "moves before {moves_before}: {circles:?}");
    }
}

/// The circular wait of two ranks with two threads each. Threads of the system run the agreements over a `HashStore`.
#[test]
fn threads_over_a_store_fail_with_the_circle() {
    let store = HashStore::new();
    let with = |rank, name: &str, patience| {
        let failed = run::<Sum>(&store, member(rank, name, BOTH, patience), 3, |_, _, _| true, || Ok(()));
        match failed.unwrap_err().ending {
            Ending::Failed(Failure::Absent { circle, .. }) => circle,
            other => panic!("{name}: {other:?}"),
        }
    };
    thread::scope(|scope| {
        let others = [(0, "a"), (0, "b"), (1, "c")].map(|(rank, name)| {
            let other = scope.spawn(move || with(rank, name, LONG));
            store.get(&format!("{name}/records/{rank}"), Deadline::after(LONG)).unwrap();
            other
        });
        assert_eq!(with(1, "d", Duration::from_millis(30)), crossing());
        for other in others {
            assert_eq!(other.join().unwrap(), crossing());
        }
    });
    for rank in BOTH {
        assert_eq!(store.get(&place::places_key(*rank), Deadline::now()).unwrap(), b"");
    }
}

#[test]
fn changes_of_several_threads_are_not_lost() {
    let (store, key) = (&HashStore::new(), &*place::places_key(0));
    let list = || place::from_value(Some(&store.get(key, Deadline::now()).unwrap()));
    let program = |thread: u32| {
        for number in 0..200 {
            let own = place(&format!("{thread}/{number}"), &[0]);
            register::enter(store, key, &own).unwrap();
            assert!(place::is_at(&list(), &own));
            register::leave(store, key, &own).unwrap();
            assert!(!place::is_at(&list(), &own));
        }
    };
    thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || program(thread)))));
    assert_eq!(list(), []);
}

/// The list of rank 7 still contains two places at which it no longer waits, as after a loss of the store.
#[test]
fn a_place_that_a_rank_could_not_remove_is_removed_once_its_agreement_is_decided() {
    let store = HashStore::new();
    let key = place::places_key(7);
    let names = || {
        let places = place::from_value(Some(&store.get(&key, Deadline::now()).unwrap()));
        places.into_iter().map(|place| place.name).collect::<Vec<_>>()
    };
    store.set(&key, &place::to_value(&[place("open", &[7]), place("decided", &[7])])).unwrap();
    store.set("decided/records/result", b"a decision").unwrap();
    let member = member(7, "sum", &[7], LONG);
    let mut listed = Vec::new();
    let act = |_: &u64, _, _: &dyn Fn() -> bool| {
        listed = names();
        true
    };
    run::<Sum>(&store, member, 3, act, || Ok(())).unwrap();
    assert_eq!((listed, names()), (vec!["open".into(), "sum".into()], vec!["open".to_owned()]));
}

/// Rank 0 reads that its agreement has failed because of a circular wait. It fails the other agreement of the circle
/// before it leaves. Otherwise rank 1 could find no circle any more, and name rank 0 as missing.
#[test]
fn who_reads_of_a_circle_fails_its_other_agreements_before_it_leaves() {
    let (own, other) = (place("a", &[0, 1]), place("b", &[0, 1]));
    let circle = vec![Waiting { rank: 0, place: own.clone() }, Waiting { rank: 1, place: other.clone() }];
    let missing = vec![Absentee { rank: 1, elsewhere: vec![other.clone()] }];
    let failure = Failure::Absent { missing, by: 1, waited_ms: 7, circle: circle.clone() };
    let mut store = Memory::default();
    store.0.insert(own.decision_key(), failure.to_bytes());
    let mut machine = Agreement::<Sum>::new(member(0, "a", &[0, 1], LONG), 3, 0).unwrap();
    let mut output = machine.begin(NOW);
    let ended = loop {
        let request = match output {
            Output::Store(request) => request,
            Output::Done(conclusion) => break conclusion.result,
            Output::Act { .. } => panic!("there is no decision"),
        };
        if matches!(request, Request::Leave { .. }) {
            let told = store.0.get(&other.decision_key()).map(|value| Failure::from_bytes(value));
            let missing = vec![Absentee { rank: 0, elsewhere: vec![own.clone()] }];
            let failure = Failure::Absent { missing, by: 1, waited_ms: 7, circle: circle.clone() };
            assert_eq!(told, Some(Ok(failure)));
        }
        let answer = store.execute(&request).expect("the failure is in the store");
        output = machine.step(Input::Store(answer), NOW);
    };
    assert_eq!(ended, Err(Ending::Failed(failure)));
}
