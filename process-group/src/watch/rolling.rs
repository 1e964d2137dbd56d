//! A rolling hash of the calls of a rank in a group.
//!
//! Collectives are numbered, and members with equal calls have equal hashes after each collective. A different call
//! changes all later hashes. Two members therefore compare a single hash: that after one collective for which both
//! still keep the hash. A member keeps all recent hashes, and every 64th of the earlier ones. Members progress at
//! different speeds, so a member whose collective never ends must be comparable with members that are far ahead.
//!
//! Only data that must be equal on all members is hashed: no messages, and of buffer addresses only the segment and the
//! offset of buffers in shared windows. All collectives of a batch are one step of the hash.

use std::sync::atomic::{AtomicU64, Ordering};

/// The hash of the collectives of one call, or of all collectives in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fold {
    hash: u64,
    /// True if a collective was added. A call without collectives does not change the rolling hash.
    any: bool,
}

/// An odd number with bits in all positions. Multiplication by it spreads every bit upwards.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(hash: u64, value: u64) -> u64 {
    let spread = (hash ^ value).wrapping_mul(SPREAD);
    // The upper half of `spread` depends on every bit of both inputs. It is moved to the lower half, so that the next
    // multiplication spreads it upwards again.
    spread ^ (spread >> 32)
}

impl Fold {
    /// Adds two words of data about a collective, for example its kind and its length.
    #[inline]
    pub(crate) fn with(self, what: u64, lengths: u64) -> Self {
        Self { hash: mix(mix(self.hash, what), lengths), any: true }
    }
}

/// The number of a collective, and the hash after it.
pub(crate) type Mark = (u64, u64);

/// The hashes of one group on one rank. Threads that call collectives update the hashes, one thread at a time, as NCCL
/// requires. Any thread may read the hashes.
pub(crate) struct Rolling {
    /// Number of steps so far, each for one collective or one batch.
    count: AtomicU64,
    /// Hashes after the most recent collectives, indexed by number modulo `NEAR`.
    near: Box<[AtomicU64]>,
    /// Hashes after every 64th collective, indexed by number / `STRIDE` modulo `FAR`.
    far: Box<[AtomicU64]>,
}

impl Rolling {
    /// Number of recent hashes that are kept. About twice the number of launches that a stream queues before the
    /// launching thread blocks.
    pub(crate) const NEAR: u64 = 2048;
    /// Number of collectives from one kept earlier hash to the next.
    pub(crate) const STRIDE: u64 = 64;
    /// Number of earlier hashes that are kept, one for every `STRIDE` collectives.
    const FAR: u64 = 1024;

    pub(crate) fn new() -> Self {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { count: AtomicU64::new(0), near: words(Self::NEAR), far: words(Self::FAR) }
    }

    /// Adds a call or a batch to the rolling hash. If several threads call this at the same time, the order may differ
    /// between members, and then their hashes are not comparable.
    #[inline(always)]
    pub(crate) fn step(&self, fold: Fold) {
        if !fold.any {
            return;
        }
        let count = self.count.load(Ordering::Relaxed);
        let hash = mix(self.near[(count % Self::NEAR) as usize].load(Ordering::Relaxed), fold.hash);
        let count = count.wrapping_add(1);
        // Release order, here and below. This hash overwrites an older one, for which a reader may take it. That reader
        // then also sees the count from before this step, or a later one, and so finds that the older hash is gone.
        self.near[(count % Self::NEAR) as usize].store(hash, Ordering::Release);
        if count.is_multiple_of(Self::STRIDE) {
            self.far[(count / Self::STRIDE % Self::FAR) as usize].store(hash, Ordering::Release);
        }
        self.count.store(count, Ordering::Release);
    }

