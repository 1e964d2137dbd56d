//! The state of a rank's one-sided exchanges. In an exchange, the members of a group agree on a *plan*, a list of
//! transfers between them. For the transfers, the ranks lend each other memory and *slots*, which are places for the
//! signals of a peer.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Weak},
};

use bootstrap::agreement::Agreement;
use caching_alloc::core::{SegmentMemory, SegmentSource};
use cuda_driver::vmm::Mapping;

use super::device::Device;
use crate::exchange::{
    generation::Generations,
    handles::{Handles, Open},
    lease::Lease,
    protocol::{self, AllocationId, End, ExchangeProtocol, Route},
    slots::Slots,
};

/// The number of signal slots that a rank has for its peers in a group.
pub(super) const CHANNELS: usize = 256;
/// The number of buffers that a rank lends in a group. A transfer may replace the allocation of a buffer by a new one.
/// Earlier plans keep the replaced allocation.
pub(super) const BUFFERS: u64 = 3;
pub(super) const BUFFER_BYTES: u64 = 2 << 20;

/// Memory that a rank lends. It is freed when the last reference to it is dropped.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) id: AllocationId,
    pub(super) memory: SegmentMemory,
    /// The number at the start of the memory. A peer that reads it through its mapping knows that it has mapped this
    /// allocation.
    pub(super) mark: u64,
    pub(super) device: Arc<Device>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // If the release fails, `Device::release` records the error, and `left_plans` reports it at the end of the run.
        let _ = self.device.release(&self.memory);
    }
}

/// A peer's memory, opened by this rank, and its mapping.
#[derive(Debug)]
pub(super) struct Import(pub(super) Weak<Allocation>, pub(super) Mapping);

/// A plan of a rank. Either all members have agreed on it, or its exchange has failed on this rank, but the other
/// members may have agreed on it.
pub(super) struct Plan {
    pub(super) key: String,
    pub(super) generation: u64,
    pub(super) slots: Range<usize>,
    pub(super) peers: Vec<u32>,
    pub(super) routes: Vec<Route>,
    pub(super) imports: Open<Import>,
    pub(super) _lent: Vec<Arc<Allocation>>,
}

/// The plans with one name.
#[derive(Default)]
pub(super) struct Named {
    pub(super) generations: Generations,
    /// The last agreed generation known to this rank.
    pub(super) agreed: u64,
    pub(super) plans: Vec<Plan>,
}

/// A rank's exchanges in a group.
pub(super) struct Exchanges {
    pub(super) device: Arc<Device>,
    /// The number of the next exchange.
    pub(super) numbers: u64,
    pub(super) buffers: BTreeMap<u64, Arc<Allocation>>,
    pub(super) plans: BTreeMap<u64, Named>,
    pub(super) handles: Handles<Import>,
    pub(super) slots: Slots,
    pub(super) leases: Vec<(Plan, Lease)>,
    pub(super) quarantine: Vec<Plan>,
}

impl Exchanges {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            numbers: 0,
            buffers: BTreeMap::new(),
            plans: BTreeMap::new(),
            handles: Handles::default(),
            slots: Slots::new(CHANNELS),
            leases: Vec::new(),
            quarantine: Vec::new(),
        }
    }

    /// Returns true if `slot` belongs to the plan with this key. Plans under a lease or in quarantine count too.
    pub(super) fn has_slot(&self, key: &str, slot: usize) -> bool {
        let plans = self.plans.values().flat_map(|named| &named.plans).chain(&self.quarantine);
        let mut plans = plans.chain(self.leases.iter().map(|(plan, _)| plan));
        plans.any(|plan| plan.key == key && plan.slots.contains(&slot))
    }
}

/// A rank's current exchange.
pub(super) struct Exchanging {
    pub(super) machine: Agreement<ExchangeProtocol>,
    /// The agreed plan of the members, after the state machine has asked the rank to open the peers' memory for it.
    pub(super) acted: Option<protocol::Agreement>,
    pub(super) group: u64,
    pub(super) name: u64,
    pub(super) key: String,
    pub(super) slots: Range<usize>,
    pub(super) ends: Vec<End>,
    pub(super) lent: Vec<Arc<Allocation>>,
    /// The peers' memory that this rank's record lists as open. It stays open during the exchange.
    pub(super) held: Open<Import>,
    pub(super) opened: Open<Import>,
    pub(super) transfers: Vec<Transfer>,
}

/// A one-sided transfer. All members draw the same transfers from the seed.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) copier: u32,
    pub(super) lender: u32,
    pub(super) puts: bool,
    pub(super) buffer: u64,
    /// True if the lender allocates new memory for this transfer.
    pub(super) fresh: bool,
    pub(super) bytes: u64,
    pub(super) offset: u64,
}
