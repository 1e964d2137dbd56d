//! Tests of the number of segments that a pool makes, and of the idle part of them.

use std::sync::Arc;

use super::*;
use crate::host::HostSource;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The SplitMix64 random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `least` to `most`.
    fn among(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }
}

/// Returns the sizes that a program requests repeatedly, none larger than `most`. Depending on the seed, they are all
/// about equal, mostly small with some large, uniform over sizes, uniform over magnitudes, a few magnitudes, or always
/// the same.
fn mixture(seed: u64, most: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let magnitude = |random: &mut Random, least: u32| {
        let about = 1 << random.among(least.into(), most.ilog2().into());
        random.among((about / 2).max(1), about)
    };
    let mut sizes: Vec<u64> = match seed % 6 {
        0 => (0..8).map(|_| random.among(most / 2, most)).collect(),
        1 => (0..64)
            .map(|_| match random.among(0, 2) {
                0 => random.among(1, 4095),
                1 => random.among(1, most / 16),
                _ => random.among(1, most),
            })
            .collect(),
        2 => (0..256).map(|_| random.among(1, most)).collect(),
        3 => (0..256).map(|_| magnitude(&mut random, 0)).collect(),
        4 => (0..8).map(|_| magnitude(&mut random, 20)).collect(),
        _ => vec![random.among(most / 16, most)],
    };
    // Tiny requests alone would take millions of steps.
    if sizes.iter().all(|bytes| *bytes < most / 64) {
        sizes.push(most);
    }
    sizes
}

/// Calls `next` with the length of the largest hole, and allocates the size that it returns. Repeats this until
/// `enough` bytes are in use. Returns the sizes of the pool's segments, and the bytes in use. Checks that after the
/// first segment, the idle bytes never exceed the larger of the bytes in use and 8 times the first segment, except for
/// tolerance and rounding.
fn grow(geometry: Geometry, enough: u64, mut next: impl FnMut(u64) -> u64) -> (Vec<u64>, u64) {
    let mut arena = SymmetricArena::new(Arc::new(HostSource::at(1 << 40, u64::MAX)), geometry).unwrap();
    let (mut used, mut reserved) = (0, 0);
    let (mut segments, mut holes) = (Vec::new(), Vec::new());
    while used < enough {
        let placed = arena.allocate(next(holes.iter().copied().max().unwrap_or(0))).unwrap();
        used += placed.bytes;
        if let Some(segment) = arena.segments().get(segments.len()) {
            segments.push(segment.bytes);
            holes.push(segment.bytes);
            reserved += segment.bytes;
            let rounding = segments.len() as u64 * SEGMENT_STEP;
            let bound = used + used.max(8 * geometry.first_segment) + TOLERANCE + rounding;
            assert!(segments.len() == 1 || reserved <= bound, "{geometry:?}: {segments:?} for {used}");
        }
        holes[placed.placement.ordinal as usize] -= placed.bytes;
    }
    (segments, used)
}

/// Returns the sizes of the segments of a pool with the default geometry when at least 8 GiB are in use. Checks that
/// at most 10.7 GiB are reserved for each 8 GiB in use.
fn grow_to_eight_gib(next: impl FnMut(u64) -> u64) -> Vec<u64> {
    let (segments, used) = grow(Geometry::default(), 8 * GIB, next);
    let rounding = segments.len() as u64 * SEGMENT_STEP;
    assert!(segments.iter().sum::<u64>() <= used / 80 * 107 + rounding, "{segments:?} for {used}");
    segments
}

/// For each size in `mosts`, runs `times` mixtures with requests up to that size. Returns the segment sizes of the
/// runs that took more than 8 segments to reach 8 GiB.
fn beyond_eight(times: u64, mosts: &[u64]) -> Vec<Vec<u64>> {
    let mixtures = mosts.iter().flat_map(|most| (0..times).map(move |seed| mixture(seed, *most)));
    let grown = mixtures.map(|sizes| {
        let mut sizes = sizes.iter().cycle();
        grow_to_eight_gib(|_| *sizes.next().unwrap())
    });
    grown.filter(|segments| segments.len() > 8).collect()
}

#[test]
fn eight_gib_of_blocks_up_to_64_mib_take_at_most_eight_segments() {
    let beyond = beyond_eight(600, &[16 * MIB, 32 * MIB, 64 * MIB]);
    assert!(beyond.is_empty(), "{beyond:?}");
}

#[test]
fn eight_gib_of_mixed_blocks_up_to_a_gib_take_at_most_eight_segments() {
    let beyond = beyond_eight(2500, &[128 * MIB, 256 * MIB, 512 * MIB, GIB]);
    assert!(beyond.len() <= 1, "of 10,000 mixtures: {beyond:?}");
}

/// With this worst case of requests there are many segments, but little memory is idle.
#[test]
fn whoever_asks_for_just_more_than_every_hole_is_served_with_little_idle() {
    let segments = grow_to_eight_gib(|hole| (hole + 1).min(GIB));
    assert!(segments.len() <= 40, "{segments:?}");
}

#[test]
fn a_small_pool_has_one_segment_of_64_mib() {
    let geometry = Geometry::default();
    assert_eq!(geometry.segment_bytes(0, 0, 1), 64 * MIB);
    assert_eq!(geometry.segment_bytes(0, 0, 100 * MIB), 100 * MIB);
    let (segments, _) = grow(geometry, 64 * MIB, |_| MIB);
    assert_eq!(segments, [64 * MIB]);
}

#[test]
fn idle_memory_is_bounded_whatever_the_geometry() {
    for seed in 0..72 {
        let mut random = Random(seed);
        let first_segment = SEGMENT_STEP << random.among(0, 5);
        let geometry = Geometry { first_segment, largest_segment: first_segment << random.among(0, 11) };
        let sizes = mixture(seed, 256 * MIB);
        let mut sizes = sizes.iter().cycle();
        grow(geometry, GIB, |_| *sizes.next().unwrap());
    }
}
