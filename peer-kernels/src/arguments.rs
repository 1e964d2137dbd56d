//! The arguments that the collective kernels get in addition to [`Ranks`](super::Ranks), and the number of blocks of a
//! launch. The layout of [`Reduce`] and [`Gather`] is that of the device structures of the same names.

use cuda_driver::module::Parameter;

/// How a kernel finds the destination of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TargetKind {
    /// An address.
    Address = 0,
    /// An offset in the rank's own buffer.
    Own = 1,
    /// The offset of the input in the rank's own buffer, so the result overwrites the input. All ranks read this rank's
    /// whole input. So a block overwrites a part of it only after the blocks with the same number on all ranks have
    /// read this part.
    OntoInput = 2,
    /// The same offset in the buffers of all ranks. Each rank writes its slice of the result to all of them.
    Everywhere = 3,
}

impl TargetKind {
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Address, "TARGET_ADDRESS"),
        (Self::Own, "TARGET_OWN"),
        (Self::OntoInput, "TARGET_ONTO_INPUT"),
        (Self::Everywhere, "TARGET_EVERYWHERE"),
    ];
}

/// Arguments of a kernel that combines the `bytes` bytes at offset `input` of all ranks' buffers. `kernel` is the
/// number of the [`Kernel`](super::Kernel), for the [fault record](super::FaultRecord).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Reduce {
    pub(crate) input: u64,
    /// An address or an offset, depending on `target`.
    pub(crate) output: u64,
    pub(crate) bytes: u64,
    /// A [`TargetKind`].
    pub(crate) target: u32,
    pub(crate) kernel: u32,
}

// SAFETY: `repr(C)`, numbers without padding. This is the layout of the device's structure of the same name.
unsafe impl Parameter for Reduce {}

/// Arguments of the kernel that copies `bytes` bytes from each rank's buffer. The bytes of rank r begin at offset
/// `input + r * stride` in the buffer of rank r, and are copied to `output + r * bytes`. `kernel` is as in [`Reduce`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Gather {
    pub(crate) input: u64,
    pub(crate) stride: u64,
    /// An address, or an offset in the rank's own buffer if `own` is 1.
    pub(crate) output: u64,
    pub(crate) bytes: u64,
    pub(crate) own: u32,
    pub(crate) kernel: u32,
}

// SAFETY: as for `Reduce`.
unsafe impl Parameter for Gather {}

/// Bytes that a thread handles at a time.
pub(crate) const VEC16_BYTES: u64 = 16;
/// Threads of a block.
pub(crate) const THREADS: u32 = 512;
/// Largest number of thread blocks that one rank launches for a collective. Each block waits for the block with the
/// same number on every other rank, through a [channel](super::PadLayout) of its own. If ranks share a device, all
/// their blocks must therefore be resident at once. For example, eight ranks on one device launch up to 8 · 24 = 192
/// blocks. These fit on 132 multiprocessors that hold two blocks each.
pub(crate) const MOST_BLOCKS: u32 = 24;

/// Number of blocks of a launch. `bytes` is the number of bytes that the blocks of one rank handle together. All ranks
/// pass the same `bytes`, so the result is the same on all ranks.
pub(crate) fn blocks(bytes: u64) -> u32 {
    let rows = bytes.div_ceil(VEC16_BYTES * u64::from(THREADS));
    u32::try_from(rows).map_or(MOST_BLOCKS, |rows| rows.clamp(1, MOST_BLOCKS))
}

/// Divides `count` items into `parts` parts, and returns the start and the end (exclusive) of part `part`.
#[cfg(any(test, feature = "twins"))]
pub(crate) fn share_of(count: u64, part: u32, parts: u32) -> (u64, u64) {
    let start = |part: u32| count * u64::from(part) / u64::from(parts);
    (start(part), start(part + 1))
}
