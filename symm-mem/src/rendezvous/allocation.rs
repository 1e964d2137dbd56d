//! Memory that belongs to no [pool](crate::SymmetricPool), and its allocators. In a
//! [rendezvous](super::Rendezvous::rendezvous), the members of a group map each other's memory of this kind.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use cuda_driver::{
    Context, DevicePtr, Stream, StreamFlags,
    graph::RelaxedCapture,
    vmm::{Granularity, HandleTypes, Mapping, PhysicalMemory},
};

use super::{Layout, protocol::Subject};
use crate::{
    lock::lock,
    pool::Attachments,
    sharing::{self, ForeignError, ForeignMemory, Shareable},
};

/// An allocation that peers can map, and that belongs to no [symmetric pool](crate::SymmetricPool). Clones share the
/// memory.
///
/// The pages stay allocated while a clone on this rank or a mapping of a peer exists.
#[derive(Debug, Clone)]
pub struct PeerMemory {
    pub(super) inner: Arc<PeerAllocation>,
}

#[derive(Debug)]
pub(super) struct PeerAllocation {
    /// This rank's mappings of the peers' memory, one for each group. The argument `ordinal` of [`Attachments`], the
    /// number of a segment of a pool, is always 0 here, because the allocation is in no pool.
    pub(super) attachments: Attachments,
    backing: AllocationBacking,
    /// The requested size, which can be less than the size of `backing`.
    bytes: usize,
    pub(super) subject: Subject,
    /// Identifies the allocation in this process ([`fresh_number`]).
    pub(super) number: u64,
}

/// The memory of an allocation. Peers map all of it, also the part beyond the requested size.
#[derive(Debug)]
enum AllocationBacking {
    Mapped(Mapping),
    Foreign(Arc<dyn ForeignMemory>),
}

/// Returns a number for an allocation that belongs to no pool. No two allocations of this process have the same number,
/// even if the driver gives them the same address one after the other.
pub(crate) fn fresh_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The reason for a failed allocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The error of the driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
    /// The size is 0 bytes, overflows `usize`, or exceeds the memory given to [`PeerMemory::from_mapping`] or
    /// [`PeerMemory::from_foreign`].
    #[error("{}; expected at least 1 byte, and no more than the memory has", match bytes {
        Some(bytes) => format!("invalid size of {bytes} bytes"),
        None => "invalid size of more bytes than fit into an address".to_owned(),
    })]
    Size {
        /// The requested size in bytes, or `None` if it overflows.
        bytes: Option<usize>,
    },
    /// The [persistent](PeerAllocator::persistent) allocation of this id is in use: the [`PeerMemory`] that an earlier
    /// call returned, or something that was made from it, has not been dropped ([`PeerMemory::is_unique`]).
    #[error("the allocation of id {id} is alive still: drop its handles first")]
    StillAlive {
        /// The id.
        id: u64,
    },
    /// The persistent allocation of this id exists, but its size differs from the requested one.
    #[error("the allocation of id {id} has {bytes} bytes, but {asked} were asked for")]
    OtherSize {
        /// The id.
        id: u64,
        /// Its size in bytes.
        bytes: usize,
        /// The requested size in bytes.
        asked: usize,
    },
    /// No allocator is [registered](Allocators::register) for memory of this kind of device.
    #[error("no allocator for memory of kind {kind:?}")]
    NoAllocator {
        /// The kind.
        kind: DeviceKind,
    },
    /// The error of a [`PeerAllocator`] of another crate.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
}

impl PeerMemory {
    /// Allocates at least `bytes` bytes that can be exported as handles of the types `handles`.
    /// [`HandleTypes::granted`] returns all types that the driver grants.
    ///
    /// # Errors
    /// [`AllocationError::Size`] for 0 bytes. [`AllocationError::Driver`] if the driver fails, for example with
    /// [`NoFabric`](cuda_driver::Error::NoFabric) for fabric handles on a host without them.
    pub fn new(context: &Context, bytes: usize, handles: HandleTypes) -> Result<Self, AllocationError> {
        Self::with_subject(context, bytes, handles, Subject::Allocation)
    }

