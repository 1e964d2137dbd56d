//! A group: who is in it, what it is known by, and its end.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::Context;

use super::{
    Builder, GroupError, Member, Result, Work,
    checked::Checked,
    connect::Connection,
    counter::Counter,
    end::Membership,
    form::Follower,
    hosted::Hosted,
    member,
    p2p::Messages,
    registration::Registered,
    seat::Terms,
    sight::Sight,
    startup::Clock,
    vigil::Vigil,
    work::{Marks, Outstanding},
};
use crate::{
    comm::{self, AbortHandle, Communicator, Nccl, WindowsUnsupported},
    profile,
    record::{Desk, Dump, Look as _, Progress},
    store::{Deadline, PrefixStore, Store, StoreError, TcpStore},
    watch::{Guard, Watch},
};

/// What a group is known by: equal on all its members, and never given to another group of the store.
///
/// Groups of one store have ascending uids in the order of their making, so a program that takes its groups in the
/// order of their ids takes them in one order on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The group's number in the store.
    pub uid: u64,
    /// The generation of the job that made it; see [`Builder::epoch`].
    pub epoch: u64,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.uid, self.epoch)
    }
}

/// One rank's member of a group.
///
/// ```no_run
/// # use process_group::{ProcessGroup, comm::{DataType, ReduceOp}, group::Buffer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Started by a launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
/// let world = ProcessGroup::builder().build()?;
/// let stream = cuda_driver::Stream::new(world.context(), cuda_driver::StreamFlags::NON_BLOCKING)?;
/// let memory = cuda_driver::memory::DeviceMemory::new(world.context(), 4096)?;
/// let buffer = Buffer::new(memory.ptr(), 1024, DataType::F32);
/// // SAFETY: the memory holds 1024 elements and outlives the work.
/// let work = unsafe { world.all_reduce(buffer, buffer, ReduceOp::Sum, &stream)? };
/// work.wait_timeout(world.timeout())?;
/// # Ok(()) }
/// ```
pub struct ProcessGroup {
    /// Goes first: the other members are told before anything is let go of.
    pub(super) membership: Membership,
    pub(super) name: Arc<str>,
    pub(super) rank: usize,
    /// The ranks of the job that are members, in the order of their ranks here.
    pub(super) ranks: Arc<[usize]>,
    pub(super) members: Arc<[Member]>,
    pub(super) communicator: Communicator,
    pub(super) connection: Connection,
    pub(super) messages: Messages,
    /// Told of its communicators.
    pub(super) followers: Vec<Follower>,
    /// Where groups get their numbers: the same for a group and its subgroups.
    pub(super) numbers: PrefixStore,
    /// The first group's own part of the store: the same for a group and its subgroups.
    pub(super) job: PrefixStore,
    /// This group's own part of the store.
    pub(super) store: PrefixStore,
    /// The store under them, if this rank hosts it for the group.
    pub(super) host: Option<Hosted>,
    pub(super) terms: Terms,
    pub(super) counter: Arc<Counter>,
    pub(super) splits: AtomicU64,
    pub(super) shrinks: AtomicU64,
    pub(super) startup: Clock,
    pub(super) barriers: AtomicU64,
    pub(super) marks: Arc<Marks>,
    pub(super) outstanding: Arc<Outstanding>,
    pub(super) desk: Arc<Desk>,
    pub(super) watch: Arc<Watch>,
    /// The watchdog looks after the group as long as it is there.
    pub(super) _guard: Guard,
    /// There if calls are compared before they are launched.
    pub(super) checked: Option<Checked>,
    /// Of the communicators that all members make; pairs have their own.
    pub(super) registered: OnceLock<Registered>,
    pub(super) sight: Sight,
}

/// Whether a group goes on ([`ProcessGroup::standing_handle`]). Keeps nothing of it.
#[derive(Clone)]
pub struct Standing(Weak<Vigil>);

impl Standing {
    /// Whether the group goes on, as [`ProcessGroup::standing`] says; of one that is gone nothing is known.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |vigil| vigil.check())
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing")
    }
}

