//! Sizes of new segments.

use crate::core::settings::Settings;
use crate::core::size::{MAX_BLOCK, SEGMENT_STEP, SizeClass};

/// A segment is no longer than the available memory divided by this (rounded up to a whole step), unless its request
/// needs more.
const SCARCE: u64 = 4;

/// The intended length of a new segment is at least `reserved / growth_divisor`, where `reserved` is the length of all
/// segments of the same pool, stream and class. For small requests, that quotient is multiplied by this factor. The
/// length is then limited and adjusted; see [`Settings::growth_divisor`].
const SMALL_FACTOR: u64 = 4;

/// Sizes of a new segment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSizes {
    /// Length of the requested block.
    block: u64,
    /// Segment lengths are multiples of this.
    step: u64,
    /// A size that may also serve further requests. It is the length of one or more blocks of the requested length,
    /// rounded up to the step, so that requests of one length fill the segment.
    pub(super) generous: u64,
    /// The smallest size that serves this request.
    pub(super) least: u64,
}

/// The facts that decide the size of a new segment. Lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// The requested block.
    pub(super) block: u64,
    pub(super) class: SizeClass,
    /// The step of the source's segments: their lengths are multiples of it.
    pub(super) step: u64,
    /// The longest block that is split. `None` if the pool splits none.
    pub(super) longest: Option<u64>,
    /// The total length of the segments of this class that the pool and stream have already.
    pub(super) reserved: u64,
}

impl SegmentSizes {
    /// Returns the sizes of a new segment for a block. `available` returns the bytes of memory that are left.
    pub(super) fn new(settings: &Settings, need: Need, available: impl FnOnce() -> u64) -> Self {
        let Need { block, class, step, longest, reserved } = need;
        let only = |bytes| Self { block, step, generous: bytes, least: bytes };
        let Some(longest) = longest else { return only(block.next_multiple_of(step)) };
        let share = reserved / settings.growth_divisor.max(1);
        let (step, floor, share) = match class {
            // Small requests need little memory in total, so unused memory matters less than the number of segments.
            SizeClass::Small => (step, settings.small_segment, share.saturating_mul(SMALL_FACTOR)),
            SizeClass::Large => (step.max(SEGMENT_STEP), settings.large_segment, share),
        };
        let least = block.next_multiple_of(step);
        if block > longest {
            return only(least);
        }
        let sizes = Self { block, step, generous: least, least };
        // When little memory is left, the rest must serve requests of other lengths too.
        let most = floor.max(share).min(available() / SCARCE).min(MAX_BLOCK);
        let most = most.next_multiple_of(step).min(longest);
        Self { generous: sizes.of_blocks(most / block), ..sizes }
    }

    /// Returns the size of a segment for this number of blocks, at least the least size.
    fn of_blocks(&self, count: u64) -> u64 {
        (count * self.block).next_multiple_of(self.step).max(self.least)
    }

    /// Returns the next smaller size to try: for half as many blocks. Returns `None` if `bytes` is the least size.
    pub(super) fn below(&self, bytes: u64) -> Option<u64> {
        let fewer = self.of_blocks(bytes / self.block / 2);
        (fewer < bytes).then_some(fewer)
    }
}
