//! Symmetric windows: which communicators can have them, and what became of a request.
//!
//! NCCL's own answer does not tell: on a communicator without symmetric memory, 2.27 and 2.28 answer success and a
//! handle that stands for a local registration only, later releases success and null. So the outcome is decided
//! by facts that all members can agree on before the call, and by the handle afterwards.

mod peers;
mod request;
mod support;

use std::{
    any::Any,
    fmt, ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicPtr, Ordering},
    },
};

use cuda_driver::DevicePtr;
use nccl_sys::{Version, ncclWindow_t, ncclWindow_vidmem};

use self::request::check_requests;
pub use self::{
    request::{WindowFlags, WindowRequest, WindowRequestError},
    support::{WindowFacts, WindowsUnsupported},
};
use super::{
    Communicator, Result,
    call::call,
    group,
    shared::{Serving, Shared},
};
use crate::store::Deadline;

/// From this release on, the symmetric addresses of a deregistered window are used again.
const ADDRESSES_COME_BACK: Version = Version::new(2, 28, 0);

/// A window's handle, written by NCCL at a time of its choosing, so it stays where it is until the communicator
/// is gone.
pub(crate) type Cell = Arc<AtomicPtr<ncclWindow_vidmem>>;

/// What a communicator remembers of its windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    next: u64,
    /// Bytes of all windows that there ever were.
    ever: u64,
    live: Vec<Live>,
    /// Every cell that NCCL was ever given.
    cells: Vec<Cell>,
    /// The memory under the windows, for who asked that it be kept.
    pub(crate) kept: Vec<Arc<dyn Any + Send + Sync>>,
}

/// A window that is registered.
#[derive(Debug)]
struct Live {
    serial: u64,
    ptr: DevicePtr,
    bytes: usize,
    flags: WindowFlags,
    cell: Cell,
}

impl Windows {
    fn ranges(&self) -> Vec<(u64, usize)> {
        self.live.iter().map(|window| (window.ptr.0, window.bytes)).collect()
    }

    /// The symmetric window that `bytes` bytes at `address` lie in, and where in it they begin; of several the one that
    /// was registered last.
    pub(crate) fn handle(&self, address: u64, bytes: usize) -> Option<(ncclWindow_t, usize)> {
        let offset = |window: &Live| {
            let offset = usize::try_from(address.checked_sub(window.ptr.0)?).ok()?;
            let fits = offset.checked_add(bytes)? <= window.bytes;
            (fits && window.flags.contains(WindowFlags::SYMMETRIC)).then_some(offset)
        };
        let find = |window: &Live| Some((window.cell.load(Ordering::Acquire), offset(window)?));
        self.live.iter().rev().find_map(find)
    }
}

/// A registered window. It stays registered until [`Communicator::deregister_windows`], or until the communicator
/// is gone; dropping this value changes nothing, because deregistration must be in the same order on every rank.
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
    /// Where it starts.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of windows that were registered with the communicator before this one: equal on all ranks.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// NCCL's handle, for device code; valid while the window is registered, and null once it is deregistered.
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

/// What became of a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum WindowOutcome {
    /// The memory is a window.
    Registered(Window),
    /// The communicator has no windows; everything else works.
    Unsupported(WindowsUnsupported),
}

impl WindowOutcome {
    /// The window, if there is one.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Self::Registered(window) => Some(window),
            Self::Unsupported(_) => None,
        }
    }
}

