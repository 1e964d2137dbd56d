//! The result of a [rendezvous](super::Rendezvous::rendezvous): the addresses of every rank's buffer and signal pad. A
//! signal pad is device memory in which a rank receives signals from the other ranks.

use std::{fmt, sync::Arc};

use cuda_driver::{Context, DevicePtr};

use super::{Buffer, Layout, PeerBuffers, PeerGroup};
use crate::kernels::PadLayout;

/// The reason why a [view](PeerView) of a rank's memory cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The rank is not in the group.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of ranks in the group.
        world: usize,
    },
    /// The view exceeds the buffer, or the [part of the signal pad](SymmetricMemory::signal_pad) that programs may use.
    #[error("a view of {needed:?} bytes at byte {offset:?} leaves the {what} of {bytes} bytes")]
    OutOfBounds {
        /// The memory that the view exceeds: `buffer` or `signal pad`.
        what: &'static str,
        /// The offset of the view in bytes, or `None` on overflow.
        offset: Option<usize>,
        /// The size of the view in bytes, or `None` on overflow.
        needed: Option<usize>,
        /// The size of the buffer, or of the part of the pad that programs may use, in bytes.
        bytes: usize,
    },
}

/// A tensor in the memory of this rank or of a peer. The address is valid on this rank's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerView {
    /// The address of the tensor's first element.
    pub ptr: DevicePtr,
    /// The tensor's shape, strides and data type.
    pub layout: Layout,
}

/// This rank's buffer, the corresponding buffers of all other ranks of a group, and the ranks' signal pads: device
/// memory by which the ranks signal each other. Cloning is cheap, and contacts no other rank.
///
/// This rank's memory stays allocated, and the other ranks' memory stays mapped, at least until all clones of this
/// value are dropped. Do not drop the last clone while work on the device uses the memory: unmapping does not wait for
/// that work.
#[derive(Clone)]
pub struct SymmetricMemory {
    pub(super) group: Arc<PeerGroup>,
    pub(super) buffer: Buffer,
    pub(super) peers: Arc<PeerBuffers>,
}

impl SymmetricMemory {
    /// `peers` has the addresses of the members' whole allocations, which contain their buffers.
    pub(crate) fn new(group: Arc<PeerGroup>, buffer: Buffer, peers: Arc<PeerBuffers>) -> Self {
        Self { group, buffer, peers }
    }

    /// This rank's index in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.info.rank()
    }

    /// The number of ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.group.info.world_size()
    }

    /// The group's members as ranks of the job, in the group's order.
    #[must_use]
    #[doc(alias = "get_rank_to_global_rank")]
    pub fn global_ranks(&self) -> &[u32] {
        self.group.info.global_ranks()
    }

    /// The context of this rank's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.group.context
    }

    /// The buffer on this rank.
    #[must_use]
    pub fn own(&self) -> &Buffer {
        &self.buffer
    }

    /// The addresses of the ranks' whole allocations (segments, if the buffers are blocks of a
    /// [pool](crate::SymmetricPool)). Each allocation contains the buffer of its rank, at [`offset`](Self::offset)
    /// bytes.
    #[must_use]
    pub fn buffers(&self) -> &PeerBuffers {
        &self.peers
    }

    /// The addresses of the ranks' signal pads. The pads belong to one [`Rendezvous`](super::Rendezvous) or, for the
    /// result of [`SymmetricPool::symmetric_memory`](crate::SymmetricPool::symmetric_memory), to one pool and group. No
    /// other `Rendezvous`, pool or group uses them.
    #[must_use]
    pub fn signal_pads(&self) -> &PeerBuffers {
        &self.group.pads().peers
    }

    /// The offset of the buffer in its allocation or segment, in bytes. It is equal on every rank.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.buffer.offset()
    }

    /// The buffer's length in bytes. It is equal on every rank.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// The length in bytes of the whole allocation or segment that contains the buffer on this rank. 0 if the pool has
    /// [retired](crate::SymmetricPool::retire) (freed) the segment.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.buffer.allocation().map_or(0, |allocation| allocation.bytes)
    }

    /// The address of a rank's buffer, as seen by this rank's device.
    ///
    /// # Errors
    /// [`ViewError::NoSuchRank`].
    pub fn buffer_ptr(&self, rank: usize) -> Result<DevicePtr, ViewError> {
        let no_rank = ViewError::NoSuchRank { rank, world: self.world_size() };
        self.peers.addresses().get(rank).map(|base| *base + self.offset()).ok_or(no_rank)
    }

    /// A tensor in the buffer of a rank, at `offset` elements from the start.
    ///
    /// # Errors
    /// [`ViewError::NoSuchRank`], or [`ViewError::OutOfBounds`] if the tensor exceeds the buffer.
    #[doc(alias = "get_remote_tensor")]
    pub fn buffer(&self, rank: usize, layout: &Layout, offset: usize) -> Result<PeerView, ViewError> {
        view("buffer", self.buffer_ptr(rank)?, self.bytes(), layout, offset)
    }

    /// A tensor in the signal pad of a rank, at `offset` elements from the start. The tensor must lie in the part of
    /// the pad that programs may use: the words of the first
    /// [`USER_CHANNELS`](crate::kernels::PadLayout::USER_CHANNELS) channels ([`PadLayout`] describes them).
    ///
    /// # Errors
    /// [`ViewError::NoSuchRank`], or [`ViewError::OutOfBounds`] if the tensor exceeds this part.
    pub fn signal_pad(&self, rank: usize, layout: &Layout, offset: usize) -> Result<PeerView, ViewError> {
        let pads = self.signal_pads();
        let no_rank = ViewError::NoSuchRank { rank, world: self.world_size() };
        let pad = *pads.addresses().get(rank).ok_or(no_rank)?;
        let bytes = PadLayout::new(self.world_size() as u32).slot(PadLayout::USER_CHANNELS, 0);
        view("signal pad", pad, bytes, layout, offset)
    }
}

fn view(
    what: &'static str,
    base: DevicePtr,
    bytes: usize,
    layout: &Layout,
    offset: usize,
) -> Result<PeerView, ViewError> {
    let (begin, length) = (offset.checked_mul(layout.data_type().size()), layout.bytes());
    let end = begin.zip(length).and_then(|(begin, length)| begin.checked_add(length));
    match (begin, end) {
        (Some(begin), Some(end)) if end <= bytes => {
            Ok(PeerView { ptr: base + begin, layout: layout.clone() })
        }
        _ => Err(ViewError::OutOfBounds { what, offset: begin, needed: length, bytes }),
    }
}

impl fmt::Debug for SymmetricMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, offset, info) = (self.bytes(), self.offset(), &self.group.info);
        write!(out, "SymmetricMemory({bytes} bytes at byte {offset}, {info:?})")
    }
}
