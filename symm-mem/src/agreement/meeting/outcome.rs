//! How opening went on each member, and what all make of it.

use std::collections::BTreeSet;

use super::Contribution;
use crate::agreement::{
    Split,
    wire::{Message, wire_enum},
};

/// How opening the others' memory ended on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is mapped.
    Mapped,
    /// A call failed, or what a peer sent was wrong.
    Failed {
        /// What.
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
    const KIND: u8 = 18;
}

/// What the members make of their outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<C: Contribution> {
    /// All have all.
    Opened,
    /// All let go of what they have opened.
    Failed {
        /// Why.
        refusal: C::Refusal,
    },
}
wire_enum!(Verdict<C: Contribution> { 0 => Opened {}, 1 => Failed { refusal } });

impl<C: Contribution> Message for Verdict<C> {
    const KIND: u8 = C::VERDICT;
}

/// What a meeting can end with, whatever it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Ranks, ascending, did not come within this time.
    Absent {
        /// The ranks.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited_ms: u64,
    },
    /// What a rank came with cannot be read.
    Unreadable {
        /// The rank.
        rank: u32,
        /// Why not.
        cause: String,
    },
    /// Ranks speak different versions of the protocol.
    Versions {
        /// Each rank's version.
        versions: Split<u16>,
    },
    /// A rank could not open what it lacks, or lend its own.
    Opening {
        /// The rank, the lowest of several.
        rank: u32,
        /// Why not.
        cause: String,
    },
    /// Ranks were lost after all had come.
    Lost {
        /// The ranks that did not say how it went, ascending; if all did, those that others found gone.
        missing: Vec<u32>,
        /// Those that waited for them in vain.
        noticed: Vec<u32>,
    },
}

/// Judges the outcomes of all members (rank, and what it posted): the same for every order of them. A failure outweighs
/// silence, and silence outweighs one who only waited for the silent.
pub fn verdict<C: Contribution>(outcomes: &[(u32, Option<Outcome>)]) -> Verdict<C> {
    let mut outcomes: Vec<&(u32, Option<Outcome>)> = outcomes.iter().collect();
    outcomes.sort_by_key(|(rank, _)| *rank);
    let failed = outcomes.iter().find_map(|(rank, outcome)| match outcome {
        Some(Outcome::Failed { cause }) => Some((*rank, cause.clone())),
        _ => None,
    });
    // A rank that has said how it went, and is gone all the same for one that came later.
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
