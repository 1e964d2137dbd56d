//! Communicators: creation, splitting, and queries.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use cuda_driver::Context;
use nccl_sys::{Feature, NCCL_SPLIT_NOCOLOR, ncclComm, ncclComm_t};

use super::{
    AbortHandle, CommError, Config, Nccl, Result, UniqueId, WindowFacts,
    argument::rank_and_size,
    call::{call, unwritten},
    call_guard::Kind,
    children::child,
    making::{self, Making, Origin},
    open_group, reaper,
    service::Service,
    shared::{MemberSetup, Serving, Shared},
    types::Place,
};
use crate::store::Deadline;

/// One rank's handle to a communicator.
///
/// Calls that enqueue work run on the caller's thread, one at a time, and return once the work is enqueued. Calls that
/// all ranks make together (creation, splitting, windows, destruction) run on the communicator's service thread, and
/// the caller waits for them until a deadline. If the deadline passes, the communicator is poisoned: it refuses further
/// work, and must be aborted on every rank.
///
/// End a communicator with [`destroy`](Self::destroy), which all ranks call together, or with [`abort`](Self::abort). A
/// communicator that is only dropped is aborted in the background; see [`wait_for_dropped`](super::wait_for_dropped). A
/// communicator that was [adopted](Self::adopt) from another library is only released.
///
/// ```no_run
/// # use process_group::{comm::{Communicator, Config, DataType, Nccl, ReduceOp}, store::Deadline};
/// # use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = cuda_driver::Driver::load()?.device(0)?.retain_primary()?;
/// let nccl = Nccl::load()?;
/// let soon = || Deadline::after(Duration::from_secs(30));
/// // One rank makes the id and passes it to the others.
/// let id = nccl.unique_id()?;
/// let communicator = Communicator::init(&nccl, &context, &id, 0, 1, &Config::new(), soon())?;
/// let stream = cuda_driver::Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING)?;
/// let buffer = cuda_driver::memory::DeviceMemory::new(&context, 1 << 20)?;
/// // SAFETY: the buffer holds 1 << 18 elements of 4 bytes and outlives the work.
/// unsafe { communicator.all_reduce(buffer.ptr(), buffer.ptr(), 1 << 18, DataType::F32, ReduceOp::Sum, &stream)? };
/// stream.synchronize()?;
/// communicator.destroy(soon())?;
/// # Ok(()) }
/// ```
#[doc(alias = "ncclComm_t")]
pub struct Communicator {
    pub(super) shared: Arc<Shared>,
    pub(super) service: Service,
    pub(super) config: Config,
}

/// Name of the creating call, as it appears in errors.
const INIT: &str = "ncclCommInitRank";

impl Communicator {
    /// Joins a new communicator of `size` ranks as `rank`. Collective: returns when all ranks of `id` have joined.
    ///
    /// # Errors
    /// - [`CommError::DeadlineExceeded`]: a rank did not join. NCCL does not report which rank (a process group does);
    /// - [`CommError::Argument`] for a `size` of 0 or above `i32::MAX`, or a rank that is not below `size`;
    ///   [`CommError::Nccl`], [`CommError::Driver`], [`CommError::Config`].
    #[doc(alias = "ncclCommInitRankConfig")]
    #[doc(alias = "ncclCommInitRank")]
    pub fn init(
        nccl: &Nccl,
        context: &Context,
        id: &UniqueId,
        rank: usize,
        size: usize,
        config: &Config,
        deadline: Deadline,
    ) -> Result<Self> {
        let communicator = Self::prepare(&MemberSetup { nccl, context, rank }, size, config)?;
        communicator.begin_join(id).finish(deadline)?;
        Ok(communicator)
    }

    /// Returns a communicator that has not [joined](Self::join) the other ranks yet. Makes no NCCL call. The
    /// communicator can be aborted.
    pub(crate) fn prepare(setup: &MemberSetup<'_>, size: usize, config: &Config) -> Result<Self> {
        let raw = settings(INIT, setup.nccl, config)?;
        rank_and_size(INIT, setup.rank, size)?;
        let config = Config { window_facts: config.window_facts.or_environment(), ..config.clone() };
        let shared = Shared::new(setup, size, &config, raw, Arc::default());
        let service = Service::start(shared.name())?;
        Ok(Self { shared, service, config })
    }

    /// Joins the other ranks. Collective: every rank passes the same `id`. `go_on` is called from time to time during
    /// the wait; if it returns an error, the wait ends. After a failure the communicator can only be aborted or
    /// dropped.
    ///
    /// # Errors
    /// Those of [`init`](Self::init), and the errors of `go_on`.
    pub(crate) fn join<E: From<CommError> + fmt::Display>(
        &self,
        id: &UniqueId,
        deadline: Deadline,
        go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.begin_join(id).finish_while(deadline, go_on)
    }

