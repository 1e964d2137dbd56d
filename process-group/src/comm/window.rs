//! Symmetric windows: which communicators can have them, and what became of a request.
//!
//! NCCL's own answer does not tell: on a communicator without symmetric memory, 2.27 and 2.28 answer success and a
//! handle that stands for a local registration only, later releases success and null. So the outcome is decided
//! by facts that all members can agree on before the call, and by the handle afterwards.

use std::{
    any::Any,
    env, fmt, ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicPtr, Ordering},
    },
};

use cuda_driver::{DevicePtr, sys};
use nccl_sys::{Feature, Missing, Version, ncclWindow_t, ncclWindow_vidmem};

use super::{
    CommError, Communicator, Nccl, Result,
    call::call,
    communicator::{Serving, Shared},
    group,
};
use crate::store::Deadline;

bitflags::bitflags! {
    /// What a window is for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WindowFlags: u32 {
        /// Collectives, copy engines and one-sided calls may use it: the same offsets on every rank.
        #[doc(alias = "NCCL_WIN_COLL_SYMMETRIC")]
        const SYMMETRIC = nccl_sys::NCCL_WIN_COLL_SYMMETRIC;
    }
}

impl Default for WindowFlags {
    fn default() -> Self {
        Self::SYMMETRIC
    }
}

/// What decides whether a communicator can have windows, besides the release and the driver. `None`: not known.
///
/// Windows are collective, so every member must come to the same answer: put facts here that all members share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowFacts {
    /// Whether all members are on one host.
    pub one_host: Option<bool>,
    /// Whether every member's device can reach every other member's memory.
    pub peer_access: Option<bool>,
    /// Whether every member's environment leaves windows on (`NCCL_WIN_ENABLE` is not 0).
    pub window_enable: Option<bool>,
    /// Whether every member's environment leaves NCCL's virtual memory on (`NCCL_CUMEM_ENABLE` is not 0).
    pub cumem_enable: Option<bool>,
}

impl WindowFacts {
    /// What this process's environment says; the rest stays unknown.
    #[must_use]
    pub fn from_environment() -> Self {
        let on = |name| env::var(name).ok().is_none_or(|value| value.trim() != "0");
        Self {
            one_host: None,
            peer_access: None,
            window_enable: Some(on("NCCL_WIN_ENABLE")),
            cumem_enable: Some(on("NCCL_CUMEM_ENABLE")),
        }
    }

    /// These facts, and the environment's where there are none.
    #[must_use]
    pub fn or_environment(self) -> Self {
        let here = Self::from_environment();
        Self {
            window_enable: self.window_enable.or(here.window_enable),
            cumem_enable: self.cumem_enable.or(here.cumem_enable),
            ..self
        }
    }

    /// Whether a communicator of `size` ranks can have windows, with a driver of version `driver` and the release
    /// and functions that `nccl` has. The same facts give the same answer on every rank.
    ///
    /// An unknown fact counts as good from 2.29 on, where NCCL itself answers null; before that nothing would
    /// tell, and the answer is no.
    ///
    /// # Errors
    /// The reason why not.
    pub fn decide(&self, nccl: &Nccl, driver: sys::Version, size: usize) -> Result<(), WindowsUnsupported> {
        nccl.api().require(Feature::WINDOWS)?;
        if size < 2 {
            return Err(WindowsUnsupported::Alone);
        }
        let release = nccl.release();
        let answers_null = release >= NULL_WHEN_UNSUPPORTED;
        for (variable, on) in
            [("NCCL_WIN_ENABLE", self.window_enable), ("NCCL_CUMEM_ENABLE", self.cumem_enable)]
        {
            if on == Some(false) {
                return Err(WindowsUnsupported::Disabled { variable });
            }
        }
        if driver < sys::Version::new(12, 0) {
            return Err(WindowsUnsupported::Driver { found: driver });
        }
        match self.peer_access {
            Some(true) => {}
            Some(false) => return Err(WindowsUnsupported::NoPeerAccess),
            None if answers_null => {}
            None => {
                return Err(WindowsUnsupported::Unknown { fact: "peer access between all devices", release });
            }
        }
        match self.one_host {
            Some(true) => Ok(()),
            _ if answers_null => Ok(()),
            Some(false) => Err(WindowsUnsupported::SeveralHosts { release }),
            None => Err(WindowsUnsupported::Unknown { fact: "that all ranks are on one host", release }),
        }
    }
}

/// From here on NCCL answers null where a communicator cannot have windows.
const NULL_WHEN_UNSUPPORTED: Version = Version::new(2, 29, 0);

