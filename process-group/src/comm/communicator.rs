//! Communicators: creation, and the calls that every rank makes together.

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
    call::{call, unwritten},
    call_guard::Kind,
    check::{ArgumentError, Place},
    children::child,
    making::{self, Making, Origin},
    open_group, reaper,
    service::Service,
    shared::{MemberSetup, Serving, Shared},
};
use crate::store::Deadline;

/// One rank's handle to a communicator.
///
/// Enqueueing calls run on the caller's thread, one at a time, and return when the work is enqueued. Calls that every
/// rank makes together (creation, splitting, windows, destruction) run on the communicator's service thread, and the
/// caller waits for them until a deadline. Past the deadline the communicator is poisoned: every further call is
/// refused, and it must be aborted on every rank.
///
/// It ends by [`destroy`](Self::destroy), which all ranks call together, or by [`abort`](Self::abort). A communicator
/// that is only dropped is aborted in the background; see [`wait_for_dropped`](super::wait_for_dropped). One that was
/// [adopted](Self::adopt) from another library is only released.
///
/// ```no_run
/// # use process_group::{comm::{Communicator, Config, DataType, Nccl, ReduceOp}, store::Deadline};
/// # use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = cuda_driver::Driver::load()?.device(0)?.retain_primary()?;
/// let nccl = Nccl::load()?;
/// let soon = || Deadline::after(Duration::from_secs(30));
/// // One rank makes the id, and gives it to the others.
/// let id = nccl.unique_id()?;
/// let communicator = Communicator::init(&nccl, &context, &id, 0, 1, &Config::new(), soon())?;
/// let stream = cuda_driver::Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING)?;
/// let buffer = cuda_driver::memory::DeviceMemory::new(&context, 1 << 20)?;
/// // SAFETY: the buffer holds as many elements and outlives the work.
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

/// Name in errors of the call that makes a communicator.
const INIT: &str = "ncclCommInitRank";

impl Communicator {
    /// Joins a new communicator of `size` ranks as `rank`. Collective: returns when all ranks of `id` have joined.
    ///
    /// # Errors
    /// - [`CommError::DeadlineExceeded`]: a rank did not join. NCCL does not say which (a process group does);
    /// - [`CommError::Nccl`], [`CommError::Driver`], [`CommError::Config`], [`CommError::Argument`] for a rank
    ///   that is not below `size`.
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

    /// Returns a communicator that has still to [join](Self::join) the others. Makes no NCCL call. It can be aborted.
    pub(crate) fn prepare(setup: &MemberSetup<'_>, size: usize, config: &Config) -> Result<Self> {
        let raw = settings(INIT, setup.nccl, config)?;
        let place = Place { rank: setup.rank, size, release: setup.nccl.release() };
        place.member(INIT, "rank", setup.rank)?;
        let config = Config { window_facts: config.window_facts.or_environment(), ..config.clone() };
        let shared = Shared::new(setup, size, &config, raw, Arc::default());
        let service = Service::start(shared.name())?;
        Ok(Self { shared, service, config })
    }

