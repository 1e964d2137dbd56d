//! Single cases: ranks that leave, two processes with one rank, invalid members, different member lists, waits for
//! acknowledgements, and failing stores.

use std::{
    any::Any,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    super::{Absentee, Ending, Failed, Failure, Gone, Member, Object, end_wait, leave, place, run},
    sum::{Sum, drive, member_of},
};
use crate::{
    store::{
        Deadline, HashStore, Result, Store, StoreError,
        machine::{Reply, Request},
    },
    wire::Message,
};

const LONG: Duration = Duration::from_secs(60);

type Outcome = std::result::Result<u64, Box<Failed<Sum>>>;

fn agree(store: &dyn Store, rank: u32, patience: Duration) -> Outcome {
    run::<Sum>(store, member_of(rank, 2, patience), 3, |_, _, _| true, || Ok(()))
}

/// Returns the error with which the object of an agreement reports that `rank` has ended the object.
fn gone(rank: u32) -> Gone {
    Gone { rank, cause: "it is dead".into() }
}

fn failure(outcome: &Outcome) -> &Failure {
    match outcome {
        Err(failed) => match &failed.ending {
            Ending::Failed(failure) => failure,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Waits until `has_failed` returns true. Panics after 10 s, so that the test does not hang if the function never
/// returns true.
fn wait_for_failure(has_failed: &dyn Fn() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(10));
    while !has_failed() {
        assert!(!deadline.expired(), "the action does not learn that it has failed");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_member_whose_object_has_ended_is_the_only_culprit() {
    let store = HashStore::new();
    let ended = run::<Sum>(&store, member_of(0, 2, LONG), 3, |_, _, _| true, || Err(gone(0)));
    let late = agree(&store, 1, LONG);
    for outcome in [&ended, &late] {
        assert_eq!(failure(outcome).culprits(), [0], "{outcome:?}");
        assert!(matches!(failure(outcome), Failure::Left { .. }), "{outcome:?}");
    }
}

/// An object whose end [`run`] learns of through [`end_wait`] alone.
struct EndsWaits<'a>(&'a HashStore);

impl Object for EndsWaits<'_> {
    fn check(&self) -> Result<(), Gone> {
        Ok(())
    }

    fn begin_wait(&self, key: &str) -> Option<Box<dyn Any>> {
        let (store, key) = (self.0.clone(), key.to_owned());
        Some(Box::new(thread::spawn(move || end_wait(&store, &key, gone(0)).unwrap())))
    }
}

#[test]
fn an_object_ends_the_waits_of_its_agreements() {
    let store = HashStore::new();
    let outcome = run::<Sum>(&store, member_of(1, 2, LONG), 3, |_, _, _| true, EndsWaits(&store));
    assert_eq!(failure(&outcome).to_string(), "rank 0 has left: it is dead");
}

/// Rank 1 waits for rank 0. The object of rank 1 reports that rank 0 has ended the object.
#[test]
fn the_rank_that_ended_the_object_is_named() {
    let store = HashStore::new();
    let outcome = run::<Sum>(&store, member_of(1, 2, LONG), 3, |_, _, _| true, || Err(gone(0)));
    assert_eq!(failure(&outcome).to_string(), "rank 0 has left: it is dead");
}

#[test]
fn a_member_that_leaves_ends_the_waits_before_and_after_the_decision() {
    let store = HashStore::new();
    leave::<Sum>(&store, "sum", 1, "it has no memory").unwrap();
    let outcome = agree(&store, 0, LONG);
    assert!(failure(&outcome).to_string().contains("rank 1 has left: it has no memory"), "{outcome:?}");

    // Rank 1 leaves during its action. The action of rank 0 sees that, and stops.
    let store = HashStore::new();
    let began = Instant::now();
    let leaves = |_: &u64, _, _: &dyn Fn() -> bool| {
        leave::<Sum>(&store, "sum", 1, "it was aborted").unwrap();
        true
    };
    let waits = |_: &u64, _, has_failed: &dyn Fn() -> bool| {
        wait_for_failure(has_failed);
        false
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run::<Sum>(&store, member_of(1, 2, LONG), 3, leaves, || Ok(())));
        let own = run::<Sum>(&store, member_of(0, 2, LONG), 3, waits, || Ok(()));
        for outcome in [own, other.join().unwrap()] {
            assert_eq!(failure(&outcome).culprits(), [1]);
            assert!(outcome.unwrap_err().has_acted);
        }
    });
    assert!(began.elapsed() < LONG / 2);

    // Leaving after the result has no effect on the result.
    let store = HashStore::new();
    thread::scope(|scope| {
        let other = scope.spawn(|| agree(&store, 1, LONG));
        let acts = |_: &u64, _, _: &dyn Fn() -> bool| true;
        let own = run::<Sum>(&store, member_of(0, 2, LONG), 3, acts, || Ok(()));
        assert!(matches!((own, other.join().unwrap()), (Ok(6), Ok(6))));
    });
    let keys = store.num_keys().unwrap();
    leave::<Sum>(&store, "sum", 1, "too late").unwrap();
    assert_eq!(store.num_keys().unwrap(), keys + 1, "only the key of the decision, which was removed");
}

