//! Generations: numbers that distinguish the current [plan](super::Plan) or [regions](super::Regions) of a name from
//! earlier ones of the same name. The members agree on the generation together with the plan or regions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The current generation of one name. The plan or set of regions of this name with this generation is current, and
/// earlier ones are stale. Before the first agreement on a plan or regions of the name, the value is 0. Clones share
/// the value.
#[derive(Debug, Clone, Default)]
pub struct Generations(Arc<AtomicU64>);

impl Generations {
    /// Returns the generation that this rank proposes in its next agreement. All members use the highest proposal.
    pub fn next(&self) -> u64 {
        self.0.load(Ordering::Acquire) + 1
    }

    /// Makes the agreed generation current, unless a higher one is current already. That is possible if two threads use
    /// the same name in concurrent agreements with different members.
    pub fn agreed(&self, generation: u64) {
        self.0.fetch_max(generation, Ordering::AcqRel);
    }

    /// Returns `Ok` if `generation` is current, and the current generation as the error otherwise.
    pub fn admit(&self, generation: u64) -> Result<(), u64> {
        let current = self.0.load(Ordering::Acquire);
        if current == generation { Ok(()) } else { Err(current) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_stale_stays_stale(agreed in prop::collection::vec(1u64..6, 1..12)) {
            let generations = Generations::default();
            let mut stale = [false; 6];
            for generation in agreed {
                generations.agreed(generation);
                for (earlier, stale) in stale.iter_mut().enumerate().skip(1) {
                    let is_admitted = generations.admit(earlier as u64).is_ok();
                    prop_assert!(!(*stale && is_admitted), "generation {earlier} became current again");
                    *stale |= !is_admitted && (earlier as u64) < generations.next();
                }
            }
        }
    }
}