    pub(super) fn with_subject(
        context: &Context,
        bytes: usize,
        handles: HandleTypes,
        subject: Subject,
    ) -> Result<Self, AllocationError> {
        if bytes == 0 {
            return Err(AllocationError::Size { bytes: Some(0) });
        }
        let granularity = Granularity::of(context.device(), handles)?;
        let whole = granularity.round_up(bytes);
        let memory = PhysicalMemory::create(context, whole, handles)?;
        Self::with_backing(AllocationBacking::Mapped(sharing::map(context, &memory, whole)?), bytes, subject)
    }

    /// Makes memory for a [rendezvous](super::Rendezvous::rendezvous) out of a mapping that the caller has created.
    /// This is for a [`PeerAllocator`] of another crate. For memory that is not on a CUDA device, see
    /// [`from_foreign`](Self::from_foreign).
    ///
    /// - `mapping` must cover all of the physical memory, because peers map all of it. It must give access to this
    ///   rank's device. The physical memory must be exportable, and accessible to the devices of the peers.
    /// - `bytes` is the size that [`bytes`](Self::bytes) returns. It is at most the size of the mapping.
    /// - `id` is the id of [persistent](PeerAllocator::persistent) memory, equal on every rank. `None` if the memory is
    ///   not persistent.
    ///
    /// # Errors
    /// [`AllocationError::Size`] if `bytes` is 0 or larger than the mapping.
    pub fn from_mapping(mapping: Mapping, bytes: usize, id: Option<u64>) -> Result<Self, AllocationError> {
        Self::with_backing(AllocationBacking::Mapped(mapping), bytes, subject_of(id))
    }

    /// Makes memory for a [rendezvous](super::Rendezvous::rendezvous) out of foreign memory: memory on another kind of
    /// device than a CUDA device. This is for a [`PeerAllocator`] of another crate.
    ///
    /// A rendezvous needs memory of the same kind and length on all ranks. Its result is a
    /// [`SymmetricMemory`](super::SymmetricMemory) with these addresses:
    /// - For the memory of a rank in this process: [`ForeignMemory::ptr`] on that rank.
    /// - For the memory of any other rank: [`OpenedMemory::ptr`](sharing::OpenedMemory::ptr) on this rank.
    ///
    /// The implementation of `ForeignMemory` defines whether kernels of a CUDA device can use these addresses. The
    /// [signal pads](super::SymmetricMemory::signal_pads) are always on the ranks' CUDA devices. An
    /// [`exchange`](crate::exchange) (put and get between ranks) refuses foreign memory.
    ///
    /// - `bytes` is the size that [`bytes`](Self::bytes) returns. It is at most [`ForeignMemory::bytes`].
    /// - `id` is the id of [persistent](PeerAllocator::persistent) memory, equal on every rank. `None` if the memory is
    ///   not persistent.
    ///
    /// # Errors
    /// [`AllocationError::Size`] if `bytes` is 0 or larger than the memory.
    pub fn from_foreign(
        memory: Arc<dyn ForeignMemory>,
        bytes: usize,
        id: Option<u64>,
    ) -> Result<Self, AllocationError> {
        Self::with_backing(AllocationBacking::Foreign(memory), bytes, subject_of(id))
    }

    fn with_backing(
        backing: AllocationBacking,
        bytes: usize,
        subject: Subject,
    ) -> Result<Self, AllocationError> {
        if !(1..=backing.bytes()).contains(&bytes) {
            return Err(AllocationError::Size { bytes: Some(bytes) });
        }
        Ok(Self {
            inner: Arc::new(PeerAllocation {
                attachments: Attachments::default(),
                backing,
                bytes,
                subject,
                number: fresh_number(),
            }),
        })
    }

