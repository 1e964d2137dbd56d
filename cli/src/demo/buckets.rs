//! Gradient buckets of the recorded model (GPT-2, 124 M parameters) and their values.
//!
//! Gradients become ready last layer first. As in data-parallel trainers, they are packed in that order into buckets
//! of about 25 MiB (the first one small, so that communication starts early). Buckets alternate between f32 and bf16.
//! Their values are small integers chosen so that every partial sum over up to 64 ranks is exact in both types: a
//! check of every element needs no tolerance. Every rank has its own pattern, so a missing rank, or one that is
//! counted in place of another, changes the sum.

use half::bf16;
use process_group::comm::DataType;

const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;
const LAYERS: usize = 12;
const WIDTH: u64 = 768;
const VOCABULARY: u64 = 50_257;
const CONTEXT: u64 = 1_024;
/// Bits of a rank's word.
const PERIOD: usize = 64;
/// The values repeat after this number of elements. It is 64 times a prime, so that parts of a bucket that lie a power
/// of two apart differ.
const BLOCK: usize = PERIOD * 61;

/// One bucket: `elements` values of type `data_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) elements: u64,
    pub(crate) data_type: DataType,
    /// Its index in the sequence of buckets.
    pub(crate) index: u32,
}

/// Parameters of the model in elements, in the order in which their gradients become ready.
fn gradients() -> Vec<u64> {
    let layer = [
        WIDTH,
        WIDTH, // first norm: scale, shift
        3 * WIDTH * WIDTH,
        3 * WIDTH, // attention, in
        WIDTH * WIDTH,
        WIDTH, // attention, out
        WIDTH,
        WIDTH, // second norm
        4 * WIDTH * WIDTH,
        4 * WIDTH, // feed-forward, in
        4 * WIDTH * WIDTH,
        WIDTH, // feed-forward, out
    ];
    let mut parameters = vec![VOCABULARY * WIDTH, CONTEXT * WIDTH];
    parameters.extend(std::iter::repeat_n(layer, LAYERS).flatten());
    parameters.extend([WIDTH, WIDTH]);
    parameters.reverse();
    parameters
}

/// Returns the model's first buckets that fit in `budget` bytes, at least one.
pub(crate) fn buckets(budget: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut elements = 0;
    let mut total = 0;
    let mut gradients = gradients().into_iter().peekable();
    while let Some(gradient) = gradients.next() {
        elements += gradient;
        let limit = if buckets.is_empty() { FIRST_BUCKET } else { BUCKET };
        let data_type = if buckets.len().is_multiple_of(2) { DataType::F32 } else { DataType::Bf16 };
        if (elements * data_type.size() as u64) < limit && gradients.peek().is_some() {
            continue;
        }
        let bucket = Bucket { elements, data_type, index: buckets.len() as u32 };
        elements = 0;
        total += bucket.bytes();
        if total > budget && !buckets.is_empty() {
            break;
        }
        buckets.push(bucket);
    }
    buckets
}

impl Bucket {
    pub(crate) fn bytes(&self) -> u64 {
        self.elements * self.data_type.size() as u64
    }

    /// Writes the contribution of `rank` in `round`.
    pub(crate) fn fill(&self, rank: u32, round: u32, out: &mut [u8]) {
        let block = self.block(round, &[rank]);
        for part in out.chunks_mut(block.len()) {
            part.copy_from_slice(&block[..part.len()]);
        }
    }

    /// Compares `reduced` with the exact sum over `ranks`. Returns the number of elements, or the first that differs.
    pub(crate) fn check(&self, ranks: &[u32], round: u32, reduced: &[u8]) -> Result<u64, Mismatch> {
        let block = self.block(round, ranks);
        let blocks = reduced.chunks(block.len()).enumerate();
        let Some((number, part)) = { blocks }.find(|(_, part)| *part != &block[..part.len()]) else {
            return Ok(self.elements);
        };
        let size = self.data_type.size();
        let both = block.chunks_exact(size).zip(part.chunks_exact(size));
        let element = both.take_while(|(expected, found)| expected == found).count();
        let at = element * size..(element + 1) * size;
        Err(Mismatch {
            bucket: self.index,
            element: (number * BLOCK + element) as u64,
            expected: self.read(&block[at.clone()]),
            found: self.read(&part[at]),
        })
    }

    /// Returns the sums of the ranks' weights, which repeat every [`PERIOD`] elements. A rank's weight is 1 or 2, by
    /// a bit of its own word. A missing rank therefore changes every element, and two ranks that are mistaken for
    /// each other have different words.
    fn weights(&self, ranks: &[u32], round: u32) -> [u32; PERIOD] {
        let mut weights = [0; PERIOD];
        for &rank in ranks {
            let word = mix(u64::from(rank) << 32 | u64::from(self.index << 8 | round));
            for (bit, weight) in weights.iter_mut().enumerate() {
                *weight += 1 + (word >> bit & 1) as u32;
            }
        }
        weights
    }