/// Before this, a window is a whole allocation.
const SUBRANGES: Version = Version::new(2, 28, 0);

/// Why a communicator has no windows. The plain path works all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowsUnsupported {
    /// The release has none, or does them wrong.
    #[error(transparent)]
    Release(#[from] Missing),
    /// A communicator of one rank copies, and needs none.
    #[error("a communicator of one rank needs no windows")]
    Alone,
    /// An environment variable forbids what windows need.
    #[error("{variable} is 0 on a member")]
    Disabled {
        /// Which variable.
        variable: &'static str,
    },
    /// The driver cannot share virtual memory as NCCL needs it.
    #[error("windows need a driver of CUDA 12.0, but a member has {found}")]
    Driver {
        /// The driver's version.
        found: sys::Version,
    },
    /// Two members' devices cannot reach each other's memory.
    #[error("not every member's device can reach every other's memory directly")]
    NoPeerAccess,
    /// The members are on several hosts.
    #[error("the members are on several hosts, and NCCL {release} has windows on one host only")]
    SeveralHosts {
        /// The loaded release.
        release: Version,
    },
    /// Nobody said, and the release would not tell.
    #[error(
        "it is not known {fact}, and NCCL {release} answers success either way; state it in the configuration"
    )]
    Unknown {
        /// What is not known.
        fact: &'static str,
        /// The loaded release.
        release: Version,
    },
    /// NCCL answered success without a window.
    #[error(
        "NCCL {release} answered success without a window, so it cannot map the members' memory into each other"
    )]
    NoHandle {
        /// The loaded release.
        release: Version,
    },
}

/// Memory that is to become a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowRequest {
    /// Where it starts: at a multiple of 4096 bytes within its allocation; below 2.28 at the allocation's start.
    pub ptr: DevicePtr,
    /// Its length in bytes, the same on every rank below 2.30.7; below 2.28 a multiple of 2 MiB.
    pub bytes: usize,
    /// What it is for.
    pub flags: WindowFlags,
}

impl WindowRequest {
    /// A symmetric window over `bytes` bytes at `ptr`.
    #[must_use]
    pub fn symmetric(ptr: DevicePtr, bytes: usize) -> Self {
        Self { ptr, bytes, flags: WindowFlags::SYMMETRIC }
    }
}

/// A request that NCCL would refuse on this rank alone, leaving the others waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("window request {index} ({bytes} bytes at {address:#x}): {problem}")]
pub struct WindowRequestError {
    /// Its place among the requests.
    pub index: usize,
    /// Where it starts.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Checks requests against each other and against the ranges that are windows already.
pub(crate) fn check_requests(
    requests: &[WindowRequest],
    live: &[(u64, usize)],
    release: Version,
) -> Result<(), WindowRequestError> {
    let mut taken = live.to_vec();
    for (index, request) in requests.iter().enumerate() {
        let WindowRequest { ptr: DevicePtr(address), bytes, .. } = *request;
        let refuse = |problem: String| Err(WindowRequestError { index, address, bytes, problem });
        let (alignment, whole) = if release < SUBRANGES { (2 << 20, true) } else { (4096, false) };
        if address == 0 || bytes == 0 {
            return refuse("a window needs memory".into());
        }
        if address.checked_add(bytes as u64).is_none() {
            return refuse("it ends beyond the last address".into());
        }
        if !address.is_multiple_of(alignment) {
            return refuse(format!("NCCL {release} wants it to start at a multiple of {alignment} bytes"));
        }
        if whole && !(bytes as u64).is_multiple_of(alignment) {
            return refuse(format!("NCCL {release} wants its length to be a multiple of {alignment} bytes"));
        }
        let end = address + bytes as u64;
        if let Some((other, length)) = taken.iter().find(|(at, len)| address < at + *len as u64 && *at < end)
        {
            return refuse(format!(
                "it overlaps {length} bytes at {other:#x}, which are a window of this communicator or requested before; \
                 NCCL does not define what two windows over one byte do"
            ));
        }
        taken.push((address, bytes));
    }
    Ok(())
}

/// A window's handle, written by NCCL at a time of its choosing, so it stays where it is until the communicator
/// is gone.
pub(crate) type Cell = Arc<AtomicPtr<ncclWindow_vidmem>>;

/// What a communicator remembers of its windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    next: u64,
    live: Vec<(u64, DevicePtr, usize)>,
    /// Every cell that NCCL was ever given.
    cells: Vec<Cell>,
    /// The memory under the windows, for who asked that it be kept.
    pub(crate) kept: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Windows {
    fn ranges(&self) -> Vec<(u64, usize)> {
        self.live.iter().map(|(_, ptr, bytes)| (ptr.0, *bytes)).collect()
    }
}

/// A registered window. It stays registered until [`Communicator::deregister_windows`], or until the communicator
/// is gone; dropping this value changes nothing, because deregistration must be in the same order on every rank.
#[doc(alias = "ncclWindow_t")]
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

