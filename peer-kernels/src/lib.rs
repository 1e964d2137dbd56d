//! Device code that works on the memory of all ranks: signals between ranks, and collectives.
//!
//! Every kernel gets a [`Ranks`] of the rank that launches it: the addresses of all ranks' buffers and signal pads, as
//! mapped on that rank's device. A [signal pad](PadLayout) is the memory through which a rank receives signals. Kernels
//! run on the caller's stream, in captures and outside of them, and synchronize through the pads.
//!
//! Every wait has a deadline. A kernel whose wait exceeds the deadline *gives up*: it ends, and the context stays
//! intact. On each rank, the first kernel to give up describes its wait in the rank's [`FaultRecord`]. A flag in the
//! rank's own pad then says that the rank has given up. All kernels that were launched with this pad and still wait,
//! for any rank, end too, and later launches with it do nothing. To recover, wait until the kernels of all ranks have
//! ended. Then zero all pads and [clear](FaultRecord::clear) the records.
//!
//! | module | contents |
//! |---|---|
//! | root | [`Ranks`], [`Kernels`] and its launches, [`KernelError`] |
//! | `pad` | [`PadLayout`]: the words of a signal pad |
//! | `fault` | [`FaultRecord`]: the record of a kernel that gave up |
//! | `code` | the PTX of the kernels |
//! | `load` | a context's kernels, loaded once |
//! | `own` | finds this rank's own buffer, so that its memory is kept while a captured graph exists |
//! | `signals` | the launches of barrier, put and wait |
//! | `collectives`, `arguments` | the launches of all-reduce, reduce-scatter, all-gather and all-to-all, and their kernels' arguments |
//! | `twins` (feature `twins`) | host functions in place of the kernels, for the simulated devices of `gpu_sim` |
//!
//! The sources are CUDA C++ in the crate's folder `kernels/`; `cargo xtask codegen kernels` compiles them. Users need
//! no compiler, because the crate contains the PTX.

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

#[doc(hidden)]
pub use code::PTX_SEPARATOR;
pub use code::{LEAST_CAPABILITY, UNITS, Unit, defines};
pub use collectives::{Algorithm, AllGather, AllReduce, AllToAll, ReduceScatter, Target};
pub use error::{KernelError, Late};
pub use fault::{FaultRecord, WaitKind};
pub use load::Kernels;
pub use own::OwnBuffer;
pub use pad::PadLayout;

/// Largest number of ranks that kernels support.
pub const MOST_RANKS: u32 = 64;

/// Addresses of the ranks' memory, a parameter of every kernel. This value does not own the memory. The caller keeps
/// the memory alive until all kernels that use these addresses have ended.
///
/// The layout is that of the structure `Ranks` in `kernels/ranks.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Ranks {
    /// Address of an array of [`world`](Self::world) addresses (u64), in memory that this rank's device can read. Entry
    /// `r` is the address at which this device reaches the buffer of rank `r`.
    pub buffers: DevicePtr,
    /// Address of an array of the same form with the addresses of the ranks' signal pads. A pad is [`PadLayout::bytes`]
    /// long, zero at first, and aligned to 128 bytes.
    pub pads: DevicePtr,
    /// This rank's own pad: the same address as its entry of [`pads`](Self::pads).
    pub pad: DevicePtr,
    /// Device address of this rank's fault record ([`FaultRecord::ptr`]).
    pub fault: DevicePtr,
    /// This rank's number: its index in [`buffers`](Self::buffers) and [`pads`](Self::pads).
    pub rank: u32,
    /// Number of ranks, at most [`MOST_RANKS`].
    pub world: u32,
    /// Deadline of each wait inside a kernel: its longest duration, in nanoseconds of the device's clock. If it is 0,
    /// every launch is refused.
    pub deadline_ns: u64,
}

// SAFETY: `repr(C)`, four addresses, two numbers of 32 bits and one of 64. This is the layout of the device's structure
// of the same name. It has no padding and no references.
unsafe impl Parameter for Ranks {}

/// A kernel of this crate, irrespective of the data type and the reduction operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kernel {
    /// All ranks synchronize.
    Barrier = 1,
    /// One rank signals another.
    PutSignal = 2,
    /// One rank waits for another's signal.
    WaitSignal = 3,
    /// Every rank combines the whole inputs of all ranks.
    AllReduceOneShot = 4,
    /// Every rank combines its slice of the inputs of all ranks, and writes the result to all ranks.
    AllReduceTwoShot = 5,
    /// Every rank combines its part of the inputs of all ranks.
    ReduceScatter = 6,
    /// Every rank gets the inputs of all ranks.
    AllGather = 7,
    /// Every rank gets its part of each rank's input.
    AllToAll = 8,
}

impl Kernel {
    /// Every kernel, with the name of the macro for its number in the device code.
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

    fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().map(|(kernel, _)| kernel).find(|kernel| *kernel as u32 == number)
    }
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
