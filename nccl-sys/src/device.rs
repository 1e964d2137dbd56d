//! Structures of NCCL's device interface whose layout differs by release, as opaque storage or an opaque
//! handle.

use std::fmt;
use std::mem::MaybeUninit;

use crate::STRUCTURES;

/// Bytes of [`ncclDevComm`]: four times what any release up to 2.32 writes.
const ROOM: usize = 1024;

/// Room for the device communicator of any release, which `ncclDevCommCreate` fills and kernels take.
///
/// A kernel must be compiled with the headers of the library's own release, and takes as many of these bytes as
/// they say; [`Structure::size_in`](crate::Structure::size_in) tells how many.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct ncclDevComm {
    bytes: [MaybeUninit<u8>; ROOM],
}

#[allow(non_camel_case_types, reason = "C's name")]
/// [`ncclDevComm`], by the name of its alias in C.
pub type ncclDevComm_t = ncclDevComm;

/// The opaque target of a window handle: the library's own data, on the device too.
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
    /// The address of the bytes, for a kernel's argument.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr().cast()
    }
}

impl fmt::Debug for ncclDevComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ncclDevComm").finish_non_exhaustive()
    }
}

// The storage is twice as large as the largest opaque structure of any known release, to leave room for the
// next.
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