    fn begin_join(&self, id: &UniqueId) -> Serving<()> {
        let Place { rank, size, .. } = self.shared.place;
        let id = *id;
        let waiting_for = format!("all {size} ranks to join with unique id {id}");
        let call = if self.nccl().has(Feature::CONFIG) { "ncclCommInitRankConfig" } else { INIT };
        let join = move |shared: &Shared| {
            let begun = making::Begun::now(&shared.context);
            let (nccl, name, out) = (&shared.nccl, shared.name(), shared.out_parameter());
            let (rank, size) = rank_and_size(call, rank, size)?;
            if nccl.has(Feature::CONFIG) {
                let mut settings = shared.config.raw();
                // SAFETY: `out` points to the handle in `shared`, which lives as long as the communicator. `settings`
                // outlives the call. The strings that `settings` points to are in `shared`. The context is current.
                unsafe {
                    call!(nccl, name, ncclCommInitRankConfig(out, size, id.raw(), rank, &mut settings))
                }?;
            } else {
                // SAFETY: `out` points to the handle in `shared`, as above. The context is current.
                unsafe { call!(nccl, name, ncclCommInitRank(out, size, id.raw(), rank)) }?;
            }
            if shared.raw().is_null() {
                return Err(unwritten(nccl.api(), call, name, "communicator"));
            }
            // Never set before: a communicator is made once.
            let _ = shared.making.set(begun.done(&shared.context, Origin::UniqueId));
            Ok(())
        };
        Serving::begin(&self.shared, &self.service, (call, Kind::Making), waiting_for, move |shared| {
            // Poisoned on failure: NCCL may have begun to build a communicator, which then has to be aborted.
            join(shared).inspect_err(|error| shared.guard.poison(&error.to_string()))?;
            shared.guard.open();
            Ok(())
        })
    }

    /// Like [`init`](Self::init), for one thread that drives several ranks, each on its own device. `ranks` lists each
    /// rank with its device's context. The ranks join in parallel.
    ///
    /// # Errors
    /// Those of [`init`](Self::init). The communicators of the ranks that did join are then aborted.
    #[doc(alias = "ncclCommInitAll")]
    pub fn init_together(
        nccl: &Nccl,
        ranks: &[(usize, &Context)],
        id: &UniqueId,
        size: usize,
        config: &Config,
        deadline: Deadline,
    ) -> Result<Vec<Self>> {
        let prepare = |(rank, context): &(usize, &Context)| {
            Self::prepare(&MemberSetup { nccl, context, rank: *rank }, size, config)
        };
        let prepared = ranks.iter().map(prepare).collect::<Result<Vec<_>>>()?;
        // All joins are begun before the first one is awaited, and all are awaited before an error is returned.
        let joining: Vec<_> = prepared.iter().map(|rank| rank.begin_join(id)).collect();
        let joined: Vec<_> = joining.into_iter().map(|rank| rank.finish(deadline)).collect();
        joined.into_iter().collect::<Result<()>>()?;
        Ok(prepared)
    }

