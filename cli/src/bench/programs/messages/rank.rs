//! One rank of the benchmark.

use std::sync::{Arc, Barrier};

use cuda_driver::Context;
use process_group::ProcessGroup;
use process_group::group::P2pPolicy;
use process_group::store::HashStore;
use symm_mem::direct::{self, Direct, DirectOptions};

use crate::bench::programs::support::{Machine, Result};

/// One rank of the job.
pub(super) struct Rank<'a> {
    pub(super) rank: usize,
    pub(super) machine: &'a Machine,
    pub(super) context: &'a Context,
    pub(super) store: Arc<HashStore>,
    pub(super) barrier: &'a Barrier,
}

impl Rank<'_> {
    /// Prints `what` on rank 0 only.
    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.rank == 0 {
            println!("{}", what());
        }
    }

    /// Makes a group, with the direct path that its policy needs.
    pub(super) fn group(
        &self,
        name: &str,
        policy: P2pPolicy,
        ring: DirectOptions,
    ) -> Result<(ProcessGroup, Option<Direct>)> {
        let builder =
            ProcessGroup::builder().name(name).store(self.store.clone()).rank(self.rank).p2p(policy);
        let builder = builder.world_size(self.machine.ranks).context(self.context).nccl(&self.machine.nccl);
        let group = builder.build()?;
        let direct = if policy == P2pPolicy::Direct { Some(direct::install(&group, ring)?) } else { None };
        Ok((group, direct))
    }

    /// Returns the free device memory in bytes, once all ranks have called this.
    pub(super) fn left(&self) -> Result<usize> {
        self.barrier.wait();
        self.context.synchronize()?;
        let (left, _) = self.context.memory_info()?;
        self.barrier.wait();
        Ok(left)
    }
}
