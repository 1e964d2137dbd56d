//! Symmetric windows: the communicators that support them, and their registration.
//!
//! NCCL's result alone does not say whether a window exists. On a communicator without symmetric memory, 2.27 and
//! 2.28 return success and a handle of a local registration only; later releases return success and null. This module
//! therefore decides before the call, from facts that all members share, whether the communicator supports windows.
//! After the call it checks the handle.

mod peers;
mod request;
mod support;
pub(super) mod table;

use std::{
    any::Any,
    fmt, ptr,
    sync::{Arc, Weak, atomic::Ordering},
};

use cuda_driver::DevicePtr;
use nccl_sys::{Version, ncclWindow_t};

use self::{
    request::check_requests,
    table::{Cell, Live},
};
pub use self::{
    request::{WindowFlags, WindowRequest, WindowRequestError},
    support::{WindowFacts, WindowsUnsupported},
};
use super::{
    Communicator, Result,
    call::call,
    open_group,
    shared::{Serving, Shared},
};
use crate::store::Deadline;

/// From this release on, NCCL reuses the symmetric addresses of deregistered windows.
const ADDRESSES_COME_BACK: Version = Version::new(2, 28, 0);

/// A registered window. The window stays registered until [`Communicator::deregister_windows`], or until the
/// communicator is gone. Dropping this value changes nothing, because every rank must deregister in the same order.
#[doc(alias = "ncclWindow_t")]
#[derive(Clone)]
pub struct Window {
    communicator: Weak<Shared>,
    serial: u64,
    ptr: DevicePtr,
    bytes: usize,
    cell: Cell,
}

impl Window {
    /// Returns the start address of the window.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the length of the window in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of windows that were registered with the communicator before this one. Equal on all ranks.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns NCCL's handle, for device code. The handle is valid while the window is registered. Returns null once
    /// the window is deregistered.
    #[must_use]
    pub fn raw(&self) -> ncclWindow_t {
        self.cell.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({}: {} bytes at {:#x})", self.serial, self.bytes, self.ptr.0)
    }
}

/// The result of a [`WindowRequest`].
#[derive(Debug)]
#[non_exhaustive]
pub enum WindowOutcome {
    /// The memory is a window.
    Registered(Window),
    /// The communicator does not support windows, for this reason. Its other functions work.
    Unsupported(WindowsUnsupported),
}

impl WindowOutcome {
    /// Returns the window, if there is one.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Self::Registered(window) => Some(window),
            Self::Unsupported(_) => None,
        }
    }
}

