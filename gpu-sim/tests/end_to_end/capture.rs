//! Capture: a graph does the same as the captured calls; calls that cannot be captured fail with the driver's codes.

use super::common::{Cuda, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::World;
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const THREAD: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

fn begin(cuda: &Cuda, stream: CUstream, mode: CUstreamCaptureMode) {
    ok!(cuda, cuStreamBeginCapture_v2(stream, mode));
}

fn end(cuda: &Cuda, stream: CUstream) -> CUgraph {
    let mut graph = std::ptr::null_mut();
    ok!(cuda, cuStreamEndCapture(stream, &mut graph));
    graph
}

fn end_code(cuda: &Cuda, stream: CUstream) -> CUresult {
    let mut graph = std::ptr::null_mut();
    let code = cu!(cuda, cuStreamEndCapture(stream, &mut graph));
    assert!(code == CUresult::CUDA_SUCCESS || graph.is_null());
    code
}

fn instantiate(cuda: &Cuda, graph: CUgraph) -> CUgraphExec {
    let mut exec = std::ptr::null_mut();
    ok!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

/// One step of a random program over two streams and 64 words.
#[derive(Debug, Clone)]
enum Step {
    Fill { stream: usize, at: u64, value: u32, count: usize },
    Copy { stream: usize, to: u64, from: u64, count: usize },
    Order { before: usize, after: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2usize, 0..60u64, any::<u32>(), 1..4usize).prop_map(|(stream, at, value, count)| Step::Fill {
            stream,
            at,
            value,
            count
        }),
        (0..2usize, 0..60u64, 0..60u64, 1..4usize).prop_map(|(stream, to, from, count)| Step::Copy {
            stream,
            to,
            from,
            count
        }),
        (0..2usize).prop_map(|before| Step::Order { before, after: 1 - before }),
    ]
}

/// Issues the steps; every change of stream is ordered by an event, so the result does not depend on timing.
fn issue(cuda: &Cuda, streams: [CUstream; 2], memory: CUdeviceptr, steps: &[Step]) {
    let order = |before: usize, after: usize| {
        let event = cuda.event();
        ok!(cuda, cuEventRecord(event, streams[before]));
        ok!(cuda, cuStreamWaitEvent(streams[after], event, 0));
        ok!(cuda, cuEventDestroy_v2(event));
    };
    let mut last = 0;
    order(0, 1);
    for step in steps {
        match *step {
            Step::Fill { stream, .. } | Step::Copy { stream, .. } if stream != last => {
                order(last, stream);
                last = stream;
            }
            _ => {}
        }
        match *step {
            Step::Fill { stream, at, value, count } => {
                ok!(cuda, cuMemsetD32Async(memory + at * 4, value, count, streams[stream]));
            }
            Step::Copy { stream, to, from, count } => {
                ok!(
                    cuda,
                    cuMemcpyDtoDAsync_v2(memory + to * 4, memory + from * 4, count * 4, streams[stream])
                );
            }
            Step::Order { before, after } => order(before, after),
        }
    }
    order(1, 0);
}

rusty_fork_test! {
    #[test]
    fn a_graph_does_what_the_calls_do() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let streams = [cuda.stream(), cuda.stream()];
        let (eager, replayed) = (cuda.alloc(256), cuda.alloc(256));
        proptest!(ProptestConfig::with_cases(100), |(steps in prop::collection::vec(step(), 1..30), times in 1..4usize)| {
            cuda.upload(eager, &[1; 256]);
            cuda.upload(replayed, &[1; 256]);
            for _ in 0..times {
                issue(&cuda, streams, eager, &steps);
            }
            begin(&cuda, streams[0], GLOBAL);
            issue(&cuda, streams, replayed, &steps);
            let graph = end(&cuda, streams[0]);
            let exec = instantiate(&cuda, graph);
            ok!(cuda, cuGraphDestroy(graph));
            for _ in 0..times {
                ok!(cuda, cuGraphLaunch(exec, streams[0]));
            }
            ok!(cuda, cuCtxSynchronize());
            ok!(cuda, cuGraphExecDestroy(exec));
            prop_assert_eq!(cuda.download(eager, 256), cuda.download(replayed, 256));
        });
    }
}

