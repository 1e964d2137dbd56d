//! The published [`Table`] of a pool, and its [`Index`], which look-ups read.
//!
//! Getting the current index must cost much less than the search in it. So each thread caches a few of the indexes that
//! it has read. A look-up uses a cached index if the index has the pool's current version. An index contains only
//! numbers, so a thread may cache it even after the pool is dropped.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use caching_alloc::core::symmetric::Placement;
use process_group::group::places_changed;

use super::lookup::{BufferLocation, LookupError, RegistrationState, Table};
use crate::agreement::GroupId;

/// Up to this number of segments, a look-up finds the segment of an address by counting the segments that begin at or
/// before the address, which needs no branch. With more segments, it uses binary search.
const LINEAR_SEARCH_MAX: usize = 16;

/// The segments by address, and their states by group.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The version of the table that this index was made from. 0 if the index is not published.
    version: u64,
    /// The first address of each segment, ascending.
    begins: Vec<u64>,
    /// The end and the ordinal of each segment, in the order of `begins`.
    rest: Vec<(u64, u32)>,
    groups: Vec<(GroupId, Vec<RegistrationState>)>,
}

impl Index {
    pub(crate) fn of(table: &Table, version: u64) -> Self {
        let begins = table.ranges.iter().map(|range| range.begin).collect();
        let rest = table.ranges.iter().map(|range| (range.end, range.ordinal)).collect();
        let groups = table.groups.iter().map(|(id, it)| (*id, it.states.clone())).collect();
        Self { version, begins, rest, groups }
    }

    /// Returns the first address, the end and the ordinal of the segment that contains `address`, or `None` if no
    /// segment contains it.
    #[inline]
    fn segment_at(&self, address: u64) -> Option<(u64, u64, u32)> {
        let after = match self.begins.len() {
            ..=LINEAR_SEARCH_MAX => self.begins.iter().map(|begin| usize::from(*begin <= address)).sum(),
            _ => self.begins.partition_point(|begin| *begin <= address),
        };
        let at = after.checked_sub(1)?;
        let ((end, ordinal), begin) = (*self.rest.get(at)?, *self.begins.get(at)?);
        (address < end).then_some((begin, end, ordinal))
    }

    #[inline]
    fn state(&self, ordinal: u32, group: GroupId) -> RegistrationState {
        let of_group = self.groups.iter().find(|(id, _)| *id == group);
        let state = of_group.and_then(|(_, states)| states.get(ordinal as usize));
        state.copied().unwrap_or(RegistrationState::Pending)
    }

