//! A process group: its members, its identity, and how it ends.

use std::{
    fmt,
    panic::Location,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cuda_driver::Context;

use super::{
    GroupError, GroupErrorKind, GroupId, KindResult, Member, Result, Startup, Work,
    buffer_cache::BufferCache,
    connection::Connection,
    counter::Counter,
    end::Membership,
    error::CallContext,
    health_handle::HealthHandle,
    hosted::Hosted,
    meeting::{Attempts, Meeting},
    member,
    p2p::messages::Messages,
    registered::Registered,
    shared_settings::SharedSettings,
    startup::Clock,
    work::{Marks, Outstanding},
};
use crate::{
    comm::{self, AbortHandle, Communicator, Nccl, WindowsUnsupported},
    profile,
    record::{Dump, Look as _, Progress, ProgressRpc},
    store::{Deadline, PrefixStore, Store, TcpStore},
    watch::{Divergence, Guard, Watch},
};

/// A process group, as one of its ranks uses it. The group's operations are methods of this type.
///
/// ```no_run
/// # use process_group::{ProcessGroup, comm::ReduceOp};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Started by a launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
/// let world = ProcessGroup::builder().build()?;
/// let stream = cuda_driver::Stream::new(world.context(), cuda_driver::StreamFlags::NON_BLOCKING)?;
/// let mut values = stream.alloc_zeros::<f32>(1024)?;
/// world.all_reduce(&mut values, ReduceOp::Sum)?.wait()?;
/// # Ok(()) }
/// ```
pub struct ProcessGroup {
    /// First field, because fields drop in order: the other members learn that this rank has left before
    /// anything is freed.
    pub(super) membership: Membership,
    pub(super) name: Arc<str>,
    pub(super) rank: usize,
    /// The members, as ranks of the job, in the order of their ranks in this group.
    pub(super) ranks: Arc<[usize]>,
    pub(super) members: Arc<[Member]>,
    pub(super) communicator: Communicator,
    pub(super) connection: Connection,
    pub(super) messages: Messages,
    /// Called with each communicator that the group makes.
    pub(super) followers: Vec<Follower>,
    /// The source of group numbers in the store. The group and its subgroups use the same source.
    pub(super) numbers: PrefixStore,
    /// The user's store.
    pub(super) root: SharedStore,
    /// The first group's own part of the store. All groups split from the first group share it.
    pub(super) job: PrefixStore,
    /// This group's own part of the store.
    pub(super) store: PrefixStore,
    /// The prefix of this group's keys in `job`: empty, or with `/` at its end.
    pub(super) path: String,
    /// The server of the store, if this rank hosts the store for the group.
    pub(super) host: Option<Hosted>,
    pub(super) shared_settings: SharedSettings,
    pub(super) counter: Arc<Counter>,
    pub(super) attempts: Attempts,
    pub(super) startup: Clock,
    pub(super) marks: Arc<Marks>,
    pub(super) outstanding: Arc<Outstanding>,
    pub(super) progress_rpc: Arc<ProgressRpc>,
    pub(super) watch: Arc<Watch>,
    /// Keeps the watchdog's checks of the group running.
    pub(super) _guard: Guard,
    /// The result of registration with the communicators that all members share. Communicators of pairs have
    /// their own results.
    pub(super) registered: OnceLock<Registered>,
    pub(super) buffer_cache: BufferCache,
}

/// The operation in errors of [`destroy`](ProcessGroup::destroy), and the name of its range in profiles.
const DESTROY: &str = "destroy";

/// Called with each communicator that a group makes; see [`Builder::follow`](super::Builder::follow).
pub(super) type Follower = Arc<dyn Fn(&Communicator) -> comm::Result<()> + Send + Sync>;

impl ProcessGroup {
    /// Returns how long it took to make the group. The current memory use of the group's communicator is in
    /// [`memory_statistics`](crate::comm::Communicator::memory_statistics), if available.
    #[must_use]
    pub fn startup(&self) -> Startup {
        self.startup.report(self.communicator.making())
    }

    /// Returns the group's identity.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.counter.id
    }

    /// Returns the group's name, as used in error messages and dumps. An epoch other than 0 follows: `world@1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns this process's rank in the group, which is below [`size`](Self::size).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of members.
    #[must_use]
    #[doc(alias = "world_size")]
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this process's rank of the job.
    #[must_use]
    pub fn global_rank(&self) -> usize {
        self.ranks[self.rank]
    }

    /// Returns the members, as ranks of the job, in the order of their ranks in this group.
    #[must_use]
    pub fn global_ranks(&self) -> Vec<usize> {
        self.ranks.to_vec()
    }

    /// Returns each member's description of itself, in the order of the members' ranks in this group. The
    /// list is the same on every member. A group that was [joined from PyTorch](super::Builder::join_torch)
    /// has only this rank's description, because PyTorch's ranks publish none.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.communicator.context()
    }

    /// Returns the NCCL library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        self.communicator.nccl()
    }

    /// Returns the group's communicator. Work that is enqueued on it directly is not counted in
    /// [`sequence`](Self::sequence). The communicator of a [lazy](super::Builder::lazy) group refuses every call
    /// with [`CommError::Unmade`](crate::comm::CommError::Unmade) until the group is
    /// [connected](Self::connect).
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Returns the group's own part of the store, for agreements among its members. This part can be used
    /// after the group is over; waits in it then end only at their deadline.
    #[must_use]
    pub fn store(&self) -> PrefixStore {
        PrefixStore::new("user", Arc::new(self.store.clone()))
    }

    /// Returns the part of the store that the group shares with all groups that were split, directly or
    /// indirectly, from the same first group. Use this part for agreements among ranks of the job that do not
    /// depend on these groups.
    #[must_use]
    pub fn job_store(&self) -> PrefixStore {
        PrefixStore::new("job", Arc::new(self.job.clone()))
    }

    /// Returns the group's default deadline, counted from now, for waits that are given none.
    #[must_use]
    pub fn timeout(&self) -> Deadline {
        Deadline::after(self.shared_settings.own.time_limit())
    }

    /// Returns the number of calls that this rank has enqueued: collectives, messages, and marked launches of
    /// graphs. Do not compare this number with another rank's, because members need not exchange equally many
    /// messages. [`enqueued_on`](super::enqueued_on) returns counts that members can compare. Calls that a
    /// graph captured count once, when they were captured.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.counter.log.launched()
    }

    /// Returns `Ok` if the group supports windows. The result follows from the records of all members, so
    /// every member gets the same.
    ///
    /// # Errors
    /// The reason why windows are not supported.
    pub fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        if self.has_strangers() {
            return Err(WindowsUnsupported::Strangers);
        }
        let driver = self.context().driver().version();
        member::window_facts(&self.members).decide(self.nccl(), driver, self.size())
    }

    /// Returns `Ok` while the group is usable. Does not block. Useful while a program makes no other call of
    /// the group.
    ///
    /// # Errors
    /// The error that ended the group, for example [`GroupErrorKind::Lost`], [`GroupErrorKind::Overdue`],
    /// [`GroupErrorKind::CollectiveDiverged`] or [`GroupErrorKind::MemberFailed`]. [`GroupErrorKind::Comm`] for an
    /// asynchronous error on this rank, which ends the group.
    pub fn check(&self) -> Result<()> {
        let health = &self.counter.health;
        let checked = health.check().and_then(|()| health.check_background());
        checked.map_err(|error| CallContext::of_group(&self.name).error(error))
    }

    /// Returns `Ok` while the group is usable, as far as this process knows. Unlike [`check`](Self::check),
    /// this method does not query NCCL. It is for wait loops of a program that should end when the group
    /// ends. Takes a few ns.
    ///
    /// # Errors
    /// As for [`check`](Self::check), except errors that were not noticed yet.
    pub fn standing(&self) -> Result<()> {
        self.counter.health.check().map_err(|error| CallContext::of_group(&self.name).error(error))
    }

    /// Returns a handle for [`standing`](Self::standing) that may outlive the group.
    #[must_use]
    pub fn health_handle(&self) -> HealthHandle {
        HealthHandle::new(&self.counter.health)
    }

    /// Waits until all members have called this method. Synchronizes hosts only: it does not wait for work on
    /// the devices.
    ///
    /// If ranks wait for each other in a circle, each in another call, all calls of the circle fail when the
    /// first of their deadlines passes, also those with a later deadline.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Absent`] with the members that did not come, the same on every member that came.
    /// - [`GroupErrorKind::NotAgreed`] with the circle, if the absent members wait for this member in another
    ///   call.
    /// - [`GroupErrorKind::Lost`]; [`GroupErrorKind::Joined`].
    pub fn barrier(&self, deadline: Deadline) -> Result<()> {
        let met = self.agrees().and_then(|()| self.meeting("the barrier", "barrier").gather((), deadline));
        self.in_call("barrier", met.map(drop))
    }

    /// Like [`barrier`](Self::barrier), and checks that all members have called the same collectives so far.
    /// Finds a member that has skipped one of several equal calls. Otherwise such a member is found when the
    /// group is destroyed, or by the [work timeout](super::GroupSettings::work_timeout). No other thread may
    /// call collectives of the group meanwhile. Costs as much as a barrier, so call it at the end of a step or
    /// an epoch.
    ///
    /// # Errors
    /// - [`GroupErrorKind::CollectiveDiverged`] with the members whose calls differ. This ends the group on all
    ///   members.
    /// - Those of [`barrier`](Self::barrier).
    #[track_caller]
    pub fn compare_calls(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "compare_calls";
        let site = Location::caller();
        let compare = |()| self.compare_with_members(CALL, site, deadline);
        self.in_call(CALL, self.agrees().and_then(compare))
    }

    /// Compares the calls of all members for the method `call`, which was called at `site`. Members whose work was
    /// revoked are left out, because each of them may have stopped at another call.
    fn compare_with_members(&self, call: &str, site: &Location<'_>, deadline: Deadline) -> KindResult<()> {
        let health = &self.counter.health;
        let last = health.monitor().and_then(|monitor| monitor.rolling().last()).unwrap_or_default();
        let record = (!health.is_revoked()).then(|| (last, format!("{}:{}", site.file(), site.line())));
        let records = self.meeting("the comparison of calls", call).gather(record, deadline)?;
        let members = records.into_iter().filter_map(|(rank, record)| Some((rank as usize, record?)));
        let members: Vec<_> = members.collect();
        let Some(divergence) = Divergence::of_marks(call, &members) else { return Ok(()) };
        // Only the call histories show which call was the first to differ. If they do not differ, a member has made fewer
        // of the same calls.
        health.await_comparison();
        Err(health.diverged(divergence))
    }

    /// Waits until all work that this rank enqueued through the group is done. Launches of captured graphs
    /// are not included, unless marked with [`track_graph_launch`](Self::track_graph_launch).
    ///
    /// # Errors
    /// [`GroupErrorKind::WorkTimeout`] with the first operation that is not done; [`GroupErrorKind::Comm`]
    /// for an asynchronous error.
    pub fn quiesce(&self, deadline: Deadline) -> Result<()> {
        self.outstanding.latest().iter().try_for_each(|work| work.wait_until(deadline))
    }

    /// Waits on the host until `work` of this group is done. If `deadline` passes, this method asks all
    /// members for their progress, to add it to the error. That takes up to `patience` longer.
    ///
    /// # Errors
    /// Those of [`Work::wait_until`].
    pub fn wait(&self, work: &Work, deadline: Deadline, patience: Duration) -> Result<()> {
        let waited = work.done_by(deadline).map_err(|error| match error {
            GroupErrorKind::WorkTimeout { waited, progress: None } => {
                let progress = self.progress(Deadline::after(patience)).ok().map(Box::new);
                GroupErrorKind::WorkTimeout { waited, progress }
            }
            error => error,
        });
        work.in_call(waited)
    }

    /// Returns the progress and the last call of every member, which it asks through the store. On each
    /// member, a separate thread answers within a second, even if all other threads are blocked. Not
    /// collective. A member that does not answer by the deadline has died, has stopped, or cannot reach the
    /// store. [`observe`](Self::observe) asks from a process that is not a member.
    ///
    /// # Errors
    /// [`GroupErrorKind::Store`].
    pub fn progress(&self, deadline: Deadline) -> Result<Progress> {
        let asked = self.progress_rpc.ask(&self.id().to_string(), &self.name, &self.global_ranks(), deadline);
        self.in_call("progress", asked)
    }

    /// Attaches the store that this rank hosts for the group, if any.
    pub(super) fn hosting(self, store: Option<TcpStore>) -> Self {
        self.hosting_with(store, Arc::default())
    }

    /// Like [`hosting`](Self::hosting), but shares the store with the groups that hold a clone of `grown`.
    pub(super) fn hosting_with(self, store: Option<TcpStore>, grown: Arc<()>) -> Self {
        let (watch, health) = (self.watch.clone(), self.counter.health.clone());
        Self { host: store.map(|store| Hosted { store, watch, health, grown }), ..self }
    }

    /// Returns the contents of this rank's flight recorder. The recorder holds this rank's last calls in the
    /// group and in all groups that share its recorder: those split, directly or indirectly, from the same
    /// first group.
    #[must_use]
    pub fn dump(&self) -> Dump {
        self.counter.recorder.dump()
    }

    /// Returns a handle that aborts the group's communicator from any thread, even while another thread is
    /// blocked in a call on that communicator. The abort also ends the group and its communicators for
    /// messages.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.communicator.abort_handle()
    }

    /// Ends the group on all members, because state that the members share has failed on this rank. From then
    /// on each member gets [`GroupErrorKind::MemberFailed`] with this rank and `reason`, also from
    /// [`check`](Self::check). Does not block: the communicators are aborted in the background, and the other
    /// members learn the reason through the store.
    ///
    /// For crates that build on this one and keep state of their own for a group.
    pub fn fail(&self, reason: impl Into<String>) {
        self.counter.health.fail(reason.into());
    }

    /// Ends the group when its work is done. Collective: every member calls this method. If this rank hosts
    /// the store for the group, this rank waits up to 10 s, at most until `deadline`, for the other members
    /// to leave the store, so that they do not see the store close. Destroy subgroups before their parent,
    /// because its end may close the store that they use.
    ///
    /// The members compare their calls first, as in [`compare_calls`](Self::compare_calls), unless the store has
    /// failed. A member that waits for a call of another member that has called `destroy` gets
    /// [`GroupErrorKind::Left`].
    ///
    /// An [adopted](Communicator::adopt) communicator is not destroyed. It is
    /// [released](Communicator::release) to its owner, once the work of all members is done.
    ///
    /// # Errors
    /// Those of [`compare_calls`](Self::compare_calls) and [`Communicator::destroy`]; for an adopted communicator, those
    /// of [`quiesce`](Self::quiesce) and [`Communicator::release`].
    #[track_caller]
    pub fn destroy(self, deadline: Deadline) -> Result<()> {
        let context = CallContext::of_call(&self.name, DESTROY);
        self.destroy_group(Location::caller(), deadline).map_err(|error| context.error(error))
    }

    fn destroy_group(self, site: &Location<'_>, deadline: Deadline) -> Result<()> {
        const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
        let _range = profile::range(DESTROY, &self.name, 0);
        self.counter.health.check()?;
        // NCCL waits for its own work, so only work on a path needs this wait. Revoked work needs none.
        if self.messages.are_on_path() && self.counter.health.check_work().is_ok() {
            self.quiesce(deadline)?;
        }
        let compared = |group: &Self| group.compare_with_members(DESTROY, site, deadline);
        if self.communicator.is_adopted() {
            self.agrees()?;
            self.quiesce(deadline)?;
            self.counter.health.announce_destruction();
            // Nothing else waits for the other members, and their work may use this rank's windows.
            compared(&self)?;
        } else {
            self.counter.health.announce_destruction();
            match (!self.has_strangers()).then(|| compared(&self)) {
                // A group can be used, and so destroyed, after its store has failed.
                Some(Err(GroupErrorKind::Store(_))) if !self.counter.health.is_over() => {}
                Some(Err(error)) => return Err(error.into()),
                _ => {}
            }
        }
        // `outstanding` is dropped after `messages`, because dropping `messages` drops the path, which ends work
        // that is not done. After an error, these variables are dropped in reverse order, `host` last.
        let Self { host, membership, outstanding, communicator, messages, rank, counter, .. } = self;
        counter.health.check()?;
        let messages = Communicator::destroy_together(messages.into_communicators(rank), deadline);
        let destroyed =
            messages.into_iter().chain([communicator.release(deadline)]).collect::<comm::Result<()>>();
        counter.health.explain(destroyed.map_err(GroupErrorKind::from))?;
        membership.end();
        // Records the work that is done now, because its state is not queried again.
        outstanding.look();
        if let Some(host) = &host {
            host.close(deadline.at_most(DRAIN_TIMEOUT));
        }
        Ok(())
    }

    /// Ends the group at once. Every member must abort the group too. The flight recorder's dump is written
    /// first, if a [folder](super::Builder::dump_folder) is set. A dump that cannot be written does not stop
    /// the abort. A group whose communicator is [adopted](Communicator::adopt) also ends, but work that is
    /// blocked on the device stays blocked until the owner of the communicator ends it.
    ///
    /// # Errors
    /// Those of [`Communicator::abort`].
    pub fn abort(self, deadline: Deadline) -> Result<()> {
        let _range = profile::range("abort", &self.name, 0);
        let _ = self.counter.recorder.last_words();
        self.in_call("abort", self.counter.health.abort_all(deadline))
    }

    /// Returns true if some members do not use this crate. Such members publish no record, and take part in
    /// no agreements.
    fn has_strangers(&self) -> bool {
        self.members.len() < self.size()
    }

    /// Returns [`GroupErrorKind::Joined`] if the group's members cannot make agreements.
    pub(super) fn agrees(&self) -> KindResult<()> {
        if self.has_strangers() { Err(GroupErrorKind::Joined) } else { Ok(()) }
    }

    /// Adds the group and the operation to the error of a call. `operation` is the name of the public method.
    pub(super) fn in_call<T>(
        &self,
        operation: &'static str,
        result: Result<T, impl Into<GroupError>>,
    ) -> Result<T> {
        result.map_err(|error| CallContext::of_call(&self.name, operation).error(error))
    }

    /// Returns the next agreement of this kind among all members.
    pub(super) fn meeting(&self, what: &'static str, kind: &str) -> Meeting<'_> {
        self.meeting_of(what, kind, &self.ranks)
    }

    /// Returns the next agreement of this kind among `ranks`, which are ranks of the job.
    pub(super) fn meeting_of<'a>(
        &'a self,
        what: &'static str,
        kind: &str,
        ranks: &'a [usize],
    ) -> Meeting<'a> {
        Meeting {
            health: Some(&self.counter.health),
            is_larger: false,
            job: &self.job,
            what,
            name: format!("{}{}", self.path, self.attempts.next(kind)),
            rank: self.global_rank(),
            ranks,
        }
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, name, rank, size) = (self.id(), &self.name, self.rank, self.size());
        write!(f, "ProcessGroup({id} {name}: rank {rank} of {size}; {})", self.startup())
    }
}

/// The user's store. It also holds keys that are not the group's.
pub(super) type SharedStore = Arc<dyn Store>;
