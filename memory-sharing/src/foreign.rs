//! Traits for memory on devices that the CUDA driver does not manage. Other crates implement these traits.

use std::{
    error::Error,
    fmt,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use cuda_driver::DevicePtr;

/// The error of a [`ForeignMemory`], which another crate implements. The other ranks get the text of the error, with
/// the texts of its causes.
pub type ForeignError = Box<dyn Error + Send + Sync>;

/// This rank's memory on a device that the CUDA driver does not manage. `PeerMemory::from_foreign` of the crate
/// `symm-mem` makes memory for a rendezvous out of it: for an agreement in which the ranks open each other's memory.
///
/// This crate passes handles and addresses on, and never accesses the memory.
///
/// Other ranks of the same process access the memory at the same address, [`ptr`](Self::ptr), and keep this value
/// alive.
///
/// A rank of another process opens the memory by a file descriptor (same host only) or a handle (any host). The opening
/// rank has its own `ForeignMemory` of the same [`kind`](Self::kind). The rendezvous calls [`open`](Self::open) on it,
/// with the descriptor and the handle of this memory as the argument. If a rendezvous has ranks in several processes,
/// the memory of each rank needs a descriptor or a handle.
///
/// [`kind`](Self::kind), [`ptr`](Self::ptr), [`bytes`](Self::bytes) and [`has_descriptor`](Self::has_descriptor) must
/// return the same value in every call, and must not block.
///
/// # Threads
/// A rendezvous calls the methods of this trait on the thread of its caller. They must not call the same rendezvous,
/// because that would deadlock. While they run, the other members wait, up to the time limits of the rendezvous. The
/// value is dropped on the thread that drops the last reference to it, which can be a thread of another rank of this
/// process.
///
/// # Example
/// Memory of the host, which processes of one host share:
/// ```
/// use bootstrap::link::SharedMemory;
/// use cuda_driver::DevicePtr;
/// use std::os::fd::OwnedFd;
/// use memory_sharing::{ForeignError, ForeignMemory, OpenedMemory, PeerHandle};
///
/// #[derive(Debug)]
/// struct HostMemory {
///     memory: SharedMemory,
///     descriptor: OwnedFd,
/// }
///
/// #[derive(Debug)]
/// struct OpenedHostMemory(SharedMemory);
///
/// fn address(memory: &SharedMemory) -> DevicePtr {
///     DevicePtr(memory.start().as_ptr().expose_provenance() as u64)
/// }
///
/// impl ForeignMemory for HostMemory {
///     fn kind(&self) -> &str {
///         "host"
///     }
///     fn ptr(&self) -> DevicePtr {
///         address(&self.memory)
///     }
///     fn bytes(&self) -> usize {
///         self.memory.bytes()
///     }
///     fn has_descriptor(&self) -> bool {
///         true
///     }
///     fn descriptor(&self) -> Result<OwnedFd, ForeignError> {
///         Ok(self.descriptor.try_clone()?)
///     }
///     fn open(&self, peer: &PeerHandle<'_>) -> Result<Box<dyn OpenedMemory>, ForeignError> {
///         let descriptor = peer.descriptor.ok_or("no file descriptor, expected one of a memfd")?;
///         Ok(Box::new(OpenedHostMemory(SharedMemory::open(descriptor, peer.bytes)?)))
///     }
/// }
///
/// impl OpenedMemory for OpenedHostMemory {
///     fn ptr(&self) -> DevicePtr {
///         address(&self.0)
///     }
/// }
/// ```
pub trait ForeignMemory: fmt::Debug + Send + Sync {
    /// The name of the kind of device. A rendezvous of ranks with different kinds is refused before any memory is
    /// opened.
    fn kind(&self) -> &str;

    /// The address of the first byte on this rank.
    fn ptr(&self) -> DevicePtr;

    /// The length of the whole memory in bytes, which must be equal on all ranks of a rendezvous. Peers open the whole
    /// memory.
    fn bytes(&self) -> usize;

    /// Returns whether [`descriptor`](Self::descriptor) exports a file descriptor.
    fn has_descriptor(&self) -> bool {
        false
    }

    /// Exports a file descriptor of the memory. It is sent to ranks in other processes of this host. Called only if
    /// [`has_descriptor`](Self::has_descriptor) is true.
    ///
    /// # Errors
    /// The reason why the memory cannot be exported. All ranks get it.
    fn descriptor(&self) -> Result<OwnedFd, ForeignError> {
        Err("this memory has no file descriptor".into())
    }

    /// Exports a handle of a few bytes, by which ranks in other processes, on any host, can open the memory without a
    /// file descriptor. Returns `None` if the memory has no such handle. The rendezvous posts the handle in the
    /// [store](bootstrap::store) of its group. If a handle works only on this host, [`open`](Self::open) fails on
    /// ranks of other hosts.
    ///
    /// # Errors
    /// The reason why the memory cannot be exported. All ranks get it.
    fn handle(&self) -> Result<Option<Vec<u8>>, ForeignError> {
        Ok(None)
    }

    /// Opens the memory that `peer` describes, which belongs to a rank in another process and has the same
    /// [`kind`](Self::kind) as this memory. The descriptor and the handle come from that process, so check them.
    ///
    /// # Errors
    /// The reason why the memory cannot be opened. All ranks get the text, with the number of this rank.
    fn open(&self, peer: &PeerHandle<'_>) -> Result<Box<dyn OpenedMemory>, ForeignError>;
}

/// The argument of [`ForeignMemory::open`]: the memory of a rank in another process. At least one of `descriptor` and
/// `handle` is `Some`: if memory on another host has no handle, the rendezvous is refused, and nothing is opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct PeerHandle<'a> {
    /// The length of the whole memory in bytes.
    pub bytes: usize,
    /// The file descriptor that the peer [exported](ForeignMemory::descriptor). `None` if the peer is on another host,
    /// or exports none.
    pub descriptor: Option<BorrowedFd<'a>>,
    /// The handle that the peer [exported](ForeignMemory::handle), or `None` if it exports none.
    pub handle: Option<&'a [u8]>,
}

/// A peer's memory that [`ForeignMemory::open`] has opened on this rank. Dropping the value closes the memory.
///
/// After a rendezvous of `symm-mem`, two values of this rank keep the opened memory alive: the `PeerMemory` with which
/// the rank called the rendezvous, and the `SymmetricMemory` that the rendezvous returned. The opened memory is dropped
/// on the thread that drops the last of these values.
pub trait OpenedMemory: fmt::Debug + Send + Sync {
    /// The address of the first byte on this rank. It must be the same in every call, and stay valid until this value
    /// is dropped.
    fn ptr(&self) -> DevicePtr;
}

/// For the memory of another rank of this process. The memory needs no opening, because its address is valid on this
/// rank too.
impl OpenedMemory for Arc<dyn ForeignMemory> {
    fn ptr(&self) -> DevicePtr {
        (**self).ptr()
    }
}
