//! The messages of a commit after the [records](super::record): the plans and outcomes of actions, and the result. An
//! action is work that a decision assigns to every member. The plan describes this work, and the outcome is a member's
//! report on it.

use bootstrap::agreement;

use super::{
    ending::Ending,
    history::{Divergence, Operation},
    peer_memory::PeerMappings,
    poison::{NoWindows, Poison},
    refusal::Refusal,
    search::{Range, Recalled},
    wire::{wire_enum, wire_struct},
};

/// The kind of agreement that decides a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitProtocol;

/// The next action of all members, or the end of the commit. It follows from the members' records or, after an action,
/// from their outcomes. After an action it is called the verdict.
pub type CommitDecision = agreement::Decision<CommitProtocol>;

/// The agreed result of a commit, equal on all members. In a [plan](CommitPlan) (the members' next work), it is the
/// result as decided so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// The number of segments that the group commits. They are the first of the [new
    /// segments](super::CommitRecord::segments) in every record.
    pub segments: u32,
    /// The [ordinals](super::Segment::ordinal) of the segments that share a window with the segment before them,
    /// ascending.
    pub joined: Vec<u32>,
    /// The reason why the segments have no NCCL windows. `None` if they have windows, or are about to get them (in a
    /// plan). If `segments` is 0, the value is the same as if there were segments.
    pub without: Option<NoWindows>,
    /// With [`Policy::Prefix`](crate::Policy::Prefix): the first difference between the members' new segments or
    /// allocation logs. The group commits only the segments before this difference. `None` if there is no difference.
    pub pending: Option<Refusal>,
    /// Whether each member has mapped the memory that the other members offer in this commit.
    pub peers: PeerMappings,
}
wire_struct!(Agreed { segments, joined, without, pending, peers });

impl Agreed {
    /// Returns the next decision: to register the segments as windows. If there are no windows to register, returns the
    /// decision that would follow the registration.
    pub(crate) fn proceed(self) -> CommitDecision {
        match self.segments == 0 || self.without.is_some() {
            true => self.open(),
            false => CommitDecision::Act { plan: CommitPlan::Register(self) },
        }
    }
}

/// The reason why nothing is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// Nothing was registered on any member. The group is unchanged.
    Refused(Refusal),
    /// The group is [poisoned](Poison) on all members.
    Poisoned(Poison),
}
wire_enum!(Rejection { 0 => Refused(refusal), 1 => Poisoned(poison) });

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Rejection> for Ending {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Refused(refusal) => Self::Refused(refusal),
            Rejection::Poisoned(poison) => Self::Poisoned(poison),
        }
    }
}

/// The decision to take after the search for the first operation that differs between the members' allocation logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// To refuse the commit for this reason, to which the search adds the first operation that differs. Nothing is
    /// registered.
    Refuse(Refusal),
    /// To commit the segments before the difference. The search adds the first operation that differs to
    /// [`pending`](Agreed::pending).
    Commit(Agreed),
}
wire_enum!(After { 0 => Refuse(refusal), 1 => Commit(agreed) });

impl After {
    pub(crate) fn with(self, divergence: Divergence) -> CommitDecision {
        match self {
            Self::Refuse(refusal) => {
                CommitDecision::Refused { refusal: refusal.with_divergence(divergence).into() }
            }
            Self::Commit(mut agreed) => {
                agreed.pending = agreed.pending.map(|pending| pending.with_divergence(divergence));
                agreed.proceed()
            }
        }
    }
}

/// The plan of an action: the work that every member executes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitPlan {
    /// Post hashes of the allocation log, the sequence of [operations](Operation) on the pool: for each n in the
    /// [points](Range::points) of a range, the hash of the first n operations.
    Hashes {
        /// The range.
        range: Range,
        /// The decision to take after the search.
        after: After,
    },
    /// Post the operation number `sequence` of the allocation log.
    Recall {
        /// The number, from 0.
        sequence: u64,
        /// The decision to take after the search.
        after: After,
    },
    /// Register the agreed segments as windows, in their order, in one NCCL group.
    Register(Agreed),
    /// Open (map) the memory of the other members. The field [`peers`](Agreed::peers) contains their offers.
    Open(Agreed),
}
wire_enum!(CommitPlan {
    0 => Hashes { range, after },
    1 => Recall { sequence, after },
    2 => Register(agreed),
    3 => Open(agreed),
});

impl CommitPlan {
    /// Returns true if the plan is a step of a search after the members have decided to refuse the commit. Such a
    /// search only adds details to the refusal.
    pub(crate) fn only_explains(&self) -> bool {
        matches!(
            self,
            Self::Hashes { after: After::Refuse(_), .. } | Self::Recall { after: After::Refuse(_), .. }
        )
    }
}

/// The outcome of an action on one member: its report on the work of a [`CommitPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The answer to [`CommitPlan::Hashes`]: the rank's hashes at the points of the range. `None` for a point at which
    /// the rank no longer has the hash.
    Hashes(Vec<Option<u64>>),
    /// The answer to [`CommitPlan::Recall`]: the requested operation, if the rank's log still has it.
    Recalled(Recalled),
    /// The outcome of [`CommitPlan::Register`].
    Registered(RegistrationOutcome),
    /// The outcome of [`CommitPlan::Open`].
    Opened(memory_sharing::OpeningOutcome),
}
wire_enum!(CommitOutcome { 0 => Hashes(hashes), 1 => Recalled(recalled), 2 => Registered(outcome), 3 => Opened(outcome) });

impl CommitOutcome {
    /// Returns the answer to [`CommitPlan::Hashes`]. `hash_at(n)` returns the hash of the first n operations of the
    /// allocation log, or `None` if the log no longer has this hash.
    pub fn hashes(range: Range, hash_at: impl Fn(u64) -> Option<u64>) -> Self {
        Self::Hashes(range.points().into_iter().map(hash_at).collect())
    }

    /// Returns the answer to [`CommitPlan::Recall`]. `length` is the length of the rank's allocation log at the start
    /// of the commit. `operation` returns the operation with a given number, or `None` if the log does not have it.
    pub fn recalled(sequence: u64, length: u64, operation: impl Fn(u64) -> Option<Operation>) -> Self {
        let is_last = length <= sequence + 1;
        Self::Recalled(Recalled { operation: operation(sequence), is_last })
    }
}

/// The outcome of [`CommitPlan::Register`] on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// All windows are registered.
    Registered,
    /// NCCL reported that it does not support windows for this group. No window was registered.
    Unsupported {
        /// The reason.
        reason: String,
    },
    /// The registration failed, or only some of the requested windows were registered.
    Failed {
        /// The segment whose registration failed, if known.
        ordinal: Option<u32>,
        /// A description of the failure.
        cause: String,
    },
    /// The registration did not return in time.
    Blocked,
    /// The registration failed because the group had ended, and another member was the cause: it had ended the group or
    /// was lost.
    Ended {
        /// That other member.
        rank: u32,
    },
}
wire_enum!(RegistrationOutcome {
    0 => Registered {},
    1 => Unsupported { reason },
    2 => Failed { ordinal, cause },
    3 => Blocked {},
    4 => Ended { rank },
});
