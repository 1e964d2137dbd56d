//! The registry of the peers' allocations that an [`Exchange`](super::Exchange) has open (mapped) on this rank. An
//! agreement on a [plan](super::Plan) or on [regions](super::Regions) opens only allocations that were not in the
//! registry when the agreement began. An allocation is closed when the last plan or set of regions that uses it is
//! closed.
//!
//! Agreements of the same members run one after the other, but agreements of different sets of members may run at the
//! same time. Two of these may both open an allocation. The registry then keeps only the mapping that was registered
//! last.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use super::protocol::AllocationId;
use crate::{lock::lock, sharing::Imported};

/// Identifies an allocation: its owner, as a rank of the job, and the id of the allocation. Ids are never reused.
pub(crate) type Key = (u32, AllocationId);

/// Open allocations; they stay open while this map lives.
pub type Open<T = Imported> = HashMap<Key, Arc<T>>;

/// Registry of open allocations. Holds only weak references, so it keeps no allocation open.
#[derive(Debug)]
pub struct Handles<T = Imported> {
    open: Mutex<HashMap<Key, Weak<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { open: Mutex::default() }
    }
}

impl<T> Handles<T> {
    /// Returns the registered allocations that are open. None of them is closed while the returned value lives.
    pub fn held(&self) -> Open<T> {
        let mut open = lock(&self.open);
        open.retain(|_, imported| imported.strong_count() > 0);
        open.iter().filter_map(|(key, imported)| Some((*key, imported.upgrade()?))).collect()
    }

    /// Registers a newly opened allocation.
    pub fn note(&self, key: Key, imported: &Arc<T>) {
        lock(&self.open).insert(key, Arc::downgrade(imported));
    }

    /// Number of registered allocations that are open.
    pub fn count(&self) -> usize {
        lock(&self.open).values().filter(|imported| imported.strong_count() > 0).count()
    }
}
