//! The registry in which ranks of one process find each other's memory.

use std::{
    collections::HashMap,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Shareable;
use crate::lock::lock;

/// The registered memory, by its token.
static MEMORY: LazyLock<Mutex<HashMap<u64, Shareable>>> = LazyLock::new(Mutex::default);

/// Registers `memory` until the returned [`LocalToken`] is dropped.
pub(super) fn register(memory: Shareable) -> LocalToken {
    static TOKENS: AtomicU64 = AtomicU64::new(0);
    let token = TOKENS.fetch_add(1, Ordering::Relaxed);
    lock(&MEMORY).insert(token, memory);
    LocalToken { token }
}

/// Returns the memory with this token, or `None` if it is not registered.
pub(super) fn find(token: u64) -> Option<Shareable> {
    lock(&MEMORY).get(&token).cloned()
}

/// A registration of memory. Dropping the value removes the memory from the registry.
pub(super) struct LocalToken {
    pub(super) token: u64,
}

impl Drop for LocalToken {
    fn drop(&mut self) {
        let removed = lock(&MEMORY).remove(&self.token);
        // Drop the memory only now that the registry is unlocked, because its drop may use the registry.
        drop(removed);
    }
}