    /// Sets all bytes to zero, and blocks until this is done. Uses a new stream and waits only for it, because a wait
    /// for the whole device would invalidate a capture of another thread.
    pub(crate) fn clear(&self, context: &Context) -> Result<(), cuda_driver::Error> {
        let _relaxed = RelaxedCapture::enter(context.driver())?;
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        // SAFETY: the memory has this length, and nothing else uses it yet.
        unsafe { stream.fill_u8(self.ptr(), 0, self.bytes()) }?;
        stream.synchronize()
    }

    /// The whole memory, as a value that can be exported to other ranks.
    pub(crate) fn shareable(&self) -> Shareable {
        match &self.inner.backing {
            AllocationBacking::Mapped(mapping) => Shareable::Virtual(mapping.memory().clone()),
            AllocationBacking::Foreign(memory) => Shareable::Foreign(memory.clone()),
        }
    }

    /// The length of the whole memory in bytes, which is at least [`bytes`](Self::bytes).
    pub(crate) fn whole_bytes(&self) -> usize {
        self.inner.backing.bytes()
    }

    /// The kind of device that the memory lies on.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        match &self.inner.backing {
            AllocationBacking::Mapped(_) => DeviceKind::Cuda,
            AllocationBacking::Foreign(memory) => DeviceKind::Other(memory.kind().to_owned()),
        }
    }

    /// The address on this rank.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        match &self.inner.backing {
            AllocationBacking::Mapped(mapping) => mapping.ptr(),
            AllocationBacking::Foreign(memory) => memory.ptr(),
        }
    }

    /// The requested size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Returns true if this value alone refers to the memory: there is no clone of it, and no
    /// [`Buffer`](super::Buffer) or [`SymmetricMemory`] that was made from it. Once true, the result stays true until
    /// one of these is made from this value.
    ///
    /// A [`PeerAllocator`] keeps one `PeerMemory` of each [persistent](PeerAllocator::persistent) allocation. It may
    /// return a clone of that value only if the value is unique.
    ///
    /// [`SymmetricMemory`]: super::SymmetricMemory
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// The id of a [persistent](PeerAllocator::persistent) allocation. `None` for other allocations.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match self.inner.subject {
            Subject::Persistent { id } => Some(id),
            _ => None,
        }
    }
}

impl AllocationBacking {
    fn bytes(&self) -> usize {
        match self {
            Self::Mapped(mapping) => mapping.bytes(),
            Self::Foreign(memory) => memory.bytes(),
        }
    }
}

fn subject_of(id: Option<u64>) -> Subject {
    id.map_or(Subject::Allocation, |id| Subject::Persistent { id })
}

/// A kind of device with memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU of the CUDA driver.
    Cuda,
    /// Another kind of device, by its name ([`ForeignMemory::kind`]).
    Other(String),
}

/// Allocates memory that peers can map. Other crates can implement it, with memory of the CUDA driver
/// ([`PeerMemory::from_mapping`]) or of another kind of device ([`PeerMemory::from_foreign`]).
pub trait PeerAllocator: Send + Sync {
    /// Allocates at least `bytes` bytes.
    ///
    /// # Errors
    /// [`AllocationError`].
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError>;

    /// Returns the persistent memory of `id`: memory that the allocator keeps even after the program has dropped it.
    /// The first call for an id allocates the memory. Later calls return the same memory, so a rendezvous need not map
    /// it again. They must pass the same `bytes`. They fail until the program has dropped the `PeerMemory` of the
    /// earlier call and everything that was made from it ([`PeerMemory::is_unique`]).
    ///
    /// # Errors
    /// [`AllocationError::StillAlive`], [`AllocationError::OtherSize`], and the errors of
    /// [`allocate`](Self::allocate).
    fn persistent(&self, id: u64, bytes: usize) -> Result<PeerMemory, AllocationError>;
}

/// Allocates memory on a device of the CUDA driver.
#[derive(Debug)]
pub struct CudaAllocator {
    context: Context,
    handles: HandleTypes,
    persistent: Mutex<HashMap<u64, PeerMemory>>,
}

