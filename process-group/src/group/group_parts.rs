//! The parts of a rank's group that exist before the communicator is made.

use std::sync::{Arc, OnceLock, Weak};

use bootstrap::runtime;
use cuda_driver::Context;

use super::shared_settings::SharedSettings;
use super::{
    GroupErrorKind, GroupId, KindResult, Member, NotRegistered, ProcessGroup, Result,
    buffer_cache::BufferCache,
    connection::Connection,
    counter::Counter,
    end::Membership,
    error::CallContext,
    form::stay_away,
    health::GroupHealth,
    meeting::Attempts,
    member,
    p2p::messages::Messages,
    process_group::{Follower, SharedStore},
    registered::Registered,
    startup::Clock,
    work::{Marks, Outstanding},
    work_monitor::WorkMonitor,
};
use crate::{
    comm::{self, Communicator, Config, Nccl},
    memory::PlanNames,
    record::{GroupEntry, ProgressRpc, Recorder},
    store::{Deadline, PrefixStore, Store, StoreError},
    watch::{Watch, Watchdog},
};

/// The parts of a rank's group that exist before the communicator is made.
pub(super) struct GroupParts {
    pub(super) name: Arc<str>,
    pub(super) rank: usize,
    /// The ranks of the job that are members, in the order of their ranks in this group.
    pub(super) ranks: Arc<[usize]>,
    pub(super) members: Arc<[Member]>,
    pub(super) numbers: PrefixStore,
    pub(super) root: SharedStore,
    pub(super) job: PrefixStore,
    /// The prefix of the group's own keys in `job`: empty, or with `/` at its end.
    pub(super) path: String,
    pub(super) shared_settings: SharedSettings,
    pub(super) recorder: Arc<Recorder>,
    pub(super) progress_rpc: Arc<ProgressRpc>,
    pub(super) watch: Arc<Watch>,
    /// Ends the group when a member is lost.
    pub(super) health: Arc<GroupHealth>,
    pub(super) messages: Messages,
    pub(super) followers: Vec<Follower>,
}

impl ProcessGroup {
    /// Returns this rank's parts of a new group, and begins to watch for losses of the new group's members. `places`
    /// are the members' ranks in this group, including this rank. `path` is the prefix of the new group's keys.
    pub(super) fn group_parts(
        &self,
        name: String,
        places: &[usize],
        path: String,
        shared_settings: SharedSettings,
    ) -> GroupParts {
        let name: Arc<str> = name.into();
        let rank = places.iter().position(|place| *place == self.rank).unwrap_or_default();
        let members: Arc<[_]> = places.iter().map(|place| self.members[*place].clone()).collect();
        let ranks: Arc<[usize]> = members.iter().map(|member| member.rank).collect();
        let (recorder, watch) = (self.counter.recorder.clone(), self.watch.clone());
        let health =
            GroupHealth::begin(&name, &ranks, rank, &recorder, shared_settings.heartbeat, watch.signal());
        watch.add(&health);
        GroupParts {
            name,
            rank,
            ranks,
            members,
            numbers: self.numbers.clone(),
            root: self.root.clone(),
            job: self.job.clone(),
            path,
            recorder,
            progress_rpc: self.progress_rpc.clone(),
            watch,
            health,
            messages: self.messages.of_subgroup(shared_settings.lazy, places.len(), &shared_settings.own),
            shared_settings,
            followers: self.followers.clone(),
        }
    }
}

/// Reserves `count` numbers for new groups in the store, and returns the lowest. Only the first member does that. The
/// other members get 0 here, and read the number from the first member's record.
///
/// The first number of a store is random, so that groups of different stores have different numbers.
pub(super) fn take_numbers(numbers: &PrefixStore, is_first: bool, count: usize) -> Result<u64, StoreError> {
    const KEY: &str = "groups";
    if !is_first {
        return Ok(0);
    }
    if !numbers.check(&[KEY])? {
        let random = runtime::random()
            .map_err(|error| StoreError::Argument(format!("no random number for a group: {error}")))?;
        // The number of groups takes the lower bits. The sign bit stays clear.
        let first = i64::from(u32::from_le_bytes(random) >> 1) << GroupId::STORE_SHIFT;
        // If another rank has set the first number meanwhile, that number stays.
        numbers.compare_set(KEY, b"", first.to_string().as_bytes())?;
    }
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    Ok((numbers.add(KEY, count)? - count + 1).unsigned_abs())
}

impl GroupParts {
    /// Returns `config` with this group's name and with the window facts of its members.
    pub(super) fn config(&self, config: Config) -> Config {
        Config {
            name: Some(self.name.to_string()),
            window_facts: member::window_facts(&self.members),
            ..config
        }
    }

