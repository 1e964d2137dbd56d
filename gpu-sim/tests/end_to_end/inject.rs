//! Every function of the table is counted, can be made to fail, and changes nothing when it fails.

use super::common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::{Action, Injection, World};
use rusty_fork::rusty_fork_test;

/// A run through every kind of call. `Err` is the code of the call that failed; everything that was made is released
/// anyway.
fn everything(cuda: &Cuda) -> Result<(), CUresult> {
    fn check(code: CUresult) -> Result<(), CUresult> {
        if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
    }
    /// Runs its closure on drop, as a careful program's `Drop` does. Tries again once if that fails.
    struct After<F: FnMut() -> CUresult>(F);
    impl<F: FnMut() -> CUresult> Drop for After<F> {
        fn drop(&mut self) {
            if (self.0)() != CUresult::CUDA_SUCCESS {
                assert_eq!((self.0)(), CUresult::CUDA_SUCCESS);
            }
        }
    }
    macro_rules! step {
        ($name:ident($($argument:expr),*)) => { check(cu!(cuda, $name($($argument),*)))? };
    }
    macro_rules! after {
        ($name:ident($($argument:expr),*)) => { After(|| cu!(cuda, $name($($argument),*))) };
    }

    step!(cuInit(0));
    let (mut number, mut context, mut other) = (0, std::ptr::null_mut(), std::ptr::null_mut());
    step!(cuDriverGetVersion(&mut number));
    step!(cuDeviceGetCount(&mut number));
    step!(cuDeviceGet(&mut number, 0));
    step!(cuDeviceCanAccessPeer(&mut number, 0, 1));
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    step!(cuDeviceGetAttribute(&mut number, attribute, 0));
    step!(cuDevicePrimaryCtxRetain(&mut context, 0));
    let _context = after!(cuDevicePrimaryCtxRelease_v2(0));
    step!(cuDevicePrimaryCtxRetain(&mut other, 1));
    let _other = after!(cuDevicePrimaryCtxRelease_v2(1));
    step!(cuCtxSetCurrent(context));
    step!(cuCtxEnablePeerAccess(other, 0));
    let _peer = after!(cuCtxDisablePeerAccess(other));
    step!(cuCtxPushCurrent_v2(context));
    let _current = after!(cuCtxPopCurrent_v2(std::ptr::null_mut()));

    let (mut a, mut stream, mut event, mut pinned) =
        (0, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    step!(cuMemAlloc_v2(&mut a, 4096));
    let _a = after!(cuMemFree_v2(a));
    step!(cuMemHostAlloc(&mut pinned, 4096, 0));
    let _pinned = after!(cuMemFreeHost(pinned));
    step!(cuStreamCreateWithPriority(&mut stream, 1, -1));
    let _stream = after!(cuStreamDestroy_v2(stream));
    step!(cuEventCreate(&mut event, 2));
    let _event = after!(cuEventDestroy_v2(event));
    step!(cuMemcpyHtoDAsync_v2(a, pinned, 4096, stream));
    step!(cuMemsetD32Async(a, 1, 10, stream));
    step!(cuMemcpyDtoHAsync_v2(pinned, a, 4096, stream));
    step!(cuStreamWriteValue32_v2(stream, a, 1, 0));
    step!(cuStreamWaitValue32_v2(stream, a, 1, 0));
    step!(cuEventRecord(event, stream));
    step!(cuStreamWaitEvent(stream, event, 0));
    step!(cuStreamSynchronize(stream));
    step!(cuEventQuery(event));
    step!(cuEventSynchronize(event));
    step!(cuStreamQuery(stream));
    let (mut free, mut total) = (0, 0);
    step!(cuMemGetInfo_v2(&mut free, &mut total));

    let (mut handle, mut start, mut granularity) = (0, 0, 0);
    let properties = cuda.properties(0, true);
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    step!(cuMemGetAllocationGranularity(&mut granularity, &properties, option));
    step!(cuMemCreate(&mut handle, GRANULE, &properties, 0));
    let _handle = after!(cuMemRelease(handle));
    step!(cuMemAddressReserve(&mut start, GRANULE, 0, 0, 0));
    let _start = after!(cuMemAddressFree(start, GRANULE));
    step!(cuMemMap(start, GRANULE, 0, handle, 0));
    let _map = after!(cuMemUnmap(start, GRANULE));
    // Memory is not unmapped while work may still use it.
    let _idle = after!(cuCtxSynchronize_v2(std::ptr::null_mut()));
    let rw = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let right = CUmemAccessDesc { location: cuda.location(0), flags: rw };
    step!(cuMemSetAccess(start, GRANULE, &right, 1));
    step!(cuMemcpyDtoDAsync_v2(start, a, 4096, stream));

    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    step!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
    let captured = check(cu!(cuda, cuMemsetD8Async(a, 3, 10, stream)));
    let mut ended = check(cu!(cuda, cuStreamEndCapture(stream, &mut graph)));
    if ended.is_err() {
        // Like the releases above, the end of a capture is tried again.
        check(cu!(cuda, cuStreamEndCapture(stream, &mut graph)))?;
    } else {
        ended = Ok(());
    }
    let _graph = after!(cuGraphDestroy(graph));
    captured.and(ended)?;
    step!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    let _exec = after!(cuGraphExecDestroy(exec));
    step!(cuGraphLaunch(exec, stream));
    step!(cuStreamSynchronize(stream));
    step!(cuCtxSynchronize());
    Ok(())
}

rusty_fork_test! {
    #[test]
    fn every_call_can_fail_and_nothing_leaks() {
        let start = || World::builder().devices(2).capacity(64 << 20).start().unwrap();
        let world = start();
        everything(&Cuda(world.cuda())).unwrap();
        let report = world.finish().unwrap();
        assert!(report.calls.len() > 45, "{:?}", report.calls);
        let code = CUresult::CUDA_ERROR_ECC_UNCORRECTABLE;
        for (function, times) in report.calls {
            for nth in 1..=times {
                let world = start();
                let failing = Injection::new(function.as_str(), Action::Fail(code.0)).nth(nth);
                world.faults().inject(failing).unwrap();
                let result = everything(&Cuda(world.cuda()));
                let undoes = ["Free", "Destroy", "Release", "Unmap", "Disable", "Pop", "Synchronize_v2"].iter().any(|w| function.contains(w));
                assert_eq!(result.is_err(), !undoes, "{function} {nth}");
                assert!(result.is_ok() || result == Err(code), "{function} {nth}: {result:?}");
                assert_eq!(world.faults().hits(), 1, "{function} {nth}");
                world.finish().unwrap_or_else(|e| panic!("{function} {nth}: {e}"));
            }
        }
    }

    #[test]
    fn injections_count_from_where_they_are_armed() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let a = cuda.alloc(1);
        let oom = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        world.faults().inject(Injection::new("cuMemAlloc_v2", Action::Fail(oom.0)).nth(2).forever()).unwrap();
        let b = cuda.alloc(1);
        let mut c = 0;
        for _ in 0..3 {
            assert_eq!(cu!(cuda, cuMemAlloc_v2(&mut c, 1)), oom);
        }
        world.faults().clear();
        let c = cuda.alloc(1);
        assert_eq!(world.calls("cuMemAlloc_v2"), 6);
        [a, b, c].into_iter().for_each(|p| cuda.free(p));
        cuda.leave(0);
        world.finish().unwrap();
    }

    #[test]
    fn an_injection_that_could_never_strike_is_refused() {
        let world = World::builder().nccl_release(22105).start().unwrap();
        let unknown = |name: &str| {
            let refused = world.faults().inject(Injection::new(name, Action::Fail(1))).unwrap_err();
            assert_eq!(refused.function, name);
            (refused.similar, refused.to_string())
        };
        let (similar, text) = unknown("cuMemAlloc");
        assert!(similar.is_some_and(|name| name.starts_with("cuMemAlloc")), "{text}");
        assert!(text.contains("\"cuMemAlloc\"") && text.contains(similar.unwrap()), "{text}");
        // A misspelt name; a driver function that is not modelled; a function of a later NCCL.
        for name in ["", "cuMemAlloc_v3", "cuArrayDestroy", "ncclCommWindowRegister"] {
            unknown(name);
        }
        world.faults().inject(Injection::new("cuMemAlloc_v2", Action::Fail(1))).unwrap();
        world.faults().inject(Injection::new("ncclAllReduce", Action::Fail(1))).unwrap();
        assert_eq!(world.faults().hits(), 0);
    }

    #[test]
    fn a_delay_passes_on_the_worlds_clock() {
        let world = World::builder().seeded(1).start().unwrap();
        let cuda = Cuda::of(&world);
        let hour = std::time::Duration::from_secs(3600);
        world.faults().inject(Injection::new("cuCtxSynchronize", Action::Delay(hour))).unwrap();
        let before = gpu_sim::sched::now();
        ok!(cuda, cuCtxSynchronize());
        assert!(gpu_sim::sched::now() - before >= hour);
    }

    #[test]
    fn calls_out_of_place_are_refused() {
        let table = {
            let world = World::builder().start().unwrap();
            let cuda = Cuda(world.cuda());
            let mut count = 0;
            assert_eq!(cu!(cuda, cuDeviceGetCount(&mut count)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
            assert_eq!(cu!(cuda, cuInit(1)), CUresult::CUDA_ERROR_INVALID_VALUE);
            ok!(cuda, cuInit(0));
            assert_eq!(cu!(cuda, cuDeviceGetCount(std::ptr::null_mut())), CUresult::CUDA_ERROR_INVALID_VALUE);
            let mut pointer = 0;
            assert_eq!(cu!(cuda, cuMemAlloc_v2(&mut pointer, 1)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            let mut context = std::ptr::null_mut();
            let code = cu!(cuda, cuDevicePrimaryCtxRetain(&mut context, 9));
            assert_eq!(code, CUresult::CUDA_ERROR_INVALID_DEVICE);
            cuda
        };
        assert_eq!(cu!(table, cuInit(0)), CUresult::CUDA_ERROR_DEINITIALIZED, "the world is gone");
    }

    #[test]
    fn functions_are_found_by_name_and_release() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda(world.cuda());
        let find = |name: &std::ffi::CStr, version: i32| {
            let (mut address, mut status) = (std::ptr::null_mut(), CUdriverProcAddressQueryResult::default());
            let code = cu!(cuda, cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status));
            (code, address.is_null(), status)
        };
        let found = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        let absent = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        assert_eq!(find(c"cuMemAlloc", 13_000), (CUresult::CUDA_SUCCESS, false, found));
        assert_eq!(find(c"cuMulticastCreate", 13_000), (CUresult::CUDA_SUCCESS, true, absent));
        let mut text = std::ptr::null();
        ok!(cuda, cuGetErrorName(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &mut text));
        // SAFETY: a static C string.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
        ok!(cuda, cuGetErrorString(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &mut text));
        // SAFETY: a static C string.
        assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"illegal address");
        assert_eq!(cu!(cuda, cuGetErrorName(CUresult(4242), &mut text)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}
