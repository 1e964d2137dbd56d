//! The attempts to serve a request that misses, in order, as a state machine without I/O. A request misses if its
//! stream's cache has no free block that fits.
//!
//! An attempt consists of effects: actions that the engine carries out. [`Attempts::step`] takes the outcome of the
//! last effect and returns the next effect. If an effect finds a block, the request is served, and `step` is not
//! called again. In a pool of fixed segments, whose memory never moves, the attempts are:
//!
//! 1. Take over an idle segment of another stream of the pool, if the host has seen the end of that stream's work.
//! 2. Make the request's stream wait, on the device, for other streams' uses of its pending blocks. A pending block
//!    was freed, but other streams may still use it.
//! 3. If more is reserved than [`collect_above`](crate::core::Settings::collect_above) permits, release segments
//!    whose idle time is at least average.
//! 4. Release idle segments that are too short for the request. Allocate a segment: first of a generous size, then for
//!    half as many blocks each time, down to one block.
//! 5. Take over an idle segment of another stream after a wait on the device. Otherwise borrow a block of another
//!    stream, if necessary after a wait on the device.
//! 6. Borrow a block from a pool that lends to this one.
//! 7. Release idle segments that are too long to be split, and allocate a segment.
//! 8. Release all cached memory of all pools, and allocate a segment.
//! 9. Wait on the host for the uses of all pending blocks. Repeat attempts 5 and 8.
//!
//! PyTorch's allocator also makes attempts 3, 4 (without the release, and with one size), 6 (only for the default
//! pool), 7 and 8, in this order. Older releases of PyTorch make attempt 6 last. PyTorch waits for pending blocks
//! before the release in attempt 8. It has no counterpart of attempts 1, 2 and 5.
//!
//! In a re-mappable pool, whose pages can be mapped at other addresses, the attempts are:
//!
//! 1. In all streams of the pool, free the pending blocks whose uses have ended, and merge freed blocks that are
//!    cached whole.
//! 2. Order the request's stream after the streams of neighbouring free blocks that together fit, and take these
//!    blocks.
//! 3. If more is reserved than `collect_above` permits, release segments whose idle time is at least average, in pools
//!    of fixed segments. Then map pages at addresses where the block fits: new pages while the pool stays close to its
//!    peak use, otherwise idle ones.
//! 4. Take free memory of the other tier. A pool has two tiers of addresses: one for short blocks, one for long ones.
//! 5. Map idle and new pages in a hole: a range of addresses without memory. If there are not enough pages for the
//!    best hole, try every other hole, of both tiers.
//! 6. Borrow a block from a pool that lends to this one.
//! 7. Release memory that other pools have cached, and repeat attempt 5. Wait on the host for the uses of all pending
//!    blocks, and repeat attempts 1 and 4, the release, and attempt 5.
//!
//! The last attempts (8 and 9, or 7) form a round, which searches all memory. A round that fails is repeated if other
//! threads have allocated or freed blocks or changed segments in the meantime, or if the round itself has freed pending
//! blocks. Another thread may free a block in memory that the round has already searched, and take a block in memory
//! that the round has not yet searched. So one round can fail although there was enough free memory all the time.

use super::sizes::SegmentSizes;
use crate::core::settings::Reuse;

/// Limit on the number of rounds. A round is repeated only if [operations](Outcome::Operations) were counted during it.
const ROUNDS: u32 = 100;

