//! The time that making a group took.

use std::{fmt, time::Duration};

use crate::comm::Making;

/// How long it took to make a group on this rank, and how its communicator was made.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Startup {
    /// The time until all members had met, in µs. For a new group, this includes loading the libraries, and
    /// connecting to the store and to the processes of the same host.
    pub rendezvous_us: f64,
    /// For a new group: the time from the meeting until the group's number was published, in µs. For a split
    /// or a shrink: the time to get the new group's number, in µs.
    pub exchange_us: f64,
    /// The origin and the cost of the communicator. `None` until there is one.
    pub making: Option<Making>,
}

/// The times measured while a group was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    rendezvous: Duration,
    exchange: Duration,
}

impl Clock {
    /// Records the two times of [`Startup`].
    pub(super) fn met(&mut self, rendezvous: Duration, exchange: Duration) {
        (self.rendezvous, self.exchange) = (rendezvous, exchange);
    }

    /// Returns the report. `making` is the origin and the cost of the group's communicator, if there is one.
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
