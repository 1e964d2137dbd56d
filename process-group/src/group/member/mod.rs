//! What each rank says of itself when it joins, and what follows from it for all.
//!
//! The records of all members are the same on every member, so everything that is decided from them is decided
//! alike: whether the group can be, and whether it can have windows.
//!
//! - [`record`]: a member as text, as it lies in the store.
//! - [`mod@agree`]: whether members can be a group, and what decides on its windows.

mod agree;
mod record;

use cuda_driver::{Context, Device, sys};
use nccl_sys::Version;

pub use agree::Disagreement;
pub(super) use agree::{agree, window_facts};

use super::registration::Stance;
use crate::{
    comm::{Nccl, WindowFacts},
    local::host,
};

/// A device's identity, the same in every process.
type Uuid = [u8; 16];

/// One rank of a group, as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its rank in the job.
    pub rank: usize,
    /// The job's size, as it was told.
    pub world_size: usize,
    /// Its host: equal for two ranks that share a kernel and a network namespace, as sharing memory takes.
    pub host: u64,
    /// Its process on that host.
    pub process: u32,
    /// Its device.
    pub device: [u8; 16],
    /// NCCL's release there.
    pub nccl: Version,
    /// The driver's version there.
    pub driver: sys::Version,
    /// Whether it compares calls before it launches them.
    pub checked: bool,
    /// What tells it of the other members of its host.
    pub witnesses: Witnesses,
    /// Whether `NCCL_WIN_ENABLE` leaves windows on.
    pub window_enable: bool,
    /// Whether `NCCL_CUMEM_ENABLE` leaves NCCL's virtual memory on.
    pub cumem_enable: bool,
    /// Whether it wants its allocators' memory registered, and can.
    pub registration: Stance,
    /// The other devices that it sees, and whether its own can reach their memory.
    pub sees: Vec<([u8; 16], bool)>,
}

/// What tells the processes of one host of each other's end. Those of different hosts have the store alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Witnesses {
    /// Locks in shared memory, sockets and process descriptors: of a death within milliseconds.
    #[default]
    Kernel,
    /// Heartbeats in the store: within twice the heartbeat. For processes that share a kernel and no folder for sockets,
    /// as in containers.
    Store,
}

impl Member {
    /// This rank, with its device and its libraries as they are.
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
            process: std::process::id(),
            device: device.uuid()?,
            nccl: nccl.release(),
            driver: context.driver().version(),
            checked: false,
            witnesses: Witnesses::default(),
            window_enable: environment.window_enable.unwrap_or(true),
            cumem_enable: environment.cumem_enable.unwrap_or(true),
            registration: Stance::NotAsked,
            sees: others
                .iter()
                .filter(|other| other.ordinal() != device.ordinal())
                .map(sees)
                .collect::<cuda_driver::Result<_>>()?,
        })
    }

    /// As its builder was told.
    pub(super) fn told(self, checked: bool, witnesses: Witnesses, registration: Stance) -> Self {
        Self { checked, witnesses, registration, ..self }
    }

    /// Whether it is another process of the same host, and the kernel tells each of the other.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        let by_kernel = |member: &Self| member.witnesses == Witnesses::Kernel;
        self.host == other.host && self.process != other.process && by_kernel(self) && by_kernel(other)
    }
}

#[cfg(test)]
impl Member {
    /// A member of a host.
    pub(crate) fn example(rank: usize, host: u64) -> Self {
        let (nccl, driver) = (Version::new(2, 28, 9), sys::Version::new(12, 4));
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
            registration: Stance::NotAsked,
            sees: Vec::new(),
        }
    }
}
