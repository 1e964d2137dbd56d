//! Where every rank's memory lies, as this rank sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_driver::{Context, DevicePtr, memory::DeviceMemory, vmm::Mapping};
use process_group::{
    comm::{CommError, Communicator, Window},
    store::Deadline,
};

use crate::{agreement::GroupId, kernels::OwnBuffer, pool::SymmetricBlock};

/// Why a window has no addresses here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowPeersError {
    /// A rank's memory cannot be reached directly: it is on another host, or not linked.
    #[error("the window of rank {rank} cannot be reached directly from here")]
    OutOfReach {
        /// The rank, in the communicator.
        rank: usize,
    },
    /// The block is in no window of the group.
    #[error(
        "segment {ordinal} is no window of group {group}; commit its pool for the group first, or hold a rendezvous for \
         the block, which needs no window"
    )]
    NoWindow {
        /// The block's segment.
        ordinal: u32,
        /// The group.
        group: GroupId,
    },
    /// The library. Before 2.29 it does not tell: [`CommError::Missing`] names that release. A
    /// [rendezvous](super::Rendezvous::rendezvous) for the same buffer gives the same type with every release.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

/// How peers' memory came to have addresses here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// This rank has mapped it.
    Mapped,
    /// NCCL has, for a window.
    Window,
}

/// The address of every rank's memory as this rank's device sees it, in the group's order: on the host, and as an array
/// for kernels. One type, whether this rank has mapped the memory or NCCL has.
///
/// What is mapped stays until this value is gone, whatever becomes of the ranks that it belongs to.
#[derive(Debug)]
pub struct PeerBuffers {
    addresses: Vec<DevicePtr>,
    /// Before the array.
    _own: Option<OwnBuffer>,
    array: DeviceMemory,
    bytes: usize,
    origin: Origin,
    /// After the array, which names them.
    _mapped: Vec<Mapping>,
    /// What must not be retired meanwhile.
    _block: Option<SymmetricBlock>,
}

impl PeerBuffers {
    /// Of all ranks' memory, of which this one's is at `place`.
    pub(super) fn mapped(
        context: &Context,
        (place, addresses): (usize, Vec<DevicePtr>),
        bytes: usize,
        mapped: Vec<Mapping>,
    ) -> Result<Self, cuda_driver::Error> {
        let array = array(context, &addresses)?;
        let _own = addresses.get(place).map(|own| OwnBuffer::enter(array.ptr(), *own));
        Ok(Self { addresses, _own, array, bytes, origin: Origin::Mapped, _mapped: mapped, _block: None })
    }

    /// The ranks' memory behind a window of `communicator`, as NCCL has mapped it (2.29 and later). Local.
    ///
    /// # Safety
    /// The addresses are valid while the window is registered: nothing uses them after that.
    ///
    /// # Errors
    /// [`WindowPeersError::OutOfReach`] for a rank whose memory this one's device does not reach; else as
    /// [`Communicator::window_peers`], which needs NCCL 2.29.
    pub unsafe fn of_window(
        communicator: &Communicator,
        window: &Window,
        deadline: Deadline,
    ) -> Result<Self, WindowPeersError> {
        Self::inside_window(communicator, window, 0, window.bytes(), deadline)
    }

    /// The same of a pool's block, which begins at `offset` in the window.
    pub(crate) fn of_block(
        communicator: &Communicator,
        window: &Window,
        offset: u64,
        block: &SymmetricBlock,
        deadline: Deadline,
    ) -> Result<Self, WindowPeersError> {
        let buffers = Self::inside_window(communicator, window, offset, block.bytes() as usize, deadline)?;
        Ok(Self { _block: Some(block.clone()), ..buffers })
    }

    fn inside_window(
        communicator: &Communicator,
        window: &Window,
        offset: u64,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Self, WindowPeersError> {
        let found = communicator.window_peers(window, deadline)?;
        let reached = |(rank, address): (usize, &Option<DevicePtr>)| {
            address.map(|begin| begin + offset as usize).ok_or(WindowPeersError::OutOfReach { rank })
        };
        let addresses = found.iter().enumerate().map(reached).collect::<Result<Vec<_>, _>>()?;
        let array = array(communicator.context(), &addresses)?;
        let (origin, _mapped) = (Origin::Window, Vec::new());
        let _own = Some(OwnBuffer::enter(array.ptr(), window.ptr() + offset as usize));
        Ok(Self { addresses, _own, array, bytes, origin, _mapped, _block: None })
    }

    /// The addresses, in the group's order.
    #[must_use]
    #[doc(alias = "get_buffer_ptrs")]
    pub fn addresses(&self) -> &[DevicePtr] {
        &self.addresses
    }

    /// An array of the addresses, 8 bytes each, in this device's memory.
    #[must_use]
    #[doc(alias = "get_buffer_ptrs_dev")]
    pub fn array(&self) -> DevicePtr {
        self.array.ptr()
    }

    /// How much lies at each address, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How it came to be here.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

fn array(context: &Context, addresses: &[DevicePtr]) -> Result<DeviceMemory, cuda_driver::Error> {
    let words: Vec<u64> = addresses.iter().map(|address| address.0).collect();
    let array = DeviceMemory::new(context, size_of_val(&*words).max(1))?;
    array.copy_from_host(0, &words)?;
    Ok(array)
}

/// A group's rendezvous, as allocations know it.
pub(super) type Seat = Arc<()>;

/// An allocation's peers, by the group's rendezvous and the number of the segment. They lie with the allocation, and so
/// go with it.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    homes: Mutex<Vec<Home>>,
}

#[derive(Debug)]
struct Home {
    group: Weak<()>,
    ordinal: u32,
    since: u64,
    buffers: Arc<PeerBuffers>,
}

impl Home {
    fn is(&self, group: &Seat, ordinal: u32) -> bool {
        self.ordinal == ordinal && std::ptr::eq(self.group.as_ptr(), Arc::as_ptr(group))
    }
}

impl Homes {
    fn lock(&self) -> MutexGuard<'_, Vec<Home>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peers of a segment, and the rendezvous in which they were mapped.
    pub(super) fn get(&self, group: &Seat, ordinal: u32) -> Option<(u64, Arc<PeerBuffers>)> {
        let homes = self.lock();
        let home = homes.iter().find(|home| home.is(group, ordinal))?;
        Some((home.since, home.buffers.clone()))
    }

    /// Forgets the peers of these segments, in all groups: what was mapped of them is unmapped, unless a handle keeps it.
    pub(crate) fn forget(&self, ordinals: &[u32]) {
        self.lock().retain(|home| !ordinals.contains(&home.ordinal));
    }

    /// Keeps a segment's peers; those of groups that are gone go.
    pub(super) fn put(&self, group: &Seat, ordinal: u32, since: u64, buffers: Arc<PeerBuffers>) {
        let mut homes = self.lock();
        homes.retain(|home| home.group.strong_count() > 0 && !home.is(group, ordinal));
        homes.push(Home { group: Arc::downgrade(group), ordinal, since, buffers });
    }
}
