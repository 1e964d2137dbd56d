//! Memory that processes of a host share through a descriptor.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// The seals that fix the size of the memory, so that a mapping of it stays valid.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of memory that processes of a host share. The mapping starts at a page boundary, and the memory contains
/// zeros when it is made. The memory is freed when its last mapping and its last descriptor are gone. Another process
/// may write to it at any time, so read it only through atomics, and check every value.
pub struct SharedMemory {
    base: NonNull<u8>,
    /// The length of the mapping.
    bytes: usize,
}

// SAFETY: the value is an address and a length, which every thread may unmap. Each access to the bytes needs an unsafe
// block of the caller.
unsafe impl Send for SharedMemory {}
// SAFETY: the methods only return the address and the length.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `bytes` bytes of memory. Also returns the descriptor with which other processes [open](Self::open)
    /// the memory.
    ///
    /// # Errors
    /// Those of the system calls, such as `EINVAL` if `bytes` is 0.
    pub fn create(bytes: usize) -> io::Result<(OwnedFd, Self)> {
        let memory = sized(bytes)?;
        fcntl_add_seals(&memory, SEALS)?;
        let mapped = Self::map(memory.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((memory, mapped))
    }

    /// Makes `bytes` bytes of memory that other processes [map](Self::open_read_only) read-only. With Linux 5.1 and
    /// later, the memory can be written only through the returned mapping. Older kernels do not prevent writes by other
    /// processes. Also returns the descriptor for the other processes.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_read_only(bytes: usize) -> io::Result<(OwnedFd, Self)> {
        let memory = sized(bytes)?;
        let mapped = Self::map(memory.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        match fcntl_add_seals(&memory, SEALS | SealFlags::FUTURE_WRITE) {
            Err(Errno::INVAL) => fcntl_add_seals(&memory, SEALS)?,
            sealed => sealed?,
        }
        Ok((memory, mapped))
    }

    /// Maps memory that another process made with [`create`](Self::create). `bytes` is its expected size.
    ///
    /// # Errors
    /// A description of the problem: the memory has another size, it is not a memory file with a sealed size, or a
    /// system call failed. Linux 5.1 and later refuses to map memory of
    /// [`create_read_only`](Self::create_read_only) in this way.
    pub fn open(memory: BorrowedFd<'_>, bytes: usize) -> Result<Self, String> {
        Self::open_with(memory, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Like [`open`](Self::open), but read-only: a write through the mapping raises `SIGSEGV`. Works for the memory of
    /// both [`create`](Self::create) and [`create_read_only`](Self::create_read_only).
    ///
    /// # Errors
    /// A description of the problem, as for [`open`](Self::open).
    pub fn open_read_only(memory: BorrowedFd<'_>, bytes: usize) -> Result<Self, String> {
        Self::open_with(memory, bytes, ProtFlags::READ)
    }

    fn open_with(memory: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> Result<Self, String> {
        let found = fstat(memory).map_err(|error| format!("its memory: {error}"))?;
        let seals = fcntl_get_seals(memory).map_err(|error| format!("its memory is no memfd: {error}"))?;
        if !seals.contains(SEALS) || usize::try_from(found.st_size) != Ok(bytes) {
            let size = found.st_size;
            return Err(format!(
                "its memory has {size} bytes, sealed as {seals:?}; expected {bytes} and {SEALS:?}"
            ));
        }
        Self::map(memory, bytes, protection).map_err(|error| format!("mapping its memory: {error}"))
    }

    fn map(memory: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: this makes a new mapping and replaces none. The memory has this length. Its seals fix the length
        // before another process gets a descriptor.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, memory, 0) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes })
    }

    /// Returns the address of the mapping, which is valid until this value is dropped.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length of the mapping in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Makes a memory file of `bytes` bytes that can be sealed.
fn sized(bytes: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create("lockstep", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes as u64)?;
    Ok(memory)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped this address with this length. Users of the address must keep this value alive.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SharedMemory({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_write_through_one_mapping_is_read_through_the_other() {
        let (descriptor, one) = SharedMemory::create(64).unwrap();
        let other = SharedMemory::open(descriptor.as_fd(), 64).unwrap();
        // SAFETY: both mappings have this length, and no other thread uses them.
        let read = unsafe {
            one.start().write(7);
            other.start().read()
        };
        assert_eq!((read, other.bytes()), (7, 64));
    }

    #[test]
    fn readers_cannot_come_to_write() {
        let (descriptor, one) = SharedMemory::create_read_only(64).unwrap();
        let other = SharedMemory::open_read_only(descriptor.as_fd(), 64).unwrap();
        // SAFETY: both mappings have this length, and no other thread uses them.
        let read = unsafe {
            one.start().write(7);
            other.start().read()
        };
        assert_eq!(read, 7);
        if !fcntl_get_seals(&descriptor).unwrap().contains(SealFlags::FUTURE_WRITE) {
            return println!("skipped: this kernel has no F_SEAL_FUTURE_WRITE");
        }
        assert!(SharedMemory::open(descriptor.as_fd(), 64).unwrap_err().starts_with("mapping"));
        assert!(rustix::io::write(&descriptor, &[1]).is_err());
        // A new descriptor, opened for writing through `/proc`, allows no writable mapping either.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let again = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert!(SharedMemory::open(again.as_fd(), 64).is_err());
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_size_is_refused() {
        let (descriptor, _memory) = SharedMemory::create(64).unwrap();
        let wrong = SharedMemory::open(descriptor.as_fd(), 128).unwrap_err();
        assert!(wrong.contains("64 bytes") && wrong.contains("expected 128"), "{wrong}");
        let blank = memfd_create("blank", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&blank, 64).unwrap();
        assert!(SharedMemory::open(blank.as_fd(), 64).unwrap_err().contains("sealed as"));
        let file = tempfile::tempfile().unwrap();
        assert!(SharedMemory::open(file.as_fd(), 64).unwrap_err().starts_with("its memory"));
    }
}
