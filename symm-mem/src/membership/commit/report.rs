//! The result of a commit.

use std::time::Duration;

use crate::{
    agreement::{GroupId, NoWindows, Refusal, Unmapped},
    membership::lookup::SegmentStates,
};

/// The result of a [commit](crate::SymmetricPool::commit), which registers a pool's segments as NCCL windows of a
/// group. Equal on all members that get a report of the commit, except for `elapsed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReport {
    /// The group.
    pub group: GroupId,
    /// The number of segments that this commit added to the group.
    pub new_segments: usize,
    /// The number of windows that contain the new segments. Adjacent segments may share a window.
    pub new_windows: usize,
    /// The number of the pool's segments that the group has committed, in this commit and earlier ones.
    /// [Retired](crate::SymmetricPool::retire) segments do not count.
    pub segments: usize,
    /// The number of windows that contain the pool's committed segments.
    pub windows: usize,
    /// The reason why new segments get no windows in this commit. A commit without new segments may have a reason, too.
    /// The possible reasons are:
    /// - The group has one member.
    /// - NCCL does not support windows for the group.
    /// - [`CommitOptions::windows`](crate::CommitOptions::windows) is false.
    ///
    /// `None` if new segments get windows, or if this rank [skipped](crate::SymmetricPool::commit) the commit because
    /// nothing was new. If this rank skipped it, each other member has skipped it too, or gets an error and no report.
    pub without: Option<NoWindows>,
    /// True if all members have registered the new segments with `ncclCommRegister`. The commit tries this only for the
    /// second reason of [`without`](Self::without): if NCCL does not support windows for the group. If one member
    /// cannot register the segments, all members undo their registrations, this is false, and
    /// [`SymmetricPool::explain`](crate::SymmetricPool::explain) gives the reason.
    pub registered: bool,
    /// With [`Policy::Prefix`](crate::Policy::Prefix): the first difference between the members' new segments or
    /// between the [logs](crate::SymmetricPool::log) of their requests. The commit adds to the group only the new
    /// segments before this difference. `None` if there is no difference.
    pub pending: Option<Refusal>,
    /// The reason why the members have not mapped each other's new segments. `None` if they have mapped them, or if
    /// there are no new segments.
    pub unmapped: Option<Unmapped>,
    /// The duration of the commit on this rank, from the call to its result.
    pub elapsed: Duration,
}

impl CommitReport {
    /// Returns the report of a commit for `group` without new segments. `states` are the states of the pool's segments
    /// in the group, from which the totals in the report are computed.
    pub(super) fn of(group: GroupId, states: &SegmentStates) -> Self {
        Self {
            group,
            new_segments: 0,
            new_windows: 0,
            segments: states.committed(),
            windows: states.windows(),
            without: None,
            registered: false,
            pending: None,
            unmapped: None,
            elapsed: Duration::ZERO,
        }
    }
}
