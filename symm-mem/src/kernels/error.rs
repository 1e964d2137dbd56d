//! Why a kernel was not launched, or gave up.

use std::time::Duration;

use process_group::comm::DataType;

use super::{Kernel, MOST_RANKS, Waiting};

/// A wait inside a kernel that was late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// The kernel that waited; none for a number that this crate does not know.
    pub kernel: Option<Kernel>,
    /// What it waited for.
    pub waiting: Waiting,
    /// The rank that did not come.
    pub peer: u32,
    /// The channel; from [`PadLayout::USER_CHANNELS`](super::PadLayout::USER_CHANNELS) on, the number of a block after
    /// that.
    pub channel: u32,
    /// How long it waited, by the device's clock.
    pub waited: Duration,
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, channel, waited, .. } = self;
        match self.kernel {
            Some(kernel) => write!(f, "{kernel}")?,
            None => f.write_str("a kernel")?,
        }
        write!(f, " gave up after {waited:?}: rank {peer} did not ")?;
        match self.waiting {
            Waiting::Room => write!(f, "take the signal before this one on channel {channel}"),
            Waiting::Signal => write!(f, "signal on channel {channel}"),
        }
    }
}

/// Why a kernel was not launched, or gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A kernel gave up waiting. The context is unharmed; this rank's kernels do nothing from now on.
    #[error("{0}; the kernels of this rank do nothing until all ranks' pads are made anew")]
    Late(Late),
    /// [`Ranks::deadline_ns`](super::Ranks::deadline_ns) is 0.
    #[error("{kernel} without a deadline: a kernel must not wait for ever")]
    NoDeadline {
        /// The kernel.
        kernel: Kernel,
    },
    /// More ranks than kernels serve, or none.
    #[error("{kernel} for {world} ranks: 1 to {MOST_RANKS} are served")]
    WorldSize {
        /// The kernel.
        kernel: Kernel,
        /// How many were given.
        world: u32,
    },
    /// A rank that there is not.
    #[error("{kernel} {what} rank {rank} of {world}")]
    NoSuchRank {
        /// The kernel.
        kernel: Kernel,
        /// What it was named as.
        what: &'static str,
        /// The number.
        rank: u32,
        /// How many there are.
        world: u32,
    },
    /// A channel that programs do not have.
    #[error("{kernel} on channel {channel}: programs have channels 0 to {}", channels - 1)]
    NoSuchChannel {
        /// The kernel.
        kernel: Kernel,
        /// The number.
        channel: u32,
        /// How many there are.
        channels: u32,
    },
    /// More bytes than can be counted.
    #[error("{kernel} of {elements} elements a rank: the ranks' bytes cannot be counted")]
    TooLong {
        /// The kernel.
        kernel: Kernel,
        /// Elements, or bytes, of each rank.
        elements: u64,
    },
    /// A type that is not combined so.
    #[error("{kernel} does not combine {dtype} to the {op}")]
    NotCombined {
        /// The kernel.
        kernel: Kernel,
        /// The type.
        dtype: DataType,
        /// The operation.
        op: String,
    },
    /// An outcome partly over what ranks still read.
    #[error(
        "{kernel} would write {written} bytes at offset {output} over its input, {read} bytes at offset {input}"
    )]
    Overlap {
        /// The kernel.
        kernel: Kernel,
        /// Where the input begins.
        input: u64,
        /// Its bytes.
        read: u64,
        /// Where the outcome begins.
        output: u64,
        /// Its bytes.
        written: u64,
    },
    /// A kernel that writes to all ranks was given an address of one.
    #[error("{kernel} writes to all ranks: it needs an offset in their buffers, not an address")]
    TargetOutside {
        /// The kernel.
        kernel: Kernel,
    },
    /// A kernel that cannot work in place.
    #[error("{kernel} in place: what it would overwrite, others still read")]
    NotInPlace {
        /// The kernel.
        kernel: Kernel,
    },
    /// A device that is older than the code.
    #[error("device {device} is of compute capability {}.{}, the kernels need 7.0", found.0, found.1)]
    DeviceTooOld {
        /// The device's ordinal.
        device: u32,
        /// Its capability.
        found: (u32, u32),
    },
    /// A driver that says it has made pinned memory, and has not.
    #[error("the driver gave no memory that both host and device reach, and no error")]
    NoRecord,
    /// The driver refused something.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
