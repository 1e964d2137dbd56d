//! Sizes: the unit of 512 bytes, the size classes, and bins of similar lengths.

/// The unit of sizes, in bytes. The offset and the length of every block are multiples of it.
pub const UNIT: u64 = 512;

/// The largest block, in bytes (1 TiB).
pub const MAX_BLOCK: u64 = 1 << 40;

/// Requests of up to this many bytes (1 MiB) are of the class [`SizeClass::Small`].
pub const SMALL: u64 = 1 << 20;

/// The granularity of segments for large requests, in bytes (2 MiB), unless that of the source is greater. The segments
/// of [symmetric arenas](super::symmetric) have the same granularity.
pub const SEGMENT_STEP: u64 = 2 << 20;

/// The class of requests that a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum SizeClass {
    /// Requests of up to 1 MiB.
    Small,
    /// All others.
    Large,
}

/// A size that no block can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// A request for no bytes.
    #[error("a block of 0 bytes was asked for; ask for at least 1")]
    Zero,
    /// A request for more than [`MAX_BLOCK`] bytes.
    #[error("a block of {bytes} bytes was asked for; the most that one block can have is {MAX_BLOCK}")]
    TooLarge {
        /// The requested size.
        bytes: u64,
    },
}

/// A length or offset in units of 512 bytes. 32 bits are enough for 2 TiB.
pub(super) type Units = u32;

/// Returns the smallest number of units that holds `bytes`.
#[inline]
pub(super) fn units_for(bytes: u64) -> Result<Units, SizeError> {
    match bytes {
        0 => Err(SizeError::Zero),
        1..=MAX_BLOCK => Ok(Units::try_from(bytes.div_ceil(UNIT)).unwrap_or(Units::MAX)),
        _ => Err(SizeError::TooLarge { bytes }),
    }
}

/// Returns the number of bytes in `units`.
#[inline]
pub(super) fn bytes_of(units: Units) -> u64 {
    u64::from(units) * UNIT
}

/// Returns the class of a block of this length.
#[inline]
pub(super) fn class_of(units: Units) -> SizeClass {
    if bytes_of(units) <= SMALL { SizeClass::Small } else { SizeClass::Large }
}

/// The base-2 logarithm of the number of bins for the lengths from one power of two to the next. Each length below
/// 2^(`SUB` + 1) units has a bin of its own.
const SUB: u32 = 7;

/// Number of bins.
pub(super) const BINS: usize = bin_of(Units::MAX) + 1;

/// Returns the bin of a length. Each length below 256 units has a bin of its own. From there on, each power of two has
/// 128 bins. A greater length never has a lower bin.
pub(super) const fn bin_of(units: Units) -> usize {
    let step = (units | 1 << SUB).ilog2() - SUB;
    ((step << SUB) + (units >> step)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_monotonic_and_exact_for_small_lengths() {
        for units in 1..256 {
            assert_eq!(bin_of(units), units as usize);
        }
        let mut last = 0;
        for exponent in 0..32 {
            for step in 0..128u64 {
                let units = (1u64 << exponent) + (step << exponent >> 7);
                let bin = bin_of(u32::try_from(units).unwrap());
                assert!(bin >= last, "{units}");
                last = bin;
            }
        }
        assert_eq!(BINS, bin_of(u32::MAX) + 1);
    }

    #[test]
    fn sizes_out_of_range_are_errors() {
        assert!(matches!(units_for(0), Err(SizeError::Zero)));
        assert_eq!(units_for(1).unwrap(), 1);
        assert_eq!(units_for(513).unwrap(), 2);
        assert_eq!(u64::from(units_for(MAX_BLOCK).unwrap()) * UNIT, MAX_BLOCK);
        assert!(matches!(units_for(MAX_BLOCK + 1), Err(SizeError::TooLarge { .. })));
        assert!(matches!(units_for(u64::MAX), Err(SizeError::TooLarge { .. })));
    }
}
