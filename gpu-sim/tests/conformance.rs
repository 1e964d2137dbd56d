//! What the driver answers, as measured on an H200 (driver 580, CUDA 13.0): the embedded device answers the same.
//!
//! Where the driver lets pass what no program can mean (mapping or unmapping past the end of a reservation), the
//! embedded device refuses; such calls are no rows.
//!
//! On a machine with a GPU the rows are checked against the driver itself, each in a process of its own.

mod common;

use std::ffi::c_void;
use std::process::Command;

use common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::World;

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RW: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const G: u64 = GRANULE as u64;

/// A question: its name, how it is asked, the answer.
type Row = (&'static str, fn(&Cuda) -> String, &'static str);

/// Codes without their prefix, in a line.
fn codes(codes: impl IntoIterator<Item = CUresult>) -> String {
    let name =
        |c: CUresult| format!("{c:?}").trim_start_matches("CUDA_").trim_start_matches("ERROR_").to_owned();
    codes.into_iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Two granules mapped by two handles, and one more that is only reserved.
fn two_mappings(cuda: &Cuda) -> u64 {
    let start = cuda.reserve(3 * GRANULE);
    for i in 0..2 {
        let handle = cuda.create(0, GRANULE);
        ok!(cuda, cuMemMap(start + i * G, GRANULE, 0, handle, 0));
        ok!(cuda, cuMemRelease(handle));
    }
    start
}

fn attribute(cuda: &Cuda, attribute: CUpointer_attribute, pointer: u64) -> (CUresult, u64) {
    let mut value = 0u64;
    (cu!(cuda, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer)), value)
}

/// What a call answers while a stream captures in global mode, and what the capture's end then says.
fn during(cuda: &Cuda, call: impl FnOnce(CUstream) -> CUresult) -> String {
    let stream = cuda.stream();
    ok!(cuda, cuStreamBeginCapture_v2(stream, GLOBAL));
    let code = call(stream);
    let mut graph = std::ptr::null_mut();
    codes([code, cu!(cuda, cuStreamEndCapture(stream, &mut graph))])
}

fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