    /// Splits this communicator. The ranks that pass the same `color` get a new communicator together, in which they
    /// are ordered by `key` and then by rank. A rank that passes `None` gets no communicator. Collective over this
    /// communicator, which must have no outstanding work.
    ///
    /// # Errors
    /// [`CommError::Missing`] below 2.18; [`CommError::DeadlineExceeded`] and [`CommError::Nccl`], which poison
    /// this communicator too; [`CommError::Setting`] for a color above `i32::MAX`.
    #[doc(alias = "ncclCommSplit")]
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        config: &Config,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        self.split_while(color, key, config, deadline, || Ok(()))
    }

    /// Like [`split`](Self::split), but calls `go_on` from time to time during the wait. If `go_on` returns an error,
    /// the wait ends.
    ///
    /// # Errors
    /// Those of [`split`](Self::split), and the errors of `go_on`.
    pub(crate) fn split_while<E: From<CommError> + fmt::Display>(
        &self,
        color: Option<u32>,
        key: i32,
        config: &Config,
        deadline: Deadline,
        go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        const CALL: &str = "ncclCommSplit";
        let raw = settings(CALL, self.nccl(), config)?;
        self.nccl().api().require(Feature::SPLIT).map_err(CommError::from)?;
        let color = match color.map(i32::try_from) {
            None => NCCL_SPLIT_NOCOLOR,
            Some(Ok(color)) => color,
            Some(Err(_)) => {
                let problem = format!("{color:?} is above {}", i32::MAX);
                return Err(CommError::Setting { setting: "color", problem }.into());
            }
        };
        let waiting_for = format!("the other ranks to split (this one gives color {color} and key {key})");
        let config = config.clone();
        let split =
            Serving::begin(&self.shared, &self.service, (CALL, Kind::Child), waiting_for, move |parent| {
                let handle = Arc::<AtomicPtr<ncclComm>>::default();
                let begun = making::Begun::now(&parent.context);
                let mut settings = raw.raw();
                // SAFETY: the call guard keeps the parent alive during the call. `handle` and `settings` outlive the
                // call. The child owns `handle`, so the address stays valid as long as the child.
                let made = unsafe {
                    call!(
                        &parent.nccl,
                        parent.name(),
                        ncclCommSplit(parent.raw(), color, key, handle.as_ptr(), &mut settings)
                    )
                };
                if color == NCCL_SPLIT_NOCOLOR && handle.load(Ordering::Acquire).is_null() {
                    return made.map(|()| None);
                }
                let making = begun.done(&parent.context, Origin::Split);
                child(parent, CALL, made, handle, raw, (config, making)).map(Some)
            });
        split.finish_while(deadline, go_on)
    }

    /// Returns this rank, which is below [`size`](Self::size).
    #[must_use]
    #[doc(alias = "ncclCommUserRank")]
    pub fn rank(&self) -> usize {
        self.shared.place.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    #[doc(alias = "ncclCommCount")]
    pub fn size(&self) -> usize {
        self.shared.place.size
    }

    /// Returns the CUDA context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Returns the NCCL library that this communicator uses.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.shared.nccl
    }

    /// Returns the settings that this communicator was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the text that names this communicator in errors: its configured name, this rank and the size.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Returns NCCL's handle, for calls that this crate lacks. The handle is valid until the communicator ends. Only
    /// one thread at a time may use it, and not while a method of this value runs. Null for the communicator of a
    /// [lazy](crate::group::Builder::lazy) group that is not connected.
    #[must_use]
    pub fn raw(&self) -> ncclComm_t {
        self.shared.raw()
    }

    /// Returns a handle that aborts this communicator from any thread, even while a call on it is blocked.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.shared.clone())
    }

    /// Returns the communicator's origin, and the time and memory that its creation took. `None` until NCCL has made
    /// the communicator.
    #[must_use]
    pub fn making(&self) -> Option<Making> {
        self.shared.making.get().copied()
    }

    /// Checks that the communicator can still be used. A [revoked](Self::revoke) communicator passes.
    ///
    /// # Errors
    /// [`CommError::Poisoned`], [`CommError::Closed`], [`CommError::Unmade`] or [`CommError::Suspended`].
    pub fn check(&self) -> Result<()> {
        self.shared.guard.check("check")
    }

    /// Checks for an asynchronous error of NCCL's threads or of the device. May be called while another thread is
    /// blocked inside NCCL with this communicator.
    ///
    /// # Errors
    /// [`CommError::Nccl`] with the asynchronous error, which poisons the communicator; [`CommError::Closed`].
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn async_error(&self) -> Result<()> {
        self.shared.async_error()
    }

    /// Sets the facts that decide whether windows are supported.
    pub(crate) fn set_window_facts(&mut self, facts: WindowFacts) {
        self.config.window_facts = facts;
    }

    /// Poisons this communicator: it can only be aborted, or shrunk after a failure. `reason` appears in later errors.
    pub(crate) fn give_up(&self, reason: &str) {
        self.shared.guard.poison(reason);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Starts the management call `job` on the service thread. The thread holds the call guard while `job` runs.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        call: &'static str,
        waiting_for: String,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Serving<T> {
        Serving::begin(&self.shared, &self.service, (call, Kind::Collective), waiting_for, job)
    }

    /// Runs the management call `job` on the service thread, and waits until the call returns. The thread holds the
    /// call guard while `job` runs.
    pub(crate) fn serve<T: Send + 'static>(
        &self,
        call: &'static str,
        waiting_for: String,
        deadline: Deadline,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.begin(call, waiting_for, job).finish(deadline)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        reaper::take(&self.shared);
    }
}

/// Converts `config` to the NCCL settings with which `call` makes a communicator. Fails if this thread has an open NCCL
/// group, or if `config` or NCCL's environment variables have values that this crate or the release refuses. Called
/// before this rank meets the other ranks, because they would wait for a rank that fails later.
pub(crate) fn settings(call: &'static str, nccl: &Nccl, config: &Config) -> Result<nccl_sys::Config> {
    open_group::refuse_inside(call)?;
    let lowered = config.lower(nccl)?;
    let non_blocking = |found: &nccl_sys::Override| {
        found.field == "blocking" && found.value.to_string_lossy().trim().parse() == Ok(0)
    };
    if let Some(found) = lowered.overrides().into_iter().find(non_blocking) {
        return Err(CommError::Setting {
            setting: found.variable,
            problem: format!(
                "{found}: communicators would be non-blocking, which this crate does not drive; unset it"
            ),
        });
    }
    Ok(lowered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessGroup, comm::Window, group::Work};

    #[test]
    fn handles_and_errors_are_send_and_sync() {
        fn crosses<T: Send + Sync>() {}
        crosses::<Communicator>();
        crosses::<AbortHandle>();
        crosses::<Window>();
        crosses::<ProcessGroup>();
        crosses::<Work>();
        crosses::<CommError>();
    }
}
