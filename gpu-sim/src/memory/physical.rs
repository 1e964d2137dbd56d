//! Memory of a device, counted against its capacity.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{GRANULARITY, MemoryError, PAGE};
use crate::sched::Signal;

/// Bytes of the file behind a device's plain allocations. The file is sparse: only touched pages exist. Enough for
/// four million allocations of the largest capacity.
const ARENA: u64 = 1 << 62;
/// Bytes after the memory in every file: one page with the [`Signal`] for writes to the file.
const TAIL: u64 = PAGE;

/// Memory that may leave the process as a file descriptor.
pub(crate) const AS_DESCRIPTOR: u32 = 1;
/// Prefix of the memfds' names. `/proc/self/fd` shows it, so an importer can recognise device memory.
const NAME: &str = "gpu-sim-device-";

/// A device's memory: its capacity, the bytes in use, and the file of its plain allocations.
#[derive(Debug)]
pub(crate) struct Arena {
    device: usize,
    capacity: u64,
    used: AtomicU64,
    /// False if exportable memory needs no file of its own, because it is never exported.
    exports: bool,
    /// The next offset of the file. Offsets are never reused; the file is large enough.
    next: AtomicU64,
    file: OnceLock<(Arc<OwnedFd>, Arc<Written>)>,
}

/// A part of a device's memory; dropping the last reference frees it.
#[derive(Debug)]
pub(crate) struct Physical {
    device: usize,
    size: u64,
    file: Arc<OwnedFd>,
    offset: u64,
    written: Arc<Written>,
    /// The arena that counts it; `None` for another process's memory.
    arena: Option<Arc<Arena>>,
    /// Handle types that it can be exported as, as bits of `CUmemAllocationHandleType`.
    kinds: u32,
    /// True if the file has only this memory, so that other processes can get the file.
    is_alone: bool,
}

impl Arena {
    pub(crate) fn new(device: usize, capacity: u64, exports: bool) -> Self {
        let (used, next, file) = Default::default();
        Self { device, capacity, used, exports, next, file }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used.load(SeqCst))
    }

    fn take(&self, size: u64) -> Result<(), MemoryError> {
        let taken =
            self.used.fetch_update(SeqCst, SeqCst, |u| u.checked_add(size).filter(|&u| u <= self.capacity));
        match taken {
            Ok(_) => Ok(()),
            Err(used) => Err(MemoryError::OutOfMemory {
                device: self.device,
                wanted: size,
                free: self.capacity - used,
                capacity: self.capacity,
            }),
        }
    }

    fn file(&self) -> Result<(Arc<OwnedFd>, Arc<Written>), Errno> {
        if let Some(file) = self.file.get() {
            return Ok(file.clone());
        }
        let file = memfd(self.device, ARENA)?;
        let written = Written::of(&file, ARENA)?;
        Ok(self.file.get_or_init(|| (Arc::new(file), written)).clone())
    }

    /// Allocates `size` bytes (a multiple of the page). Memory that is exportable as one of `kinds` gets a file of
    /// its own, unless exports are not possible.
    pub(crate) fn allocate(self: &Arc<Self>, size: u64, kinds: u32) -> Result<Arc<Physical>, MemoryError> {
        self.take(size)?;
        let is_alone = kinds != 0 && self.exports;
        let made = if is_alone {
            memfd(self.device, size).and_then(|file| Ok((Written::of(&file, size)?, Arc::new(file), 0)))
        } else {
            let offset = || self.next.fetch_add(size.next_multiple_of(GRANULARITY), SeqCst);
            self.file().map(|(file, written)| (written, file, offset()))
        };
        match made {
            Ok((written, file, offset)) => Ok(Arc::new(Physical {
                device: self.device,
                size,
                file,
                offset,
                written,
                arena: Some(self.clone()),
                kinds,
                is_alone,
            })),
            Err(source) => {
                self.used.fetch_sub(size, SeqCst);
                Err(MemoryError::Host { what: "making a memory file", source })
            }
        }
    }
}

