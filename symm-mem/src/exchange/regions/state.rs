//! The state of regions: those of this rank, and those of each peer with the signals of the pair.

use std::sync::{Arc, Mutex};

use super::{
    super::{
        Owner,
        core::{Core, Wire},
        quiet::Rounds,
    },
    descriptor::Extents,
};

/// The index of the only wire of the state of a rank and one peer.
pub(super) const WIRE: usize = 0;

/// The state of regions. Their handles share it, and the last one of them drops it.
pub(super) struct Inner {
    pub(super) owner: Arc<Owner>,
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) own: Vec<RegionInfo>,
    pub(super) extents: Vec<Extents>,
    /// The peers by their places in the group; `None` for this rank, and for those that do not share the regions.
    pub(super) peers: Vec<Option<Peer>>,
}

impl Drop for Inner {
    /// Hands the regions to the exchange's threads: they wait for transfers under way, then tell the peers.
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
    /// Notifications that this rank has enqueued or the peer waits for, if both are in this process.
    pub(super) sent: Rounds,
    /// Notifications that the peer has enqueued or this rank waits for, if both are in this process.
    pub(super) received: Rounds,
    /// Number of notifications that this rank has waited for.
    pub(super) waits: Mutex<u32>,
}

impl Peer {
    pub(super) fn wire(&self) -> Option<&Wire> {
        self.core.wires.get(WIRE)
    }

    pub(super) fn rank(&self) -> u32 {
        self.wire().map_or(u32::MAX, |wire| wire.peer)
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

    /// The name that its rank gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
