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
    /// Of which pool.
    pub pool: PoolId,
    /// What for.
    pub errand: Errand,
    /// Which meeting of the pool for that.
    pub round: u64,
    /// Who is expected there.
    pub members: Vec<u32>,
}
wire_struct!(Place { pool, errand, round, members });

impl Message for Place {
    const KIND: u8 = 2;
}

impl Place {
    /// Whether a rank at `other` is in the same meeting.
    pub(super) fn meets(&self, other: &Place) -> bool {
        (self.pool, self.errand, self.round) == (other.pool, other.errand, other.round)
    }

    /// What the keys of a vote of this meeting begin with.
    pub(super) fn vote_prefix(&self, vote: &str) -> String {
        let (PoolId { domain, generation, pool, .. }, round) = (self.pool, self.round);
        let pool = format!("symm/{domain:x}.{generation}/{pool}");
        match self.errand {
            Errand::Commit { group } => format!("{pool}/{}.{}/{round}/{vote}", group.uid, group.epoch),
            Errand::Retire {} => format!("{pool}/retire/{round}/{vote}"),
            Errand::Length {} => format!("{pool}/length/{round}/{vote}"),
        }
    }

    /// Where the decision of this meeting stands.
    pub(super) fn decision_key(&self) -> String {
        standing_key(&self.vote_prefix(ARRIVAL))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errand {
            Errand::Commit { group } => write!(out, "commit {} of group {group}", self.round),
            Errand::Retire {} => write!(out, "retirement {}", self.round),
            Errand::Length {} => write!(out, "agreed allocation {}", self.round),
        }?;
        write!(out, " in {}", self.pool)
    }
}

/// The name of a meeting's first vote.
pub(super) const ARRIVAL: &str = "records";

/// Where it is counted how often `rank` has made the domain of this number.
pub(crate) fn generation_key(domain: u64, rank: u32) -> String {
    format!("symm/{domain:x}/generation/{rank}")
}

/// Where `rank` says which meeting it has entered last, of whatever pool and domain of the store: a rank is in one at a
/// time.
pub(super) fn place_key(rank: u32) -> String {
    format!("symm/at/{rank}")
}
