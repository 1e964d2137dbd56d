//! The pool segments whose memory the members of a group have mapped from each other. A group has one list of these
//! segments, for all pools that are [committed](crate::SymmetricPool::commit) for the group.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard, Weak},
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
    list: RwLock<List>,
    /// The number of the next segment.
    next: Mutex<u64>,
}

#[derive(Default)]
struct List {
    segments: Vec<MappedSegment>,
    /// The number of [`MappedUse`]s. While there are any, the segments of a pool stay in the list even if the pool is
    /// dropped, or [forgets](crate::SymmetricPool::forget) the group.
    users: usize,
}

/// Keeps the segments in a group's list, because messages (sends and receives) of the group's [direct
/// path](crate::direct) copy to and from them, also when a graph with such messages runs later. Each direct path has a
/// `MappedUse` until the path is dropped and no such graph runs.
#[derive(Debug)]
pub(crate) struct MappedUse(Arc<MappedSegments>);

impl MappedUse {
    pub(crate) fn of(segments: Arc<MappedSegments>) -> Self {
        segments.write().users += 1;
        Self(segments)
    }
}

impl Clone for MappedUse {
    fn clone(&self) -> Self {
        Self::of(self.0.clone())
    }
}

impl Deref for MappedUse {
    type Target = MappedSegments;

    fn deref(&self) -> &MappedSegments {
        &self.0
    }
}

impl Drop for MappedUse {
    fn drop(&mut self) {
        let mut list = self.0.write();
        list.users -= 1;
        if list.users == 0 {
            remove(list, |segment| segment.is_left);
        }
    }
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
    /// True once the pool is dropped, or has forgotten the group.
    is_left: bool,
}

impl MappedSegment {
    pub(super) fn new(
        number: u64,
        group: Arc<PeerGroup>,
        (memory, table): (&Arc<PoolMemory>, &Arc<Published>),
        ordinal: u32,
    ) -> Self {
        Self { number, group, memory: memory.clone(), table: table.clone(), ordinal, is_left: false }
    }

    /// Returns two values: this rank's own memory of the segment, and the mappings of all members' memory of the
    /// segment. Returns `None` if the segment is [retired](crate::SymmetricPool::retire), that is, removed from the
    /// pool.
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

    fn write(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the segments of a pool that is being dropped, or that forgets the group. `memory` is the memory of this
    /// pool. If there is a [`MappedUse`], they are removed when the last one is dropped.
    pub(super) fn leave(&self, memory: &Arc<PoolMemory>) {
        let mut list = self.write();
        let is_of_pool = |segment: &MappedSegment| Arc::ptr_eq(&segment.memory, memory);
        if list.users == 0 {
            return remove(list, is_of_pool);
        }
        list.segments
            .iter_mut()
            .filter(|segment| is_of_pool(segment))
            .for_each(|segment| segment.is_left = true);
    }

    /// Adds segments that all members have mapped, and removes the entries of retired segments. Does nothing if `new`
    /// is empty.
    pub(super) fn add(&self, new: Vec<MappedSegment>) {
        let Some(next) = new.iter().map(|segment| segment.number + 1).max() else { return };
        remove(self.write(), |segment| segment.mapping().is_none());
        self.write().segments.extend(new);
        // Increase `next` only after the segments are added: a number below `next` that is not in the list must belong
        // to a segment that was removed, not to one that is still to be added.
        let mut current = lock(&self.next);
        *current = next.max(*current);
    }

    /// Returns the number of the segment that contains the `bytes` bytes at `address`, and the offset of `address` in
    /// the segment in bytes. `None` if the bytes do not lie in one segment that all members have mapped.
    pub(crate) fn place(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        // The segments of a pool are mostly adjacent in the list, so the table of each pool is searched about once.
        let pools = list.segments.chunk_by(|one, other| Arc::ptr_eq(&one.table, &other.table));
        pools.into_iter().find_map(|pool| {
            let place = pool.first()?.table.place(address, bytes)?;
            let segment = pool.iter().find(|segment| segment.ordinal == place.ordinal)?;
            Some((segment.number, place.offset))
        })
    }

    pub(crate) fn find(&self, number: u64) -> Option<MappedSegment> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.segments.iter().find(|segment| segment.number == number).cloned()
    }
}

/// Removes the segments for which `is_gone` returns true. Drops them after the lock is released, because a drop may
/// free memory.
fn remove(mut list: RwLockWriteGuard<'_, List>, is_gone: impl Fn(&MappedSegment) -> bool) {
    let removed: Vec<MappedSegment> = list.segments.extract_if(.., |segment| is_gone(segment)).collect();
    drop(list);
    drop(removed);
}

impl fmt::Debug for MappedSegments {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "MappedSegments(numbered up to {})", self.next())
    }
}