    #[inline]
    pub(crate) fn lookup(
        &self,
        address: u64,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<BufferLocation>, LookupError> {
        let Some(placement) = self.place(address, bytes)? else { return Ok(None) };
        let state = self.state(placement.ordinal, group);
        Ok(Some(BufferLocation { placement, state }))
    }

    /// Returns the segment that contains the `bytes` bytes at `address`, and their offset in the segment. Returns
    /// `None` if they do not begin in a segment, and an error if they begin in a segment and extend beyond it.
    #[inline]
    fn place(&self, address: u64, bytes: u64) -> Result<Option<Placement>, LookupError> {
        let Some((begin, end, ordinal)) = self.segment_at(address) else { return Ok(None) };
        if bytes > end - address {
            return Err(LookupError::SpansSegments { address, bytes, ordinal, end });
        }
        Ok(Some(Placement { ordinal, offset: address - begin }))
    }
}

/// The version of the next table that any pool publishes. No two tables of the process have the same version.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// The number of indexes that a thread caches.
const CACHE_SLOTS: usize = 4;

thread_local! {
    /// The indexes that this thread caches. The index of a pool is at position [`Published::slot`]. If pools have the
    /// same slot, their indexes replace each other.
    static CACHED: RefCell<[Option<Arc<Index>>; CACHE_SLOTS]> = const { RefCell::new([const { None }; CACHE_SLOTS]) };
}

/// The current table of a pool and the table's index. All threads of the process share this value.
#[derive(Debug)]
pub(crate) struct Published {
    table: ArcSwap<Table>,
    index: ArcSwap<Index>,
    /// The version of `index`, or of an earlier index while `store` runs.
    version: AtomicU64,
    /// The position of this pool's index in `CACHED`.
    slot: usize,
}

impl Default for Published {
    fn default() -> Self {
        let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        let index = Index { version, ..Index::default() };
        Self {
            table: ArcSwap::default(),
            index: ArcSwap::from_pointee(index),
            version: AtomicU64::new(version),
            slot: version as usize % CACHE_SLOTS,
        }
    }
}

impl Drop for Published {
    /// Makes all groups drop their cached look-ups of buffers, because the pool's segments cannot be found any more.
    fn drop(&mut self) {
        places_changed();
    }
}

impl Published {
    pub(crate) fn load(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    pub(super) fn load_full(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Returns the segment that contains the `bytes` bytes at `address`, and their offset in the segment. Returns
    /// `None` if they do not lie in one segment.
    pub(crate) fn place(&self, address: u64, bytes: u64) -> Option<Placement> {
        self.read(|index| index.place(address, bytes)).ok().flatten()
    }

    /// Publishes `table`, which the caller has made from the current table. The caller must hold the lock of the pool's
    /// arena ([`PoolMemory::arena`](crate::pool::PoolMemory::arena)) while it makes and publishes the table, so that no
    /// concurrent update is lost.
    pub(super) fn store(&self, table: Table) {
        let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        self.index.store(Arc::new(Index::of(&table, version)));
        self.table.store(Arc::new(table));
        // Store the version last, so that every thread that has read this version loads this index or a later one.
        self.version.store(version, Ordering::Release);
    }

    /// Calls `read` with an index that is at least as new as the last table that was published before this call.
    #[inline]
    pub(crate) fn read<R>(&self, read: impl Fn(&Index) -> R) -> R {
        let version = self.version.load(Ordering::Acquire);
        let result = CACHED.try_with(|cached| {
            let mut cached = cached.borrow_mut();
            let slot = &mut cached[self.slot];
            match slot {
                Some(index) if index.version == version => read(index),
                _ => read(slot.insert(self.index.load_full())),
            }
        });
        // `try_with` fails only while the thread exits.
        result.unwrap_or_else(|_| read(&self.index.load()))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const GROUP: GroupId = GroupId { uid: 1, epoch: 0 };

    /// Returns the ordinal of the segment at `address`, or `None` if a look-up finds no segment there.
    fn found(published: &Published, address: u64) -> Option<u32> {
        let found = published.read(|index| index.lookup(address, 1, GROUP));
        found.expect("one byte lies in one segment").map(|it| it.placement.ordinal)
    }

    #[test]
    fn a_thread_sees_what_was_published_before_whatever_other_pools_it_reads() {
        let pools: Vec<Published> = (0..2 * CACHE_SLOTS).map(|_| Published::default()).collect();
        for round in 0..5_u32 {
            for (pool, number) in pools.iter().zip(0_u64..) {
                assert_eq!(found(pool, 1000 * u64::from(round) + number), None);
                let begin = 1000 * u64::from(round) + number;
                pool.store(pool.load_full().with_segment(round, begin, 1));
                assert_eq!(found(pool, begin), Some(round));
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    for (pool, number) in pools.iter().zip(0_u64..) {
                        assert_eq!(found(pool, 1000 * u64::from(round) + number), Some(round));
                    }
                });
            });
        }
    }

    #[test]
    fn a_reader_never_goes_back_to_an_earlier_table() {
        const TABLES: u64 = 2000;
        let pool = Published::default();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < TABLES {
                        let count = pool.read(|index| index.begins.first().copied().unwrap_or(0));
                        assert!(count >= last, "{count} after {last}");
                        last = count;
                    }
                });
            }
            (1..=TABLES).for_each(|begin| pool.store(Table::default().with_segment(0, begin, 1)));
        });
    }
}