impl Communicator {
    /// Checks that this communicator supports windows: [`WindowFacts::decide`] with the facts of its configuration. The
    /// communicators of a process group have the facts of all its members, so that all get the same answer.
    ///
    /// # Errors
    /// The reason why windows are not supported.
    pub fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        let shared = self.shared();
        self.config().window_facts.decide(&shared.nccl, shared.context.driver().version(), shared.place.size)
    }

    /// Returns how many bytes of the communicator's symmetric address space are occupied by its windows. The address
    /// space is as large as the largest member's device memory, rounded up to 4 GiB. Before 2.28, NCCL does not reuse
    /// the addresses of deregistered windows, so deregistered windows count too.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        let shared = self.shared();
        let windows = shared.windows();
        let live = windows.live.iter().map(|window| window.bytes as u64).sum();
        if shared.nccl.release() < ADDRESSES_COME_BACK { windows.ever } else { live }
    }

    /// Returns true if the `bytes` at `ptr` lie in one range that is [registered](Self::register) with the
    /// communicator.
    #[must_use]
    pub fn is_registered(&self, ptr: DevicePtr, bytes: u64) -> bool {
        self.shared().registry.covers(ptr.0, bytes)
    }

    /// Holds a reference to `memory` until the communicator is gone. Use this for the memory under windows, so that
    /// no window outlives its memory.
    pub fn keep(&self, memory: Arc<dyn Any + Send + Sync>) {
        let kept = &mut self.shared().windows().kept;
        if !kept.iter().any(|other| Arc::ptr_eq(other, &memory)) {
            kept.push(memory);
        }
    }

    /// Checks requests that are about to be [registered](Self::register_windows), as far as this rank can alone: the
    /// requests are aligned, no byte belongs to two windows, and the communicator is not suspended. Local. Call this
    /// before the ranks agree on the requests. A rank with an invalid request can then report it to the others before
    /// any rank starts to register.
    ///
    /// # Errors
    /// [`WindowRequestError`], which names the request.
    pub fn check_windows(&self, requests: &[WindowRequest]) -> std::result::Result<(), WindowRequestError> {
        if let Some(request) = requests.first().filter(|_| self.is_suspended()) {
            let problem = format!("{} is suspended; call resume first, on every rank", self.name());
            return Err(WindowRequestError {
                index: 0,
                address: request.ptr.0,
                bytes: request.bytes,
                problem,
            });
        }
        let ranges = self.shared().windows().ranges();
        check_requests(requests, &ranges, self.nccl().release())
    }

    /// Registers windows, in the order of `requests`, in one NCCL group on the service thread. Collective: every rank
    /// passes the same number of requests, in the same order, below NCCL 2.30.7 also with the same sizes. NCCL does not
    /// check this, and waits for ever if the ranks differ. The ranks must therefore agree first, as symm-mem's commit
    /// does.
    ///
    /// If the communicator does not support windows, no NCCL call is made and every outcome gives the reason. NCCL
    /// maps the whole allocation under each request into the other members, so the allocation's handle must be
    /// exportable.
    ///
    /// Do not call this function while a stream of the device is being captured. Do not call it either while enqueued
    /// collectives of this communicator wait for a member that has not made this call yet.
    ///
    /// # Errors
    /// - [`WindowRequest`](super::CommError::WindowRequest), before anything was registered;
    /// - [`DeadlineExceeded`](super::CommError::DeadlineExceeded) if a rank did not make the call in time, and
    ///   [`Nccl`](super::CommError::Nccl). Both poison the communicator, because a half-done registration cannot be
    ///   undone.
    ///
    /// # Safety
    /// On every rank, the memory stays allocated, and mapped at its address, until the windows are deregistered or
    /// the communicator is gone, because the other ranks access it.
    #[doc(alias = "ncclCommWindowRegister")]
    pub unsafe fn register_windows(
        &self,
        requests: &[WindowRequest],
        deadline: Deadline,
    ) -> Result<Vec<WindowOutcome>> {
        // SAFETY: the caller's contract.
        let mut outcomes = unsafe { register_windows_together(&[(self, requests)], deadline) };
        outcomes.pop().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Deregisters windows, in the order given, on the service thread. Every rank makes this call with the same
    /// order.
    ///
    /// # Errors
    /// - [`DeadlineExceeded`](super::CommError::DeadlineExceeded) and [`Nccl`](super::CommError::Nccl), which poison
    ///   the communicator; [`Closed`](super::CommError::Closed).
    /// - [`Suspended`](super::CommError::Suspended). To repeat the call after a resume, keep clones of the windows,
    ///   because this call consumes `windows`.
    /// - [`WindowRequest`](super::CommError::WindowRequest) for a window of another communicator. No window is
    ///   deregistered then.
    /// - [`WindowRequest`](super::CommError::WindowRequest) for a window that is deregistered already. The windows
    ///   before it in the list are deregistered then, the windows after it are not.
    ///
    /// # Safety
    /// On every rank, all work that uses the windows is done, and all graphs that captured such work are destroyed or
    /// not launched any more. NCCL unmaps the other members' memory, which that work accesses.
    #[doc(alias = "ncclCommWindowDeregister")]
    pub unsafe fn deregister_windows(&self, windows: Vec<Window>, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommWindowDeregister";
        open_group::refuse_inside(CALL)?;
        let own = Arc::as_ptr(self.shared());
        if let Some((index, window)) =
            windows.iter().enumerate().find(|(_, window)| !ptr::eq(window.communicator.as_ptr(), own))
        {
            let problem = format!("it is not a window of {}", self.name());
            let (address, bytes) = (window.ptr.0, window.bytes);
            return Err(WindowRequestError { index, address, bytes, problem }.into());
        }
        let waiting_for = format!("the deregistration of {} windows", windows.len());
        self.serve(CALL, waiting_for, deadline, move |shared| {
            for (index, window) in windows.into_iter().enumerate() {
                // The window may have been deregistered through a clone of this value. Only the service thread
                // deregisters windows, so the handle does not change after this check.
                if window.raw().is_null() {
                    let problem = "it is deregistered already".to_owned();
                    let (address, bytes) = (window.ptr.0, window.bytes);
                    return Err(WindowRequestError { index, address, bytes, problem }.into());
                }
                // SAFETY: the call guard keeps the communicator alive during the call. NCCL returned the handle for
                // this communicator. The handle is set to null below, so it is deregistered once.
                let done = unsafe {
                    call!(&shared.nccl, shared.name(), ncclCommWindowDeregister(shared.raw(), window.raw()))
                };
                shared.windows().live.retain(|live| live.serial != window.serial);
                window.cell.store(ptr::null_mut(), Ordering::Release);
                done?;
            }
            Ok(())
        })
    }
}