impl ProcessGroup {
    /// Begins to make a group; what the builder is not told comes from the environment.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// What it is known by.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.counter.id
    }

    /// What it is called, in messages and in the store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This rank, below [`size`](Self::size).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks it has.
    #[must_use]
    #[doc(alias = "world_size")]
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's rank of the job.
    #[must_use]
    pub fn global_rank(&self) -> usize {
        self.ranks[self.rank]
    }

    /// The ranks of the job that are members, in the order of their ranks here.
    #[must_use]
    pub fn global_ranks(&self) -> Vec<usize> {
        self.ranks.to_vec()
    }

    /// What the members said of themselves, in the order of their ranks here; the same on every member. In a group that
    /// was [joined from PyTorch](Builder::join_torch), whose ranks say nothing, it is this rank alone.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.communicator.context()
    }

    /// The library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        self.communicator.nccl()
    }

    /// The group's communicator. Work that is enqueued on it directly is in no [`sequence`](Self::sequence). That of a
    /// [lazy](Builder::lazy) group refuses every call with [`CommError::Unmade`](crate::comm::CommError::Unmade) until
    /// the group is [connected](Self::connect).
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// The group's own part of the store, for its members' agreements. It can be used after the group is over: waits there
    /// end with their deadline.
    #[must_use]
    pub fn store(&self) -> PrefixStore {
        PrefixStore::new("user", Arc::new(self.store.clone()))
    }

    /// The part of the store that the group shares with all groups that were split from the same first group, directly or
    /// not: for agreements among ranks of the job, whichever of these groups they are in.
    #[must_use]
    pub fn job_store(&self) -> PrefixStore {
        PrefixStore::new("job", Arc::new(self.job.clone()))
    }

    /// How long the group waits for its members where no deadline is given.
    #[must_use]
    pub fn timeout(&self) -> Deadline {
        Deadline::after(self.terms.timeout)
    }

    /// How many calls were enqueued on this rank: collectives, messages, and marked launches of graphs. It numbers this
    /// rank's calls and is compared with no other rank's, as members need not exchange equally many messages:
    /// [`enqueued_on`](super::enqueued_on) has what members have in common. Calls that a graph captured count once,
    /// when they were captured.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.counter.calls()
    }

    /// Whether the group can have windows: decided from what the members said of themselves, so every member comes
    /// to the same answer.
    ///
    /// # Errors
    /// The reason why not.
    pub fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        if self.has_strangers() {
            return Err(WindowsUnsupported::Strangers);
        }
        // The oldest driver speaks for all.
        let driver = self.members.iter().map(|member| member.driver).min().unwrap_or_default();
        let members: Vec<_> = self.members.iter().collect();
        member::window_facts(&members).decide(self.nccl(), driver, self.size())
    }

    /// Whether the group goes on, without waiting: for a program that is in none of its calls.
    ///
    /// # Errors
    /// What ended the group: [`GroupError::Lost`], [`GroupError::Overdue`], [`GroupError::CollectiveDiverged`],
    /// [`GroupError::MemberFailed`]; [`GroupError::Comm`] for what went wrong in the background here, which ends it.
    pub fn check(&self) -> Result<()> {
        self.counter.vigil.check()?;
        self.counter.vigil.check_background()
    }

    /// Whether the group goes on, as far as this process knows: [`check`](Self::check) without asking the library, for
    /// waits of one's own that are to end with the group. A few ns.
    ///
    /// # Errors
    /// As for [`check`](Self::check), but for what nobody has noticed yet.
    pub fn standing(&self) -> Result<()> {
        self.counter.vigil.check()
    }

    /// What tells whether the group goes on, for who outlives the borrow of it.
    #[must_use]
    pub fn standing_handle(&self) -> Standing {
        Standing(Arc::downgrade(&self.counter.vigil))
    }

    /// Waits until all members have come here. For the host only: it says nothing about work on the devices.
    ///
    /// # Errors
    /// [`GroupError::Absent`] with who did not come, the same on every member that came; [`GroupError::Lost`];
    /// [`GroupError::Joined`].
    pub fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.agrees("barrier")?;
        let name = format!("barrier/{}", self.barriers.fetch_add(1, Ordering::AcqRel));
        self.counter.vigil.attend(&name, || {
            let met = crate::store::barrier(&self.store, &name, self.rank, self.size(), deadline);
            met.map_err(|error| self.explain(error, "the barrier"))
        })
    }

    /// Waits until everything that this rank enqueued through the group is done. Launches of captured graphs are not
    /// seen.
    ///
    /// # Errors
    /// [`GroupError::WorkTimeout`] with the first operation that is not; [`GroupError::Comm`] for what went wrong
    /// in the background.
    pub fn quiesce(&self, deadline: Deadline) -> Result<()> {
        self.outstanding.latest().iter().try_for_each(|work| work.wait_timeout(deadline))
    }

    /// Waits on the host until `work`, which is of this group, is done; past the deadline it asks all members how far
    /// they are, which takes up to `patience` more.
    ///
    /// # Errors
    /// Those of [`Work::wait_timeout`].
    pub fn wait(&self, work: &Work, deadline: Deadline, patience: Duration) -> Result<()> {
        match work.wait_timeout(deadline) {
            Err(GroupError::WorkTimeout { operation, sequence, group, waited, progress: None }) => {
                let progress = self.progress(Deadline::after(patience)).ok().map(Box::new);
                Err(GroupError::WorkTimeout { operation, sequence, group, waited, progress })
            }
            waited => waited,
        }
    }

    /// How far every member is, and what it called last: asked over the store, and answered by a thread of each
    /// member's, within a second, whatever its other threads do. Not collective. A member that does not answer by the
    /// deadline is gone, or stopped, or cannot reach the store. [`observe`](Self::observe) asks from outside.
    ///
    /// # Errors
    /// [`GroupError::Store`].
    pub fn progress(&self, deadline: Deadline) -> Result<Progress> {
        Ok(self.desk.ask(&self.id().to_string(), &self.name, &self.global_ranks(), deadline)?)
    }

    /// The group, on a rank that hosts its store if it does.
    pub(super) fn hosting(self, store: Option<TcpStore>) -> Self {
        let (watch, vigil) = (self.watch.clone(), self.counter.vigil.clone());
        Self { host: store.map(|store| Hosted { store, watch, vigil }), ..self }
    }

    /// What the flight recorder holds of this rank: its last calls in this group, in the one that it was split from,
    /// and in all others that were.
    #[must_use]
    pub fn dump(&self) -> Dump {
        self.counter.track.recorder().dump()
    }

    /// What aborts the group's communicator from any thread, whatever it is blocked in, and with it the group and what
    /// it has for messages.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.communicator.abort_handle()
    }

    /// Ends the group on all members, because something that they share has failed here: each has
    /// [`GroupError::MemberFailed`] with this rank and `reason` from then on, also from [`check`](Self::check). Returns at
    /// once. The communicators are aborted in the background, and the other members are told through the store.
    ///
    /// For crates above this one that keep state of their own in a group.
    pub fn fail(&self, reason: impl Into<String>) {
        self.counter.vigil.fail(reason.into());
    }

    /// Ends the group when its work is done. Collective: every member destroys it. The rank that hosts the store
    /// for the group waits a moment for the others to leave the store, so that none sees it die; subgroups end first.
    ///
    /// # Errors
    /// Those of [`Communicator::destroy`].
    pub fn destroy(self, deadline: Deadline) -> Result<()> {
        const FAREWELL: Duration = Duration::from_secs(10);
        let _range = profile::range("destroy", &self.name, 0);
        // What is outstanding goes last: with the path goes what is not done.
        // Dropped in the reverse order after an error: the store goes last.
        let Self { host, membership, outstanding, communicator, messages, rank, counter, .. } = self;
        counter.vigil.check()?;
        // NCCL waits for its own; of what was revoked there is nothing to wait for.
        if messages.are_on_path() && counter.vigil.check_work().is_ok() {
            outstanding.latest().iter().try_for_each(|work| work.wait_timeout(deadline))?;
        }
        let messages = Communicator::destroy_together(messages.into_communicators(rank), deadline);
        let destroyed =
            messages.into_iter().chain([communicator.destroy(deadline)]).collect::<comm::Result<()>>();
        counter.vigil.explain(destroyed.map_err(GroupError::from))?;
        membership.end();
        // What is done now is not asked again.
        outstanding.look();
        if let Some(host) = &host {
            host.farewell(deadline.at_most(FAREWELL));
        }
        Ok(())
    }

    /// Ends the group at once. Every member must abort it too. The flight recorder's dump is written first, if there
    /// is a [folder](Builder::dump_folder) for it; that it cannot be does not hold the abort up.
    ///
    /// # Errors
    /// Those of [`Communicator::abort`].
    pub fn abort(self, deadline: Deadline) -> Result<()> {
        let _range = profile::range("abort", &self.name, 0);
        let _ = self.counter.track.recorder().last_words();
        Ok(self.counter.vigil.abort_all(deadline)?)
    }

    /// Whether some members are not of this crate: they said nothing of themselves, and meet nobody at the store.
    fn has_strangers(&self) -> bool {
        self.members.len() < self.size()
    }

    /// Refuses what the members agree on where they cannot.
    pub(super) fn agrees(&self, operation: &'static str) -> Result<()> {
        if self.has_strangers() {
            return Err(GroupError::Joined { operation, group: self.name.to_string() });
        }
        Ok(())
    }

    /// Gives an error of a meeting of members the names that the job knows.
    pub(super) fn explain(&self, error: StoreError, meeting: &'static str) -> GroupError {
        explain(&self.name, &self.global_ranks(), error, meeting)
    }
}

/// Gives an error of a meeting the ranks of the job; `ranks` are those of the group.
pub(super) fn explain(group: &str, ranks: &[usize], error: StoreError, meeting: &'static str) -> GroupError {
    match error {
        StoreError::Absent { ranks: absent, waited, .. } => GroupError::Absent {
            group: group.into(),
            ranks: absent.into_iter().filter_map(|place| ranks.get(place).copied()).collect(),
            size: ranks.len(),
            meeting,
            waited,
        },
        other => other.into(),
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, name, rank, size) = (self.id(), &self.name, self.rank, self.size());
        write!(f, "ProcessGroup({id} {name}: rank {rank} of {size}; {})", self.startup())
    }
}

/// The store as the group sees it: shared with the user's other keys.
pub(super) type SharedStore = Arc<dyn Store>;
