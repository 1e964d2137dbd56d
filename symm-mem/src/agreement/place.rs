//! Where ranks meet: what they say they have entered, and the keys under which they agree.

use std::fmt;

use process_group::group::GroupId;

use super::{
    record::PoolId,
    vote::standing_key,
    wire::{Message, wire_enum, wire_struct},
};

/// What ranks meet for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Errand {
    /// To commit the pool for a group.
    Commit {
        /// The group.
        group: GroupId,
    },
    /// To retire segments; the whole domain.
    Retire {},
    /// To agree on a length; the whole domain.
    Length {},
}
wire_enum!(Errand { 0 => Commit { group }, 1 => Retire {}, 2 => Length {} });

/// Where a rank was last seen: the meeting that it entered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What for.
    pub errand: Errand,
    /// Which meeting of the pool for that.
    pub round: u64,
    /// Who is expected there.
    pub members: Vec<u32>,
}
wire_struct!(Place { errand, round, members });

impl Message for Place {
    const KIND: u8 = 2;
}

impl Place {
    /// Whether a rank at `other` is in the same meeting.
    pub(super) fn meets(&self, other: &Place) -> bool {
        (self.errand, self.round) == (other.errand, other.round)
    }

    /// What the keys of a vote of this meeting begin with.
    pub(super) fn vote_prefix(&self, pool: PoolId, vote: &str) -> String {
        let (pool, round) = (pool_key(pool), self.round);
        match self.errand {
            Errand::Commit { group } => format!("{pool}/{}.{}/{round}/{vote}", group.uid, group.epoch),
            Errand::Retire {} => format!("{pool}/retire/{round}/{vote}"),
            Errand::Length {} => format!("{pool}/length/{round}/{vote}"),
        }
    }

    /// Where the decision of this meeting stands.
    pub(super) fn decision_key(&self, pool: PoolId) -> String {
        standing_key(&self.vote_prefix(pool, ARRIVAL))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errand {
            Errand::Commit { group } => write!(out, "commit {} of group {group}", self.round),
            Errand::Retire {} => write!(out, "retirement {}", self.round),
            Errand::Length {} => write!(out, "agreed allocation {}", self.round),
        }
    }
}

/// The name of a meeting's first vote.
pub(super) const ARRIVAL: &str = "records";

/// Where `rank` says where it is.
pub(super) fn place_key(pool: PoolId, rank: u32) -> String {
    format!("{}/at/{rank}", pool_key(pool))
}

fn pool_key(pool: PoolId) -> String {
    format!("symm/{:x}.{}/{}", pool.domain, pool.generation, pool.pool)
}
