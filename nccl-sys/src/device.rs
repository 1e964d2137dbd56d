//! Structures of NCCL's device interface whose layout differs by release. This crate declares them without fields, as
//! opaque storage or as the target of a handle.

use std::fmt;
use std::mem::MaybeUninit;

use crate::STRUCTURES;

/// The size of [`ncclDevComm`] in bytes: more than four times the 248 bytes that NCCL's structure has in release
/// 2.32.
const ROOM: usize = 1024;

/// Storage for the device communicator of any release. `ncclDevCommCreate` fills the storage, and kernels take it as
/// an argument.
///
/// NCCL fills the storage in the layout of one release. This is the release that the field `version` of
/// [`ncclDevCommRequirements`](crate::ncclDevCommRequirements) declares, or the library's own release if
/// `useRuntimeVersion` is true. A kernel must be compiled with the headers of that release. The kernel's parameter
/// takes only the first bytes of this storage, as many as the structure has in that release:
/// [`Structure::size_in`](crate::Structure::size_in).
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct ncclDevComm {
    bytes: [MaybeUninit<u8>; ROOM],
}

#[allow(non_camel_case_types, reason = "C's name")]
/// [`ncclDevComm`], by the name of its alias in C.
pub type ncclDevComm_t = ncclDevComm;

/// The opaque structure that a window handle points to. Only NCCL's own code knows its layout, in the
/// library and in kernels.
#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _unused: [u8; 0],
}

impl Default for ncclDevComm {
    /// All bytes zero.
    fn default() -> Self {
        Self { bytes: [MaybeUninit::zeroed(); ROOM] }
    }
}

impl ncclDevComm {
    /// Returns the address of the storage, to be passed as the address of a kernel's argument.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr().cast()
    }
}

impl fmt::Debug for ncclDevComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ncclDevComm").finish_non_exhaustive()
    }
}

// Asserts that no opaque structure of a known release takes more than half of the storage. The other half is a
// reserve for later releases.
const _: () = {
    let mut at = 0;
    while at < STRUCTURES.len() {
        let (fields, mut sizes) = (STRUCTURES[at].fields, STRUCTURES[at].sizes);
        while let ([(_, size), rest @ ..], true) = (sizes, fields.is_empty()) {
            assert!(2 * *size <= ROOM);
            sizes = rest;
        }
        at += 1;
    }
};
