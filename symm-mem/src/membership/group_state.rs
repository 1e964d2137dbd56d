//! The state of a [pool](crate::SymmetricPool) in one group on this rank, kept from one
//! [commit](crate::SymmetricPool::commit) for the group to the next.

use std::{sync::Arc, time::Duration};

use bootstrap::agreement::{Decision, read_decision, refusal};
use caching_alloc::core::symmetric::SymmetricArena;
use process_group::{comm::Communicator, group::SymmetricPlaces};

use super::{group::list_mismatch, mapped::MappedSegments};
use crate::{
    agreement::{Agreed, CommitProtocol, Ending, GroupLog, Plain, Poison, Rejection, Segment},
    domain::Domain,
    error::{CallContext, Error},
    error_kind::ErrorKind,
    rendezvous::PeerGroup,
};

/// The cause of the refusal of a commit for which this rank has no time.
const NO_TIME: &str = "no time is left for this commit: its deadline is zero, or earlier commits of the call have used it \
                       up; pass a longer deadline";

/// The state of one pool in one group on this rank.
pub struct GroupState {
    /// The agreed state of the group.
    pub log: GroupLog,
    /// The group's name, for error texts. Set at every commit.
    group_name: Option<Arc<str>>,
    /// The owner of the mappings of the members' segments of this pool, and of the members' signal pads (memory through
    /// which the members' kernels signal each other). `None` until a commit first offers this rank's segments to the
    /// members.
    pub(super) peers: Option<Arc<PeerGroup>>,
    /// The segments, of all pools, whose memory the members have mapped from each other.
    pub(super) mapped: Arc<MappedSegments>,
    /// Finds the positions of buffers in the pool, for groups that compare these positions between ranks.
    pub(super) places: Arc<dyn SymmetricPlaces>,
}

impl GroupState {
    /// The state of a group with nothing committed.
    pub(super) fn new(log: GroupLog, places: Arc<dyn SymmetricPlaces>) -> Self {
        let mapped = MappedSegments::of(log.group(), log.rank());
        Self { log, group_name: None, peers: None, mapped, places }
    }

    /// Returns the context for errors of commits for this group.
    pub(crate) fn call(&self) -> CallContext {
        CallContext::of_group("commit", self.log.group(), self.group_name.clone())
    }

    pub(super) fn set_members(&mut self, ranks: Vec<u32>, name: Option<&str>) {
        self.log.set_members(ranks);
        self.group_name = name.map(Arc::from);
    }

    /// Returns the error for a group with members outside of the pool's domain, or `None` if all members are inside.
    pub fn outside(&self, domain: &Domain) -> Option<Error> {
        let outside = domain.outside(self.log.members());
        let domain = domain.uid();
        (!outside.is_empty()).then(|| self.call().error(ErrorKind::GroupOutsideDomain { domain, outside }))
    }

    /// Checks that this rank can take part in a commit for the group:
    /// - The group's members must be ranks of the domain, and must match the communicator.
    /// - `deadline`, the time limit of the commit, must not be zero.
    ///
    /// Returns `None` if this rank can take part. If not, posts a refusal at once, because the other members wait for
    /// this rank, and returns the error.
    pub(super) fn decline_unfit(
        &mut self,
        domain: &Domain,
        communicator: &Communicator,
        deadline: Duration,
    ) -> Option<Error> {
        let outside = self.outside(domain);
        let cause = match &outside {
            Some(error) => error.to_string(),
            None if deadline.is_zero() => NO_TIME.to_owned(),
            None => list_mismatch(self.log.members(), self.log.rank(), communicator)?,
        };
        let (place, declined) = self.log.decline(cause);
        let decision = refusal::<CommitProtocol>(declined.clone().into());
        let decided = domain.store().compare_set(&place.decision_key(), b"", &decision);
        // The error of this rank:
        // - `outside`, if members are outside of the domain.
        // - The store's error, if the store fails.
        // - The stored refusal, if the stored decision is a refusal.
        // - Otherwise this rank's own refusal.
        Some(outside.unwrap_or_else(|| {
            let kind = match decided.map(|it| read_decision::<CommitProtocol>(&it)) {
                Ok(Some(Ok(Decision::Refused { refusal: Rejection::Refused(refusal) }))) => {
                    ErrorKind::Refused(refusal)
                }
                Ok(_) => ErrorKind::Refused(declined),
                Err(source) => source.into(),
            };
            self.call().error(kind)
        }))
    }

