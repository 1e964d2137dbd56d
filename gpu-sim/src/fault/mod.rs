//! Faults of a device ([`Fault`]), and injected faults ([`Faults`]).

mod inject;

pub use inject::{Action, Faults, Injection, UnknownFunction};

use crate::memory::Access;
use crate::sched::WaitError;

/// Why an executor could not do its work. A fault poisons the context in which it happened: every later call returns
/// its code, as on hardware.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No memory is mapped there.
    #[error("device {device} {access} {len} bytes at {address:#x}: nothing is mapped at {at:#x}{history}")]
    Unmapped {
        /// The device that accessed.
        device: usize,
        /// The access that was attempted.
        access: Access,
        /// First byte of the access.
        address: u64,
        /// Length of the access in bytes.
        len: u64,
        /// First byte that is not there.
        at: u64,
        /// A note about earlier or neighbouring memory, as the end of a sentence; may be empty.
        history: String,
    },
    /// The device has no such right on the mapping.
    #[error(
        "device {device} {access} {len} bytes at {address:#x}: the mapping at {mapping:#x} grants it {granted}"
    )]
    AccessDenied {
        /// The device that accessed.
        device: usize,
        /// The access that was attempted.
        access: Access,
        /// First byte of the access.
        address: u64,
        /// Length of the access in bytes.
        len: u64,
        /// Base of the mapping.
        mapping: u64,
        /// The rights it has there.
        granted: Access,
    },
    /// A kernel's or operation's argument breaks an alignment rule.
    #[error("address {address:#x} is not aligned to {alignment} bytes")]
    Misaligned {
        /// The address.
        address: u64,
        /// The required alignment in bytes.
        alignment: u64,
    },
    /// A kernel began whose module was unloaded after the launch, or the capture. The behaviour of hardware is
    /// neither documented nor measured.
    #[error("kernel {kernel} runs although its module was unloaded")]
    Unloaded {
        /// The kernel.
        kernel: String,
    },
    /// A wait inside the work ended without its condition.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The work itself gave up (a kernel's trap or assertion).
    #[error("{0}")]
    Trap(String),
    /// The work panicked.
    #[error("the executor panicked: {0}")]
    Panic(String),
    /// The operating system refused the embedded device something.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: rustix::io::Errno,
    },
}