    /// Builds the group. Makes the communicator, unless the group is lazy.
    pub(super) fn init(
        self,
        id: GroupId,
        nccl: &Nccl,
        context: &Context,
        config: Config,
        deadline: Deadline,
    ) -> Result<ProcessGroup> {
        let setup = comm::MemberSetup { nccl, context, rank: self.rank };
        let prepared = Communicator::prepare(&setup, self.ranks.len(), &self.config(config));
        let connects = !self.shared_settings.lazy;
        self.begin(id, prepared, connects, deadline)
    }

    /// Builds the group with a communicator that exists. Collective.
    pub(super) fn take(
        self,
        id: GroupId,
        communicator: Communicator,
        deadline: Deadline,
    ) -> Result<ProcessGroup> {
        self.begin(id, Ok(communicator), true, deadline)
    }

    /// Builds the group. Connects the group if `connects`. If this rank fails before it connects, it notifies the other
    /// members, so that they do not wait for it. Errors have the name of this group, which may be made by a call of
    /// another one.
    fn begin(
        self,
        id: GroupId,
        communicator: comm::Result<Communicator>,
        connects: bool,
        deadline: Deadline,
    ) -> Result<ProcessGroup> {
        let context = CallContext::of_group(&self.name);
        self.begin_group(id, communicator, connects, deadline).map_err(|error| context.error(error))
    }

    fn begin_group(
        self,
        id: GroupId,
        communicator: comm::Result<Communicator>,
        connects: bool,
        deadline: Deadline,
    ) -> KindResult<ProcessGroup> {
        let (job, path, rank) = (self.job.clone(), self.path.clone(), self.ranks[self.rank]);
        let made = communicator.map_err(GroupErrorKind::from).and_then(|made| self.group(id, made));
        let group = made.inspect_err(|_| stay_away(&job, &path, rank))?;
        if connects {
            group.connect_by(deadline)?;
        }
        group.membership.begin();
        group.counter.health.notify_of_end(group.shared_settings.own.on_end.clone());
        Ok(group)
    }

    /// Builds a group that was joined from PyTorch, with an existing communicator. The group's members make no
    /// agreements.
    pub(super) fn joined(self, id: GroupId, communicator: Communicator) -> KindResult<ProcessGroup> {
        let group = self.group(id, communicator)?;
        group.connection.set_made();
        group.announce(&group.communicator)?;
        let _ = group.registered.set(Registered::not(NotRegistered::Joined));
        group.counter.health.notify_of_end(group.shared_settings.own.on_end.clone());
        Ok(group)
    }

    /// Returns the group's own part of the job's store.
    fn store(&self) -> PrefixStore {
        match self.path.strip_suffix('/') {
            Some(prefix) => PrefixStore::new(prefix, Arc::new(self.job.clone())),
            None => self.job.clone(),
        }
    }

    fn group(self, id: GroupId, communicator: Communicator) -> KindResult<ProcessGroup> {
        self.health.guard(&communicator.abort_handle());
        let store = self.store();
        let Self { name, rank, ranks, members, numbers, root, job, path, shared_settings, .. } = self;
        let Self { recorder, progress_rpc, watch, health, messages, followers, .. } = self;
        let context = communicator.context();
        let outstanding = Arc::new(Outstanding::new(recorder.ring()));
        let look: Weak<Outstanding> = Arc::downgrade(&outstanding);
        let monitor = WorkMonitor::new(
            id.to_string(),
            store.clone(),
            &progress_rpc,
            look.clone(),
            &shared_settings.own,
        );
        let monitor = health.monitor.get_or_init(|| monitor);
        let (id_text, timeout) = (id.to_string(), shared_settings.own.time_limit());
        let plans = Arc::<PlanNames>::default();
        let entry = GroupEntry {
            id: id_text,
            name: name.clone(),
            ranks: ranks.to_vec(),
            timeout,
            look,
            plans: plans.clone(),
        };
        let log = recorder.log(entry, rank, monitor.counts(), monitor.rolling());
        let guard =
            Watchdog::add(&health).map_err(|source| GroupErrorKind::Thread { thread: "watchdog", source })?;
        // Reports earlier notifications about this group to its health: a faster member may have left already.
        watch.recall(&health);
        let membership = Membership::new(&health);
        let counter = Counter::new(
            id,
            name.clone(),
            (log, recorder),
            (health, timeout),
            ranks.clone(),
            context.device(),
        );
        let marks = Marks::new(context, shared_settings.own.times());
        let buffer_cache =
            BufferCache::new(context, communicator.nccl(), shared_settings.own.checks_buffers(), plans);
        Ok(ProcessGroup {
            membership,
            name,
            rank,
            ranks,
            members,
            communicator,
            connection: Connection::default(),
            messages,
            followers,
            numbers,
            root,
            job,
            store,
            path,
            host: None,
            shared_settings,
            counter,
            attempts: Attempts::default(),
            startup: Clock::default(),
            marks,
            outstanding,
            progress_rpc,
            watch,
            _guard: guard,
            registered: OnceLock::new(),
            buffer_cache,
        })
    }
}
