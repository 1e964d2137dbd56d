//! Options of a [commit](crate::SymmetricPool::commit).

use std::time::Duration;

use crate::agreement::Policy;

/// Options of a [commit](crate::SymmetricPool::commit), which registers a pool's new segments as NCCL windows of a
/// group. All members of the group pass the same options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOptions {
    /// The treatment of differences between the ranks' pools.
    pub policy: Policy,
    /// The time limit of the commit, counted from the call. A member waits for at most 3/8 of this time until all
    /// others have begun the commit too. If a member begins too late, the commit is refused
    /// ([`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout)), and the group is unchanged.
    ///
    /// Once all members have begun, a commit has up to three stages:
    /// 1. If the members' logs of requests ([`SymmetricPool::log`](crate::SymmetricPool::log)) differ, the members
    ///    search for the first difference.
    /// 2. The members register the new segments as windows, and map each other's memory.
    /// 3. If NCCL does not support windows for the group, the members register the segments with `ncclCommRegister`
    ///    instead.
    ///
    /// Each member reports whether its work in a stage succeeded. The time limits are:
    /// - In each of the stages 1 and 2, the work may take 3/16 of `deadline`, at least 10 s and at most 10 min. The
    ///   wait for the other members' reports may then take 3/32 of `deadline`, at least 5 s and at most 10 min. A stage
    ///   can have several steps, such as registering and mapping, each with its own reports. The steps share these
    ///   limits. Exception: a step that begins late still has 2.5 s for its work. If less than 5 s are left until the
    ///   end of the wait, the end moves to 5 s after the begin of the step. All late steps of a stage together move the
    ///   end by at most 5 s. Once it has moved that far, later steps have less time. If members pass different
    ///   deadlines (they should not), the longest counts.
    /// - In stage 3, the work may take the time that is left of `deadline`, but at least 10 s. The wait for the reports
    ///   ends at most 5 s later. If the registration failed on a member, the others may then take 10 s to undo theirs.
    ///
    /// Because of the minimums, a commit with a short `deadline` can take longer than `deadline`.
    ///
    /// The members communicate through the [store](process_group::store) of the pool's [domain](crate::Domain). The
    /// limits above do not apply to store requests that do not wait for a member. These have the store's own limit
    /// ([`TcpOptions::patience`](process_group::store::TcpOptions::patience), 30 s if not set). So if the store's host
    /// is stopped, the commit may return its error later than the limits above allow, by up to the store's limit.
    pub deadline: Duration,
    /// If true, new segments share a window if their addresses are adjacent on all members, so that fewer windows have
    /// to be registered. NCCL supports this from 2.30.3 on. With an earlier NCCL, each segment gets its own window.
    /// Programs that use NCCL's one-sided calls set this to false, because those calls accept only windows of one
    /// segment.
    pub joined: bool,
    /// If false, the commit registers no segment with NCCL, neither as a window nor with `ncclCommRegister`. Such a
    /// commit needs no NCCL communicator, so the members of a group whose communicator is not created yet can map each
    /// other's segments.
    pub windows: bool,
    /// If true, the members also map each other's new segments. Kernels can then access them through
    /// [`SymmetricPool::symmetric_memory`](crate::SymmetricPool::symmetric_memory), and the [direct
    /// path](crate::direct) (sends and receives without NCCL) copies messages between blocks directly. If one member
    /// cannot map the segments, no member does, and [`CommitReport::unmapped`](crate::CommitReport::unmapped) has the
    /// reason. The mappings cost virtual address space and time, but no device memory besides a [signal
    /// pad](crate::rendezvous::SymmetricMemory::signal_pads) of 2 MiB on each rank. The first commit of a pool for a
    /// group allocates this pad. On two H200, the mappings make that commit 4 to 5 ms longer for one 2-MiB segment, and
    /// 0.3 ms longer for each further segment.
    pub map_peers: bool,
    /// If true, this rank takes part in the commit even if it has no new segments. The members then compare all
    /// requests (allocations, reservations and frees) that they have made of the pool. If false, a rank without
    /// anything new [skips](crate::SymmetricPool::commit) the commit. Must be equal on all members: if some ranks set
    /// it to true and others skip the commit, the former wait for the latter for 3/8 of `deadline`, and get
    /// [`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout).
    pub verify: bool,
}

impl Default for CommitOptions {
    /// [`Policy::Strict`] and a deadline of 30 s. `joined`, `windows` and `map_peers` are true, `verify` is false.
    fn default() -> Self {
        let (policy, deadline) = (Policy::Strict, Duration::from_secs(30));
        Self { policy, deadline, joined: true, windows: true, map_peers: true, verify: false }
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

    /// Sets whether the commit registers segments with NCCL.
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

    /// Sets whether this rank takes part in a commit even if nothing is new.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }
}
