//! The record that each rank publishes when it joins, and the decisions that follow from all records.
//!
//! Every member has the records of all members. Decisions made from them alone are therefore equal on every
//! member: whether the group can be formed, and whether it can have windows.
//!
//! - [`record`]: the record of a rank that joins, and its form in the store.
//! - [`disagreement`], [`witnesses`]: types of the settings and of the reasons why a group cannot be formed.
//! - [`mod@agree`]: checks that members can form a group, and derives the facts that decide on its windows.

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

/// A device's identity, the same in every process.
type Uuid = [u8; 16];

/// One rank of a group, as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its rank in the job.
    pub rank: usize,
    /// Its world size.
    pub world_size: usize,
    /// Its host. Equal for two ranks that share a kernel and a network namespace, which shared memory
    /// requires.
    pub host: u64,
    /// Its process on that host.
    pub process: u32,
    /// Its device.
    pub device: [u8; 16],
    /// NCCL's release there.
    pub nccl: Version,
    /// The driver's version there.
    pub driver: Version,
    /// True if it compares calls before it launches them.
    pub checked: bool,
    /// The mechanism by which it notices the end of other members on its host.
    pub witnesses: Witnesses,
    /// True if `NCCL_WIN_ENABLE` leaves windows enabled.
    pub window_enable: bool,
    /// True if `NCCL_CUMEM_ENABLE` leaves NCCL's virtual memory enabled.
    pub cumem_enable: bool,
    /// Its position on the registration of its allocators' memory.
    pub registration: RegistrationSupport,
    /// The other devices that it sees, and whether its own device can access their memory.
    pub sees: Vec<([u8; 16], bool)>,
}

impl Member {
    /// Describes this rank with its device and its libraries.
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

    /// Returns true if it is another process of the same host, and both use the kernel to notice each other's
    /// end.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let by_kernel = |member: &Self| member.witnesses == Witnesses::Kernel;
        self.host == other.host && self.process != other.process && by_kernel(self) && by_kernel(other)
    }
}

#[cfg(test)]
impl Member {
    /// A member on the given host.
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
