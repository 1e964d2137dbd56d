//! Rows about capture, contexts and the state in which a call is made.

use std::ffi::c_void;

use super::*;

pub(super) const ROWS: &[Row] = &[
    (
        "capture: queries and waits",
        |cuda| {
            let (other, event) = (cuda.stream(), cuda.event());
            ok!(cuda, cuEventRecord(event, other));
            ok!(cuda, cuStreamSynchronize(other));
            [
                during(cuda, |_| cu!(cuda, cuEventQuery(event))),
                during(cuda, |_| cu!(cuda, cuEventSynchronize(event))),
                during(cuda, |_| cu!(cuda, cuStreamQuery(other))),
                during(cuda, |_| cu!(cuda, cuStreamSynchronize(other))),
                during(cuda, |s| cu!(cuda, cuStreamQuery(s))),
                during(cuda, |s| cu!(cuda, cuStreamSynchronize(s))),
                during(cuda, |_| cu!(cuda, cuCtxSynchronize())),
            ]
            .join(", ")
        },
        "STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED",
    ),
    (
        "capture: memory",
        |cuda| {
            let (mut a, mut pinned, kept) = (0, null(), cuda.alloc(100));
            let mut host = vec![0u8; 8192];
            let host: *mut c_void = host.as_mut_ptr().cast();
            let (mut handle, mut start) = (0, 0);
            [
                during(cuda, |_| cu!(cuda, cuMemAlloc_v2(&mut a, 100))),
                during(cuda, |_| cu!(cuda, cuMemFree_v2(kept))),
                during(cuda, |_| cu!(cuda, cuMemHostAlloc(&mut pinned, 100, 0))),
                during(cuda, |_| cu!(cuda, cuMemHostRegister_v2(host, 8192, 0))),
                during(cuda, |_| cu!(cuda, cuMemGetInfo_v2(&mut 0, &mut 0))),
                during(cuda, |_| cu!(cuda, cuMemCreate(&mut handle, GRANULE, &cuda.properties(0, true), 0))),
                during(cuda, |_| cu!(cuda, cuMemAddressReserve(&mut start, GRANULE, 0, 0, 0))),
                during(cuda, |_| cu!(cuda, cuMemcpyHtoD_v2(kept, host, 8))),
                during(cuda, |_| cu!(cuda, cuMemsetD8_v2(kept, 0, 8))),
            ]
            .join(", ")
        },
        "STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS",
    ),
    (
        "capture: mapping",
        |cuda| {
            let (handle, start) = (cuda.create(0, GRANULE), cuda.reserve(GRANULE));
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            [
                during(cuda, |_| cu!(cuda, cuMemMap(start, GRANULE, 0, handle, 0))),
                during(cuda, |_| cu!(cuda, cuMemSetAccess(start, GRANULE, &right, 1))),
                during(cuda, |_| cu!(cuda, cuMemUnmap(start, GRANULE))),
                during(cuda, |_| cu!(cuda, cuMemRelease(handle))),
            ]
            .join(", ")
        },
        "SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS",
    ),
    (
        "capture: making things",
        |cuda| {
            let (mut stream, mut event) = (null(), null());
            [
                during(cuda, |_| cu!(cuda, cuStreamCreate(&mut stream, 1))),
                during(cuda, |_| cu!(cuda, cuEventCreate(&mut event, 0))),
                during(cuda, |_| cu!(cuda, cuEventDestroy_v2(event))),
                during(cuda, |_| cu!(cuda, cuStreamDestroy_v2(stream))),
            ]
            .join(", ")
        },
        "SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS",
    ),
    (
        "capture: ends out of place",
        |cuda| {
            let (one, two, event) = (cuda.stream(), cuda.stream(), cuda.event());
            let (memory, mut graph) = (cuda.alloc(64), null());
            let idle = cu!(cuda, cuStreamEndCapture(one, &mut graph));
            ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            let twice = cu!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            ok!(cuda, cuEventRecord(event, one));
            ok!(cuda, cuStreamWaitEvent(two, event, 0));
            let fill = cu!(cuda, cuMemsetD8Async(memory, 1, 1, two));
            let unmatched = cu!(cuda, cuStreamEndCapture(two, &mut graph));
            let unjoined = cu!(cuda, cuStreamEndCapture(one, &mut graph));
            let after = cu!(cuda, cuStreamWaitEvent(two, event, 0));
            let query = cu!(cuda, cuEventQuery(event));
            let synchronise = cu!(cuda, cuEventSynchronize(event));
            codes([idle, twice, fill, unmatched, unjoined, after, query, synchronise])
        },
        "ILLEGAL_STATE ILLEGAL_STATE SUCCESS STREAM_CAPTURE_UNMATCHED STREAM_CAPTURE_INVALIDATED INVALID_VALUE INVALID_VALUE INVALID_VALUE",
    ),
    (
        "capture: beginning twice",
        |cuda| {
            let (one, mut graph) = (cuda.stream(), null());
            ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            let twice = cu!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            codes([twice, cu!(cuda, cuStreamEndCapture(one, &mut graph))])
        },
        "ILLEGAL_STATE SUCCESS",
    ),
    (
        "capture: forks that do not join",
        |cuda| {
            let (one, two, event) = (cuda.stream(), cuda.stream(), cuda.event());
            let (memory, mut graph) = (cuda.alloc(64), null());
            let mut fork = |work: bool| {
                ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
                ok!(cuda, cuEventRecord(event, one));
                ok!(cuda, cuStreamWaitEvent(two, event, 0));
                if work {
                    ok!(cuda, cuMemsetD8Async(memory, 1, 1, two));
                }
                cu!(cuda, cuStreamEndCapture(one, &mut graph))
            };
            codes([fork(true), fork(false), cu!(cuda, cuStreamSynchronize(two))])
        },
        "STREAM_CAPTURE_UNJOINED SUCCESS SUCCESS",
    ),
    (
        "capture: ended by the wrong stream",
        |cuda| {
            let (one, two, event) = (cuda.stream(), cuda.stream(), cuda.event());
            let (memory, mut graph) = (cuda.alloc(64), null());
            ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            ok!(cuda, cuEventRecord(event, one));
            ok!(cuda, cuStreamWaitEvent(two, event, 0));
            ok!(cuda, cuMemsetD8Async(memory, 1, 1, two));
            let unmatched = cu!(cuda, cuStreamEndCapture(two, &mut graph));
            codes([unmatched, cu!(cuda, cuStreamEndCapture(one, &mut graph))])
        },
        "STREAM_CAPTURE_UNMATCHED STREAM_CAPTURE_INVALIDATED",
    ),
    (
        "capture: asking a captured event",
        |cuda| {
            let (one, event, mut graph) = (cuda.stream(), cuda.event(), null());
            let mut ask = |ask: &dyn Fn() -> CUresult| {
                ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
                ok!(cuda, cuEventRecord(event, one));
                let code = ask();
                codes([code, cu!(cuda, cuStreamEndCapture(one, &mut graph)), ask()])
            };
            [ask(&|| cu!(cuda, cuEventQuery(event))), ask(&|| cu!(cuda, cuEventSynchronize(event)))]
                .join(", ")
        },
        "CAPTURED_EVENT STREAM_CAPTURE_INVALIDATED INVALID_VALUE, CAPTURED_EVENT STREAM_CAPTURE_INVALIDATED INVALID_VALUE",
    ),
    (
        "capture: copies of pageable memory",
        |cuda| {
            let (memory, mut bytes) = (cuda.alloc(64), vec![1u8; 64]);
            let bytes: *mut c_void = bytes.as_mut_ptr().cast();
            [
                during(cuda, |s| cu!(cuda, cuMemcpyHtoDAsync_v2(memory, bytes, 64, s))),
                during(cuda, |s| cu!(cuda, cuMemcpyDtoHAsync_v2(bytes, memory, 64, s))),
                during(cuda, |s| cu!(cuda, cuMemsetD8Async(1 << 40, 0, 1, s))),
                during(cuda, |_| cu!(cuda, cuMemcpyDtoH_v2(bytes, memory, 64))),
            ]
            .join(", ")
        },
        "SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS",
    ),
    (
        "capture: strangers",
        |cuda| {
            let (one, two, inside, outside) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.event());
            let mut graph = null();
            ok!(cuda, cuEventRecord(outside, two));
            ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            let isolation = cu!(cuda, cuStreamWaitEvent(one, outside, 0));
            let end = cu!(cuda, cuStreamEndCapture(one, &mut graph));
            ok!(cuda, cuStreamBeginCapture_v2(one, RELAXED));
            ok!(cuda, cuStreamBeginCapture_v2(two, RELAXED));
            ok!(cuda, cuEventRecord(inside, one));
            let merge = cu!(cuda, cuStreamWaitEvent(two, inside, 0));
            let ends = [
                cu!(cuda, cuStreamEndCapture(one, &mut graph)),
                cu!(cuda, cuStreamEndCapture(two, &mut graph)),
            ];
            codes([isolation, end, merge, ends[0], ends[1]])
        },
        "STREAM_CAPTURE_ISOLATION STREAM_CAPTURE_INVALIDATED STREAM_CAPTURE_MERGE STREAM_CAPTURE_INVALIDATED STREAM_CAPTURE_INVALIDATED",
    ),
    (
        "capture: the legacy stream",
        |cuda| {
            let (mut blocking, mut graph, memory) = (null(), null(), cuda.alloc(8));
            ok!(cuda, cuStreamCreate(&mut blocking, 0));
            let begin = cu!(cuda, cuStreamBeginCapture_v2(null(), RELAXED));
            ok!(cuda, cuStreamBeginCapture_v2(blocking, RELAXED));
            let use_ = cu!(cuda, cuMemsetD8Async(memory, 1, 1, null()));
            let end = cu!(cuda, cuStreamEndCapture(blocking, &mut graph));
            codes([begin, use_, end])
        },
        "STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_IMPLICIT STREAM_CAPTURE_INVALIDATED",
    ),
    (
        "contexts out of place",
        |cuda| {
            let (mut context, mut device) = (null(), 0);
            ok!(cuda, cuCtxGetCurrent(&mut context));
            let pop = cu!(cuda, cuCtxPopCurrent_v2(&mut context));
            let none = cu!(cuda, cuCtxGetDevice(&mut device));
            let empty = cu!(cuda, cuCtxPopCurrent_v2(&mut context));
            let mut pointer = 0;
            let alloc = cu!(cuda, cuMemAlloc_v2(&mut pointer, 10));
            let release = cu!(cuda, cuDevicePrimaryCtxRelease_v2(0));
            let again = cu!(cuda, cuDevicePrimaryCtxRelease_v2(0));
            let far = cu!(cuda, cuDeviceGet(&mut device, 99));
            codes([pop, none, empty, alloc, release, again, far])
        },
        "SUCCESS INVALID_CONTEXT INVALID_CONTEXT INVALID_CONTEXT SUCCESS INVALID_CONTEXT INVALID_DEVICE",
    ),
    (
        "events without a time",
        |cuda| {
            let (stream, fresh, timed, mut untimed) = (cuda.stream(), cuda.event(), cuda.event(), null());
            ok!(cuda, cuEventCreate(&mut untimed, 2));
            for event in [timed, untimed] {
                ok!(cuda, cuEventRecord(event, stream));
                ok!(cuda, cuEventSynchronize(event));
            }
            let mut time = 0.0;
            codes([
                cu!(cuda, cuEventElapsedTime(&mut time, timed, fresh)),
                cu!(cuda, cuEventElapsedTime(&mut time, untimed, timed)),
                cu!(cuda, cuEventElapsedTime(&mut time, timed, timed)),
            ])
        },
        "INVALID_HANDLE INVALID_HANDLE SUCCESS",
    ),
    (
        "pinned memory out of place",
        |cuda| {
            let mut host = vec![0u8; 8192];
            let host: *mut c_void = host.as_mut_ptr().cast();
            let mut pointer = 0;
            codes([
                cu!(cuda, cuMemHostUnregister(host)),
                cu!(cuda, cuMemHostGetDevicePointer_v2(&mut pointer, host, 0)),
                cu!(cuda, cuMemHostRegister_v2(host, 8192, 0)),
                cu!(cuda, cuMemHostRegister_v2(host, 8192, 0)),
                cu!(cuda, cuMemFreeHost(host)),
                cu!(cuda, cuMemHostUnregister(host)),
            ])
        },
        "HOST_MEMORY_NOT_REGISTERED INVALID_VALUE SUCCESS HOST_MEMORY_ALREADY_REGISTERED INVALID_VALUE SUCCESS",
    ),
    (
        "names",
        |cuda| {
            let find = |name: &std::ffi::CStr, version: i32| {
                let (mut address, mut status) = (null(), CUdriverProcAddressQueryResult::default());
                let code =
                    cu!(cuda, cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status));
                format!("{} {} {}", codes([code]), address.is_null(), status.0)
            };
            let (mut least, mut greatest) = (9, 9);
            ok!(cuda, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
            let old = |name: &std::ffi::CStr| {
                let mut address = null();
                let code = cu!(cuda, cuGetProcAddress_v2(name.as_ptr(), &mut address, 13_000, 0, null()));
                format!("{} {}", codes([code]), address.is_null())
            };
            [
                old(c"cuNothing"),
                find(c"cuMemAlloc", 13_000),
                find(c"cuNothing", 13_000),
                find(c"cuStreamGetDevice", 12_000),
                format!("{least} {greatest}"),
            ]
            .join(", ")
        },
        "SUCCESS true, SUCCESS false 0, SUCCESS true 1, SUCCESS true 2, 0 -5",
    ),
    (
        "an own interprocess handle, and misaligned fills",
        |cuda| {
            let a = cuda.alloc(4 << 20);
            let mut handle = CUipcMemHandle { reserved: [0; 64] };
            let mut pointer = 0;
            let get = cu!(cuda, cuIpcGetMemHandle(&mut handle, a));
            let open = cu!(cuda, cuIpcOpenMemHandle_v2(&mut pointer, handle, 1));
            codes([get, open, cu!(cuda, cuMemsetD32_v2(a + 2, 1, 1)), cu!(cuda, cuMemsetD16_v2(a + 1, 1, 1))])
        },
        "SUCCESS INVALID_CONTEXT INVALID_VALUE INVALID_VALUE",
    ),
    (
        "updates of an executable graph",
        |cuda| {
            let (a, stream) = (cuda.alloc(4096), cuda.stream());
            let graph = |value: u8, times: usize| {
                let mut graph = null();
                ok!(cuda, cuStreamBeginCapture_v2(stream, RELAXED));
                for _ in 0..times {
                    ok!(cuda, cuMemsetD8Async(a, value, 4096, stream));
                }
                ok!(cuda, cuStreamEndCapture(stream, &mut graph));
                graph
            };
            let mut exec = null();
            ok!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph(1, 1), 0));
            let update = |graph| {
                let mut info = CUgraphExecUpdateResultInfo::default();
                let code = cu!(cuda, cuGraphExecUpdate_v2(exec, graph, &mut info));
                format!("{} {}", codes([code]), info.result.0)
            };
            let told = [update(graph(2, 1)), update(graph(3, 2))];
            ok!(cuda, cuGraphLaunch(exec, stream));
            ok!(cuda, cuStreamSynchronize(stream));
            format!("{}, {:?}", told.join(", "), cuda.download(a, 1))
        },
        "SUCCESS 0, GRAPH_EXEC_UPDATE_FAILURE 2, [2]",
    ),
];
