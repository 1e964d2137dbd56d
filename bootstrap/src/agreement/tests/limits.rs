//! The time limits of actions, and of the waits for their outcomes.

use std::time::Duration;

use super::{
    super::{Agreement, Answer, Ending, Input, Output, Protocol, Request, budget},
    sum::{Sum, drive, member_of},
};

const LONG: Duration = Duration::from_secs(60);

/// One member has a patience of 1 s, the other one of 100 s. The time limit of the action is half of the longer one.
#[test]
fn a_short_patience_shortens_no_action() {
    let mut machine = Agreement::<Sum>::new(member_of(0, 2, Duration::from_secs(1)), 3, 0).unwrap();
    let mut other = Agreement::<Sum>::new(member_of(1, 2, Duration::from_secs(100)), 3, 1).unwrap();
    let posted = |machine: &mut Agreement<Sum>| {
        machine.begin(Duration::ZERO);
        let Output::Store(Request::Propose { value: list, .. }) =
            machine.step(Input::Store(Answer::Stored), Duration::ZERO)
        else {
            panic!("it compares its list");
        };
        match machine.step(Input::Store(Answer::Result(list)), Duration::ZERO) {
            Output::Store(Request::Post { value, .. }) => Some(value),
            other => panic!("{other:?}"),
        }
    };
    let records = vec![posted(&mut machine), posted(&mut other), None, None];
    machine.step(Input::Store(Answer::Stored), Duration::ZERO);
    machine.step(Input::Store(Answer::Count(2)), Duration::ZERO);
    let Output::Store(Request::Propose { value, .. }) =
        machine.step(Input::Store(Answer::Values(records)), Duration::ZERO)
    else {
        panic!("it has all records");
    };
    let now = Duration::from_millis(900);
    match machine.step(Input::Store(Answer::Result(value)), now) {
        Output::Act { plan: 6, until, .. } => assert_eq!(until, now + Duration::from_secs(50)),
        other => panic!("{other:?}"),
    }
    assert!(machine.is_in_doubt());
}

/// The agreement has two actions, which share their limits. Rank 1 posts its outcome of the first one at the end of the
/// wait for it. It is a little slower than rank 0 in the second action too, and is not late.
#[test]
fn an_action_after_a_late_verdict_has_time_for_its_outcomes() {
    let wait = budget::action(LONG, Sum::ACTION_FLOOR) + budget::outcomes(LONG);
    // The results of both ranks if the second action of rank 1 takes `second`.
    let results = |second: Duration| {
        let mut acts_until = None;
        let has_acted = |rank, plan, until, now| {
            if rank == 0 {
                return true;
            }
            assert!(until >= now + Duration::from_secs(2) || acts_until.is_some());
            let takes = if plan == 8 { wait } else { second };
            let has_acted = now >= *acts_until.get_or_insert(now + takes);
            acts_until = acts_until.filter(|_| !has_acted);
            has_acted
        };
        drive(4, LONG, |_, _| (), has_acted).map(|end| end.result)
    };
    assert_eq!(results(Duration::from_secs(3)), [Ok(4), Ok(4)]);
    // The wait for the last outcomes ends too.
    let late = results(Duration::from_secs(7));
    let is_late = |result: &_| matches!(result, Err(Ending::Refused(why)) if why == "rank 1: Late");
    assert!(late.iter().all(is_late), "{late:?}");
}

/// A short patience lets an agreement fail, and leaves enough time for an action that was decided. A very long one does
/// not make members wait for hours.
#[test]
fn limits_after_a_decision_have_bounds() {
    let (floor, seconds) = (Duration::from_secs(10), Duration::from_secs);
    let limits = |patience| (budget::action(patience, floor), budget::outcomes(patience));
    assert_eq!(limits(Duration::ZERO), (floor, seconds(5)));
    assert_eq!(limits(seconds(100)), (seconds(50), seconds(25)));
    assert_eq!(limits(Duration::MAX), (seconds(600), seconds(600)));
}