/// An action that tries to find a block, or that prepares a later action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Take over an idle segment of another stream whose work has ended. With `wait`, also of a stream whose work has
    /// not ended, after a wait on the device.
    Adopt { wait: bool },
    /// Make the stream wait on the device for other streams' uses of its pending blocks.
    OrderPending,
    /// If more is reserved than the settings permit, release segments whose idle time is at least average.
    CollectIdle,
    /// Release idle segments that are too short for the request, until `bytes` are released.
    ReplaceShort { bytes: u64 },
    /// Allocate a segment of `bytes`.
    Allocate { bytes: u64 },
    /// Take a free block of another stream whose work has ended. With `wait`, also of a stream whose work has not
    /// ended, after a wait on the device.
    Borrow { wait: bool },
    /// Take a free block of a pool that lends to this one.
    BorrowFromPools,
    /// Release idle segments that are longer than the longest block that is split, until `bytes` are released.
    ReleaseUnsplit { bytes: u64 },
    /// Release all cached memory of all pools. If the request's pool is re-mappable, it keeps its idle pages, because
    /// [`MapPages`](Self::MapPages) can move them.
    ReleaseCached,
    /// Block the host until the uses of all pending blocks have ended, and free these blocks. Uses by streams that are
    /// being captured are not waited for.
    SynchronizePending,
    /// In all streams of a re-mappable pool, free the pending blocks whose uses have ended, and merge cached blocks.
    Merge,
    /// Take neighbouring free blocks of several streams, in the tier of the request.
    TakeFragments,
    /// Take free memory of the other tier. A pool has two tiers of addresses: one for short blocks, one for long ones.
    OtherTier,
    /// Map pages at addresses where the block fits. `extent` limits the new pages.
    MapPages { extent: Extent },
    /// Count in [`Stats::retries`](crate::core::Stats::retries) that cached memory must be released for the request.
    CountRetry,
    /// Count the [operations](Outcome::Operations) so far. If this count differs from the one before the last round,
    /// blocks were allocated or freed during that round, or other threads have changed segments.
    CountOperations,
    /// Fail with an out-of-memory error.
    GiveUp,
}

/// The limit on the memory that a re-mappable pool may reserve for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The pool's peak use, plus a slack that avoids many moves of pages.
    Need,
    /// All memory that is available under the allocator's limit.
    All,
}

/// The result of an effect that found no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The effect has no result that matters for the next effect.
    Nothing,
    /// The effect was a release. Since the last attempt to allocate a segment, all threads together have released
    /// this many bytes.
    Freed(u64),
    /// The effect was a count. This is the sum of the operations in all caches (see `Engine::operations`) and of the
    /// changes of segments by other threads.
    Operations(u64),
}

/// The facts that decide which attempts are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    /// The memory that the request may take from other streams.
    pub(super) reuse: Reuse,
    /// The sizes of a new segment. `None` in a re-mappable pool.
    pub(super) sizes: Option<SegmentSizes>,
    /// True if idle segments that are too short may be released before a segment is allocated.
    pub(super) replaces: bool,
    /// True if the pool does not split blocks longer than some length, or splits none.
    pub(super) limits_splits: bool,
}

/// An entry in a list of attempts.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Always this effect.
    Always(Effect),
    /// This effect, if the settings allow at least this reuse of other streams' memory.
    With(Reuse, Effect),
    /// Release idle segments that are too short, if the conditions allow it.
    Replace,
    /// Allocate a segment of the generous size. If that fails, try ever smaller ones.
    Grow,
    /// Release idle segments that are too long to be split, if the pool limits the length of split blocks.
    ReleaseUnsplit,
    /// If the last effect was a release, and memory was released since the last attempt to allocate a segment, allocate
    /// a segment of the least size.
    GrowIfFreed,
}

use Effect as E;
use Stage::{Always, Grow, GrowIfFreed, With};

const FIXED: &[Stage] = &[
    With(Reuse::HostSeen, E::Adopt { wait: false }),
    With(Reuse::DeviceWait, E::OrderPending),
    Always(E::CollectIdle),
    Stage::Replace,
    Grow,
    With(Reuse::DeviceWait, E::Adopt { wait: true }),
    With(Reuse::HostSeen, E::Borrow { wait: false }),
    With(Reuse::DeviceWait, E::Borrow { wait: true }),
    Always(E::BorrowFromPools),
    Always(E::CountRetry),
    Stage::ReleaseUnsplit,
    GrowIfFreed,
];

const FIXED_LAST: &[Stage] = &[
    Always(E::ReleaseCached),
    GrowIfFreed,
    Always(E::SynchronizePending),
    With(Reuse::DeviceWait, E::Adopt { wait: true }),
    With(Reuse::HostSeen, E::Borrow { wait: false }),
    With(Reuse::DeviceWait, E::Borrow { wait: true }),
    Always(E::ReleaseCached),
    GrowIfFreed,
];

