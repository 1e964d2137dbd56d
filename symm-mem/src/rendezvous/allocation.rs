//! Memory made for rendezvous alone, and who makes it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cuda_driver::{
    Context, DevicePtr, Stream, StreamFlags,
    graph::RelaxedCapture,
    vmm::{Access, Granularity, HandleTypes, Mapping, PhysicalMemory, Reservation},
};

use super::{Layout, buffers::Homes, protocol::Subject};

/// Memory that peers can map: an allocation of its own. Clones are the same memory.
///
/// It stays while any handle to it lives, on any rank: a peer's mapping keeps the pages.
#[derive(Debug, Clone)]
pub struct PeerMemory {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) homes: Homes,
    pub(super) mapping: Mapping,
    bytes: usize,
    pub(super) subject: Subject,
    pub(super) number: u64,
}

/// A number for an allocation of this process, which no other has or had.
pub(crate) fn fresh_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
    /// No bytes, or more than there are addresses.
    #[error("an allocation of {bytes:?} bytes; expected at least 1, and what addresses can count")]
    Size {
        /// What was asked for.
        bytes: Option<usize>,
    },
    /// The persistent allocation of this id is in use.
    #[error("the allocation of id {id} is alive still: drop its handles first")]
    StillAlive {
        /// The id.
        id: u64,
    },
    /// The persistent allocation of this id has another size.
    #[error("the allocation of id {id} has {bytes} bytes, but {asked} were asked for")]
    OtherSize {
        /// The id.
        id: u64,
        /// What it has.
        bytes: usize,
        /// What was asked for.
        asked: usize,
    },
    /// No allocator makes memory of this kind.
    #[error("no allocator for memory of kind {kind:?}")]
    NoAllocator {
        /// The kind.
        kind: DeviceKind,
    },
}

impl PeerMemory {
    /// Memory of at least `bytes` that others can have in these ways; [`HandleTypes::granted`] are all that there are.
    ///
    /// # Errors
    /// [`AllocationError::Size`]; [`AllocationError::Driver`], among it
    /// [`NoFabric`](cuda_driver::Error::NoFabric) where fabric handles are asked for and the host has none.
    pub fn new(context: &Context, bytes: usize, handles: HandleTypes) -> Result<Self, AllocationError> {
        Self::about(context, bytes, handles, Subject::Allocation)
    }

    pub(super) fn about(
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
        let mapping = mapped(context, &memory, whole)?;
        Ok(Self {
            inner: Arc::new(Inner {
                homes: Homes::default(),
                mapping,
                bytes,
                subject,
                number: fresh_number(),
            }),
        })
    }

    /// Zeroes it, and waits for that on a stream of its own: to wait for all of the device would break what others capture
    /// there.
    pub(crate) fn clear(&self, context: &Context) -> Result<(), cuda_driver::Error> {
        let _relaxed = RelaxedCapture::enter(context.driver())?;
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        // SAFETY: the memory is this long, and nobody else has been given it.
        unsafe { stream.fill_u8(self.ptr(), 0, self.bytes()) }?;
        stream.synchronize()
    }

    /// Where it is on this rank.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.mapping.ptr()
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The id that it is found again by, if it is persistent.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match self.inner.subject {
            Subject::Persistent { id } => Some(id),
            _ => None,
        }
    }
}

/// Maps `memory` for the device of `context`.
pub(crate) fn mapped(
    context: &Context,
    memory: &PhysicalMemory,
    bytes: usize,
) -> Result<Mapping, cuda_driver::Error> {
    let mapping = Reservation::new(context.driver(), bytes, 0)?.map(0, memory, 0, bytes)?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
    Ok(mapping)
}

/// A kind of device that memory can be on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A GPU of the CUDA driver.
    Cuda,
    /// Another, by its name.
    Other(String),
}

/// Makes memory that peers can map.
pub trait PeerAllocator: Send + Sync {
    /// Memory of at least `bytes`.
    ///
    /// # Errors
    /// [`AllocationError`].
    fn allocate(&self, bytes: usize) -> Result<PeerMemory, AllocationError>;

    /// The persistent memory of `id`: the same again, with its peers, once the last handle to it was dropped.
    ///
    /// # Errors
    /// [`AllocationError::StillAlive`]; [`AllocationError::OtherSize`]; what [`allocate`](Self::allocate) says.
    fn persistent(&self, id: u64, bytes: usize) -> Result<PeerMemory, AllocationError>;
}

/// Memory of a device of the CUDA driver.
#[derive(Debug)]
pub struct CudaAllocator {
    context: Context,
    handles: HandleTypes,
    persistent: Mutex<HashMap<u64, PeerMemory>>,
}

impl CudaAllocator {
    /// Memory that can be had by file descriptor, and by fabric handle too where the driver
    /// [grants](HandleTypes::granted) it.
    ///
    /// # Errors
    /// [`AllocationError::Driver`] if the device has no memory left to find out with.
    pub fn new(context: &Context) -> Result<Self, AllocationError> {
        Ok(Self::with_handles(context, HandleTypes::granted(context)?))
    }

    /// Memory that can be had in these ways and no others.
    #[must_use]
    pub fn with_handles(context: &Context, handles: HandleTypes) -> Self {
        Self { context: context.clone(), handles, persistent: Mutex::default() }
    }

    /// The ways in which its memory can be had.
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
        let mut persistent = self.persistent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = persistent.get(&id) {
            if Arc::strong_count(&memory.inner) > 1 {
                return Err(AllocationError::StillAlive { id });
            }
            if memory.bytes() != bytes {
                return Err(AllocationError::OtherSize { id, bytes: memory.bytes(), asked: bytes });
            }
            return Ok(memory.clone());
        }
        let memory = PeerMemory::about(&self.context, bytes, self.handles, Subject::Persistent { id })?;
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
    /// With one for the device of `context`.
    ///
    /// # Errors
    /// As [`CudaAllocator::new`].
    pub fn new(context: &Context) -> Result<Self, AllocationError> {
        let mut all = Self::default();
        all.register(DeviceKind::Cuda, Arc::new(CudaAllocator::new(context)?));
        Ok(all)
    }

    /// Takes `allocator` for memory of this kind; returns the one that was there.
    pub fn register(
        &mut self,
        kind: DeviceKind,
        allocator: Arc<dyn PeerAllocator>,
    ) -> Option<Arc<dyn PeerAllocator>> {
        self.by_kind.insert(kind, allocator)
    }

    /// The allocator for memory of this kind.
    ///
    /// # Errors
    /// [`AllocationError::NoAllocator`].
    pub fn of(&self, kind: &DeviceKind) -> Result<&dyn PeerAllocator, AllocationError> {
        let found = self.by_kind.get(kind).map(|allocator| &**allocator);
        found.ok_or_else(|| AllocationError::NoAllocator { kind: kind.clone() })
    }

    /// Memory of this kind for a tensor, persistent if it has an id.
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
