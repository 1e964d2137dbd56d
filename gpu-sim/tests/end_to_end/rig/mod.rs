//! Shared helpers of the tests of NCCL's ABI: ranks with a device, a stream and memory, over the two C tables.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex};

use cuda_driver_sys as cu;
use gpu_sim::World;
use nccl_sys::*;

pub(crate) const OK: ncclResult_t = ncclResult_t::ncclSuccess;

/// Both tables of a world.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) cuda: cu::Table,
    pub(crate) nccl: Table,
}

/// One rank: a device whose context is current on this thread, and a stream.
#[derive(Clone)]
pub(crate) struct Rank {
    pub(crate) rig: Rig,
    pub(crate) rank: usize,
    pub(crate) stream: Stream,
    pub(crate) device: cu::CUdevice,
}

/// A handle that may move between threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comm(pub(crate) ncclComm_t);
// SAFETY: a handle is a number.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(pub(crate) cu::CUstream);
// SAFETY: a handle is a number.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn nccl(self) -> cudaStream_t {
        self.0.cast()
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Id(pub(crate) ncclUniqueId);

/// Calls a driver function, which must succeed.
macro_rules! cuda {
    ($rig:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: test arguments are valid, or wrong on purpose in ways that the embedded device checks.
        let code = unsafe { $rig.cuda.$name.expect(stringify!($name))($($argument),*) };
        assert_eq!(code, cuda_driver_sys::CUresult::CUDA_SUCCESS, stringify!($name));
    }};
}

/// Calls an NCCL function and returns its code.
macro_rules! nccl {
    ($rig:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: test arguments are valid, or wrong on purpose in ways that the embedded device checks.
        unsafe { $rig.nccl.$name.expect(stringify!($name))($($argument),*) }
    }};
}

/// Calls an NCCL function, which must succeed.
macro_rules! ok {
    ($rig:expr, $name:ident($($argument:expr),*)) => {{
        let code = nccl!($rig, $name($($argument),*));
        assert_eq!(code, nccl_sys::ncclResult_t::ncclSuccess, "{}: {}", stringify!($name), $rig.last_error());
    }};
}

impl Rig {
    pub(crate) fn new(world: &World) -> Self {
        Self { cuda: world.cuda(), nccl: world.nccl() }
    }

    pub(crate) fn unique_id(&self) -> Id {
        let mut id = ncclUniqueId { internal: [0; 128] };
        ok!(self, ncclGetUniqueId(&mut id));
        Id(id)
    }

    pub(crate) fn last_error(&self) -> String {
        // SAFETY: the answer is a C string that lives for ever.
        let text = unsafe { CStr::from_ptr(self.nccl.ncclGetLastError.unwrap()(std::ptr::null_mut())) };
        text.to_string_lossy().into_owned()
    }

    /// Makes the calling thread a rank on a device.
    pub(crate) fn rank(&self, rank: usize) -> Rank {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        cuda!(self, cuInit(0));
        cuda!(self, cuDeviceGet(&mut device, rank as c_int));
        cuda!(self, cuDevicePrimaryCtxRetain(&mut context, device));
        cuda!(self, cuCtxSetCurrent(context));
        Rank { rig: self.clone(), rank, stream: self.stream(), device }
    }

    /// A stream of the current context.
    pub(crate) fn stream(&self) -> Stream {
        let mut stream = std::ptr::null_mut();
        cuda!(self, cuStreamCreate(&mut stream, 1));
        Stream(stream)
    }

    pub(crate) fn synchronize(&self, stream: Stream) {
        cuda!(self, cuStreamSynchronize(stream.0));
    }

    pub(crate) fn async_error(&self, comm: Comm) -> ncclResult_t {
        let mut error = OK;
        ok!(self, ncclCommGetAsyncError(comm.0, &mut error));
        error
    }

    pub(crate) fn destroy(&self, comm: Comm) {
        ok!(self, ncclCommDestroy(comm.0));
    }

    pub(crate) fn abort(&self, comm: Comm) {
        ok!(self, ncclCommAbort(comm.0));
    }

    pub(crate) fn split(&self, comm: Comm, color: c_int, key: c_int) -> Comm {
        let mut child = std::ptr::null_mut();
        ok!(self, ncclCommSplit(comm.0, color, key, &mut child, std::ptr::null_mut()));
        Comm(child)
    }

    /// (rank, size) of a communicator.
    pub(crate) fn place(&self, comm: Comm) -> (usize, usize) {
        let (mut rank, mut size) = (-1, -1);
        ok!(self, ncclCommUserRank(comm.0, &mut rank));
        ok!(self, ncclCommCount(comm.0, &mut size));
        (rank as usize, size as usize)
    }
}

impl Rank {
    /// Joins a communicator of `size` ranks under its own number.
    pub(crate) fn init(&self, id: Id, size: usize) -> Comm {
        let mut comm = std::ptr::null_mut();
        ok!(self.rig, ncclCommInitRank(&mut comm, size as c_int, id.0, self.rank as c_int));
        Comm(comm)
    }

