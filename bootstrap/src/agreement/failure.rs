//! The failures that are common to all kinds of agreements.

use std::fmt;

use super::{
    values::{Ranks, ValuesByRank},
    vote::result_key,
};
use crate::wire::{Message, Protocol, wire_enum, wire_struct};

/// The protocol of the messages that are the same in agreements of every kind.
pub(super) const COMMON: Protocol = Protocol { magic: *b"AG", version: 1 };

/// An agreement in which a rank waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the agreement, which is the prefix of its keys.
    pub name: String,
    /// The members of the agreement, as ranks of the job.
    pub members: Vec<u32>,
}
wire_struct!(Place { name, members });

impl Message for Place {
    const PROTOCOL: Protocol = COMMON;
    const KIND: u8 = 0;
}

impl Place {
    /// The place of a rank that waits in no agreement, or in several.
    pub(super) fn nowhere() -> Self {
        Self { name: String::new(), members: Vec::new() }
    }

    /// Returns false for [`nowhere`](Self::nowhere).
    pub(super) fn is_somewhere(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the key of this agreement's decision.
    pub(super) fn decision_key(&self) -> String {
        result_key(&records(&self.name))
    }
}

/// Returns the prefix of the vote on the records of the agreement with this name.
pub(super) fn records(name: &str) -> String {
    format!("{name}/records")
}

/// Returns the prefix of the vote on the outcomes of the action with this number.
pub(super) fn outcomes(name: &str, action: u32) -> String {
    format!("{name}/outcomes{action}")
}

/// Returns the key of the member list of the agreement with this name.
pub(super) fn members_key(name: &str) -> String {
    format!("{name}/members")
}

/// Returns the key under which a rank publishes the agreement that it waits in.
pub(super) fn place_key(rank: u32) -> String {
    format!("places/{rank}")
}

/// A member that had not posted its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absentee {
    /// Its rank of the job.
    pub rank: u32,
    /// The agreement in which it waits now; `None` if it waits in none, or in several.
    pub elsewhere: Option<Place>,
}
wire_struct!(Absentee { rank, elsewhere });

/// A rank, and the agreement in which it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its rank of the job.
    pub rank: u32,
    /// The agreement in which it waits.
    pub place: Place,
}
wire_struct!(Waiting { rank, place });

/// The first member of an agreement publishes its member list in this form. The others compare theirs with it.
impl Message for Waiting {
    const PROTOCOL: Protocol = COMMON;
    const KIND: u8 = 2;
}

/// The protocol that a member speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spoken {
    /// The magic of the protocol.
    pub magic: [u8; 2],
    /// Its version.
    pub version: u16,
    /// The version of the messages that are the same in agreements of every kind.
    pub agreement: u16,
}
wire_struct!(Spoken { magic, version, agreement });

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { magic, version, agreement } = self;
        write!(f, "{} {version}.{agreement}", magic.escape_ascii())
    }
}

/// The reason why an agreement has failed. All members get the same failure, with the exceptions named at
/// [`Ending::Failed`](super::Ending::Failed). Ranks are ranks of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Members had not posted their records when the patience of another member ended.
    Absent {
        /// The members without a record, in ascending order of ranks.
        missing: Vec<Absentee>,
        /// The rank whose patience ended.
        by: u32,
        /// The time that rank `by` waited, in milliseconds.
        waited_ms: u64,
        /// The ranks of a circular wait, each with the agreement in which it waits, in ascending order of ranks.
        /// Empty if there is none.
        circle: Vec<Waiting>,
    },
    /// Members use different protocols under one name, or different versions of one protocol.
    Protocols {
        /// The protocol of each member.
        protocols: ValuesByRank<Spoken>,
    },
    /// Members have different member lists.
    Members {
        /// The list of the first member, and that of the first one that differs.
        lists: ValuesByRank<Vec<u32>>,
    },
    /// Members have different generations of the object: they have created it a different number of times.
    Generations {
        /// The generation of each member.
        generations: ValuesByRank<u64>,
    },
    /// A member's record cannot be read.
    Unreadable {
        /// The member.
        rank: u32,
        /// The problem with the record.
        cause: String,
    },
    /// Two processes take part as one rank, or the name of the agreement was used before.
    Taken {
        /// The rank.
        rank: u32,
    },
    /// A rank has left the agreement ([`leave`](super::leave)), or has ended the object that the members agree on.
    Left {
        /// The rank.
        rank: u32,
        /// Its reason.
        cause: String,
    },
}
wire_enum!(Failure {
    0 => Absent { missing, by, waited_ms, circle },
    1 => Protocols { protocols },
    2 => Members { lists },
    3 => Generations { generations },
    4 => Unreadable { rank, cause },
    5 => Taken { rank },
    6 => Left { rank, cause },
});

impl Message for Failure {
    const PROTOCOL: Protocol = COMMON;
    const KIND: u8 = 1;
}

impl Failure {
    /// Returns the ranks that caused the failure. If values differ, these are the ranks outside the largest group
    /// with equal values. Of groups of one size, the one with the lowest rank counts as the largest.
    #[must_use]
    pub fn culprits(&self) -> Vec<u32> {
        match self {
            Self::Absent { missing, .. } => missing.iter().map(|absentee| absentee.rank).collect(),
            Self::Protocols { protocols } => protocols.minority(),
            Self::Members { lists } => lists.minority(),
            Self::Generations { generations } => generations.minority(),
            Self::Unreadable { rank, .. } | Self::Taken { rank } | Self::Left { rank, .. } => vec![*rank],
        }
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { missing, by, waited_ms, circle } if circle.is_empty() => {
                let ranks: Vec<u32> = missing.iter().map(|absentee| absentee.rank).collect();
                write!(f, "{} did not come within the {waited_ms} ms that rank {by} waited", Ranks(&ranks))?;
                for Absentee { rank, elsewhere } in missing {
                    match elsewhere {
                        Some(place) => write!(f, "; rank {rank} waits at {}", place.name)?,
                        None => write!(f, "; rank {rank} waits in no agreement, or in several")?,
                    }
                }
                Ok(())
            }
            Self::Absent { circle, .. } => {
                f.write_str("ranks wait for each other in a circle: ")?;
                for (index, Waiting { rank, place }) in circle.iter().enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}rank {rank} at {} with {}", place.name, Ranks(&place.members))?;
                }
                f.write_str("; call them in the same order on every rank")
            }
            Self::Protocols { protocols } => write!(
                f,
                "ranks speak different protocols: {}; run the same release on every rank",
                protocols.describe(Spoken::to_string)
            ),
            Self::Members { lists } => write!(
                f,
                "ranks name different members: {}",
                lists.describe(|members| format!("with {}", Ranks(members)))
            ),
            Self::Generations { generations } => write!(
                f,
                "ranks mean different generations: {}; make the object equally often on every rank",
                generations.describe(u64::to_string)
            ),
            Self::Taken { rank } => {
                write!(
                    f,
                    "two processes take part as rank {rank}, or the name of the agreement was used before"
                )
            }
            Self::Unreadable { rank, cause } => {
                write!(f, "the record of rank {rank} cannot be read: {cause}")
            }
            Self::Left { rank, cause } => write!(f, "rank {rank} has left: {cause}"),
        }
    }
}
