//! One rank of the benchmark.

use std::sync::{Arc, Barrier};

use cuda_driver::Context;
use nccl_sys::ncclResult_t;
use process_group::ProcessGroup;
use process_group::comm::{Nccl, UniqueId};
use process_group::store::{HashStore, Store};

use crate::bench::programs::support::{Machine, Result, far};

/// One rank of the job.
pub(super) struct Rank<'a> {
    pub(super) rank: usize,
    pub(super) machine: &'a Machine,
    pub(super) context: &'a Context,
    pub(super) store: Arc<HashStore>,
    pub(super) barrier: &'a Barrier,
}

impl Rank<'_> {
    pub(super) fn size(&self) -> usize {
        self.machine.ranks
    }

    pub(super) fn nccl(&self) -> &Nccl {
        &self.machine.nccl
    }

    /// Calls `what` on rank 0 only, which prints for all ranks.
    pub(super) fn say(&self, what: impl FnOnce()) {
        if self.rank == 0 {
            what();
        }
    }

    /// A new id, the same on all ranks.
    pub(super) fn id(&self, name: &str) -> Result<UniqueId> {
        if self.rank == 0 {
            self.store.set(name, self.nccl().unique_id()?.as_bytes())?;
        }
        Ok(UniqueId::try_from(&self.store.get(name, far())?[..])?)
    }

    pub(super) fn world(&self, name: &str) -> Result<ProcessGroup> {
        let builder = ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank);
        Ok(builder.world_size(self.size()).context(self.context).nccl(self.nccl()).build()?)
    }

    /// Waits until all ranks may begin a round.
    pub(super) fn turn(&self, in_turn: bool) -> Result<()> {
        if in_turn && self.rank == 0 && std::io::stdin().read_line(&mut String::new())? == 0 {
            return Err("the input ended before the last round".into());
        }
        self.barrier.wait();
        Ok(())
    }
}

pub(super) fn check(code: ncclResult_t, call: &str) -> Result<()> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(format!("{call}: {code:?}").into()) }
}
