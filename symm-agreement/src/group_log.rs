//! The state that a rank keeps for a pool and a group from one commit to the next. Ranks are numbered as in the pool's
//! domain.

use std::time::Duration;

use bootstrap::agreement::{Member, Place};
use process_group::group::GroupId;

use super::{
    OUTCOME_FLOOR,
    ending::Ending,
    hash::chain,
    meeting_id::{MeetingId, MeetingKind},
    plan::{Agreed, CommitProtocol},
    poison::Poison,
    record::{CommitRecord, LogPoint, PoolId, Readiness, Segment},
    refusal::Refusal,
    rounds::Rounds,
    start::{Start, patience},
};

/// Marks a retired segment in the hash of the [committed log](GroupLog::committed). Each entry of the log adds a few
/// words to the hash. The first word is this value for a retired segment, and the ordinal (the number in the pool) for
/// a committed segment. An ordinal never has this value.
const TOMBSTONE: u64 = u64::MAX;

/// The state of a group for one pool on this rank: the group's [committed log](Self::committed), the number of the next
/// commit, and, if the group is [poisoned](Poison), the reason.
///
/// Each rank counts its commits for the group, including commits that fail and commits that the rank skips because it
/// has nothing to commit. So the k-th commits of all members are one agreement. A member that comes too late to take
/// part finds the decision of the others in the store.
#[derive(Debug)]
pub struct GroupLog {
    pool: PoolId,
    group: GroupId,
    rank: u32,
    members: Vec<u32>,
    rounds: Rounds,
    committed: LogPoint,
    /// The length of the pool's allocation log (the sequence of [operations](super::Operation) on the pool) when this
    /// rank began its last commit. If that commit finds the members' logs equal, `equal` gets this value.
    offered: u64,
    /// The length, in operations, up to which a commit has found the members' allocation logs equal.
    equal: u64,
    /// The ordinal after the last segment that the group has committed. A segment with a lower ordinal is never new to
    /// the group: the group has committed it, or the pool retired it before the group could commit it.
    next: u32,
    poison: Option<Poison>,
}

impl GroupLog {
    /// Creates the state of `rank` before the first commit. `members` are the ranks of the domain that are in the
    /// group, in the group's order.
    pub fn new(pool: PoolId, group: GroupId, rank: u32, members: Vec<u32>) -> Self {
        Self {
            pool,
            group,
            rank,
            members,
            rounds: Rounds::default(),
            committed: LogPoint::default(),
            offered: 0,
            equal: 0,
            next: 0,
            poison: None,
        }
    }

    /// The group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// This rank, as a rank of the domain.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The members, as ranks of the domain, in the group's order.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// The state of the group's log of committed and retired segments: its length and its hash. The log has one entry
    /// for each committed segment of the group, and one for each retired segment of the pool. A retired segment has an
    /// entry even if the group had not committed it.
    pub fn committed(&self) -> LogPoint {
        self.committed
    }

    /// Sets the ranks of the group's members.
    pub fn set_members(&mut self, members: Vec<u32>) {
        self.members = members;
    }

    /// The reason why the group is poisoned, or `None` if it is not.
    pub fn poison(&self) -> Option<&Poison> {
        self.poison.as_ref()
    }

    /// Poisons the group. If the group is poisoned already, keeps the earlier reason. In the next commit, this rank's
    /// [record](CommitRecord) reports the reason to the other members.
    pub fn set_poison(&mut self, poison: Poison) {
        self.poison.get_or_insert(poison);
    }

    /// Clears the committed log and the reason of a poisoning, after the group's communicator has ended. Keeps the
    /// number of the next commit, so that no commit uses the store keys of an earlier one.
    ///
    /// The caller must afterwards call [`retire`](Self::retire) again for every segment that the pool has retired. The
    /// next commit compares the logs of all members, and so detects a member whose pool has not retired the same
    /// segments.
    pub fn forget(&mut self) {
        (self.committed, self.equal, self.next, self.poison) = (LogPoint::default(), 0, 0, None);
    }

    /// Adds an entry to the committed log: the pool has retired segment `ordinal`. The next commit compares the logs,
    /// and so detects a member whose pool has not retired the segment.
    pub fn retire(&mut self, ordinal: u32) {
        self.enter([TOMBSTONE, ordinal.into()]);
    }

    fn enter(&mut self, words: impl IntoIterator<Item = u64>) {
        self.committed.hash = chain(self.committed.hash, words);
        self.committed.length += 1;
    }

