//! How much device memory a communicator holds.

use nccl_sys::{Feature, ncclCommMemStat_t};

use super::{Communicator, Result, call::call, gate::Kind, group};
use crate::store::Deadline;

/// Device memory that NCCL holds for one communicator on this rank, in bytes. What the program allocated is not in it,
/// whether registered or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// All of it.
    #[doc(alias = "ncclStatGpuMemTotal")]
    pub total: u64,
    /// What stays on the device when the communicator is suspended, or moves to the host.
    #[doc(alias = "ncclStatGpuMemPersist")]
    pub persistent: u64,
    /// What suspending the communicator frees.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    pub suspendable: u64,
    /// Whether it is suspended.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    pub suspended: bool,
}

impl Communicator {
    /// What NCCL holds for this communicator now. From 2.22 on most of it comes with the first use of each algorithm
    /// and peer, so right after the making it is little. Local; waits for who is inside NCCL with the communicator.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.29.7;
    /// [`CommError::Busy`](super::CommError::Busy), [`CommError::Nccl`](super::CommError::Nccl).
    #[doc(alias = "ncclCommMemStats")]
    pub fn memory_statistics(&self, deadline: Deadline) -> Result<MemoryStatistics> {
        const CALL: &str = "ncclCommMemStats";
        group::refuse_inside(CALL)?;
        self.nccl().api().require(Feature::MEMORY_STATISTICS)?;
        let shared = self.shared();
        let _entry = shared.gate.enter(CALL, Kind::Local, Some(deadline))?;
        let ask = |what: ncclCommMemStat_t| -> Result<u64> {
            let mut value = 0;
            // SAFETY: the communicator is alive inside the gate; writes one number, to a local.
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
