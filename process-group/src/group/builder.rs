//! How the ranks of a job become a group.

use std::{
    fmt, fs, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cuda_driver::{Context, Driver};

use super::{
    Environment, GroupError, GroupId, Member, ProcessGroup, Result, Stance, Witnesses,
    agreed::Agreed,
    form::Follower,
    join::join,
    p2p::{self, Messages, P2pPolicy},
    process_group::SharedStore,
    seat::{Seat, Terms, stay_away},
    vigil::Vigil,
};
use crate::{
    comm::{self, Communicator, Config, Nccl},
    peers::Peers,
    record::{self, Desk, DumpError, Progress, Recorder},
    store::{Deadline, PrefixStore, Store, TcpStore},
    watch::Watch,
};

/// What makes a [`ProcessGroup`]. What it is not told comes from the [environment](Environment).
///
/// ```
/// use process_group::{ProcessGroup, store::HashStore};
/// use std::{sync::Arc, time::Duration};
///
/// // A rank of threads: everything is told, nothing is looked up.
/// let store = Arc::new(HashStore::new());
/// let builder = ProcessGroup::builder().store(store).rank(0).world_size(4).timeout(Duration::from_secs(30));
/// # drop(builder);
/// ```
#[derive(Clone)]
#[must_use = "a builder makes nothing until build is called"]
pub struct Builder {
    pub(super) name: String,
    pub(super) epoch: u64,
    rank: Option<usize>,
    world_size: Option<usize>,
    store: Option<SharedStore>,
    context: Option<Context>,
    nccl: Option<Nccl>,
    pub(super) config: Config,
    pub(super) timeout: Duration,
    work_timeout: Option<Duration>,
    pub(super) heartbeat: Duration,
    witnesses: Witnesses,
    checked: bool,
    dump_folder: Option<PathBuf>,
    timing: bool,
    pub(super) registration: Option<bool>,
    pub(super) check_buffers: bool,
    pub(super) lazy: bool,
    pub(super) p2p: P2pPolicy,
    p2p_config: Option<Config>,
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
            config: Config::new(),
            timeout: Duration::from_secs(600),
            work_timeout: None,
            heartbeat: Duration::from_secs(1),
            witnesses: Witnesses::default(),
            checked: false,
            dump_folder: None,
            timing: false,
            registration: None,
            check_buffers: true,
            lazy: false,
            p2p: P2pPolicy::default(),
            p2p_config: None,
            followers: Vec::new(),
        }
    }

    /// What the group is called (default `world`). A name serves one group of a store and epoch.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The generation of the job (default 0): a job that begins anew on the same store gives the next one.
    pub fn epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// This rank (default `RANK`).
    pub fn rank(self, rank: usize) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// How many ranks there are (default `WORLD_SIZE`).
    pub fn world_size(self, size: usize) -> Self {
        Self { world_size: Some(size), ..self }
    }

    /// Where the ranks meet (default: a [`TcpStore`] at `MASTER_ADDR` and `MASTER_PORT`, which rank 0 hosts for as
    /// long as it has the group or a subgroup of it).
    pub fn store(self, store: SharedStore) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The device (default: the one whose ordinal is `LOCAL_RANK`, of the system's driver).
    pub fn context(self, context: &Context) -> Self {
        Self { context: Some(context.clone()), ..self }
    }

    /// The library (default: [`Nccl::load`]).
    pub fn nccl(self, nccl: &Nccl) -> Self {
        Self { nccl: Some(nccl.clone()), ..self }
    }

    /// Settings of the communicator. Its name is the group's, and its window facts are the members'.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// How long [`build`](Self::build) waits for the other ranks, and what the group gives where no deadline is
    /// given (default 10 minutes).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long work may take once it is the oldest of its stream (default: the [timeout](Self::timeout)), whether or not
    /// anybody waits for it, and how long a call on a [path](super::Path) may take to return. Past that the group is over on every member, with [`GroupError::Overdue`], which says who has
    /// not joined; the flight recorders have written their dumps. What a graph captured is not seen, unless
    /// [`launched`](ProcessGroup::launched) marks its runs.
    pub fn work_timeout(self, timeout: Duration) -> Self {
        Self { work_timeout: Some(timeout), ..self }
    }

    /// How often this process says that it is running (default 1 s). The ranks of its host know of its death within
    /// milliseconds, and take it for [silent](crate::peers::Loss::Silent) when it has not run for up to twice that; those
    /// of other hosts know of neither in another way, through the store, in which they look four times a heartbeat.
    /// Either ends the group on every rank, with [`GroupError::Lost`]. All ranks should be told the same.
    pub fn heartbeat(self, heartbeat: Duration) -> Self {
        Self { heartbeat: heartbeat.max(Duration::from_millis(1)), ..self }
    }

    /// What tells the ranks of one host of each other's end (default: the kernel). All ranks must be told the same.
    pub fn witnesses(self, witnesses: Witnesses) -> Self {
        Self { witnesses, ..self }
    }

    /// Has every call compared with those of the other members before it is launched (default: not, unless
    /// `PROCESS_GROUP_CHECKED` is 1): collectives on all members, messages on both ends, with types, counts, roots,
    /// reductions and shares, and where buffers lie in symmetric memory
    /// ([`compare_places`](ProcessGroup::compare_places)). Calls that do not fit are [`GroupError::CallsDiffer`] on every member that compared, and a
    /// member that does not come within the [timeout](Self::timeout) is [`GroupError::Absent`]; nothing is launched
    /// then, and the group goes on. A call costs about ten requests of the store, and waits for the other members:
    /// messages in both directions belong in one [batch](ProcessGroup::batch), as on the device. All ranks must be told
    /// the same. Without it, calls that differ are found [later](GroupError::CollectiveDiverged).
    pub fn checked(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// Where the flight recorder writes its dump when work is not done by a deadline or NCCL reports an error, on this
    /// rank or another, and when the group is aborted (default `PROCESS_GROUP_DUMP_FOLDER`; without either, nowhere).
    /// It is made if it is not there. All ranks of a host may share it; see
    /// [`Dump::write`](crate::record::Dump::write).
    pub fn dump_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { dump_folder: Some(folder.into()), ..self }
    }

    /// Has the device time every operation (default: not, unless `PROCESS_GROUP_TIMING` is 1): two events that take the
    /// time, in place of one that does not. Then [`Work::elapsed_us`](super::Work::elapsed_us) says how long one took,
    /// and so does the flight recorder, which also tells what a stream has come to from what waits behind it. A rank
    /// may time what others do not.
    pub fn timing(self, timing: bool) -> Self {
        Self { timing, ..self }
    }

    /// Makes no communicator yet: the ranks meet and agree as always, and the communicator is made by all members with
    /// their first operation that needs it, or by [`ProcessGroup::connect`]. All ranks are told the same. Groups that
    /// are split off are lazy too. Whether [memory](Self::registration) is registered is agreed on when it is made.
    pub fn lazy(self) -> Self {
        Self { lazy: true, ..self }
    }

    /// On which communicators messages go (default [`P2pPolicy::Auto`]); see [`p2p`]. All ranks are told
    /// the same.
    pub fn p2p(self, policy: P2pPolicy) -> Self {
        Self { p2p: policy, ..self }
    }

    /// Settings of the communicators that messages have beyond the group's (default: the group's, with thread blocks
    /// bounded so that all find room at once). Their names and window facts are set by the group.
    pub fn p2p_config(self, config: Config) -> Self {
        Self { p2p_config: Some(config), ..self }
    }

    /// Has `follower` told of every communicator that the group and those split from it make, for itself and for its
    /// messages: when it is made, and before anything is launched on it. What it fails with fails the making, on all
    /// ranks. It meets no other rank.
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
    /// - [`GroupError::Environment`], [`GroupError::NoSuchRank`]: this rank does not know where it stands;
    /// - [`GroupError::Absent`] with the ranks that did not come, and [`GroupError::Disagreement`], the same on
    ///   every rank that came;
    /// - [`GroupError::Store`]: no store there, its port in use, another process under this rank;
    /// - [`GroupError::Peers`]: the processes of this host cannot watch each other;
    /// - [`GroupError::Dump`]: the folder for dumps cannot be made;
    /// - [`GroupError::Setting`]: a policy that cannot be;
    /// - [`GroupError::Unmade`]: what another rank met when all made the communicator; [`GroupError::Comm`] and
    ///   [`GroupError::Driver`] on that one; [`GroupError::Lost`]: it died meanwhile.
    pub fn build(self) -> Result<ProcessGroup> {
        let (began, deadline) = (Instant::now(), Deadline::after(self.timeout));
        let Ready { rank, size, store, host, nccl, context, folder, timing, checked, stance } =
            self.ready(false, deadline)?;
        let messages = Messages::new(self.messages(&context)?, self.lazy, size, &self.config);
        let terms = self.terms(timing, checked);
        let name: Arc<str> = self.name.into();
        let root = PrefixStore::new(FOLDER, store);
        let store = own_part(&root, &name, self.epoch);

        Watch::announce(&store, rank)?;
        let agreed = Agreed::default()
            .with("initialisation", if self.lazy { "lazy" } else { "eager" })
            .with("p2p policy", self.p2p);
        let member = Member::here(rank, size, &nccl, &context)?.told(checked, self.witnesses, stance);
        let ranks: Arc<[usize]> = (0..size).collect();
        let members = join(&name, &store, rank, size, &agreed.behind(&member.encode()), deadline)?;
        let peers = Peers::meet(&store, rank, &members, self.heartbeat, deadline)?;
        let met = began.elapsed();
        let numbers = PrefixStore::new("numbers", Arc::new(root));
        let recorder = Recorder::new(rank, name.clone(), nccl.release().to_string(), folder);
        let watch = watch(&name, Watch::begin(&store, rank, &members, self.heartbeat, &recorder, peers))
            .inspect_err(|_| stay_away(&store, rank))?;
        // From now on a loss ends whatever this rank waits in.
        let vigil = Vigil::begin(&name, &ranks, rank, &store, &recorder, self.heartbeat, &watch);
        let uid = number(&vigil, &name, (rank == 0).then_some(&numbers), deadline)?;
        let id = GroupId { uid, epoch: self.epoch };
        let exchanged = began.elapsed();
        let desk = Arc::new(Desk::open(&store, size)?);
        let followers = self.followers;
        let seat = Seat {
            name,
            rank,
            ranks,
            members,
            numbers,
            job: store.clone(),
            store,
            terms,
            recorder,
            desk,
            watch,
            messages,
            followers,
        };
        let mut group = seat.init(vigil, id, &nccl, &context, self.config, deadline)?;
        group.startup.met(met, exchanged - met);
        Ok(group.hosting(host))
    }

    /// What the group is held to.
    pub(super) fn terms(&self, timing: bool, checked: bool) -> Terms {
        let Self { timeout, work_timeout, heartbeat, check_buffers: looks, lazy, .. } = *self;
        let work_timeout = work_timeout.unwrap_or(timeout);
        Terms { timeout, work_timeout, heartbeat, timing, checked, looks, lazy }
    }

    /// What messages are to go on.
    pub(super) fn messages(&self, context: &Context) -> Result<p2p::Settings> {
        if let Some(problem) = self.p2p.problem() {
            return Err(GroupError::Setting { group: self.name.clone(), problem });
        }
        let multiprocessors = context.device().multiprocessors()?;
        Ok(p2p::Settings { policy: self.p2p, own: self.p2p_config.clone(), multiprocessors })
    }

    /// Finds out where this rank stands, and what it finds wrong on its own, before the others are met. `counted` says
    /// whether the [`workers`](crate::store::TcpOptions::workers) of the environment's store are.
    pub(super) fn ready(&self, counted: bool, deadline: Deadline) -> Result<Ready> {
        let environment = Environment::read()?;
        let rank = self.rank.or(environment.rank).ok_or_else(|| Environment::missing("RANK", "a rank"))?;
        let size = self
            .world_size
            .or(environment.world_size)
            .ok_or_else(|| Environment::missing("WORLD_SIZE", "a world size"))?;
        if rank >= size {
            return Err(GroupError::NoSuchRank { rank, size });
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
        comm::settings("build", &nccl, &self.config)?;
        self.p2p_config.as_ref().map_or(Ok(()), |config| comm::settings("build", &nccl, config).map(drop))?;
        let folder = self.dump_folder.clone().or(environment.dump_folder);
        if let Some(folder) = &folder {
            fs::create_dir_all(folder).map_err(|source| DumpError { path: folder.clone(), source })?;
        }
        let timing = self.timing || environment.timing;
        let checked = self.checked || environment.checked;
        let stance = Stance::here(self.registration.unwrap_or(environment.registration), &nccl);
        Ok(Ready { rank, size, store, host, nccl, context, folder, timing, checked, stance })
    }
}

/// What a rank has before it meets the others.
pub(super) struct Ready {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) store: SharedStore,
    /// The store, if this rank hosts it for the group.
    pub(super) host: Option<TcpStore>,
    pub(super) nccl: Nccl,
    pub(super) context: Context,
    /// Where dumps go.
    pub(super) folder: Option<PathBuf>,
    pub(super) timing: bool,
    pub(super) checked: bool,
    /// What it says of registration.
    pub(super) stance: Stance,
}

