//! A rank in the default group of a `torch.distributed` job.
//!
//! PyTorch's ranks find each other by one value: rank 0 puts NCCL's unique id under a key of the store, and the others
//! wait for it there. That is all that a rank needs to be in their communicator; whatever else our groups agree on over
//! the store has nobody at the other end who answers.
//!
//! | release | backend | key of the unique id, below [`DEFAULT_GROUP`] |
//! |---|---|---|
//! | up to 2.14 | `nccl` | `0`, the first of a counter |
//! | 2.15 | `nccl-legacy` | the same |
//! | 2.15 | `nccl`, `nccl2`, `nccl-lazy` | `0/nccl_storekey_0`, the group's name and the first of a counter |
//!
//! All three lines of 2.15 were seen in a store that it had written to.
//! So rank 0 puts the id under both, and the others take it from where it comes.

use std::{slice, sync::Arc, thread, time::Duration};

use super::{
    Builder, GroupError, GroupId, Member, P2pPolicy, ProcessGroup, Result,
    builder::{FOLDER, Ready, own_part, watch},
    p2p::Messages,
    seat::Seat,
};
use crate::{
    comm::{Communicator, Config, Nccl, UniqueId},
    peers::Peers,
    record::{Desk, Recorder},
    store::{Deadline, PrefixStore, Store},
    watch::Watch,
};

/// Where the ranks of the default group meet: its prefix, its name with a slash, the device's type with a slash.
const DEFAULT_GROUP: &str = "default_pg/0//cuda/";

/// The keys there that unique ids are found under.
const UNIQUE_ID: [&str; 2] = ["0", "0/nccl_storekey_0"];

/// Where ranks count themselves when `TORCH_DIST_INIT_BARRIER` is 1, and what the last one sets.
const ARRIVED: [&str; 2] =
    ["default_pg/store_based_barrier_key:0", "default_pg/store_based_barrier_key:0:last_worker"];

/// The most ranks that share one unique id, where `TORCH_NCCL_RANKS_PER_ROOT` does not say otherwise.
const RANKS_PER_ROOT: usize = 128;

/// Why a rank cannot join a `torch.distributed` job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
    /// Rank 0 has not published a unique id.
    #[error(
        "rank 0 has put a unique id under none of the keys {looked_for:?} (waited {waited:?}); it does when it makes its \
         communicator: in init_process_group with a device_id, else in its first collective. The store holds {found:?}"
    )]
    NoUniqueId {
        /// Where releases put it.
        looked_for: Vec<String>,
        /// The keys that the store holds; none where it cannot list them.
        found: Vec<String>,
        /// How long this rank waited.
        waited: Duration,
    },

    /// So many ranks that PyTorch has them share several unique ids.
    #[error(
        "of {size} ranks PyTorch has every {limit} share a unique id, and a job can be joined that has one; give \
         all ranks TORCH_NCCL_RANKS_PER_ROOT={size}"
    )]
    SeveralRoots {
        /// The world size.
        size: usize,
        /// How many share one.
        limit: usize,
    },
}

