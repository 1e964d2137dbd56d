//! The handles by which other ranks can open an allocation.

use bootstrap::wire::{wire_enum, wire_struct};
use cuda_driver::vmm::{HandleTypes, PhysicalMemory};
use process_group::error_text;

use super::Site;

/// The handles by which ranks of other processes can open an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// Memory of `cuMemAlloc`.
    Legacy {
        /// The legacy IPC handle, of 64 bytes.
        handle: Vec<u8>,
    },
    /// Virtual memory.
    Virtual {
        /// True if the memory can be exported as a file descriptor.
        descriptor: bool,
        /// The fabric handle, if there is one.
        fabric: Option<Vec<u8>>,
    },
}
wire_enum!(Handle { 0 => Legacy { handle }, 1 => Virtual { descriptor, fabric } });

impl Handle {
    /// A handle by which only ranks of the same process can open the memory.
    pub const NONE: Self = Self::Virtual { descriptor: false, fabric: None };
    /// The handle of virtual memory that can only be exported as a file descriptor.
    pub const DESCRIPTOR: Self = Self::Virtual { descriptor: true, fabric: None };

    /// Exports the fabric handle of virtual memory, if it has one, and tells whether a file descriptor can be exported.
    pub(super) fn of(physical: &PhysicalMemory) -> Result<Self, String> {
        let kinds = physical.handle_types();
        let fabric = match kinds.contains(HandleTypes::FABRIC) {
            true => Some(physical.export_fabric().map_err(|error| error_text(&error))?.0.to_vec()),
            false => None,
        };
        Ok(Self::Virtual { descriptor: kinds.contains(HandleTypes::POSIX_FD), fabric })
    }

    /// Returns whether peers can get a file descriptor of the memory.
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(self, Self::Virtual { descriptor: true, .. })
    }

    /// Returns whether the memory has a fabric handle.
    pub(crate) fn has_fabric(&self) -> bool {
        matches!(self, Self::Virtual { fabric: Some(_), .. })
    }

    /// Returns whether rank `to` has a way to open memory with these handles of rank `from`. Does not consider whether
    /// the device of `to` can access the memory.
    pub(crate) fn can_be_opened(&self, from: &Site, to: &Site) -> bool {
        let same_host = from.host == to.host;
        match self {
            _ if from.shares_process(to) => true,
            Self::Legacy { handle } => same_host && handle.len() == 64,
            Self::Virtual { descriptor, fabric } => fabric.is_some() || (same_host && *descriptor),
        }
    }

    /// The kinds of handles, for error messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Legacy { .. } => "legacy handle",
            Self::Virtual { descriptor: true, fabric: Some(_) } => "file descriptor or fabric handle",
            Self::Virtual { descriptor: true, fabric: None } => "file descriptor",
            Self::Virtual { descriptor: false, fabric: Some(_) } => "fabric handle",
            Self::Virtual { descriptor: false, fabric: None } => "not at all",
        }
    }
}

/// An allocation that a rank shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The length of the whole allocation in bytes. Peers open all of it.
    pub bytes: u64,
    /// The handles by which ranks of other processes can open it.
    pub handle: Handle,
    /// The token with which other ranks of the same process find it.
    pub token: u64,
}
wire_struct!(Export { bytes, handle, token });