    /// NCCL's handle, for device code; valid while the window is registered.
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

    /// How many bytes of this rank's memory are windows of the communicator: what they take of its symmetric address
    /// space, which is as large as the largest member's device memory, rounded up to 4 GiB.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.shared().windows().live.iter().map(|(_, _, bytes)| *bytes as u64).sum()
    }

    /// Keeps `memory` until the communicator is gone: for memory that its windows reach, so that no window outlives
    /// what it shows.
    pub fn keep(&self, memory: Arc<dyn Any + Send + Sync>) {
        let kept = &mut self.shared().windows().kept;
        if !kept.iter().any(|other| Arc::ptr_eq(other, &memory)) {
            kept.push(memory);
        }
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
    /// - [`CommError::WindowRequest`], before anything was registered;
    /// - [`CommError::DeadlineExceeded`] when some rank did not come in time, and [`CommError::Nccl`]: the
    ///   communicator is poisoned, because a half-done registration cannot be undone.
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
    /// [`CommError::DeadlineExceeded`] and [`CommError::Nccl`] (the communicator is poisoned then), and
    /// [`CommError::Closed`]. A window of another communicator is a [`CommError::WindowRequest`].
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
                shared.windows().live.retain(|(serial, _, _)| *serial != window.serial);
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
struct Begun<'a> {
    cells: Vec<Cell>,
    serving: Serving<'a, ()>,
}

/// Checks the requests and hands them to the service thread.
fn begin<'a>(communicator: &'a Communicator, requests: &[WindowRequest]) -> Result<Begun<'a>> {
    const CALL: &str = "ncclCommWindowRegister";
    group::refuse_inside(CALL)?;
    let shared = communicator.shared();
    check_requests(requests, &shared.windows().ranges(), shared.nccl.release())?;
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
        windows.live.push((serial, request.ptr, request.bytes));
        let communicator = Arc::downgrade(shared);
        WindowOutcome::Registered(Window {
            communicator,
            serial,
            ptr: request.ptr,
            bytes: request.bytes,
            cell,
        })
    };
    requests.iter().zip(cells).map(take).collect()
}

impl From<WindowsUnsupported> for CommError {
    fn from(reason: WindowsUnsupported) -> Self {
        match reason {
            WindowsUnsupported::Release(missing) => missing.into(),
            other => Self::Setting { setting: "windows", problem: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Accepted requests are aligned, and no byte belongs to two of them.
        #[test]
        fn accepted_requests_are_disjoint(
            starts in prop::collection::vec((0u64..64, 0usize..9), 0..12), live in 0usize..12, old: bool,
        ) {
            let unit = if old { 2 << 20 } else { 4096 };
            let release = if old { Version::new(2, 27, 3) } else { Version::new(2, 28, 9) };
            let all: Vec<_> = starts.iter().map(|(at, n)| (at * unit, n * unit as usize)).collect();
            let (live, new) = all.split_at(live.min(all.len()));
            let requests: Vec<_> = new.iter().map(|(at, n)| WindowRequest::symmetric(DevicePtr(*at), *n)).collect();
            let meets = |a: &(u64, usize), b: &(u64, usize)| a.0 < b.0 + b.1 as u64 && b.0 < a.0 + a.1 as u64;
            let bad = new.iter().enumerate().any(|(i, a)| {
                a.0 == 0 || a.1 == 0 || live.iter().chain(&new[..i]).any(|b| meets(a, b))
            });
            prop_assert_eq!(check_requests(&requests, live, release).is_err(), bad);
        }
    }

    #[test]
    fn a_misaligned_request_is_named() {
        let requests = [
            WindowRequest::symmetric(DevicePtr(2 << 20), 2 << 20),
            WindowRequest::symmetric(DevicePtr(8 << 20), 4096),
        ];
        check_requests(&requests, &[], Version::new(2, 28, 9)).unwrap();
        let error = check_requests(&requests, &[], Version::new(2, 27, 5)).unwrap_err();
        assert_eq!(error.index, 1);
        assert!(error.to_string().contains("2.27.5 wants its length to be a multiple of 2097152"), "{error}");
    }
}
