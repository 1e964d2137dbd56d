//! How a group came to be, and what that took.

use std::{fmt, time::Duration};

use super::ProcessGroup;
use crate::comm::Making;

/// How a group came to be, and what that took on this rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Startup {
    /// The time until all members were met, in µs: of a new group at the store, with the processes of this host.
    pub rendezvous_us: f64,
    /// The time until the group's number and unique id were there, in µs: of a split, its number alone, as NCCL passes
    /// on the rest itself.
    pub exchange_us: f64,
    /// NCCL's part; `None` until there is a communicator.
    pub making: Option<Making>,
}

/// What was measured so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    rendezvous: Duration,
    exchange: Duration,
}

impl Clock {
    /// Notes how long the members and the group's number took.
    pub(super) fn met(&mut self, rendezvous: Duration, exchange: Duration) {
        (self.rendezvous, self.exchange) = (rendezvous, exchange);
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl ProcessGroup {
    /// How the group came to be, and how long that took. What its communicator holds by now
    /// [`memory_statistics`](crate::comm::Communicator::memory_statistics) tell, where there are any.
    #[must_use]
    pub fn startup(&self) -> Startup {
        Startup {
            rendezvous_us: us(self.startup.rendezvous),
            exchange_us: us(self.startup.exchange),
            making: self.communicator.making(),
        }
    }
}

impl fmt::Display for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rendezvous {:.0} µs, exchange {:.0} µs", self.rendezvous_us, self.exchange_us)?;
        match &self.making {
            Some(making) => write!(f, ", {making}"),
            None => f.write_str(", no communicator yet"),
        }
    }
}
