//! Joins the default group of a `torch.distributed` job.
//!
//! PyTorch's ranks find each other by one value: rank 0 puts NCCL's unique id under a key of the store, and
//! the others wait for it there. A rank needs nothing else to be in their communicator. All other agreements
//! that this crate makes over the store are not possible, because PyTorch's ranks do not answer them.
//!
//! | release | backend | key of the unique id, below [`DEFAULT_GROUP`] |
//! |---|---|---|
//! | up to 2.14 | `nccl` | `0`, the first of a counter |
//! | 2.15 | `nccl-legacy` | the same |
//! | 2.15 | `nccl`, `nccl2`, `nccl-lazy` | `0/nccl_storekey_0`, the group's name and the first of a counter |
//!
//! All three lines of 2.15 were seen in a store that it had written to. Rank 0 therefore writes the id under
//! both keys, and the others accept either.

use std::{slice, sync::Arc, time::Duration};

use bootstrap::runtime;

use super::{
    Builder, GroupError, GroupId, Member, P2pPolicy, ProcessGroup, Result, TorchError,
    builder::{FOLDER, Ready, own_part, watch},
    group_parts::GroupParts,
    health::GroupHealth,
    p2p::messages::Messages,
};
use crate::{
    comm::{Communicator, Config, Nccl, UniqueId},
    peers::Peers,
    record::{ProgressRpc, Recorder},
    store::{Deadline, PrefixStore, Store},
    watch::Watch,
};

/// The prefix of the default group in the store: its own prefix, its name with a slash, the device's type
/// with a slash.
const DEFAULT_GROUP: &str = "default_pg/0//cuda/";

/// The keys of unique ids below it.
const UNIQUE_ID: [&str; 2] = ["0", "0/nccl_storekey_0"];

/// The counter of arrived ranks when `TORCH_DIST_INIT_BARRIER` is 1, and the key that the last rank sets.
const ARRIVED: [&str; 2] =
    ["default_pg/store_based_barrier_key:0", "default_pg/store_based_barrier_key:0:last_worker"];

/// The most ranks that share one unique id, unless `TORCH_NCCL_RANKS_PER_ROOT` sets another limit.
const RANKS_PER_ROOT: usize = 128;