    /// Returns the part of an element that all ranks share: below 1024 in f32 and below 2 in bf16. The weighted sum
    /// over 64 ranks stays below 2^24 and 2^8, the limits up to which the types hold every integer.
    fn base(&self, element: u32, round: u32) -> u32 {
        let salt = (self.index << 8 | round).wrapping_mul(0x85eb_ca6b);
        let mixed = (element ^ salt).wrapping_mul(0x9e37_79b1) >> 16;
        if self.data_type == DataType::F32 { mixed & 1023 } else { mixed & 1 }
    }

    /// Returns the first [`BLOCK`] elements of the sum over `ranks`: the rest repeats them.
    fn block(&self, round: u32, ranks: &[u32]) -> Vec<u8> {
        let (members, weights) = (ranks.len() as u32, self.weights(ranks, round));
        let value = |element: usize| members * self.base(element as u32, round) + weights[element % PERIOD];
        let length = BLOCK.min(self.elements as usize);
        let values = (0..length).map(|element| value(element) as f32);
        if self.data_type == DataType::F32 {
            values.flat_map(f32::to_ne_bytes).collect()
        } else {
            values.flat_map(|value| bf16::from_f32(value).to_ne_bytes()).collect()
        }
    }

    fn read(&self, element: &[u8]) -> f32 {
        match *element {
            [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]),
            [a, b] => bf16::from_ne_bytes([a, b]).to_f32(),
            _ => f32::NAN,
        }
    }
}

/// Mixes the bits of a word; different words stay different (SplitMix64).
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// An element that differs from the expected sum.
#[derive(Debug, thiserror::Error)]
#[error("bucket {bucket}, element {element}: expected the sum {expected}, found {found}")]
pub(crate) struct Mismatch {
    bucket: u32,
    element: u64,
    expected: f32,
    found: f32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_whole_model_is_bucketed() {
        let buckets = buckets(u64::MAX);
        assert_eq!(buckets.iter().map(|bucket| bucket.elements).sum::<u64>(), 124_439_808);
        assert_eq!(super::buckets(0).len(), 1);
    }

    /// Reduces the values of these ranks, each as often as it is in the list.
    fn reduce(bucket: &Bucket, ranks: &[u32], round: u32) -> Vec<u8> {
        let size = bucket.data_type.size();
        let mut sum = vec![0f32; bucket.elements as usize];
        let mut part = vec![0; bucket.bytes() as usize];
        for &rank in ranks {
            bucket.fill(rank, round, &mut part);
            for (sum, part) in sum.iter_mut().zip(part.chunks_exact(size)) {
                *sum += bucket.read(part);
            }
        }
        let bytes = |&sum: &f32| match bucket.data_type {
            DataType::F32 => sum.to_ne_bytes().to_vec(),
            _ => bf16::from_f32(sum).to_ne_bytes().to_vec(),
        };
        sum.iter().flat_map(bytes).collect()
    }

    proptest! {
        #[test]
        fn ranks_that_are_counted_wrongly_are_seen(
            ranks in prop::collection::btree_set(0u32..64, 2..64),
            bf16s in any::<bool>(),
            round in 0u32..4,
            index in 0u32..40,
            moves in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 1..8),
        ) {
            let data_type = if bf16s { DataType::Bf16 } else { DataType::F32 };
            let bucket = Bucket { elements: PERIOD as u64, data_type, index };
            let ranks: Vec<u32> = ranks.into_iter().collect();
            let whole = reduce(&bucket, &ranks, round);
            prop_assert_eq!(bucket.check(&ranks, round, &whole).unwrap(), bucket.elements);
            for place in 0..ranks.len() {
                let mut counted = ranks.clone();
                let rank = counted.remove(place);
                prop_assert!(bucket.check(&ranks, round, &reduce(&bucket, &counted, round)).is_err());
                counted.extend([rank, rank]);
                prop_assert!(bucket.check(&ranks, round, &reduce(&bucket, &counted, round)).is_err());
            }
            // Some ranks are counted in place of others.
            let mut counted = ranks.clone();
            for (from, to) in moves {
                counted[to.index(ranks.len())] = ranks[from.index(ranks.len())];
            }
            let mut sorted = counted.clone();
            sorted.sort_unstable();
            let seen = bucket.check(&ranks, round, &reduce(&bucket, &counted, round)).is_err();
            prop_assert_eq!(seen, sorted != ranks, "{:?} for {:?}", counted, ranks);
        }

        #[test]
        fn a_sum_over_the_ranks_passes_and_a_changed_element_does_not(
            ranks in prop::collection::btree_set(0u32..64, 1..64),
            bf16s in any::<bool>(),
            elements in prop_oneof![1usize..300, BLOCK - 2..BLOCK + 300],
            round in 0u32..4,
            broken in any::<prop::sample::Index>(),
        ) {
            let data_type = if bf16s { DataType::Bf16 } else { DataType::F32 };
            let bucket = Bucket { elements: elements as u64, data_type, index: 3 };
            let ranks: Vec<u32> = ranks.into_iter().collect();
            let size = data_type.size();
            let mut reduced = reduce(&bucket, &ranks, round);
            prop_assert_eq!(bucket.check(&ranks, round, &reduced).unwrap(), elements as u64);
            let broken = broken.index(elements);
            reduced[broken * size + size - 1] ^= 1;
            prop_assert_eq!(bucket.check(&ranks, round, &reduced).unwrap_err().element, broken as u64);
        }
    }
}
