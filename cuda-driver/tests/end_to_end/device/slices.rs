//! Slices: contents, order between streams, memory in flight, captures, failures.

use std::cell::Cell;
use std::sync::{Barrier, Mutex, mpsc};

use cuda_driver::graph::{Capture, CaptureMode, CaptureStatus};
use cuda_driver::module::{JitOptions, LaunchConfig, LaunchError, Module};
use cuda_driver::sys::{CUdeviceptr, CUevent, CUresult, CUstream, CUstreamCaptureMode};
use cuda_driver::{
    Context, DeviceSlice, DeviceView, DeviceViewMut, Error, Event, EventFlags, PinnedSlice, Result, Stream,
    StreamFlags,
};
use gpu_sim::{Action, Injection, World};
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

use super::kept::{begin_raw, end_raw};
use super::kernels::{self, PTX};
use super::{INJECTED, context, driver, drops, failed, on_devices, on_stream, start, turn};

fn stream_of(context: &Context) -> Stream {
    Stream::new(context, StreamFlags::NON_BLOCKING).unwrap()
}

/// Blocks a stream until the returned sender, the gate, is dropped.
fn hold(stream: &Stream) -> mpsc::Sender<()> {
    let (gate, closed) = mpsc::channel();
    stream.launch_host_fn(move || _ = closed.recv()).unwrap();
    gate
}

/// Runs `wait`, which must wait for the blocked stream. Drops the gate when `wait` has called `cuEventSynchronize` or
/// has returned.
fn opened_when_waited<R>(world: &World, gate: mpsc::Sender<()>, wait: impl FnOnce() -> R) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    let before = world.calls("cuEventSynchronize");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let ended = || is_done.try_recv() == Err(mpsc::TryRecvError::Disconnected);
            while world.calls("cuEventSynchronize") == before && !ended() {
                std::thread::yield_now();
            }
            drop(gate);
        });
        let result = wait();
        drop(done);
        result
    })
}

