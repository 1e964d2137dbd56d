//! The device memory that NCCL holds for a communicator.

use nccl_sys::{Feature, ncclCommMemStat_t};

use super::{Communicator, Result, call::call, call_guard::Kind, open_group};
use crate::store::Deadline;

/// Device memory that NCCL holds for one communicator on this rank, in bytes. Memory that the program allocated is not
/// included, even if it is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// All memory that NCCL holds.
    #[doc(alias = "ncclStatGpuMemTotal")]
    pub total: u64,
    /// Memory that is not freed while the communicator is suspended: it stays on the device or moves to the host.
    #[doc(alias = "ncclStatGpuMemPersist")]
    pub persistent: u64,
    /// Memory that is freed while the communicator is suspended.
    #[doc(alias = "ncclStatGpuMemSuspend")]
    pub suspendable: u64,
    /// True while the communicator is suspended.
    #[doc(alias = "ncclStatGpuMemSuspended")]
    pub suspended: bool,
}

impl Communicator {
    /// Returns how much memory NCCL holds for this communicator now. From 2.22 on, NCCL allocates most of this memory
    /// when an algorithm or peer is first used, so the amount is small right after creation. Local. Waits for threads
    /// that are inside NCCL with the communicator.
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
            // SAFETY: `_entry` keeps the communicator alive. NCCL writes one number to the local `value`.
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
