//! The location of a rank, and the data by which the other ranks reach it.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use bootstrap::link;
use bootstrap::wire::wire_struct;
use cuda_driver::{Context, uuid_text};

/// A device's UUID, in two halves. A device has the same UUID in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid {
    /// The first 8 bytes, as a little-endian number.
    pub low: u64,
    /// The last 8 bytes, as a little-endian number.
    pub high: u64,
}
wire_struct!(Uuid { low, high });

impl From<[u8; 16]> for Uuid {
    fn from(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { low: both as u64, high: (both >> 64) as u64 }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = u128::from(self.low) | u128::from(self.high) << 64;
        out.write_str(&uuid_text(&both.to_le_bytes()))
    }
}

/// A random number that identifies this process. A process id is not unique, because a process in another container may
/// have the same id.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// The location of a rank, and the data by which the other ranks reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The rank's host ([`bootstrap::link::host`]).
    pub host: u64,
    /// A random number of the rank's process. Ranks of one process have the same number.
    pub process: u64,
    /// The UUID of the rank's device.
    pub device: Uuid,
    /// The UUIDs of the devices that the rank's process sees but the rank's device cannot access.
    pub unreachable: Vec<Uuid>,
    /// The endpoint of the listener from which processes of the same host fetch file descriptors
    /// ([`bootstrap::link`]). Empty if the rank has no listener.
    pub endpoint: Vec<u8>,
}
wire_struct!(Site { host, process, device, unreachable, endpoint });

impl Site {
    /// The site of a rank of this process whose device is that of `context`, without an endpoint.
    pub fn of(context: &Context) -> cuda_driver::Result<Self> {
        let device = context.device();
        let mut unreachable = Vec::new();
        for other in context.driver().devices()? {
            if other != *device && !device.can_access_peer(&other)? {
                unreachable.push(other.uuid()?.into());
            }
        }
        Ok(Self { device: device.uuid()?.into(), unreachable, ..Self::of_process() })
    }

    /// The site of a rank of this process, without a device and without an endpoint.
    pub fn of_process() -> Self {
        let (device, unreachable) = (Uuid { low: 0, high: 0 }, Vec::new());
        Self { host: link::host(), process: *PROCESS, device, unreachable, endpoint: Vec::new() }
    }

    /// The site of a simulated rank, which has its own process and device. All simulated ranks are on one host.
    #[doc(hidden)]
    pub fn simulated(rank: u32) -> Self {
        let device = Uuid { low: rank.into(), high: 0 };
        Self { host: 1, process: rank.into(), device, unreachable: Vec::new(), endpoint: Vec::new() }
    }

    /// Returns whether both ranks are in one process.
    pub(crate) fn shares_process(&self, other: &Self) -> bool {
        (self.host, self.process) == (other.host, other.process)
    }

    /// Returns false if the device of the rank at this site is known to be unable to access the device of `other`.
    /// Returns true if nothing is known, because the process at this site does not see that device.
    pub fn can_access(&self, other: &Self) -> bool {
        !self.unreachable.contains(&other.device)
    }
}