#[track_caller]
fn refused_while_capturing<T>(result: Result<T>) {
    match result {
        Err(Error::WhileCapturing { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the call cannot be captured"),
    }
}

const LEN: usize = 24;

/// A step of the property test. It uses a slice of [`LEN`] elements, a pinned slice of four elements, and one of two
/// streams.
#[derive(Clone, Debug)]
enum Step {
    FromHost(usize, usize, u32),
    ToHost(usize, usize),
    Zero(usize, usize),
    Within { middle: usize, from: usize, to: usize, len: usize },
    FromPinned(usize, [u32; 4]),
    ToPinned(usize),
    Clone(usize, usize),
}

fn step() -> impl Strategy<Value = (Step, bool)> {
    let at = 0..LEN + 2;
    let step = prop_oneof![
        (at.clone(), at.clone(), any::<u32>())
            .prop_map(|(start, end, value)| Step::FromHost(start, end, value)),
        (at.clone(), at.clone()).prop_map(|(start, end)| Step::ToHost(start, end)),
        (at.clone(), at.clone()).prop_map(|(start, end)| Step::Zero(start, end)),
        (at.clone(), at.clone(), at.clone(), 0..LEN).prop_map(|(middle, from, to, len)| Step::Within {
            middle,
            from,
            to,
            len
        }),
        (at.clone(), any::<[u32; 4]>()).prop_map(|(at, values)| Step::FromPinned(at, values)),
        at.clone().prop_map(Step::ToPinned),
        (at.clone(), at).prop_map(|(start, end)| Step::Clone(start, end)),
    ];
    (step, any::<bool>())
}

/// Returns a range of the model. If it is out of range, returns the fields that the slice's [`Error::OutOfRange`]
/// must have.
fn range_of(model: &mut [u32], start: usize, end: usize) -> Result<&mut [u32], (usize, usize, usize)> {
    let len = model.len();
    model.get_mut(start..end).ok_or((start, end, len))
}

/// Compares an outcome with that of the model. `refused` has the fields of the expected [`Error::OutOfRange`], or is
/// `None` if the call must succeed. Returns the value of a call that succeeded.
#[track_caller]
fn expect<T>(outcome: Result<T>, refused: Option<(usize, usize, usize)>) -> Option<T> {
    match (outcome, refused) {
        (Ok(value), None) => Some(value),
        (Err(Error::OutOfRange { start, end, len }), Some(range)) => {
            assert_eq!((start, end, len), range);
            None
        }
        (outcome, refused) => panic!("{:?}, but {refused:?}", outcome.err()),
    }
}

/// Takes one step on the device and in the model.
fn take(
    step: &Step,
    stream: &Stream,
    slice: &mut DeviceSlice<u32>,
    pinned: &mut PinnedSlice<u32>,
    model: &mut [u32],
) {
    match *step {
        Step::FromHost(start, end, value) => {
            let wanted = range_of(model, start, end);
            let values = vec![value; wanted.as_ref().map_or(0, |range| range.len())];
            let written = slice.slice_mut(start..end).and_then(|to| stream.memcpy_htod(&values, to));
            expect(written, wanted.map(|range| range.fill(value)).err());
        }
        Step::ToHost(start, end) => {
            let found = slice.slice(start..end).and_then(|from| stream.clone_dtoh(from));
            match range_of(model, start, end) {
                Ok(range) => assert_eq!(expect(found, None).unwrap(), range),
                Err(range) => drop(expect(found, Some(range))),
            }
        }
        Step::Zero(start, end) => {
            let zeroed = slice.slice_mut(start..end).and_then(|to| stream.memset_zeros(to));
            expect(zeroed, range_of(model, start, end).map(|range| range.fill(0)).err());
        }
        Step::Within { middle, from, to, len } => {
            let mut all = slice.as_view_mut();
            let Some((first, mut second)) =
                expect(all.split_at_mut(middle), (middle > LEN).then_some((0, middle, LEN)))
            else {
                return;
            };
            let (low, high) = model.split_at_mut(middle);
            let (source, target) = (range_of(low, from, from + len), range_of(high, to, to + len));
            if let Some(source_view) = expect(first.slice(from..from + len), source.as_ref().err().copied()) {
                let target_view = second.slice_mut(to..to + len);
                let copied = target_view.and_then(|to| stream.memcpy_dtod(source_view, to));
                let written = target.map(|target| target.copy_from_slice(source.unwrap()));
                expect(copied, written.err());
            }
        }
        Step::FromPinned(at, values) => {
            pinned.as_mut_slice().unwrap().copy_from_slice(&values);
            let written = slice.slice_mut(at..at + 4).and_then(|to| stream.memcpy_htod_async(pinned, to));
            // If a copy was enqueued, it has read `values`, because this access waits for it.
            pinned.as_mut_slice().unwrap().fill(0);
            expect(written, range_of(model, at, at + 4).map(|range| range.copy_from_slice(&values)).err());
        }
        Step::ToPinned(at) => {
            let read = slice.slice(at..at + 4).and_then(|from| stream.memcpy_dtoh_async(from, pinned));
            match range_of(model, at, at + 4) {
                Ok(range) => {
                    expect(read, None);
                    assert_eq!(pinned.as_slice().unwrap(), range);
                }
                Err(range) => drop(expect(read, Some(range))),
            }
        }
        Step::Clone(start, end) => {
            let copy = slice.slice(start..end).and_then(|from| stream.clone_dtod(from));
            match range_of(model, start, end) {
                Ok(range) => assert_eq!(stream.clone_dtoh(&expect(copy, None).unwrap()).unwrap(), range),
                Err(range) => drop(expect(copy, Some(range))),
            }
        }
    }
}

#[test]
fn slices_are_what_the_model_says_on_every_stream() {
    on_stream(|_, context, stream| {
        let other = stream_of(context);
        proptest!(ProptestConfig::with_cases(128), |(steps in prop::collection::vec(step(), 1..24))| {
            let mut model = [0u32; LEN];
            let mut slice = stream.alloc_zeros::<u32>(LEN).unwrap();
            let mut pinned = context.alloc_pinned::<u32>(4).unwrap();
            for (step, elsewhere) in &steps {
                take(step, if *elsewhere { &other } else { stream }, &mut slice, &mut pinned, &mut model);
            }
            prop_assert_eq!(&stream.clone_dtoh(&slice).unwrap()[..], &model[..]);
        });
    });
}

/// It is unknown what the call has enqueued, so the memory is never freed.
#[test]
fn a_panic_while_work_is_enqueued_keeps_the_memory() {
    let _turn = turn();
    let world = start(1);
    let context = context(&driver(world.cuda()), 0);
    let [own, other] = [stream_of(&context), stream_of(&context)];
    let slice = own.alloc::<u32>(4).unwrap();
    let memory = slice.as_view().memory().clone();
    let enqueue = || other.enqueue_using(&[memory], || -> Result<()> { panic!("on purpose") });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(enqueue)).is_err());
    drop(slice);
    assert_eq!(world.faults().calls("cuMemFreeAsync"), 0);
}

