//! What the kernels of collectives are told, beside the ranks: laid out as the device's structures of the same names.

use cuda_driver::module::Parameter;

/// Where an outcome goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Placing {
    /// To an address.
    Address = 0,
    /// To an offset in the rank's own buffer.
    Own = 1,
    /// To one that every rank still reads, and so only when all have read.
    OntoInput = 2,
    /// To the same offset in every rank's buffer: the rank's slice.
    Everywhere = 3,
}

impl Placing {
    pub(super) const ALL: [(Self, &'static str); 4] = [
        (Self::Address, "TARGET_ADDRESS"),
        (Self::Own, "TARGET_OWN"),
        (Self::OntoInput, "TARGET_ONTO_INPUT"),
        (Self::Everywhere, "TARGET_EVERYWHERE"),
    ];
}

/// Combines `bytes` bytes at the offset `input` of all ranks' buffers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Reduce {
    pub(super) input: u64,
    /// An address, or an offset: as `target` says.
    pub(super) output: u64,
    pub(super) bytes: u64,
    /// A [`Placing`].
    pub(super) target: u32,
    pub(super) kernel: u32,
}

// SAFETY: `repr(C)`, numbers without padding: the device's structure of the same name.
unsafe impl Parameter for Reduce {}

/// Moves `bytes` bytes from each rank's buffer, where those of rank r begin at `input + r * stride`, one after the
/// other to `output`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Gather {
    pub(super) input: u64,
    pub(super) stride: u64,
    /// An address, or with `own` an offset in the rank's own buffer.
    pub(super) output: u64,
    pub(super) bytes: u64,
    pub(super) own: u32,
    pub(super) kernel: u32,
}

// SAFETY: as above.
unsafe impl Parameter for Gather {}

/// What a thread handles at a time, in bytes.
pub(super) const PACK: u64 = 16;
/// Threads of a block.
pub(super) const THREADS: u32 = 512;
/// The most blocks of a collective. Each has a channel; and eight ranks' blocks fit on one device of 132
/// multiprocessors, two on each.
pub(super) const MOST_BLOCKS: u32 = 24;

/// How many blocks share `bytes` bytes: the same on all ranks.
pub(super) fn blocks(bytes: u64) -> u32 {
    let rows = bytes.div_ceil(PACK * u64::from(THREADS));
    u32::try_from(rows).map_or(MOST_BLOCKS, |rows| rows.clamp(1, MOST_BLOCKS))
}

/// What part `part` of `parts` handles of `count` things: from the first number up to the second.
#[cfg(any(test, feature = "twins"))]
pub(super) fn share_of(count: u64, part: u32, parts: u32) -> (u64, u64) {
    let until = |part: u32| count * u64::from(part) / u64::from(parts);
    (until(part), until(part + 1))
}