const REMAPPABLE: &[Stage] = &[
    Always(E::Merge),
    Always(E::TakeFragments),
    Always(E::CollectIdle),
    Always(E::MapPages { extent: Extent::Need }),
    Always(E::OtherTier),
    Always(E::MapPages { extent: Extent::All }),
    Always(E::BorrowFromPools),
    Always(E::CountRetry),
];

const REMAPPABLE_LAST: &[Stage] = &[
    Always(E::ReleaseCached),
    Always(E::MapPages { extent: Extent::All }),
    Always(E::SynchronizePending),
    Always(E::Merge),
    Always(E::OtherTier),
    Always(E::ReleaseCached),
    Always(E::MapPages { extent: Extent::All }),
];

/// The attempts of one request.
#[derive(Debug)]
pub(super) struct Attempts {
    conditions: Conditions,
    /// The entries of the current list that are left.
    stages: &'static [Stage],
    /// The size in bytes of the segment that was tried last, if smaller ones may follow.
    tried: Option<u64>,
    /// The number of rounds that have begun.
    rounds: u32,
    /// The number of operations at the beginning of the current round.
    operations: Option<u64>,
}

impl Attempts {
    pub(super) fn new(conditions: Conditions) -> Self {
        let stages = if conditions.sizes.is_some() { FIXED } else { REMAPPABLE };
        Self { conditions, stages, tried: None, rounds: 0, operations: None }
    }

    /// Returns the next effect. `outcome` is that of the effect that was returned last, or [`Outcome::Nothing`] at the
    /// first call.
    pub(super) fn step(&mut self, outcome: Outcome) -> Effect {
        if let Outcome::Operations(now) = outcome {
            let is_moving = self.operations.replace(now) != Some(now);
            if !is_moving || self.rounds == ROUNDS {
                return E::GiveUp;
            }
            self.rounds += 1;
            self.stages = if self.conditions.sizes.is_some() { FIXED_LAST } else { REMAPPABLE_LAST };
        }
        if let Some((sizes, tried)) = self.conditions.sizes.zip(self.tried.take())
            && let Some(bytes) = sizes.below(tried)
        {
            self.tried = Some(bytes);
            return E::Allocate { bytes };
        }
        while let [stage, rest @ ..] = self.stages {
            self.stages = rest;
            if let Some(effect) = self.effect_of(*stage, outcome) {
                return effect;
            }
        }
        E::CountOperations
    }