    /// Returns true if the segment comes after all segments that the group has committed.
    pub fn is_new(&self, ordinal: u32) -> bool {
        ordinal >= self.next
    }

    /// The length, in operations, up to which a commit has found the members' allocation logs equal, or 0 if there was
    /// no such commit.
    pub fn equal_length(&self) -> u64 {
        self.equal
    }

    /// Counts a commit that this rank skips, because it has nothing to commit or report. So the next commit has the
    /// same number on all members, even if some of them did not skip this one.
    pub fn skip(&mut self) {
        self.rounds.count();
    }

    /// Returns the id of the commit with number `round`.
    fn meeting(&self, round: u64) -> MeetingId {
        MeetingId::new(self.pool, MeetingKind::Commit { group: self.group }, round)
    }

    /// Begins the next commit. Returns two values: the arguments with which this rank starts the agreement, and the
    /// list of the new segments in this rank's record.
    ///
    /// - `record` describes the state of the pool and of this rank. It has all segments of the pool that are not
    ///   retired, in ascending order of ordinals. This function sets the record's committed log, and removes the
    ///   segments that are not new to the group. If the group is poisoned, the record's readiness becomes the poison.
    /// - `deadline` is the time limit of the commit.
    pub fn begin(
        &mut self,
        mut record: CommitRecord,
        deadline: Duration,
    ) -> (Start<CommitProtocol>, Vec<Segment>) {
        if let Some(poison) = &self.poison {
            record.readiness = Readiness::Poisoned(poison.clone());
        }
        record.committed = self.committed;
        record.segments.retain(|segment| self.is_new(segment.ordinal));
        let segments = record.segments.clone();
        let round = self.rounds.count();
        let meeting = self.meeting(round);
        self.offered = record.log.length;
        (Start::new(meeting, self.rank, self.members.clone(), patience(deadline), deadline, record), segments)
    }

    /// Counts a commit in which this rank cannot take part. Returns two values: the name and member list of the
    /// commit's agreement, and the refusal that the caller must post there for the other members.
    pub fn decline(&mut self, cause: String) -> (Place, Refusal) {
        let round = self.rounds.count();
        self.rounds.leave(round);
        (self.place(round), Refusal::PeerPrepareFailed { rank: self.rank, ordinal: None, cause })
    }

    /// Returns this rank as a member of an agreement on a [plain registration](super::RegistrationProtocol). The
    /// agreement is about the segments that the last commit left without windows. `patience` is the time, from now,
    /// that the other members may still need for their registrations. This member waits for their records for
    /// `patience` plus [`OUTCOME_FLOOR`].
    pub fn plain_member(&self, patience: Duration) -> Member {
        let name = format!("{}/plain", self.meeting(self.rounds.last()).name());
        let members = self.members.clone();
        Member {
            name,
            rank: self.rank,
            members,
            generation: 0,
            patience: patience + OUTCOME_FLOOR,
            deadline: None,
        }
    }

    /// Returns the agreements whose keys in the store this rank can remove now. These are agreements on failed commits,
    /// which may have left keys. All members have taken part in a later commit, so none of them reads these keys any
    /// more. Each agreement is returned only once.
    pub fn take_left(&mut self) -> Vec<Place> {
        self.rounds.take_left().into_iter().map(|round| self.place(round)).collect()
    }

    fn place(&self, round: u64) -> Place {
        Place { name: self.meeting(round).name(), members: self.members.clone() }
    }

    /// Applies the result of the last commit to this state: a success adds the committed segments to the log, and
    /// [`Ending::Poisoned`] sets the poison. All other errors change neither the log nor the poison. `segments` are the
    /// new segments that [`begin`](Self::begin) returned.
    pub fn conclude(&mut self, result: &Result<Agreed, Ending>, segments: &[Segment]) {
        let round = self.rounds.last();
        match result {
            Ok(_) => self.rounds.meet(round),
            Err(_) => self.rounds.leave(round),
        }
        match result {
            Ok(agreed) => {
                if agreed.pending.is_none() {
                    self.equal = self.offered;
                }
                for segment in segments.iter().take(agreed.segments as usize) {
                    let Segment { ordinal, bytes, flags, log } = segment.alone();
                    let joined = u64::from(agreed.joined.contains(&ordinal));
                    let windowed = u64::from(agreed.without.is_none()) << joined;
                    self.enter([ordinal.into(), bytes, flags.into(), log.length, log.hash, windowed]);
                    self.next = ordinal + 1;
                }
            }
            Err(Ending::Poisoned(poison)) => self.set_poison(poison.clone()),
            Err(_) => {}
        }
    }
}
