//! The state of regions: this rank's regions, and for each peer its regions and the signals between the two ranks.

use std::sync::{Arc, Mutex};

use cuda_driver::DevicePtr;

use super::super::{
    ExchangeState,
    core::{Core, TransferEndpoint},
};

/// Index of the only [`TransferEndpoint`] in the [`Core`] of a [`Peer`].
pub(super) const ONLY_ENDPOINT: usize = 0;

/// The state of a set of regions, which the clones of [`Regions`](super::Regions) share.
pub(super) struct RegionsState {
    pub(super) owner: Arc<ExchangeState>,
    pub(super) name: String,
    pub(super) generation: u64,
    /// This rank's regions.
    pub(super) own: Vec<RegionInfo>,
    /// The peers, indexed by their rank in the group; `None` for this rank, and for ranks that do not share the
    /// regions.
    pub(super) peers: Vec<Option<Peer>>,
}

impl Drop for RegionsState {
    /// Hands the regions to the exchange's [closing thread](super::super::close). The thread waits for transfers under
    /// way and tells the peers that no further [notification](super::Regions::transfer_and_notify) comes. Then it
    /// closes (unmaps) the peers' memory, and tells the peers that this rank has closed it.
    fn drop(&mut self) {
        for peer in self.peers.iter().flatten() {
            self.owner.shared.closer.close(peer.core.clone());
        }
    }
}

/// The state of the transfers with one peer.
pub(super) struct Peer {
    pub(super) core: Arc<Core>,
    pub(super) regions: Vec<RegionInfo>,
    /// Number of notifications for which this rank has enqueued a wait. The counter wraps.
    pub(super) waits: Mutex<u32>,
}

impl Peer {
    pub(super) fn endpoint(&self) -> &TransferEndpoint {
        &self.core.endpoints[ONLY_ENDPOINT]
    }
}

/// Name and size of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    name: String,
    bytes: usize,
    /// The memory of the region, which may belong to a peer, in this rank's address space: address and length in bytes
    /// of each contiguous piece. There may be gaps between the pieces.
    pieces: Vec<(DevicePtr, usize)>,
}

impl RegionInfo {
    pub(super) fn new(name: &str, pieces: Vec<(DevicePtr, usize)>) -> Self {
        let bytes = pieces.iter().map(|(_, bytes)| bytes).sum();
        Self { name: name.to_owned(), bytes, pieces }
    }

    /// The name under which the owner of the region, this rank or a peer, shares it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length of the region in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Splits the `bytes` bytes from `offset` on into parts that lie in one piece each. Returns for each part its
    /// address, its length in bytes, and the index of its piece. The range must lie in the region.
    pub(super) fn parts(&self, offset: usize, bytes: usize) -> Vec<(DevicePtr, usize, usize)> {
        let (mut to_skip, mut left) = (offset, bytes);
        let mut parts = Vec::new();
        for (piece, (begin, length)) in self.pieces.iter().enumerate() {
            if left == 0 {
                break;
            }
            if to_skip >= *length {
                to_skip -= length;
                continue;
            }
            let taken = left.min(length - to_skip);
            parts.push((*begin + to_skip, taken, piece));
            (to_skip, left) = (0, left - taken);
        }
        parts
    }
}
