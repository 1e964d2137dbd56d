//! Options of a commit.

use std::time::Duration;

use crate::agreement::Policy;

/// Options of a commit. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOptions {
    /// The treatment of differences between ranks.
    pub policy: Policy,
    /// The time limit of the commit, counted from the call. The limits of its phases are computed from it. A member may
    /// come later than the first one by up to three eighths of this time. If it comes later, the commit is refused
    /// ([`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout)), and the group is unchanged.
    ///
    /// Once all members have come, the phases after their decision have their own time limits, equal on all members.
    /// Each limit is a share of the longest deadline of a member and at most 10 min, but at least 10 s for an action
    /// (the registration, or the whole search for a difference) and 5 s for the members' answers. Store requests that
    /// do not wait for a member are bounded by the store itself
    /// ([`TcpOptions::patience`](process_group::store::TcpOptions::patience), 30 s if not set). If the store's host
    /// is stopped, members may get the error later than the limits above, by up to this bound.
    pub deadline: Duration,
    /// If true, adjacent new segments share a window if the library allows it (from NCCL 2.30.3 on), so that fewer
    /// windows have to be registered. NCCL's one-sided calls accept only windows of one segment, so programs that use
    /// them set this to false.
    pub joined: bool,
    /// If false, no segment becomes a window, and none is registered with NCCL. Such a commit needs no communicator, so a
    /// group without one can map its members' segments.
    pub windows: bool,
    /// If true, the members also map each other's new segments, so that
    /// [`SymmetricPool::symmetric_memory`](crate::SymmetricPool::symmetric_memory) has them for kernels, and messages of
    /// the [direct path](crate::direct) between blocks are copied without a detour. If a member cannot map them, none
    /// does, and [`CommitReport::unmapped`](crate::CommitReport::unmapped) has the reason. It costs virtual address
    /// space and time, but no device memory besides the signal pads of the first commit (2 MiB). On two H200, the first
    /// commit of a pool for a group takes 4 to 5 ms more for one segment of 2 MiB, and 0.3 ms more for each further one.
    pub map_peers: bool,
}

impl Default for CommitOptions {
    /// Strict policy, 30 seconds, windows that adjacent segments share, mapped segments.
    fn default() -> Self {
        let (policy, deadline) = (Policy::Strict, Duration::from_secs(30));
        Self { policy, deadline, joined: true, windows: true, map_peers: true }
    }
}

impl CommitOptions {
    /// Sets the policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets whether segments become windows.
    #[must_use]
    pub fn windows(mut self, windows: bool) -> Self {
        self.windows = windows;
        self
    }

    /// Sets whether the members map each other's segments.
    #[must_use]
    pub fn map_peers(mut self, map_peers: bool) -> Self {
        self.map_peers = map_peers;
        self
    }

    /// Sets whether adjacent segments share a window.
    #[must_use]
    pub fn joined(mut self, joined: bool) -> Self {
        self.joined = joined;
        self
    }
}