    /// Returns the effect of a stage, or `None` if its condition does not hold.
    fn effect_of(&mut self, stage: Stage, outcome: Outcome) -> Option<Effect> {
        let Conditions { reuse, sizes, replaces, limits_splits } = self.conditions;
        match stage {
            Always(effect) => Some(effect),
            With(least, effect) => (reuse >= least).then_some(effect),
            Stage::Replace => {
                sizes.filter(|_| replaces).map(|sizes| E::ReplaceShort { bytes: sizes.generous })
            }
            Grow => {
                self.tried = sizes.map(|sizes| sizes.generous);
                self.tried.map(|bytes| E::Allocate { bytes })
            }
            Stage::ReleaseUnsplit => {
                sizes.filter(|_| limits_splits).map(|sizes| E::ReleaseUnsplit { bytes: sizes.least })
            }
            GrowIfFreed => match (outcome, sizes) {
                (Outcome::Freed(1..), Some(sizes)) => Some(E::Allocate { bytes: sizes.least }),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sizes::Need;
    use super::*;
    use crate::core::settings::Settings;
    use crate::core::size::SizeClass;

    const MIB: u64 = 1 << 20;

    fn reuse() -> impl Strategy<Value = Reuse> {
        prop_oneof![Just(Reuse::OwnStream), Just(Reuse::HostSeen), Just(Reuse::DeviceWait)]
    }

    fn conditions() -> impl Strategy<Value = Conditions> {
        let sizes = (MIB..40 * MIB, 0..200 * MIB).prop_map(|(block, available)| {
            let (block, class) = (block.next_multiple_of(512), SizeClass::Large);
            let need = Need { block, class, step: 2 * MIB, longest: Some(u64::MAX), reserved: 0 };
            SegmentSizes::new(&Settings::default(), need, || available)
        });
        (reuse(), prop::option::of(sizes), any::<bool>(), any::<bool>()).prop_map(
            |(reuse, sizes, replaces, limits_splits)| Conditions { reuse, sizes, replaces, limits_splits },
        )
    }

    /// Returns all effects of a request that never finds a block. The releases return the values of `freed`, in turn.
    /// The number of operations changes before each of the first `moving` counts.
    fn effects(conditions: Conditions, freed: &[u64], moving: u64) -> Vec<Effect> {
        let mut attempts = Attempts::new(conditions);
        let (mut outcome, mut effects, mut counts, mut releases) = (Outcome::Nothing, Vec::new(), 0, 0);
        loop {
            let effect = attempts.step(outcome);
            effects.push(effect);
            outcome = match effect {
                E::GiveUp => return effects,
                E::CountOperations => {
                    counts += 1;
                    Outcome::Operations(counts.min(moving))
                }
                E::ReleaseCached | E::ReleaseUnsplit { .. } | E::ReplaceShort { .. } => {
                    releases += 1;
                    Outcome::Freed(freed.get(releases % freed.len().max(1)).copied().unwrap_or(0))
                }
                _ => Outcome::Nothing,
            };
        }
    }

    proptest! {
        #[test]
        fn a_request_gives_up_after_a_round_in_which_nothing_moved_or_after_the_last_round(
            conditions in conditions(),
            freed in prop::collection::vec(0..3u64, 0..6),
            moving in 0..300u64,
        ) {
            let effects = effects(conditions, &freed, moving);
            let counts: Vec<usize> =
                (0..effects.len()).filter(|at| effects[*at] == E::CountOperations).collect();
            let rounds = counts.len() as u64 - 1;
            prop_assert_eq!(rounds, moving.clamp(1, u64::from(ROUNDS)));
            let last = &effects[counts[counts.len() - 2]..];
            let at = |effect| last.iter().position(|other| *other == effect);
            let (released, waited) = (at(E::ReleaseCached), at(E::SynchronizePending));
            prop_assert!(released.is_some() && released < waited);
            prop_assert!(last[waited.unwrap()..].contains(&E::ReleaseCached), "what ended is released too");
        }

        #[test]
        fn segments_are_tried_from_the_generous_size_down_to_the_least(conditions in conditions()) {
            let Some(sizes) = conditions.sizes else { return Ok(()) };
            let effects = effects(conditions, &[], 0);
            let tried: Vec<u64> = effects
                .iter()
                .filter_map(|effect| match effect {
                    E::Allocate { bytes } => Some(*bytes),
                    _ => None,
                })
                .collect();
            prop_assert_eq!((tried[0], tried[tried.len() - 1]), (sizes.generous, sizes.least));
            prop_assert!(tried.windows(2).all(|pair| pair[0] > pair[1]));
        }

        #[test]
        fn memory_is_allocated_after_every_release_that_freed_some(conditions in conditions(), freed in 1..9u64) {
            prop_assume!(conditions.sizes.is_some());
            let effects = effects(conditions, &[freed], 0);
            for pair in effects.windows(2) {
                if matches!(pair[0], E::ReleaseCached | E::ReleaseUnsplit { .. }) {
                    prop_assert!(matches!(pair[1], E::Allocate { .. }), "{:?}", effects);
                }
            }
        }

        #[test]
        fn pages_are_mapped_after_every_release(conditions in conditions(), moving in 0..3u64) {
            let effects = effects(Conditions { sizes: None, ..conditions }, &[1], moving);
            let releases = (0..effects.len()).filter(|at| effects[*at] == E::ReleaseCached);
            for at in releases {
                prop_assert_eq!(effects[at + 1], E::MapPages { extent: Extent::All });
            }
        }

        #[test]
        fn other_streams_memory_is_taken_only_as_far_as_allowed(conditions in conditions(), moving in 0..3u64) {
            for effect in effects(conditions, &[1], moving) {
                let least = match effect {
                    E::Adopt { wait } | E::Borrow { wait } if !wait => Reuse::HostSeen,
                    E::Adopt { .. } | E::Borrow { .. } | E::OrderPending => Reuse::DeviceWait,
                    _ => Reuse::OwnStream,
                };
                prop_assert!(conditions.reuse >= least, "{:?} with {:?}", effect, conditions.reuse);
            }
        }
    }
}
