//! Ending communicators by force, from any thread.
//!
//! From 2.22 on an abort has two halves: `ncclCommAbort` inside a group raises the flags at which blocked calls
//! and kernels give up, and the end of the group frees the memory. Between the two we wait until nobody is inside
//! NCCL with one of the communicators. All flags rise before the first is freed, and one is freed at a time. Before 2.22 the call frees at once, so everybody must be out first; who is
//! blocked for ever then cannot be helped, and the communicator is leaked.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nccl_sys::ncclComm_t;

use super::{
    CommError, Result,
    call::call,
    group,
    service::{Force, Listener, Service, Ticket},
    shared::Shared,
    turn::Turn,
};
use crate::store::Deadline;

/// How long the end of a communicator waits for calls that cannot block.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is asked whether a communicator that is being made has a handle by now.
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

    /// Tells `listener` when the communicator is aborted, whoever does it; at once if it has ended.
    pub(crate) fn tell(&self, listener: &Arc<Listener>) {
        self.shared.gate.tell(listener);
    }

    /// Tells `listener` no more.
    pub(crate) fn tell_no_more(&self, listener: &Arc<Listener>) {
        self.shared.gate.tell_no_more(listener);
    }

    /// Whether both are of one communicator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether it is being destroyed or aborted, or gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.gate.is_closed()
    }

    /// Lets go of those who wait for the destruction of a communicator that is blocked in it. NCCL frees the
    /// communicator there, so that it cannot be aborted.
    pub(crate) fn interrupt(&self) {
        self.shared.gate.interrupt(Force::Aborted);
    }

    /// Aborts the communicator: calls that are blocked in it return with an error, further ones are refused, its
    /// work on the device gives up, and its memory is freed once nobody is inside. Who waits for a call that the
    /// communicator's own thread makes is told at once. A second abort, and one during a destruction, only waits until
    /// nobody is inside.
    ///
    /// Calls come out within milliseconds. Freeing takes longer: NCCL's service thread notices the flag when a poll of
    /// 500 ms ends, and polls once more (`ncclProxyService` in 2.28.9), so that a communicator without connections is
    /// freed in 0.5 to 1 s, and as soon as the last rank of this process aborts it.
    ///
    /// Every rank must abort. Captured graphs that use the communicator must be gone, or freeing waits for them.
    ///
    /// # Errors
    /// [`CommError::Leaked`] when a call did not come out of NCCL by the deadline. Below 2.22 that is what happens
    /// to a communicator whose owner is blocked: that release has no safe way out.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self, deadline: Deadline) -> Result<()> {
        Self::abort_together(std::slice::from_ref(self), deadline).pop().unwrap_or(Ok(()))
    }

    /// [`abort`](Self::abort) for several communicators of the process: all flags rise at once, so none waits for
    /// another. One result each, in the order given.
    pub fn abort_together(handles: &[Self], deadline: Deadline) -> Vec<Result<()>> {
        let shared: Vec<_> = handles.iter().map(|handle| handle.shared.clone()).collect();
        together(&shared, Force::Aborted, deadline)
    }

    /// What went wrong in the background; see [`Communicator::async_error`](super::Communicator::async_error).
    ///
    /// # Errors
    /// Those of [`Communicator::async_error`](super::Communicator::async_error).
    pub fn async_error(&self) -> Result<()> {
        self.shared.async_error()
    }

    /// How errors call the communicator.
    #[must_use]
    pub fn communicator(&self) -> &str {
        self.shared.name()
    }
}

/// The error of a communicator that `held` keeps from being freed; its gate says so from now on.
pub(crate) fn leaked(shared: &Shared, held: &str) -> CommError {
    let why = format!("{held} did not return from NCCL {} in time", shared.nccl.release());
    shared.gate.set_ending(&format!("leaked: {why}"));
    CommError::Leaked { communicator: shared.name().into(), why }
}

