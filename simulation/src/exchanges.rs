//! The state of a rank's one-sided exchanges.
//!
//! In an exchange, the members of a group agree on a *plan*, a list of transfers between them. For the transfers, the
//! ranks *lend* each other memory: a peer *opens* it, that is, maps it, and reads or writes it. They also lend each
//! other *slots*. A slot is a few words of memory in which a peer signals, for example, the end of a transfer. Plans
//! have names. Each new plan of a name gets a higher *generation*, and the earlier plans of the name can run no more
//! transfers.
//!
//! A rank *closes* a plan by unmapping the peers' memory that the plan uses, and reports this to the peers. Until all
//! peers have closed the plan too, they may access the memory and slots that the rank lends for it. So the rank keeps
//! these under a *lease*, for a limited time. If the lease expires before all peers have closed the plan, the plan is
//! in *quarantine*: it keeps its memory and slots until the end of the run.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Weak},
};

use caching_alloc::core::{SegmentMemory, SegmentSource};
use memory_sharing::Imported;
use symm_agreement::exchange::{AllocationId, End, Route};
use symm_mem::internals::{Generations, Handles, Lease, Open, Slots};

use crate::{device::Device, violation::Violation};

/// The number of signal slots that a rank has for its peers in a group.
pub(crate) const CHANNELS: usize = 256;
/// The number of buffers that a rank lends in a group. For some transfers, the lender replaces the allocation of a
/// buffer by a new one. Earlier plans keep the old allocation.
pub(crate) const BUFFERS: u64 = 3;
pub(crate) const BUFFER_BYTES: u64 = 2 << 20;

/// An allocation that a rank lends. It is freed when the last reference to it is dropped.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) id: AllocationId,
    pub(crate) memory: SegmentMemory,
    /// A number that is unique among all allocations. The lender writes it to the start of the memory. A peer reads it
    /// through its mapping, to check that it has mapped this allocation.
    pub(crate) mark: u64,
    pub(crate) device: Arc<Device>,
}

impl Allocation {
    /// Allocates [`BUFFER_BYTES`] bytes on `device`, and writes `mark` at their start.
    pub(crate) fn new(device: &Arc<Device>, id: AllocationId, mark: u64) -> Result<Self, Violation> {
        let memory = device.allocate(BUFFER_BYTES).map_err(Violation::of)?;
        let allocation = Self { id, memory, mark, device: device.clone() };
        device.write(memory.address, mark)?;
        Ok(allocation)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // If the release fails, `Device::release` records the error, and `check_released` reports it.
        let _ = self.device.release(&self.memory);
    }
}

/// A peer's allocation that this rank has opened, and the opened memory. The reference is weak, so that only the peer
/// keeps the allocation. If an upgrade fails, the peer has freed the memory.
#[derive(Debug)]
pub(crate) struct Import(pub(crate) Weak<Allocation>, pub(crate) Imported);

/// A plan on one rank. Usually all members have agreed on it. If the rank does not know the result of the plan's
/// exchange, the other members may have agreed on the plan. So the rank then keeps the plan too, under a lease.
pub(crate) struct ExchangePlan {
    /// The key of the plan's exchange. All store keys of the exchange begin with it.
    pub(crate) key: String,
    pub(crate) generation: u64,
    pub(crate) slots: Range<usize>,
    pub(crate) peers: Vec<u32>,
    /// The peer's end of each transfer of this rank: the peer's slot and, if this rank is the
    /// [copier](DrawnTransfer::copier), the peer's memory. Empty if this rank does not know the result of the exchange.
    pub(crate) routes: Vec<Route>,
    /// The peers' memory that the transfers access.
    pub(crate) imports: Open<Import>,
    /// The allocations that this rank lends for the plan. The plan only keeps them from being freed.
    pub(crate) _lent: Vec<Arc<Allocation>>,
}