    /// Device memory with these bytes in it.
    pub(crate) fn upload(&self, bytes: &[u8]) -> u64 {
        let pointer = self.alloc(bytes.len().max(1));
        self.write(pointer, bytes);
        pointer
    }

    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        let mut pointer = 0;
        cuda!(self.rig, cuMemAlloc_v2(&mut pointer, bytes));
        pointer
    }

    pub(crate) fn free(&self, pointer: u64) {
        cuda!(self.rig, cuMemFree_v2(pointer));
    }

    pub(crate) fn write(&self, pointer: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            cuda!(self.rig, cuMemcpyHtoD_v2(pointer, bytes.as_ptr().cast::<c_void>(), bytes.len()));
            // The copy may be done after the call has returned.
            cuda!(self.rig, cuStreamSynchronize(std::ptr::null_mut()));
        }
    }

    pub(crate) fn read(&self, pointer: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if len > 0 {
            cuda!(self.rig, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast::<c_void>(), pointer, len));
        }
        bytes
    }

    /// Allocates memory for windows (`ncclMemAlloc`).
    pub(crate) fn symmetric(&self, bytes: usize) -> u64 {
        let mut pointer = std::ptr::null_mut();
        ok!(self.rig, ncclMemAlloc(&mut pointer, bytes));
        pointer as u64
    }

    pub(crate) fn free_symmetric(&self, pointer: u64) {
        ok!(self.rig, ncclMemFree(pointer as *mut c_void));
    }

    pub(crate) fn all_reduce(&self, comm: Comm, pointer: u64, count: usize) -> ncclResult_t {
        nccl!(
            self.rig,
            ncclAllReduce(
                pointer as *const c_void,
                pointer as *mut c_void,
                count,
                ncclDataType_t::ncclInt32,
                ncclRedOp_t::ncclSum,
                comm.0,
                self.stream.nccl()
            )
        )
    }

    /// All-reduces one integer and returns the sum.
    pub(crate) fn sum(&self, comm: Comm, value: i32) -> i32 {
        let pointer = self.upload(&value.to_ne_bytes());
        assert_eq!(self.all_reduce(comm, pointer, 1), OK, "{}", self.rig.last_error());
        self.synchronize();
        let bytes = self.read(pointer, 4);
        self.free(pointer);
        i32::from_ne_bytes(bytes.try_into().unwrap())
    }

    pub(crate) fn synchronize(&self) {
        self.rig.synchronize(self.stream);
    }

    /// Releases the stream and the context.
    pub(crate) fn leave(self) {
        cuda!(self.rig, cuStreamDestroy_v2(self.stream.0));
        cuda!(self.rig, cuCtxSetCurrent(std::ptr::null_mut()));
        cuda!(self.rig, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Ends the process if a rank fails, because the others would wait for it.
pub(crate) struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {
        std::process::exit(101);
    }
}

/// Runs ranks 0 to `size` to their ends, each on its own device. Returns their results, by rank.
pub(crate) fn run<T: Send + 'static>(
    world: &World,
    size: usize,
    body: impl Fn(&Rank) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (rig, body) = (Rig::new(world), Arc::new(body));
    let actors = (0..size)
        .map(|rank| {
            let (rig, body) = (rig.clone(), body.clone());
            let actor = move || {
                let alive = Alive;
                let rank = rig.rank(rank);
                let result = body(&rank);
                rank.leave();
                std::mem::forget(alive);
                result
            };
            (format!("rank {rank}"), Box::new(actor) as Box<dyn FnOnce() -> T + Send>)
        })
        .collect();
    world.run_actors(actors).unwrap_or_else(|error| panic!("{error}\n{:#?}", world.notes()))
}

/// Like [`run`], in a communicator of all ranks, which is destroyed at the end.
pub(crate) fn run_in_comm<T: Send + 'static>(
    world: &World,
    size: usize,
    body: impl Fn(&Rank, Comm) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let id = Rig::new(world).unique_id();
    run(world, size, move |rank| {
        let comm = rank.init(id, size);
        let result = body(rank, comm);
        rank.rig.destroy(comm);
        result
    })
}

/// A world of `devices` devices.
pub(crate) fn world(devices: usize) -> World {
    World::builder().devices(devices).capacity(1 << 30).start().unwrap()
}

/// A value that several threads fill.
pub(crate) type Shared<T> = Arc<Mutex<T>>;

/// Waits until `count` waits of the world contain `what`.
pub(crate) fn until_waiting(world: &World, what: &str, count: usize) {
    for _ in 0..12_000 {
        if world.waiting().iter().filter(|waiting| waiting.what.contains(what)).count() >= count {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("nobody waits for {what:?}: {:?}", world.waiting());
}