#[test]
fn lengths_that_differ_and_ranges_without_order_are_refused() {
    on_stream(|_, context, stream| {
        let mut slice = stream.alloc_zeros::<u8>(4).unwrap();
        let mut pinned = context.alloc_pinned::<u8>(3).unwrap();
        let mut other = stream.alloc_zeros::<u8>(5).unwrap();
        for (refused, lengths) in [
            (stream.memcpy_htod(&[0; 3], &mut slice), (3, 4)),
            (stream.memcpy_dtoh(&slice, &mut [0; 5]), (4, 5)),
            (stream.memcpy_htod_async(&pinned, &mut slice), (3, 4)),
            (stream.memcpy_dtoh_async(&slice, &mut pinned), (4, 3)),
            (stream.memcpy_dtod(&slice, &mut other), (4, 5)),
        ] {
            match refused {
                Err(Error::DifferentLengths { from, to }) => assert_eq!((from, to), lengths),
                other => panic!("{other:?}"),
            }
        }
        // Clippy reports a literal range whose start is after its end.
        let (start, end) = (3, 1);
        for (refused, range) in [
            (slice.slice(start..end), (3, 1, 4)),
            (slice.slice(..=usize::MAX), (0, usize::MAX, 4)),
            (slice.slice(usize::MAX..), (usize::MAX, 4, 4)),
            (
                slice.slice((std::ops::Bound::Excluded(usize::MAX), std::ops::Bound::Unbounded)),
                (usize::MAX, 4, 4),
            ),
        ] {
            expect(refused, Some(range));
        }
        assert!(slice.slice(4..).unwrap().is_empty() && slice.slice(..).unwrap().len() == 4);
    });
}

#[test]
fn more_than_the_device_has_is_out_of_memory() {
    on_stream(|_, context, stream| {
        for len in [1 << 50, usize::MAX] {
            let device = stream.alloc::<u64>(len).unwrap_err();
            assert_eq!(failed(&device).0, "cuMemAllocAsync", "{device}");
            let host = context.alloc_pinned::<u64>(len).unwrap_err();
            assert_eq!(failed(&host).0, "cuMemHostAlloc", "{host}");
        }
    });
}

#[test]
fn the_host_writes_a_pinned_slice_after_the_copy_that_reads_it() {
    on_stream(|world, context, stream| {
        let mut pinned = context.alloc_pinned::<u32>(4).unwrap();
        pinned.as_mut_slice().unwrap().fill(1);
        let mut slice = stream.alloc::<u32>(4).unwrap();
        let gate = hold(stream);
        stream.memcpy_htod_async(&pinned, &mut slice).unwrap();
        opened_when_waited(world, gate, || pinned.as_mut_slice().unwrap().fill(2));
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1; 4]);
        assert_eq!(pinned.as_slice().unwrap(), [2; 4]);
    });
}

#[test]
fn the_host_reads_a_pinned_slice_after_the_copy_that_writes_it() {
    on_stream(|world, context, stream| {
        let mut pinned = context.alloc_pinned::<u32>(4).unwrap();
        let slice = stream.clone_htod(&[3u32; 4]).unwrap();
        let gate = hold(stream);
        stream.memcpy_dtoh_async(&slice, &mut pinned).unwrap();
        opened_when_waited(world, gate, || assert_eq!(pinned.as_slice().unwrap(), [3; 4]));
    });
}

#[test]
fn pinned_slices_wait_for_copies_of_all_streams() {
    on_devices(2, |world, driver| {
        let contexts = [context(driver, 0), context(driver, 1)];
        let streams = contexts.each_ref().map(stream_of);
        let mut pinned = contexts[0].alloc_pinned::<u8>(2).unwrap();
        pinned.as_mut_slice().unwrap().fill(5);
        let mut slices = streams.each_ref().map(|stream| stream.alloc::<u8>(2).unwrap());
        // The first copy waits for the gate, and the second copy, on the other stream, waits for the first.
        let gate = hold(&streams[0]);
        let [first, second] = &mut slices;
        streams[0].memcpy_htod_async(&pinned, first).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| opened_when_waited(world, gate, || ()));
            streams[1].memcpy_htod_async(&pinned, second).unwrap();
            pinned.as_mut_slice().unwrap().fill(6);
        });
        for (stream, slice) in streams.iter().zip(&slices) {
            assert_eq!(stream.clone_dtoh(slice).unwrap(), [5; 2]);
        }
    });
}

