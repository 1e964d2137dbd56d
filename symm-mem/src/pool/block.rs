//! Blocks of a symmetric pool.

use std::sync::Arc;

use caching_alloc::core::symmetric::{Placed, Placement};
use cuda_driver::DevicePtr;

use super::memory::Memory;

/// A block of a symmetric pool: at the same place on every rank of the domain. Clones are the same block; it is freed
/// when the last is dropped.
///
/// Freeing is part of the sequence that ranks promise to share: the last clones are dropped at the same point of
/// the program on every rank. The memory may be placed again by the next allocation, so its uses on every rank are
/// ordered before what uses it next.
#[derive(Debug, Clone)]
pub struct SymmetricBlock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: Arc<Memory>,
    placed: Placed,
    requested: u64,
}

impl SymmetricBlock {
    pub(super) fn new(memory: Arc<Memory>, placed: Placed, requested: u64) -> Self {
        Self { inner: Arc::new(Inner { memory, placed, requested }) }
    }

    /// Where it is on this rank.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.inner.placed.address)
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> u64 {
        self.inner.requested
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// Where it is on every rank.
    pub fn placement(&self) -> Placement {
        self.inner.placed.placement
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.memory.drop_block(self.placed.placement);
    }
}
