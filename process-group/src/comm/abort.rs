//! Aborts communicators from any thread.
//!
//! From NCCL 2.22 on, an abort has two steps. `ncclCommAbort`, called inside an NCCL group, sets the abort flags.
//! Blocked calls and kernels see the flags and give up. `ncclGroupEnd` then frees the memory. Between the two steps
//! this module waits until no thread is inside NCCL with the communicator. The flags of all communicators are set
//! before the first communicator is freed, and one communicator is freed at a time.
//!
//! Before 2.22, `ncclCommAbort` frees at once, so every thread must have left NCCL first. If a thread stays blocked in
//! NCCL, the communicator is leaked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nccl_sys::ncclComm_t;

use super::{
    CommError, Result,
    call::call,
    call_guard::Unfreed,
    open_group, reaper,
    service::{Force, Listener, Service, Ticket},
    shared::Shared,
    turn::FREEING,
};
use crate::store::Deadline;

/// How long aborts and deregistrations that run in the background wait. Also how long a destruction waits for
/// non-blocking calls to leave NCCL.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which [`made`] checks whether NCCL has written the handle.
const LOOK: Duration = Duration::from_millis(1);

/// Aborts a communicator from any thread, even while the communicator's owner is blocked inside NCCL.
#[derive(Debug, Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

impl AbortHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Calls `listener` on every abort of the communicator, by any thread. Calls `listener` at once if the communicator
    /// is being destroyed or aborted, or has ended.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        self.shared.guard.tell(listener);
    }

    /// Stops calling `listener` on aborts.
    pub(crate) fn tell_no_more(&self, listener: &Arc<Listener>) {
        self.shared.guard.tell_no_more(listener);
    }

    /// Returns true if both handles abort the same communicator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns true if the communicator is being destroyed or aborted, or has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.guard.is_closed()
    }

    /// Notifies the abort listeners without an abort. A caller that waits for a blocked `ncclCommDestroy` then stops
    /// waiting. An abort is not possible in that state, because `ncclCommDestroy` frees the communicator.
    pub(crate) fn interrupt(&self) {
        self.shared.guard.interrupt(Force::Aborted);
    }

    /// Aborts the communicator. Blocked calls return with an error, further calls are refused, and the communicator's
    /// work on the device stops. The communicator's memory is freed once no thread is inside NCCL with the
    /// communicator. A caller that waits for a call on the service thread returns with an error at once, even if that
    /// call stays blocked. A second abort, or an abort during a destruction, only waits until the
    /// first one, or the destruction, has ended, and fails if that failed.
    ///
    /// Blocked calls return within milliseconds. Freeing takes longer: NCCL's proxy service thread checks the flag only
    /// when its 500 ms poll ends, and then polls once more (`ncclProxyService` in 2.28.9). A communicator without
    /// connections is therefore freed in 0.5 to 1 s. If several ranks of the communicator are in this process, none is
    /// freed before the last of them is aborted: abort such ranks by one call of [`abort_together`](Self::abort_together),
    /// or on one thread each.
    ///
    /// Every rank must abort. Destroy captured graphs that use the communicator first: freeing waits until they are
    /// destroyed.
    ///
    /// # Errors
    /// - [`CommError::Leaked`] when a call did not return from NCCL by the deadline. Below 2.22 this happens if the
    ///   communicator's owner is blocked in NCCL: these releases cannot unblock such a call.
    /// - [`CommError::Adopted`] for a communicator that was [adopted](super::Communicator::adopt). NCCL is not called.
    ///   Further calls are refused, and waits for calls on the service thread end, but calls and device work that are
    ///   blocked in NCCL stay blocked.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self, deadline: Deadline) -> Result<()> {
        Self::abort_together(std::slice::from_ref(self), deadline).pop().unwrap_or(Ok(()))
    }

    /// [`abort`](Self::abort) for several communicators of the process. The abort flags of all communicators are set
    /// before any communicator is freed, so no communicator waits for another. Returns one result for each handle, in
    /// the order of `handles`.
    pub fn abort_together(handles: &[Self], deadline: Deadline) -> Vec<Result<()>> {
        let shared: Vec<_> = handles.iter().map(|handle| handle.shared.clone()).collect();
        together(&shared, Force::Aborted, deadline)
    }

    /// Fails with the communicator's asynchronous error, if there is one; see
    /// [`Communicator::async_error`](super::Communicator::async_error).
    ///
    /// # Errors
    /// Those of [`Communicator::async_error`](super::Communicator::async_error).
    pub fn async_error(&self) -> Result<()> {
        self.shared.async_error()
    }

    /// Returns the communicator's name as it appears in errors.
    #[must_use]
    pub fn communicator(&self) -> &str {
        self.shared.name()
    }
}

/// Returns the error of an abort of a communicator that another thread was to free.
fn still_there(shared: &Shared, unfreed: Unfreed) -> CommError {
    let why = match unfreed {
        Unfreed::Held(held) => not_returned(shared, held),
        Unfreed::Failed(why) => why,
    };
    CommError::Leaked { communicator: shared.name().into(), why }
}

/// Returns the [`CommError::Leaked`] of a communicator that cannot be freed because the call `held` did not return.
/// Records the same reason in the communicator's call guard.
pub(crate) fn leaked(shared: &Shared, held: &str) -> CommError {
    let why = not_returned(shared, held);
    shared.guard.set_ending(&format!("leaked: {why}"));
    CommError::Leaked { communicator: shared.name().into(), why }
}

