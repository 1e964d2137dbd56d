//! Capture and replay.

use cuda_driver::graph::{CaptureMode, CaptureStatus, RelaxedCapture, captures_of_this_thread, is_capturing};
use cuda_driver::memory::DeviceMemory;
use cuda_driver::sys::CUresult;
use cuda_driver::{Error, Event, EventFlags, Stream, StreamFlags};

use rusty_fork::rusty_fork_test;

use super::kept::{begin_raw, end_raw};
use super::{context, driver, failed, on_stream, start, turn};

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    on_stream(|_, context, stream| {
        let memory = DeviceMemory::new(context, 4096).unwrap();
        memory.copy_from_host(0, &[1u8; 8]).unwrap();
        let read = || {
            let mut bytes = [0u8; 8];
            memory.copy_to_host(0, &mut bytes).unwrap();
            bytes
        };
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Active);
        // SAFETY: the memory outlives all launches, which the test waits for.
        unsafe {
            stream.copy(memory.ptr() + 4usize, memory.ptr(), 4).unwrap();
            stream.fill_u8(memory.ptr(), 5, 4).unwrap();
        }
        let graph = capture.end().unwrap();
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
        assert_eq!(graph.node_count().unwrap(), 2);
        let exec = graph.instantiate().unwrap();
        drop(graph);
        stream.synchronize().unwrap();
        assert_eq!(read(), [1; 8], "nothing ran yet");
        exec.upload(stream).unwrap();
        for expected in [[5, 5, 5, 5, 1, 1, 1, 1], [5; 8]] {
            stream.launch(&exec).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(read(), expected);
        }
    });
}

#[test]
fn a_stream_that_waits_for_a_captured_event_is_drawn_in() {
    on_stream(|_, context, stream| {
        let memory = DeviceMemory::new(context, 4096).unwrap();
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let [fork, join] = [(); 2].map(|()| Event::new(context, EventFlags::DISABLE_TIMING).unwrap());
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        stream.record(&fork).unwrap();
        other.wait(&fork).unwrap();
        assert_eq!(other.capture_status().unwrap(), CaptureStatus::Active);
        // SAFETY: the memory outlives all launches, which the test waits for.
        unsafe { other.fill_u8(memory.ptr(), 8, 4096).unwrap() };
        other.record(&join).unwrap();
        stream.wait(&join).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        stream.launch(&exec).unwrap();
        stream.synchronize().unwrap();
        let mut bytes = [0u8; 4096];
        memory.copy_to_host(0, &mut bytes).unwrap();
        assert_eq!(bytes, [8; 4096]);
    });
}

#[test]
fn the_driver_says_whether_a_stream_of_the_context_captures() {
    on_stream(|_, context, stream| {
        assert!(!is_capturing(context).unwrap());
        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        assert!(is_capturing(context).unwrap());
        // The query itself does not disturb the capture.
        capture.end().unwrap();
        assert!(!is_capturing(context).unwrap());
        // Captures that another library began are found on a stream with a live handle, and on a blocking stream
        // without one.
        begin_raw(context, stream);
        assert!(is_capturing(context).unwrap());
        end_raw(context, stream);
        let (api, mut raw) = (context.driver().api(), std::ptr::null_mut());
        // SAFETY: writes one handle, to a local that outlives the call.
        let made = context.with_current(|| unsafe { (api.cuStreamCreate().unwrap())(&mut raw, 0) });
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: the stream outlives the handle.
        let handle = || unsafe { Stream::borrowed(context, raw) };
        begin_raw(context, &handle());
        assert!(is_capturing(context).unwrap());
        end_raw(context, &handle());
        assert!(!is_capturing(context).unwrap());
        // SAFETY: nobody uses the stream any more.
        assert_eq!(unsafe { (api.cuStreamDestroy_v2().unwrap())(raw) }, CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn a_thread_knows_the_captures_that_it_has_begun() {
    on_stream(|_, context, stream| {
        assert!(captures_of_this_thread().is_empty());
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        assert_eq!(captures_of_this_thread(), std::slice::from_ref(stream));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(captures_of_this_thread().is_empty()));
        });
        drop(capture);
        assert!(captures_of_this_thread().is_empty());
        // Handles that are created and dropped leave no entries behind.
        for _ in 0..10_000 {
            // SAFETY: the stream outlives the handle.
            drop(unsafe { Stream::borrowed(context, stream.raw()) });
        }
        assert!(!is_capturing(context).unwrap());
    });
}

#[test]
fn a_capture_that_is_dropped_ends() {
    on_stream(|_, _, stream| {
        drop(stream.begin_capture(CaptureMode::Global).unwrap());
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_call_that_cannot_be_replayed_ruins_the_capture_unless_relaxed() {
    on_stream(|_, context, stream| {
        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        {
            let _relaxed = RelaxedCapture::enter(context.driver()).unwrap();
            let memory = DeviceMemory::new(context, 4096).unwrap();
            Event::new(context, EventFlags::DISABLE_TIMING).unwrap().query().unwrap();
            drop(memory);
        }
        capture.end().expect("the guard kept the capture whole");

        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        let error = DeviceMemory::new(context, 4096).unwrap_err();
        assert_eq!(failed(&error), ("cuMemAlloc_v2", 900));
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Invalidated);
        assert_eq!(failed(&capture.end().unwrap_err()), ("cuStreamEndCapture", 901));
        assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
    });
}

#[test]
fn freeing_memory_does_not_ruin_a_capture() {
    on_stream(|_, context, stream| {
        let (dropped, freed) =
            (DeviceMemory::new(context, 4096).unwrap(), DeviceMemory::new(context, 4096).unwrap());
        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        drop(dropped);
        freed.free().unwrap();
        capture.end().unwrap();
    });
}

#[test]
fn a_host_function_that_runs_once_is_refused() {
    on_stream(|_, _, stream| {
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        let refused = stream.launch_host_fn(|| panic!("never runs")).unwrap_err();
        assert!(matches!(refused, Error::WhileCapturing { .. }), "{refused}");
        assert_eq!(capture.end().unwrap().node_count().unwrap(), 0);
    });
}

#[test]
fn a_raw_host_function_runs_at_each_launch() {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicU32, Ordering};

    unsafe extern "C" fn count(counter: *mut c_void) {
        // SAFETY: the test gives the address of a counter that outlives the launches.
        unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }
    on_stream(|_, _, stream| {
        let counter = AtomicU32::new(0);
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the counter outlives the launches, which are waited for.
        unsafe { stream.launch_raw_host_fn(count, (&raw const counter).cast_mut().cast()).unwrap() };
        let exec = capture.end().unwrap().instantiate().unwrap();
        for _ in 0..3 {
            stream.launch(&exec).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 3);
    });
}

// In a process of its own, because the stream stays alive for ever.
rusty_fork_test! {
    /// The context of the next world is another one, although it is the first of its world too.
    #[test]
    fn a_stream_that_outlives_its_world_is_of_no_later_context() {
        let _turn = turn();
        for _ in 0..2 {
            let world = start(1);
            let driver = driver(world.cuda());
            let context = context(&driver, 0);
            assert!(!is_capturing(&context).unwrap());
            std::mem::forget(Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap());
            drop((context, driver));
            world.finish().expect_err("the stream is left behind");
        }
    }
}