impl CudaAllocator {
    /// Creates an allocator for memory that can be exported as file descriptors, and as fabric handles if the driver
    /// [grants](HandleTypes::granted) them.
    ///
    /// # Errors
    /// [`AllocationError::Driver`] if the device or the host is out of memory: [`HandleTypes::granted`] allocates
    /// memory to find out whether the driver grants fabric handles.
    pub fn new(context: &Context) -> Result<Self, AllocationError> {
        Ok(Self::with_handles(context, HandleTypes::granted(context)?))
    }

    /// Creates an allocator for memory that can be exported as handles of exactly these types.
    #[must_use]
    pub fn with_handles(context: &Context, handles: HandleTypes) -> Self {
        Self { context: context.clone(), handles, persistent: Mutex::default() }
    }

    /// The handle types of the memory that this allocator allocates.
    #[must_use]
    pub fn handles(&self) -> HandleTypes {
        self.handles
    }
}

impl PeerAllocator for CudaAllocator {
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError> {
        PeerMemory::new(&self.context, bytes, self.handles)
    }

    fn persistent(&self, id: u64, bytes: usize) -> Result<PeerMemory, AllocationError> {
        let mut persistent = lock(&self.persistent);
        if let Some(memory) = persistent.get(&id) {
            if !memory.is_unique() {
                return Err(AllocationError::StillAlive { id });
            }
            if memory.bytes() != bytes {
                return Err(AllocationError::OtherSize { id, bytes: memory.bytes(), asked: bytes });
            }
            return Ok(memory.clone());
        }
        let memory =
            PeerMemory::with_subject(&self.context, bytes, self.handles, Subject::Persistent { id })?;
        persistent.insert(id, memory.clone());
        Ok(memory)
    }
}

/// The allocators of a rank, by the kind of device.
#[derive(Default)]
pub struct Allocators {
    by_kind: HashMap<DeviceKind, Arc<dyn PeerAllocator>>,
}

impl Allocators {
    /// Creates the allocators of a rank, with only a [`CudaAllocator`] for the device of `context`.
    ///
    /// # Errors
    /// Those of [`CudaAllocator::new`].
    pub fn new(context: &Context) -> Result<Self, AllocationError> {
        let mut all = Self::default();
        all.register(DeviceKind::Cuda, Arc::new(CudaAllocator::new(context)?));
        Ok(all)
    }

    /// Registers `allocator` for memory of this kind. Returns the previous allocator, if there was one.
    pub fn register(
        &mut self,
        kind: DeviceKind,
        allocator: Arc<dyn PeerAllocator>,
    ) -> Option<Arc<dyn PeerAllocator>> {
        self.by_kind.insert(kind, allocator)
    }

    /// Returns the allocator for memory of this kind.
    ///
    /// # Errors
    /// [`AllocationError::NoAllocator`].
    pub fn of(&self, kind: &DeviceKind) -> Result<&dyn PeerAllocator, AllocationError> {
        let allocator = self.by_kind.get(kind).map(|allocator| &**allocator);
        allocator.ok_or_else(|| AllocationError::NoAllocator { kind: kind.clone() })
    }

    /// Allocates memory of this kind for a tensor, with the registered allocator. If `id` is given, the memory is the
    /// [persistent](PeerAllocator::persistent) memory of that id.
    ///
    /// # Errors
    /// [`AllocationError`].
    #[doc(alias = "empty_strided_p2p")]
    pub fn empty_strided(
        &self,
        kind: &DeviceKind,
        layout: &Layout,
        id: Option<u64>,
    ) -> Result<PeerMemory, AllocationError> {
        let bytes = layout.bytes().ok_or(AllocationError::Size { bytes: None })?;
        match id {
            Some(id) => self.of(kind)?.persistent(id, bytes),
            None => self.of(kind)?.allocate(bytes),
        }
    }
}

impl fmt::Debug for Allocators {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.by_kind.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_numbers() {
        let text = |bytes| AllocationError::Size { bytes }.to_string();
        let expected = "; expected at least 1 byte, and no more than the memory has";
        assert_eq!(text(Some(0)), format!("invalid size of 0 bytes{expected}"));
        assert_eq!(text(None), format!("invalid size of more bytes than fit into an address{expected}"));
    }
}
