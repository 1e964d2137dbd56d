//! [`GroupInfo`]: the information on a group that a [rendezvous](super::Rendezvous::rendezvous) needs. [`Groups`]: a
//! registry of groups by name.
//!
//! The members of a group make decisions together, for example whether to map each other's memory. One such decision
//! is an [agreement](bootstrap::agreement).

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use bootstrap::agreement::Object;
use process_group::{
    ProcessGroup,
    group::{GroupError, GroupId, HealthHandle},
    link,
    store::Store,
};

use crate::{
    error::{CallContext, Error},
    error_kind::ErrorKind,
    group_object::GroupObject,
    lock::lock,
};

/// The information on a group that a [rendezvous](super::Rendezvous) needs: its id and name, its members, this rank's
/// place (index) in the list of members, and the [store](process_group::store) through which the members agree.
#[derive(Clone)]
pub struct GroupInfo {
    pub(super) id: GroupId,
    pub(super) name: Arc<str>,
    pub(super) rank: usize,
    pub(super) ranks: Arc<[u32]>,
    pub(crate) store: Arc<dyn Store>,
    health: Option<HealthHandle>,
}

/// The reason why a group's information was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupInfoError {
    /// The registry ([`Groups`]) already has a group of this name.
    #[error("group {name:?} was set already, as rank {rank} of {ranks:?}; a group's information is set once")]
    AlreadySet {
        /// The group's name.
        name: String,
        /// This rank's place in the group that was set.
        rank: usize,
        /// The members of the group that was set.
        ranks: Vec<u32>,
    },
    /// The registry ([`Groups`]) has no group of the requested name.
    #[error("group {name:?} is not set; there are {known:?}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of all groups that are set.
        known: Vec<String>,
    },
    /// This rank's place is not less than the number of members, or a rank occurs twice among the members.
    #[error(
        "place {rank} in a group of the ranks {ranks:?}: expected a place below their number, and each rank once"
    )]
    NoSuchPlace {
        /// The place.
        rank: usize,
        /// The members.
        ranks: Vec<u32>,
    },
}

impl GroupInfo {
    /// Creates the information on a group that has no [`ProcessGroup`]. `ranks` are the members as ranks of the job.
    /// `rank` is this rank's place (index) in `ranks`. All members must give the same name and ranks. Two groups that
    /// share a store must have different names.
    ///
    /// # Errors
    /// [`GroupInfoError::NoSuchPlace`].
    pub fn new(
        name: &str,
        rank: usize,
        ranks: impl IntoIterator<Item = u32>,
        store: Arc<dyn Store>,
    ) -> Result<Self, GroupInfoError> {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if rank >= ranks.len() || sorted.len() < ranks.len() {
            return Err(GroupInfoError::NoSuchPlace { rank, ranks });
        }
        // A collision of the 64-bit hashes of two groups' names is accepted as very unlikely. Such groups use the same
        // keys in the store, so their agreements can fail.
        let uid = crate::agreement::hash::chain(0, name.bytes().map(u64::from));
        let id = GroupId { uid, epoch: 0 };
        Ok(Self { id, name: name.into(), rank, ranks: ranks.into(), store, health: None })
    }

    /// Like [`new`](Self::new), but also takes the group's id, and does not check `rank` and `ranks`. `health` reports
    /// the end of the group. If `health` is `None`, [`standing`](Self::standing) always succeeds.
    pub(crate) fn of_parts(
        (id, name): (GroupId, &str),
        rank: usize,
        ranks: &[u32],
        store: Arc<dyn Store>,
        health: Option<HealthHandle>,
    ) -> Self {
        Self { id, name: name.into(), rank, ranks: ranks.into(), store, health }
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group's id. The store keys of the group contain the id and not the name.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// This rank's place (index) in the list of members.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of members.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// The members as ranks of the job, in the group's order.
    #[must_use]
    pub fn global_ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// This rank, as a rank of the job.
    pub(crate) fn global_rank(&self) -> u32 {
        self.ranks[self.rank]
    }

    /// Returns an error once the group has ended: the caller should then stop waiting for the other members. Always
    /// succeeds for a group that has no [`ProcessGroup`].
    pub(crate) fn standing(&self) -> Result<(), GroupError> {
        self.health.as_ref().map_or(Ok(()), HealthHandle::check)
    }

    /// Returns the [`Object`] for an agreement of the group's members. If the group ends, the agreement learns this
    /// from the `Object`, and stops waiting for the members.
    pub(crate) fn object(&self) -> impl Object + use<'_> {
        GroupObject {
            rank: self.global_rank(),
            store: self.store.clone(),
            check: || self.standing(),
            health: || self.health.clone(),
            ignores: |_| false,
        }
    }