#[test]
fn what_is_dropped_while_in_flight_is_freed_after_its_uses() {
    on_stream(|world, context, stream| {
        let other = stream_of(context);
        let mut pinned = context.alloc_pinned::<u32>(4).unwrap();
        let slice = stream.clone_htod(&[4u32; 4]).unwrap();
        let mut target = stream.alloc::<u32>(4).unwrap();
        let gate = hold(&other);
        other.memcpy_dtod(&slice, &mut target).unwrap();
        other.memcpy_dtoh_async(&target, &mut pinned).unwrap();
        drop((slice, target));
        assert!(!stream.query().unwrap(), "the stream of the slices waits for the other one");
        opened_when_waited(world, gate, || drop(pinned));
        assert_eq!(world.calls("cuMemFreeHost"), 1);
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_slice_is_used_in_the_order_of_the_calls() {
    on_stream(|_, context, stream| {
        let other = stream_of(context);
        let mut slice = stream.clone_htod(&[1u32; 4]).unwrap();
        let gate = hold(stream);
        other.memset_zeros(&mut slice).unwrap();
        assert!(!other.query().unwrap(), "earlier work of the slice's stream comes first");
        drop(gate);
        other.synchronize().unwrap();
        let gate = hold(&other);
        other.memset_zeros(slice.slice_mut(2..).unwrap()).unwrap();
        let copy = stream.clone_dtod(&slice).unwrap();
        assert!(!stream.query().unwrap(), "so does earlier work on the slice");
        drop(gate);
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), [0; 4]);
        // A use on the slice's own stream waits for no other stream.
        let gate = hold(&other);
        stream.memset_zeros(&mut slice).unwrap();
        stream.synchronize().unwrap();
        assert!(!other.query().unwrap());
        drop(gate);
    });
}

#[test]
fn forgotten_slices_leak_and_do_nothing_else() {
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = context(&driver, 0);
    let stream = stream_of(&context);
    let (mut pinned, mut slice) =
        (context.alloc_pinned::<u8>(1 << 10).unwrap(), stream.alloc_zeros::<u8>(1 << 10).unwrap());
    let gate = hold(&stream);
    stream.memcpy_htod_async(&pinned, &mut slice).unwrap();
    stream.memcpy_dtoh_async(slice.slice(..).unwrap(), &mut pinned).unwrap();
    std::mem::forget(slice);
    std::mem::forget(pinned);
    drop(gate);
    stream.synchronize().unwrap();
    drop((stream, context, driver));
    assert_eq!(*drops(), Vec::<String>::new());
    let left = world.finish().unwrap_err().to_string();
    assert!(left.contains("pinned allocation") && left.contains("0 cases of misuse"), "{left}");
}

#[test]
fn the_per_thread_stream_owns_no_slices_but_uses_them() {
    on_stream(|_, context, stream| {
        // SAFETY: the handle is `CU_STREAM_PER_THREAD`, which always exists.
        let of_thread = unsafe { Stream::borrowed(context, std::ptr::without_provenance_mut(2)) };
        assert!(matches!(of_thread.alloc::<u8>(1), Err(Error::PerThreadStream)));
        let mut slice = stream.clone_htod(&[1u8; 4]).unwrap();
        of_thread.memset_zeros(&mut slice).unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [0; 4]);
        let legacy = Stream::legacy_default(context);
        let ones = legacy.clone_htod(&[1u8; 4]).unwrap();
        stream.memcpy_dtod(&ones, &mut slice).unwrap();
        assert_eq!(legacy.clone_dtoh(&slice).unwrap(), [1; 4]);
    });
}

// In a process of its own, because the capture counts as open for ever.
rusty_fork_test! {
    #[test]
    fn a_capture_that_could_not_be_ended_keeps_its_memory() {
        let _turn = turn();
        let world = start(1);
        let driver = driver(world.cuda());
        let context = context(&driver, 0);
        let stream = stream_of(&context);
        // SAFETY: the handle is `CU_STREAM_PER_THREAD`, which always exists.
        let of_thread = unsafe { Stream::borrowed(&context, std::ptr::without_provenance_mut(2)) };
        let mut slice = stream.alloc::<u8>(4).unwrap();
        let capture = of_thread.begin_capture(CaptureMode::Relaxed).unwrap();
        of_thread.memset_zeros(&mut slice).unwrap();
        world.faults().inject(Injection::new("cuCtxGetCurrent", Action::Fail(INJECTED))).unwrap();
        assert_eq!(failed(&capture.end().unwrap_err()), ("cuCtxGetCurrent", INJECTED));
        drop(slice);
        assert_eq!(world.calls("cuMemFreeAsync"), 0, "the stream still captures");
        assert_eq!(of_thread.capture_status().unwrap(), CaptureStatus::Active);
        drop((of_thread, stream, context, driver));
        world.finish().expect_err("the capture is still open");
    }
}

#[test]
fn a_graph_holds_its_slices_and_each_launch_is_a_use() {
    on_stream(|world, context, stream| {
        let other = stream_of(context);
        let from = other.clone_htod(&[7u32; 4]).unwrap();
        let mut to = stream.alloc_zeros::<u32>(4).unwrap();
        let frees = || world.calls("cuMemFreeAsync");
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        stream.memcpy_dtod(&from, &mut to).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        drop(from);
        assert_eq!(frees(), 0, "the executable holds it");
        let third = stream_of(context);
        let gate = hold(&third);
        third.launch(&exec).unwrap();
        assert!(!stream.query().unwrap() && !other.query().unwrap(), "the streams of both slices wait");
        drop(exec);
        assert_eq!(frees(), 1, "in the order of its stream, after the launch");
        drop(gate);
        assert_eq!(stream.clone_dtoh(&to).unwrap(), [7; 4]);
        drop(to);
        assert_eq!(frees(), 2);
    });
}

#[test]
fn an_updated_executable_holds_the_new_slices() {
    on_stream(|world, _, stream| {
        let zeroed = |slice: &mut DeviceSlice<u8>| {
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            stream.memset_zeros(slice).unwrap();
            capture.end().unwrap()
        };
        let (mut first, mut second) = (stream.alloc(8).unwrap(), stream.alloc(8).unwrap());
        let mut exec = zeroed(&mut first).instantiate().unwrap();
        exec.update(&zeroed(&mut second)).unwrap();
        drop((first, second));
        stream.launch(&exec).unwrap();
        assert_eq!(world.calls("cuMemFreeAsync"), 0);
        drop(exec);
        assert_eq!(world.calls("cuMemFreeAsync"), 2);
    });
}

