//! The ranks' communicators. They belong to the NCCL of gpu-sim, the crate that simulates the CUDA driver and NCCL.
//!
//! The simulation has one thread, which must not block in NCCL. So a call that may wait for other ranks runs in a
//! coroutine of gpu-sim. `make`, `register` and `abort` end with [`settle`], which runs all coroutines until each has
//! ended or waits for other ranks.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
    time::Duration,
};

use cuda_driver::Context;
use gpu_sim::sched;
use nccl_sys::{Api, Version, ncclComm, ncclComm_t, ncclUniqueId, ncclWindow_t};

use crate::violation::Violation;

/// NCCL's handle of memory that `ncclCommRegister` has registered.
pub(crate) type Registration = *mut c_void;

/// One member's side of the communicator of a group.
#[derive(Debug)]
pub(crate) struct Communicator {
    api: Api,
    handle: usize,
    context: Context,
}

/// Runs all coroutines until each has ended or waits.
pub(crate) fn settle() -> Result<(), Violation> {
    sched::sleep(Duration::ZERO).map_err(Violation::of)
}

/// Begins `job` in a coroutine, in which it may block. `name` appears in reports of gpu-sim.
pub(crate) fn begin(name: &str, job: impl FnOnce() + Send + 'static) -> Result<(), Violation> {
    let begun = sched::spawn(name, Box::new(job));
    begun.map_err(|_| Violation("the thread has no simulated world".into()))
}

impl Communicator {
    /// Makes the communicator of a group. `members` are the contexts of the members' devices. Returns the members'
    /// sides of the communicator, in the same order.
    pub(crate) fn make(api: &Api, members: &[Context]) -> Result<Vec<Self>, Violation> {
        let mut id = ncclUniqueId::default();
        // SAFETY: NCCL writes one id to `id`.
        unsafe { api.get_unique_id(&mut id) }.map_err(Violation::of)?;
        let size = members.len() as c_int;
        let mut made = Vec::new();
        for (rank, context) in (0..size).zip(members) {
            let handle = Arc::new(AtomicPtr::new(ptr::null_mut()));
            made.push((handle.clone(), context));
            let (api, context) = (api.clone(), context.clone());
            begin("a call to NCCL", move || {
                // SAFETY: the handle outlives the call, because this coroutine shares it.
                let init = || unsafe { api.comm_init_rank(handle.as_ptr(), size, id, rank) };
                // If the call fails, the handle stays null, and `finish` reports it.
                let _ = context.with_current(init);
            })?;
        }
        settle()?;
        let finish = |(handle, context): (Arc<AtomicPtr<ncclComm>>, &Context)| match handle
            .load(Ordering::Relaxed)
            as usize
        {
            0 => Err(Violation("NCCL makes no communicator".into())),
            handle => Ok(Self { api: api.clone(), handle, context: context.clone() }),
        };
        made.into_iter().map(finish).collect()
    }

    fn handle(&self) -> ncclComm_t {
        self.handle as ncclComm_t
    }

    /// Begins to register windows. Each entry of `memory` is an address and a length in bytes. When NCCL has registered
    /// the windows, calls `end` with their handles, in the order of `memory`. If NCCL fails, calls `end` with a
    /// description of the error.
    pub(crate) fn register(
        &self,
        memory: Vec<(u64, u64)>,
        end: impl FnOnce(Result<Vec<usize>, String>) + Send + 'static,
    ) -> Result<(), Violation> {
        let (api, context, communicator) = (self.api.clone(), self.context.clone(), self.handle);
        begin("a call to NCCL", move || {
            let register = || windows(&api, communicator as ncclComm_t, &memory);
            end(context.with_current(register).unwrap_or_else(|error| Err(error.to_string())));
        })?;
        settle()
    }

    pub(crate) fn deregister(&self, window: usize) -> Result<(), Violation> {
        // SAFETY: the handles are those that this communicator has returned.
        unsafe { self.api.comm_window_deregister(self.handle(), window as ncclWindow_t) }
            .map_err(Violation::of)
    }

    /// Returns the address at which this rank reaches a peer's memory in a window. `window` is this rank's handle of
    /// the window. `peer` is the peer's rank in the communicator. Returns `None` for NCCL releases before 2.29.2, which
    /// have no function that returns this address.
    pub(crate) fn peer_window(&self, window: usize, peer: usize) -> Result<Option<u64>, Violation> {
        if self.api.version() < Version::new(2, 29, 2) {
            return Ok(None);
        }
        let mut address = ptr::null_mut();
        // SAFETY: NCCL writes one address to `address`, and the handles are those that this communicator has returned.
        unsafe { self.api.get_peer_device_pointer(window as ncclWindow_t, 0, peer as c_int, &mut address) }
            .map_err(Violation::of)?;
        Ok(Some(address as u64))
    }

    /// Registers memory by `ncclCommRegister`. If the call fails, returns a description of NCCL's error.
    pub(crate) fn register_plainly(&self, address: u64, bytes: u64) -> Result<Registration, String> {
        let mut registration = ptr::null_mut();
        let handle = self.handle();
        // SAFETY: NCCL writes one handle to `registration`. gpu-sim does not access the memory.
        unsafe { self.api.comm_register(handle, address as *mut c_void, bytes as usize, &mut registration) }
            .map_err(|error| error.to_string())?;
        Ok(registration)
    }

    pub(crate) fn deregister_plainly(&self, registration: Registration) -> Result<(), Violation> {
        // SAFETY: the handles are those that this communicator has returned.
        unsafe { self.api.comm_deregister(self.handle(), registration) }.map_err(Violation::of)
    }

    /// Aborts this member's side of the communicator. This ends the member's calls that wait in it.
    pub(crate) fn abort(self) -> Result<(), Violation> {
        // SAFETY: no other call ends the communicator, and none begins after this one.
        unsafe { self.api.comm_abort(self.handle()) }.map_err(Violation::of)?;
        settle()
    }
}

/// Registers windows between one `ncclGroupStart` and `ncclGroupEnd`. Each entry of `memory` is an address and a length
/// in bytes. Returns the handles of the windows, in the same order, or a description of NCCL's error.
fn windows(api: &Api, communicator: ncclComm_t, memory: &[(u64, u64)]) -> Result<Vec<usize>, String> {
    let mut windows: Vec<ncclWindow_t> = vec![ptr::null_mut(); memory.len()];
    // SAFETY: `windows` lives until after `group_end`, the last call in which NCCL writes the handles. gpu-sim checks
    // the memory.
    let called = unsafe {
        api.group_start().map_err(|error| error.to_string())?;
        let flags = nccl_sys::NCCL_WIN_COLL_SYMMETRIC as c_int;
        let mut calls = memory.iter().zip(&mut windows).map(|((address, bytes), window)| {
            api.comm_window_register(communicator, *address as *mut c_void, *bytes as usize, window, flags)
        });
        let called = calls.try_for_each(|call| call);
        let ended = api.group_end();
        called.and(ended)
    };
    called.map_err(|error| error.to_string())?;
    if windows.iter().any(|window| window.is_null()) {
        return Err("NCCL returned no window".to_owned());
    }
    Ok(windows.into_iter().map(|window| window as usize).collect())
}
