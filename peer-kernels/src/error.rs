//! Errors of kernels: a launch was refused, or a kernel [gave up](super).

use std::time::Duration;

use process_group::comm::DataType;

use super::{Kernel, MOST_RANKS, WaitKind};

/// A wait inside a kernel that exceeded its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// The kernel that waited. `None` if the [fault record](super::FaultRecord) has a kernel number that this crate
    /// does not know.
    pub kernel: Option<Kernel>,
    /// The condition for which the kernel waited.
    pub waiting: WaitKind,
    /// The rank that did not send its signal ([`WaitKind::Signal`]), or did not consume the previous signal of the
    /// waiting rank ([`WaitKind::Room`]).
    pub peer: u32,
    /// The [channel](super::PadLayout) of the signal. Channels with the number
    /// [`PadLayout::USER_CHANNELS`](super::PadLayout::USER_CHANNELS) or higher belong to collective kernels: channel
    /// `USER_CHANNELS + n` is that of thread block `n`.
    pub channel: u32,
    /// Time from the start of this wait until the kernel gave up, by the device's clock.
    pub waited: Duration,
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, channel, waited, .. } = self;
        match self.kernel {
            Some(kernel) => write!(f, "{kernel}")?,
            None => f.write_str("a kernel")?,
        }
        write!(f, " gave up after {waited:.1?}: rank {peer} did not ")?;
        match self.waiting {
            WaitKind::Room => write!(f, "take the signal before this one on channel {channel}"),
            WaitKind::Signal => write!(f, "signal on channel {channel}"),
        }
    }
}

/// Error of a kernel: its launch was refused, or it gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A kernel gave up waiting. The context is intact. This rank's later kernels on the same [signal
    /// pad](super::PadLayout) do nothing. [`FaultRecord`](super::FaultRecord) describes how to recover.
    #[error(
        "{0}; the kernels of this rank do nothing until all ranks' pads are zeroed and the records cleared"
    )]
    Late(Late),
    /// [`Ranks::deadline_ns`](super::Ranks::deadline_ns) is 0.
    #[error("{kernel} without a deadline: a kernel must not wait for ever")]
    NoDeadline {
        /// The kernel.
        kernel: Kernel,
    },
    /// No ranks, or more than the kernels support.
    #[error("{kernel} for {world} ranks: 1 to {MOST_RANKS} are served")]
    WorldSize {
        /// The kernel.
        kernel: Kernel,
        /// Number of ranks given.
        world: u32,
    },
    /// A rank's number is not below the number of ranks.
    #[error("{kernel} {what} rank {rank} of {world}")]
    NoSuchRank {
        /// The kernel.
        kernel: Kernel,
        /// Role of the rank in the call: `as` for the caller's own rank, or `to` or `from` for a peer.
        what: &'static str,
        /// The rank.
        rank: u32,
        /// Number of ranks.
        world: u32,
    },
    /// The channel is not one of the [`USER_CHANNELS`](super::PadLayout::USER_CHANNELS).
    #[error("{kernel} on channel {channel}: programs have channels 0 to {}", channels - 1)]
    NoSuchChannel {
        /// The kernel.
        kernel: Kernel,
        /// The channel.
        channel: u32,
        /// Number of channels that programs can use.
        channels: u32,
    },
    /// The input's offset, plus the length in bytes of `elements` elements times the number of ranks, is 2^56 or more.
    #[error("{kernel} of {elements} elements a rank: the ranks' bytes cannot be counted")]
    TooLong {
        /// The kernel.
        kernel: Kernel,
        /// The number of elements in the call; for all-gather and all-to-all, the number of bytes.
        elements: u64,
    },
    /// No kernel combines elements of this type by this operation.
    #[error("{kernel} does not combine {dtype} to the {op}")]
    NotCombined {
        /// The kernel.
        kernel: Kernel,
        /// The data type.
        dtype: DataType,
        /// The operation.
        op: String,
    },
    /// The result at a [`Target::Offset`](super::Target::Offset) would overwrite input that ranks still read.
    #[error(
        "{kernel} would write {written} bytes at offset {output} over its input, {read} bytes at offset {input}"
    )]
    Overlap {
        /// The kernel.
        kernel: Kernel,
        /// Offset of the input in bytes.
        input: u64,
        /// Length of the input in bytes.
        read: u64,
        /// Offset of the result in bytes.
        output: u64,
        /// Length of the result in bytes.
        written: u64,
    },
    /// The target of a kernel that writes to all ranks is a [`Target::Address`](super::Target::Address), which is valid
    /// on one rank only.
    #[error("{kernel} writes to all ranks: it needs an offset in their buffers, not an address")]
    TargetOutside {
        /// The kernel.
        kernel: Kernel,
    },
    /// A collective that does not support [`Target::InPlace`](super::Target::InPlace) was called with it.
    #[error("{kernel} cannot work in place: it would overwrite data that other ranks still read")]
    NotInPlace {
        /// The kernel.
        kernel: Kernel,
    },
    /// The device's compute capability is below [`LEAST_CAPABILITY`](super::LEAST_CAPABILITY).
    #[error("device {device} is of compute capability {}.{}, the kernels need 7.0", found.0, found.1)]
    DeviceTooOld {
        /// The device's ordinal.
        device: u32,
        /// Its compute capability.
        found: (u32, u32),
    },
    /// The driver reported that it has allocated the pinned memory of a [fault record](super::FaultRecord), but the
    /// memory is too small or has no device address.
    #[error("the driver gave no memory that both host and device reach, and no error")]
    NoRecord,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