impl Builder {
    /// Joins the default group of a `torch.distributed` job. The other ranks may use Python, or call this
    /// function too. Collective, together with `init_process_group("nccl")` in Python.
    ///
    /// This rank takes its place from `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`, as
    /// `torchrun` sets them. If no agent hosts the store, rank 0 hosts it, in either language. An explicit
    /// [`store`](Self::store) must be the job's own, without any prefix.
    ///
    /// Supports `nccl` with PyTorch 2.11 and 2.15, and `nccl-legacy` with 2.15. All ranks must load the same
    /// release of NCCL: set `NCCL_SYS_LIBRARY` to PyTorch's file (`nvidia/nccl/lib/libnccl.so.2` beside its
    /// packages).
    ///
    /// The group has all functions of a communicator: every operation of this crate, [`Work`](super::Work)
    /// and deadlines, the flight recorder, abort. It lacks everything that needs an agreement of the members,
    /// because PyTorch's ranks do not answer:
    /// - [`barrier`](ProcessGroup::barrier) and [`split`](ProcessGroup::split) return [`GroupError::Joined`],
    ///   [windows](ProcessGroup::windows_supported) are unsupported, and [`members`](ProcessGroup::members)
    ///   is this rank alone. All-reduce one element in place of a barrier.
    /// - Members are not watched: a rank that dies is noticed by a deadline, or by NCCL. In
    ///   [`progress`](ProcessGroup::progress) PyTorch's ranks do not answer.
    /// - Calls are not [compared](Self::checked), neither before nor after.
    ///
    /// Requirements on PyTorch's ranks:
    /// - `init_process_group` names the backend `nccl`. Without a backend it makes a group of `gloo` too,
    ///   which waits for this rank. `TORCH_DISTRIBUTED_DEBUG` must not be `DETAIL`, for the same reason.
    /// - `send` and `recv` need a `device_id` in `init_process_group`, or must be part of
    ///   `batch_isend_irecv`. Otherwise, up to 2.14, a pair of ranks makes its own communicator.
    /// - No further groups. This call joins the first communicator of the job. `new_group` splits that
    ///   communicator if it exists from the start (after a `device_id`, and always in 2.15), and every rank
    ///   would have to take part.
    ///
    /// The example `torch_all_reduce` adds up across both languages.
    ///
    /// # Errors
    /// - [`GroupError::Environment`], [`GroupError::NoSuchRank`], [`GroupError::Store`],
    ///   [`GroupError::Dump`], as for [`build`](Self::build).
    /// - [`GroupError::Setting`] for a setting that needs an agreement with PyTorch's ranks.
    /// - [`GroupError::Torch`], when rank 0 publishes no unique id by the deadline.
    /// - [`GroupError::Comm`], also when other ranks do not come by the deadline.
    /// - [`GroupError::Driver`].
    #[doc(alias = "init_process_group")]
    pub fn join_torch(self) -> Result<ProcessGroup> {
        let deadline = Deadline::after(self.settings.time_limit());
        if self.lazy || !matches!(self.p2p, P2pPolicy::Auto | P2pPolicy::Shared) {
            let problem = "PyTorch's ranks agree on neither a lazy start nor a policy for messages".into();
            return Err(GroupError::Setting { group: "default_pg".into(), problem });
        }
        let Ready { rank, size, store, host, nccl, context, folder, timing, .. } =
            self.ready(true, deadline)?;
        let shared_settings = self.shared_settings(timing, false);
        let messages = Messages::new(self.messages(&context)?, false, size, &shared_settings.own);
        one_root(size)?;
        let me = Member::here(rank, size, &nccl, &context)?;
        arrive(&*store, size)?;
        let id = if rank == 0 { publish(&*store, &nccl)? } else { follow(&*store, deadline)? };

        let name: Arc<str> = "default_pg".into();
        let config = Config { name: Some(name.to_string()), ..shared_settings.own.communicator() };
        let communicator = Communicator::init(&nccl, &context, &id, rank, size, &config, deadline)?;

        let root = PrefixStore::new(FOLDER, store.clone());
        let user = store;
        let store = own_part(&root, &name, self.epoch);
        let peers = Peers::meet(&store, 0, slice::from_ref(&me), self.heartbeat, deadline)?;
        let recorder = Recorder::new(rank, name.clone(), nccl.release().to_string(), folder);
        let progress_rpc = Arc::new(ProgressRpc::open(&store, size)?);
        Watch::announce(&store, rank)?;
        let alone = slice::from_ref(&me);
        let watch =
            watch(&name, Watch::begin(&store, rank, alone, shared_settings.heartbeat, &recorder, peers))?;
        let ranks: Arc<[usize]> = (0..size).collect();
        let health =
            GroupHealth::begin(&name, &ranks, rank, &recorder, shared_settings.heartbeat, watch.signal());
        watch.add(&health);
        let parts = GroupParts {
            name,
            rank,
            ranks,
            members: [me].into(),
            numbers: PrefixStore::new("numbers", Arc::new(root)),
            root: user,
            job: store,
            path: String::new(),
            shared_settings,
            recorder,
            progress_rpc,
            watch,
            health,
            messages,
            followers: self.followers,
        };
        // PyTorch's number for its default group.
        let group = parts.joined(GroupId { uid: 0, epoch: self.epoch }, communicator)?;
        Ok(group.hosting(host))
    }
}

/// Checks that all ranks of the job share one unique id.
fn one_root(size: usize) -> Result<(), TorchError> {
    let told = std::env::var("TORCH_NCCL_RANKS_PER_ROOT").ok().and_then(|text| text.trim().parse().ok());
    let limit = told.unwrap_or(RANKS_PER_ROOT);
    if size > limit { Err(TorchError::SeveralRoots { size, limit }) } else { Ok(()) }
}

fn key(name: &str) -> String {
    format!("{DEFAULT_GROUP}/{name}")
}

/// Counts this rank for PyTorch's ranks that may wait for all. This rank does not wait: they publish nothing
/// before their wait is over.
fn arrive(store: &dyn Store, size: usize) -> Result<()> {
    let [count, last] = ARRIVED;
    if usize::try_from(store.add(count, 1)?) == Ok(size) {
        store.set(last, b"1")?;
    }
    Ok(())
}

/// Makes a unique id and writes it under the keys of every release.
fn publish(store: &dyn Store, nccl: &Nccl) -> Result<UniqueId> {
    let id = nccl.unique_id()?;
    UNIQUE_ID.iter().try_for_each(|name| store.set(&key(name), id.as_bytes()))?;
    Ok(id)
}

/// Waits for the unique id under any of its keys.
fn follow(store: &dyn Store, deadline: Deadline) -> Result<UniqueId> {
    const LONGEST: Duration = Duration::from_millis(50);
    let keys = UNIQUE_ID.map(key);
    let mut pause = Duration::from_millis(1);
    loop {
        for key in &keys {
            if store.check(&[key])? {
                return Ok(UniqueId::try_from(&*store.get(key, deadline)?)?);
            }
        }
        if deadline.expired() {
            let found = store.list_keys().unwrap_or_default();
            let waited = deadline.waited();
            return Err(TorchError::NoUniqueId { looked_for: keys.into(), found, waited }.into());
        }
        runtime::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(LONGEST);
    }
}