/// The plans of a group with the same name, on one rank.
#[derive(Default)]
pub(crate) struct Named {
    /// The current generation, in the type of `symm-mem` that the simulation tests.
    pub(crate) generations: Generations,
    /// The generation of the last plan that this rank has agreed on. The rank may execute only the transfers of this
    /// plan. The simulation checks `generations` against this value.
    pub(crate) agreed: u64,
    /// The plans that the rank has not closed, in the order in which the rank has agreed on them.
    pub(crate) plans: Vec<ExchangePlan>,
}

/// A rank's exchanges in a group.
pub(crate) struct Exchanges {
    pub(crate) device: Arc<Device>,
    /// The number of the group's next exchange on this rank. The [key](ExchangePlan::key) of an exchange contains its
    /// number.
    pub(crate) next_number: u64,
    /// The current allocation of each buffer that the rank lends, by the index of the buffer, which is below
    /// [`BUFFERS`].
    pub(crate) buffers: BTreeMap<u64, Arc<Allocation>>,
    /// The plans that the rank has not closed, by name.
    pub(crate) plans: BTreeMap<u64, Named>,
    /// The peers' memory that is open on this rank.
    pub(crate) handles: Handles<Import>,
    /// The slots that the rank lends to its peers.
    pub(crate) slots: Slots,
    /// The plans whose memory and slots peers may still access, although this rank has closed the plan or does not know
    /// the result of the plan's exchange.
    pub(crate) leases: Vec<(ExchangePlan, Lease)>,
    /// The plans whose leases have expired before all peers had closed the plan.
    pub(crate) quarantine: Vec<ExchangePlan>,
}

impl Exchanges {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            next_number: 0,
            buffers: BTreeMap::new(),
            plans: BTreeMap::new(),
            handles: Handles::default(),
            slots: Slots::new(CHANNELS),
            leases: Vec::new(),
            quarantine: Vec::new(),
        }
    }

    /// Returns true if `slot` belongs to the plan with this [key](ExchangePlan::key). Plans under a lease or in
    /// quarantine count too.
    pub(crate) fn has_slot(&self, key: &str, slot: usize) -> bool {
        let plans = self.plans.values().flat_map(|named| &named.plans).chain(&self.quarantine);
        let mut plans = plans.chain(self.leases.iter().map(|(plan, _)| plan));
        plans.any(|plan| plan.key == key && plan.slots.contains(&slot))
    }
}

/// The exchange that a rank takes part in now.
pub(crate) struct Exchanging {
    pub(crate) group: u64,
    pub(crate) name: u64,
    pub(crate) key: String,
    pub(crate) slots: Range<usize>,
    /// This rank's ends of its transfers, in the order of `transfers`. Each end has one of `slots`.
    pub(crate) ends: Vec<End>,
    /// The allocation that this rank lends for each transfer in which it is the lender.
    pub(crate) lent: Vec<Arc<Allocation>>,
    /// The peers' memory that was open on this rank before the exchange. It is listed in the rank's [record](super)
    /// (its message to the other members), and stays open during the exchange.
    pub(crate) held: Open<Import>,
    /// The peers' memory that the rank has opened in this exchange.
    pub(crate) opened: Open<Import>,
    /// The transfers between all members.
    pub(crate) transfers: Vec<DrawnTransfer>,
}

/// A one-sided transfer: the rank `copier` accesses a buffer that the rank `lender` lends. All members draw the same
/// transfers from the seed of the exchange.
#[derive(Debug, Clone)]
pub(crate) struct DrawnTransfer {
    pub(crate) copier: u32,
    pub(crate) lender: u32,
    /// True if the copier writes to the buffer, false if it reads from it.
    pub(crate) puts: bool,
    /// The index of the lender's buffer, below [`BUFFERS`].
    pub(crate) buffer: u64,
    /// True if the lender first replaces the allocation of the buffer by a new one.
    pub(crate) fresh: bool,
    pub(crate) bytes: u64,
    /// The offset in the buffer, in bytes.
    pub(crate) offset: u64,
}
