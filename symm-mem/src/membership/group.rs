//! The interface through which [commits](crate::SymmetricPool::commit) and [retirements](crate::SymmetricPool::retire)
//! use a group. A commit registers segments of a pool as NCCL windows of one group. A retirement removes segments from
//! the pool and from all groups.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bootstrap::agreement::Object;
use cuda_driver::DevicePtr;
use process_group::{
    ProcessGroup,
    comm::{CommError, Communicator, WindowsUnsupported},
    group::{self, GroupError, HealthHandle, SymmetricPlaces, enqueued_on},
    store::Deadline,
};

use crate::{
    agreement::{Enqueued, GroupId, MessageCounts, Poison, Readiness, rank_of},
    domain::Domain,
    group_object::{GroupObject, is_closed},
};

/// The time that the abort of a [poisoned](Poison) group's communicator may take to free the communicator's resources.
pub(super) const ABORT_PATIENCE: Duration = Duration::from_secs(2);

/// A group of ranks for which pools can be [committed](crate::SymmetricPool::commit).
pub trait SymmetricGroup: Sync {
    /// The group's id: its number and its epoch (the generation of the job that created the group).
    fn id(&self) -> GroupId;

    /// The group's name, for error texts, if it has one.
    fn name(&self) -> Option<&str> {
        None
    }

    /// The members, as ranks of the pool's [domain](crate::Domain), in the order of the communicator's ranks.
    fn ranks(&self) -> Vec<u32>;

    /// The group's communicator.
    fn communicator(&self) -> &Communicator;

    /// Checks that the group can have windows.
    ///
    /// # Errors
    /// The reason why the group cannot have windows.
    fn windows_supported(&self) -> Result<(), WindowsUnsupported> {
        self.communicator().windows_supported()
    }

    /// Returns whether the `bytes` bytes at `ptr` are registered with this rank's communicator, but not as a window
    /// (`ncclCommRegister`).
    fn is_registered(&self, ptr: DevicePtr, bytes: u64) -> bool {
        self.communicator().is_registered(ptr, bytes)
    }

    /// Passes `places` to the group. `places` finds the segment and offset of an address in a pool. With it, the group
    /// can check that each buffer of a collective has the same segment and offset on every rank. Called after every
    /// successful commit that this rank did not [skip](crate::SymmetricPool::commit). All calls for one pool pass the
    /// same `places`. The default implementation does nothing.
    fn compare_places(&self, places: Arc<dyn SymmetricPlaces>) {
        drop(places);
    }

    /// Returns an error once the group has ended. A commit or retirement that waits for a member calls this at least
    /// every 0.5 s, and ends if the group has ended. The default implementation always returns success.
    ///
    /// # Errors
    /// The error that ended the group.
    fn standing(&self) -> Result<(), GroupError> {
        Ok(())
    }

    /// Returns a handle on the group's health monitor, if it has one. The handle has two uses:
    /// - A commit or retirement that waits for a member ends as soon as the group ends.
    /// - If a member is lost during a commit, the commit reports the error that ended the group. To get this error, it
    ///   waits for the end of the group, for at most two heartbeat intervals of the health monitor.
    fn health_handle(&self) -> Option<HealthHandle> {
        None
    }

    /// Ends the group on all members, if the group can inform them. Called when this rank cannot learn the result of a
    /// commit or retirement: the rank has lost the store or could not decode a stored value, another process runs as
    /// this rank, or this crate has a bug. The caller aborts the communicator afterwards. The default implementation
    /// does nothing.
    fn fail(&self, reason: &str) {
        let _ = reason;
    }

    /// Returns the numbers of collectives and messages (sends and receives) enqueued on this rank's device, with one
    /// entry for each process group on the device. Commits and retirements compare these numbers between the ranks, and
    /// are refused if they do not match. Without this check, a registration could deadlock with a collective that only
    /// some ranks have enqueued. The default implementation returns no entries, so nothing is compared.
    fn enqueued(&self) -> Vec<Enqueued> {
        Vec::new()
    }
}

impl SymmetricGroup for ProcessGroup {
    fn id(&self) -> GroupId {
        self.id()
    }

