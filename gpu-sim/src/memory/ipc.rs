//! Legacy interprocess handles (`cuIpcGetMemHandle`): 64 bytes that name an allocation of a live process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::{Mapped, MemoryError, Physical};

/// First bytes of every handle.
const MAGIC: [u8; 8] = *b"simipcm1";

/// Returns the allocation's name: process, file, offset.
pub(crate) fn name_of(mapped: &Mapped) -> [u8; 64] {
    let mut name = [0; 64];
    let fields = [
        u64::from_le_bytes(MAGIC),
        rustix::process::getpid().as_raw_nonzero().get() as u64,
        mapped.physical.file().as_raw_fd() as u64,
        mapped.physical.offset(),
        mapped.physical.size(),
        mapped.len,
    ];
    for (slot, field) in name.chunks_exact_mut(8).zip(fields) {
        slot.copy_from_slice(&field.to_le_bytes());
    }
    name
}

/// Another process's allocation and its length in bytes. Fails once that process is gone.
pub(crate) fn open(name: &[u8; 64]) -> Result<(Arc<Physical>, u64), MemoryError> {
    let field = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&name[i * 8..i * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    if name[..8] != MAGIC {
        return Err(MemoryError::Invalid("the bytes are no interprocess memory handle".into()));
    }
    let (pid, fd, offset, size, len) = (field(1), field(2), field(3), field(4), field(5));
    if pid == rustix::process::getpid().as_raw_nonzero().get() as u64 {
        return Err(MemoryError::NotPermitted(
            "the handle is this process's own; only others may open it".into(),
        ));
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    let file: OwnedFd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| MemoryError::Host { what: "opening another process's memory", source })?;
    Ok((Physical::import(file, Some((offset, size)))?, len))
}