    /// Returns true if this rank need not commit the pool, because all of this is true:
    /// - There are no new segments.
    /// - The group is not [poisoned](Poison).
    /// - No request for memory has failed since the last commit that found the members'
    ///   [logs](crate::SymmetricPool::log) of requests equal. A request that succeeded when it was repeated does not
    ///   count as failed. A failed request may have made this rank's log differ from the logs of the others, which only
    ///   a commit detects.
    ///
    /// `arena` is the pool's arena, which has its segments and its log.
    pub(super) fn is_unchanged(&self, arena: &SymmetricArena) -> bool {
        let is_new = arena.segments().iter().any(|it| !it.retired && self.log.is_new(it.ordinal));
        !is_new && !arena.has_refused_since(self.log.equal_length()) && self.log.poison().is_none()
    }

    /// Applies the result of a commit. `offered` are the new segments in this rank's
    /// [record](crate::agreement::CommitRecord), the message that it posted to the members. A successful commit adds a
    /// prefix of this list to the group. `cause` is the store's error, if the store failed.
    pub(super) fn conclude(
        &mut self,
        result: &Result<Agreed, Ending>,
        offered: &[Segment],
        cause: Option<String>,
    ) {
        self.log.conclude(result, offered);
        if let Some(poison) = result.as_ref().err().and_then(|ending| ending.doubt(self.log.rank(), cause)) {
            self.log.set_poison(poison);
        }
    }

    /// Applies the result of the agreement on the plain registration (`ncclCommRegister`) of segments. `undone` is the
    /// result of this rank's attempt to undo its registrations, or `Ok` if no attempt was necessary. `cause` is the
    /// store's error, if the store failed.
    ///
    /// Returns:
    /// - An error, if `result` is an error, or if this rank could not undo its registrations. If the members may then
    ///   have different registrations, this method [poisons](Poison) the group on this rank.
    /// - False, if the members undo their registrations, and this rank has undone its own.
    /// - True, if all members keep their registrations.
    pub(super) fn conclude_plain(
        &mut self,
        result: Result<Plain, Ending>,
        undone: Result<(), String>,
        cause: Option<String>,
    ) -> Result<bool, Ending> {
        let rank = self.log.rank();
        let result = match result {
            Ok(Plain::Registered {}) => Ok(true),
            Ok(Plain::Undone { .. }) => {
                let poison = |cause| Poison::RegistrationFailed { rank, ordinal: None, cause };
                undone.map(|()| false).map_err(|cause| Ending::Poisoned(poison(cause)))
            }
            Err(ending) => Err(ending),
        };
        match &result {
            Err(Ending::Poisoned(poison)) => self.log.set_poison(poison.clone()),
            Err(ending) => ending.doubt(rank, cause).into_iter().for_each(|it| self.log.set_poison(it)),
            Ok(_) => {}
        }
        result
    }

    /// Forgets the commits of a communicator that has ended. `retired` are the segments that the pool has
    /// [retired](crate::SymmetricPool::retire). The group's log of commits and retirements is cleared, and then gets an
    /// entry for each of `retired` again. So the next commit, which compares this log, detects a member whose pool has
    /// not retired the same segments.
    pub(crate) fn forget(&mut self, retired: &[u32]) {
        self.log.forget();
        retired.iter().for_each(|ordinal| self.log.retire(*ordinal));
        self.peers = None;
    }
}
