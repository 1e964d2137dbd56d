//! The place of a buffer in the pool segments that all members have mapped: a segment and an offset, encoded in 64
//! bits.

/// The number of a segment in [`MappedSegments`](crate::membership::MappedSegments), and an offset in that segment. A
/// number identifies the same segment on all members. The upper 20 bits contain the number plus one, and the lower 44
/// bits the offset in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MappedPlace(pub(super) u64);

impl MappedPlace {
    /// Stands for a buffer that lies in no mapped segment.
    pub(super) const NONE: Self = Self(0);
    const OFFSET_BITS: u32 = 44;

    /// Returns `None` if the number or the offset does not fit in its bits.
    pub(super) fn new(number: u64, offset: u64) -> Option<Self> {
        let fits = number + 1 < 1 << (u64::BITS - Self::OFFSET_BITS) && offset < 1 << Self::OFFSET_BITS;
        fits.then_some(Self((number + 1) << Self::OFFSET_BITS | offset))
    }

    /// Returns the number of the segment, and the offset in it in bytes. `None` for [`NONE`](Self::NONE).
    pub(super) fn get(self) -> Option<(u64, u64)> {
        let number = (self.0 >> Self::OFFSET_BITS).checked_sub(1)?;
        Some((number, self.0 & ((1 << Self::OFFSET_BITS) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_place_contains_its_segment_and_offset(number in 0u64..1 << 21, offset in 0u64..1 << 45) {
            match MappedPlace::new(number, offset) {
                Some(place) => {
                    prop_assert_ne!(place, MappedPlace::NONE);
                    prop_assert_eq!(place.get(), Some((number, offset)));
                }
                None => prop_assert!(number >= (1 << 20) - 1 || offset >= 1 << 44),
            }
        }
    }

    #[test]
    fn no_place_has_no_segment() {
        assert_eq!(MappedPlace::NONE.get(), None);
    }
}
