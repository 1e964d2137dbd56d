//! One rank of the benchmark.

use std::sync::Barrier;

use cuda_driver::Context;
use process_group::ProcessGroup;

use crate::bench::programs::support::Result;

/// One rank of the job.
pub(super) struct Rank<'a> {
    pub(super) rank: usize,
    pub(super) context: &'a Context,
    pub(super) world: ProcessGroup,
    /// Two groups: of all ranks if there are two, otherwise orthogonal.
    pub(super) groups: [ProcessGroup; 2],
    pub(super) barrier: &'a Barrier,
    pub(super) in_turn: bool,
    /// True on an embedded device. Its times are meaningless, so all sizes are small.
    pub(super) embedded: bool,
}

impl Rank<'_> {
    /// Prints `what` on rank 0 only.
    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.rank == 0 {
            println!("{}", what());
        }
    }

    /// Waits until all ranks may begin a round.
    pub(super) fn turn(&self) -> Result<()> {
        if self.in_turn && self.rank == 0 && std::io::stdin().read_line(&mut String::new())? == 0 {
            return Err("the input ended before the last round".into());
        }
        self.barrier.wait();
        Ok(())
    }
}
