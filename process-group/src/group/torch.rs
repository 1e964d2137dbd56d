//! Joins the default group of a `torch.distributed` job.
//!
//! PyTorch's ranks find each other by one value: rank 0 stores NCCL's unique id under a key of the store, and
//! the others wait for that key. With the unique id, a rank can join their communicator. This crate's other
//! agreements over the store are not possible, because PyTorch's ranks do not take part in them.
//!
//! | release | backend | key of the unique id, below [`DEFAULT_GROUP`] |
//! |---|---|---|
//! | up to 2.14 | `nccl` | `0`, the first value of a counter |
//! | 2.15 | `nccl-legacy` | the same |
//! | 2.15 | `nccl`, `nccl2`, `nccl-lazy` | `0/nccl_storekey_0`, the group's name and the first value of a counter |
//!
//! The rows of 2.15 were observed in a store that PyTorch 2.15 had written to. Rank 0 writes the id under
//! both keys, and the other ranks accept either.

use std::{slice, sync::Arc, time::Duration};

use bootstrap::runtime;

use super::{
    Builder, GroupErrorKind, GroupId, KindResult, Member, P2pPolicy, ProcessGroup, Result, TorchError,
    builder::{Ready, watch},
    error::CallContext,
    group_parts::GroupParts,
    health::GroupHealth,
    p2p::messages::Messages,
    store_keys::{FOLDER, own_part},
};
use crate::{
    comm::{Communicator, Config, Nccl, UniqueId},
    peers::Peers,
    record::{ProgressRpc, Recorder},
    store::{Deadline, PrefixStore, Store},
    watch::Watch,
};

/// The prefix of the default group's keys in the store. PyTorch joins three parts with slashes: `default_pg`,
/// the group's name with a slash, and the device type with a slash.
const DEFAULT_GROUP: &str = "default_pg/0//cuda/";

/// The keys of the unique id, below `DEFAULT_GROUP`.
const UNIQUE_ID: [&str; 2] = ["0", "0/nccl_storekey_0"];

/// PyTorch's counter of arrived ranks, used if `TORCH_DIST_INIT_BARRIER` is 1, and the key that the last rank
/// sets.
const ARRIVED: [&str; 2] =
    ["default_pg/store_based_barrier_key:0", "default_pg/store_based_barrier_key:0:last_worker"];

/// The maximum number of ranks that share one unique id, unless `TORCH_NCCL_RANKS_PER_ROOT` sets another
/// limit.
const RANKS_PER_ROOT: usize = 128;

/// The name of the joined group in errors and dumps.
const NAME: &str = "default_pg";

