//! The part of a communicator that its owner, its service thread and its abort handles share.

use std::{
    any::Any,
    env, fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::{Context, DevicePtr, memory::DeviceMemory};
use nccl_sys::{ncclComm, ncclComm_t, ncclResult_t};

use super::{
    CommError, Config, Nccl, Result,
    call::{self, call},
    call_guard::{CallGuard, Kind},
    making::Making,
    registry::Registry,
    service::{Listener, Service, Ticket, Unkept},
    types::Place,
    window::table::Windows,
};
use crate::store::Deadline;

/// State of a communicator, shared between its owner, its service thread and its abort handles.
///
/// This value lives as long as NCCL may write to it: NCCL writes to `handle` and to the handle cells of the windows.
pub(crate) struct Shared {
    /// Number of this communicator, unique in the process. A thread that enters several call guards enters them by
    /// ascending serial, to avoid deadlocks.
    pub(crate) serial: u64,
    pub(crate) nccl: Nccl,
    pub(crate) context: Context,
    pub(crate) place: Place,
    pub(crate) guard: Arc<CallGuard>,
    /// NCCL's handle; null until NCCL has written it.
    handle: Arc<AtomicPtr<ncclComm>>,
    /// The configuration that NCCL received. NCCL keeps the address of the name string that it contains.
    pub(crate) config: nccl_sys::Config,
    windows: Mutex<Windows>,
    /// The address that NCCL gets for a buffer that this rank does not use. Normally null. If NCCL
    /// [checks buffers](checks_buffers), it refuses null, and the address is that of a small allocation of this
    /// communicator. The operation's other buffer is no substitute for it: that buffer may lie in a window, and NCCL
    /// could then choose another algorithm on this rank than on the others.
    pub(super) unused_buffer: DevicePtr,
    /// Set once NCCL has made the communicator.
    pub(super) making: OnceLock<Making>,
    /// True once one-sided operations are prepared.
    pub(crate) one_sided: AtomicBool,
    pub(crate) registry: Registry,
    /// Child communicators that were not returned to a caller.
    children: Mutex<Vec<Arc<Self>>>,
    /// Reference that keeps an adopted communicator's owner alive until the release. Not set for communicators that
    /// are not adopted.
    pub(super) owner: OnceLock<Mutex<Option<Owner>>>,
}

/// Returns true if this process's environment makes NCCL check the buffers of calls, including those that a rank does
/// not use.
fn checks_buffers() -> bool {
    env::var("NCCL_CHECK_MODE").is_ok_and(|mode| mode.starts_with("DEBUG"))
}

/// The owner of an adopted communicator.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

impl Shared {
    /// Makes the state of one member's communicator of `size` ranks. NCCL will write the communicator's handle to
    /// `handle`.
    pub(crate) fn new(
        setup: &MemberSetup<'_>,
        size: usize,
        config: &Config,
        raw: nccl_sys::Config,
        handle: Arc<AtomicPtr<ncclComm>>,
    ) -> Arc<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let rank = setup.rank;
        let name = config.name.as_deref().unwrap_or("unnamed");
        // Without memory for this buffer, NCCL gets null, and its error names the buffer.
        let unused_buffer =
            checks_buffers().then(|| DeviceMemory::new(setup.context, 1).ok()).flatten().map(Arc::new);
        let mut windows = Windows::default();
        windows.kept.extend(unused_buffer.clone().map(|memory| memory as _));
        Arc::new(Self {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            nccl: setup.nccl.clone(),
            context: setup.context.clone(),
            place: Place { rank, size, release: setup.nccl.release() },
            guard: Arc::new(CallGuard::new(format!("communicator {name} (rank {rank} of {size})"))),
            handle,
            config: raw,
            windows: Mutex::new(windows),
            unused_buffer: unused_buffer.map_or(DevicePtr(0), |memory| memory.ptr()),
            making: OnceLock::new(),
            one_sided: AtomicBool::new(false),
            registry: Registry::default(),
            children: Mutex::default(),
            owner: OnceLock::new(),
        })
    }

    /// Returns true if the communicator is adopted: code outside this crate made it, and will destroy it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.owner.get().is_some()
    }

    /// Fails if the communicator is adopted. `call` is the NCCL function in the error, which only the communicator's
    /// owner may call.
    pub(crate) fn refuse_adopted(&self, call: &'static str) -> Result<()> {
        if self.is_adopted() {
            return Err(CommError::Adopted { call, communicator: self.name().into() });
        }
        Ok(())
    }

    /// Returns the communicator's name in errors.
    pub(crate) fn name(&self) -> &str {
        self.guard.name()
    }

    /// Returns NCCL's handle. Use the handle only inside the call guard.
    #[inline]
    pub(crate) fn raw(&self) -> ncclComm_t {
        self.handle.load(Ordering::Acquire)
    }

    /// Returns the address at which NCCL writes the handle.
    pub(crate) fn out_parameter(&self) -> *mut ncclComm_t {
        self.handle.as_ptr()
    }

    /// Locks the table of windows. Do not hold the lock during an NCCL call.
    pub(crate) fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a child that no caller received, until this communicator is gone. An abort of this communicator makes
    /// NCCL write to the child's abort flag too (`childAbortFlag`), so the flag's memory must stay valid. NCCL
    /// unlinks the flag only if the child was made completely. The caller is inside the guard, so the function that
    /// ends this communicator finds the child.
    pub(crate) fn keep_child(&self, child: Arc<Self>) {
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }

    /// Removes and returns the children that [`keep_child`](Self::keep_child) kept.
    pub(super) fn take_children(&self) -> Vec<Arc<Self>> {
        std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Releases the memory under this communicator's windows and registrations, and drops the reference to the owner.
    /// Called when the communicator is gone, or released to its owner. Returns the kept children, which the caller
    /// must abort.
    #[must_use]
    pub(crate) fn let_go(&self) -> Vec<Arc<Self>> {
        self.registry.clear();
        let children = self.take_children();
        let kept = std::mem::take(&mut self.windows().kept);
        // Dropped after the lock is released, because freeing this memory may call into other code.
        drop(kept);
        let owner = self.owner.get().and_then(|it| it.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(owner);
        children
    }

    /// Fails with NCCL's asynchronous error, if there is one. An error that leaves the communicator in an unknown state
    /// poisons it. Also fails if the communicator is closed. Returns `Ok` if NCCL has not made the communicator.
    pub(crate) fn async_error(&self) -> Result<()> {
        const CALL: &str = "ncclCommGetAsyncError";
        // NCCL has not made the communicator, or failed to make it.
        if self.guard.is_unmade() || self.raw().is_null() {
            return Ok(());
        }
        let _observer = self.guard.observe(CALL)?;
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: no thread frees the communicator while `_observer` lives. NCCL writes one result code, to the local
        // `state`.
        unsafe { call!(&self.nccl, self.name(), ncclCommGetAsyncError(self.raw(), &mut state)) }?;
        self.judge(call::check(self.nccl.api(), CALL, self.name(), state))
    }

    /// Returns `result` unchanged. Poisons the communicator if `result` is an error that leaves it in an unknown
    /// state.
    #[inline]
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.condemn(error);
        }
        result
    }

    /// Like [`judge`](Self::judge), for a result that is known to be an error. Out of line, because every launch
    /// contains this call.
    #[cold]
    pub(crate) fn condemned(&self, error: CommError) -> Box<CommError> {
        self.condemn(&error);
        Box::new(error)
    }

    #[cold]
    fn condemn(&self, error: &CommError) {
        if error.poisons() {
            self.guard.poison(&error.to_string());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The library, the context and the rank of one member in a new communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberSetup<'a> {
    pub(crate) nccl: &'a Nccl,
    pub(crate) context: &'a Context,
    pub(crate) rank: usize,
}

/// An NCCL call that runs on the service thread.
pub(crate) struct Serving<T> {
    shared: Arc<Shared>,
    call: &'static str,
    waiting_for: String,
    ticket: Ticket<Result<T>>,
    /// An abort ends the wait through this listener.
    _interruption: Arc<Listener>,
}

impl<T: Send + 'static> Serving<T> {
    /// Submits the call to the service thread.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        service: &Service,
        (call, kind): (&'static str, Kind),
        waiting_for: String,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Self {
        let own = shared.clone();
        let ticket = service.submit(move || {
            let guard = own.guard.clone();
            let _entry = guard.enter(call, kind, None)?;
            let result = own.context.with_current(|| job(&own)).unwrap_or_else(|error| Err(error.into()));
            let result = own.judge(result);
            // Dropped before the guard is left. An abort waits at the guard for calls whose callers have given up.
            // After that wait, no such call may still hold a reference.
            drop(own);
            result
        });
        let interruption = ticket.interruption(Duration::ZERO);
        // `tell` also notifies this listener of an abort that came before it was registered.
        shared.guard.tell(&interruption);
        Self { shared: shared.clone(), call, waiting_for, ticket, _interruption: interruption }
    }

    /// Waits for the result of the call. Poisons the communicator if the deadline passes, or if the service thread has
    /// died. A late call continues until it returns or the communicator is aborted. An abort ends the wait at once,
    /// even if the call has not returned.
    pub(crate) fn finish(self, deadline: Deadline) -> Result<T> {
        self.finish_while(deadline, || Ok(()))
    }

    /// Like [`finish`](Self::finish), but also calls `go_on` from time to time. An error of `go_on` ends the wait and
    /// poisons the communicator.
    pub(crate) fn finish_while<E: From<CommError> + fmt::Display>(
        self,
        deadline: Deadline,
        mut go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<T, E> {
        const TURN: Duration = Duration::from_millis(50);
        let unkept = loop {
            match self.ticket.look(deadline.at_most(TURN)) {
                Some(Ok(result)) => return Ok(result?),
                Some(Err(unkept)) => break unkept,
                None if deadline.expired() => break Unkept::Late,
                None => go_on().inspect_err(|why| self.shared.guard.poison(&why.to_string()))?,
            }
        };
        let waiting_for = match unkept {
            Unkept::Late => self.waiting_for,
            Unkept::Broken => format!("{}, but the service thread has died", self.waiting_for),
            Unkept::Interrupted => {
                self.shared.guard.check(self.call)?;
                self.waiting_for
            }
        };
        let communicator = self.shared.name().to_owned();
        let late = CommError::DeadlineExceeded { communicator, waiting_for, waited: deadline.waited() };
        Ok(self.shared.judge(Err(late))?)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;
    use crate::embedded_machine::{far, machine};

    rusty_fork_test! {
        #[test]
        fn a_communicator_allocates_a_buffer_only_if_nccl_checks_buffers() {
            let machine = machine(1);
            for (mode, allocates) in [(None, false), (Some("DEFAULT"), false), (Some("DEBUG_LOCAL"), true)] {
                if let Some(mode) = mode {
                    // SAFETY: this process runs one test, and no other thread uses the environment.
                    unsafe { env::set_var("NCCL_CHECK_MODE", mode) };
                }
                machine.ranks(1, |rank| {
                    let communicator = rank.communicator();
                    assert_eq!(communicator.shared().unused_buffer.0 != 0, allocates, "{mode:?}");
                    communicator.destroy(far()).unwrap();
                });
            }
            machine.world.finish().unwrap();
        }
    }
}
