//! The common part of all [agreements](bootstrap::agreement) in which members open each other's memory. After the
//! members have decided to go on, each of them opens (maps) the memory that the others share, and posts an
//! [`OpeningOutcome`]. The members then judge all outcomes: either all members keep the opened memory, or none does.

use std::{collections::BTreeSet, fmt};

use bootstrap::{
    agreement::{Ranks, Report},
    wire::wire_enum,
};

/// The outcome of opening the others' memory on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpeningOutcome {
    /// The memory of all other members is mapped.
    Mapped,
    /// A call failed, or a peer sent invalid data.
    Failed {
        /// A description of the failure.
        cause: String,
    },
    /// Peers are gone, or did not answer.
    Alone {
        /// The ranks of these peers.
        gone: Vec<u32>,
    },
}
impl fmt::Display for OpeningOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped => out.write_str("all memory is mapped"),
            Self::Failed { cause } => out.write_str(cause),
            Self::Alone { gone } => write!(out, "no answer from {}", Ranks(gone)),
        }
    }
}
wire_enum!(OpeningOutcome { 0 => Mapped {}, 1 => Failed { cause }, 2 => Alone { gone } });

/// The reason why not all members have opened the others' memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpeningFailure {
    /// A rank could not open the memory of the others, or could not share its own memory.
    Failed {
        /// The rank. If several ranks failed, this is the lowest one.
        rank: u32,
        /// A description of the failure.
        cause: String,
    },
    /// Ranks were lost after all members had posted their records (their first messages).
    Lost {
        /// The ranks that posted no outcome, ascending. If every rank posted one: the ranks that others reported
        /// in [`OpeningOutcome::Alone`], ascending.
        missing: Vec<u32>,
        /// The ranks that posted [`OpeningOutcome::Alone`], ascending.
        noticed: Vec<u32>,
    },
}

impl OpeningFailure {
    /// Returns the rank that error messages name as the cause, and a description of its failure.
    pub fn cause(self) -> (u32, String) {
        let (missing, noticed) = match self {
            Self::Failed { rank, cause } => return (rank, cause),
            Self::Lost { missing, noticed } => (missing, noticed),
        };
        let (rank, what) = match (missing.first(), noticed.first()) {
            (Some(missing), _) => (*missing, "it did not answer"),
            (None, noticed) => (noticed.copied().unwrap_or_default(), "it got no answer"),
        };
        (rank, format!("{what} while the members opened each other's memory"))
    }
}

/// Judges the outcomes of all members. Returns `None` if all of them have opened all memory. The result does not depend
/// on the order of `reports`. A failure takes precedence over a missing outcome. A missing outcome takes precedence
/// over [`OpeningOutcome::Alone`], because a rank that posts `Alone` usually waited for a rank whose outcome is
/// missing.
pub fn judge(reports: &[(u32, Report<OpeningOutcome>)]) -> Option<OpeningFailure> {
    let mut reports: Vec<&(u32, Report<OpeningOutcome>)> = reports.iter().collect();
    reports.sort_by_key(|(rank, _)| *rank);
    let failed = reports.iter().find_map(|(rank, report)| match report {
        Report::Outcome(OpeningOutcome::Failed { cause }) => Some((*rank, cause.clone())),
        _ => None,
    });
    if let Some((rank, cause)) = failed {
        return Some(OpeningFailure::Failed { rank, cause });
    }
    let ranks_that = |is: fn(&Report<OpeningOutcome>) -> bool| -> Vec<u32> {
        reports.iter().filter(|(_, report)| is(report)).map(|(rank, _)| *rank).collect()
    };
    let missing = ranks_that(|report| !matches!(report, Report::Outcome(_)));
    let noticed = ranks_that(|report| matches!(report, Report::Outcome(OpeningOutcome::Alone { .. })));
    // A rank that exits after it has posted its outcome is not in `missing`. But a member that has not opened the
    // memory of that rank yet posts [`OpeningOutcome::Alone`] and names that rank.
    let gone = reports.iter().filter_map(|(_, report)| match report {
        Report::Outcome(OpeningOutcome::Alone { gone }) => Some(gone.iter().copied()),
        _ => None,
    });
    let gone: BTreeSet<u32> = gone.flatten().collect();
    match (missing.is_empty(), noticed.is_empty()) {
        (false, _) => Some(OpeningFailure::Lost { missing, noticed }),
        (true, false) => Some(OpeningFailure::Lost { missing: gone.into_iter().collect(), noticed }),
        (true, true) => None,
    }
}
