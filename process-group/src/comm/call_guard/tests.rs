//! Tests of the guard's admission rules.

use super::*;
use std::time::Duration;

fn guard() -> CallGuard {
    let guard = CallGuard::new("a".into());
    guard.open();
    guard
}

fn soon() -> Option<Deadline> {
    Some(Deadline::after(Duration::from_millis(5)))
}

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn one_call_at_a_time() {
    let guard = guard();
    let entry = guard.enter("first", Kind::Enqueue, None).unwrap();
    let error = guard.enter("second", Kind::Local, soon()).unwrap_err();
    assert!(error.to_string().contains("the enqueueing of an operation"), "{error}");
    drop(entry);
    let entry = guard.enter("first", Kind::Local, None).unwrap();
    let error = guard.enter("second", Kind::Enqueue, soon()).unwrap_err();
    assert!(matches!(error, CommError::Busy { busy_with: "first", .. }), "{error}");
    drop(entry);
    guard.enter("third", Kind::Collective, soon()).unwrap();
}

#[test]
fn one_call_at_a_time_whichever_way_they_come() {
    use std::sync::atomic::AtomicBool;

    let guard = guard();
    let inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for kind in [Kind::Enqueue, Kind::Enqueue, Kind::Local, Kind::Collective] {
            let (guard, inside) = (&guard, &inside);
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let entry = guard.enter("call", kind, None).unwrap();
                    assert!(!inside.swap(true, Ordering::Relaxed));
                    thread::yield_now();
                    assert!(inside.swap(false, Ordering::Relaxed));
                    drop(entry);
                }
            });
        }
        scope.spawn(|| (0..5_000).for_each(|_| drop(guard.observe("look").unwrap())));
    });
    guard.wait_empty(Deadline::now()).unwrap();
    assert_eq!(guard.word.load(Ordering::Relaxed), 0, "everybody has left");
}

#[test]
fn an_unmade_communicator_admits_only_the_call_that_makes_it() {
    let guard = CallGuard::new("a".into());
    assert!(matches!(guard.enter("all_reduce", Kind::Enqueue, None), Err(CommError::Unmade { .. })));
    let making = guard.enter("init", Kind::Making, None).unwrap();
    assert!(!guard.close_unmade("destroyed"));
    drop(making);
    guard.open();
    assert!(!guard.close_unmade("destroyed"));
    guard.enter("all_reduce", Kind::Enqueue, None).unwrap();
    let never = CallGuard::new("b".into());
    assert!(never.close_unmade("destroyed"));
    never.open();
    assert!(matches!(never.check("x"), Err(CommError::Closed { .. })));
}

#[test]
fn a_group_keeps_out_collectives_of_others_but_not_local_calls() {
    let guard = guard();
    drop(guard.enter("queued", Kind::Enqueue, None).unwrap());
    guard.join_group();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(guard.enter("all_reduce", Kind::Enqueue, soon()).is_err());
            assert!(guard.enter("split", Kind::Collective, soon()).is_err());
            guard.enter("register", Kind::Local, soon()).unwrap();
        });
    });
    drop(guard.enter("queued too", Kind::Enqueue, soon()).unwrap());
    assert!(guard.wait_empty(Deadline::now()).is_err());
    guard.leave_group();
    guard.wait_empty(Deadline::now()).unwrap();
    guard.enter("split", Kind::Collective, soon()).unwrap();
}

#[test]
fn a_revoked_communicator_has_children_and_a_poisoned_one_is_rescued() {
    let guard = guard();
    guard.set_revoked(true);
    for kind in [Kind::Enqueue, Kind::Collective] {
        assert!(matches!(guard.enter("x", kind, None), Err(CommError::Revoked { .. })));
    }
    for kind in [Kind::Local, Kind::Child, Kind::Rescue] {
        guard.enter("x", kind, None).unwrap();
    }
    guard.poison("an error");
    assert!(matches!(guard.enter("x", Kind::Child, None), Err(CommError::Poisoned { .. })));
    guard.enter("x", Kind::Rescue, None).unwrap();
    guard.close("aborted", Some("abort"));
    assert!(matches!(guard.enter("x", Kind::Rescue, None), Err(CommError::Closed { .. })));
}

#[test]
fn a_suspended_communicator_admits_its_resumption_and_its_end_alone() {
    let guard = guard();
    guard.set_suspended(true);
    let is_suspended = |error| matches!(error, CommError::Suspended { call: "x", .. });
    for kind in [Kind::Enqueue, Kind::Collective, Kind::Child, Kind::Rescue] {
        assert!(is_suspended(guard.enter("x", kind, None).unwrap_err()));
    }
    assert!(is_suspended(guard.check("x").unwrap_err()));
    guard.check_not_closed("x").unwrap();
    for kind in [Kind::Local, Kind::Cleanup, Kind::Suspended] {
        guard.enter("x", kind, None).unwrap();
    }
    guard.set_suspended(false);
    guard.enter("x", Kind::Enqueue, None).unwrap();
    assert_eq!(guard.word.load(Ordering::Relaxed), 0, "calls pass the lock by again");
    guard.set_suspended(true);
    guard.set_revoked(true);
    assert!(matches!(guard.enter("x", Kind::Enqueue, None), Err(CommError::Revoked { .. })));
    guard.poison("an error");
    assert!(matches!(guard.enter("x", Kind::Suspended, None), Err(CommError::Poisoned { .. })));
}

#[test]
fn waiting_threads_learn_why_the_guard_admits_no_more_calls() {
    let guard = guard();
    let entry = guard.enter("register windows", Kind::Collective, None).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.enter("all_reduce", Kind::Enqueue, None).map(drop));
        guard.poison("registration was late");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("registration was late"), "{error}");
    });
    guard.poison("a second reason");
    assert!(guard.check("x").unwrap_err().to_string().contains("registration was late"));
    assert!(guard.close("aborted", Some("abort")));
    assert!(!guard.close("aborted again", Some("abort")));
    assert_eq!(guard.wait_empty(Deadline::now()), Err("register windows"));
    thread::scope(|scope| {
        let abort = scope.spawn(|| guard.wait_empty(far()));
        drop(entry);
        abort.join().unwrap().unwrap();
    });
    assert!(matches!(guard.check("x"), Err(CommError::Closed { .. })));
}
