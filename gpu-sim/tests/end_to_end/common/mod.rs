//! Shared helpers of the tests of the driver's ABI: calls that check their codes.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use cuda_driver_sys::*;
use gpu_sim::World;

/// A world's table, and shorthands over it.
pub struct Cuda(pub Table);

/// Calls a function of the table and returns its code.
macro_rules! cu {
    ($cuda:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function = $cuda.0.$name.expect(concat!(stringify!($name), " is absent"));
        // SAFETY: the test passes what the function's contract asks for.
        unsafe { function($($argument),*) }
    }};
}

/// Like `cu!`, and asserts success.
macro_rules! ok {
    ($cuda:expr, $name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::common::cu!($cuda, $name($($argument),*)), CUresult::CUDA_SUCCESS, stringify!($name))
    };
}

pub(crate) use {cu, ok};

pub const GRANULE: usize = 2 << 20;

impl Cuda {
    /// The table of a world, initialised, with device 0's primary context current.
    pub fn of(world: &World) -> Self {
        let cuda = Self(world.cuda());
        ok!(cuda, cuInit(0));
        cuda.enter(0);
        cuda
    }

    /// Retains a device's primary context and makes it current.
    pub fn enter(&self, device: i32) -> CUcontext {
        let mut context = std::ptr::null_mut();
        ok!(self, cuDevicePrimaryCtxRetain(&mut context, device));
        ok!(self, cuCtxSetCurrent(context));
        context
    }

    pub fn leave(&self, device: i32) {
        ok!(self, cuDevicePrimaryCtxRelease_v2(device));
    }

    pub fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        ok!(self, cuMemAlloc_v2(&mut pointer, bytes));
        pointer
    }

    pub fn free(&self, pointer: CUdeviceptr) {
        ok!(self, cuMemFree_v2(pointer));
    }

    pub fn stream(&self) -> CUstream {
        let mut stream = std::ptr::null_mut();
        ok!(self, cuStreamCreate(&mut stream, 1));
        stream
    }

    pub fn event(&self) -> CUevent {
        let mut event = std::ptr::null_mut();
        ok!(self, cuEventCreate(&mut event, 0));
        event
    }

    pub fn upload(&self, to: CUdeviceptr, bytes: &[u8]) {
        ok!(self, cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()));
        // The copy may be done after the call has returned.
        ok!(self, cuStreamSynchronize(std::ptr::null_mut()));
    }

    pub fn download(&self, from: CUdeviceptr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        ok!(self, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, len));
        bytes
    }

    pub fn properties(&self, device: i32, exportable: bool) -> CUmemAllocationProp {
        let mut properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: self.location(device),
            ..CUmemAllocationProp::default()
        };
        if exportable {
            properties.requestedHandleTypes =
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        properties
    }

    pub fn location(&self, device: i32) -> CUmemLocation {
        let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let mut location = CUmemLocation { type_: kind, ..CUmemLocation::default() };
        location.__bindgen_anon_1.id = device;
        location
    }

    pub fn create(&self, device: i32, bytes: usize) -> CUmemGenericAllocationHandle {
        let mut handle = 0;
        ok!(self, cuMemCreate(&mut handle, bytes, &self.properties(device, true), 0));
        handle
    }

    pub fn reserve(&self, bytes: usize) -> CUdeviceptr {
        let mut start = 0;
        ok!(self, cuMemAddressReserve(&mut start, bytes, 0, 0, 0));
        start
    }

    pub fn allow(&self, device: i32, start: CUdeviceptr, bytes: usize, flags: CUmemAccess_flags) {
        let right = CUmemAccessDesc { location: self.location(device), flags };
        ok!(self, cuMemSetAccess(start, bytes, &right, 1));
    }

    /// Captures calls on a stream and launches the graph: unlike eager calls, nothing is checked before it runs.
    pub fn captured(&self, stream: CUstream, calls: impl FnOnce()) {
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(self, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED));
        calls();
        ok!(self, cuStreamEndCapture(stream, &mut graph));
        ok!(self, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(self, cuGraphLaunch(exec, stream));
        ok!(self, cuGraphExecDestroy(exec));
        ok!(self, cuGraphDestroy(graph));
    }
}
