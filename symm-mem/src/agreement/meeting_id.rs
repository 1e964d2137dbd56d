//! The meetings of ranks: their published places, and their store keys.

use std::fmt;

use process_group::group::GroupId;

use super::{
    record::PoolId,
    wire::{Message, wire_enum, wire_struct},
};

/// The purpose of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeetingKind {
    /// To commit the pool for a group.
    Commit {
        /// The group.
        group: GroupId,
    },
    /// To retire segments, with the whole domain.
    Retire {},
    /// To agree on a length, with the whole domain.
    Length {},
}
wire_enum!(MeetingKind { 0 => Commit { group }, 1 => Retire {}, 2 => Length {} });

/// Identifies a meeting. A rank publishes the id of the meeting that it entered last as its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeetingId {
    /// The pool of the meeting.
    pub pool: PoolId,
    /// The purpose of the meeting.
    pub kind: MeetingKind,
    /// The number of the meeting, counted for each pool and purpose.
    pub round: u64,
    /// The ranks that are expected there.
    pub members: Vec<u32>,
}
wire_struct!(MeetingId { pool, kind, round, members });

impl Message for MeetingId {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 2;
}

impl MeetingId {
    /// Returns true if a rank at `other` is in the same meeting.
    pub(super) fn meets(&self, other: &MeetingId) -> bool {
        (self.pool, self.kind, self.round) == (other.pool, other.kind, other.round)
    }

    /// The prefix of the store keys of a decision round of this meeting.
    pub(super) fn vote_prefix(&self, vote: &str) -> String {
        let (PoolId { domain, generation, pool, .. }, round) = (self.pool, self.round);
        let pool = format!("symm/{domain:x}.{generation}/{pool}");
        match self.kind {
            MeetingKind::Commit { group } => format!("{pool}/{}.{}/{round}/{vote}", group.uid, group.epoch),
            MeetingKind::Retire {} => format!("{pool}/retire/{round}/{vote}"),
            MeetingKind::Length {} => format!("{pool}/length/{round}/{vote}"),
        }
    }

    /// Names the meeting among those of its pool.
    pub(super) fn meeting(&self) -> String {
        match self.kind {
            MeetingKind::Commit { group } => format!("commit {} of group {group}", self.round),
            MeetingKind::Retire {} => format!("retirement {}", self.round),
            MeetingKind::Length {} => format!("agreed allocation {}", self.round),
        }
    }

    /// The store key of this meeting's decision.
    pub(super) fn decision_key(&self) -> String {
        standing_key(&self.vote_prefix(ARRIVAL))
    }
}

impl fmt::Display for MeetingId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} in {}", self.meeting(), self.pool)
    }
}

/// The name of a meeting's first decision round.
pub(super) const ARRIVAL: &str = "records";

/// The store key that counts how often `rank` has created the domain with this number.
pub(crate) fn generation_key(domain: u64, rank: u32) -> String {
    format!("symm/{domain:x}/generation/{rank}")
}

/// The store key under which `rank` publishes the meeting that it has entered last, in any pool and domain of the
/// store. A rank is in one meeting at a time.
pub(super) fn place_key(rank: u32) -> String {
    format!("symm/at/{rank}")
}

/// The key of the result of the decision round with this prefix.
pub(crate) fn standing_key(prefix: &str) -> String {
    format!("{prefix}/stands")
}
