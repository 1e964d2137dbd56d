//! The failures that are common to all kinds of agreements; see the [terms](super#terms).

use std::fmt;

use super::{
    place::{COMMON, Place, Waiting},
    values::ValuesByRank,
};
use crate::{
    Ranks,
    wire::{Message, Protocol, wire_enum, wire_struct},
};

/// A missing member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absentee {
    /// The rank in the job.
    pub rank: u32,
    /// The other agreements in which the rank waited when its places were read. If the [`Failure::Absent`] was stored
    /// by a member of another agreement that found a circular wait, only the agreements of that circle.
    pub elsewhere: Vec<Place>,
}
wire_struct!(Absentee { rank, elsewhere });

/// The protocol of a member's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spoken {
    /// The magic of the protocol.
    pub magic: [u8; 2],
    /// The version of the protocol.
    pub version: u16,
    /// The version of the messages that do not depend on the kind of agreement, such as [`Failure`].
    pub agreement: u16,
}
wire_struct!(Spoken { magic, version, agreement });

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { magic, version, agreement } = self;
        write!(f, "{} {version}.{agreement}", magic.escape_ascii())
    }
}

/// The reason why an agreement has failed. All members that read the result get the same failure, with the exceptions
/// named at [`Ending::Failed`](super::Ending::Failed). Ranks are ranks of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Members were missing when the patience of another member ended. Or members of this agreement and of others wait
    /// for each other in a circle, and a member of one of these agreements has detected that.
    Absent {
        /// The missing members, in ascending order of ranks. Exception: if a circular wait was found from another
        /// agreement, these are the members of this agreement that have not arrived at it and wait in other agreements
        /// of the circle. They are then in the order of the member list.
        missing: Vec<Absentee>,
        /// The rank whose patience ended, in this agreement or in another one of the circle.
        by: u32,
        /// The time that rank `by` waited, in milliseconds.
        waited_ms: u64,
        /// The waits in the agreements of the circle, in ascending order of ranks and names. A rank with several
        /// threads may appear several times. Empty if no circle was found.
        circle: Vec<Waiting>,
    },
    /// Members use different protocols under one name, or different versions of one protocol.
    Protocols {
        /// The protocol of each member whose record is long enough to contain it.
        protocols: ValuesByRank<Spoken>,
    },
    /// Members have different member lists.
    Members {
        /// The list that was stored first, and the list of the member that found the difference.
        lists: ValuesByRank<Vec<u32>>,
    },
    /// Members have different generations of the object: they have created the object a different number of times.
    Generations {
        /// The generation of each member.
        generations: ValuesByRank<u64>,
    },
    /// A member's record or outcome cannot be read: another program has written it.
    Unreadable {
        /// The member.
        rank: u32,
        /// The problem with the record or outcome.
        cause: String,
    },
    /// Two processes take part as one rank, or the name of the agreement was used before.
    Taken {
        /// The rank.
        rank: u32,
    },
    /// A rank has left the agreement by [`leave`](super::leave), or has ended the object that the agreement is about.
    Left {
        /// The rank.
        rank: u32,
        /// The reason that it gave.
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
    /// Returns the ranks that probably caused the failure: the missing ranks, the rank that the failure names, or, if
    /// values differ, the ranks outside the largest group with equal values. If several groups are the largest, the
    /// group with the lowest rank counts as the largest.
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
                    let names: Vec<&str> = elsewhere.iter().map(|place| &*place.name).collect();
                    match &names[..] {
                        [] => write!(f, "; rank {rank} waits in no agreement")?,
                        names => write!(f, "; rank {rank} waits at {}", names.join(" and "))?,
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
                write!(f, "the message of rank {rank} cannot be read: {cause}")
            }
            Self::Left { rank, cause } => write!(f, "rank {rank} has left: {cause}"),
        }
    }
}
