//! The device memory that a communicator holds.

use nccl_sys::{Feature, ncclCommMemStat_t};

use super::{Communicator, Result, call::call, call_guard::Kind, open_group};
use crate::store::Deadline;

/// Device memory that NCCL holds for one communicator on this rank, in bytes. Memory that the program allocated is
/// not included, registered or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// All memory that NCCL holds.
    #[doc(alias = "ncclStatGpuMemTotal")]
    pub total: u64,
    /// Memory that stays on the device when the communicator is suspended, or moves to the host.
    #[doc(alias = "ncclStatGpuMemPersist")]
    pub persistent: u64,
    /// Memory that suspending the communicator frees.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    pub suspendable: u64,
    /// True while the communicator is suspended.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    pub suspended: bool,
}

impl Communicator {
    /// Returns the memory that NCCL holds for this communicator now. From 2.22 on NCCL allocates most of it at the
    /// first use of each algorithm and peer, so it is small right after creation. Local; waits for threads that are
    /// inside NCCL with the communicator.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.29.7;
    /// [`CommError::Busy`](super::CommError::Busy), [`CommError::Nccl`](super::CommError::Nccl).
    #[doc(alias = "ncclCommMemStats")]
    pub fn memory_statistics(&self, deadline: Deadline) -> Result<MemoryStatistics> {
        const CALL: &str = "ncclCommMemStats";
        open_group::refuse_inside(CALL)?;
        self.nccl().api().require(Feature::MEMORY_STATISTICS)?;
        let shared = self.shared();
        let _entry = shared.guard.enter(CALL, Kind::Local, Some(deadline))?;
        let ask = |what: ncclCommMemStat_t| -> Result<u64> {
            let mut value = 0;
            // SAFETY: the communicator is alive inside the guard; writes one number, to a local.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommMemStats(shared.raw(), what, &mut value)) }?;
            Ok(value)
        };
        shared.context.with_current(|| {
            Ok(MemoryStatistics {
                total: ask(ncclCommMemStat_t::ncclStatGpuMemTotal)?,
                persistent: ask(ncclCommMemStat_t::ncclStatGpuMemPersist)?,
                suspendable: ask(ncclCommMemStat_t::ncclStatGpuMemSuspend)?,
                suspended: ask(ncclCommMemStat_t::ncclStatGpuMemSuspended)? != 0,
            })
        })?
    }
}