impl Communicator {
    /// Whether this communicator can have windows: [`WindowFacts::decide`] with the facts of its configuration.
    ///
    /// # Errors
    /// The reason why not.
    pub fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        let shared = self.shared();
        self.config().window_facts.decide(&shared.nccl, shared.context.driver().version(), shared.place.size)
    }

    /// How many bytes the communicator's windows take of its symmetric address space, which is as large as the largest
    /// member's device memory, rounded up to 4 GiB. Before 2.28, NCCL does not use the addresses of deregistered windows
    /// again: those count too.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        let shared = self.shared();
        let windows = shared.windows();
        let live = windows.live.iter().map(|window| window.bytes as u64).sum();
        if shared.nccl.release() < ADDRESSES_COME_BACK { windows.ever } else { live }
    }

    /// Whether the `bytes` at `ptr` lie in one range that is [registered](Self::register) with the communicator.
    #[must_use]
    pub fn is_registered(&self, ptr: DevicePtr, bytes: u64) -> bool {
        self.shared().registry.covers(ptr.0, bytes)
    }

    /// Keeps `memory` until the communicator is gone: for memory that its windows reach, so that no window outlives
    /// what it shows.
    pub fn keep(&self, memory: Arc<dyn Any + Send + Sync>) {
        let kept = &mut self.shared().windows().kept;
        if !kept.iter().any(|other| Arc::ptr_eq(other, &memory)) {
            kept.push(memory);
        }
    }

    /// Checks what this rank can check alone of requests that are about to be
    /// [registered](Self::register_windows): their alignment, and that no byte is to be of two windows. Local; for who
    /// agrees with the other ranks first, so that all of them hear of it while nothing has begun.
    ///
    /// # Errors
    /// [`WindowRequestError`], with which request it is.
    pub fn check_windows(&self, requests: &[WindowRequest]) -> std::result::Result<(), WindowRequestError> {
        let ranges = self.shared().windows().ranges();
        check_requests(requests, &ranges, self.nccl().release())
    }

    /// Registers windows, in the order of `requests`, in one NCCL group on the service thread. Collective: every
    /// rank makes the call with as many requests, of the same sizes, in the same order; NCCL itself checks none of
    /// that and waits for ever, so agree first (symm-mem's commit does).
    ///
    /// Where the communicator cannot have windows, no call is made and every outcome says why. NCCL maps the whole
    /// allocation under each request into the other members; the allocation's handle must be exportable.
    ///
    /// Not to be called while a stream of the device captures, or while collectives of this communicator are
    /// enqueued that wait for a member which has not yet come here.
    ///
    /// # Errors
    /// - [`WindowRequest`](super::CommError::WindowRequest), before anything was registered;
    /// - [`DeadlineExceeded`](super::CommError::DeadlineExceeded) when some rank did not come in time, and
    ///   [`Nccl`](super::CommError::Nccl): the communicator is poisoned, because a half-done registration cannot be
    ///   undone.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped where it is, until the windows are deregistered or the communicator
    /// is gone; and on every rank so, because the others reach it.
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

    /// Deregisters windows, in the order given, on the service thread. Every rank does so in the same order, when
    /// no work of any rank that touches them is outstanding and no graph that uses them is alive.
    ///
    /// # Errors
    /// [`DeadlineExceeded`](super::CommError::DeadlineExceeded) and [`Nccl`](super::CommError::Nccl) (the
    /// communicator is poisoned then), and [`Closed`](super::CommError::Closed). A window of another communicator is
    /// a [`WindowRequest`](super::CommError::WindowRequest).
    #[doc(alias = "ncclCommWindowDeregister")]
    pub fn deregister_windows(&self, windows: Vec<Window>, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommWindowDeregister";
        group::refuse_inside(CALL)?;
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
            for window in windows {
                // SAFETY: the communicator is alive while this call is inside; the handle is one that it gave and
                // that leaves the live list in the same step.
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

/// [`Communicator::register_windows`] for a thread that drives several ranks, or several groups of one rank: the
/// registrations run side by side, each in one NCCL group on its communicator's service thread, so none waits for
/// one that has not begun. One result for each communicator, in the order given.
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

/// Registrations on their way.
struct Begun {
    cells: Vec<Cell>,
    serving: Serving<()>,
}

/// Checks the requests and hands them to the service thread.
fn begin(communicator: &Communicator, requests: &[WindowRequest]) -> Result<Begun> {
    const CALL: &str = "ncclCommWindowRegister";
    group::refuse_inside(CALL)?;
    let shared = communicator.shared();
    communicator.check_windows(requests)?;
    let cells: Vec<Cell> = requests.iter().map(|_| Cell::default()).collect();
    shared.windows().cells.extend(cells.iter().cloned());
    let waiting_for = format!("the other ranks to register {} windows in the same order", requests.len());
    let (requests, job_cells) = (requests.to_vec(), cells.clone());
    let serving =
        communicator.begin(CALL, waiting_for, move |shared| register(shared, &requests, &job_cells));
    Ok(Begun { cells, serving })
}

/// The registrations in one NCCL group; runs on the service thread.
fn register(shared: &Shared, requests: &[WindowRequest], cells: &[Cell]) -> Result<()> {
    let (nccl, name) = (&shared.nccl, shared.name());
    // SAFETY: takes nothing.
    unsafe { call!(nccl, name, ncclGroupStart()) }?;
    let queued = requests.iter().zip(cells).try_for_each(|(request, cell)| {
        let buffer = request.ptr.0 as *mut std::ffi::c_void;
        let flags = request.flags.bits().cast_signed();
        // SAFETY: the communicator is alive while this call is inside; the memory is alive by the contract of
        // `register_windows`; the cell stays where it is until the communicator is gone.
        unsafe {
            call!(
                nccl,
                name,
                ncclCommWindowRegister(shared.raw(), buffer, request.bytes, cell.as_ptr(), flags)
            )
        }
    });
    // SAFETY: closes what was opened above, also after a failure.
    let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
    queued.and(ended)
}

/// What NCCL's handles mean on a communicator that can have windows.
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
