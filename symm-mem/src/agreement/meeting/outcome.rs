//! The outcome of opening on each member, and the common result.

use std::collections::BTreeSet;

use super::Contribution;
use crate::agreement::{
    ValuesByRank,
    wire::{Message, wire_enum},
};

/// The outcome of opening the others' memory on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is mapped.
    Mapped,
    /// A call failed, or a peer sent invalid data.
    Failed {
        /// A description of the failure.
        cause: String,
    },
    /// Peers are gone, or did not answer.
    Alone {
        /// The ranks.
        gone: Vec<u32>,
    },
}
wire_enum!(Outcome { 0 => Mapped {}, 1 => Failed { cause }, 2 => Alone { gone } });

impl Message for Outcome {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = 18;
}

/// The common result of the members' outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<C: Contribution> {
    /// All members have opened all memory.
    Opened,
    /// All members close the memory that they have opened.
    Failed {
        /// The reason.
        refusal: C::Refusal,
    },
}
wire_enum!(Verdict<C: Contribution> { 0 => Opened {}, 1 => Failed { refusal } });

impl<C: Contribution> Message for Verdict<C> {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = C::VERDICT;
}

/// The failures common to all kinds of meetings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Ranks did not come within the deadline.
    Absent {
        /// The missing ranks, ascending.
        missing: Vec<u32>,
        /// The time that the others waited, in milliseconds.
        waited_ms: u64,
    },
    /// A rank's contribution cannot be decoded.
    Unreadable {
        /// The rank.
        rank: u32,
        /// The decoding error.
        cause: String,
    },
    /// Ranks use different versions of the protocol.
    Versions {
        /// Each rank's version.
        versions: ValuesByRank<u16>,
    },
    /// A rank could not open the memory that it lacks, or share its own.
    Opening {
        /// The rank, the lowest of several.
        rank: u32,
        /// A description of the failure.
        cause: String,
    },
    /// Ranks were lost after all had come.
    Lost {
        /// The ranks that posted no outcome, ascending. If all did, the ranks that others found gone.
        missing: Vec<u32>,
        /// The ranks that waited for them and timed out or found them gone.
        noticed: Vec<u32>,
    },
}

/// Computes the verdict from the outcomes of all members (rank, and its outcome if it posted one). The result does
/// not depend on their order. A failure takes precedence over a missing outcome. A missing outcome takes precedence
/// over [`Outcome::Alone`] of a rank that only waited for the missing one.
pub fn verdict<C: Contribution>(outcomes: &[(u32, Option<Outcome>)]) -> Verdict<C> {
    let mut outcomes: Vec<&(u32, Option<Outcome>)> = outcomes.iter().collect();
    outcomes.sort_by_key(|(rank, _)| *rank);
    let failed = outcomes.iter().find_map(|(rank, outcome)| match outcome {
        Some(Outcome::Failed { cause }) => Some((*rank, cause.clone())),
        _ => None,
    });
    // A rank may post its outcome and then be gone for a rank that opens its memory later.
    let gone = outcomes.iter().filter_map(|(_, outcome)| match outcome {
        Some(Outcome::Alone { gone }) => Some(gone.iter().copied()),
        _ => None,
    });
    let gone: BTreeSet<u32> = gone.flatten().collect();
    let ranks_that = |is: fn(&Option<Outcome>) -> bool| -> Vec<u32> {
        outcomes.iter().filter(|(_, outcome)| is(outcome)).map(|(rank, _)| *rank).collect()
    };
    let missing = ranks_that(Option::is_none);
    let noticed = ranks_that(|outcome| matches!(outcome, Some(Outcome::Alone { .. })));
    let failure = match (failed, missing.is_empty(), noticed.is_empty()) {
        (Some((rank, cause)), ..) => Failure::Opening { rank, cause },
        (None, false, _) => Failure::Lost { missing, noticed },
        (None, true, false) => Failure::Lost { missing: gone.into_iter().collect(), noticed },
        (None, true, true) => return Verdict::Opened,
    };
    Verdict::Failed { refusal: failure.into() }
}
