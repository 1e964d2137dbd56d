//! The information on a group that a rendezvous needs.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
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
};

/// A group as a rendezvous needs it: its members, this rank's place among them, and the store that they use to agree.
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
    /// The group was already set.
    #[error("group {name:?} was set already, as rank {rank} of {ranks:?}; a group's information is set once")]
    AlreadySet {
        /// The group.
        name: String,
        /// This rank's place in it, as set before.
        rank: usize,
        /// Its members, as set before.
        ranks: Vec<u32>,
    },
    /// No group of this name was set.
    #[error("group {name:?} is not set; there are {known:?}")]
    Unknown {
        /// The name.
        name: String,
        /// The names of all groups that are set.
        known: Vec<String>,
    },
    /// This rank's place is not among the members, or a rank occurs twice.
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
    /// Creates the information of a group without a process group. `ranks` are its members as ranks of the job, and
    /// `rank` is this rank's place among them. All members give the same name and ranks. Two groups that share a
    /// store have different names.
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
        // If the hashes of two groups' names collide, their members meet in the store. They get an error if their lists
        // of ranks or the numbers of their rendezvous differ.
        let uid = crate::agreement::hash::chain(0, name.bytes().map(u64::from));
        let id = GroupId { uid, epoch: 0 };
        Ok(Self { id, name: name.into(), rank, ranks: ranks.into(), store, health: None })
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group's id. It identifies the group in the store; the name is not used there.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// This rank's place in the group.
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

    /// Returns an error once the group has ended, so that callers stop waiting for the other members. Always succeeds
    /// for information that was not made from a process group.
    pub(crate) fn standing(&self) -> Result<(), GroupError> {
        self.health.as_ref().map_or(Ok(()), HealthHandle::check)
    }

    /// The object of an agreement of the members.
    pub(crate) fn object(&self) -> impl Object + use<'_> {
        GroupObject {
            rank: self.ranks[self.rank],
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

    /// Makes the error for a failed agreement of the group's members. If the group has ended, the reason of the end
    /// replaces `kind`, unless `kind` is a refusal that all members got and that is not about missing members.
    pub(crate) fn failed(&self, call: &CallContext, kind: ErrorKind) -> Error {
        let (is_refused, is_of_the_missing) = match &kind {
            ErrorKind::RendezvousRefused(refusal) => (true, refusal.is_of_the_missing()),
            ErrorKind::ExchangeRefused(refusal) => (true, refusal.is_of_the_missing()),
            _ => (false, false),
        };
        // Removes the sockets of killed processes.
        if is_of_the_missing {
            link::sweep();
        }
        call.error_of_group(self.standing(), is_refused && !is_of_the_missing, kind)
    }
}

impl From<&ProcessGroup> for GroupInfo {
    fn from(group: &ProcessGroup) -> Self {
        Self {
            id: group.id(),
            name: group.name().into(),
            rank: group.rank(),
            ranks: crate::domain::ranks_of(group).into(),
            store: Arc::new(group.job_store()),
            health: Some(group.health_handle()),
        }
    }
}

impl fmt::Debug for GroupInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, rank, ranks, .. } = self;
        write!(out, "GroupInfo({name:?}, {id}, place {rank} of {ranks:?})")
    }
}

/// A registry of groups by name, for programs that pass the names of groups, as PyTorch programs do. A name can be set
/// only once until it is [forgotten](Self::forget). Each rank has a registry of its own.
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

    /// Sets a group's information.
    ///
    /// # Errors
    /// [`GroupInfoError::AlreadySet`] if the name is set, even with the same information: a second group of this name
    /// is not the same group.
    #[doc(alias = "set_group_info")]
    pub fn set(&self, info: GroupInfo) -> Result<(), GroupInfoError> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(set) = by_name.get(&*info.name) {
            let (name, ranks) = (set.name.to_string(), set.ranks.to_vec());
            return Err(GroupInfoError::AlreadySet { name, rank: set.rank, ranks });
        }
        by_name.insert(info.name.to_string(), info);
        Ok(())
    }

    /// Returns the group of this name.
    ///
    /// # Errors
    /// [`GroupInfoError::Unknown`].
    pub fn get(&self, name: &str) -> Result<GroupInfo, GroupInfoError> {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.get(name).cloned().ok_or_else(|| {
            let mut known: Vec<String> = by_name.keys().cloned().collect();
            known.sort_unstable();
            GroupInfoError::Unknown { name: name.to_owned(), known }
        })
    }

    /// Removes a group, so that its name can be set again. Call it after the group has ended. Returns the group's
    /// information, or `None` if no group of this name was set.
    pub fn forget(&self, name: &str) -> Option<GroupInfo> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }
}
