//! The published [`Table`] of a pool, and its [`Index`], which look-ups read.
//!
//! Getting the current index must cost much less than the search in it. So each thread caches the indexes of the last few
//! pools for which it has loaded one. A look-up uses a cached index if the index has the pool's current version. An index
//! contains only numbers, so a thread may cache it even after the pool is dropped.

use std::{
    array,
    cell::RefCell,
    hint::select_unpredictable,
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use caching_alloc::core::symmetric::Placement;
use process_group::group::places_changed;

use super::lookup::{BufferLocation, LookupError, RegistrationState, SegmentRange, SegmentStates, Table};
use crate::agreement::GroupId;

/// A segment and its state in one group.
#[derive(Debug, Clone, Copy)]
struct IndexedSegment {
    begin: u64,
    bytes: u64,
    ordinal: u32,
    state: RegistrationState,
}

/// Number of segments in a [`Chunk`].
const CHUNK: usize = 16;

/// Segments by address, followed by [`PADDING`]. Because of the fixed length, the search in a chunk needs neither a
/// loop nor bounds checks.
type Chunk = [IndexedSegment; CHUNK];

/// Fills the rest of a [`Chunk`]: sorts after all segments, and contains no address.
const PADDING: IndexedSegment =
    IndexedSegment { begin: u64::MAX, bytes: 0, ordinal: u32::MAX, state: RegistrationState::Pending };

/// All segments of a pool by address, with their states in one group.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would make look-ups among few segments slower")]
enum IndexedSegments {
    OneChunk(Chunk),
    Chunks {
        chunks: Vec<Chunk>,
        /// The first address of each chunk except the first chunk.
        starts: Vec<u64>,
    },
}

impl IndexedSegments {
    fn of(ranges: &[SegmentRange], states: &SegmentStates) -> Self {
        let segment = |range: &SegmentRange| IndexedSegment {
            begin: range.begin,
            bytes: range.end - range.begin,
            ordinal: range.ordinal,
            state: states.at(range.ordinal),
        };
        let chunk = |ranges: &[SegmentRange]| array::from_fn(|at| ranges.get(at).map_or(PADDING, segment));
        if ranges.len() <= CHUNK {
            return Self::OneChunk(chunk(ranges));
        }
        let starts = ranges.iter().step_by(CHUNK).skip(1).map(|range| range.begin).collect();
        Self::Chunks { chunks: ranges.chunks(CHUNK).map(chunk).collect(), starts }
    }

    /// Returns the segment that contains the `bytes` bytes at `address`, its state, and the offset of `address` in the
    /// segment. Returns `None` if the bytes do not begin in a segment, and an error if they begin in a segment and
    /// extend beyond it.
    #[inline]
    fn lookup(&self, address: u64, bytes: u64) -> Result<Option<BufferLocation>, LookupError> {
        let mut segments = match self {
            Self::OneChunk(chunk) => chunk.as_slice(),
            Self::Chunks { chunks, starts } => &chunks[starts.partition_point(|start| *start <= address)],
        };
        // Leaves the last segment that begins at or before `address`. Leaves the first segment if there is no such
        // segment. Successive look-ups are of unrelated addresses, so a branch would often be mispredicted.
        for half in [8, 4, 2, 1] {
            let (lower, upper) = segments.split_at(half);
            segments = select_unpredictable(upper[0].begin <= address, upper, lower);
        }
        let IndexedSegment { begin, bytes: length, ordinal, state } = segments[0];
        // If `address` is before the first segment, the difference wraps around and exceeds the segment's length.
        let offset = address.wrapping_sub(begin);
        if offset >= length {
            return Ok(None);
        }
        if bytes > length - offset {
            return Err(LookupError::SpansSegments { address, bytes, ordinal, end: begin + length });
        }
        Ok(Some(BufferLocation { placement: Placement { ordinal, offset }, state }))
    }
}

/// The segments by address, for each group.
#[derive(Debug)]
pub(crate) struct Index {
    /// The version of the table that this index was made from. 0 if the index is not published.
    version: u64,
    /// The version of the first index of the same pool, as the number of the pool.
    pool: u64,
    groups: Vec<(GroupId, IndexedSegments)>,
    /// The segments for a group that is not in `groups`: none of them is committed.
    other_groups: IndexedSegments,
}

impl Index {
    /// Makes an index that is the first one of its pool.
    pub(crate) fn of(table: &Table, version: u64) -> Self {
        let segments = |states| IndexedSegments::of(&table.ranges, states);
        let groups = table.groups.iter().map(|(id, states)| (*id, segments(states))).collect();
        Self { version, pool: version, groups, other_groups: segments(&SegmentStates::default()) }
    }

    /// Looks up the `bytes` bytes at `address` in `group`; see [`IndexedSegments::lookup`].
    #[inline]
    pub(crate) fn lookup(
        &self,
        address: u64,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<BufferLocation>, LookupError> {
        let group = self.groups.iter().find(|(id, _)| *id == group);
        group.map_or(&self.other_groups, |(_, segments)| segments).lookup(address, bytes)
    }
}

/// The version of the next table that any pool publishes. No two tables of the process have the same version.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// The number of indexes that a thread caches.
const CACHE_SLOTS: usize = 8;

/// The indexes that a thread caches, at most one for each pool. The most recently loaded index comes first.
type CachedIndexes = [Option<Arc<Index>>; CACHE_SLOTS];

thread_local! {
    /// The indexes that this thread caches. [`ClearCache`] drops them. This value has no destructor: every access of a
    /// thread-local with a destructor checks whether the destructor is registered and whether it has run.
    static CACHED: ManuallyDrop<RefCell<CachedIndexes>> =
        const { ManuallyDrop::new(RefCell::new([const { None }; CACHE_SLOTS])) };
    static CLEAR_CACHE: ClearCache = const { ClearCache };
}

/// Drops the thread's cached indexes when the thread exits.
struct ClearCache;

impl Drop for ClearCache {
    fn drop(&mut self) {
        CACHED.with(|cached| cached.take());
    }
}

/// The current table of a pool and the table's index. All threads of the process share this value.
#[derive(Debug)]
pub(crate) struct Published {
    table: ArcSwap<Table>,
    index: ArcSwap<Index>,
    /// The version of `index`, or of an earlier index while `store` runs.
    version: AtomicU64,
}

impl Default for Published {
    fn default() -> Self {
        let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        let table = Arc::<Table>::default();
        Self {
            index: ArcSwap::from_pointee(Index::of(&table, version)),
            table: ArcSwap::new(table),
            version: AtomicU64::new(version),
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
        let found = self.read(|index| index.other_groups.lookup(address, bytes));
        found.ok().flatten().map(|found| found.placement)
    }

    /// Publishes `table`, which the caller has made from the current table. The caller must hold the lock of the pool's
    /// arena ([`PoolMemory::arena`](crate::pool::PoolMemory::arena)) while it makes and publishes the table, so that no
    /// concurrent update is lost.
    pub(super) fn store(&self, table: Table) {
        let version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        let pool = self.index.load().pool;
        self.index.store(Arc::new(Index { pool, ..Index::of(&table, version) }));
        self.table.store(Arc::new(table));
        // Store the version last, so that every thread that has read this version loads this index or a later one.
        self.version.store(version, Ordering::Release);
    }

    /// Calls `read` with an index that is at least as new as the last table that was published before this call.
    #[inline]
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Index) -> R) -> R {
        CACHED.with(|cached| {
            let version = self.version.load(Ordering::Acquire);
            let mut cached = cached.borrow_mut();
            let index = match cached.iter().flatten().find(|index| index.version == version) {
                Some(index) => index,
                None => self.load_index(&mut cached),
            };
            // The only call of `read`. With a second one, the compiler would not inline `read`.
            read(index)
        })
    }

    /// Loads the current index into `cached`, in place of an earlier index of this pool. If there is none, in place of
    /// the index that was loaded longest ago.
    #[cold]
    fn load_index<'a>(&self, cached: &'a mut CachedIndexes) -> &'a Arc<Index> {
        // Registers this thread's destructor, which drops the cached indexes. Fails if the destructor has already run,
        // while the thread exits. Indexes that the thread caches after that are leaked.
        let _ = CLEAR_CACHE.try_with(|_| ());
        let index = self.index.load_full();
        let is_of_pool = |other: &Option<Arc<Index>>| other.as_ref().is_some_and(|it| it.pool == index.pool);
        let replaced = cached.iter().position(is_of_pool).unwrap_or(CACHE_SLOTS - 1);
        cached[..=replaced].rotate_right(1);
        cached[0].insert(index)
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
    fn new_indexes_of_one_pool_leave_those_of_others_in_the_cache() {
        let [pool, other] = [(); 2].map(|()| Published::default());
        thread::spawn(move || {
            assert_eq!(found(&other, 0), None);
            for ordinal in 0..2 * CACHE_SLOTS as u32 {
                pool.store(pool.load_full().with_segment(ordinal, ordinal.into(), 1));
                assert_eq!(found(&pool, ordinal.into()), Some(ordinal));
            }
            // One reference in `other`, one here, and one in the cache.
            assert_eq!(Arc::strong_count(&other.index.load_full()), 3);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_exits_drops_its_cached_indexes() {
        let pool = Published::default();
        thread::scope(|scope| scope.spawn(|| assert_eq!(found(&pool, 0), None)).join()).unwrap();
        // One reference in `pool`, and one here.
        assert_eq!(Arc::strong_count(&pool.index.load_full()), 2);
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
                        let first = |index: &Index| match index.other_groups {
                            IndexedSegments::OneChunk([first, ..]) if first.bytes > 0 => first.begin,
                            _ => 0,
                        };
                        let count = pool.read(first);
                        assert!(count >= last, "{count} after {last}");
                        last = count;
                    }
                });
            }
            (1..=TABLES).for_each(|begin| pool.store(Table::default().with_segment(0, begin, 1)));
        });
    }
}
