//! The time that making a group took.

use std::{fmt, time::Duration};

use crate::comm::Making;

/// The time that making a group took on this rank, and the way in which it was made.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Startup {
    /// The time until all members had met, in µs. For a new group, in the store and with the processes of
    /// this host.
    pub rendezvous_us: f64,
    /// The time until the group's number and unique id were known, in µs. A split needs the number alone, as
    /// NCCL passes on the rest itself.
    pub exchange_us: f64,
    /// NCCL's part; `None` until there is a communicator.
    pub making: Option<Making>,
}

/// The times measured so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    rendezvous: Duration,
    exchange: Duration,
}

impl Clock {
    /// Records the time for meeting the members and for the group's number.
    pub(super) fn met(&mut self, rendezvous: Duration, exchange: Duration) {
        (self.rendezvous, self.exchange) = (rendezvous, exchange);
    }

    /// Returns the report of a group whose communicator was made like this.
    pub(super) fn report(&self, making: Option<Making>) -> Startup {
        Startup { rendezvous_us: us(self.rendezvous), exchange_us: us(self.exchange), making }
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
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
