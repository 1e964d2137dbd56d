//! Parts of this crate that the crate `simulation` calls directly. They are not part of the public interface, and may
//! change without notice.

use std::sync::Arc;

use crate::SymmetricPool;
pub use crate::{
    domain::instance_key,
    exchange::{
        core::closed_key,
        generation::Generations,
        handles::{Handles, Open},
        lease::{Lease, LeaseState},
        slots::Slots,
    },
    membership::{
        GroupState, Memberships,
        commit::{
            Done,
            offer::{LocalState, operation},
        },
        readiness,
    },
    pool::{GraphHold, PoolMemory},
    symmetric_pool::several::in_order,
};

/// The memory of a pool.
///
/// # Safety
/// The caller frees no memory that blocks, windows, peers or graphs can reach.
pub unsafe fn memory(pool: &SymmetricPool) -> &Arc<PoolMemory> {
    pool.memory()
}

/// The state of a pool in its groups.
///
/// # Safety
/// The results that the caller passes on are those on which the members have agreed, and it has registered or
/// deregistered the windows that they name.
pub unsafe fn memberships(pool: &SymmetricPool) -> &Memberships {
    pool.memberships()
}
