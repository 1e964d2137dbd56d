//! Rounding of requested sizes, so that requests of similar sizes can reuse each other's blocks; and fractions of
//! sizes.

use super::size::{MAX_BLOCK, UNIT};

/// Number of size ranges. Each range begins at a power of two, from 1 MiB to 32 GiB, and has its own number of steps.
/// The first range also covers all smaller sizes, and the last one all larger sizes.
const RANGES: usize = 16;
const FIRST: u32 = 20;

/// A rule that rounds requested sizes up. The sizes between two powers of two are divided into equal steps, and a
/// request is rounded up to the next step. The number of steps may differ between powers of two. Fewer steps waste more
/// memory inside blocks, but give more requests the same size.
///
/// ```
/// use caching_alloc::core::Rounding;
/// let rounding = Rounding::divisions(4).unwrap();
/// assert_eq!(rounding.round(1200), 1200); // too short for four steps of 512 bytes
/// assert_eq!(rounding.round(5 << 20), 5 << 20);
/// assert_eq!(rounding.round((5 << 20) + 1), 6 << 20);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// The number of steps of each range, as an exponent of two; 0 for no steps.
    steps: [u8; RANGES],
}

impl Rounding {
    /// Returns the rule without steps. With this rule, the allocator only rounds requests up to multiples of 512 bytes.
    #[must_use]
    pub const fn none() -> Self {
        Self { steps: [0; RANGES] }
    }

    /// Uses `divisions` steps, a power of two, for all sizes. 0 and 1 mean [`none`](Self::none). Returns `None` if
    /// `divisions` is neither 0 nor a power of two.
    #[must_use]
    pub fn divisions(divisions: u64) -> Option<Self> {
        Self::none().with(0..RANGES, divisions)
    }

    /// Uses `divisions` steps for sizes from 2^`power` bytes up to the next power of two. 0 and 1 mean no steps. Sizes
    /// below 1 MiB use the steps of 1 MiB, and sizes above 32 GiB those of 32 GiB. Returns `None` if `divisions` is
    /// neither 0 nor a power of two.
    #[must_use]
    pub fn for_power(self, power: u32, divisions: u64) -> Option<Self> {
        let range = Self::range(power);
        self.with(range..range + 1, divisions)
    }

    /// Like [`for_power`](Self::for_power), for all sizes from 2^`power` bytes on.
    #[must_use]
    pub fn from_power(self, power: u32, divisions: u64) -> Option<Self> {
        self.with(Self::range(power)..RANGES, divisions)
    }

    /// Like [`for_power`](Self::for_power), for all sizes below 2^`power` bytes. Has no effect for a `power` up to
    /// 20, because sizes below 1 MiB have no steps of their own.
    #[must_use]
    pub fn below_power(self, power: u32, divisions: u64) -> Option<Self> {
        self.with(0..Self::range(power), divisions)
    }

    /// Returns the smallest size in MiB and the number of steps of each range, in ascending order. The number is 0 for
    /// a range without steps.
    #[cfg(any(feature = "json", feature = "pickle"))]
    pub(super) fn by_mebibytes(&self) -> impl Iterator<Item = (u64, u64)> {
        let divisions = |steps| if steps == 0 { 0 } else { 1u64 << steps };
        self.steps.into_iter().enumerate().map(move |(range, steps)| (1 << range, divisions(steps)))
    }

    fn with(mut self, ranges: std::ops::Range<usize>, divisions: u64) -> Option<Self> {
        let step = match divisions {
            0 => 0,
            divisions if divisions.is_power_of_two() => divisions.ilog2() as u8,
            _ => return None,
        };
        self.steps[ranges].fill(step);
        Some(self)
    }

    fn range(power: u32) -> usize {
        (power.saturating_sub(FIRST) as usize).min(RANGES - 1)
    }

    /// Returns the size in bytes to which this rule rounds up a request of `bytes`. Afterwards, the allocator rounds
    /// that size up to a multiple of 512 bytes.
    #[must_use]
    pub fn round(&self, bytes: u64) -> u64 {
        if bytes == 0 || bytes >= MAX_BLOCK {
            return bytes;
        }
        let power = bytes.ilog2();
        let steps = u32::from(self.steps[Self::range(power)]);
        let step = (1u64 << power).checked_shr(steps).unwrap_or(0);
        if steps == 0 || step < UNIT { bytes } else { bytes.next_multiple_of(step) }
    }
}

/// A fraction from 0 to 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

const WHOLE: u32 = 1_000_000;

impl Fraction {
    /// Returns the fraction with this value, or `None` if `part` is not from 0 to 1.
    #[must_use]
    pub fn new(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then(|| Self((part * f64::from(WHOLE)).round() as u32))
    }

    /// Returns this fraction of `bytes`, rounded down.
    #[must_use]
    pub fn of(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    pub(super) fn millionths(self) -> u32 {
        self.0
    }

    #[cfg(any(feature = "json", feature = "pickle"))]
    pub(super) fn part(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// The inverse of [`millionths`](Self::millionths). Returns `None` for more than 1,000,000.
    pub(super) fn from_millionths(millionths: u32) -> Option<Self> {
        (millionths <= WHOLE).then_some(Self(millionths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ranges_have_their_own_steps() {
        let rounding = Rounding::none().below_power(28, 1).unwrap().for_power(28, 2).unwrap();
        let rounding = rounding.from_power(29, 4).unwrap();
        assert_eq!(rounding.round(100 * MIB + 1), 100 * MIB + 1);
        assert_eq!(rounding.round(256 * MIB + 1), 384 * MIB);
        assert_eq!(rounding.round(512 * MIB + 1), 640 * MIB);
        assert_eq!(rounding.round((96 << 30) + 1), 112 << 30);
        assert_eq!(Rounding::divisions(3), None);
        assert_eq!(Rounding::divisions(0), Some(Rounding::none()));
    }

    proptest! {
        #[test]
        fn rounding_wastes_at_most_a_step(bytes in 1..=MAX_BLOCK, power in 0..12u32) {
            let rounding = Rounding::divisions(1 << power).unwrap();
            let rounded = rounding.round(bytes);
            let step = ((1 << bytes.ilog2()) >> power).max(UNIT);
            prop_assert!(rounded >= bytes && rounded - bytes < step && rounded <= MAX_BLOCK);
            prop_assert_eq!(rounding.round(rounded), rounded);
        }

        #[test]
        fn parts_are_parts(part in 0.0..=1.0f64, bytes in any::<u64>()) {
            let fraction = Fraction::new(part).unwrap();
            prop_assert!(fraction.of(bytes) <= bytes);
            prop_assert_eq!(Fraction::from_millionths(fraction.millionths()), Some(fraction));
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for part in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Fraction::new(part), None);
        }
        assert_eq!(Fraction::new(1.0).unwrap().of(u64::MAX), u64::MAX);
    }
}