fn not_returned(shared: &Shared, held: &str) -> String {
    format!("{held} did not return from NCCL {} in time", shared.nccl.release())
}

/// Aborts `communicators` and calls their abort listeners with `force`. Returns one result for each communicator, in
/// the given order.
///
/// Each communicator has its own thread and its own NCCL group, so a communicator that cannot be freed does not delay
/// the others.
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
            // If the guard is closed already, another thread aborts or destroys the communicator. This thread only
            // waits for it then.
            let idle = shared.guard.close_unmade(force.how());
            let first = !idle && shared.guard.close(force.how(), Some("ncclCommAbort"));
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
        .map(|(shared, raised)| Some(raised?.map(|raised| raised.free(shared, force.how(), deadline))))
        .collect();
    // The threads stop waiting at the deadline. After the deadline they can only be inside NCCL's own freeing, which
    // gets 500 ms more.
    let grace = Deadline::after(deadline.remaining().saturating_add(Duration::from_millis(500)));
    let mut results = Vec::new();
    for (shared, freeing) in communicators.iter().zip(freeing) {
        results.push(match freeing {
            None => shared.guard.wait_freed(grace).map_err(|unfreed| still_there(shared, unfreed)),
            Some(Ok(ticket)) => ticket.wait(grace).unwrap_or_else(|_| Err(leaked(shared, "ncclCommAbort"))),
            Some(Err(refused @ CommError::Adopted { .. })) => Err(refused),
            Some(Err(error)) => {
                keep(shared);
                shared.guard.set_freed(Err(&error));
                Err(error)
            }
        });
    }
    results
}

/// A communicator whose abort flags are being set, on a thread of its own. The thread is not shared because its NCCL
/// group may stay open for ever.
struct Raising {
    thread: Service,
    flags: Ticket<Result<Flags>>,
}

/// Result of setting the abort flags. `None` if they could not be set yet: NCCL has not written the handle, or the
/// release is below 2.22 and threads have to leave NCCL first.
type Flags = Option<Result<()>>;

/// A communicator for which the first step of the abort, setting the flags, has been tried.
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
    fn free(self, shared: &Arc<Shared>, how: &'static str, deadline: Deadline) -> Ticket<Result<()>> {
        let (shared, flags) = (shared.clone(), self.flags);
        self.thread.submit(move || {
            let freed = free(&shared, flags, deadline);
            if freed.is_ok() {
                // The caller may have stopped waiting, and recorded a leak.
                shared.guard.set_ending(how);
            }
            shared.guard.set_freed(freed.as_ref().copied());
            freed?;
            shared.let_go().iter().for_each(reaper::take);
            Ok(())
        })
    }
}

/// Frees a communicator whose call guard is closed. Runs on the thread that set the abort flags.
fn free(shared: &Arc<Shared>, flags: Flags, deadline: Deadline) -> Result<()> {
    let (nccl, name) = (&shared.nccl, shared.name());
    if !nccl.aborts_in_groups() {
        empty(shared, deadline)?;
        let _turn = FREEING.take(deadline);
        return raise(shared, shared.raw());
    }
    let raised = flags.unwrap_or_else(|| raise(shared, made(shared, deadline)));
    // `ncclGroupEnd` frees the communicator, so it must not be called while another thread is inside NCCL with the
    // communicator. If `empty` fails, the group stays open on this thread, which makes no further call.
    empty(shared, deadline)?;
    let _turn = FREEING.take(deadline);
    // SAFETY: no other thread is inside NCCL with the communicator, and the closed guard admits none.
    let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
    raised.and(ended).inspect_err(|_| keep(shared))
}

/// Waits until NCCL has written the communicator's handle, and returns the handle. Another thread may be in the call
/// that makes the communicator. That call writes the handle without notice and then waits for other ranks, so this
/// function polls. Returns null if the deadline passes first, or if that call has returned without writing a handle.
fn made(shared: &Shared, deadline: Deadline) -> ncclComm_t {
    loop {
        let handle = shared.raw();
        if !handle.is_null() || deadline.expired() {
            return handle;
        }
        let look = Deadline::after(LOOK.min(deadline.remaining()));
        if shared.guard.wait_empty(look).is_ok() {
            // No call is inside NCCL any more, so no handle will be written later.
            return shared.raw();
        }
    }
}

/// Waits until no thread is inside NCCL with the communicator. Leaks the communicator if the deadline passes.
fn empty(shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
    shared.guard.wait_empty(deadline).map_err(|held| {
        keep(shared);
        leaked(shared, held)
    })
}

/// Calls `ncclCommAbort`. Does nothing if `handle` is null, because NCCL has not begun to build the communicator then.
fn raise(shared: &Shared, handle: ncclComm_t) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the guard closes for one abort or destruction only, so nothing else has freed the handle. From 2.22 on,
    // `ncclCommAbort` may be called while other threads are inside NCCL; below 2.22, no other thread is inside.
    let abort = || unsafe { call!(&shared.nccl, shared.name(), ncclCommAbort(handle)) };
    shared.context.with_current(abort)?
}

/// Leaked communicators, to whose memory NCCL may still write. The static keeps this memory reachable, so leak checkers
/// do not report it.
static KEPT: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

/// Leaks a communicator: keeps the memory that NCCL may still write to until the process ends.
pub(super) fn keep(shared: &Arc<Shared>) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(shared.clone());
}