    /// Returns the number of steps.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the hash after collective `number`, if that hash is still kept.
    pub(crate) fn after(&self, number: u64) -> Option<u64> {
        let count = self.count();
        // The limit is one less than the number of slots, because the oldest hash may be overwritten at this moment.
        let is_near = |count: u64| number <= count && count - number < Self::NEAR - 1;
        let is_far = |count: u64| {
            number <= count
                && number.is_multiple_of(Self::STRIDE)
                && count / Self::STRIDE - number / Self::STRIDE < Self::FAR - 1
        };
        let near = is_near(count).then(|| self.near[(number % Self::NEAR) as usize].load(Ordering::Acquire));
        if near.is_some() && is_near(self.count()) {
            return near;
        }
        let far = is_far(count)
            .then(|| self.far[(number / Self::STRIDE % Self::FAR) as usize].load(Ordering::Acquire));
        far.filter(|_| is_far(self.count()))
    }

    /// Returns the mark of the last collective. `None` if there is none, or if other threads call so many collectives
    /// meanwhile that its hash is no longer kept.
    pub(crate) fn last(&self) -> Option<Mark> {
        let number = self.count();
        Some((number, self.after(number)?)).filter(|_| number > 0)
    }

    /// Returns the marks that other ranks compare: for the last collective, and for the last one whose number is a
    /// multiple of `STRIDE`.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let last = self.count();
        let mut numbers = vec![last, last / Self::STRIDE * Self::STRIDE];
        numbers.dedup();
        numbers.retain(|number| *number > 0);
        numbers.into_iter().filter_map(|number| Some((number, self.after(number)?))).collect()
    }

    /// Returns the lowest number in another rank's `marks` whose hash differs from this rank's hash.
    pub(crate) fn differs(&self, marks: &[Mark]) -> Option<u64> {
        let differs = |(number, hash): &&Mark| self.after(*number).is_some_and(|own| own != *hash);
        marks.iter().filter(differs).map(|(number, _)| *number).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fold(value: u64) -> Fold {
        Fold::default().with(value, value)
    }

    proptest! {
        /// Equal calls up to a number give equal hashes at that number. After one different call, all later hashes
        /// differ.
        #[test]
        fn equal_calls_have_equal_hashes_and_others_never_again(
            calls in prop::collection::vec(0u64..4, 1..4000), odd in any::<prop::sample::Index>(), ahead in 0usize..2000,
        ) {
            let (one, other) = (Rolling::new(), Rolling::new());
            let (odd, behind) = (odd.index(calls.len()), calls.len().saturating_sub(ahead).max(1));
            for (at, call) in calls.iter().enumerate() {
                one.step(fold(*call));
                if at < behind {
                    other.step(fold(*call));
                }
            }
            prop_assert_eq!(one.differs(&other.marks()), None);
            prop_assert_eq!(other.differs(&one.marks()), None);
            // The rank that is ahead still keeps the marks of the rank that is behind.
            prop_assert!(other.marks().iter().any(|(number, _)| one.after(*number).is_some()));
            let third = Rolling::new();
            for (at, call) in calls[..behind].iter().enumerate() {
                third.step(fold(call + u64::from(at == odd)));
            }
            prop_assert_eq!(one.differs(&third.marks()).is_some(), odd < behind);
        }

        /// The collectives of a batch are one step, which depends on their order. A batch of messages is not a step.
        #[test]
        fn a_batch_is_one_step(parts in prop::collection::vec((0u64..4, 0u64..4), 0..5)) {
            let rolling = Rolling::new();
            let whole = parts.iter().fold(Fold::default(), |fold, (what, length)| fold.with(*what, *length));
            rolling.step(whole);
            prop_assert_eq!(rolling.count(), u64::from(!parts.is_empty()));
            let back = parts.iter().rev().fold(Fold::default(), |fold, (what, length)| fold.with(*what, *length));
            let same = parts.iter().eq(parts.iter().rev());
            prop_assert_eq!(whole == back, same);
        }
    }

    #[test]
    fn a_reader_finds_what_was_written() {
        let (rolling, model) = (Rolling::new(), Rolling::new());
        let hashes: Vec<_> = (0..20_000)
            .map(|value| {
                model.step(fold(value));
                model.marks()[0].1
            })
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|value| rolling.step(fold(value))));
            while rolling.count() < 20_000 {
                for (number, hash) in rolling.marks() {
                    assert_eq!(hash, hashes[number as usize - 1], "{number}");
                }
            }
        });
    }
}
