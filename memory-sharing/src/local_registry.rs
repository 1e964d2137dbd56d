//! Registries in which ranks of one process find each other's memory.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::Shareable;

/// The registry of this process.
static PROCESS: LazyLock<Arc<LocalRegistry>> = LazyLock::new(Arc::default);

/// The memory that ranks share, by its [token](crate::Export::token). All ranks of a process use one registry.
/// Exception: each run of the crate `simulation` has a registry of its own, so that its tokens do not depend on other
/// runs.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct LocalRegistry {
    next: AtomicU64,
    memory: Mutex<HashMap<u64, Shareable>>,
}

impl LocalRegistry {
    pub(crate) fn of_process() -> Arc<Self> {
        PROCESS.clone()
    }

    /// Registers `memory` until the returned [`LocalToken`] is dropped.
    pub(crate) fn register(self: &Arc<Self>, memory: Shareable) -> LocalToken {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(token, memory);
        LocalToken { registry: self.clone(), token }
    }

    /// Returns the memory with this token, or `None` if it is not registered.
    pub(crate) fn find(&self, token: u64) -> Option<Shareable> {
        self.lock().get(&token).cloned()
    }

    /// Locks the table, even if a thread has panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Shareable>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration of memory. Dropping the value removes the memory from the registry.
pub(crate) struct LocalToken {
    registry: Arc<LocalRegistry>,
    pub(crate) token: u64,
}

impl Drop for LocalToken {
    fn drop(&mut self) {
        let removed = self.registry.lock().remove(&self.token);
        // Drop the memory only now that the registry is unlocked, because its drop may use the registry.
        drop(removed);
    }
}
