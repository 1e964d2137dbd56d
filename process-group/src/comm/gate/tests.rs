//! Tests of the gate's rules, one each.

use super::*;
use std::time::Duration;

fn gate() -> Gate {
    let gate = Gate::new("a".into());
    gate.open();
    gate
}

fn soon() -> Option<Deadline> {
    Some(Deadline::after(Duration::from_millis(5)))
}

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn one_call_at_a_time() {
    let gate = gate();
    let entry = gate.enter("first", Kind::Enqueue, None).unwrap();
    let error = gate.enter("second", Kind::Local, soon()).unwrap_err();
    assert!(error.to_string().contains("the enqueueing of an operation"), "{error}");
    drop(entry);
    let entry = gate.enter("first", Kind::Local, None).unwrap();
    let error = gate.enter("second", Kind::Enqueue, soon()).unwrap_err();
    assert!(matches!(error, CommError::Busy { busy_with: "first", .. }), "{error}");
    drop(entry);
    gate.enter("third", Kind::Collective, soon()).unwrap();
}

#[test]
fn one_call_at_a_time_whichever_way_they_come() {
    use std::sync::atomic::AtomicBool;

    let gate = gate();
    let inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for kind in [Kind::Enqueue, Kind::Enqueue, Kind::Local, Kind::Collective] {
            let (gate, inside) = (&gate, &inside);
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let entry = gate.enter("call", kind, None).unwrap();
                    assert!(!inside.swap(true, Ordering::Relaxed));
                    thread::yield_now();
                    assert!(inside.swap(false, Ordering::Relaxed));
                    drop(entry);
                }
            });
        }
        scope.spawn(|| (0..5_000).for_each(|_| drop(gate.observe("look").unwrap())));
    });
    gate.wait_empty(Deadline::now()).unwrap();
    assert_eq!(gate.word.load(Ordering::Relaxed), 0, "everybody has left");
}

#[test]
fn what_is_not_made_lets_in_its_making_alone() {
    let gate = Gate::new("a".into());
    assert!(matches!(gate.enter("all_reduce", Kind::Enqueue, None), Err(CommError::Unmade { .. })));
    let making = gate.enter("init", Kind::Making, None).unwrap();
    assert!(!gate.close_unmade("destroyed"));
    drop(making);
    gate.open();
    assert!(!gate.close_unmade("destroyed"));
    gate.enter("all_reduce", Kind::Enqueue, None).unwrap();
    let never = Gate::new("b".into());
    assert!(never.close_unmade("destroyed"));
    never.open();
    assert!(matches!(never.check("x"), Err(CommError::Closed { .. })));
}

#[test]
fn a_group_keeps_out_collectives_of_others_but_not_local_calls() {
    let gate = gate();
    drop(gate.enter("queued", Kind::Enqueue, None).unwrap());
    gate.join_group();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(gate.enter("all_reduce", Kind::Enqueue, soon()).is_err());
            assert!(gate.enter("split", Kind::Collective, soon()).is_err());
            gate.enter("register", Kind::Local, soon()).unwrap();
        });
    });
    drop(gate.enter("queued too", Kind::Enqueue, soon()).unwrap());
    assert!(gate.wait_empty(Deadline::now()).is_err());
    gate.leave_group();
    gate.wait_empty(Deadline::now()).unwrap();
    gate.enter("split", Kind::Collective, soon()).unwrap();
}

#[test]
fn a_revoked_communicator_has_children_and_a_poisoned_one_is_rescued() {
    let gate = gate();
    gate.revoke();
    for kind in [Kind::Enqueue, Kind::Collective] {
        assert!(matches!(gate.enter("x", kind, None), Err(CommError::Revoked { .. })));
    }
    for kind in [Kind::Local, Kind::Child, Kind::Rescue] {
        gate.enter("x", kind, None).unwrap();
    }
    gate.poison("an error");
    assert!(matches!(gate.enter("x", Kind::Child, None), Err(CommError::Poisoned { .. })));
    gate.enter("x", Kind::Rescue, None).unwrap();
    gate.close("aborted");
    assert!(matches!(gate.enter("x", Kind::Rescue, None), Err(CommError::Closed { .. })));
}

#[test]
fn those_who_wait_learn_that_the_gate_has_closed() {
    let gate = gate();
    let entry = gate.enter("register windows", Kind::Collective, None).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| gate.enter("all_reduce", Kind::Enqueue, None).map(drop));
        gate.poison("registration was late");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("registration was late"), "{error}");
    });
    gate.poison("a second reason");
    assert!(gate.check("x").unwrap_err().to_string().contains("registration was late"));
    assert!(gate.close("aborted"));
    assert!(!gate.close("aborted again"));
    assert_eq!(gate.wait_empty(Deadline::now()), Err("register windows"));
    thread::scope(|scope| {
        let abort = scope.spawn(|| gate.wait_empty(far()));
        drop(entry);
        abort.join().unwrap().unwrap();
    });
    assert!(matches!(gate.check("x"), Err(CommError::Closed { .. })));
}
