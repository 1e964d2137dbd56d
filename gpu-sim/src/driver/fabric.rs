//! Fabric handles: 64 bytes by which any process finds memory, as long as the process that created it lives.
//!
//! A handle names the exporter's file. On hardware a handle also works on other hosts; here all processes are on one.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::memory::Physical;

/// First 8 bytes of every handle.
const MARK: u64 = u64::from_le_bytes(*b"gpusimfb");

/// The handle of `physical`.
pub(super) fn export(physical: &Physical) -> Result<[u8; 64], String> {
    let file = physical.file();
    let stat = rustix::fs::fstat(file).map_err(|error| format!("asking for the memory's file: {error}"))?;
    let words = [MARK, u64::from(std::process::id()), file.as_raw_fd() as u64, stat.st_ino];
    let mut handle = [0; 64];
    for (bytes, word) in handle.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(handle)
}

/// The file of the memory that a handle names.
pub(super) fn open(handle: &[u8; 64]) -> Result<OwnedFd, String> {
    let (words, _) = handle.as_chunks();
    let [mark, process, number, inode] = [0, 1, 2, 3].map(|at| u64::from_le_bytes(words[at]));
    if mark != MARK {
        return Err("these 64 bytes are no fabric handle".into());
    }
    let path = format!("/proc/{process}/fd/{number}");
    let gone = |error| format!("the memory of process {process} is gone: {error}");
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(gone)?;
    let stat = rustix::fs::fstat(&file).map_err(gone)?;
    // The number may belong to another file by now.
    if stat.st_ino == inode { Ok(file) } else { Err(format!("the memory of process {process} is gone")) }
}
