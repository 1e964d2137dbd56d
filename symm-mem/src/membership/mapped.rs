//! The pool segments whose memory the members of a group have mapped from each other. A group has one list of these
//! segments, for all pools that are [committed](crate::SymmetricPool::commit) for the group.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::index::Published;
use crate::{
    agreement::GroupId,
    lock::lock,
    pool::PoolMemory,
    rendezvous::{Buffer, PeerGroup, PeerMapping},
};

/// This rank's list of the segments that the members of a group have mapped from each other. The members agree on the
/// number of each segment, so a number identifies the same segment on all of them.
#[derive(Default)]
pub(crate) struct MappedSegments {
    segments: RwLock<Vec<MappedSegment>>,
    /// The number of the next segment.
    next: Mutex<u64>,
    /// Set when the group creates a [direct path](crate::direct): a transport that copies the group's messages (sends
    /// and receives) directly between the members' memory. The messages may copy to and from the segments until the
    /// group ends. So if a pool is dropped before then, its segments stay in the list.
    is_used: AtomicBool,
}

/// A segment that the members of a group have mapped from each other. Keeps the pool's memory allocated.
#[derive(Clone)]
pub(crate) struct MappedSegment {
    /// The number of the segment, unique in the list of its group.
    pub(crate) number: u64,
    group: Arc<PeerGroup>,
    memory: Arc<PoolMemory>,
    table: Arc<Published>,
    ordinal: u32,
}

impl MappedSegment {
    pub(super) fn new(
        number: u64,
        group: Arc<PeerGroup>,
        (memory, table): (&Arc<PoolMemory>, &Arc<Published>),
        ordinal: u32,
    ) -> Self {
        Self { number, group, memory: memory.clone(), table: table.clone(), ordinal }
    }

    /// Returns two values: this rank's own memory of the segment, and the mappings of the members' memory of it.
    /// Returns `None` if the segment is [retired](crate::SymmetricPool::retire), that is, removed from the pool.
    pub(crate) fn mapping(&self) -> Option<(Buffer, PeerMapping)> {
        let mapping = self.memory.attachments().get::<PeerMapping>(&self.group.mappings, self.ordinal)?;
        let buffer = Buffer::of_segment(&self.memory, self.ordinal, mapping.buffers.bytes() as u64);
        Some((buffer, Arc::unwrap_or_clone(mapping)))
    }
}

/// The lists of mapped segments in this process, by group and by rank, because one process may run several ranks. The
/// rank is the number in the job, which is also the number in the pool's [domain](crate::Domain).
static GROUPS: Mutex<BTreeMap<(GroupId, u32), Weak<MappedSegments>>> = Mutex::new(BTreeMap::new());

impl MappedSegments {
    /// Returns the list of `group` on rank `rank` of the job. Creates the list if there is none.
    pub(crate) fn of(group: GroupId, rank: u32) -> Arc<Self> {
        let mut groups = lock(&GROUPS);
        groups.retain(|_, segments| segments.strong_count() > 0);
        if let Some(known) = groups.get(&(group, rank)).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Self::default());
        groups.insert((group, rank), Arc::downgrade(&new));
        new
    }

    /// Returns the number that this rank proposes for the next segment. The segment gets the highest number that a
    /// member proposes.
    pub(crate) fn next(&self) -> u64 {
        *lock(&self.next)
    }

    /// Removes the entries for which `is_gone` returns true. Drops them after the lock is released, because a drop may
    /// free memory.
    fn remove(&self, is_gone: impl Fn(&MappedSegment) -> bool) {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let removed: Vec<MappedSegment> = segments.extract_if(.., |segment| is_gone(segment)).collect();
        drop(segments);
        drop(removed);
    }

    /// Makes later calls of [`pool_dropped`](Self::pool_dropped) keep the segments of the dropped pool in the list,
    /// because messages of the group's [direct path](crate::direct) may copy to and from them.
    pub(crate) fn keep_dropped(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Removes the segments of a pool that is being dropped, unless messages may copy to and from them.
    pub(super) fn pool_dropped(&self, memory: &Arc<PoolMemory>) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.forget(memory);
        }
    }

    /// Removes the segments of the pool with this memory. Called once the group no longer uses their mappings.
    pub(super) fn forget(&self, memory: &Arc<PoolMemory>) {
        self.remove(|segment| Arc::ptr_eq(&segment.memory, memory));
    }

    /// Adds segments that all members have mapped, and removes the entries of retired segments. Does nothing if `new`
    /// is empty.
    pub(super) fn add(&self, new: Vec<MappedSegment>) {
        let Some(next) = new.iter().map(|segment| segment.number + 1).max() else { return };
        self.remove(|segment| segment.mapping().is_none());
        self.segments.write().unwrap_or_else(PoisonError::into_inner).extend(new);
        // Increase `next` only after the segments are added: a number below `next` that is not in the list must belong
        // to a segment that was removed, not to one that is still to be added.
        let mut current = lock(&self.next);
        *current = next.max(*current);
    }

    /// Returns the number of the segment that contains the `bytes` bytes at `address`, and the offset of `address` in
    /// the segment in bytes. `None` if the bytes do not lie in one segment that all members have mapped.
    pub(crate) fn place(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        // The segments of a pool are mostly adjacent in the list, so the table of each pool is searched about once.
        let pools = segments.chunk_by(|one, other| Arc::ptr_eq(&one.table, &other.table));
        pools.into_iter().find_map(|pool| {
            let place = pool.first()?.table.place(address, bytes)?;
            let segment = pool.iter().find(|segment| segment.ordinal == place.ordinal)?;
            Some((segment.number, place.offset))
        })
    }

    pub(crate) fn find(&self, number: u64) -> Option<MappedSegment> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.iter().find(|segment| segment.number == number).cloned()
    }
}

impl fmt::Debug for MappedSegments {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "MappedSegments(numbered up to {})", self.next())
    }
}
