//! Model checks: threads record calls in a ring of one or two slots, while another thread reads the ring.

use std::{panic::Location, sync::Arc};

use super::{super::Operation, *};
use crate::sync::model::{check, thread};

/// Writes a record whose group number, counters, element counts and creation time are all `value`, so that [`values`]
/// can detect a record with fields of two calls. Returns the record's number.
fn write(ring: &Ring, value: u64) -> u64 {
    let call = Call {
        operation: Operation::AllReduce,
        dtype: 0,
        reduction: 0,
        peer: None,
        send: value,
        receive: value,
        on_path: false,
        places: Default::default(),
    };
    let position = Position {
        group: value as u32,
        collective: value,
        messages: value,
        pair: value,
        message: false,
        batched: false,
    };
    ring.state().write(&call, position, Span::default(), Location::caller(), value)
}

/// Returns the value of each record in the ring. Checks that the fields of each record were written by the same call,
/// and that its completion time is either 0 or this call's value.
fn values(ring: &Ring) -> Vec<u64> {
    let value = |record: Record| {
        let (value, Position { group, collective, messages, pair, .. }) = (record.created, record.position);
        let (call, group) = (record.call, u64::from(group));
        assert_eq!([call.send, call.receive, group, collective, messages, pair], [value; 6]);
        assert!([0, value].contains(&record.completed), "{value} is done at {}", record.completed);
        value
    };
    ring.read().into_iter().map(value).collect()
}

fn spawn(ring: &Arc<Ring>, run: impl FnOnce(&Ring) + Send + 'static) -> thread::JoinHandle<()> {
    let ring = ring.clone();
    thread::spawn(move || run(&ring))
}

/// Records a call, and then its completion with a duration.
fn launch(ring: &Ring, value: u64) {
    let span = Span::default().with(write(ring, value));
    ring.completed(span, || value, || value);
}

#[test]
fn records_are_whole_and_done_by_themselves() {
    for slots in [1, 2] {
        check(move || {
            let ring = Arc::new(Ring::new(slots));
            let threads = [
                spawn(&ring, |ring| (1..3).for_each(|value| launch(ring, value))),
                spawn(&ring, |ring| launch(ring, 3)),
                spawn(&ring, |ring| drop(values(ring))),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(values(&ring).len(), slots);
        });
    }
}

#[test]
fn a_number_that_is_given_again_is_of_one_record() {
    check(|| {
        let ring = Arc::new(Ring::new(2));
        launch(&ring, 1);
        let threads = [
            spawn(&ring, |ring| ring.retract(write(ring, 2), || ())),
            spawn(&ring, |ring| (3..5).for_each(|value| launch(ring, value))),
            spawn(&ring, |ring| drop(values(ring))),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let values = values(&ring);
        assert!(values.contains(&4) && !values.contains(&2), "{values:?}");
    });
}
