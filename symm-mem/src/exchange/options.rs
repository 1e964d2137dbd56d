//! How a group's exchanges are held.

use std::time::Duration;

use cuda_driver::vmm::HandleTypes;

/// How a group's exchanges are held. All members give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// The time after which every member has an answer. A member may come up to half of it later than the first.
    pub deadline: Duration,
    /// How many transfers a rank can have at one time, in all of its plans.
    pub channels: usize,
    /// How long peers may hold what they were lent after this rank has dropped the plan.
    pub lease: Duration,
    /// How the slots can be had by others; in every way that the driver [grants](HandleTypes::granted) if nothing is said.
    /// Across hosts that must be a fabric handle on every rank.
    pub handles: Option<HandleTypes>,
}

impl Default for ExchangeOptions {
    /// Within 30 seconds; 4096 transfers; 60 seconds to let go; by file descriptor, and by fabric handle where the driver grants
    /// it.
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
    /// With this deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// With room for so many transfers.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// With so much time to let go.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// With slots that can be had in these ways and no others.
    #[must_use]
    pub fn handles(mut self, handles: HandleTypes) -> Self {
        self.handles = Some(handles);
        self
    }
}
