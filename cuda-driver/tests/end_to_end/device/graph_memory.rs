//! Owners of memory hear of the ranges that captured work uses, and of nothing else.

use std::sync::{Arc, Mutex};

use cuda_driver::graph::CaptureMode;
use cuda_driver::graph_memory::{self, MemoryOwner};
use cuda_driver::{DevicePtr, Error, Result, Stream};

use super::on_stream;

/// The address that a [`Recorder`] refuses.
const REFUSED: DevicePtr = DevicePtr(0x5000);

/// An owner that records the ranges that it hears of.
#[derive(Default)]
struct Recorder(Mutex<Vec<(u64, u64)>>);

impl Recorder {
    fn registered() -> Arc<Self> {
        let recorder = Arc::new(Self::default());
        let weak = Arc::downgrade(&recorder);
        graph_memory::register(weak);
        recorder
    }

    fn heard(&self) -> Vec<(u64, u64)> {
        self.0.lock().unwrap().clone()
    }
}

impl MemoryOwner for Recorder {
    fn used_by_graph(&self, address: DevicePtr, bytes: u64, _: &Stream) -> Result<()> {
        if address == REFUSED {
            return Err(Error::NoSuchDevice { ordinal: 7, count: 1 });
        }
        self.0.lock().unwrap().push((address.0, bytes));
        Ok(())
    }
}

#[test]
fn owners_hear_of_captured_ranges_until_they_are_dropped() {
    on_stream(|_, _, stream| {
        let (first, second) = (Recorder::registered(), Recorder::registered());
        let ranges = [(DevicePtr(0x1000), 64), (DevicePtr(0x2000), 0), (DevicePtr(0x3000), 8)];
        graph_memory::note(stream, ranges).unwrap();
        assert_eq!(first.heard(), [], "the stream does not capture");

        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        graph_memory::note(stream, ranges).unwrap();
        let heard = [(0x1000, 64), (0x3000, 8)];
        assert_eq!((first.heard(), second.heard()), (heard.to_vec(), heard.to_vec()));
        let dropped = Arc::downgrade(&first);
        drop(first);
        assert!(dropped.upgrade().is_none(), "the registry keeps no owner alive");
        graph_memory::note_captured(stream, [(DevicePtr(0x4000), 1)]).unwrap();
        assert_eq!(second.heard(), [heard[0], heard[1], (0x4000, 1)]);
        drop(capture.end().unwrap());
    });
}

#[test]
fn what_an_owner_refuses_is_the_callers_error() {
    on_stream(|_, _, stream| {
        let owner = Recorder::registered();
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        let ranges = [(DevicePtr(0x1000), 64), (REFUSED, 1), (DevicePtr(0x3000), 8)];
        let error = graph_memory::note_captured(stream, ranges).unwrap_err();
        assert!(matches!(error, Error::NoSuchDevice { ordinal: 7, .. }), "{error}");
        assert_eq!(owner.heard(), [(0x1000, 64)]);
        drop(capture.end().unwrap());
    });
}