rusty_fork_test! {
    #[test]
    fn capturing_runs_nothing() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (stream, memory) = (cuda.stream(), cuda.alloc(4));
        begin(&cuda, stream, RELAXED);
        ok!(cuda, cuMemsetD32Async(memory, 7, 1, stream));
        let mut status = CUstreamCaptureStatus::default();
        let mut id = 0;
        let null = std::ptr::null_mut();
        ok!(cuda, cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, null, null.cast(), null.cast()));
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_ne!(id, 0);
        let mut mode = RELAXED;
        ok!(cuda, cuThreadExchangeStreamCaptureMode(&mut mode));
        assert_eq!(mode, GLOBAL);
        assert_eq!(cuda.download(memory, 4), [0; 4]);
        let graph = end(&cuda, stream);
        let mut count = 0;
        ok!(cuda, cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count));
        assert_eq!(count, 1);
        let mut node = std::ptr::null_mut();
        ok!(cuda, cuGraphGetNodes(graph, &mut node, &mut count));
        let mut kind = CUgraphNodeType::default();
        ok!(cuda, cuGraphNodeGetType(node, &mut kind));
        assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET);
        assert_eq!(cuda.download(memory, 4), [0; 4]);
    }

    #[test]
    fn calls_that_need_an_answer_invalidate_a_capture() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (stream, event) = (cuda.stream(), cuda.event());
        let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        let mut pointer = 0;
        let calls: [&dyn Fn(&mut u64) -> CUresult; 6] = [
            &|_| cu!(cuda, cuStreamSynchronize(stream)),
            &|_| cu!(cuda, cuStreamQuery(stream)),
            &|_| cu!(cuda, cuCtxSynchronize()),
            &|out| cu!(cuda, cuMemAlloc_v2(out, 100)),
            &|_| cu!(cuda, cuEventQuery(event)),
            &|out| cu!(cuda, cuMemAllocAsync(out, 100, stream)),
        ];
        for call in calls {
            begin(&cuda, stream, GLOBAL);
            assert_eq!(call(&mut pointer), unsupported);
            let mut status = CUstreamCaptureStatus::default();
            ok!(cuda, cuStreamIsCapturing(stream, &mut status));
            assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            assert_eq!(cu!(cuda, cuMemsetD8Async(pointer, 0, 1, stream)), invalidated);
            assert_eq!(end_code(&cuda, stream), invalidated);
            ok!(cuda, cuStreamSynchronize(stream));
        }
    }

    #[test]
    fn modes_say_whose_calls_are_forbidden() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        let mut context = std::ptr::null_mut();
        ok!(cuda, cuCtxGetCurrent(&mut context));
        for (mode, here, elsewhere) in [(GLOBAL, false, false), (THREAD, false, true), (RELAXED, true, true)] {
            for other_thread in [false, true] {
                begin(&cuda, stream, mode);
                let table = cuda.0.clone();
                let context = context as usize;
                let allocate = move || {
                    let cuda = Cuda(table);
                    ok!(cuda, cuCtxSetCurrent(context as CUcontext));
                    let mut pointer = 0;
                    cu!(cuda, cuMemAlloc_v2(&mut pointer, 100)) == CUresult::CUDA_SUCCESS
                };
                let allowed = if other_thread { std::thread::spawn(allocate).join().unwrap() } else { allocate() };
                assert_eq!(allowed, if other_thread { elsewhere } else { here }, "{mode:?} {other_thread}");
                assert_eq!(end_code(&cuda, stream) == CUresult::CUDA_SUCCESS, allowed);
            }
        }
        begin(&cuda, stream, GLOBAL);
        let (table, stream_) = (cuda.0.clone(), stream as usize);
        let elsewhere = std::thread::spawn(move || end_code(&Cuda(table), stream_ as CUstream)).join().unwrap();
        assert_eq!(elsewhere, CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        end(&cuda, stream);
    }

    #[test]
    fn forks_must_join_and_captures_stay_apart() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (one, two, three) = (cuda.stream(), cuda.stream(), cuda.stream());
        let memory = cuda.alloc(64);
        let (inside, outside) = (cuda.event(), cuda.event());
        ok!(cuda, cuEventRecord(outside, three));

        begin(&cuda, one, RELAXED);
        ok!(cuda, cuEventRecord(inside, one));
        ok!(cuda, cuStreamWaitEvent(two, inside, 0));
        ok!(cuda, cuMemsetD8Async(memory, 1, 1, two));
        assert_eq!(end_code(&cuda, two), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        assert_eq!(end_code(&cuda, one), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

        begin(&cuda, one, RELAXED);
        ok!(cuda, cuEventRecord(inside, one));
        ok!(cuda, cuStreamWaitEvent(two, inside, 0));
        ok!(cuda, cuMemsetD8Async(memory, 1, 1, two));
        assert_eq!(end_code(&cuda, one), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        ok!(cuda, cuStreamSynchronize(two));

        begin(&cuda, one, RELAXED);
        let isolation = cu!(cuda, cuStreamWaitEvent(one, outside, 0));
        assert_eq!(isolation, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert_eq!(end_code(&cuda, one), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

        begin(&cuda, one, RELAXED);
        begin(&cuda, two, RELAXED);
        assert_eq!(cu!(cuda, cuStreamBeginCapture_v2(two, RELAXED)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        ok!(cuda, cuEventRecord(inside, one));
        assert_eq!(cu!(cuda, cuStreamWaitEvent(two, inside, 0)), CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
        end_code(&cuda, one);
        end_code(&cuda, two);

        let mut blocking = std::ptr::null_mut();
        ok!(cuda, cuStreamCreate(&mut blocking, 0));
        begin(&cuda, blocking, RELAXED);
        // Querying the legacy stream changes nothing.
        let mut status = CUstreamCaptureStatus::default();
        let implicit = cu!(cuda, cuStreamIsCapturing(std::ptr::null_mut(), &mut status));
        assert_eq!(implicit, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        ok!(cuda, cuStreamIsCapturing(blocking, &mut status));
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        let implicit = cu!(cuda, cuMemsetD8Async(memory, 1, 1, std::ptr::null_mut()));
        assert_eq!(implicit, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        end_code(&cuda, blocking);
        assert_eq!(end_code(&cuda, blocking), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        let legacy = cu!(cuda, cuStreamBeginCapture_v2(std::ptr::null_mut(), RELAXED));
        assert_eq!(legacy, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }

    #[test]
    fn branches_of_a_graph_run_side_by_side() {
        for builder in [World::builder(), World::builder().seeded(2)] {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let streams = [cuda.stream(), cuda.stream()];
            let words = cuda.alloc(8);
            let (fork, join) = (cuda.event(), cuda.event());
            begin(&cuda, streams[0], RELAXED);
            ok!(cuda, cuMemsetD32Async(words, 0, 2, streams[0]));
            ok!(cuda, cuEventRecord(fork, streams[0]));
            ok!(cuda, cuStreamWaitEvent(streams[1], fork, 0));
            // Each branch waits for the other's first write, so running one after the other would deadlock.
            for (i, stream) in streams.into_iter().enumerate() {
                let (mine, theirs) = (words + 4 * i as u64, words + 4 * (1 - i) as u64);
                ok!(cuda, cuStreamWriteValue32_v2(stream, mine, 1, 0));
                ok!(cuda, cuStreamWaitValue32_v2(stream, theirs, 1, 0));
            }
            ok!(cuda, cuEventRecord(join, streams[1]));
            ok!(cuda, cuStreamWaitEvent(streams[0], join, 0));
            ok!(cuda, cuMemsetD32Async(words, 9, 1, streams[0]));
            let graph = end(&cuda, streams[0]);
            let exec = instantiate(&cuda, graph);
            for _ in 0..3 {
                ok!(cuda, cuGraphLaunch(exec, streams[0]));
                ok!(cuda, cuGraphLaunch(exec, streams[1]));
            }
            ok!(cuda, cuCtxSynchronize());
            assert_eq!(cuda.download(words, 4), [9, 0, 0, 0]);
        }
    }

    #[test]
    fn user_objects_live_as_long_as_graphs_need_them() {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        static DESTROYED: AtomicU32 = AtomicU32::new(0);
        unsafe extern "C" fn destroy(_: *mut std::ffi::c_void) {
            DESTROYED.fetch_add(1, SeqCst);
        }
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        begin(&cuda, stream, RELAXED);
        let graph = end(&cuda, stream);
        let mut object = std::ptr::null_mut();
        ok!(cuda, cuUserObjectCreate(&mut object, std::ptr::null_mut(), Some(destroy), 1, 1));
        ok!(cuda, cuGraphRetainUserObject(graph, object, 1, 1));
        let exec = instantiate(&cuda, graph);
        ok!(cuda, cuGraphDestroy(graph));
        assert_eq!(DESTROYED.load(SeqCst), 0);
        ok!(cuda, cuGraphExecDestroy(exec));
        assert_eq!(DESTROYED.load(SeqCst), 1);
    }

    #[test]
    fn a_graph_gives_back_the_references_that_it_has_and_no_more() {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        static DESTROYED: AtomicU32 = AtomicU32::new(0);
        unsafe extern "C" fn destroy(_: *mut std::ffi::c_void) {
            DESTROYED.fetch_add(1, SeqCst);
        }
        const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let stream = cuda.stream();
        let [graph, other] = [0, 1].map(|_| {
            begin(&cuda, stream, RELAXED);
            end(&cuda, stream)
        });
        let mut object = std::ptr::null_mut();
        ok!(cuda, cuUserObjectCreate(&mut object, std::ptr::null_mut(), Some(destroy), 2, 1));
        // The program has two references: moving more than it has changes nothing.
        assert_eq!(cu!(cuda, cuGraphRetainUserObject(graph, object, 3, 1)), INVALID);
        assert_eq!(cu!(cuda, cuGraphReleaseUserObject(graph, object, 1)), INVALID);
        ok!(cuda, cuGraphRetainUserObject(graph, object, 2, 1));
        // The handle is valid while the graph holds the references, which the program no longer has.
        ok!(cuda, cuGraphRetainUserObject(other, object, 1, 0));
        for count in [0, 3, i32::MAX as u32 + 1, u32::MAX] {
            assert_eq!(cu!(cuda, cuGraphReleaseUserObject(graph, object, count)), INVALID, "{count}");
        }
        for count in [0, i32::MAX as u32 + 1] {
            assert_eq!(cu!(cuda, cuGraphRetainUserObject(graph, object, count, 0)), INVALID, "{count}");
            assert_eq!(cu!(cuda, cuUserObjectRetain(object, count)), INVALID, "{count}");
        }
        // The refused calls changed nothing.
        ok!(cuda, cuGraphReleaseUserObject(graph, object, 1));
        ok!(cuda, cuGraphReleaseUserObject(other, object, 1));
        assert_eq!(DESTROYED.load(SeqCst), 0);
        ok!(cuda, cuUserObjectRetain(object, 1));
        ok!(cuda, cuGraphReleaseUserObject(graph, object, 1));
        assert_eq!(DESTROYED.load(SeqCst), 0);
        assert_eq!(cu!(cuda, cuUserObjectRelease(object, 0)), INVALID);
        ok!(cuda, cuUserObjectRelease(object, 1));
        assert_eq!(DESTROYED.load(SeqCst), 1);
        assert_ne!(cu!(cuda, cuGraphRetainUserObject(graph, object, 1, 0)), CUresult::CUDA_SUCCESS);
        [graph, other].into_iter().for_each(|graph| ok!(cuda, cuGraphDestroy(graph)));
    }
}
