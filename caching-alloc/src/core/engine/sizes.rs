//! Sizes of new segments.

use crate::core::settings::Settings;
use crate::core::size::{MAX_BLOCK, SEGMENT_STEP, SizeClass};

/// A segment is made longer than its request only up to this part of the remaining memory.
const SCARCE: u64 = 4;

/// Growth factor of segments for small requests, relative to those for large ones.
const SMALL_FACTOR: u64 = 4;

/// Sizes of a new segment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSizes {
    /// The requested block, and the step of segments.
    block: u64,
    step: u64,
    /// Serves further requests too. A multiple of the block's length, so that requests of one length fill it.
    pub(super) generous: u64,
    /// Serves this request.
    pub(super) least: u64,
}

/// The facts that decide the size of a new segment. Lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// The requested block.
    pub(super) block: u64,
    pub(super) class: SizeClass,
    /// The step of the source's segments.
    pub(super) step: u64,
    /// The longest block that is split, unless the pool splits none.
    pub(super) longest: Option<u64>,
    /// Segments of the class that the pool and stream have.
    pub(super) reserved: u64,
}

impl SegmentSizes {
    /// The sizes for a block, with `available` bytes left.
    pub(super) fn new(settings: &Settings, need: Need, available: impl FnOnce() -> u64) -> Self {
        let Need { block, class, step, longest, reserved } = need;
        let only = |bytes| Self { block, step, generous: bytes, least: bytes };
        let Some(longest) = longest else { return only(block.next_multiple_of(step)) };
        let share = reserved / settings.growth_divisor.max(1);
        let (step, floor, share) = match class {
            // Small requests need little memory in all, so waste matters less than the number of segments.
            SizeClass::Small => (step, settings.small_segment, share.saturating_mul(SMALL_FACTOR)),
            SizeClass::Large => (step.max(SEGMENT_STEP), settings.large_segment, share),
        };
        let least = block.next_multiple_of(step);
        if block > longest {
            return only(least);
        }
        let sizes = Self { block, step, generous: least, least };
        // When memory is nearly full, the remainder must serve requests of other lengths too.
        let most = floor.max(share).min(available() / SCARCE).min(MAX_BLOCK);
        let most = most.next_multiple_of(step).min(longest);
        Self { generous: sizes.of_blocks(most / block), ..sizes }
    }

    /// The size for this number of blocks.
    fn of_blocks(&self, count: u64) -> u64 {
        (count * self.block).next_multiple_of(self.step).max(self.least)
    }

    /// The next smaller size to try: for half as many blocks. `None` after the least one.
    pub(super) fn below(&self, bytes: u64) -> Option<u64> {
        let fewer = self.of_blocks(bytes / self.block / 2);
        (fewer < bytes).then_some(fewer)
    }
}