    /// The context for the errors of an operation: its name, and the group's id and name.
    pub(crate) fn call(&self, operation: &'static str) -> CallContext {
        CallContext::of_group(operation, self.id, Some(self.name.clone()))
    }

    /// Makes the error for a failed agreement of the group's members. Its kind is one of these:
    /// - `kind`, if the group has not ended.
    /// - `kind`, if it is the refusal of a rendezvous or an [exchange](crate::exchange), and its reason is not that
    ///   members are missing or lost. The end of the group did not cause such a refusal, and all members must get the
    ///   same one.
    /// - Otherwise [`ErrorKind::GroupOver`], because the end of the group is the probable cause of the failure.
    pub(crate) fn failed(&self, call: &CallContext, kind: ErrorKind) -> Error {
        let (is_refused, is_of_the_missing) = match &kind {
            ErrorKind::RendezvousRefused(refusal) => (true, refusal.is_of_the_missing()),
            ErrorKind::ExchangeRefused(refusal) => (true, refusal.is_of_the_missing()),
            _ => (false, false),
        };
        // A missing member may have been killed. `sweep` removes the socket folders of killed processes.
        if is_of_the_missing {
            link::sweep();
        }
        call.error_of_group(self.standing(), is_refused && !is_of_the_missing, kind)
    }
}

impl From<&ProcessGroup> for GroupInfo {
    fn from(group: &ProcessGroup) -> Self {
        let (ranks, store) = (crate::domain::ranks_of(group), Arc::new(group.job_store()));
        let id_and_name = (group.id(), group.name());
        Self::of_parts(id_and_name, group.rank(), &ranks, store, Some(group.health_handle()))
    }
}

impl fmt::Debug for GroupInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, rank, ranks, .. } = self;
        write!(out, "GroupInfo({name:?}, {id}, place {rank} of {ranks:?})")
    }
}

/// A registry of groups by name, for programs that refer to a group by its name, as PyTorch programs do. A name that is
/// set cannot be set again until it is [forgotten](Self::forget). Each rank has a registry of its own.
#[derive(Debug, Default)]
pub struct Groups {
    by_name: Mutex<HashMap<String, GroupInfo>>,
}

impl Groups {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group to the registry.
    ///
    /// # Errors
    /// [`GroupInfoError::AlreadySet`] if the registry has a group of this name, even one with equal information,
    /// because that may be another group.
    #[doc(alias = "set_group_info")]
    pub fn set(&self, info: GroupInfo) -> Result<(), GroupInfoError> {
        let mut by_name = lock(&self.by_name);
        if let Some(present) = by_name.get(&*info.name) {
            let (name, ranks) = (present.name.to_string(), present.ranks.to_vec());
            return Err(GroupInfoError::AlreadySet { name, rank: present.rank, ranks });
        }
        by_name.insert(info.name.to_string(), info);
        Ok(())
    }

    /// Returns the group of this name.
    ///
    /// # Errors
    /// [`GroupInfoError::Unknown`].
    pub fn get(&self, name: &str) -> Result<GroupInfo, GroupInfoError> {
        let by_name = lock(&self.by_name);
        by_name.get(name).cloned().ok_or_else(|| {
            let mut known: Vec<String> = by_name.keys().cloned().collect();
            known.sort_unstable();
            GroupInfoError::Unknown { name: name.to_owned(), known }
        })
    }

    /// Removes a group, so that its name can be set again. Call it after the group has ended. Returns the group's
    /// information, or `None` if no group of this name was set.
    pub fn forget(&self, name: &str) -> Option<GroupInfo> {
        lock(&self.by_name).remove(name)
    }
}
