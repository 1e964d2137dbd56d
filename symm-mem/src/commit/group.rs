//! What a commit needs of a group.

use std::{collections::BTreeSet, sync::Arc};

use cuda_driver::DevicePtr;
use process_group::{
    ProcessGroup,
    comm::{CommError, Communicator, WindowsUnsupported},
    group::{self, GroupError, SymmetricPlaces, enqueued_on},
};

use crate::{
    agreement::{Enqueued, GroupId, MessageCounts},
    domain::rank_of,
};

/// A group of ranks that pools can be committed for.
pub trait SymmetricGroup: Sync {
    /// Which group it is, in which life.
    fn id(&self) -> GroupId;

    /// The members as ranks of the domain, in the order of the communicator.
    fn ranks(&self) -> Vec<u32>;

    /// Its communicator.
    fn communicator(&self) -> &Communicator;

    /// Whether the group can have windows.
    ///
    /// # Errors
    /// The reason why not.
    fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        self.communicator().windows_supported()
    }

    /// Whether the `bytes` at `ptr` are registered with this rank's communicator, not as a window.
    fn is_registered(&self, ptr: DevicePtr, bytes: u64) -> bool {
        self.communicator().is_registered(ptr, bytes)
    }

    /// Takes note of where the group's buffers have to lie alike, if it compares that. Asked to after every commit, with the
    /// same value for the same pool.
    fn compare_places(&self, places: Arc<dyn SymmetricPlaces>) {
        drop(places);
    }

    /// Whether the group goes on. A commit that waits for a member asks now and then, and ends with the group.
    ///
    /// # Errors
    /// What has ended it.
    fn standing(&self) -> Result<(), GroupError> {
        Ok(())
    }

    /// Ends the group because this rank does not know what the members agreed on, and tells the others if it can. The
    /// communicator is aborted by the caller.
    fn fail(&self, reason: &str) {
        let _ = reason;
    }

    /// How much each group has been given to do on this rank's device, as far as that is counted.
    fn enqueued(&self) -> Vec<Enqueued> {
        Vec::new()
    }
}

impl SymmetricGroup for ProcessGroup {
    fn id(&self) -> GroupId {
        self.id()
    }

    fn ranks(&self) -> Vec<u32> {
        crate::domain::ranks_of(self)
    }

    fn communicator(&self) -> &Communicator {
        self.communicator()
    }

    fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        self.windows_supported()
    }

    fn compare_places(&self, places: Arc<dyn SymmetricPlaces>) {
        self.compare_places(places);
    }

    fn standing(&self) -> Result<(), GroupError> {
        match self.standing() {
            // A commit that fails aborts the communicator itself, and has another reason to tell.
            Err(GroupError::Comm(CommError::Closed { .. })) => Ok(()),
            standing => standing,
        }
    }

    fn fail(&self, reason: &str) {
        self.fail(reason);
    }

    fn enqueued(&self) -> Vec<Enqueued> {
        let messages = |of: &group::MessageCounts| MessageCounts {
            peer: rank_of(of.peer),
            sent: of.sent,
            received: of.received,
            captured: of.captured,
        };
        let enqueued = enqueued_on(self.context().device()).into_iter().map(|of| Enqueued {
            group: of.id,
            collectives: of.collectives,
            messages: of.messages.iter().map(messages).collect(),
        });
        enqueued.collect()
    }
}

/// What is wrong with `ranks` as the members of a communicator of which this one is `rank` of the domain. The members
/// compare their lists, so each of them has to look at nothing but its own place in it.
pub(super) fn misnamed(ranks: &[u32], rank: u32, communicator: &Communicator) -> Option<String> {
    let (place, size) = (communicator.rank(), communicator.size());
    let distinct = ranks.iter().collect::<BTreeSet<_>>().len();
    let fits = (ranks.len(), distinct, ranks.get(place)) == (size, size, Some(&rank));
    (!fits).then(|| {
        format!(
            "the group's ranks {ranks:?} are not those of its communicator, which has {size}: expected {rank} at place {place}"
        )
    })
}

/// A group that is no more than a communicator, for programs that make communicators themselves.
#[derive(Debug)]
pub struct CommunicatorGroup<'a> {
    /// Which group it is: the caller sees to it that no two groups of the domain share it.
    pub id: GroupId,
    /// The members as ranks of the domain, in the order of the communicator. A commit compares the members' lists, and each
    /// with the communicator.
    pub ranks: Vec<u32>,
    /// The communicator.
    pub communicator: &'a Communicator,
}

impl SymmetricGroup for CommunicatorGroup<'_> {
    fn id(&self) -> GroupId {
        self.id
    }

    fn ranks(&self) -> Vec<u32> {
        self.ranks.clone()
    }

    fn communicator(&self) -> &Communicator {
        self.communicator
    }
}
