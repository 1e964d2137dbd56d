//! The hash of what a rank has called in a group.
//!
//! Members that have called the same have the same hash after each number, so it is enough to compare one number that
//! both have: whatever differed before differs for ever. The last numbers are kept, each, and of those before every 64th,
//! because members are not equally far, and one whose collective never ends must be comparable with those that went on.
//!
//! Only what is the same on all members takes part: no messages, and of where buffers lie only segments and offsets in
//! windows that members have in common. The parts of a batch are one step.

use std::sync::atomic::{AtomicU64, Ordering};

/// The hash of the collectives of one call; of a batch, of all that are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fold {
    hash: u64,
    /// Whether there is any: messages alone count for nothing.
    any: bool,
}

/// Odd, with bits all over: multiplying by it spreads every bit upwards.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(hash: u64, value: u64) -> u64 {
    let spread = (hash ^ value).wrapping_mul(SPREAD);
    // The upper half has heard of every bit: the next value meets it in the lower half.
    spread ^ (spread >> 32)
}

impl Fold {
    /// With one more collective: what it is, and its lengths.
    #[inline]
    pub(crate) fn with(self, what: u64, lengths: u64) -> Self {
        Self { hash: mix(mix(self.hash, what), lengths), any: true }
    }
}

/// A number of a collective, and the hash after it.
pub(crate) type Mark = (u64, u64);

/// The hashes of one group on one rank. Written by whoever calls, one at a time as NCCL wants it; read by anybody.
pub(crate) struct Rolling {
    /// How many collectives.
    count: AtomicU64,
    /// After the last ones.
    near: Box<[AtomicU64]>,
    /// After every 64th.
    far: Box<[AtomicU64]>,
}

impl Rolling {
    /// The numbers that are kept one by one: a stream takes about half as many launches before its host waits.
    pub(crate) const NEAR: u64 = 2048;
    /// What is kept of those before: every so many.
    pub(crate) const STRIDE: u64 = 64;
    /// As many of those.
    const FAR: u64 = 1024;

    pub(crate) fn new() -> Self {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { count: AtomicU64::new(0), near: words(Self::NEAR), far: words(Self::FAR) }
    }

    /// Takes a step. Members whose threads step at the same time have no order in common, and no hash.
    #[inline(always)]
    pub(crate) fn step(&self, fold: Fold) {
        if !fold.any {
            return;
        }
        let count = self.count.load(Ordering::Relaxed);
        let hash = mix(self.near[(count % Self::NEAR) as usize].load(Ordering::Relaxed), fold.hash);
        let count = count.wrapping_add(1);
        // Released, as below: who reads it in place of an older one sees that too.
        self.near[(count % Self::NEAR) as usize].store(hash, Ordering::Release);
        if count.is_multiple_of(Self::STRIDE) {
            self.far[(count / Self::STRIDE % Self::FAR) as usize].store(hash, Ordering::Release);
        }
        self.count.store(count, Ordering::Release);
    }

    /// How many steps were taken.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The hash after `number`, if it is kept still.
    pub(crate) fn after(&self, number: u64) -> Option<u64> {
        let count = self.count();
        // One less than there are: the oldest may be written to at this moment.
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

    /// What others compare: the last number, and the last that is kept for long.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let last = self.count();
        let mut numbers = vec![last, last / Self::STRIDE * Self::STRIDE];
        numbers.dedup();
        numbers.retain(|number| *number > 0);
        numbers.into_iter().filter_map(|number| Some((number, self.after(number)?))).collect()
    }

    /// The first of another's marks that this rank has another hash for.
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
        /// Whoever has called the same up to a number has the same hash there; one that differed once differs for ever.
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
            // The marks of who is behind are kept by who is ahead.
            prop_assert!(other.marks().iter().any(|(number, _)| one.after(*number).is_some()));
            let third = Rolling::new();
            for (at, call) in calls[..behind].iter().enumerate() {
                third.step(fold(call + u64::from(at == odd)));
            }
            prop_assert_eq!(one.differs(&third.marks()).is_some(), odd < behind);
        }

        /// The parts of a batch are one step, in their order, and a batch of messages is none.
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
