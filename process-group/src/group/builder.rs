//! Builds a group from the ranks of a job.

use std::{fmt, fs, io, path::PathBuf, sync::Arc, time::Duration};

use bootstrap::runtime::Instant;
use cuda_driver::{Context, Driver};

use super::{
    Environment, GroupError, GroupErrorKind, GroupId, GroupSettings, KindResult, Member, ProcessGroup,
    RegistrationSupport, Result, Witnesses,
    error::CallContext,
    form::stay_away,
    group_parts::{GroupParts, take_numbers},
    health::GroupHealth,
    join::{join, meet_grown_peers},
    meeting::follow_up,
    member::{self, Joining},
    p2p::{
        P2pPolicy,
        messages::{self, Messages},
    },
    process_group::Follower,
    process_group::SharedStore,
    shared_settings::SharedSettings,
    source::Source,
    store_keys::{FOLDER, NUMBER, name_of_epoch, own_part},
};
use crate::{
    comm::{self, Communicator, Config, Nccl},
    peers::Peers,
    record::{DumpError, ProgressRpc, Recorder},
    store::{Deadline, PrefixStore, Store, StoreError, TcpStore, publish},
    watch::Watch,
};

/// Builds a [`ProcessGroup`]. Settings that are not given come from the [environment](Environment).
///
/// ```
/// use process_group::{ProcessGroup, store::HashStore};
/// use std::{sync::Arc, time::Duration};
///
/// // A rank that is a thread: store, rank and world size do not come from the environment.
/// let store = Arc::new(HashStore::new());
/// let builder = ProcessGroup::builder().store(store).rank(0).world_size(4).timeout(Duration::from_secs(30));
/// # drop(builder);
/// ```
#[derive(Clone)]
#[must_use = "a builder makes nothing until build is called"]
pub struct Builder {
    pub(super) name: String,
    pub(super) epoch: u64,
    pub(super) rank: Option<usize>,
    pub(super) world_size: Option<usize>,
    pub(super) store: Option<SharedStore>,
    context: Option<Context>,
    nccl: Option<Nccl>,
    pub(super) settings: GroupSettings,
    pub(super) heartbeat: Duration,
    witnesses: Witnesses,
    checked: bool,
    dump_folder: Option<PathBuf>,
    pub(super) registration: Option<bool>,
    pub(super) lazy: bool,
    pub(super) p2p: P2pPolicy,
    pub(super) followers: Vec<Follower>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            name: "world".into(),
            epoch: 0,
            rank: None,
            world_size: None,
            store: None,
            context: None,
            nccl: None,
            settings: GroupSettings::new(),
            heartbeat: Duration::from_secs(1),
            witnesses: Witnesses::default(),
            checked: false,
            dump_folder: None,
            registration: None,
            lazy: false,
            p2p: P2pPolicy::default(),
            followers: Vec::new(),
        }
    }

    /// The group's name (default `world`). Each group of one store and epoch needs a name of its own.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The generation of the job (default 0). A job that restarts on the same store must use the next epoch. Errors,
    /// dumps and [`ProcessGroup::name`] show an epoch other than 0 behind the name: `world@1`.
    pub fn epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// The number of this rank (default: the variable `RANK`).
    pub fn rank(self, rank: usize) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// The number of ranks (default: the variable `WORLD_SIZE`).
    pub fn world_size(self, size: usize) -> Self {
        Self { world_size: Some(size), ..self }
    }

    /// The store through which the ranks find each other (default: a [`TcpStore`] at `MASTER_ADDR` and `MASTER_PORT`).
    /// Rank 0 hosts the default store until rank 0 has dropped the group and all subgroups. If the launcher hosts the
    /// store (`TORCHELASTIC_USE_AGENT_STORE` is `True`), rank 0 connects to it like the other ranks.
    pub fn store(self, store: SharedStore) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The context of this rank's device (default: the primary context of the device with the ordinal `LOCAL_RANK`).
    pub fn context(self, context: &Context) -> Self {
        Self { context: Some(context.clone()), ..self }
    }

    /// The NCCL library (default: [`Nccl::load`]).
    pub fn nccl(self, nccl: &Nccl) -> Self {
        Self { nccl: Some(nccl.clone()), ..self }
    }

    /// Settings of the group's communicator. The group replaces the name and the window facts in `config`.
    pub fn config(self, config: Config) -> Self {
        self.settings(config.into())
    }

    /// Sets a callback that is called once if the group ends by an error, or because another member leaves the group,
    /// and likewise for each group that inherits the callback; see [`GroupSettings::on_end`] (default: no callback).
    ///
    /// ```
    /// # use process_group::ProcessGroup;
    /// // Ends the process, so that its launcher can restart the job.
    /// let builder = ProcessGroup::builder().on_end(|error| {
    ///     eprintln!("{error}");
    ///     std::process::exit(1);
    /// });
    /// # drop(builder);
    /// ```
    pub fn on_end(self, callback: impl Fn(GroupError) + Send + Sync + 'static) -> Self {
        self.settings(GroupSettings::new().on_end(callback))
    }

    /// Applies the values that are set in `settings`, and keeps all others. [`GroupSettings`] holds the settings that a
    /// group made from this one may replace. Builder methods such as [`timeout`](Self::timeout) set the same values.
    pub fn settings(self, settings: GroupSettings) -> Self {
        Self { settings: settings.or(&self.settings), ..self }
    }

    /// The time that [`build`](Self::build) waits for the other ranks, and the time limit of the group's calls that
    /// take no deadline (default 10 minutes).
    pub fn timeout(self, timeout: Duration) -> Self {
        self.settings(GroupSettings::new().timeout(timeout))
    }

    /// The time within which work must be done once it is the oldest unfinished work of its stream; see
    /// [`GroupSettings::work_timeout`] (default: the [timeout](Self::timeout)).
    pub fn work_timeout(self, timeout: Duration) -> Self {
        self.settings(GroupSettings::new().work_timeout(timeout))
    }

    /// The interval at which this process publishes that it is running (default 1 s). Ranks of the same host notice the
    /// death of this process within milliseconds. If the process does not run, they report it as
    /// [silent](crate::peers::Loss::Silent) after at most twice the interval. Ranks of other hosts learn of a death or
    /// silence through the store, which they read at least four times per interval. A death or silence ends the group
    /// on every rank with [`GroupErrorKind::Lost`]. All ranks should use the same value. A value below 1 ms counts as
    /// 1 ms.
    pub fn heartbeat(self, heartbeat: Duration) -> Self {
        Self { heartbeat: heartbeat.max(Duration::from_millis(1)), ..self }
    }

    /// The mechanism by which the processes of one host notice each other's death (default: the kernel). All ranks must
    /// use the same one.
    pub fn witnesses(self, witnesses: Witnesses) -> Self {
        Self { witnesses, ..self }
    }

    /// Compares every call with the other members' calls before it is launched (default: off, unless
    /// `PROCESS_GROUP_CHECKED` is 1). Collectives are compared on all members, messages on both ends. The comparison
    /// covers types, counts, roots, reductions and shares, and the position of buffers in symmetric memory
    /// ([`compare_places`](ProcessGroup::compare_places)).
    ///
    /// Calls that do not match fail with [`GroupErrorKind::CallsDiffer`] on every member that compared. If a member
    /// makes no call within the [timeout](Self::timeout), the waiting members get [`GroupErrorKind::Absent`]. If
    /// members wait for each other in different calls, all of these calls fail with [`GroupErrorKind::NotAgreed`]. In
    /// all cases nothing is launched, and the group stays usable. The comparison of a call takes about ten requests to
    /// the store, and waits for the other members. Two ranks that send to each other must therefore put both messages
    /// into one [batch](ProcessGroup::batch), which NCCL requires in any mode. All ranks must use the same setting.
    /// Without checked mode, differing calls are found only [after the launch](GroupErrorKind::CollectiveDiverged).
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// The folder for the flight recorder's dumps (default: the variable `PROCESS_GROUP_DUMP_FOLDER`; if that is not
    /// set, no dump is written). A dump is written when work is not done by a deadline, when an error ends the group
    /// (for example an error of NCCL on any rank, a lost rank or differing calls), and when the group is aborted. If
    /// another member leaves the group, a dump is written only if this rank is waiting for other members or has
    /// unfinished work. The folder is created if it does not exist. All ranks of a host may share the folder. Needs the
    /// feature `pickle`: without the feature, [`build`](Self::build) fails with [`GroupErrorKind::Dump`].
    pub fn dump_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { dump_folder: Some(folder.into()), ..self }
    }

    /// Times every operation on the device; see [`GroupSettings::timing`] (default: off, unless
    /// `PROCESS_GROUP_TIMING` is 1).
    pub fn timing(self, timing: bool) -> Self {
        self.settings(GroupSettings::new().timing(timing))
    }

    /// Defers making the communicator. [`build`](Self::build) still waits for all ranks and compares their settings.
    /// The ranks make the communicator with their first operation that needs one, or in [`ProcessGroup::connect`], and
    /// agree on the [registration](Self::registration) of memory then. All ranks must use the same setting. Groups that
    /// are split from this group are lazy too.
    pub fn lazy(self) -> Self {
        Self { lazy: true, ..self }
    }

    /// The policy that selects the communicators for messages (default [`P2pPolicy::Auto`]); see [`p2p`](super::p2p).
    /// All ranks must use the same policy.
    pub fn p2p(self, policy: P2pPolicy) -> Self {
        Self { p2p: policy, ..self }
    }

    /// Settings of the communicators that the group makes for messages, in addition to its own communicator; see
    /// [`GroupSettings::p2p_config`].
    pub fn p2p_config(self, config: Config) -> Self {
        self.settings(GroupSettings::new().p2p_config(config))
    }

    /// Calls `follower` with every communicator of the group and of the groups split from it, including the
    /// communicators for messages. The call comes after a communicator is made and before work is launched on it. If
    /// `follower` fails, making the communicator fails on all ranks. `follower` must not wait for other ranks.
    pub fn follow(
        mut self,
        follower: impl Fn(&Communicator) -> comm::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.followers.push(Arc::new(follower));
        self
    }

    /// Meets the other ranks and makes the communicator. Collective.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Environment`]: a required variable, such as `RANK` or `WORLD_SIZE`, is missing or invalid.
    /// - [`GroupErrorKind::NoSuchRank`]: the rank is not below the world size.
    /// - [`GroupErrorKind::Absent`]: some ranks did not come. The error lists them. Every rank that came gets the same
    ///   error.
    /// - [`GroupErrorKind::Disagreement`]: the ranks' settings do not match. Every rank gets the same error.
    /// - [`GroupErrorKind::Store`]: the store is missing, its port is in use, or another process uses this rank.
    /// - [`GroupErrorKind::Peers`]: the processes of this host cannot watch each other.
    /// - [`GroupErrorKind::Dump`]: the folder for dumps cannot be made.
    /// - [`GroupErrorKind::Setting`]: the [policy for messages](Self::p2p) is invalid.
    /// - [`GroupErrorKind::Unmade`]: another rank failed while all made the communicator. That rank gets
    ///   [`GroupErrorKind::Comm`] or [`GroupErrorKind::Driver`].
    /// - [`GroupErrorKind::Comm`] or [`GroupErrorKind::Driver`], before this rank meets the others: NCCL, the driver or
    ///   the device's context cannot be used, or NCCL does not support the settings of a communicator.
    /// - [`GroupErrorKind::Lost`]: a rank died during the call.
    /// - [`GroupErrorKind::Thread`]: a thread that the group needs could not be started.
    pub fn build(self) -> Result<ProcessGroup> {
        let context = self.call("build");
        self.meet(Source::Made).map_err(|error| context.error(error))
    }

    /// Like [`build`](Self::build), with an existing communicator of all ranks of the job, usually an
    /// [adopted](Communicator::adopt) one. Rank, world size, device and library are taken from `communicator`. The
    /// group connects at once, even if it is [lazy](Self::lazy). All ranks must pass a handle of the same communicator.
    /// The ranks check that each of them passes a communicator, but not that it is the same.
    ///
    /// A group that ends in another way than by [`destroy`](ProcessGroup::destroy) does not abort an adopted
    /// communicator. The group's waits and calls return the error on every member. But kernels that wait for another
    /// rank, and threads that are blocked in NCCL, stay blocked until the owner of the communicator unblocks them, for
    /// example by an abort.
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and [`GroupErrorKind::Setting`] if the builder has another rank or world size
    /// than the communicator.
    pub fn build_with(self, communicator: Communicator) -> Result<ProcessGroup> {
        let context = self.call("build_with");
        self.meet_with(communicator).map_err(|error| context.error(error))
    }

    fn meet_with(self, communicator: Communicator) -> Result<ProcessGroup> {
        let (rank, size) = (communicator.rank(), communicator.size());
        let (set_rank, set_size) = (self.rank.unwrap_or(rank), self.world_size.unwrap_or(size));
        if (set_rank, set_size) != (rank, size) {
            let problem = format!(
                "the builder has rank {set_rank} of {set_size}, expected rank {rank} of {size}, as in the given communicator"
            );
            return Err(GroupErrorKind::Setting { problem }.into());
        }
        let (context, nccl) = (communicator.context().clone(), communicator.nccl().clone());
        let builder = self.rank(rank).world_size(size).context(&context).nccl(&nccl);
        builder.meet(Source::Given(Box::new(communicator)))
    }

    /// Returns the context of the errors of the call `operation`.
    pub(super) fn call(&self, operation: &'static str) -> CallContext {
        CallContext::of_call(&name_of_epoch(&self.name, self.epoch).into(), operation)
    }

    /// Meets the other ranks, and makes the group with a communicator from `source`.
    pub(super) fn meet(self, source: Source<'_>) -> Result<ProcessGroup> {
        let (began, deadline) = (Instant::now(), Deadline::after(self.settings.time_limit()));
        let Ready { rank, size, store, host, nccl, context, folder, timing, checked, support } =
            self.ready(false, deadline)?;
        source.check(&nccl)?;
        let shared_settings = self.shared_settings(timing, checked);
        let messages = Messages::new(self.messages(&context)?, self.lazy, size, &shared_settings.own);
        let config = shared_settings.own.communicator();
        let name: Arc<str> = name_of_epoch(&self.name, self.epoch).into();
        let root = PrefixStore::new(FOLDER, store.clone());
        let user = store;
        let store = own_part(&root, &self.name, self.epoch);

        // The ranks publish the group's number after they have met. If it exists, this process was restarted, and would
        // wait for ranks that do not meet again.
        if store.check(&[NUMBER])? {
            return Err(StoreError::RankTaken { rank, at: name.to_string() }.into());
        }
        Watch::announce(&store, rank)?;
        let numbers = PrefixStore::new("numbers", Arc::new(root));
        let number = take_numbers(&numbers, rank == 0, 1)?;
        let here = Member::here(rank, size, &nccl, &context)?;
        let member = Member { checked, witnesses: self.witnesses, registration: support, ..here };
        let record = Joining::new(member, number)
            .with("initialisation", if self.lazy { "lazy" } else { "eager" })
            .with("p2p policy", self.p2p)
            .with("communicator", source.name());
        let ranks: Arc<[usize]> = (0..size).collect();
        let (members, uid) = join(source.health(), &store, rank, &ranks, record, deadline)?;
        let members: Arc<[Member]> = members.into();
        let peers = match source {
            Source::Grown(_) => {
                meet_grown_peers(source.health(), &store, (rank, &ranks), &members, self.heartbeat, deadline)?
            }
            _ => Peers::meet(&store, rank, &members, self.heartbeat, follow_up(deadline))?,
        };
        let met = began.elapsed();
        let recorder = Recorder::new(rank, name.clone(), nccl.release().to_string(), folder);
        let watch = watch(Watch::begin(&store, rank, &members, self.heartbeat, &recorder, peers))
            .inspect_err(|_| stay_away(&store, "", rank))?;
        // From here on, the loss of a rank ends every wait of this rank.
        let health = GroupHealth::begin(&name, &ranks, rank, &recorder, self.heartbeat, watch.signal());
        watch.add(&health);
        // Publishing fails if another group has published its number under this name.
        let is_first = publish(&store, NUMBER, &uid.to_le_bytes()).map_err(|error| match error {
            StoreError::Taken { .. } => StoreError::RankTaken { rank, at: name.to_string() },
            error => error,
        });
        health.explain(is_first.map_err(GroupErrorKind::from))?;
        let id = GroupId { uid, epoch: self.epoch };
        let exchanged = began.elapsed();
        let progress_rpc = Arc::new(ProgressRpc::open(&store, size)?);
        let followers = self.followers;
        let parts = GroupParts {
            name,
            rank,
            ranks,
            members,
            numbers,
            root: user,
            job: store,
            path: String::new(),
            shared_settings,
            recorder,
            progress_rpc,
            watch,
            health,
            messages,
            followers,
        };
        let deadline = follow_up(deadline);
        let mut group = match source {
            Source::Made => parts.init(id, &nccl, &context, config, deadline)?,
            Source::Given(mut communicator) => {
                communicator.set_window_facts(member::window_facts(&parts.members));
                parts.take(id, *communicator, deadline)?
            }
            Source::Grown(old) => {
                let setup = comm::MemberSetup { nccl: &nccl, context: &context, rank };
                let communicator = parts.grow(old, &setup, config, deadline)?;
                parts.take(id, communicator, follow_up(deadline))?
            }
        };
        group.startup.met(met, exchanged - met);
        Ok(group.hosting(host))
    }

    /// Returns the group's settings.
    pub(super) fn shared_settings(&self, timing: bool, checked: bool) -> SharedSettings {
        let own = self.settings.clone().timing(timing);
        SharedSettings { heartbeat: self.heartbeat, checked, lazy: self.lazy, own }
    }

    /// Returns the settings for messages.
    pub(super) fn messages(&self, context: &Context) -> KindResult<messages::Settings> {
        if let Some(problem) = self.p2p.problem() {
            return Err(GroupErrorKind::Setting { problem });
        }
        let multiprocessors = context.device().multiprocessors()?;
        Ok(messages::Settings { policy: self.p2p, multiprocessors })
    }

    /// Determines this rank's settings from the builder and the environment. Opens the store, loads NCCL and the
    /// driver, and retains the device's context, where the builder has none. Creates the folder for dumps. This rank's
    /// own errors are thus reported before it meets the others. `counted` is true if the store that the environment
    /// names counts its [`workers`](crate::store::TcpOptions::workers).
    pub(super) fn ready(&self, counted: bool, deadline: Deadline) -> Result<Ready> {
        let environment = Environment::read()?;
        let rank = self.rank.or(environment.rank).ok_or_else(|| Environment::missing("RANK", "a rank"))?;
        let size = self
            .world_size
            .or(environment.world_size)
            .ok_or_else(|| Environment::missing("WORLD_SIZE", "a world size"))?;
        if rank >= size {
            return Err(GroupErrorKind::NoSuchRank { rank, size }.into());
        }
        let (store, host) = match &self.store {
            Some(store) => (store.clone(), None),
            None => {
                let store = environment.tcp_store(rank, counted.then_some(size), deadline)?;
                (Arc::new(store.clone()) as SharedStore, store.is_host().then_some(store))
            }
        };
        let nccl = match &self.nccl {
            Some(nccl) => nccl.clone(),
            None => Nccl::load()?,
        };
        let context = match &self.context {
            Some(context) => context.clone(),
            None => {
                let ordinal =
                    environment.local_rank.ok_or_else(|| Environment::missing("LOCAL_RANK", "a context"))?;
                let ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
                Driver::load()?.device(ordinal)?.retain_primary()?
            }
        };
        self.settings.check("build", &nccl)?;
        let folder = self.dump_folder.clone().or(environment.dump_folder);
        if let Some(folder) = &folder {
            let is_ready = if cfg!(feature = "pickle") {
                fs::create_dir_all(folder)
            } else {
                Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "process-group was built without its feature `pickle`",
                ))
            };
            is_ready.map_err(|source| DumpError { path: folder.clone(), source })?;
        }
        let timing = self.settings.timing.unwrap_or(environment.timing);
        let checked = self.checked || environment.checked;
        let support = RegistrationSupport::here(self.registration.unwrap_or(environment.registration), &nccl);
        Ok(Ready { rank, size, store, host, nccl, context, folder, timing, checked, support })
    }
}

/// The state of a rank before it meets the others.
pub(super) struct Ready {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) store: SharedStore,
    /// The store, if this rank is its host.
    pub(super) host: Option<TcpStore>,
    pub(super) nccl: Nccl,
    pub(super) context: Context,
    /// The folder for dumps.
    pub(super) folder: Option<PathBuf>,
    pub(super) timing: bool,
    pub(super) checked: bool,
    /// Whether this rank requests and supports registration of memory.
    pub(super) support: RegistrationSupport,
}

/// Returns the watch of a job, or [`GroupErrorKind::Thread`] if a thread of it could not be started.
pub(super) fn watch(begun: io::Result<Watch>) -> KindResult<Arc<Watch>> {
    begun.map(Arc::new).map_err(|source| GroupErrorKind::Thread { thread: "watch", source })
}

impl ProcessGroup {
    /// Returns a builder of a group. Settings that are not set on the builder come from the [environment](Environment).
    pub fn builder() -> Builder {
        Builder::new()
    }
}
