//! How a commit is made.

use std::time::Duration;

use crate::agreement::Policy;

/// How a commit is made. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOptions {
    /// How differences between ranks are treated.
    pub policy: Policy,
    /// How long to wait for the other members. A member may come up to half of it later than the first. A deadline that is
    /// too short refuses the commit ([`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout)) and leaves the group as it was.
    ///
    /// Once all members have come, what they have agreed on has a budget of its own, the same on all of them: by the longest
    /// deadline that one of them gave, and at least 10 s for the registration and 5 s for the members' answers. What is asked
    /// of the store without waiting for a member has the store's own bound beside it
    /// ([`TcpOptions::patience`](process_group::store::TcpOptions::patience), 30 s if not set): where the store's host is
    /// stopped, members may hear of that as much later.
    pub deadline: Duration,
    /// Whether adjacent new segments share a window where the library allows it (NCCL 2.30.3), which saves the time of
    /// the further ones. NCCL's one-sided calls take windows of one segment only: whoever uses them says no.
    pub joined: bool,
}

impl Default for CommitOptions {
    /// Strict, within 30 seconds, with as few windows as can be.
    fn default() -> Self {
        Self { policy: Policy::Strict, deadline: Duration::from_secs(30), joined: true }
    }
}

impl CommitOptions {
    /// With this policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// With this deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether adjacent segments share a window.
    #[must_use]
    pub fn joined(mut self, joined: bool) -> Self {
        self.joined = joined;
        self
    }
}
