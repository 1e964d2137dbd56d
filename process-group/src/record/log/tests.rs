//! The ring: which records it holds, and which of them are complete.

use proptest::prelude::*;

use super::{super::Operation, *};

fn position(collective: u64) -> Position {
    Position { group: 0, collective, messages: 0, pair: 0, message: false, batched: false }
}

fn call(elements: u64) -> Call {
    let (send, receive) = (elements, elements);
    Call {
        operation: Operation::AllReduce,
        dtype: 0,
        reduction: 0,
        peer: None,
        send,
        receive,
        on_path: false,
        places: Default::default(),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write,
    /// Removes the last record.
    Retract,
    /// Marks one record as complete: the record that is this many records before the last one.
    Complete(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => Just(Step::Write), 1 => Just(Step::Retract), 2 => (0..20u64).prop_map(Step::Complete)]
}

proptest! {
    #[test]
    fn it_holds_the_last_calls(steps in prop::collection::vec(step(), 0..100)) {
        let ring = Ring::new(8);
        let call = call(1);
        let mut model: Vec<(u64, bool)> = Vec::new();
        // The first `lost` records of `model` were overwritten, some of them by records that were retracted since.
        let mut lost = 0;
        for step in steps {
            match step {
                Step::Write => {
                    let number = model.len() as u64;
                    let written = ring.state().write(&call, position(number), Span::default(), Location::caller(), 1);
                    prop_assert_eq!(written, number);
                    model.push((number, false));
                    lost = lost.max(model.len().saturating_sub(8));
                }
                Step::Retract => if let Some((number, _)) = model.pop() {
                    ring.retract(number, || ());
                    // The next record gets this number, and is not lost.
                    lost = lost.min(model.len());
                },
                Step::Complete(back) => {
                    let Some(at) = model.len().checked_sub(1 + back as usize) else { continue };
                    ring.completed(Span { first: at as u64, count: 1 }, || 7, || 0);
                    model[at].1 = true;
                }
            }
        }
        let found: Vec<_> = ring.read().iter().map(|r| (r.position.collective, r.completed == 7)).collect();
        prop_assert_eq!(&found, &model[lost.min(model.len())..]);
    }
}

/// Writes the first record of a work.
fn write(ring: &Ring, number: u64) -> Span {
    let record = ring.state().write(&call(number), position(number), Span::default(), Location::caller(), 1);
    Span::default().with(record)
}

/// Returns the calls in the ring, with their completion times.
fn completed(ring: &Ring) -> Vec<(u64, u64)> {
    ring.read().iter().map(|record| (record.call.send, record.completed)).collect()
}

#[test]
fn records_written_during_a_query_of_the_driver_are_not_completed() {
    let ring = Ring::new(2);
    let old = write(&ring, 1);
    let overwrite = || (2..4).for_each(|number| _ = write(&ring, number));
    ring.completed(
        old,
        || 7,
        || {
            overwrite();
            1
        },
    );
    assert_eq!(completed(&ring), [(2, 0), (3, 0)]);
}

#[test]
fn completing_a_work_leaves_records_of_other_works_in_between() {
    let ring = Ring::new(8);
    let batch = write(&ring, 1);
    let other = write(&ring, 2);
    let last = ring.state().write(&call(3), position(3), batch, Location::caller(), 1);
    let batch = batch.with(last);
    ring.completed(batch, || 7, || 0);
    assert_eq!(completed(&ring), [(1, 7), (2, 0), (3, 7)]);
    ring.completed(other, || 9, || 0);
    assert_eq!(completed(&ring), [(1, 7), (2, 9), (3, 7)]);
}
