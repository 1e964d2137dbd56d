//! Aborts communicators from any thread.
//!
//! From NCCL 2.22 on an abort has two halves. `ncclCommAbort` inside a group raises the abort flags, at which blocked
//! calls and kernels give up. The end of the group frees the memory. Between the two halves this module waits until no
//! thread is inside NCCL with one of the communicators. The flags of all communicators are raised before the first is
//! freed, and one communicator is freed at a time. Before 2.22 `ncclCommAbort` frees at once, so every thread must have
//! left NCCL first. A thread that is blocked for ever then cannot be helped, and the communicator is leaked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nccl_sys::ncclComm_t;

use super::{
    CommError, Result,
    call::call,
    open_group, reaper,
    service::{Force, Listener, Service, Ticket},
    shared::Shared,
    turn::FREEING,
};
use crate::store::Deadline;

/// Limit for calls that do not block to return when a communicator ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Interval between checks for a handle that NCCL has yet to write.
const LOOK: Duration = Duration::from_millis(1);

/// Aborts a communicator from any thread, also while its owner is blocked inside NCCL.
#[derive(Debug, Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

impl AbortHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Calls `listener` when the communicator is aborted, by any thread; at once if it has ended already.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        self.shared.guard.tell(listener);
    }

    /// Removes `listener`.
    pub(crate) fn tell_no_more(&self, listener: &Arc<Listener>) {
        self.shared.guard.tell_no_more(listener);
    }

    /// Returns true if both handles are of one communicator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns true if the communicator is being destroyed or aborted, or is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.guard.is_closed()
    }

    /// Ends the waits for the destruction of a communicator whose `ncclCommDestroy` is blocked. That call frees the
    /// communicator, so an abort is not possible then.
    pub(crate) fn interrupt(&self) {
        self.shared.guard.interrupt(Force::Aborted);
    }

    /// Aborts the communicator. Blocked calls return with an error, further calls are refused, its work on the device
    /// stops, and its memory is freed once no thread is inside NCCL. A caller that waits for a call on the service
    /// thread gets its error at once. A second abort, or an abort during a destruction, only waits until no thread is
    /// inside.
    ///
    /// Blocked calls return within milliseconds. Freeing takes longer: NCCL's service thread notices the flag when a
    /// poll of 500 ms ends, and polls once more (`ncclProxyService` in 2.28.9). A communicator without connections is
    /// therefore freed in 0.5 to 1 s, and only once the last rank of this process aborts it.
    ///
    /// Every rank must abort. Captured graphs that use the communicator must be destroyed first, or freeing waits for
    /// them.
    ///
    /// # Errors
    /// - [`CommError::Leaked`] when a call did not return from NCCL by the deadline. Below 2.22 this happens to a
    ///   communicator whose owner is blocked: that release has no safe way out.
    /// - [`CommError::Adopted`] for a communicator that was [adopted](super::Communicator::adopt). NCCL is not called:
    ///   further calls are refused and waits for the service thread end, but blocked calls and work on the device stay
    ///   blocked.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self, deadline: Deadline) -> Result<()> {
        Self::abort_together(std::slice::from_ref(self), deadline).pop().unwrap_or(Ok(()))
    }

    /// [`abort`](Self::abort) for several communicators of the process. All flags are raised before any communicator
    /// is freed, so no communicator waits for another. Returns one result each, in the order given.
    pub fn abort_together(handles: &[Self], deadline: Deadline) -> Vec<Result<()>> {
        let shared: Vec<_> = handles.iter().map(|handle| handle.shared.clone()).collect();
        together(&shared, Force::Aborted, deadline)
    }

    /// Returns the asynchronous error, if any; see [`Communicator::async_error`](super::Communicator::async_error).
    ///
    /// # Errors
    /// Those of [`Communicator::async_error`](super::Communicator::async_error).
    pub fn async_error(&self) -> Result<()> {
        self.shared.async_error()
    }

    /// Returns the communicator's name in errors.
    #[must_use]
    pub fn communicator(&self) -> &str {
        self.shared.name()
    }
}

/// Returns the error of a communicator that the call `held` keeps from being freed, and records it in the guard as the
/// reason.
pub(crate) fn leaked(shared: &Shared, held: &str) -> CommError {
    let why = format!("{held} did not return from NCCL {} in time", shared.nccl.release());
    shared.guard.set_ending(&format!("leaked: {why}"));
    CommError::Leaked { communicator: shared.name().into(), why }
}

