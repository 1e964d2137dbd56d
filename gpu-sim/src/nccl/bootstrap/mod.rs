//! The bootstrap of a communicator: the process that makes the unique id runs a root. The root waits for every rank,
//! then sends each rank the communicator's shared memory.
//!
//! The id names an abstract Unix socket, so ranks may be threads or processes, and nothing is left behind when one of
//! them is killed. If a rank contradicts the others (rank count, a rank twice, another release, another mode), the
//! bootstrap fails on all of them. If a rank never joins, the others wait, as with real NCCL.
//!
//! [`roster`] holds the rules, without I/O. [`root`] and [`join`] apply them over sockets, [`local`] inside the one
//! thread of a seeded world.

mod join;
pub(crate) mod local;
mod root;
mod roster;

use std::io;

pub(crate) use join::Joining;
pub(crate) use root::Root;
pub(crate) use roster::Hello;

/// Bytes of an `ncclUniqueId`.
pub(crate) const ID_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"gpusimid";

/// Identity of one bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UniqueId([u8; 16]);

impl UniqueId {
    /// Returns a unique random name.
    ///
    /// # Errors
    /// The operating system's, when it has no random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        let mut name = [0; 16];
        // SAFETY: the buffer is valid for the 16 bytes that are asked for.
        let got = unsafe { libc::getrandom(name.as_mut_ptr().cast(), name.len(), 0) };
        if got == 16 { Ok(Self(name)) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the n-th name of a seeded world.
    pub(crate) fn numbered(number: u64) -> Self {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&number.to_le_bytes());
        name[8..].copy_from_slice(b"numbered");
        Self(name)
    }

    /// Returns the id as the C type's bytes.
    pub(crate) fn to_bytes(self) -> [u8; ID_BYTES] {
        let mut bytes = [0; ID_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.0);
        bytes
    }

    /// Returns the id in the C type's bytes; `None` if this library did not make them.
    pub(crate) fn from_bytes(bytes: &[u8; ID_BYTES]) -> Option<Self> {
        let name: [u8; 16] = std::array::from_fn(|i| bytes[8 + i]);
        (bytes[..8] == MAGIC && bytes[24..].iter().all(|&b| b == 0)).then_some(Self(name))
    }

    /// Returns the name as two words.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let half = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| self.0[i + k]));
        [half(0), half(8)]
    }

    /// Builds the name from two words.
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&words[0].to_le_bytes());
        name[8..].copy_from_slice(&words[1].to_le_bytes());
        Self(name)
    }

    /// The communicator's identity: equal on all ranks, different for different ids.
    pub(crate) fn hash(self) -> u64 {
        self.0.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    fn socket_name(self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("gpu-sim-nccl-{hex}")
    }
}

/// Why a rank could not join its communicator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The members contradict each other; every member gets this error.
    #[error("{0}")]
    Refused(String),
    /// No root listens under the id.
    #[error(
        "no root waits under this unique id ({0}): the id was used already, or the process that made it is gone"
    )]
    NoRoot(io::Error),
    /// The root ended, or the call was aborted.
    #[error("the root of the bootstrap went away while rank {rank} of {size} waited for the other ranks")]
    Lost { rank: usize, size: usize },
    /// A system call failed.
    #[error("{0} failed: {1}")]
    System(&'static str, io::Error),
}

#[cfg(test)]
mod tests;
