//! Generations: tell the current plan of a name from earlier plans with the same name.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The current generation of one name of plans or regions. Starts at 0, before the first agreement. The plan or the set
/// of regions with the current generation is current, and earlier ones are stale. Clones share the value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Generations(Arc<AtomicU64>);

impl Generations {
    /// Returns the generation that this rank proposes. All members use the highest proposal.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Acquire) + 1
    }

    /// Makes the agreed generation the current one.
    pub(crate) fn agreed(&self, generation: u64) {
        self.0.store(generation, Ordering::Release);
    }

    /// Succeeds if `generation` is current; else the error is the current generation.
    pub(crate) fn admit(&self, generation: u64) -> Result<(), u64> {
        let current = self.0.load(Ordering::Acquire);
        if current == generation { Ok(()) } else { Err(current) }
    }
}
