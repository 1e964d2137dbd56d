//! Which of the plans of one name counts.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The generations of the plans of one name: the last that all have agreed on counts, those before it are stale. Clones are
/// the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Generations(Arc<AtomicU64>);

impl Generations {
    /// What the next plan would be here; all take that of who has counted furthest.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Acquire) + 1
    }

    /// All have agreed on a plan.
    pub(crate) fn agreed(&self, generation: u64) {
        self.0.store(generation, Ordering::Release);
    }

    /// Whether the plan of `generation` is the last; if not, which is.
    pub(crate) fn admit(&self, generation: u64) -> Result<(), u64> {
        let current = self.0.load(Ordering::Acquire);
        if current == generation { Ok(()) } else { Err(current) }
    }
}