#[test]
fn the_reason_of_a_failed_action_comes_before_slow_members() {
    let store = HashStore::new();
    let fails = |_: &u64, _, _: &dyn Fn() -> bool| false;
    let is_slow = |_: &u64, _, has_failed: &dyn Fn() -> bool| {
        wait_for_failure(has_failed);
        true
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run::<Sum>(&store, member_of(1, 2, LONG), 3, fails, || Ok(())));
        let own = run::<Sum>(&store, member_of(0, 2, LONG), 3, is_slow, || Ok(()));
        for outcome in [own, other.join().unwrap()] {
            let text = outcome.unwrap_err().to_string();
            assert_eq!(text, "rank 1: Outcome(false)");
        }
    });
}

#[test]
fn an_agreement_fails_if_a_rank_takes_part_twice() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| agree(&store, 0, LONG));
        while !store.check(&["sum/records/0"]).unwrap() {
            thread::yield_now();
        }
        let second = agree(&store, 0, LONG);
        assert_eq!(failure(&second), &Failure::Taken { rank: 0 });
        assert_eq!(failure(&first.join().unwrap()), &Failure::Taken { rank: 0 });
    });
    assert_eq!(failure(&agree(&store, 1, LONG)), &Failure::Taken { rank: 0 });
}

#[test]
fn invalid_members_are_rejected_at_once() {
    let store = HashStore::new();
    let with = |change: fn(&mut Member)| {
        let mut member = member_of(0, 2, LONG);
        change(&mut member);
        let failed = run::<Sum>(&store, member, 1, |_, _, _| true, || Ok(())).unwrap_err();
        assert!(matches!(failed.ending, Ending::StoreFailed));
        failed.store.unwrap().to_string()
    };
    assert!(with(|member| member.rank = 7).contains("rank 7 is not among the members [0, 1]"));
    assert!(with(|member| member.members = vec![0, 1, 1]).contains("rank 1 is named twice"));
    assert!(with(|member| member.name.clear()).contains("needs a name"));
    assert_eq!(store.num_keys().unwrap(), 0);
}

/// Another program has written the outcome of rank 1. Rank 1 is not late, and waiting for it would not help.
#[test]
fn an_outcome_that_cannot_be_read_is_the_reason_of_a_failure() {
    use super::super::Request;
    let clear = |rank, request: &mut Request| match request {
        Request::Post { key, value } if key.contains("outcomes") && rank == 1 => value.clear(),
        _ => {}
    };
    for end in drive(3, LONG, clear, |_, _, _, _| true) {
        let is_of_rank_1 = matches!(&end.result, Err(Ending::Failed(Failure::Unreadable { rank: 1, .. })));
        assert!(is_of_rank_1 && end.has_acted, "{end:?}");
    }
}

/// Rank 2 is only in its own member list. It arrives after the others have decided.
#[test]
fn a_rank_outside_the_member_list_of_the_others_does_not_act() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let other = scope.spawn(|| agree(&store, 1, LONG));
        let slow = |_: &u64, _, _: &dyn Fn() -> bool| {
            let outsider = Member { members: vec![0, 1, 2], ..member_of(2, 3, LONG) };
            let failed = run::<Sum>(&store, outsider, 3, |_, _, _| panic!("it acts"), || Ok(()));
            assert!(matches!(failure(&failed), Failure::Members { .. }), "{failed:?}");
            true
        };
        let own = run::<Sum>(&store, member_of(0, 2, LONG), 3, slow, || Ok(()));
        assert!(matches!((own, other.join().unwrap()), (Ok(6), Ok(6))));
    });
}

