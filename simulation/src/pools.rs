//! The parts of a [pool](SymmetricPool) that the simulation calls directly.

use std::sync::Arc;
use symm_mem::{
    SymmetricPool,
    internals::{self, Memberships, PoolMemory},
};

/// The segments of a pool, with their blocks and pins.
pub(crate) fn memory_of(pool: &SymmetricPool) -> &Arc<PoolMemory> {
    // SAFETY: the simulation only reads the segments, and pins ranges of them.
    unsafe { internals::memory(pool) }
}

/// The state of a pool in its groups.
pub(crate) fn state_of(pool: &SymmetricPool) -> &Memberships {
    // SAFETY: the results come from the production code of the agreements, and the simulated ranks act on them by the
    // calls of NCCL that production makes.
    unsafe { internals::memberships(pool) }
}
