//! [`Limits`] of the choices that a seed makes, and [`Violation`], a violated invariant.

use std::fmt;

/// The limits of the choices that a seed makes: the number of ranks, and upper limits of other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of ranks, at most 63. 0 and 1 mean 2. If `None`, the seed draws a number from 2 to 6.
    pub ranks: Option<u32>,
    /// The greatest number of [phases](crate) of the program.
    pub phases: u64,
    /// The greatest number of groups.
    pub groups: usize,
    /// The greatest number of allocations and frees of a rank in a phase. Not counted: those that only the
    /// [culprit](crate) makes, and allocations of a length on which the ranks agree.
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
pub struct Violation(pub(crate) String);

/// Returns a [`Violation`] with this text, formatted as by `format!`, from the calling function.
macro_rules! bail {
    ($($text:tt)*) => {
        return Err(Violation(format!($($text)*)))
    };
}

/// Returns a [`Violation`] with this text from the calling function, unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(Violation(format!($($text)*)));
        }
    };
}
pub(crate) use {bail, ensure};

impl Violation {
    pub(crate) fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