/// The member list of rank 1 is 0 to 2, and that of rank 0 is 0 to 3. Ranks 2 and 3 never arrive. Rank 0 finds that the
/// lists differ, and both ranks fail long before their patience ends.
#[test]
fn members_with_different_lists_fail_when_the_second_one_arrives() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let with = |rank, size| run::<Sum>(&store, member_of(rank, size, LONG), 3, |_, _, _| true, || Ok(()));
        let began = Instant::now();
        let first = scope.spawn(move || with(1, 3));
        while !store.check(&["sum/records/1"]).unwrap() {
            thread::yield_now();
        }
        let second = with(0, 4);
        for outcome in [&first.join().unwrap(), &second] {
            let Failure::Members { lists } = failure(outcome) else { panic!("{outcome:?}") };
            let found: Vec<_> =
                lists.entries.iter().map(|entry| (&*entry.ranks, entry.value.len())).collect();
            assert_eq!(found, [(&[0][..], 4), (&[1], 3)]);
        }
        assert!(began.elapsed() < LONG / 2);
    });
}

/// Rank 2 never arrives, and the patience of rank 0 ends. The process of rank 0 may host the store, so rank 0 waits
/// until rank 1 has read the failure.
#[test]
fn a_member_stays_until_the_others_have_read_that_one_is_absent() {
    let store = HashStore::new();
    thread::scope(|scope| {
        let with =
            |rank, patience| run::<Sum>(&store, member_of(rank, 3, patience), 3, |_, _, _| true, || Ok(()));
        let other = scope.spawn(move || with(1, LONG));
        while !store.check(&["sum/records/1"]).unwrap() {
            thread::yield_now();
        }
        let first = with(0, Duration::from_millis(30));
        assert!(store.check(&["sum/read/1"]).unwrap());
        for outcome in [&first, &other.join().unwrap()] {
            assert_eq!(failure(outcome).culprits(), [2], "{outcome:?}");
        }
    });
}

/// A thread plays the part of rank 1: it acknowledges the result 200 ms after rank 0 has stored it. Rank 0 waits for
/// this acknowledgement.
#[test]
fn a_member_stays_until_the_others_have_read_any_failure() {
    let store = HashStore::new();
    store.set("sum/records/1", b"a record of another program").unwrap();
    store.add("sum/records/count", 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            store.get("sum/records/result", Deadline::after(LONG)).unwrap();
            thread::sleep(Duration::from_millis(200));
            store.set("sum/read/1", b"1").unwrap();
        });
        let outcome = agree(&store, 0, LONG);
        assert!(matches!(failure(&outcome), Failure::Protocols { .. }), "{outcome:?}");
        assert!(store.check(&["sum/read/1"]).unwrap());
    });
}

#[test]
fn a_member_does_not_stay_for_acknowledgements_that_it_has_removed() {
    let store = HashStore::new();
    let missing = vec![Absentee { rank: 2, elsewhere: Vec::new() }];
    let failure = Failure::Absent { missing, by: 1, waited_ms: 30, circle: Vec::new() };
    store.set("sum/records/result", &failure.to_bytes()).unwrap();
    store.set("sum/records/1", b"a record").unwrap();
    for rank in 1..3 {
        store.set(&format!("sum/read/{rank}"), b"1").unwrap();
        store.add("sum/read/count", 1).unwrap();
    }
    let began = Instant::now();
    let outcome = run::<Sum>(&store, member_of(0, 3, LONG), 3, |_, _, _| true, || Ok(())).unwrap_err();
    assert!(matches!(&outcome.ending, Ending::Failed(found) if *found == failure), "{outcome:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!store.check(&["sum/read/1"]).unwrap());
}

#[test]
fn a_member_whose_object_ends_does_not_stay() {
    let store = HashStore::new();
    // Rank 1 has posted its record, and never reads the result.
    store.set("sum/records/1", b"a record").unwrap();
    let began = Instant::now();
    let goes_on = || if began.elapsed() < Duration::from_millis(200) { Ok(()) } else { Err(gone(0)) };
    let member = member_of(0, 3, Duration::from_millis(30));
    let outcome = run::<Sum>(&store, member, 3, |_, _, _| true, goes_on);
    assert_eq!(failure(&outcome).culprits(), [2]);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// A store that counts requests. If `error` is set, every eighth counted request fails with it, alternately before and
/// after the request has taken effect. Not counted: waits for keys without a request after them, changes of a list of
/// places, proposals of a member list, and removals. The requests of an acknowledgement count, although a member does
/// not repeat them.
struct Flaky {
    inner: HashStore,
    count: AtomicU32,
    error: Option<fn() -> StoreError>,
}

impl Flaky {
    fn then<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match (self.count.fetch_add(1, Ordering::Relaxed) % 16, self.error) {
            (3, Some(error)) => Err(error()),
            (11, Some(error)) => call().and(Err(error())),
            _ => call(),
        }
    }
}

impl Store for Flaky {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        let mut key = Vec::new();
        request.clone().for_each_key(|it| key = std::mem::take(it));
        // A member sends the requests below before or after the time in which it is in doubt. So it would not repeat
        // them after an error.
        let is_outside = matches!(request, Request::CompareSet { .. })
            && (key.starts_with(b"places/") || key.ends_with(b"/members"));
        if is_outside || matches!(request, Request::Delete { .. }) {
            return self.inner.call(request);
        }
        self.then(|| self.inner.call(request))
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        match request {
            Some(_) => self.then(|| self.inner.call_when_there(keys, request, deadline)),
            None => self.inner.call_when_there(keys, request, deadline),
        }
    }
}

