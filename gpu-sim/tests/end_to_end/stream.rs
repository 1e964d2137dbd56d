//! Streams: order, independence, events, the default streams, host functions, memory operations.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::common::{Cuda, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::sched::{self, Actor};
use gpu_sim::{Builder, RunError, World};
use rusty_fork::rusty_fork_test;

const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

fn both() -> [Builder; 2] {
    [World::builder().devices(2), World::builder().devices(2).seeded(11)]
}

/// A host function that keeps its stream busy until it is opened.
static GATE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn wait_at_gate(_: *mut c_void) {
    while !GATE.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Stores the number of calls so far at `to`.
unsafe extern "C" fn note_order(to: *mut c_void) {
    // SAFETY: the tests pass cells that live until their streams are idle.
    unsafe { to.cast::<u32>().write(COUNT.fetch_add(1, SeqCst)) };
}

fn busy(cuda: &Cuda, stream: CUstream) {
    GATE.store(false, SeqCst);
    ok!(cuda, cuLaunchHostFunc(stream, Some(wait_at_gate), std::ptr::null_mut()));
}

fn open() {
    GATE.store(true, SeqCst);
}

/// Makes a stream wait for a word in memory: until `release`, nothing behind it runs, in either mode.
fn hold(cuda: &Cuda, stream: CUstream, word: CUdeviceptr) {
    ok!(cuda, cuStreamWaitValue32_v2(stream, word, 1, 0));
}

fn release(cuda: &Cuda, by: CUstream, word: CUdeviceptr) {
    ok!(cuda, cuStreamWriteValue32_v2(by, word, 1, 0));
}

rusty_fork_test! {
    #[test]
    fn streams_are_asynchronous_ordered_and_independent() {
        for builder in both() {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let (one, two) = (cuda.stream(), cuda.stream());
            let word = cuda.alloc(4);
            let target = cuda.alloc(4);
            hold(&cuda, one, word);
            ok!(cuda, cuMemsetD32Async(target, 1, 1, one));
            ok!(cuda, cuMemsetD32Async(target, 2, 1, one));
            assert_eq!(cu!(cuda, cuStreamQuery(one)), NOT_READY);
            ok!(cuda, cuStreamSynchronize(two));
            release(&cuda, two, word);
            ok!(cuda, cuStreamSynchronize(one));
            ok!(cuda, cuStreamQuery(one));
            assert_eq!(cuda.download(target, 4), [2, 0, 0, 0]);
            for pointer in [word, target] {
                cuda.free(pointer);
            }
            for stream in [one, two] {
                ok!(cuda, cuStreamDestroy_v2(stream));
            }
            cuda.leave(0);
            world.finish().unwrap();
        }
    }

    #[test]
    fn events_order_streams_by_their_last_record() {
        for builder in both() {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let (one, two, three) = (cuda.stream(), cuda.stream(), cuda.stream());
            let (word, target) = (cuda.alloc(4), cuda.alloc(4));
            let event = cuda.event();
            ok!(cuda, cuEventQuery(event));
            ok!(cuda, cuEventRecord(event, two));
            ok!(cuda, cuEventSynchronize(event));
            hold(&cuda, one, word);
            ok!(cuda, cuMemsetD32Async(target, 5, 1, one));
            ok!(cuda, cuEventRecord(event, one));
            assert_eq!(cu!(cuda, cuEventQuery(event)), NOT_READY);
            ok!(cuda, cuStreamWaitEvent(two, event, 0));
            // A later record elsewhere does not change what `two` waits for.
            ok!(cuda, cuEventRecord(event, three));
            let mut host = [0u32; 1];
            ok!(cuda, cuLaunchHostFunc(two, Some(note_order), host.as_mut_ptr().cast()));
            assert_eq!(cu!(cuda, cuStreamQuery(two)), NOT_READY);
            release(&cuda, three, word);
            ok!(cuda, cuStreamSynchronize(two));
            assert_eq!(cuda.download(target, 4), [5, 0, 0, 0]);
            let (mut start, mut milliseconds) = (std::ptr::null_mut(), -1.0);
            ok!(cuda, cuEventCreate(&mut start, 2));
            ok!(cuda, cuEventRecord(start, one));
            ok!(cuda, cuEventSynchronize(start));
            let untimed = cu!(cuda, cuEventElapsedTime(&mut milliseconds, start, event));
            assert_eq!(untimed, CUresult::CUDA_ERROR_INVALID_HANDLE);
            ok!(cuda, cuEventElapsedTime(&mut milliseconds, event, event));
            assert_eq!(milliseconds, 0.0);
        }
    }

    #[test]
    fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let mut blocking = std::ptr::null_mut();
        ok!(cuda, cuStreamCreate(&mut blocking, 0));
        let free = cuda.stream();
        let legacy = std::ptr::null_mut();
        let mut order = [u32::MAX; 3];
        let cells: Vec<*mut c_void> = order.iter_mut().map(|c| (&raw mut *c).cast()).collect();
        busy(&cuda, blocking);
        ok!(cuda, cuLaunchHostFunc(blocking, Some(note_order), cells[0]));
        ok!(cuda, cuLaunchHostFunc(legacy, Some(note_order), cells[1]));
        ok!(cuda, cuLaunchHostFunc(blocking, Some(note_order), cells[2]));
        // A non-blocking stream does not wait for the legacy stream.
        let mut own = 0u32;
        ok!(cuda, cuLaunchHostFunc(free, Some(note_order), (&raw mut own).cast()));
        ok!(cuda, cuStreamSynchronize(free));
        assert_eq!(cu!(cuda, cuStreamQuery(legacy)), NOT_READY);
        open();
        ok!(cuda, cuCtxSynchronize());
        let first = own + 1;
        // SAFETY: every stream is idle.
        let order: Vec<u32> = cells.iter().map(|c| unsafe { c.cast::<u32>().read() }).collect();
        assert_eq!(order, [first, first + 1, first + 2]);
    }

    #[test]
    fn per_thread_streams_are_each_threads_own() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let own = 2usize as CUstream;
        let mut context = std::ptr::null_mut();
        ok!(cuda, cuCtxGetCurrent(&mut context));
        let mut id = 0;
        ok!(cuda, cuStreamGetId(own, &mut id));
        let context = context as usize;
        let table = cuda.0.clone();
        let other = std::thread::spawn(move || {
            let cuda = Cuda(table);
            let mut none = std::ptr::dangling_mut();
            ok!(cuda, cuCtxGetCurrent(&mut none));
            assert!(none.is_null(), "a new thread has no current context");
            ok!(cuda, cuCtxSetCurrent(context as CUcontext));
            let mut id = 0;
            ok!(cuda, cuStreamGetId(2usize as CUstream, &mut id));
            id
        });
        assert_ne!(other.join().unwrap(), id);
    }

    #[test]
    fn a_faulted_context_drains_and_releases_who_waits() {
        for builder in both() {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let (stream, word) = (cuda.stream(), cuda.alloc(4));
            let other = {
                cuda.enter(1);
                cuda.stream()
            };
            cuda.enter(0);
            let (event, third) = (cuda.event(), cuda.stream());
            hold(&cuda, stream, word);
            cuda.captured(stream, || ok!(cuda, cuMemsetD8Async(word + 2, 1, 100, stream)));
            ok!(cuda, cuEventRecord(event, stream));
            // The other device's stream waits for the poisoned one's event and is released.
            ok!(cuda, cuStreamWaitEvent(other, event, 0));
            release(&cuda, third, word);
            assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            cuda.enter(1);
            ok!(cuda, cuStreamSynchronize(other));
        }
    }

    #[test]
    fn pageable_copies_keep_the_drivers_promises() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        let (word, to) = (cuda.alloc(4), cuda.alloc(8));
        hold(&cuda, stream, word);
        let mut bytes = [3u8; 8];
        ok!(cuda, cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), 8, stream));
        bytes.fill(4);
        release(&cuda, cuda.stream(), word);
        let mut back = [0u8; 8];
        ok!(cuda, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), to, 8, stream));
        assert_eq!((back, bytes), ([3; 8], [4; 8]));
    }

    #[test]
    fn waits_on_words_compare_as_told() {
        // (word before, value, flags, ends?)
        let cases = [
            (5u32, 5, 0, true), (4, 5, 0, false), (0, u32::MAX, 0, true), (5, 5, 1, true), (6, 5, 1, false),
            (4, 6, 2, true), (1, 6, 2, false), (u32::MAX, 0, 3, false), (u32::MAX - 1, 0, 3, true),
        ];
        let world = World::builder().seeded(1).start().unwrap();
        let cuda = Cuda::of(&world);
        for (word, value, flags, ends) in cases {
            let at = cuda.alloc(4);
            let stream = cuda.stream();
            ok!(cuda, cuMemsetD32_v2(at, word, 1));
            ok!(cuda, cuCtxSynchronize());
            ok!(cuda, cuStreamWaitValue32_v2(stream, at, value, flags));
            // Without a writer, an unmet wait is a deadlock, which the seeded scheduler detects.
            let code = cu!(cuda, cuStreamSynchronize(stream));
            assert_eq!(code == CUresult::CUDA_SUCCESS, ends, "{word} {value} {flags}: {code:?}");
            if !ends {
                assert!(world.notes().iter().any(|n| n.contains("deadlock") && n.contains("the word at")));
                ok!(cuda, cuDevicePrimaryCtxReset_v2(0));
                cuda.enter(0);
            }
        }
    }

    #[test]
    fn the_host_releases_a_stream_through_pinned_memory() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        let mut flag = std::ptr::null_mut();
        ok!(cuda, cuMemHostAlloc(&mut flag, 64, 0));
        ok!(cuda, cuStreamWaitValue32_v2(stream, flag as u64, 7, 1));
        assert_eq!(cu!(cuda, cuStreamQuery(stream)), NOT_READY);
        // SAFETY: pinned memory, four aligned bytes; the device reads it atomically.
        unsafe { (*flag.cast::<AtomicU32>()).store(7, SeqCst) };
        ok!(cuda, cuStreamSynchronize(stream));
        ok!(cuda, cuMemFreeHost(flag));
    }

    #[test]
    fn many_blocked_streams_do_not_starve_the_others() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let word = cuda.alloc(4);
        let blocked: Vec<_> = (0..50).map(|_| cuda.stream()).collect();
        blocked.iter().for_each(|s| hold(&cuda, *s, word));
        let gated = (0..6).map(|_| cuda.stream()).collect::<Vec<_>>();
        gated.iter().for_each(|s| busy(&cuda, *s));
        let last = cuda.stream();
        release(&cuda, last, word);
        blocked.iter().for_each(|s| ok!(cuda, cuStreamSynchronize(*s)));
        open();
        ok!(cuda, cuCtxSynchronize());
    }

    #[test]
    fn stream_ordered_memory_comes_and_goes() {
        for builder in both() {
            let world = builder.capacity(8 << 20).start().unwrap();
            let cuda = Cuda::of(&world);
            let stream = cuda.stream();
            for _ in 0..10 {
                let mut pointer = 0;
                ok!(cuda, cuMemAllocAsync(&mut pointer, 5 << 20, stream));
                ok!(cuda, cuMemsetD8Async(pointer, 1, 1000, stream));
                ok!(cuda, cuMemFreeAsync(pointer, stream));
            }
            ok!(cuda, cuStreamDestroy_v2(stream));
            ok!(cuda, cuCtxSynchronize());
            cuda.leave(0);
            world.finish().unwrap();
        }
    }
}