#[test]
fn a_slice_dropped_during_a_capture_is_freed_with_it() {
    on_stream(|world, context, stream| {
        let frees = || world.calls("cuMemFreeAsync");
        let [dropped, beside] = [stream.alloc::<u8>(8).unwrap(), stream_of(context).alloc(8).unwrap()];
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        drop(beside);
        assert_eq!(frees(), 1, "its stream does not capture");
        drop(dropped);
        assert_eq!(frees(), 1);
        let graph = capture.end().expect("the capture is whole");
        drop(graph);
        assert_eq!(frees(), 2);
        // The slice is also freed if the capture is discarded.
        let dropped = stream.alloc::<u8>(8).unwrap();
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        drop((dropped, capture));
        assert_eq!(frees(), 3);
    });
}

/// A free on the legacy stream would invalidate the capture of a stream that synchronizes with it.
#[test]
fn a_slice_of_the_legacy_stream_is_kept_while_a_blocking_stream_captures() {
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = context(&driver, 0);
    let legacy = Stream::legacy_default(&context);
    let blocking = Stream::new(&context, StreamFlags::empty()).unwrap();
    let slice = legacy.alloc_zeros::<u32>(4).unwrap();
    drops().clear();
    let capture = blocking.begin_capture(CaptureMode::ThreadLocal).unwrap();
    drop(slice);
    drop(capture.end().expect("the capture is whole"));
    let said = std::mem::take(&mut *drops());
    assert!(matches!(&said[..], [only] if only.contains("STREAM_CAPTURE_IMPLICIT")), "{said:?}");
    drop((legacy, blocking, context, driver));
    let left = world.finish().unwrap_err().to_string();
    assert!(left.contains("0 cases of misuse"), "{left}");
}

#[test]
fn captures_of_several_streams_use_slices_of_their_own() {
    on_stream(|_, context, stream| {
        let (other, third) = (stream_of(context), stream_of(context));
        let mut ours = stream.clone_htod(&[1u8; 2]).unwrap();
        let mut theirs = other.clone_htod(&[1u8; 2]).unwrap();
        let [fork, join] = [(); 2].map(|()| Event::new(context, EventFlags::DISABLE_TIMING).unwrap());
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        refused_while_capturing(third.memset_zeros(&mut ours));
        stream.record(&fork).unwrap();
        other.wait(&fork).unwrap();
        // Both streams are part of the capture.
        other.memset_zeros(&mut ours).unwrap();
        stream.memset_zeros(&mut theirs).unwrap();
        other.record(&join).unwrap();
        stream.wait(&join).unwrap();
        let apart = third.begin_capture(CaptureMode::Relaxed).unwrap();
        refused_while_capturing(third.memset_zeros(&mut theirs));
        drop(apart);
        let exec = capture.end().unwrap().instantiate().unwrap();
        third.launch(&exec).unwrap();
        assert_eq!(third.clone_dtoh(&ours).unwrap(), [0; 2]);
        assert_eq!(third.clone_dtoh(&theirs).unwrap(), [0; 2]);
    });
}

#[test]
fn captures_refuse_what_the_host_must_see() {
    on_stream(|_, context, stream| {
        let other = stream_of(context);
        let mut slice = other.clone_htod(&[1u8; 2]).unwrap();
        let mut pinned = context.alloc_pinned::<u8>(2).unwrap();
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        refused_while_capturing(stream.memcpy_htod_async(&pinned, &mut slice));
        refused_while_capturing(stream.memcpy_dtoh_async(&slice, &mut pinned));
        refused_while_capturing(stream.memcpy_htod(&[2; 2], &mut slice));
        refused_while_capturing(stream.memcpy_dtoh(&slice, &mut [0; 2]));
        refused_while_capturing(stream.alloc::<u8>(1));
        // Copies on other streams run, and do not invalidate the capture.
        other.memcpy_htod(&[3; 2], &mut slice).unwrap();
        other.memcpy_dtoh_async(&slice, &mut pinned).unwrap();
        assert_eq!(pinned.as_slice().unwrap(), [3; 2]);
        assert_eq!(capture.end().unwrap().node_count().unwrap(), 0);
    });
}

#[test]
fn captures_of_another_library_take_no_slices() {
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = context(&driver, 0);
    let stream = stream_of(&context);
    let mut slice = stream.alloc_zeros::<u8>(4).unwrap();
    let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    stream.memset_zeros(&mut slice).unwrap();
    let exec = capture.end().unwrap().instantiate().unwrap();
    begin_raw(&context, &stream);
    refused_while_capturing(stream.memset_zeros(&mut slice));
    refused_while_capturing(stream.launch(&exec));
    let lost = stream.alloc_zeros::<u8>(4);
    refused_while_capturing(lost);
    drop((exec, slice));
    assert!(drops()[0].contains("captur"), "{:?}", drops());
    end_raw(&context, &stream);
    drop((stream, context, driver));
    let left = world.finish().unwrap_err().to_string();
    assert!(left.contains("leaked allocation") && left.contains("0 cases of misuse"), "{left}");
}

