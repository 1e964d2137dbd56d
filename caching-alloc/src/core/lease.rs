//! What a shard has of its heap: blocks that are handed out, kept for the next request, or still in use elsewhere.

use std::panic::Location;

use super::heap::{BlockId, NONE};
use super::pending::NOBODY;
use super::size::Units;

/// What a leased block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// Not leased: the heap's, or another shard's.
    None,
    /// Handed out.
    Owned,
    /// Free but kept whole, for a request of the same length.
    Kept,
    /// Let go by its owner, in use by other streams.
    Pending,
}

/// A block that the shard has got from its heap. Two of them share a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Lease {
    /// First byte.
    pub(super) address: u64,
    /// What its owner asked for, in bytes.
    pub(super) requested: u64,
    /// Its length.
    pub(super) units: Units,
    /// The next of those that are kept together with it.
    pub(super) link: BlockId,
    /// The other streams that use it.
    pub(super) uses: u32,
    pub(super) tenancy: Tenancy,
}

const _: () = assert!(size_of::<Lease>() == 32);

/// The leases of a shard, by the heap's names of their blocks.
#[derive(Debug, Default)]
pub(super) struct Leases {
    all: Vec<Lease>,
    /// Where each was asked for: written with every block, read by hardly anyone.
    sites: Vec<&'static Location<'static>>,
}

impl Leases {
    /// Takes a block over from the heap, as handed out.
    #[inline]
    pub(super) fn add(&mut self, block: BlockId, address: u64, units: Units) {
        if self.all.len() <= block as usize {
            self.grow(block as usize + 1);
        }
        self.all[block as usize] =
            Lease { address, requested: 0, units, link: NONE, uses: NOBODY, tenancy: Tenancy::Owned };
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        let none =
            Lease { address: 0, requested: 0, units: 0, link: NONE, uses: NOBODY, tenancy: Tenancy::None };
        self.all.resize(length, none);
        self.sites.resize(length, Location::caller());
    }

    /// Ends a lease; the block is the heap's again.
    #[inline]
    pub(super) fn end(&mut self, block: BlockId) {
        self.all[block as usize].tenancy = Tenancy::None;
    }

    /// Notes what the owner of a block asked for, and where.
    #[inline]
    pub(super) fn set_request(&mut self, block: BlockId, requested: u64, site: &'static Location<'static>) {
        self.all[block as usize].requested = requested;
        self.sites[block as usize] = site;
    }

    /// Where a block was asked for.
    pub(super) fn site(&self, block: BlockId) -> &'static Location<'static> {
        self.sites[block as usize]
    }

    /// A block, if it is leased.
    pub(super) fn get(&self, block: BlockId) -> Option<&Lease> {
        self.all.get(block as usize).filter(|lease| lease.tenancy != Tenancy::None)
    }
}

impl std::ops::Index<BlockId> for Leases {
    type Output = Lease;
    #[inline]
    fn index(&self, block: BlockId) -> &Lease {
        &self.all[block as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Leases {
    #[inline]
    fn index_mut(&mut self, block: BlockId) -> &mut Lease {
        &mut self.all[block as usize]
    }
}
