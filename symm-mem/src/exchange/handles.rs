//! Peers' memory that is open here: each allocation once, until the last plan that needs it lets go.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use cuda_driver::{DevicePtr, memory::ImportedMemory, vmm::Mapping};

use super::{Memory, protocol::AllocationId};

/// An allocation of a rank of the job. Its number is never used again, so what is open under it is never another.
pub(crate) type Key = (u32, AllocationId);

/// Allocations that are open, as long as this lives.
pub(crate) type Open<T = Imported> = HashMap<Key, Arc<T>>;

/// A peer's allocation, open here. Closed when dropped.
#[derive(Debug)]
pub(crate) enum Imported {
    Mapped(Mapping),
    Legacy(ImportedMemory),
    /// Plain memory of another rank of this process.
    Here {
        base: DevicePtr,
        _memory: Memory,
    },
}

impl Imported {
    /// Where it begins on this rank.
    pub(crate) fn base(&self) -> DevicePtr {
        match self {
            Self::Mapped(mapping) => mapping.ptr(),
            Self::Legacy(imported) => imported.ptr(),
            Self::Here { base, .. } => *base,
        }
    }
}

/// What is open, counted by who holds it.
#[derive(Debug)]
pub(crate) struct Handles<T = Imported> {
    open: Mutex<HashMap<Key, Weak<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { open: Mutex::default() }
    }
}

impl<T> Handles<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is open. While the answer lives, nothing of it is closed.
    pub(crate) fn held(&self) -> Open<T> {
        let mut open = self.lock();
        open.retain(|_, imported| imported.strong_count() > 0);
        open.iter().filter_map(|(key, imported)| Some((*key, imported.upgrade()?))).collect()
    }

    /// Notes what was opened, which was not open before.
    pub(crate) fn note(&self, key: Key, imported: &Arc<T>) {
        self.lock().insert(key, Arc::downgrade(imported));
    }

    /// How many allocations are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().filter(|imported| imported.strong_count() > 0).count()
    }
}