    /// Joins the other ranks, all with the same `id`. Collective. `go_on` is called from time to time; an error from
    /// it ends the wait. After a failure the communicator can only be aborted or dropped.
    ///
    /// # Errors
    /// As for [`init`](Self::init), and those of `go_on`.
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
            let number = |n: usize| {
                let no_rank =
                    |_| ArgumentError::NoSuchRank { call, role: "rank", rank: n, size: i32::MAX as usize };
                i32::try_from(n).map_err(no_rank)
            };
            let (size, rank) = (number(size)?, number(rank)?);
            if nccl.has(Feature::CONFIG) {
                let mut settings = shared.config.raw();
                // SAFETY: the cell lives in `shared`, which lives as long as the communicator; the settings
                // outlive the call, and the strings they point to lie in `shared`; the context is current.
                unsafe {
                    call!(nccl, name, ncclCommInitRankConfig(out, size, id.raw(), rank, &mut settings))
                }?;
            } else {
                // SAFETY: as above.
                unsafe { call!(nccl, name, ncclCommInitRank(out, size, id.raw(), rank)) }?;
            }
            if shared.raw().is_null() {
                return Err(unwritten(nccl.api(), call, name, "communicator"));
            }
            // Set once: a communicator is made once.
            let _ = shared.making.set(begun.done(&shared.context, Origin::UniqueId));
            Ok(())
        };
        Serving::begin(&self.shared, &self.service, (call, Kind::Making), waiting_for, move |shared| {
            // After any failure, NCCL may have begun to build a communicator.
            join(shared).inspect_err(|error| shared.guard.poison(&error.to_string()))?;
            shared.guard.open();
            Ok(())
        })
    }

    /// [`init`](Self::init) for a thread that drives several ranks, each with its own device. The ranks join in
    /// parallel.
    ///
    /// # Errors
    /// As for [`init`](Self::init); the ranks that had joined are aborted.
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
        // Every rank begins to join before the first wait, and every join is awaited before an error returns.
        let joining: Vec<_> = prepared.iter().map(|rank| rank.begin_join(id)).collect();
        let joined: Vec<_> = joining.into_iter().map(|rank| rank.finish(deadline)).collect();
        joined.into_iter().collect::<Result<()>>()?;
        Ok(prepared)
    }

    /// Splits off a communicator of the ranks that give the same `color`, ordered by `key` and then by rank. A rank
    /// that gives `None` gets none. Collective over this communicator, which must have no outstanding work.
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

    /// [`split`](Self::split) that also ends when `go_on`, called from time to time, returns an error.
    ///
    /// # Errors
    /// As for [`split`](Self::split), and those of `go_on`.
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
                // SAFETY: the parent is alive while this call is inside. The cell and the settings outlive the call.
                // The cell lives as long as the child.
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

    /// This rank, below [`size`](Self::size).
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

    /// Returns the context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Returns the NCCL library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.shared.nccl
    }

    /// Returns the settings that it was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns its name in errors: the name, the rank and the size.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Returns NCCL's handle, for calls that this crate lacks. It is valid until the communicator ends. One thread at
    /// a time may use it, and not during any method of this value. Null for the communicator of a
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

    /// Returns how the communicator was made and at which cost; `None` until NCCL has made it.
    #[must_use]
    pub fn making(&self) -> Option<Making> {
        self.shared.making.get().copied()
    }

    /// Checks that the communicator can still be used.
    ///
    /// # Errors
    /// [`CommError::Poisoned`], [`CommError::Closed`] or [`CommError::Unmade`].
    pub fn check(&self) -> Result<()> {
        self.shared.guard.check("check")
    }

    /// Checks for an asynchronous error of NCCL's threads or of the device. May be called while another thread is
    /// blocked in a call.
    ///
    /// # Errors
    /// [`CommError::Nccl`] with the asynchronous error, which poisons the communicator; [`CommError::Closed`].
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn async_error(&self) -> Result<()> {
        self.shared.async_error()
    }

    /// Sets the facts that decide on windows.
    pub(crate) fn set_window_facts(&mut self, facts: WindowFacts) {
        self.config.window_facts = facts;
    }

    /// Refuses everything but an abort from now on.
    pub(crate) fn give_up(&self, reason: &str) {
        self.shared.guard.poison(reason);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Starts `job` on the service thread, inside NCCL.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        call: &'static str,
        waiting_for: String,
        job: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Serving<T> {
        Serving::begin(&self.shared, &self.service, (call, Kind::Collective), waiting_for, job)
    }

    /// Runs `job` on the service thread, inside NCCL, and waits for it.
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

/// Returns the NCCL settings with which `call` makes a communicator, or the reason why this rank cannot make one now.
/// Called before this rank meets the others, because they would wait for a rank that fails later.
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
    fn what_may_cross_threads_may() {
        fn crosses<T: Send + Sync>() {}
        crosses::<Communicator>();
        crosses::<AbortHandle>();
        crosses::<Window>();
        crosses::<ProcessGroup>();
        crosses::<Work>();
        crosses::<CommError>();
    }
}