impl Builder {
    /// Joins the default group of a `torch.distributed` job, whose other ranks may be Python's or come here too.
    /// Collective, with `init_process_group("nccl")` there.
    ///
    /// This rank stands in it as any other: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` say
    /// where, as `torchrun` sets them; where no agent hosts the store, rank 0 does, of either language. A
    /// [`store`](Self::store) that is given must be the job's own, without any prefix.
    ///
    /// With PyTorch 2.11 and 2.15, `nccl` and, in 2.15, `nccl-legacy`. All ranks load the same release of NCCL: name PyTorch's file
    /// in `NCCL_SYS_LIBRARY` (`nvidia/nccl/lib/libnccl.so.2` beside its packages).
    ///
    /// What the group has is what a communicator has: every operation of this crate, [`Work`](super::Work) and deadlines, the
    /// flight recorder, abort. What its members would have to agree on, it has not, because PyTorch's do not answer:
    /// - [`barrier`](ProcessGroup::barrier) and [`split`](ProcessGroup::split) are
    ///   [`GroupError::Joined`], [windows](ProcessGroup::windows_supported) unsupported;
    ///   [`members`](ProcessGroup::members) is this rank alone. All-reduce one element in place of a barrier;
    /// - nobody is watched: a rank that dies is noticed by a deadline, or by NCCL. In
    ///   [`progress`](ProcessGroup::progress) PyTorch's ranks are silent;
    /// - calls are not [compared](Self::checked), neither before nor after.
    ///
    /// And of PyTorch's ranks it asks for what follows:
    /// - `init_process_group` names the backend `nccl`; without one it makes a group of `gloo` too, which waits for
    ///   this rank. Nor is `TORCH_DISTRIBUTED_DEBUG` `DETAIL`, for the same reason;
    /// - `send` and `recv` come after a `device_id` or are those of `batch_isend_irecv`: alone, and without one, a pair
    ///   of ranks makes a communicator of its own up to 2.14;
    /// - the first communicator of the job is joined. `new_group` splits it where it is there from the start, after a
    ///   `device_id` and always in 2.15, and every rank would have to take part: so no further groups then.
    ///
    /// The example `torch_all_reduce` adds up across both languages.
    ///
    /// # Errors
    /// - [`GroupError::Environment`], [`GroupError::NoSuchRank`], [`GroupError::Store`], [`GroupError::Dump`], as for
    ///   [`build`](Self::build);
    /// - [`GroupError::Setting`] for what PyTorch's ranks would have to agree on;
    /// - [`GroupError::Torch`], when rank 0 publishes no unique id by the deadline;
    /// - [`GroupError::Comm`], also when other ranks do not come by the deadline;
    /// - [`GroupError::Driver`].
    #[doc(alias = "init_process_group")]
    pub fn join_torch(self) -> Result<ProcessGroup> {
        let deadline = Deadline::after(self.timeout);
        if self.lazy || !matches!(self.p2p, P2pPolicy::Auto | P2pPolicy::Shared) {
            let problem = "PyTorch's ranks agree on neither a lazy start nor a policy for messages".into();
            return Err(GroupError::Setting { group: "default_pg".into(), problem });
        }
        let Ready { rank, size, store, host, nccl, context, folder, timing, .. } =
            self.ready(true, deadline)?;
        let terms = self.terms(timing, false);
        let messages = Messages::new(self.messages(&context)?, false, size, &self.config);
        one_root(size)?;
        let me = Member::here(rank, size, &nccl, &context)?;
        arrive(&*store, size)?;
        let id = if rank == 0 { publish(&*store, &nccl)? } else { follow(&*store, deadline)? };

        let name: Arc<str> = "default_pg".into();
        let config = Config { name: Some(name.to_string()), ..self.config };
        let communicator = Communicator::init(&nccl, &context, &id, rank, size, &config, deadline)?;

        let root = PrefixStore::new(FOLDER, store);
        let store = own_part(&root, &name, self.epoch);
        let peers = Peers::meet(&store, 0, slice::from_ref(&me), self.heartbeat, deadline)?;
        let recorder = Recorder::new(rank, name.clone(), nccl.release().to_string(), folder);
        let desk = Arc::new(Desk::open(&store, size)?);
        Watch::announce(&store, rank)?;
        let alone = slice::from_ref(&me);
        let watch = watch(&name, Watch::begin(&store, rank, alone, terms.heartbeat, &recorder, peers))?;
        let seat = Seat {
            name,
            rank,
            ranks: (0..size).collect(),
            members: [me].into(),
            numbers: PrefixStore::new("numbers", Arc::new(root)),
            job: store.clone(),
            store,
            terms,
            recorder,
            desk,
            watch,
            messages,
            followers: self.followers,
        };
        // PyTorch's number for its default group.
        let group = seat.joined(GroupId { uid: 0, epoch: self.epoch }, communicator)?;
        Ok(group.hosting(host))
    }
}

/// A job whose ranks all share one unique id.
fn one_root(size: usize) -> Result<(), TorchError> {
    let told = std::env::var("TORCH_NCCL_RANKS_PER_ROOT").ok().and_then(|text| text.trim().parse().ok());
    let limit = told.unwrap_or(RANKS_PER_ROOT);
    if size > limit { Err(TorchError::SeveralRoots { size, limit }) } else { Ok(()) }
}

fn key(name: &str) -> String {
    format!("{DEFAULT_GROUP}/{name}")
}

/// Counts this rank where PyTorch's ranks may wait for all. It waits for none: they publish nothing before they are
/// through.
fn arrive(store: &dyn Store, size: usize) -> Result<()> {
    let [count, last] = ARRIVED;
    if usize::try_from(store.add(count, 1)?) == Ok(size) {
        store.set(last, b"1")?;
    }
    Ok(())
}

/// Makes a unique id and puts it where every release looks.
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
        thread::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(LONGEST);
    }
}
