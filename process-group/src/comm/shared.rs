//! The half of a communicator that its owner, its service thread and those who may abort it share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::Context;
use nccl_sys::{ncclComm, ncclComm_t, ncclResult_t};

use super::{
    CommError, Config, Nccl, Result,
    call::{self, call},
    check::Place,
    gate::{Gate, Kind},
    making::Making,
    reaper,
    registry::Registry,
    service::{Listener, Service, Ticket, Unkept},
    window::Windows,
};
use crate::store::Deadline;

/// What a communicator is, shared between its owner, its service thread and those who may abort it.
///
/// It lives as long as NCCL may write to it: `handle` and the windows' cells are out-parameters.
pub(crate) struct Shared {
    /// Unique in the process; a total order for whoever needs several gates.
    pub(crate) serial: u64,
    pub(crate) nccl: Nccl,
    pub(crate) context: Context,
    pub(crate) place: Place,
    pub(crate) gate: Arc<Gate>,
    /// NCCL's handle; null until NCCL has written it.
    handle: Arc<AtomicPtr<ncclComm>>,
    /// NCCL keeps the address of the name in it.
    pub(crate) config: nccl_sys::Config,
    windows: Mutex<Windows>,
    /// Once NCCL has made it.
    pub(super) making: OnceLock<Making>,
    /// Whether one-sided operations were prepared.
    pub(crate) one_sided: AtomicBool,
    pub(crate) registry: Registry,
    /// Communicators of some of its ranks that nobody was given.
    children: Mutex<Vec<Arc<Self>>>,
}

impl Shared {
    /// A communicator at `seat` of `size`, whose handle NCCL writes to `handle`.
    pub(crate) fn new(
        seat: &Seat<'_>,
        size: usize,
        config: &Config,
        raw: nccl_sys::Config,
        handle: Arc<AtomicPtr<ncclComm>>,
    ) -> Arc<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let rank = seat.rank;
        let name = config.name.as_deref().unwrap_or("unnamed");
        Arc::new(Self {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            nccl: seat.nccl.clone(),
            context: seat.context.clone(),
            place: Place { rank, size, release: seat.nccl.release() },
            gate: Arc::new(Gate::new(format!("communicator {name} (rank {rank} of {size})"))),
            handle,
            config: raw,
            windows: Mutex::default(),
            making: OnceLock::new(),
            one_sided: AtomicBool::new(false),
            registry: Registry::default(),
            children: Mutex::default(),
        })
    }

    /// How errors call it.
    pub(crate) fn name(&self) -> &str {
        self.gate.name()
    }

    /// NCCL's handle. To be used only from inside the gate.
    #[inline]
    pub(crate) fn raw(&self) -> ncclComm_t {
        self.handle.load(Ordering::Acquire)
    }

    /// Where NCCL writes the handle.
    pub(crate) fn out_parameter(&self) -> *mut ncclComm_t {
        self.handle.as_ptr()
    }

    /// Never held during a call of NCCL.
    pub(crate) fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a child that nobody is given until this communicator is gone: until then NCCL raises this one's abort flag
    /// and the child's together, wherever the child's was (`childAbortFlag`, which only a child that is made unlinks).
    /// The caller is inside the gate, so an end of this one finds it.
    pub(crate) fn keep_child(&self, child: Arc<Self>) {
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }

    /// The communicator is gone: nothing reaches what its windows showed, or what was registered, any more, and the
    /// children that it kept are aborted.
    pub(crate) fn let_go(&self) {
        self.registry.clear();
        let children = std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        children.iter().for_each(reaper::take);
        let kept = std::mem::take(&mut self.windows().kept);
        // Dropped here, with the lock released: memory may have much to tell when it goes.
        drop(kept);
    }

    /// What went wrong in the background.
    pub(crate) fn async_error(&self) -> Result<()> {
        const CALL: &str = "ncclCommGetAsyncError";
        // Not made, or it failed in the making.
        if self.gate.is_unmade() || self.raw().is_null() {
            return Ok(());
        }
        let _observer = self.gate.observe(CALL)?;
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is not freed while it is observed; writes one code, to a local.
        unsafe { call!(&self.nccl, self.name(), ncclCommGetAsyncError(self.raw(), &mut state)) }?;
        self.judge(call::check(self.nccl.api(), CALL, self.name(), state))
    }

    /// Passes a result on, and closes the communicator for further calls if the error left it in an unknown state.
    #[inline]
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.condemn(error);
        }
        result
    }

    /// The same, of a call that every launch makes.
    #[cold]
    pub(crate) fn condemned(&self, error: CommError) -> Box<CommError> {
        self.condemn(&error);
        Box::new(error)
    }

    #[cold]
    fn condemn(&self, error: &CommError) {
        if error.poisons() {
            self.gate.poison(&error.to_string());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One rank's part in the making of a communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) nccl: &'a Nccl,
    pub(crate) context: &'a Context,
    pub(crate) rank: usize,
}

/// A call that the service thread makes.
pub(crate) struct Serving<T> {
    shared: Arc<Shared>,
    call: &'static str,
    waiting_for: String,
    ticket: Ticket<Result<T>>,
    /// Ends the wait with an abort.
    _interruption: Arc<Listener>,
}

impl<T: Send + 'static> Serving<T> {
    /// Hands the call to the thread.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        service: &Service,
        (call, kind): (&'static str, Kind),
        waiting_for: String,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Self {
        let own = shared.clone();
        let ticket = service.submit(move || {
            let gate = own.gate.clone();
            let _entry = gate.enter(call, kind, None)?;
            let result = own.context.with_current(|| job(&own)).unwrap_or_else(|error| Err(error.into()));
            let result = own.judge(result);
            // Before the gate is left: an abort that waits there for a call that came too late for its caller finds
            // nothing held any more.
            drop(own);
            result
        });
        let interruption = ticket.interruption(Duration::ZERO);
        // Also of an abort that came in between.
        shared.gate.tell(&interruption);
        Self { shared: shared.clone(), call, waiting_for, ticket, _interruption: interruption }
    }

    /// Waits for it. Past the deadline the communicator is poisoned; the call goes on until it is aborted. An abort ends
    /// the wait at once, whatever becomes of the call.
    pub(crate) fn finish(self, deadline: Deadline) -> Result<T> {
        self.finish_while(deadline, || Ok(()))
    }

    /// [`finish`](Self::finish), asking now and then whether there is anything to wait for; if not, the communicator is
    /// poisoned with the reason.
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
                None => go_on().inspect_err(|why| self.shared.gate.poison(&why.to_string()))?,
            }
        };
        let waiting_for = match unkept {
            Unkept::Late => self.waiting_for,
            Unkept::Broken => format!("{}, but the service thread has died", self.waiting_for),
            Unkept::Interrupted => {
                self.shared.gate.check(self.call)?;
                self.waiting_for
            }
        };
        let communicator = self.shared.name().to_owned();
        let late = CommError::DeadlineExceeded { communicator, waiting_for, waited: deadline.waited() };
        Ok(self.shared.judge(Err(late))?)
    }
}