/// [`Communicator::register_windows`] for a thread that drives several ranks, or several groups of one rank. The
/// registrations run in parallel, each in one NCCL group on its communicator's service thread. No registration
/// therefore waits for another one that has not begun. Returns one result for each communicator, in the order given.
///
/// # Safety
/// As for [`Communicator::register_windows`].
pub unsafe fn register_windows_together(
    communicators: &[(&Communicator, &[WindowRequest])],
    deadline: Deadline,
) -> Vec<Result<Vec<WindowOutcome>>> {
    let begun: Vec<_> = communicators
        .iter()
        .map(|(communicator, requests)| match communicator.windows_supported() {
            Ok(()) => begin(communicator, requests).map(Ok),
            Err(reason) => Ok(Err(reason)),
        })
        .collect();
    let finish =
        |((communicator, requests), begun): (&(&Communicator, &[WindowRequest]), Result<_>)| match begun? {
            Ok(Begun { cells, serving }) => {
                serving.finish(deadline)?;
                Ok(outcomes(communicator.shared(), requests, cells))
            }
            Err(reason) => {
                let unsupported = |_: &_| WindowOutcome::Unsupported(WindowsUnsupported::clone(&reason));
                Ok(requests.iter().map(unsupported).collect())
            }
        };
    communicators.iter().zip(begun).map(finish).collect()
}

/// Registrations in progress.
struct Begun {
    cells: Vec<Cell>,
    serving: Serving<()>,
}

/// Checks the requests and submits them to the service thread.
fn begin(communicator: &Communicator, requests: &[WindowRequest]) -> Result<Begun> {
    const CALL: &str = "ncclCommWindowRegister";
    open_group::refuse_inside(CALL)?;
    let shared = communicator.shared();
    shared.guard.check(CALL)?;
    communicator.check_windows(requests)?;
    let cells: Vec<Cell> = requests.iter().map(|_| Cell::default()).collect();
    shared.windows().cells.extend(cells.iter().cloned());
    let waiting_for = format!("the other ranks to register {} windows in the same order", requests.len());
    let (requests, job_cells) = (requests.to_vec(), cells.clone());
    let serving =
        communicator.begin(CALL, waiting_for, move |shared| register(shared, &requests, &job_cells));
    Ok(Begun { cells, serving })
}

/// Registers the windows in one NCCL group. Runs on the service thread.
fn register(shared: &Shared, requests: &[WindowRequest], cells: &[Cell]) -> Result<()> {
    let (nccl, name) = (&shared.nccl, shared.name());
    // SAFETY: the function has no arguments.
    unsafe { call!(nccl, name, ncclGroupStart()) }?;
    let queued = requests.iter().zip(cells).try_for_each(|(request, cell)| {
        let buffer = request.ptr.0 as *mut std::ffi::c_void;
        let flags = request.flags.bits().cast_signed();
        // SAFETY: the call guard keeps the communicator alive during the call. The memory is alive by the contract of
        // `register_windows`. The cell stays where it is until the communicator is gone.
        unsafe {
            call!(
                nccl,
                name,
                ncclCommWindowRegister(shared.raw(), buffer, request.bytes, cell.as_ptr(), flags)
            )
        }
    });
    // SAFETY: closes the group that was opened above, also after a failure.
    let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
    queued.and(ended)
}

/// Converts the handles that NCCL wrote into outcomes. A null handle means that windows are not supported after all.
fn outcomes(shared: &Arc<Shared>, requests: &[WindowRequest], cells: Vec<Cell>) -> Vec<WindowOutcome> {
    let mut windows = shared.windows();
    let take = |(request, cell): (&WindowRequest, Cell)| {
        if cell.load(Ordering::Acquire).is_null() {
            let release = shared.nccl.release();
            return WindowOutcome::Unsupported(WindowsUnsupported::NoHandle { release });
        }
        let serial = windows.next;
        windows.next += 1;
        windows.ever += request.bytes as u64;
        let WindowRequest { ptr, bytes, flags } = *request;
        windows.live.push(Live { serial, ptr, bytes, flags, cell: cell.clone() });
        let communicator = Arc::downgrade(shared);
        WindowOutcome::Registered(Window { communicator, serial, ptr, bytes, cell })
    };
    requests.iter().zip(cells).map(take).collect()
}
