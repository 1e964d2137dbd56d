//! What a commit achieved.

use std::time::Duration;

use crate::agreement::{GroupId, NoWindows, Refusal};

/// What a commit achieved; equal on all members but for `elapsed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReport {
    /// The group.
    pub group: GroupId,
    /// How many segments became the group's by this commit.
    pub new_segments: usize,
    /// How many windows they are; adjacent ones may share one.
    pub new_windows: usize,
    /// How many segments of the pool are the group's.
    pub segments: usize,
    /// How many windows they are.
    pub windows: usize,
    /// Why the new segments have no windows: a group of one, or a library without. The same offsets are the same
    /// block on every rank all the same.
    pub without: Option<NoWindows>,
    /// Whether all members have registered the new segments plainly (`ncclCommRegister`), because they could not become
    /// windows. Where one cannot, none has: [`SymmetricPool::explain`](crate::SymmetricPool::explain) says why.
    pub registered: bool,
    /// With [`Policy::Prefix`](crate::Policy::Prefix): what was left out and why.
    pub pending: Option<Refusal>,
    /// From the call to the last member's outcome.
    pub elapsed: Duration,
}
