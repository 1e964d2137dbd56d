//! Options of a group's [exchanges](super::Exchange).

use std::time::Duration;

use cuda_driver::vmm::HandleTypes;

/// Options of a group's [exchanges](super::Exchange). All members must pass the same values. If their `channels`
/// differ, [`Exchange::new`](super::Exchange::new) fails on all of them. Different deadlines and leases are not
/// noticed. A member with a shorter deadline may end an agreement for all members while others would still wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// Determines the time limits of an agreement on a [plan](super::Plan) or on [regions](super::Regions):
    /// - Waiting for this rank's transfers of an earlier plan or regions of the same name: an eighth of the deadline.
    /// - Waiting for the other members to arrive: half of the deadline.
    /// - Opening peers' memory: a quarter of the deadline, at least 10 s and at most 10 min.
    /// - Waiting until all members have reported whether they could open the memory: an eighth of the deadline, at
    ///   least 5 s and at most 10 min.
    ///
    /// Because of the minimum times, an agreement may take longer than the deadline if the deadline is short.
    pub deadline: Duration,
    /// The largest number of channels that a rank uses at one time. A channel is a slot in the rank's memory into which
    /// one peer writes its signals. A plan uses one channel for each of its transfers, and a set of regions one for
    /// each other member.
    pub channels: usize,
    /// The time that peers have to close (unmap) this rank's memory of a plan or of regions. It begins once this rank
    /// has dropped the plan or regions and has closed the peers' memory that they use. If a peer has not closed this
    /// rank's memory by the end of this time, the memory is [quarantined](super::Exchange::quarantine).
    pub lease: Duration,
    /// Types of the handles by which the ranks share the memory of their channels. `None` stands for all types that the
    /// driver [grants](HandleTypes::granted) to this process. Across hosts, every rank needs fabric handles.
    pub handles: Option<HandleTypes>,
}

impl Default for ExchangeOptions {
    /// A deadline of 30 seconds, 4096 channels, a lease of 60 seconds, and all handle types that the driver grants.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            channels: 4096,
            lease: Duration::from_secs(60),
            handles: None,
        }
    }
}

impl ExchangeOptions {
    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the largest number of channels of a rank.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Sets the lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Shares the memory of the channels by handles of these types only.
    #[must_use]
    pub fn handles(mut self, handles: HandleTypes) -> Self {
        self.handles = Some(handles);
        self
    }
}
