//! Settings of a group.

use std::time::Duration;

/// Settings of a group and of the groups that are split from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// The default time limit of waits for the members.
    pub(super) timeout: Duration,
    /// The time limit of work that is the oldest of its stream.
    pub(super) work_timeout: Duration,
    pub(super) heartbeat: Duration,
    /// True if operations are timed.
    pub(super) timing: bool,
    /// True if calls are compared before they are launched.
    pub(super) checked: bool,
    /// True if buffers are checked.
    pub(super) looks: bool,
    /// True if the communicator is made later than the group.
    pub(super) lazy: bool,
}