/// The watch over a job, if the system has the threads for it.
pub(super) fn watch(group: &str, begun: io::Result<Watch>) -> Result<Arc<Watch>> {
    begun.map(Arc::new).map_err(|source| GroupError::Thread { group: group.into(), thread: "watch", source })
}

/// Where a group's first rank tells its number.
pub(super) const NUMBER: &str = "number";

/// The number of a new group: its rank 0, which has the `numbers`, takes the next and tells the others.
fn number(vigil: &Vigil, group: &str, numbers: Option<&PrefixStore>, deadline: Deadline) -> Result<u64> {
    let word = match numbers {
        Some(numbers) => {
            vigil.explain(vigil.say(NUMBER, &numbers.add("groups", 1)?.unsigned_abs().to_le_bytes()))?
        }
        None => vigil.hear(NUMBER, 0, "the start of the group", deadline)?,
    };
    read_number(group, 0, &word)
}

/// A number as rank `rank` of the job has published it.
pub(super) fn read_number(group: &str, rank: usize, bytes: &[u8]) -> Result<u64> {
    let number = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
    number.map_err(|_| GroupError::Number { group: group.into(), rank, bytes: bytes.len() })
}

/// The part of a user's store that is for groups.
pub(super) const FOLDER: &str = "process-group";

/// A group's part of that.
pub(super) fn own_part(root: &PrefixStore, name: &str, epoch: u64) -> PrefixStore {
    PrefixStore::new(&format!("{name}/{epoch}"), Arc::new(root.clone()))
}

impl ProcessGroup {
    /// Asks all ranks of a job how far they are, from outside: `store` is theirs, `name` and `epoch` are those that
    /// they built their group with. There is an answer for the group and for each that was split from it, in the order
    /// of their making. Who has not answered by the deadline stands without; two seconds are plenty for who can.
    ///
    /// # Errors
    /// [`GroupError::Store`]; it is a time-out if there is no such job.
    pub fn observe(store: SharedStore, name: &str, epoch: u64, deadline: Deadline) -> Result<Vec<Progress>> {
        Ok(record::ask(own_part(&PrefixStore::new(FOLDER, store), name, epoch), deadline)?)
    }
}
