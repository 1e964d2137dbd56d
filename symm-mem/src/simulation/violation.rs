//! The limits of a seed's choices, and a violated invariant.

use std::fmt;

/// Limits of a seed's choices: a fixed number of ranks, and upper limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of ranks, at most 63 (2 if it is less), or `None` for the number that the seed draws, from 2 to 6.
    pub ranks: Option<u32>,
    /// The greatest number of phases of the program.
    pub phases: u64,
    /// The greatest number of groups.
    pub groups: usize,
    /// The greatest number of requests to the pool in a phase. Requests that only the culprit makes and those for
    /// agreed lengths do not count.
    pub requests: u64,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self { ranks: None, phases: u64::MAX, groups: usize::MAX, requests: u64::MAX }
    }
}

/// A violated invariant, with the ranks concerned.
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