impl Physical {
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Offset of its first byte in [`Physical::file`].
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Notified after writes to this memory by any process's executors.
    pub(crate) fn written(&self) -> &Arc<Written> {
        &self.written
    }

    /// True if it can be exported.
    pub(crate) fn is_exportable(&self) -> bool {
        self.kinds != 0
    }

    /// Handle types that it can be exported as, as bits of `CUmemAllocationHandleType`.
    pub(crate) fn kinds(&self) -> u32 {
        self.kinds
    }

    /// True if other processes can get it.
    pub(crate) fn can_leave(&self) -> bool {
        self.is_alone
    }

    /// True if it was imported by a file descriptor.
    pub(crate) fn is_imported(&self) -> bool {
        self.arena.is_none()
    }

    /// Imports memory of another process (or of this one) by its file; `part` is the range in the file, `None` the
    /// whole.
    pub(crate) fn import(file: OwnedFd, part: Option<(u64, u64)>) -> Result<Arc<Self>, MemoryError> {
        let device = device_of(&file).ok_or_else(|| {
            MemoryError::NotOurs("the file descriptor is not exported device memory".into())
        })?;
        let stat = rustix::fs::fstat(&file)
            .map_err(|source| MemoryError::Host { what: "asking for the size of imported memory", source })?;
        let whole = (stat.st_size as u64).saturating_sub(TAIL);
        let (offset, size) = part.unwrap_or((0, whole));
        if offset.checked_add(size).is_none_or(|end| end > whole) {
            return Err(MemoryError::Invalid(format!("{size} bytes at {offset} of memory of {whole} bytes")));
        }
        let written = Written::of(&file, whole)
            .map_err(|source| MemoryError::Host { what: "mapping the signal of imported memory", source })?;
        let kinds = if part.is_none() { AS_DESCRIPTOR } else { 0 };
        Ok(Arc::new(Self {
            device,
            size,
            file: Arc::new(file),
            offset,
            written,
            arena: None,
            kinds,
            is_alone: kinds != 0,
        }))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Some(arena) = &self.arena else { return };
        // A private world keeps its file until its end, because punching holes takes much of the time of a short run.
        if !self.is_alone && arena.exports {
            // Returns these pages of the arena's file to the host. A failure costs memory, not correctness, since
            // offsets are never reused.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&*self.file, flags, self.offset, self.size);
        }
        arena.used.fetch_sub(self.size, SeqCst);
    }
}

/// The signal in a file's last page, shared by all processes that have the file.
#[derive(Debug)]
pub(crate) struct Written(std::ptr::NonNull<Signal>);

// SAFETY: the pointer is to a shared page that lives as long as this; `Signal` is `Sync`.
unsafe impl Send for Written {}
// SAFETY: as above.
unsafe impl Sync for Written {}

impl Written {
    /// Maps the signal of a file with `size` bytes before its tail.
    fn of(file: &OwnedFd, size: u64) -> Result<Arc<Self>, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without `FIXED`, nothing that is mapped is touched.
        let page = unsafe { mmap(std::ptr::null_mut(), TAIL as usize, prot, MapFlags::SHARED, file, size)? };
        std::ptr::NonNull::new(page.cast()).map(|p| Arc::new(Self(p))).ok_or(Errno::NOMEM)
    }
}

impl std::ops::Deref for Written {
    type Target = Signal;

    fn deref(&self) -> &Signal {
        // SAFETY: mapped by `of` until drop; the page begins as zeros, which is a valid signal, and every process
        // that has it uses it as one.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; nobody else has the address.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), TAIL as usize) };
    }
}

/// Creates a sealed file of `size` bytes and the tail.
fn memfd(device: usize, size: u64) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(format!("{NAME}{device}"), flags)?;
    rustix::fs::ftruncate(&file, size + TAIL)?;
    // The seals keep other processes from truncating pages that an executor has mapped.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Returns the device of a memory file; `None` for any other file.
fn device_of(file: &OwnedFd) -> Option<usize> {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?;
    name.strip_suffix(" (deleted)").unwrap_or(name).parse().ok()
}
