//! The limits of a seed's choices, and a violated invariant.

use std::fmt;

/// The limits of a seed's choices: the number of ranks, and upper limits of the other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of ranks, at most 63. Less than 2 means 2. If this is `None`, the seed draws a number from 2 to 6.
    pub ranks: Option<u32>,
    /// The greatest number of [phases](crate::simulation) of the program.
    pub phases: u64,
    /// The greatest number of groups.
    pub groups: usize,
    /// The greatest number of requests to the pool in a phase. Requests that only the culprit makes do not count, nor
    /// do allocations of agreed lengths.
    pub requests: u64,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self { ranks: None, phases: u64::MAX, groups: usize::MAX, requests: u64::MAX }
    }
}

/// The description of a violated invariant, with the ranks concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub(super) String);

impl Violation {
    pub(super) fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
