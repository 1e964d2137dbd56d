//! The shared memory of one communicator: a memfd that every rank maps, in one process or in many.
//!
//! It holds a header, one [`Plane`] of cards for the host's collective calls and one for the streams', a pipe for
//! every ordered pair of ranks, and staging for the bulk data. Everything but the bulk bytes is atomic, and there is
//! no lock, so a process may die at any point: the others see a rank that does not arrive, and the kernel frees the
//! memory with the last mapping.
//!
//! After changing a word that others may wait for, notify the [`Signal`].
//!
//! `bootstrap` passes the memfd to the ranks; `transport` defines the messages.

mod layout;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::sched::Signal;

pub(crate) use layout::{CHUNK, Layout, PIPE, Plane};

/// Words of a card.
pub(crate) const CARD_WORDS: usize = 24;

/// The message that one rank sends to all others in one exchange.
pub(crate) type RankMessage = [u64; CARD_WORDS];

const MAGIC: u64 = u64::from_le_bytes(*b"gpu-nccl");

/// One mapping of a communicator's memory.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping is plain shared memory that lives until drop; words are only touched through atomics, and
// bulk bytes only through `bytes` and `bytes_mut`, whose callers keep the protocol of their turn.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Creates the memory of a communicator of `size` ranks whose identity is `id`.
    ///
    /// # Errors
    /// The operating system's error if it cannot create or map the memory file.
    pub(crate) fn create(size: usize, id: u64) -> io::Result<(OwnedFd, Self)> {
        let layout = Layout::new(size);
        let fd = rustix::fs::memfd_create("gpu-sim-nccl", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, layout.bytes() as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let shared = Self::map(&fd, layout)?;
        shared.word(Layout::ID).store(id, Ordering::Relaxed);
        shared.word(Layout::SIZE).store(size as u64, Ordering::Relaxed);
        shared.word(Layout::MAGIC).store(MAGIC, Ordering::Release);
        Ok((fd, shared))
    }

    /// Maps the memory that another rank created.
    ///
    /// # Errors
    /// The operating system's; `InvalidData` if the file is not such memory for `size` ranks.
    pub(crate) fn open(fd: &OwnedFd, size: usize) -> io::Result<Self> {
        let layout = Layout::new(size);
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        let bytes = rustix::fs::fstat(fd)?.st_size;
        if !sealed || u64::try_from(bytes) != Ok(layout.bytes() as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("communicator memory of {bytes} bytes where {} sealed ones were due", layout.bytes()),
            ));
        }
        let shared = Self::map(fd, layout)?;
        let found = shared.word(Layout::SIZE).load(Ordering::Acquire);
        if shared.word(Layout::MAGIC).load(Ordering::Acquire) != MAGIC || found != size as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("communicator memory made for {found} ranks, not {size}"),
            ));
        }
        Ok(shared)
    }

    fn map(fd: impl AsFd, layout: Layout) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours; the file is sealed
        // against shrinking, so no page of it vanishes.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                layout.bytes(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, layout })
    }

    /// The communicator's identity, the same on all ranks.
    pub(crate) fn id(&self) -> u64 {
        self.word(Layout::ID).load(Ordering::Relaxed)
    }

    /// The memory layout.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The signal on which all waits for changes of these words block.
    pub(crate) fn signal(&self) -> &Signal {
        const { assert!(Layout::SIGNAL.is_multiple_of(align_of::<Signal>()) && size_of::<Signal>() <= 64) };
        // SAFETY: in range and aligned; a signal may lie in shared memory and all zero is a valid one; the mapping
        // outlives the borrow of self.
        unsafe { &*self.base.as_ptr().add(Layout::SIGNAL).cast() }
    }

    /// The 64-bit word at a byte offset.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.layout.bytes(),
            "word at {offset} lies outside"
        );
        // SAFETY: in range and aligned by the assertion (the base is page-aligned); every process touches it only
        // atomically; the mapping outlives the borrow of self.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Bulk bytes that no rank writes while they are borrowed.
    ///
    /// # Safety
    /// The protocol gives the caller the right to read `[offset, offset + len)`, and no rank writes there, until
    /// the slice is gone.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check_bulk(offset, len);
        // SAFETY: in range; the caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Bulk bytes that nothing else accesses while they are borrowed.
    ///
    /// # Safety
    /// The protocol gives `[offset, offset + len)` to the caller alone until the slice is gone.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        self.check_bulk(offset, len);
        // SAFETY: in range; the caller vouches for sole use.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }

    fn check_bulk(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.layout.bytes());
        assert!(inside && offset >= self.layout.bulk(), "bulk bytes at {offset}+{len} lie outside");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrowed from self is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.layout.bytes()) };
    }
}

#[cfg(test)]
mod tests;
