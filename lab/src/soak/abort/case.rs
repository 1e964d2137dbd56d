//! State of a rank when it is aborted.

use std::time::Duration;

use clap::ValueEnum;
use nccl_sys::Feature;
use process_group::comm::Nccl;

use lockstep_cli::backend::Backend;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Case {
    /// In no call, with work on the device of eight communicators
    Flight,
    /// Making a communicator; a deadline ends the wait, and the rest is aborted in the background
    Init,
    /// Splitting
    Split,
    /// Shrinking
    Shrink,
    /// Registering a window
    Window,
    /// Destroying, which waits for work in flight
    Destroy,
    /// Enqueueing a message, whose first one connects the two ranks
    Message,
    /// Ending a group of messages
    GroupEnd,
    /// Enqueueing, while another thread is inside a call
    Queue,
    /// Waiting for work
    Wait,
    /// At a barrier of the hosts
    Barrier,
    /// At the meeting of a group's split
    Meeting,
}

impl Case {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the reason if this release does not support the case.
    pub(super) fn missing(self, nccl: &Nccl) -> Option<String> {
        let needed = match self {
            Self::Split => Feature::SPLIT,
            Self::Shrink => Feature::SHRINK,
            Self::Window => Feature::WINDOWS,
            _ => return None,
        };
        nccl.api().require(needed).err().map(|missing| missing.to_string())
    }

    /// Upper limit of the time that a call gets to block. The abort comes before, somewhere inside the call.
    pub(super) fn longest_pause(self, backend: Backend) -> Duration {
        Duration::from_micros(match (self, backend) {
            (Self::Init, Backend::Cuda) => 200_000,
            (Self::Init, _) => 3_000,
            (_, Backend::Cuda) => 50_000,
            _ => 2_000,
        })
    }

    /// Returns the delay of a round's abort, which differs between rounds.
    pub(super) fn moment(self, backend: Backend, number: u32) -> Duration {
        let longest = self.longest_pause(backend).as_micros() as u64;
        Duration::from_micros(u64::from(number) * 7919 % longest)
    }
}