fn flaky(error: fn() -> StoreError) -> Flaky {
    Flaky { inner: HashStore::new(), count: AtomicU32::new(0), error: Some(error) }
}

#[test]
fn a_long_wait_makes_few_requests() {
    let store = Flaky { inner: HashStore::new(), count: AtomicU32::new(0), error: None };
    let outcome = agree(&store, 0, Duration::from_secs(2));
    assert!(matches!(failure(&outcome), Failure::Absent { .. }), "{outcome:?}");
    let requests = store.count.load(Ordering::Relaxed);
    assert!(requests <= 25, "{requests} requests");
}

#[test]
fn the_end_of_the_object_ends_a_long_wait_within_a_second() {
    let (store, began) = (HashStore::new(), Instant::now());
    let ends = Duration::from_millis(900);
    let goes_on = || if began.elapsed() < ends { Ok(()) } else { Err(gone(0)) };
    let outcome = run::<Sum>(&store, member_of(0, 2, LONG), 3, |_, _, _| true, goes_on);
    assert_eq!(failure(&outcome).culprits(), [0]);
    assert!(began.elapsed() < ends + Duration::from_secs(1), "{:?}", began.elapsed());
}

/// With a patience of 30 ms, failed requests are still repeated, because retries go on for at least 5 s after the first
/// error. Two members with a long patience agree in spite of failed requests.
#[test]
fn failed_requests_are_repeated_even_with_a_short_patience() {
    let store = flaky(|| StoreError::Timeout { keys: Vec::new(), waited: Duration::ZERO });
    let outcome = agree(&store, 0, Duration::from_millis(30));
    assert!(matches!(failure(&outcome), Failure::Absent { .. }), "{outcome:?}");
    let store = flaky(|| StoreError::Timeout { keys: Vec::new(), waited: Duration::ZERO });
    thread::scope(|scope| {
        let other = scope.spawn(|| agree(&store, 1, LONG));
        let own = agree(&store, 0, LONG);
        assert!(matches!((own, other.join().unwrap()), (Ok(6), Ok(6))));
    });
}

/// The store rejects the record, so the other members never read it.
#[test]
fn a_member_whose_record_the_store_rejects_is_not_in_doubt() {
    let store = flaky(|| StoreError::Argument("it is too long".into()));
    // The first counted request, which posts the record, fails.
    store.count.store(3, Ordering::Relaxed);
    let failed = agree(&store, 0, LONG).unwrap_err();
    assert!(matches!(failed.ending, Ending::StoreFailed) && failed.store.is_some(), "{failed:?}");
    let value = store.inner.get("places/0", Deadline::now()).unwrap();
    assert_eq!(place::from_value(Some(&value)), []);
}

#[test]
fn a_request_is_not_repeated_after_a_permanent_error() {
    let store = flaky(|| StoreError::Argument("no".into()));
    let began = Instant::now();
    let failed = agree(&store, 0, LONG).unwrap_err();
    assert!(matches!(failed.ending, Ending::InDoubt), "{failed:?}");
    assert!(std::error::Error::source(&*failed).is_some() && began.elapsed() < LONG / 2);
}