/// The stream on which [`fill_in_capture`] and [`copy_in_capture`] begin a capture, as another thread may do at any
/// time.
static CAPTURED: Mutex<Option<Stream>> = Mutex::new(None);
/// The embedded device's table, whose functions the replacements below call.
static TABLE: Mutex<Option<cuda_driver::sys::Table>> = Mutex::new(None);

/// Runs `call` while the stream in [`CAPTURED`] captures.
fn in_capture(call: impl FnOnce() -> CUresult) -> CUresult {
    let stream = CAPTURED.lock().unwrap().take().unwrap();
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    let code = call();
    drop(capture);
    code
}

unsafe extern "C" fn fill_in_capture(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> CUresult {
    let fill = TABLE.lock().unwrap().as_ref().unwrap().cuMemsetD8Async.unwrap();
    // SAFETY: the caller's arguments.
    in_capture(|| unsafe { fill(to, value, count, stream) })
}

unsafe extern "C" fn copy_in_capture(
    to: *mut std::ffi::c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let copy = TABLE.lock().unwrap().as_ref().unwrap().cuMemcpyDtoHAsync_v2.unwrap();
    // SAFETY: the caller's arguments.
    in_capture(|| unsafe { copy(to, from, bytes, stream) })
}

#[test]
fn memory_that_another_threads_capture_may_hold_is_kept_for_ever() {
    let _turn = turn();
    let world = start(1);
    let mut table = world.cuda();
    *TABLE.lock().unwrap() = Some(world.cuda());
    table.cuMemsetD8Async = Some(fill_in_capture);
    table.cuMemcpyDtoHAsync_v2 = Some(copy_in_capture);
    let driver = driver(table);
    let context = context(&driver, 0);
    let stream = stream_of(&context);
    let (mut slice, from) = (stream.alloc::<u8>(4).unwrap(), stream.alloc::<u8>(4).unwrap());
    *CAPTURED.lock().unwrap() = Some(stream.clone());
    let raced = stream.memset_zeros(&mut slice).unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    let mut pinned = context.alloc_pinned::<u8>(4).unwrap();
    *CAPTURED.lock().unwrap() = Some(stream.clone());
    let raced = stream.memcpy_dtoh_async(&from, &mut pinned).unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    assert!(matches!(pinned.as_slice(), Err(Error::UnknownEnd { .. })));
    drop((slice, from, pinned));
    assert_eq!(drops().len(), 1, "the pinned slice says that it leaks");
    assert_eq!((world.calls("cuMemFreeAsync"), world.calls("cuMemFreeHost")), (0, 0));
    drop((stream, context, driver));
    *TABLE.lock().unwrap() = None;
    world.finish().expect_err("three allocations are left");
}

unsafe extern "C" fn record_in_capture(event: CUevent, stream: CUstream) -> CUresult {
    let record = TABLE.lock().unwrap().as_ref().unwrap().cuEventRecord.unwrap();
    let Some(captured) = CAPTURED.lock().unwrap().take() else {
        // SAFETY: the caller's arguments.
        return unsafe { record(event, stream) };
    };
    OPEN.set(Some(captured.begin_capture(CaptureMode::Relaxed).unwrap()));
    // SAFETY: the caller's arguments.
    unsafe { record(event, stream) }
}

thread_local! {
    /// The capture that [`record_in_capture`] has begun.
    static OPEN: Cell<Option<Capture>> = const { Cell::new(None) };
}

#[test]
fn a_stream_that_waits_for_another_one_joins_no_capture() {
    let _turn = turn();
    let world = start(1);
    let mut table = world.cuda();
    *TABLE.lock().unwrap() = Some(world.cuda());
    table.cuEventRecord = Some(record_in_capture);
    let driver = driver(table);
    let context = context(&driver, 0);
    let (stream, other) = (stream_of(&context), stream_of(&context));
    stream.wait_stream(&other).unwrap();
    let capture = other.begin_capture(CaptureMode::Relaxed).unwrap();
    refused_while_capturing(stream.wait_stream(&other));
    refused_while_capturing(other.wait_stream(&stream));
    refused_while_capturing(other.record_uncaptured().map(drop));
    assert!(stream.record_uncaptured().is_ok());
    capture.end().unwrap();
    // Another thread begins a capture of `other` between the query and the record.
    *CAPTURED.lock().unwrap() = Some(other.clone());
    let raced = stream.wait_stream(&other).unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
    OPEN.take().unwrap().end().unwrap();
    *CAPTURED.lock().unwrap() = Some(other.clone());
    let raced = other.record_uncaptured().unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    OPEN.take().unwrap().end().unwrap();
    drop((stream, other, context, driver));
    *TABLE.lock().unwrap() = None;
    world.finish().unwrap();
}

/// Work that makes its own stream wait is no race while another stream captures, unless it waits for that capture.
#[test]
fn a_wait_beside_a_capture_of_another_stream_is_no_race() {
    let _turn = turn();
    let world = start(1);
    let context = context(&driver(world.cuda()), 0);
    let [stream, other, capturing] = [(); 3].map(|()| stream_of(&context));
    let [event, captured] = [(); 2].map(|()| Event::new(&context, EventFlags::DISABLE_TIMING).unwrap());
    let slice = stream.alloc_zeros::<u32>(4).unwrap();
    let memory = [slice.as_view().memory().clone()];
    let wait_for = |from: &Stream, event: &Event| -> Result<()> {
        stream.enqueue_using(&memory, || {
            from.record(event)?;
            stream.wait(event)
        })
    };
    let capture = capturing.begin_capture(CaptureMode::Relaxed).unwrap();
    for from in [&other, &stream] {
        wait_for(from, &event).unwrap();
    }
    let raced = wait_for(&capturing, &captured).unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    drop(capture.end());
    // Whether its newest record is part of a capture is not known.
    let capture = capturing.begin_capture(CaptureMode::Relaxed).unwrap();
    let raced = wait_for(&other, &captured).unwrap_err();
    assert!(matches!(raced, Error::CaptureRace { .. }), "{raced}");
    drop(capture.end().unwrap());
    drop(memory);
    drop(slice);
    assert_eq!(world.calls("cuMemFreeAsync"), 0, "the first race keeps the memory for ever");
}

/// The steps of two threads: one begins a capture while the other fills a slice.
static FILL_MAY_START: Barrier = Barrier::new(2);
static FILL_HAS_STARTED: Barrier = Barrier::new(2);
static HAS_BEGUN: Barrier = Barrier::new(2);
static IS_FILLED: Barrier = Barrier::new(2);

unsafe extern "C" fn begin_during_fill(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    let begin = TABLE.lock().unwrap().as_ref().unwrap().cuStreamBeginCapture_v2.unwrap();
    FILL_MAY_START.wait();
    FILL_HAS_STARTED.wait();
    // SAFETY: the caller's arguments.
    let code = unsafe { begin(stream, mode) };
    HAS_BEGUN.wait();
    code
}

unsafe extern "C" fn fill_during_begin(
    to: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> CUresult {
    let fill = TABLE.lock().unwrap().as_ref().unwrap().cuMemsetD8Async.unwrap();
    FILL_HAS_STARTED.wait();
    HAS_BEGUN.wait();
    // SAFETY: the caller's arguments.
    unsafe { fill(to, value, count, stream) }
}

#[test]
fn a_capture_whose_begin_is_under_way_is_seen() {
    let _turn = turn();
    let world = start(1);
    let mut table = world.cuda();
    *TABLE.lock().unwrap() = Some(world.cuda());
    table.cuMemsetD8Async = Some(fill_during_begin);
    table.cuStreamBeginCapture_v2 = Some(begin_during_fill);
    let driver = driver(table);
    let context = context(&driver, 0);
    let stream = stream_of(&context);
    let mut slice = stream.alloc::<u8>(4).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
            IS_FILLED.wait();
            assert_eq!(capture.end().unwrap().node_count().unwrap(), 1, "the fill was captured");
        });
        FILL_MAY_START.wait();
        let raced = stream.memset_zeros(&mut slice);
        IS_FILLED.wait();
        assert!(matches!(raced, Err(Error::CaptureRace { .. })), "{raced:?}");
    });
    drop(slice);
    assert_eq!(world.calls("cuMemFreeAsync"), 0);
    drop((stream, context, driver));
    *TABLE.lock().unwrap() = None;
    world.finish().expect_err("the memory is left");
}