    fn name(&self) -> Option<&str> {
        Some(ProcessGroup::name(self))
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
        // Ignore `Closed`: a commit that poisons the group aborts the communicator, after which `standing` returns
        // `Closed`. The commit must report the poison instead.
        self.standing().or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) })
    }

    fn health_handle(&self) -> Option<HealthHandle> {
        Some(self.health_handle())
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

/// Checks that the communicator can be used. `needed` is true if the caller is going to call NCCL with it. If `needed`
/// is false, a communicator that is not created yet is accepted too.
pub(super) fn check(communicator: &Communicator, needed: bool) -> Result<(), CommError> {
    match communicator.check() {
        Err(CommError::Unmade { .. }) if !needed => Ok(()),
        checked => checked,
    }
}

/// Returns the readiness that a rank posts in a commit or a retirement: whether it can take part, and if not, why. Does
/// not consider the segments, which the caller checks.
///
/// - `inside_group`: true if the thread that requested the commit or retirement has an NCCL group open
///   (`ncclGroupStart`).
/// - `trouble`: the reason why the group of the commit, or one of the groups of the retirement, cannot take part on
///   this rank, for example that its communicator has failed.
/// - `is_capturing`: whether a stream of the rank's device is capturing, or the driver's error if this is unknown.
///   Registration and deregistration cannot be captured, and may invalidate the capture.
pub fn readiness(
    inside_group: bool,
    trouble: Option<String>,
    is_capturing: Result<bool, String>,
) -> Readiness {
    match (trouble, is_capturing) {
        _ if inside_group => Readiness::GroupOpen,
        (Some(cause), _) | (None, Err(cause)) => Readiness::Failed { ordinal: None, cause },
        (None, Ok(true)) => Readiness::Capturing,
        (None, Ok(false)) => Readiness::Ready,
    }
}

/// Returns the [`Object`] for an [agreement](bootstrap::agreement), for example the one in which the members of `group`
/// decide about a commit. Through it, the agreement learns that the group has ended, and then ends its waits for other
/// members.
pub(super) fn object_of<'a>(domain: &Domain, group: &'a dyn SymmetricGroup) -> impl Object + use<'a> {
    GroupObject {
        rank: domain.rank(),
        store: domain.store().clone(),
        check: || group.standing(),
        health: || group.health_handle(),
        ignores: is_closed,
    }
}

/// Aborts this rank's communicator of a group that is [poisoned](Poison) on this rank. If the poison is a
/// [`Poison::StoreLost`] that names this rank, first ends the group on all members ([`SymmetricGroup::fail`]): this
/// rank could not learn the result of the commit or retirement, so the group is perhaps not poisoned on the other
/// members. `own` is this rank's number in the domain.
pub(super) fn end_poisoned(group: &dyn SymmetricGroup, own: u32, poison: &Poison) {
    if matches!(poison, Poison::StoreLost { rank, .. } if *rank == own) {
        group.fail(&poison.to_string());
    }
    // The abort unblocks calls of this rank that are blocked inside NCCL. Its error is ignored: if NCCL does not return
    // in time, the communicator leaks resources, but later calls on the communicator return errors in any case.
    let _ = group.communicator().abort_handle().abort(Deadline::after(ABORT_PATIENCE));
}

/// Compares `ranks`, the list of a group's members, with `communicator`. `rank` is this rank's number in the domain.
/// Returns `None` if they match, otherwise a description of the problem. They match if `ranks` has as many entries as
/// the communicator has ranks, all distinct, and `rank` is at index `communicator.rank()`. The positions of the other
/// members need no check here: the agreement compares the members' lists.
pub(super) fn list_mismatch(ranks: &[u32], rank: u32, communicator: &Communicator) -> Option<String> {
    let (index, size) = (communicator.rank(), communicator.size());
    let distinct = ranks.iter().collect::<BTreeSet<_>>().len();
    let fits = (ranks.len(), distinct, ranks.get(index)) == (size, size, Some(&rank));
    (!fits).then(|| {
        format!(
            "the group's ranks {ranks:?} are not those of its communicator, which has {size}: expected {rank} at place {index}"
        )
    })
}

/// A group that consists of a communicator only, for programs that create communicators themselves.
#[derive(Debug)]
pub struct CommunicatorGroup<'a> {
    /// The group's id. The caller ensures that no two groups of the domain share it.
    pub id: GroupId,
    /// The members, as ranks of the pool's domain, in the order of the communicator's ranks. A commit compares the
    /// lists of all members, and each list with the communicator.
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