/// Ends communicators by force. One result each.
///
/// Each has a thread and an NCCL group of its own: one that cannot be freed keeps none of the others.
pub(crate) fn together(communicators: &[Arc<Shared>], force: Force, deadline: Deadline) -> Vec<Result<()>> {
    if group::is_open() {
        return communicators.iter().map(|_| group::refuse_inside("ncclCommAbort")).collect();
    }
    let raising: Vec<_> = communicators
        .iter()
        .map(|shared| {
            // Who finds the gate closed comes second, and leaves the work to the first.
            let idle = shared.gate.close_unmade(force.how());
            let first = !idle && shared.gate.close(force.how());
            shared.gate.interrupt(force);
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
    // The threads give up at the deadline by themselves; what exceeds it is NCCL's own freeing.
    let grace = Deadline::after(deadline.remaining().saturating_add(Duration::from_millis(500)));
    let mut results = Vec::new();
    for (shared, freeing) in communicators.iter().zip(freeing) {
        results.push(match freeing {
            None => shared.gate.wait_empty(deadline).map_err(|held| leaked(shared, held)),
            Some(Ok(ticket)) => ticket.wait(grace).unwrap_or_else(|_| Err(leaked(shared, "ncclCommAbort"))),
            Some(Err(error)) => {
                keep(shared);
                Err(error)
            }
        });
    }
    results
}

/// A communicator whose flags rise, on a thread of its own, whose NCCL group may stay open.
struct Raising {
    thread: Service,
    flags: Ticket<Result<Flags>>,
}

/// How raising them went; nothing yet where it has to wait for the handle, or for callers to come out.
type Flags = Option<Result<()>>;

/// A communicator whose flags have risen.
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
            // SAFETY: takes nothing.
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
            shared.let_go();
            Ok(())
        })
    }
}

/// Frees a communicator whose gate is closed, on the thread where its flags have risen.
fn free(shared: &Arc<Shared>, flags: Flags, deadline: Deadline) -> Result<()> {
    let (nccl, name) = (&shared.nccl, shared.name());
    if !nccl.aborts_in_groups() {
        empty(shared, deadline)?;
        let _turn = Turn::wait(deadline);
        return raise(shared, shared.raw());
    }
    let raised = flags.unwrap_or_else(|| raise(shared, made(shared, deadline)));
    // The group's end frees. While somebody is inside it must not come, and the group stays open, on a thread that
    // makes no further call.
    empty(shared, deadline)?;
    let _turn = Turn::wait(deadline);
    // SAFETY: nobody is inside, and the gate is closed.
    let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
    raised.and(ended).inspect_err(|_| keep(shared))
}

/// NCCL's handle, also of a communicator that somebody is making: who has called NCCL waits there for other ranks some
/// time after it wrote the handle, which nobody is told of. Null if it was never written, or not in time.
fn made(shared: &Shared, deadline: Deadline) -> ncclComm_t {
    loop {
        let handle = shared.raw();
        if !handle.is_null() || deadline.expired() {
            return handle;
        }
        let look = Deadline::after(LOOK.min(deadline.remaining()));
        if shared.gate.wait_empty(look).is_ok() {
            // Who has come out writes no more.
            return shared.raw();
        }
    }
}

/// Waits until nobody is inside any more, or leaks the communicator.
fn empty(shared: &Arc<Shared>, deadline: Deadline) -> Result<()> {
    shared.gate.wait_empty(deadline).map_err(|held| {
        keep(shared);
        leaked(shared, held)
    })
}

/// Calls `ncclCommAbort`; nothing for a communicator that NCCL has not begun to build.
fn raise(shared: &Shared, handle: ncclComm_t) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the gate is closed, and closes for one abort or destruction only, so the handle is alive. That others
    // may be inside is what the function is for.
    let abort = || unsafe { call!(&shared.nccl, shared.name(), ncclCommAbort(handle)) };
    shared.context.with_current(abort)?
}

/// What NCCL may still write to, and who looks for leaks is to know of.
static KEPT: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

/// Keeps for ever everything that NCCL may still write to.
pub(super) fn keep(shared: &Arc<Shared>) {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(shared.clone());
}