/// Aborts communicators. Returns one result each.
///
/// Each communicator has its own thread and its own NCCL group, so one that cannot be freed does not hold up the
/// others.
pub(crate) fn together(communicators: &[Arc<Shared>], force: Force, deadline: Deadline) -> Vec<Result<()>> {
    if open_group::is_open() {
        return communicators.iter().map(|_| open_group::refuse_inside("ncclCommAbort")).collect();
    }
    let raising: Vec<_> = communicators
        .iter()
        .map(|shared| {
            if let Err(refused) = shared.refuse_adopted("ncclCommAbort") {
                shared.guard.poison("it was to be aborted");
                shared.guard.interrupt(force);
                return Some(Err(refused));
            }
            // A thread that finds the guard closed comes second and leaves the abort to the first.
            let idle = shared.guard.close_unmade(force.how());
            let first = !idle && shared.guard.close(force.how());
            shared.guard.interrupt(force);
            first.then(|| Raising::begin(shared))
        })
        .collect();
    let raised: Vec<_> = communicators
        .iter()
        .zip(raising)
        .map(|(shared, raising)| Some(raising?.and_then(|raising| raising.finish(shared, deadline))))
        .collect();
    let freeing: Vec<_> = communicators
        .iter()
        .zip(raised)
        .map(|(shared, raised)| Some(raised?.map(|raised| raised.free(shared, deadline))))
        .collect();
    // The threads give up at the deadline by themselves; any time beyond it is spent in NCCL's own freeing.
    let grace = Deadline::after(deadline.remaining().saturating_add(Duration::from_millis(500)));
    let mut results = Vec::new();
    for (shared, freeing) in communicators.iter().zip(freeing) {
        results.push(match freeing {
            None => shared.guard.wait_empty(deadline).map_err(|held| leaked(shared, held)),
            Some(Ok(ticket)) => ticket.wait(grace).unwrap_or_else(|_| Err(leaked(shared, "ncclCommAbort"))),
            Some(Err(refused @ CommError::Adopted { .. })) => Err(refused),
            Some(Err(error)) => {
                keep(shared);
                Err(error)
            }
        });
    }
    results
}

/// A communicator whose abort flags are being raised. It has its own thread because its NCCL group may stay open.
struct Raising {
    thread: Service,
    flags: Ticket<Result<Flags>>,
}

/// Result of raising the flags. `None` if that has to wait for the handle, or for callers to leave NCCL.
type Flags = Option<Result<()>>;

/// A communicator whose abort flags are raised.
struct Raised {
    thread: Service,
    flags: Flags,
}

impl Raising {
    fn begin(shared: &Arc<Shared>) -> Result<Self> {
        let thread = Service::start(shared.name())?;
        let shared = shared.clone();
        let flags = thread.submit(move || {
            if !shared.nccl.aborts_in_groups() {
                return Ok(None);
            }
            // SAFETY: the function has no arguments.
            unsafe { call!(&shared.nccl, shared.name(), ncclGroupStart()) }?;
            let handle = shared.raw();
            Ok((!handle.is_null()).then(|| raise(&shared, handle)))
        });
        Ok(Self { thread, flags })
    }

    fn finish(self, shared: &Shared, deadline: Deadline) -> Result<Raised> {
        let flags = self.flags.wait(deadline).unwrap_or_else(|_| Err(leaked(shared, "ncclCommAbort")))?;
        Ok(Raised { thread: self.thread, flags })
    }
}

impl Raised {
    fn free(self, shared: &Arc<Shared>, deadline: Deadline) -> Ticket<Result<()>> {
        let (shared, flags) = (shared.clone(), self.flags);
        self.thread.submit(move || {
            free(&shared, flags, deadline)?;
            shared.let_go().iter().for_each(reaper::take);
            Ok(())
        })
    }
}

/// Frees a communicator whose guard is closed, on the thread that raised its flags.
fn free(shared: &Arc<Shared>, flags: Flags, deadline: Deadline) -> Result<()> {
    let (nccl, name) = (&shared.nccl, shared.name());
    if !nccl.aborts_in_groups() {
        empty(shared, deadline)?;
        let _turn = FREEING.take(deadline);
        return raise(shared, shared.raw());
    }
    let raised = flags.unwrap_or_else(|| raise(shared, made(shared, deadline)));
    // `ncclGroupEnd` frees the communicator. It must not be called while a thread is inside; the group then stays
    // open, on a thread that makes no further call.
    empty(shared, deadline)?;
    let _turn = FREEING.take(deadline);
    // SAFETY: no thread is inside, and the guard is closed.
    let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
    raised.and(ended).inspect_err(|_| keep(shared))
}

/// Waits for NCCL's handle, also while another thread is making the communicator. NCCL writes the handle some time
/// before the making call returns (it waits for other ranks there) and does not report the write, so this polls.
/// Returns null if the handle was not written by the deadline.
fn made(shared: &Shared, deadline: Deadline) -> ncclComm_t {
    loop {
        let handle = shared.raw();
        if !handle.is_null() || deadline.expired() {
            return handle;
        }
        let look = Deadline::after(LOOK.min(deadline.remaining()));
        if shared.guard.wait_empty(look).is_ok() {
            // A call that has returned writes no more.
            return shared.raw();
        }
    }
}

/// Waits until no thread is inside, or leaks the communicator.
fn empty(shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
    shared.guard.wait_empty(deadline).map_err(|held| {
        keep(shared);
        leaked(shared, held)
    })
}

/// Calls `ncclCommAbort`. Does nothing if NCCL has not begun to build the communicator.
fn raise(shared: &Shared, handle: ncclComm_t) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the guard is closed, and closes for one abort or destruction only, so the handle is alive. The function
    // may be called while other threads are inside.
    let abort = || unsafe { call!(&shared.nccl, shared.name(), ncclCommAbort(handle)) };
    shared.context.with_current(abort)?
}

/// Memory that NCCL may still write to. The static keeps it reachable, so leak checkers do not report it.
static KEPT: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

/// Keeps everything that NCCL may still write to for the rest of the process.
pub(super) fn keep(shared: &Arc<Shared>) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(shared.clone());
}
