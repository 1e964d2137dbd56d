//! The addresses of every rank's memory, as seen by this rank.

use std::sync::Arc;

use cuda_driver::{Context, DevicePtr, memory::DeviceMemory};
use process_group::{
    comm::{CommError, Communicator, Window},
    store::Deadline,
};

use crate::{kernels::OwnBuffer, sharing::Imported};

/// The reason why a [`Window`] of NCCL has no peer addresses on this rank.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowPeersError {
    /// This rank's device cannot access another rank's memory directly: the rank is on another host, or neither NVLink
    /// nor PCIe gives peer access.
    #[error("the window of rank {rank} cannot be reached directly from here")]
    OutOfReach {
        /// The other rank, as a rank of the communicator.
        rank: usize,
    },
    /// The error of NCCL. NCCL reports the addresses since release 2.29. With an older release, the error is
    /// [`CommError::Missing`]. [`rendezvous`](super::Rendezvous::rendezvous) also provides [`PeerBuffers`], and needs
    /// no particular release of NCCL.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The error of the driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

/// The origin of the addresses of peers' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// This crate has mapped the peers' memory on this rank.
    Mapped,
    /// NCCL has mapped the peers' memory for a window.
    Window,
}

/// The addresses at which this rank's device accesses the memory of every rank of a group, in the group's order. They
/// are available on the host, and as an array for kernels.
///
/// Either this crate or NCCL has mapped the peers' memory. Memory that this crate has mapped ([`Origin::Mapped`]) stays
/// mapped until this value is dropped, even if the owning rank is gone. NCCL's mappings ([`Origin::Window`]) exist only
/// while the window is registered.
#[derive(Debug)]
pub struct PeerBuffers {
    addresses: Vec<DevicePtr>,
    /// Registers this rank's memory under the address of `array`. When a graph captures a kernel that uses the array,
    /// the launch code finds the memory by this address, and keeps it allocated for the graph. Declared before `array`,
    /// so that the registration is removed first: once `array` is freed, another array can get its address.
    _own: OwnBuffer,
    array: DeviceMemory,
    bytes: usize,
    origin: Origin,
    /// The peers' memory that this rank has mapped. Empty for [`Origin::Window`]. Declared after `array`, so that the
    /// array is freed before the memory at the addresses in it is unmapped.
    _mapped: Vec<Imported>,
}

impl PeerBuffers {
    /// Creates the value from memory that this rank has mapped. `opened` has one entry for each rank: the mapping of
    /// that rank's memory, or `None` for this rank, whose own memory is at the address `own`.
    pub(crate) fn mapped(
        context: &Context,
        own: DevicePtr,
        bytes: usize,
        opened: Vec<Option<Imported>>,
    ) -> Result<Self, cuda_driver::Error> {
        let address = |it: &Option<Imported>| it.as_ref().map_or(own, Imported::base);
        let addresses: Vec<DevicePtr> = opened.iter().map(address).collect();
        let mapped = opened.into_iter().flatten().collect();
        Self::new(context, (own, bytes), addresses, Origin::Mapped, mapped)
    }

    /// Returns the addresses of every rank's memory in a window of `communicator`. NCCL has mapped this memory. Needs
    /// NCCL 2.29 or later. Contacts no other rank. `deadline` limits the calls of NCCL.
    ///
    /// # Safety
    /// The addresses are valid only while the window is registered. They must not be used after that.
    ///
    /// # Errors
    /// - [`WindowPeersError::OutOfReach`] if this device cannot access the memory of a rank.
    /// - [`WindowPeersError::Comm`] with the errors of [`Communicator::window_peers`].
    /// - [`WindowPeersError::Driver`] if the array of the addresses cannot be allocated or filled.
    pub unsafe fn of_window(
        communicator: &Communicator,
        window: &Window,
        deadline: Deadline,
    ) -> Result<Self, WindowPeersError> {
        let peers = communicator.window_peers(window, deadline)?;
        let reached = |(rank, address): (usize, &Option<DevicePtr>)| {
            address.ok_or(WindowPeersError::OutOfReach { rank })
        };
        let addresses = peers.iter().enumerate().map(reached).collect::<Result<Vec<_>, _>>()?;
        let own = (window.ptr(), window.bytes());
        Ok(Self::new(communicator.context(), own, addresses, Origin::Window, Vec::new())?)
    }

    /// `own` is the address of this rank's memory. `bytes` is the length of the memory of each rank.
    fn new(
        context: &Context,
        (own, bytes): (DevicePtr, usize),
        addresses: Vec<DevicePtr>,
        origin: Origin,
        _mapped: Vec<Imported>,
    ) -> Result<Self, cuda_driver::Error> {
        let words: Vec<u64> = addresses.iter().map(|address| address.0).collect();
        let array = DeviceMemory::new(context, size_of_val(&*words).max(1))?;
        array.copy_from_host(0, &words)?;
        // SAFETY: `array` is new, and owned by the value that has the registration.
        let _own = unsafe { OwnBuffer::enter(array.ptr(), own) };
        Ok(Self { addresses, _own, array, bytes, origin, _mapped })
    }

    /// The addresses on the host, in the group's order.
    #[must_use]
    #[doc(alias = "get_buffer_ptrs")]
    pub fn addresses(&self) -> &[DevicePtr] {
        &self.addresses
    }

    /// The address of an array in this device's memory that contains the [`addresses`](Self::addresses), 8 bytes each.
    #[must_use]
    #[doc(alias = "get_buffer_ptrs_dev")]
    pub fn array(&self) -> DevicePtr {
        self.array.ptr()
    }

    /// The size of the memory at each address, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The origin of the addresses.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

/// The mappings of the peers' allocations that correspond to one allocation of this rank, with the addresses of all
/// ranks' allocations. This rank's allocation stores at most one value of this type for each
/// [`PeerGroup`](super::PeerGroup), a group whose members map each other's memory.
#[derive(Debug, Clone)]
pub(crate) struct PeerMapping {
    /// A number that identifies the mapping within the `PeerGroup`, equal on all members. It depends on the operation
    /// that mapped the allocations:
    /// - A [rendezvous](super::Rendezvous::rendezvous): the number of that rendezvous.
    /// - A [commit](crate::SymmetricPool::commit) of a pool, whose allocations are its segments: the number of the
    ///   segment in the group's list of [mapped segments](crate::membership::MappedSegments).
    pub(crate) number: u64,
    pub(crate) buffers: Arc<PeerBuffers>,
}
