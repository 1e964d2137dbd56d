//! Order within and between streams.

use std::sync::mpsc;
use std::time::Duration;

use cuda_driver::graph::CaptureStatus;
use cuda_driver::memory::{DeviceMemory, PinnedFlags, PinnedMemory, StreamMemory};
use cuda_driver::{Error, Event, EventFlags, Stream, StreamFlags, WaitCondition};

use super::{context, on_devices, on_stream};

#[test]
fn copies_and_fills_run_in_order() {
    on_stream(|_, context, stream| {
        let (a, b) =
            (DeviceMemory::new(context, 1 << 20).unwrap(), DeviceMemory::new(context, 1 << 20).unwrap());
        let mut host = PinnedMemory::new(context, 1 << 20, PinnedFlags::PORTABLE).unwrap();
        assert!(host.as_slice().iter().all(|byte| *byte == 0));
        host.as_mut_slice().fill(9);
        // SAFETY: all three memories outlive the work, and nothing else accesses them before the test has waited for
        // the work.
        unsafe {
            stream.copy_from_host(a.ptr(), host.as_ptr().cast(), 1 << 20).unwrap();
            stream.fill_u32(a.ptr() + 4usize, 0x0403_0201, 1).unwrap();
            stream.fill_u16(a.ptr() + 8usize, 0x0605, 1).unwrap();
            stream.copy(b.ptr(), a.ptr(), 1 << 20).unwrap();
            stream.fill_u8(b.ptr() + 10usize, 7, 2).unwrap();
            stream.copy_to_host(host.as_ptr().cast(), b.ptr(), 1 << 20).unwrap();
        }
        stream.synchronize().unwrap();
        assert!(stream.query().unwrap());
        assert_eq!(host.as_slice()[..14], [9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 7, 9, 9]);
    });
}

#[test]
fn a_host_function_holds_the_stream_and_runs_once() {
    on_stream(|_, context, stream| {
        let (go, gate) = mpsc::channel::<()>();
        let (done, ran) = mpsc::channel();
        stream
            .launch_host_fn(move || {
                gate.recv_timeout(Duration::from_secs(60)).expect("the test opens the gate");
                done.send(()).expect("the test listens");
            })
            .unwrap();
        let event = Event::new(context, EventFlags::DISABLE_TIMING).unwrap();
        stream.record(&event).unwrap();
        assert!(!event.query().unwrap(), "the stream is held");
        assert!(!stream.query().unwrap());
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        other.wait(&event).unwrap();
        assert!(!other.query().unwrap(), "the other stream waits for the event");
        go.send(()).unwrap();
        other.synchronize().unwrap();
        assert!(event.query().unwrap());
        ran.try_recv().expect("the function ran before the event");
        assert!(ran.recv().is_err(), "it ran once, and is gone");
    });
}

#[test]
fn a_panic_in_a_host_function_ends_with_it() {
    on_stream(|_, _, stream| {
        stream.launch_host_fn(|| panic!("on purpose")).unwrap();
        stream.launch_host_fn(|| {}).unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn words_order_streams() {
    on_stream(|_, context, stream| {
        let words = DeviceMemory::new(context, 4096).unwrap();
        words.copy_from_host(0, &[0u64; 512]).unwrap();
        let (w32, w64) = (words.ptr(), words.ptr() + 8usize);
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        // SAFETY: the words outlive the work, which is waited for.
        unsafe {
            other.wait_value32(w32, WaitCondition::GreaterOrEqual, 5).unwrap();
            other.wait_value64(w64, WaitCondition::Equal, 1 << 40).unwrap();
            assert!(!other.query().unwrap());
            stream.write_value32(w32, 6).unwrap();
            stream.write_value64(w64, 1 << 40).unwrap();
        }
        other.synchronize().unwrap();
        let mut host = [0u64; 2];
        stream.synchronize().unwrap();
        words.copy_to_host(0, &mut host).unwrap();
        assert_eq!(host, [6, 1 << 40]);
    });
}

#[test]
fn an_event_of_another_device_is_waited_for_but_not_recorded() {
    on_devices(2, |_, driver| {
        let (first, second) = (context(driver, 0), context(driver, 1));
        let stream = Stream::new(&first, StreamFlags::NON_BLOCKING).unwrap();
        let event = Event::new(&second, EventFlags::DISABLE_TIMING).unwrap();
        match stream.record(&event) {
            Err(Error::DifferentDevices { found: 1, wanted: 0, .. }) => {}
            other => panic!("{other:?}"),
        }
        stream.wait(&event).unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn time_passes_between_events() {
    on_stream(|_, context, stream| {
        let [before, after] = [(); 2].map(|()| Event::new(context, EventFlags::BLOCKING_SYNC).unwrap());
        stream.record(&before).unwrap();
        stream.launch_host_fn(|| std::thread::sleep(Duration::from_millis(2))).unwrap();
        stream.record(&after).unwrap();
        after.synchronize().unwrap();
        assert!(after.elapsed_us(&before).unwrap() >= 2_000.0);
    });
}

#[test]
fn stream_ordered_memory_is_reused_in_order() {
    on_stream(|_, context, stream| {
        let bytes = 192 << 20;
        for value in 0..4 {
            let memory = StreamMemory::new(stream, bytes).unwrap();
            // SAFETY: the memory is freed in the stream's order, after the fill.
            unsafe { stream.fill_u8(memory.ptr(), value, 4096).unwrap() };
        }
        let other = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let memory = StreamMemory::new(stream, 4096).unwrap().move_to(&other).unwrap();
        assert_eq!(*memory.stream(), other);
        memory.free().unwrap();
        other.synchronize().unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn the_default_stream_and_borrowed_streams_are_not_destroyed() {
    on_stream(|world, context, stream| {
        let default = Stream::legacy_default(context);
        let memory = DeviceMemory::new(context, 4096).unwrap();
        // SAFETY: the memory outlives the work, which is waited for.
        unsafe { default.fill_u8(memory.ptr(), 1, 4096).unwrap() };
        default.synchronize().unwrap();
        assert_eq!(default.capture_status().unwrap(), CaptureStatus::None);
        // SAFETY: `stream` outlives this handle.
        drop(unsafe { Stream::borrowed(context, stream.raw()) });
        drop(default);
        assert_eq!(world.calls("cuStreamDestroy_v2"), 0);
        stream.synchronize().unwrap();
    });
}

#[test]
fn priorities_are_a_range() {
    on_stream(|_, context, _| {
        let (lowest, highest) = context.stream_priority_range().unwrap();
        assert!(highest <= lowest);
        let stream = Stream::with_priority(context, StreamFlags::NON_BLOCKING, highest).unwrap();
        stream.synchronize().unwrap();
    });
}
