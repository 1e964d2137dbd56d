//! What a shard has of its heap: blocks that are handed out, kept for the next request, or still in use elsewhere.

use std::panic::Location;

use super::heap::BlockId;
use super::size::Units;

/// Index of a lease.
pub(super) type LeaseId = u32;

/// No lease.
pub(super) const NONE: LeaseId = LeaseId::MAX;

/// What a leased block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// Not a lease: a record that waits for one.
    Spare,
    /// Handed out.
    Owned,
    /// Free but kept whole, for a request of the same length.
    Kept,
    /// Let go by its owner, in use by other streams.
    Pending,
}

/// A block that the shard has got from its heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// First byte.
    pub(super) address: u64,
    /// What its owner asked for, in bytes, and where.
    pub(super) requested: u64,
    pub(super) site: &'static Location<'static>,
    /// The heap's name for it.
    pub(super) block: BlockId,
    /// Its length.
    pub(super) units: Units,
    /// The next in whatever list it is in.
    pub(super) link: LeaseId,
    /// The other streams that use it.
    pub(super) uses: u32,
    pub(super) tenancy: Tenancy,
}

/// The leases of a shard: one table, whose records are used again.
#[derive(Debug)]
pub(super) struct Leases {
    all: Vec<Lease>,
    spare: LeaseId,
}

impl Default for Leases {
    fn default() -> Self {
        Self { all: Vec::new(), spare: NONE }
    }
}

impl Leases {
    /// Takes a block over from the heap, as handed out.
    pub(super) fn add(&mut self, block: BlockId, address: u64, units: Units) -> LeaseId {
        let site = Location::caller();
        let lease = Lease {
            address,
            requested: 0,
            site,
            block,
            units,
            link: NONE,
            uses: NONE,
            tenancy: Tenancy::Owned,
        };
        if self.spare == NONE {
            self.all.push(lease);
            u32::try_from(self.all.len() - 1).unwrap_or(NONE)
        } else {
            let id = self.spare;
            self.spare = self.all[id as usize].link;
            self.all[id as usize] = lease;
            id
        }
    }

    /// Ends a lease; its block is the heap's again.
    pub(super) fn end(&mut self, id: LeaseId) -> BlockId {
        let lease = &mut self.all[id as usize];
        lease.tenancy = Tenancy::Spare;
        lease.link = self.spare;
        self.spare = id;
        lease.block
    }

    /// All leases.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.all.iter().filter(|lease| lease.tenancy != Tenancy::Spare)
    }
}

impl std::ops::Index<LeaseId> for Leases {
    type Output = Lease;
    #[inline]
    fn index(&self, id: LeaseId) -> &Lease {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<LeaseId> for Leases {
    #[inline]
    fn index_mut(&mut self, id: LeaseId) -> &mut Lease {
        &mut self.all[id as usize]
    }
}