rusty_fork_test! {
    #[test]
    fn the_same_seed_gives_the_same_run_of_streams() {
        let run = |seed: u64| {
            let world = World::builder().seeded(seed).start().unwrap();
            let cuda = Cuda::of(&world);
            let streams: Vec<_> = (0..4).map(|_| cuda.stream()).collect();
            let mut order = [0u32; 4];
            let first = COUNT.load(SeqCst);
            for (stream, cell) in streams.iter().zip(&mut order) {
                ok!(cuda, cuLaunchHostFunc(*stream, Some(note_order), (&raw mut *cell).cast()));
            }
            ok!(cuda, cuCtxSynchronize());
            let history: Vec<String> =
                world.history().iter().map(|s| format!("{:?} {} {}", s.at, s.who, s.at_what)).collect();
            (order.map(|o| o - first), history)
        };
        assert!((0..20).all(|seed| run(seed) == run(seed)));
        let orders: std::collections::BTreeSet<_> = (0..20).map(|seed| run(seed).0).collect();
        assert!(orders.len() > 5, "{orders:?}");
    }
}

/// Makes `stream` wait for a word (eight bytes of memory, zero) and fills its queue with 1,022 operations. None of
/// these calls may block, since the write that ends the wait comes only after them.
fn fill_queue(cuda: &Cuda, stream: CUstream) -> CUdeviceptr {
    let word = cuda.alloc(8);
    hold(cuda, stream, word);
    for _ in 0..1021 {
        ok!(cuda, cuMemsetD32Async(word + 4, 1, 1, stream));
    }
    word
}

