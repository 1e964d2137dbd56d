//! Positions of buffers in the windows of a plan, which members compare.

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::DevicePtr;
use process_group::{
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, GroupErrorKind, SymmetricPlaces, SymmetricPlan, SymmetricSegment},
};
use rusty_fork::rusty_fork_test;

use super::common::{faithful, soon};

/// A plan with one window of 512 bytes.
struct OneWindow {
    start: u64,
}

impl SymmetricPlaces for OneWindow {
    fn plan(&self) -> SymmetricPlan {
        SymmetricPlan { identity: vec![1], name: "a plan".into() }
    }

    fn locate(&self, _: u64, _: u64) -> Option<String> {
        None
    }

    fn window(&self, address: u64) -> Option<SymmetricSegment> {
        let segment = SymmetricSegment { segment: 0, start: self.start, end: self.start + 512 };
        (segment.start..segment.end).contains(&address).then_some(segment)
    }
}

/// Both ranks call with a buffer that is partly in the window. Then rank 1 uses another offset of the window than rank 0.
fn a_buffer_partly_in_a_window_hides_no_other(before: usize, elements: usize) {
    let machine = faithful(2, 22809);
    machine.ranks(2, |rank| {
        let world = rank.builder().heartbeat(Duration::from_millis(200)).build().unwrap();
        let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 512]));
        let window = memory.ptr() + 256usize;
        world.compare_places(Arc::new(OneWindow { start: window.0 }));
        let sum = |at: DevicePtr, count| {
            let buffer = Buffer::new(at, count, F32);
            drop(unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap());
        };
        sum(DevicePtr(window.0 - before as u64), elements);
        sum(window, 8);
        world.check().unwrap();
        sum(window + if rank.rank == 1 { 64usize } else { 0 }, 8);
        let until = soon();
        let error = loop {
            match world.check() {
                Err(error) => break error,
                Ok(()) => assert!(!until.expired(), "the difference is not found"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(error.kind(), GroupErrorKind::CollectiveDiverged { .. }), "{error}");
        let _ = stream.synchronize();
    });
}

rusty_fork_test! {
    #[test]
    fn a_buffer_that_begins_in_a_window_hides_no_other() {
        a_buffer_partly_in_a_window_hides_no_other(0, 200);
    }

    #[test]
    fn a_buffer_that_ends_in_a_window_hides_no_other() {
        a_buffer_partly_in_a_window_hides_no_other(128, 64);
    }
}
