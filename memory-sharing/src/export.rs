//! The handles by which other ranks can open (map) an allocation.

use bootstrap::error_text;
use bootstrap::wire::{wire_enum, wire_struct};
use cuda_driver::vmm::{HandleTypes, PhysicalMemory};

use crate::Site;

/// The handles by which ranks of other processes can open an allocation. Each variant is one kind of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// Memory of `cuMemAlloc`.
    Legacy {
        /// The legacy IPC handle, of 64 bytes.
        handle: Vec<u8>,
    },
    /// Virtual memory, of `cuMemCreate`.
    Virtual {
        /// True if the memory can be exported as a file descriptor.
        descriptor: bool,
        /// The fabric handle, if there is one.
        fabric: Option<Vec<u8>>,
    },
    /// Memory of the host. It can always be exported as a file descriptor.
    Host,
    /// Memory of another kind of device ([`ForeignMemory`](crate::ForeignMemory)).
    Foreign {
        /// The kind of device.
        kind: String,
        /// True if the memory can be exported as a file descriptor.
        descriptor: bool,
        /// The handle that opens the memory without a file descriptor, if there is one.
        handle: Option<Vec<u8>>,
    },
}
wire_enum!(Handle {
    0 => Legacy { handle },
    1 => Virtual { descriptor, fabric },
    2 => Foreign { kind, descriptor, handle },
    3 => Host {},
});

impl Handle {
    /// No handle: only ranks of the same process can open the memory.
    pub const NONE: Self = Self::Virtual { descriptor: false, fabric: None };
    /// The handle of virtual memory that can only be exported as a file descriptor.
    pub const DESCRIPTOR: Self = Self::Virtual { descriptor: true, fabric: None };

    /// Returns the handles of virtual memory. Exports the fabric handle, if the memory has one. Exports no file
    /// descriptor: [`Shareable::descriptor`](crate::Shareable::descriptor) does that.
    pub(crate) fn of(physical: &PhysicalMemory) -> Result<Self, String> {
        let types = physical.handle_types();
        let fabric = match types.contains(HandleTypes::FABRIC) {
            true => Some(physical.export_fabric().map_err(|error| error_text(&error))?.0.to_vec()),
            false => None,
        };
        Ok(Self::Virtual { descriptor: types.contains(HandleTypes::POSIX_FD), fabric })
    }

    /// Returns whether peers can get a file descriptor of the memory.
    pub fn has_descriptor(&self) -> bool {
        match self {
            Self::Legacy { .. } => false,
            Self::Virtual { descriptor, .. } | Self::Foreign { descriptor, .. } => *descriptor,
            Self::Host => true,
        }
    }

    /// Returns whether the memory has a handle for ranks of any host: a fabric handle, or the handle of foreign memory.
    pub fn opens_on_any_host(&self) -> bool {
        matches!(self, Self::Virtual { fabric: Some(_), .. } | Self::Foreign { handle: Some(_), .. })
    }

    /// The kind of device, if this is foreign memory. `None` for all other memory.
    pub fn foreign_kind(&self) -> Option<&str> {
        match self {
            Self::Foreign { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// Returns whether a rank at the location `to` can open memory of a rank at the location `from`, if the memory has
    /// these handles. Ranks of one process need no handle. Does not consider whether the device of `to` can access the
    /// memory.
    pub fn can_be_opened(&self, from: &Site, to: &Site) -> bool {
        let same_host = from.host == to.host;
        match self {
            _ if from.shares_process(to) => true,
            Self::Legacy { handle } => same_host && handle.len() == 64,
            _ => self.opens_on_any_host() || (same_host && self.has_descriptor()),
        }
    }

    /// Returns the names of the handles, for error messages.
    pub fn name(&self) -> String {
        let name = match self {
            Self::Legacy { .. } => "legacy handle",
            Self::Virtual { descriptor: true, fabric: Some(_) } => "file descriptor or fabric handle",
            Self::Virtual { descriptor: true, fabric: None } | Self::Host => "file descriptor",
            Self::Virtual { descriptor: false, fabric: Some(_) } => "fabric handle",
            Self::Virtual { descriptor: false, fabric: None } => "not at all",
            Self::Foreign { kind, descriptor, handle } => {
                let name = match (descriptor, handle) {
                    (true, Some(_)) => "file descriptor or handle",
                    (true, None) => "file descriptor",
                    (false, Some(_)) => "handle",
                    (false, None) => "no handle",
                };
                return format!("{name} of {kind:?} memory");
            }
        };
        name.to_owned()
    }
}

/// The description of an allocation that a rank shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The length of the whole allocation in bytes. Peers open all of it.
    pub bytes: u64,
    /// The handles by which ranks of other processes can open the allocation.
    pub handle: Handle,
    /// The token with which other ranks of the same process find the allocation in the registry of the process.
    pub token: u64,
}
wire_struct!(Export { bytes, handle, token });

#[cfg(test)]
mod tests {
    use bootstrap::wire::{Reader, Wire as _};

    use super::*;

    /// Ranks with the same protocol version must be able to decode each other's handles. So a change of these bytes
    /// needs a new protocol version.
    #[test]
    fn handles_keep_their_form() {
        let foreign = Handle::Foreign { kind: "host".into(), descriptor: true, handle: Some(vec![9]) };
        let forms: [(Handle, &[u8]); 4] = [
            (Handle::Legacy { handle: vec![7, 8] }, b"\0\x02\0\0\0\x07\x08"),
            (Handle::DESCRIPTOR, b"\x01\x01\0"),
            (Handle::Host, b"\x03"),
            (foreign, b"\x02\x04\0\0\0host\x01\x01\x01\0\0\0\x09"),
        ];
        for (handle, form) in forms {
            let mut bytes = Vec::new();
            handle.write(&mut bytes);
            assert_eq!(bytes, form, "{handle:?}");
            assert_eq!(Handle::read(&mut Reader::new(form)), Ok(handle));
        }
    }
}