impl Builder {
    /// Joins the default group of a `torch.distributed` job. The other ranks may use Python, or call this
    /// function too. Collective, together with `init_process_group("nccl")` in Python.
    ///
    /// This rank takes its position in the job from `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and
    /// `MASTER_PORT`, as `torchrun` sets them. If no agent of `torchrun` hosts the store, rank 0 hosts it,
    /// whether rank 0 uses Python or Rust. An explicit [`store`](Self::store) must be the job's own store,
    /// without any prefix.
    ///
    /// Supports `nccl` with PyTorch 2.11 and 2.15, and `nccl-legacy` with 2.15. All ranks must load the same
    /// release of NCCL: set `NCCL_SYS_LIBRARY` to the file that PyTorch loads (`nvidia/nccl/lib/libnccl.so.2`
    /// in the folder of PyTorch's packages).
    ///
    /// The group has all functions of a communicator: every operation of this crate, [`Work`](super::Work)
    /// and deadlines, the flight recorder, and abort. Functions that need an agreement of the members are
    /// missing, because PyTorch's ranks take part in none:
    /// - [`barrier`](ProcessGroup::barrier) and [`split`](ProcessGroup::split) return [`GroupErrorKind::Joined`],
    ///   [windows](ProcessGroup::windows_supported) are unsupported, and [`members`](ProcessGroup::members)
    ///   contains only this rank. In place of a barrier, all-reduce one element.
    /// - Members are not monitored: a rank that dies is noticed only by a deadline, or by NCCL. PyTorch's
    ///   ranks do not answer [`progress`](ProcessGroup::progress).
    /// - Calls are not [compared](Self::checked), neither before the launch nor afterwards.
    ///
    /// Requirements on PyTorch's ranks:
    /// - `init_process_group` must name the backend `nccl`. Without a backend, PyTorch also makes a group of
    ///   `gloo`, which waits for this rank. For the same reason, `TORCH_DISTRIBUTED_DEBUG` must not be
    ///   `DETAIL`.
    /// - `send` and `recv` need a `device_id` in `init_process_group`, or must be part of
    ///   `batch_isend_irecv`. Otherwise PyTorch up to 2.14 makes a separate communicator for each pair of
    ///   ranks.
    /// - The ranks must not make further groups. This call joins the first communicator of the job.
    ///   `new_group` splits that communicator if it exists from the start (after a `device_id`, and always in
    ///   2.15), and every rank would have to take part in the split.
    ///
    /// The example `torch_all_reduce` sums values of Python and Rust ranks.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Environment`], [`GroupErrorKind::NoSuchRank`], [`GroupErrorKind::Store`],
    ///   [`GroupErrorKind::Dump`], as for [`build`](Self::build).
    /// - [`GroupErrorKind::Setting`] for a setting that needs an agreement with PyTorch's ranks.
    /// - [`GroupErrorKind::Torch`] if the job has more ranks than can share one unique id, or if rank 0 publishes
    ///   none by the deadline.
    /// - [`GroupErrorKind::Comm`], also if other ranks do not come by the deadline.
    /// - [`GroupErrorKind::Driver`].
    #[doc(alias = "init_process_group")]
    pub fn join_torch(self) -> Result<ProcessGroup> {
        let context = CallContext::of_call(&NAME.into(), "join_torch");
        self.join_ranks_of_torch().map_err(|error| context.error(error))
    }

    fn join_ranks_of_torch(self) -> Result<ProcessGroup> {
        let deadline = Deadline::after(self.settings.time_limit());
        if self.lazy || !matches!(self.p2p, P2pPolicy::Auto | P2pPolicy::Shared) {
            let problem = "PyTorch's ranks agree on neither a lazy start nor a policy for messages".into();
            return Err(GroupErrorKind::Setting { problem }.into());
        }
        let Ready { rank, size, store, host, nccl, context, folder, timing, .. } =
            self.ready(true, deadline)?;
        let shared_settings = self.shared_settings(timing, false);
        let messages = Messages::new(self.messages(&context)?, false, size, &shared_settings.own);
        one_root(size)?;
        let me = Member::here(rank, size, &nccl, &context)?;
        arrive(&*store, size)?;
        let id = if rank == 0 { publish(&*store, &nccl)? } else { follow(&*store, deadline)? };

        let name: Arc<str> = NAME.into();
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
        let watch = watch(Watch::begin(&store, rank, alone, shared_settings.heartbeat, &recorder, peers))?;
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
        // PyTorch gives its default group the number 0.
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

/// Counts this rank as arrived, for PyTorch's ranks that may wait for all ranks. This rank does not wait for
/// them here, because they publish no unique id before their own wait is over.
fn arrive(store: &dyn Store, size: usize) -> KindResult<()> {
    let [count, last] = ARRIVED;
    if usize::try_from(store.add(count, 1)?) == Ok(size) {
        store.set(last, b"1")?;
    }
    Ok(())
}

/// Makes a unique id and writes it under the keys of all supported releases.
fn publish(store: &dyn Store, nccl: &Nccl) -> KindResult<UniqueId> {
    let id = nccl.unique_id()?;
    UNIQUE_ID.iter().try_for_each(|name| store.set(&key(name), id.as_bytes()))?;
    Ok(id)
}

/// Waits until one of the keys in `UNIQUE_ID` exists, and returns the unique id under that key.
fn follow(store: &dyn Store, deadline: Deadline) -> KindResult<UniqueId> {
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