/// A rank in device 0's context that works on `stream`.
fn on(
    cuda: &Cuda,
    name: &str,
    stream: CUstream,
    body: impl FnOnce(&Cuda, CUstream) + Send + 'static,
) -> Actor<()> {
    let (cuda, stream) = (Cuda(cuda.0.clone()), stream as usize);
    let body = move || {
        cuda.enter(0);
        body(&cuda, stream as CUstream);
    };
    (name.to_owned(), Box::new(body))
}

/// Lets the virtual clock jump, which it does only when no other task can run.
fn until_nobody_can_go_on() {
    sched::sleep(Duration::from_secs(3600)).unwrap();
}

rusty_fork_test! {
    #[test]
    fn who_enqueues_on_a_full_stream_waits_for_room() {
        for seed in 0..10 {
            let world = World::builder().seeded(seed).start().unwrap();
            let cuda = Cuda::of(&world);
            let (stream, other) = (cuda.stream(), cuda.stream());
            let word = fill_queue(&cuda, stream);
            let log = Arc::new(Mutex::new(Vec::new()));
            let (first, second) = (log.clone(), log.clone());
            let enqueuer = on(&cuda, "enqueuer", stream, move |cuda, stream| {
                ok!(cuda, cuMemsetD32Async(word + 4, 2, 1, stream));
                first.lock().unwrap().push("enqueued");
            });
            let writer = on(&cuda, "writer", other, move |cuda, other| {
                until_nobody_can_go_on();
                second.lock().unwrap().push("written");
                release(cuda, other, word);
            });
            world.run_actors(vec![enqueuer, writer]).unwrap();
            assert_eq!(*log.lock().unwrap(), ["written", "enqueued"]);
            ok!(cuda, cuStreamSynchronize(stream));
            assert_eq!(cuda.download(word + 4, 4), [2, 0, 0, 0]);
        }
    }

    #[test]
    fn a_thread_that_waits_for_room_says_so() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (stream, other) = (cuda.stream(), cuda.stream());
        let word = fill_queue(&cuda, stream);
        let enqueued = Arc::new(AtomicBool::new(false));
        let done = enqueued.clone();
        let (_, enqueue) = on(&cuda, "enqueuer", stream, move |cuda, stream| {
            ok!(cuda, cuMemsetD32Async(word + 4, 2, 1, stream));
            done.store(true, SeqCst);
        });
        let thread = std::thread::spawn(enqueue);
        while !world.waiting().iter().any(|waiting| waiting.what.starts_with("room in stream")) {
            assert!(!enqueued.load(SeqCst), "enqueued on a full stream");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!enqueued.load(SeqCst));
        release(&cuda, other, word);
        thread.join().unwrap();
        ok!(cuda, cuStreamSynchronize(stream));
        assert_eq!(cuda.download(word + 4, 4), [2, 0, 0, 0]);
    }

    #[test]
    fn a_full_stream_that_nobody_frees_is_a_deadlock() {
        let world = World::builder().seeded(1).start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        let word = fill_queue(&cuda, stream);
        let enqueuer = on(&cuda, "enqueuer", stream, move |cuda, stream| {
            let _ = cu!(cuda, cuMemsetD32Async(word + 4, 2, 1, stream));
        });
        let error = world.run_actors(vec![enqueuer]).unwrap_err();
        let RunError::Deadlock(deadlock) = &error else { panic!("{error}") };
        let waits = |who: &str, what: &str| {
            deadlock.waiting.iter().any(|w| w.who.contains(who) && w.what.contains(what))
        };
        assert!(waits("enqueuer", "room in stream") && waits("stream", "the word at"), "{error}");
    }

    #[test]
    fn two_ranks_launch_one_graph_on_a_full_stream() {
        for seed in 0..20 {
            let world = World::builder().seeded(seed).start().unwrap();
            let cuda = Cuda::of(&world);
            let (stream, other) = (cuda.stream(), cuda.stream());
            let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
            let mut order = 0u32;
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            ok!(cuda, cuStreamBeginCapture_v2(other, relaxed));
            ok!(cuda, cuLaunchHostFunc(other, Some(note_order), (&raw mut order).cast()));
            ok!(cuda, cuStreamEndCapture(other, &mut graph));
            ok!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            let word = fill_queue(&cuda, stream);
            let before = COUNT.load(SeqCst);
            let exec = exec as usize;
            let launcher = |name| on(&cuda, name, stream, move |cuda, stream| {
                ok!(cuda, cuGraphLaunch(exec as CUgraphExec, stream));
            });
            let writer = on(&cuda, "writer", other, move |cuda, other| {
                until_nobody_can_go_on();
                release(cuda, other, word);
            });
            world.run_actors(vec![launcher("one"), launcher("two"), writer]).unwrap();
            ok!(cuda, cuStreamSynchronize(stream));
            assert_eq!(COUNT.load(SeqCst), before + 2);
        }
    }

    #[test]
    fn a_capture_that_begins_during_a_wait_for_room_records_the_call() {
        let world = World::builder().seeded(1).start().unwrap();
        let cuda = Cuda::of(&world);
        let (stream, other) = (cuda.stream(), cuda.stream());
        let word = fill_queue(&cuda, stream);
        let enqueuer = on(&cuda, "enqueuer", stream, move |cuda, stream| {
            ok!(cuda, cuMemsetD32Async(word + 4, 2, 1, stream));
        });
        let other = other as usize;
        let capturer = on(&cuda, "capturer", stream, move |cuda, stream| {
            until_nobody_can_go_on();
            let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            ok!(cuda, cuStreamBeginCapture_v2(stream, relaxed));
            release(cuda, other as CUstream, word);
            until_nobody_can_go_on();
            let (mut graph, mut nodes) = (std::ptr::null_mut(), 0);
            ok!(cuda, cuStreamEndCapture(stream, &mut graph));
            ok!(cuda, cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes));
            assert_eq!(nodes, 1);
        });
        world.run_actors(vec![enqueuer, capturer]).unwrap();
        ok!(cuda, cuStreamSynchronize(stream));
        assert_eq!(cuda.download(word + 4, 4), [1, 0, 0, 0]);
    }
}
