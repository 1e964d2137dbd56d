//! The state of regions: this rank's regions, and for each peer its regions and the signals between the two ranks.

use std::sync::{Arc, Mutex};

use super::{
    super::{
        Owner,
        core::{Core, Wire},
    },
    descriptor::Extents,
};

/// Index of the only [`Wire`] in the [`Core`] of a [`Peer`].
pub(super) const WIRE: usize = 0;

/// The state of a set of regions, which the clones of [`Regions`](super::Regions) share.
pub(super) struct Inner {
    pub(super) owner: Arc<Owner>,
    pub(super) name: String,
    pub(super) generation: u64,
    /// This rank's regions: name and size of each.
    pub(super) own: Vec<RegionInfo>,
    pub(super) extents: Vec<Extents>,
    /// The peers, indexed by their rank in the group; `None` for this rank, and for ranks that do not share the
    /// regions.
    pub(super) peers: Vec<Option<Peer>>,
}

impl Drop for Inner {
    /// Hands the regions to the exchange's closing thread. The thread waits for transfers under way and tells the peers
    /// that no further notification comes. Then it closes the peers' memory, and tells the peers that this rank has
    /// closed it.
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
    pub(super) extents: Vec<Extents>,
    /// Number of notifications for which this rank has enqueued a wait. The counter wraps.
    pub(super) waits: Mutex<u32>,
}

impl Peer {
    pub(super) fn wire(&self) -> &Wire {
        &self.core.wires[WIRE]
    }
}

/// Name and size of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    name: String,
    bytes: usize,
}

impl RegionInfo {
    pub(super) fn new(name: &str, bytes: usize) -> Self {
        Self { name: name.to_owned(), bytes }
    }

    /// The name under which its rank shares the region.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length of the region in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