const ROWS: &[Row] = &[
    (
        "address range over two handles in one reservation",
        |cuda| {
            let start = two_mappings(cuda);
            let ask = |at: u64| {
                let (mut base, mut size) = (start, 0);
                let code = cu!(cuda, cuMemGetAddressRange_v2(&mut base, &mut size, at));
                format!("{} +{} {size}", codes([code]), if base == 0 { 0 } else { base.wrapping_sub(start) })
            };
            let silent = ask(start + G + 5);
            cuda.allow(0, start, 2 * GRANULE, RW);
            [silent, ask(start + G + 5), ask(start + 2 * G)].join(", ")
        },
        "NOT_FOUND +0 0, SUCCESS +2097152 2097152, NOT_FOUND +0 0",
    ),
    (
        "address range of a small allocation",
        |cuda| {
            let a = cuda.alloc(1000);
            let ask = |at: u64| {
                let (mut base, mut size) = (a, 0);
                let code = cu!(cuda, cuMemGetAddressRange_v2(&mut base, &mut size, at));
                format!("{} +{} {size}", codes([code]), if base == 0 { 0 } else { base.wrapping_sub(a) })
            };
            let without = cu!(cuda, cuMemGetAddressRange_v2(null(), null(), a + (64 << 20)));
            let local = 0u8;
            [ask(a + 999), ask(a + 1000), ask(a + 1024), ask(&raw const local as u64), codes([without])]
                .join(", ")
        },
        "SUCCESS +0 1000, NOT_FOUND +0 0, NOT_FOUND +0 0, NOT_FOUND +0 0, SUCCESS",
    ),
    (
        "pointer attributes of mapped memory",
        |cuda| {
            let start = two_mappings(cuda);
            use CUpointer_attribute as A;
            let kind = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start + G);
            let base = attribute(cuda, A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, start + G);
            let size = attribute(cuda, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, start + G);
            let context = attribute(cuda, A::CU_POINTER_ATTRIBUTE_CONTEXT, start);
            let handles = attribute(cuda, A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, start);
            let mapped = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MAPPED, start);
            let reserved = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start + 2 * G);
            format!(
                "{} type {} +{} {} context {} handles {} mapped {}",
                codes([kind.0, base.0, size.0, context.0, handles.0, mapped.0, reserved.0]),
                kind.1,
                base.1.wrapping_sub(start),
                size.1,
                context.1 != 0,
                handles.1,
                mapped.1
            )
        },
        "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS INVALID_VALUE type 2 +0 6291456 context false handles 1 mapped 1",
    ),
    (
        "pointer attributes of nothing",
        |cuda| {
            use CUpointer_attribute as A;
            let local = 0u8;
            let at = &raw const local as u64;
            let one = attribute(cuda, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
            let ordinal = attribute(cuda, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
            let (mut kind, mut device) = (9u32, 9i32);
            let mut which = [A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
            let mut data: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut device).cast()];
            let all = cu!(cuda, cuPointerGetAttributes(2, which.as_mut_ptr(), data.as_mut_ptr(), at));
            format!("{} {kind} {device}", codes([one.0, ordinal.0, all]))
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS 0 -2",
    ),
    (
        "mapping out of place",
        |cuda| {
            let start = two_mappings(cuda);
            let handle = cuda.create(0, GRANULE);
            let mut out = 0;
            codes([
                cu!(cuda, cuMemMap(start, GRANULE, 0, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G + 4096, GRANULE, 0, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, GRANULE, handle, 0)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, 0, handle, 1)),
                cu!(cuda, cuMemMap(start + 2 * G, GRANULE, 0, handle + 0x1000, 0)),
                cu!(cuda, cuMemUnmap(start, 4096)),
                cu!(cuda, cuMemUnmap(start + 2 * G, GRANULE)),
                cu!(cuda, cuMemAddressFree(start, 3 * GRANULE)),
                cu!(cuda, cuMemUnmap(start, 2 * GRANULE)),
                cu!(cuda, cuMemAddressFree(start, GRANULE)),
                cu!(cuda, cuMemAddressReserve(&mut out, 4096, 0, 0, 0)),
                cu!(cuda, cuMemCreate(&mut out, 4096, &cuda.properties(0, true), 0)),
            ])
        },
        "INVALID_VALUE INVALID_VALUE NOT_SUPPORTED INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS INVALID_VALUE SUCCESS INVALID_VALUE INVALID_VALUE INVALID_VALUE",
    ),
    (
        "mapping parts of handles",
        |cuda| {
            let start = cuda.reserve(4 * GRANULE);
            let (one, two) = (cuda.create(0, GRANULE), cuda.create(0, 2 * GRANULE));
            codes([
                cu!(cuda, cuMemMap(start, 2 * GRANULE, 0, one, 0)),
                cu!(cuda, cuMemMap(start, GRANULE, 0, two, 0)),
                cu!(cuda, cuMemMap(start, GRANULE, GRANULE, two, 0)),
                cu!(cuda, cuMemMap(start, 2 * GRANULE, 0, two, 0)),
            ])
        },
        "NOT_SUPPORTED NOT_SUPPORTED NOT_SUPPORTED SUCCESS",
    ),
    (
        "unmapping with holes",
        |cuda| {
            let start = two_mappings(cuda);
            let outside = cu!(cuda, cuMemUnmap(start + 64 * G, GRANULE));
            let hole = cu!(cuda, cuMemUnmap(start, 3 * GRANULE));
            let free = cu!(cuda, cuMemAddressFree(start, 3 * GRANULE));
            codes([outside, hole, free])
        },
        "INVALID_VALUE SUCCESS SUCCESS",
    ),
    (
        "access with holes",
        |cuda| {
            let start = two_mappings(cuda);
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            codes([
                cu!(cuda, cuMemSetAccess(start, 3 * GRANULE, &right, 1)),
                cu!(cuda, cuMemSetAccess(start, 4096, &right, 1)),
            ])
        },
        "INVALID_VALUE INVALID_VALUE",
    ),
    (
        "words that are not there",
        |cuda| {
            let a = cuda.alloc(4 << 20);
            cuda.free(a);
            let stream = cuda.stream();
            let write = cu!(cuda, cuStreamWriteValue32_v2(stream, a, 1, 0));
            let wait = cu!(cuda, cuStreamWaitValue32_v2(stream, a, 0, 0));
            let misaligned = cu!(cuda, cuStreamWriteValue32_v2(stream, cuda.alloc(64) + 2, 1, 0));
            codes([write, wait, misaligned, cu!(cuda, cuStreamSynchronize(stream))])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "half of a mapping",
        |cuda| {
            let (handle, start) = (cuda.create(0, 2 * GRANULE), cuda.reserve(2 * GRANULE));
            ok!(cuda, cuMemMap(start, 2 * GRANULE, 0, handle, 0));
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            let access = cu!(cuda, cuMemSetAccess(start, GRANULE, &right, 1));
            let unmap = cu!(cuda, cuMemUnmap(start, GRANULE));
            codes([access, unmap])
        },
        "INVALID_VALUE INVALID_VALUE",
    ),
    (
        "access to what is not mapped",
        |cuda| {
            let start = cuda.reserve(GRANULE);
            let right = CUmemAccessDesc { location: cuda.location(0), flags: RW };
            let set = cu!(cuda, cuMemSetAccess(start, GRANULE, &right, 1));
            let mut flags = 7;
            let get = cu!(cuda, cuMemGetAccess(&mut flags, &cuda.location(0), start));
            let mut handle = 0;
            let retain = cu!(cuda, cuMemRetainAllocationHandle(&mut handle, start as *mut c_void));
            let plain = cuda.alloc(100);
            let retain_plain = cu!(cuda, cuMemRetainAllocationHandle(&mut handle, plain as *mut c_void));
            codes([set, get, retain, retain_plain])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE",
    ),
    (
        "handles that are not",
        |cuda| {
            let private = {
                let mut handle = 0;
                ok!(cuda, cuMemCreate(&mut handle, GRANULE, &cuda.properties(0, false), 0));
                handle
            };
            let (mut descriptor, mut handle) = (-1i32, 0);
            let export =
                cu!(cuda, cuMemExportToShareableHandle((&raw mut descriptor).cast(), private, POSIX_FD, 0));
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let number = std::os::fd::AsRawFd::as_raw_fd(&file);
            let import =
                cu!(cuda, cuMemImportFromShareableHandle(&mut handle, number as isize as *mut _, POSIX_FD));
            codes([export, import])
        },
        "INVALID_VALUE UNKNOWN",
    ),
    (
        "frees of what is not there",
        |cuda| {
            let a = cuda.alloc(4096);
            let start = two_mappings(cuda);
            let inside = cu!(cuda, cuMemFree_v2(a + 512));
            let mapped = cu!(cuda, cuMemFree_v2(start));
            cuda.free(a);
            let again = cu!(cuda, cuMemFree_v2(a));
            let nothing = cu!(cuda, cuMemFree_v2(0));
            let asynchronous = cu!(cuda, cuMemFreeAsync(a, cuda.stream()));
            codes([inside, mapped, again, nothing, asynchronous])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS INVALID_VALUE",
    ),
    (
        "copies from and to freed memory",
        |cuda| {
            let a = cuda.alloc(4 << 20);
            cuda.free(a);
            let (mut byte, stream) = (0u8, cuda.stream());
            let to_host = cu!(cuda, cuMemcpyDtoH_v2((&raw mut byte).cast(), a, 1));
            let to_device = cu!(cuda, cuMemcpyHtoD_v2(a, (&raw const byte).cast(), 1));
            let fill = cu!(cuda, cuMemsetD8Async(a, 1, 1, stream));
            let after = cu!(cuda, cuStreamSynchronize(stream));
            codes([to_host, to_device, fill, after])
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "copies past the end",
        |cuda| {
            let a = cuda.alloc(2 << 20);
            let mut bytes = vec![0u8; 16 << 20];
            let to_host = cu!(cuda, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), a, 16 << 20));
            let fill = cu!(cuda, cuMemsetD8_v2(a, 1, 16 << 20));
            codes([to_host, fill, cu!(cuda, cuCtxSynchronize())])
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "copies without the right",
        |cuda| {
            let start = two_mappings(cuda);
            let mut byte = 0u8;
            let to_host = cu!(cuda, cuMemcpyDtoH_v2((&raw mut byte).cast(), start, 1));
            let to_device = cu!(cuda, cuMemcpyHtoD_v2(start, (&raw const byte).cast(), 1));
            codes([to_host, to_device, cu!(cuda, cuCtxSynchronize())])
        },
        "INVALID_VALUE INVALID_VALUE SUCCESS",
    ),
    (
        "a copy over two mappings",
        |cuda| {
            let start = two_mappings(cuda);
            cuda.allow(0, start, 2 * GRANULE, RW);
            let bytes = [1u8; 8];
            codes([cu!(cuda, cuMemcpyHtoD_v2(start + G - 4, bytes.as_ptr().cast(), 8))])
        },
        "SUCCESS",
    ),
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
];

const ROW: &str = "GPU_SIM_CONFORMANCE_ROW";

#[test]
fn the_embedded_device_answers_as_measured() {
    let wrong: Vec<String> = ROWS
        .iter()
        .filter_map(|(name, ask, expected)| {
            let world = World::builder().capacity(1 << 30).start().unwrap();
            let found = ask(&Cuda::of(&world));
            (found != *expected).then(|| format!("{name}:\n  found    {found}\n  expected {expected}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Not a test of its own: asks the machine's own driver one row.
#[test]
fn one_row_of_the_real_driver() {
    let Ok(row) = std::env::var(ROW) else { return };
    let api = Api::load().unwrap();
    let cuda = Cuda(api.table().clone());
    ok!(cuda, cuInit(0));
    cuda.enter(0);
    println!("\nANSWER {}", ROWS[row.parse::<usize>().unwrap()].1(&cuda));
}

#[test]
fn the_real_driver_answers_as_measured() {
    let driver = Api::load().ok().filter(|api| {
        let (mut count, table) = (0, Cuda(api.table().clone()));
        cu!(table, cuInit(0)) == CUresult::CUDA_SUCCESS
            && cu!(table, cuDeviceGetCount(&mut count)) == CUresult::CUDA_SUCCESS
            && count > 0
    });
    if driver.is_none() {
        println!("skipped: no CUDA driver with a device on this machine");
        return;
    }
    let mut wrong = Vec::new();
    for (i, (name, _, expected)) in ROWS.iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "one_row_of_the_real_driver", "--nocapture"]).env(ROW, i.to_string());
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.lines().find_map(|l| l.strip_prefix("ANSWER ")).unwrap_or("no answer").to_owned();
        if found != *expected {
            let errors = if found == "no answer" {
                String::from_utf8_lossy(&output.stderr).into_owned()
            } else {
                String::new()
            };
            wrong.push(format!("{name}:\n  found    {found}\n  expected {expected}{errors}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