#[test]
fn a_copy_that_cannot_be_followed_is_waited_for_or_its_memory_kept() {
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = context(&driver, 0);
    let stream = stream_of(&context);
    let slice = stream.clone_htod(&[1u8; 4]).unwrap();
    let mut pinned = context.alloc_pinned::<u8>(4).unwrap();
    let fail = |function| world.faults().inject(Injection::new(function, Action::Fail(INJECTED))).unwrap();
    fail("cuEventRecord");
    let error = stream.memcpy_dtoh_async(&slice, &mut pinned).unwrap_err();
    assert_eq!(failed(&error), ("cuEventRecord", INJECTED));
    assert_eq!(pinned.as_slice().unwrap(), [1; 4], "the copy was waited for");
    fail("cuMemcpyDtoHAsync_v2");
    let error = stream.memcpy_dtoh_async(&slice, &mut pinned).unwrap_err();
    assert_eq!(failed(&error), ("cuMemcpyDtoHAsync_v2", INJECTED));
    assert_eq!(pinned.as_slice().unwrap(), [1; 4], "the stream was waited for");
    for function in ["cuEventRecord", "cuMemcpyDtoHAsync_v2"] {
        let mut pinned = context.alloc_pinned::<u8>(4).unwrap();
        fail(function);
        fail("cuStreamSynchronize");
        stream.memcpy_dtoh_async(&slice, &mut pinned).unwrap_err();
        assert!(matches!(pinned.as_slice(), Err(Error::UnknownEnd { .. })), "{function}");
        assert!(matches!(
            stream.memcpy_htod_async(&pinned, &mut stream.alloc(4).unwrap()),
            Err(Error::UnknownEnd { .. })
        ));
    }
    assert_eq!(world.calls("cuMemFreeHost"), 0);
    drop(pinned);
    drop((slice, stream, context, driver));
    world.finish().expect_err("the pinned memory is left");
}

