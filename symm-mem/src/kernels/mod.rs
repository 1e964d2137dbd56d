//! Device code that works on all ranks' memory: signals between ranks, and collectives.
//!
//! Every kernel is told the same [`Ranks`]: where each rank's buffer and signal pad lie, as its own device sees them.
//! Kernels run on the caller's stream, eagerly or into a graph, and wait for each other through the pads; nothing
//! waits without a deadline. A wait that is late ends the kernel, not the context: it is written into the rank's
//! [`FaultRecord`], and from then on no kernel of the rank does anything, until the pads are made anew.
//!
//! | module | holds |
//! |---|---|
//! | root | [`Ranks`], [`Kernels`] and its launches, [`KernelError`] |
//! | `pad` | [`PadLayout`]: which word of a signal pad is whose |
//! | `fault` | [`FaultRecord`]: what a kernel says when it gives up |
//! | `code` | the PTX that the crate comes with, and which of it a driver takes |
//! | `load` | a context's kernels, loaded once |
//! | `own` | where this rank's own buffer lies, for graphs that pin it |
//! | `signals` | the launches of barrier, put and wait |
//! | `collectives`, `arguments` | those of all-reduce, reduce-scatter, all-gather and all-to-all, and what their kernels are told |
//! | `twins` (feature `twins`) | host functions in the kernels' place, for the embedded device |
//!
//! The sources are CUDA C++ in `kernels/`; `cargo xtask codegen kernels` compiles them. Users need no compiler.

mod arguments;
mod code;
mod collectives;
mod error;
mod fault;
mod load;
mod own;
mod pad;
mod signals;
#[cfg(any(test, feature = "twins"))]
pub mod twins;

use cuda_driver::DevicePtr;
use cuda_driver::module::Parameter;

pub use code::{CodeSet, UNITS, Unit, defines};
pub use collectives::{Algorithm, AllGather, AllReduce, AllToAll, ReduceScatter, Target};
pub use error::{KernelError, Late};
pub use fault::{FaultRecord, Waiting};
pub use load::Kernels;
pub(crate) use own::OwnBuffer;
pub use pad::PadLayout;

/// The most ranks that a kernel serves.
pub const MOST_RANKS: u32 = 64;

/// What every kernel is told of the ranks. Plain numbers: whoever makes one keeps what they name alive, for as long
/// as kernels that were given it run.
///
/// Laid out as the device's structure of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Ranks {
    /// An array of [`world`](Self::world) addresses (u64) in memory that the device reaches: the base of each rank's
    /// block, as this rank's device sees it.
    pub buffers: DevicePtr,
    /// The same for the ranks' signal pads. A pad is [`PadLayout::bytes`] long, zero at first, and aligned to 128
    /// bytes.
    pub pads: DevicePtr,
    /// This rank's own pad, as [`pads`](Self::pads) has it.
    pub pad: DevicePtr,
    /// This rank's [`FaultRecord`].
    pub fault: DevicePtr,
    /// This rank's number.
    pub rank: u32,
    /// How many ranks there are, at most [`MOST_RANKS`].
    pub world: u32,
    /// How long each wait inside a kernel lasts at most, in nanoseconds of the device's clock. 0: none is given, and
    /// every launch is refused.
    pub deadline_ns: u64,
}

// SAFETY: `repr(C)`, four addresses, two numbers of 32 bits and one of 64: the device's structure of the same name,
// without padding or references.
unsafe impl Parameter for Ranks {}

/// A kernel, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kernel {
    /// All ranks meet.
    Barrier = 1,
    /// One rank signals another.
    PutSignal = 2,
    /// One rank waits for another's signal.
    WaitSignal = 3,
    /// Every rank combines what all have.
    AllReduceOneShot = 4,
    /// Every rank combines a slice of what all have, for all.
    AllReduceTwoShot = 5,
    /// Every rank combines its part of what all have.
    ReduceScatter = 6,
    /// Every rank gets what all have.
    AllGather = 7,
    /// Every rank gets from each what that has for it.
    AllToAll = 8,
}

impl Kernel {
    /// Every kernel, with the name of its define in the device code.
    const ALL: [(Self, &'static str); 8] = [
        (Self::Barrier, "KERNEL_BARRIER"),
        (Self::PutSignal, "KERNEL_PUT_SIGNAL"),
        (Self::WaitSignal, "KERNEL_WAIT_SIGNAL"),
        (Self::AllReduceOneShot, "KERNEL_ALL_REDUCE_ONE_SHOT"),
        (Self::AllReduceTwoShot, "KERNEL_ALL_REDUCE_TWO_SHOT"),
        (Self::ReduceScatter, "KERNEL_REDUCE_SCATTER"),
        (Self::AllGather, "KERNEL_ALL_GATHER"),
        (Self::AllToAll, "KERNEL_ALL_TO_ALL"),
    ];
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Barrier => "barrier",
            Self::PutSignal => "put_signal",
            Self::WaitSignal => "wait_signal",
            Self::AllReduceOneShot => "one-shot all_reduce",
            Self::AllReduceTwoShot => "two-shot all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
        })
    }
}
