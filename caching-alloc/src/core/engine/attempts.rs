//! The attempts of a request that finds no block at hand, in order, as a state machine without I/O.
//!
//! [`Attempts::step`] takes the outcome of the last effect and returns the next one. An effect that finds a block ends the
//! request, so no outcome says that. In a pool of fixed segments:
//!
//! 1. Take over an idle segment of another stream of the pool.
//! 2. Let the stream wait, on the device, for the uses of its own pending blocks.
//! 3. Collect segments that have been idle longer than average, if more is reserved than the settings allow.
//! 4. Release idle segments that are too short. Allocate a segment: first a generous size, then ever fewer blocks, down to
//!    one.
//! 5. Take over a segment, or borrow a block, of another stream, after a wait on the device.
//! 6. Borrow a block from a pool that lends to this one.
//! 7. Release idle segments that are too long to be split, and allocate a segment.
//! 8. Release all cached memory of all pools, and allocate a segment.
//! 9. Wait on the host for pending blocks; release; allocate a segment.
//!
//! Attempts 3, 4, 7, 8 and 9 are PyTorch's, in PyTorch's order, and so is 6 for the default pool. The others use idle blocks
//! of other streams. In a re-mappable pool:
//!
//! 1. Complete pending blocks, and merge cached blocks, in all streams of the pool.
//! 2. Take free neighbours that fit, of any streams, after ordering this stream behind those.
//! 3. Collect memory that other pools have had idle for long. Map pages where the block fits: new ones while the pool is
//!    within its need, otherwise idle ones.
//! 4. Take free memory of the other tier, for blocks of another length.
//! 5. Map pages, new ones too; if there are not enough, in any hole, even beside blocks of another length.
//! 6. Borrow a block from a pool that lends to this one.
//! 7. Repeat this after releasing memory cached by other pools, and after waiting on the host for pending blocks.
//!
//! The last attempts are repeated as long as they fail while blocks change hands. Another thread may free a block in a place
//! that was searched before, and take one in a place that was not searched yet; one round misses both. A round searches
//! everywhere.

use super::sizes::SegmentSizes;
use crate::core::settings::Reuse;

/// Limit on repeating the last attempts while other threads allocate and free. Each repetition means that
/// another thread took the memory that this request did not find.
const ROUNDS: u32 = 100;

/// An attempt, or a step towards one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Take over an idle segment of another stream; with `wait`, also one that it still uses.
    Adopt { wait: bool },
    /// Let the stream wait on the device for the uses of its pending blocks.
    OrderPending,
    /// Release segments that have been idle longer than average, if too much is reserved.
    CollectIdle,
    /// Release idle segments that are too short for the request, up to this many bytes.
    ReplaceShort { bytes: u64 },
    /// Allocate a segment.
    Allocate { bytes: u64 },
    /// Take a block of another stream; with `wait`, also one that it still uses.
    Borrow { wait: bool },
    /// Take a block of a pool that lends to this one.
    BorrowFromPools,
    /// Release idle segments that are too long to be split, until this many bytes are released.
    ReleaseUnsplit { bytes: u64 },
    /// Release all cached memory of all pools.
    ReleaseCached,
    /// Block the host until no block of any pool is pending.
    SynchronizePending,
    /// Complete pending blocks and merge cached ones in all streams of a re-mappable pool.
    Merge,
    /// Take free neighbours of several streams, in the tier of the request.
    TakeFragments,
    /// Take free memory of the other tier.
    OtherTier,
    /// Map pages where the block fits.
    MapPages { extent: Extent },
    /// Count that the request needs the last attempts.
    CountRetry,
    /// Count the blocks handed out and freed so far.
    CountOperations,
    /// Report that there is no memory.
    GiveUp,
}

/// The limit on a re-mappable pool's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// A little beyond its need.
    Need,
    /// All available memory.
    All,
}

/// What came of an effect that found no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Nothing,
    /// The bytes that it released.
    Freed(u64),
    /// The number of blocks handed out, freed and completed so far.
    Operations(u64),
}

/// The facts that decide which attempts are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    pub(super) reuse: Reuse,
    /// The sizes of a new segment; `None` in a re-mappable pool.
    pub(super) sizes: Option<SegmentSizes>,
    /// Idle segments that are too short may be released before a segment is allocated.
    pub(super) replaces: bool,
    /// The pool has a longest block that is split.
    pub(super) limits_splits: bool,
}

/// An attempt of the list.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Always(Effect),
    /// If at least this much may be taken from other streams.
    With(Reuse, Effect),
    Replace,
    /// A segment of the generous size, then of smaller ones.
    Grow,
    ReleaseUnsplit,
    /// A segment of the least size, if the last effect released memory.
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
    /// The attempts that are left of the current list.
    stages: &'static [Stage],
    /// The size of the segment that was tried last, while smaller ones are left.
    tried: Option<u64>,
    rounds: u32,
    /// The number of operations when the current round began.
    operations: Option<u64>,
}

impl Attempts {
    pub(super) fn new(conditions: Conditions) -> Self {
        let stages = if conditions.sizes.is_some() { FIXED } else { REMAPPABLE };
        Self { conditions, stages, tried: None, rounds: 0, operations: None }
    }

    /// Returns the next effect; `outcome` is that of the effect that was returned before.
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

    /// The effect of a stage, if its condition holds.
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

    /// All effects of a request that never finds a block. Releases free what `freed` says, in turn; blocks change hands
    /// before the first `moving` counts of operations.
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
        fn a_request_gives_up_only_after_a_whole_round_in_which_nothing_moved(
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
