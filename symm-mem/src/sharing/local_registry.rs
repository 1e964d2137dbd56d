//! Registries in which ranks of one process find each other's memory.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Shareable;
use crate::lock::lock;

/// The registry of this process.
static PROCESS: LazyLock<Arc<LocalRegistry>> = LazyLock::new(Arc::default);

/// The memory that ranks share, by its [token](super::Export::token). All ranks of a process use one registry.
/// Exception: each run of the simulation has a registry of its own, so that its tokens do not depend on other runs.
#[derive(Debug, Default)]
pub(crate) struct LocalRegistry {
    next: AtomicU64,
    memory: Mutex<HashMap<u64, Shareable>>,
}

impl LocalRegistry {
    pub(super) fn of_process() -> Arc<Self> {
        PROCESS.clone()
    }

    /// Registers `memory` until the returned [`LocalToken`] is dropped.
    pub(super) fn register(self: &Arc<Self>, memory: Shareable) -> LocalToken {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.memory).insert(token, memory);
        LocalToken { registry: self.clone(), token }
    }

    /// Returns the memory with this token, or `None` if it is not registered.
    pub(super) fn find(&self, token: u64) -> Option<Shareable> {
        lock(&self.memory).get(&token).cloned()
    }
}

/// A registration of memory. Dropping the value removes the memory from the registry.
pub(super) struct LocalToken {
    registry: Arc<LocalRegistry>,
    pub(super) token: u64,
}

impl Drop for LocalToken {
    fn drop(&mut self) {
        let removed = lock(&self.registry.memory).remove(&self.token);
        // Drop the memory only now that the registry is unlocked, because its drop may use the registry.
        drop(removed);
    }
}
