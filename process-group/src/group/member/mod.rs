//! The record that each rank publishes when it joins, and the decisions that follow from all records.
//!
//! Every member has the records of all members. Decisions that depend only on these records are therefore
//! equal on every member: whether the group can be formed, and whether the group can have windows.
//!
//! - [`record`]: the record of a rank that joins, and its form in the store.
//! - [`disagreement`]: the reasons why a group cannot be formed.
//! - [`witnesses`]: the mechanism by which processes on one host notice each other's end.
//! - [`registration_support`]: whether a rank can register its allocators' memory with NCCL.
//! - [`mod@agree`]: checks that ranks can form a group, and derives the facts that decide whether the group
//!   can have windows.

mod agree;
mod disagreement;
mod record;
mod registration_support;
mod witnesses;

use bootstrap::runtime;
use cuda_driver::{Context, Device};
use nccl_sys::Version;

pub(super) use agree::{agree, window_facts};
pub use disagreement::Disagreement;
pub(super) use record::Joining;
pub use registration_support::RegistrationSupport;
pub use witnesses::Witnesses;

use crate::{
    comm::{Nccl, WindowFacts},
    link::host,
};

/// The UUID of a device, which is the same in every process.
type Uuid = [u8; 16];

/// A member of a group, as it described itself when it joined.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// The member's rank in the job.
    pub rank: usize,
    /// Number of ranks in the job, according to the member.
    pub world_size: usize,
    /// Identifies the member's host. Equal for two members that share a kernel and a network namespace, as
    /// shared memory requires.
    pub host: u64,
    /// Process id of the member on its host.
    pub process: u32,
    /// UUID of the member's device.
    pub device: [u8; 16],
    /// NCCL release that the member has loaded.
    pub nccl: Version,
    /// CUDA driver version on the member's host.
    pub driver: Version,
    /// True if [checked mode](crate::group::Builder::checked) is on: the members compare calls before they
    /// launch them.
    pub checked: bool,
    /// The mechanism by which the member notices the end of other members on its host.
    pub witnesses: Witnesses,
    /// True unless `NCCL_WIN_ENABLE` disables windows in the member's environment.
    pub window_enable: bool,
    /// True unless `NCCL_CUMEM_ENABLE` disables NCCL's use of the CUDA virtual memory API in the member's
    /// environment.
    pub cumem_enable: bool,
    /// Whether the member wants and is able to register its allocators' memory with NCCL.
    pub registration: RegistrationSupport,
    /// UUIDs of the other devices visible to the member. True for a device whose memory the member's own
    /// device can access.
    pub sees: Vec<([u8; 16], bool)>,
}

impl Member {
    /// Describes this process as the member with rank `rank`, from its device, libraries and environment.
    pub(super) fn here(
        rank: usize,
        world_size: usize,
        nccl: &Nccl,
        context: &Context,
    ) -> cuda_driver::Result<Self> {
        let device = context.device();
        let environment = WindowFacts::from_environment();
        let others = context.driver().devices()?;
        let sees = |other: &Device| Ok((other.uuid()?, device.can_access_peer(other)?));
        Ok(Self {
            rank,
            world_size,
            host: host(),
            process: runtime::process(),
            device: device.uuid()?,
            nccl: nccl.release(),
            driver: context.driver().version(),
            checked: false,
            witnesses: Witnesses::default(),
            window_enable: environment.window_enable.unwrap_or(true),
            cumem_enable: environment.cumem_enable.unwrap_or(true),
            registration: RegistrationSupport::NotAsked,
            sees: others
                .iter()
                .filter(|other| other.ordinal() != device.ordinal())
                .map(sees)
                .collect::<cuda_driver::Result<_>>()?,
        })
    }

    /// Returns true if both members are in different processes of the same host, and both notice the end of
    /// processes through the [kernel](Witnesses::Kernel).
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let by_kernel = |member: &Self| member.witnesses == Witnesses::Kernel;
        self.host == other.host && self.process != other.process && by_kernel(self) && by_kernel(other)
    }
}

#[cfg(test)]
impl Member {
    /// Returns a member on the given host.
    pub(crate) fn example(rank: usize, host: u64) -> Self {
        let (nccl, driver) = (Version::new(2, 28, 9), Version::new(12, 4, 0));
        let (process, device) = (100 + rank as u32, [rank as u8; 16]);
        Self {
            rank,
            world_size: 4,
            host,
            process,
            device,
            nccl,
            driver,
            checked: false,
            witnesses: Witnesses::Kernel,
            window_enable: true,
            cumem_enable: true,
            registration: RegistrationSupport::NotAsked,
            sees: Vec::new(),
        }
    }
}
