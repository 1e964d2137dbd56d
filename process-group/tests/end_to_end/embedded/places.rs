//! Positions of buffers in the windows of a plan, which members compare.

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::DevicePtr;
use process_group::{
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, BufferError, GroupErrorKind, SymmetricPlaces, SymmetricPlan, SymmetricSegment},
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

rusty_fork_test! {
    /// Both ranks call with a buffer of 64 elements that begins before the window and ends in it, and with a buffer that begins
    /// in the window and ends behind it, which is refused. Then rank 1 uses another offset of the window than rank 0.
    #[test]
    fn a_buffer_partly_in_a_window_hides_no_other() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(200)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 512]));
            let window = memory.ptr() + 256usize;
            world.compare_places(Arc::new(OneWindow { start: window.0 }));
            let sum = |at: DevicePtr, count| {
                let buffer = Buffer::new(at, count, F32);
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.map(drop)
            };
            sum(DevicePtr(window.0 - 128), 64).unwrap();
            let error = sum(window + 256usize, 128).unwrap_err();
            let GroupErrorKind::Buffer {
                source: BufferError::SpansWindow { bytes: 512, found: 256, .. }, ..
            } = error.kind()
            else {
                panic!("{error}")
            };
            sum(window, 8).unwrap();
            world.check().unwrap();
            sum(window + if rank.rank == 1 { 64usize } else { 0 }, 8).unwrap();
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
}