#[test]
fn launches_are_refused_with_slices_of_another_device_and_wrong_arguments() {
    on_devices(2, |world, driver| {
        kernels::register(world);
        let (ours, theirs) = (context(driver, 0), context(driver, 1));
        let (stream, other) = (stream_of(&ours), stream_of(&theirs));
        let reverse = Module::load_ptx(&ours, PTX, &JitOptions::new()).unwrap().function("reverse").unwrap();
        let mut foreign = other.alloc_zeros::<u32>(4).unwrap();
        let config = LaunchConfig::new(1, 4).shared_bytes(16);
        let builder = || stream.launch_builder(&reverse).config(config);
        // SAFETY: the call is refused.
        let refused = unsafe { builder().arg(&mut foreign).arg(&4u32).launch() };
        assert!(matches!(refused, Err(Error::DifferentDevices { .. })));
        let mut slice = stream.clone_htod(&[1u32, 2, 3, 4]).unwrap();
        // SAFETY: the call is refused.
        let refused = unsafe { builder().arg(&mut slice).launch() };
        let count = LaunchError::ParameterCount { kernel: "reverse".to_owned(), expected: 2, found: 1 };
        assert!(matches!(refused, Err(Error::Launch(error)) if error == count));
        let mut view = slice.slice_mut(1..).unwrap();
        // SAFETY: the kernel reverses the three words of the view.
        unsafe { builder().arg(&mut view).arg(&3u32).launch().unwrap() };
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1, 4, 3, 2]);
        assert_eq!(world.calls("cuLaunchKernel"), 1);
    });
}

#[test]
fn a_captured_launch_keeps_slices_and_module() {
    on_stream(|world, context, stream| {
        kernels::register(world);
        let other = stream_of(context);
        let (mut words, result) =
            (other.clone_htod(&[1u32, 2, 3, 4]).unwrap(), other.alloc::<u32>(4).unwrap());
        let mut result = result;
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        {
            let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
            let reverse = module.function("reverse").unwrap();
            let launch = stream.launch_builder(&reverse).block(4).shared_memory(16);
            // SAFETY: the kernel reverses the four words of the slice.
            unsafe { launch.arg(&mut words).arg(&4u32).launch().unwrap() };
            stream.memcpy_dtod(&words, &mut result).unwrap();
        }
        let exec = capture.end().unwrap().instantiate().unwrap();
        drop(words);
        for expected in [[4, 3, 2, 1], [1, 2, 3, 4]] {
            stream.launch(&exec).unwrap();
            assert_eq!(stream.clone_dtoh(&result).unwrap(), expected);
        }
        assert_eq!((world.calls("cuModuleUnload"), world.calls("cuMemFreeAsync")), (0, 0));
    });
}

#[test]
fn views_convert_and_describe_themselves() {
    on_stream(|_, context, stream| {
        let mut slice = stream.clone_htod(&[1i16, 2]).unwrap();
        assert!(format!("{slice:?}").starts_with("DeviceSlice<i16>(0x"));
        let mut view = DeviceViewMut::from(&mut slice);
        let again = DeviceViewMut::from(&mut view);
        let shared = DeviceView::from(&again);
        assert_eq!(stream.clone_dtoh(DeviceView::from(&shared)).unwrap(), [1, 2]);
        assert_eq!(format!("{again:?}"), format!("{shared:?}").replace("DeviceView", "DeviceViewMut"));
        assert_eq!(format!("{:?}", context.alloc_pinned::<u8>(3).unwrap()), "PinnedSlice<u8>(3 elements)");
    });
}

#[cfg(feature = "half")]
#[test]
fn half_precision_numbers_are_elements() {
    use half::{bf16, f16};
    on_stream(|_, _, stream| {
        let slice = stream.clone_htod(&[f16::ONE, f16::from_f32(-2.5)]).unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [f16::ONE, f16::from_f32(-2.5)]);
        let zeros = stream.alloc_zeros::<bf16>(3).unwrap();
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [bf16::ZERO; 3]);
    });
}
