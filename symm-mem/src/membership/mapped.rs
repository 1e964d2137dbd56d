//! The segments that all members of a group have mapped, of all pools that are committed for the group.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::index::Published;
use crate::{
    agreement::GroupId,
    pool::Memory,
    rendezvous::{Buffer, PeerGroup, PeerMapping},
};

/// The segments that all members of a group have mapped, as this rank sees them. The members agree on the number of
/// each segment, so a number means the same segment on all of them.
#[derive(Default)]
pub(crate) struct MappedSegments {
    segments: RwLock<Vec<MappedSegment>>,
    /// The number of the next segment.
    next: Mutex<u64>,
    /// True if messages may copy in the segments until the group ends.
    is_used: AtomicBool,
}

/// A segment that all members of a group have mapped. Keeps the pool's memory.
#[derive(Clone)]
pub(crate) struct MappedSegment {
    /// The number of the segment, which no other segment of the group has.
    pub(crate) number: u64,
    group: Arc<PeerGroup>,
    memory: Arc<Memory>,
    table: Arc<Published>,
    ordinal: u32,
}

impl MappedSegment {
    pub(super) fn new(
        number: u64,
        group: Arc<PeerGroup>,
        (memory, table): (&Arc<Memory>, &Arc<Published>),
        ordinal: u32,
    ) -> Self {
        Self { number, group, memory: memory.clone(), table: table.clone(), ordinal }
    }

    /// The whole segment on this rank, and the mapping of the members' segments. `None` if the segment is retired.
    pub(crate) fn mapping(&self) -> Option<(Buffer, PeerMapping)> {
        let mapping = self.memory.attachments().get::<PeerMapping>(&self.group.mappings, self.ordinal)?;
        let buffer = Buffer::of_segment(&self.memory, self.ordinal, mapping.buffers.bytes() as u64);
        Some((buffer, Arc::unwrap_or_clone(mapping)))
    }
}

/// The mapped segments of the groups of this process, by group and by this rank's number in the job.
static GROUPS: Mutex<Option<Groups>> = Mutex::new(None);

type Groups = HashMap<(GroupId, u32), Weak<MappedSegments>>;

impl MappedSegments {
    /// The mapped segments of `group` on rank `rank` of the job, which may be one of several ranks of this process.
    pub(crate) fn of(group: GroupId, rank: u32) -> Arc<Self> {
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = groups.get_or_insert_default();
        groups.retain(|_, segments| segments.strong_count() > 0);
        if let Some(known) = groups.get(&(group, rank)).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Self::default());
        groups.insert((group, rank), Arc::downgrade(&new));
        new
    }

    fn next_lock(&self) -> MutexGuard<'_, u64> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next segment, unless another member proposes a higher one.
    pub(crate) fn next(&self) -> u64 {
        *self.next_lock()
    }

    /// Removes the entries for which `is_gone` returns true. They are dropped after the lock is released.
    fn remove(&self, is_gone: impl Fn(&MappedSegment) -> bool) {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<MappedSegment> = segments.extract_if(.., |segment| is_gone(segment)).collect();
        drop(segments);
        drop(gone);
    }

    /// Keeps the memory of dropped pools from now on, because messages of the group may copy in it.
    pub(crate) fn keep_dropped(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Removes the segments of a pool that is dropped, unless messages may copy in them.
    pub(super) fn pool_dropped(&self, memory: &Arc<Memory>) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.forget(memory);
        }
    }

    /// Removes the segments of a pool whose mappings are no longer used.
    pub(super) fn forget(&self, memory: &Arc<Memory>) {
        self.remove(|segment| Arc::ptr_eq(&segment.memory, memory));
    }

    /// Adds segments that all members have mapped. Removes the entries of retired segments.
    pub(super) fn add(&self, new: Vec<MappedSegment>) {
        let Some(next) = new.iter().map(|segment| segment.number + 1).max() else { return };
        self.remove(|segment| segment.mapping().is_none());
        self.segments.write().unwrap_or_else(PoisonError::into_inner).extend(new);
        // After the segments, so that a number below `next` is found unless its segment is retired.
        let mut known = self.next_lock();
        *known = next.max(*known);
    }

    /// Finds the segment that contains the `bytes` bytes at `address`: its number, and the offset of `address` in it in
    /// bytes. `None` if the bytes lie in no single segment that all members have mapped.
    pub(crate) fn place(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        // The segments of a pool are mostly adjacent, so that each pool is searched once.
        let pools = segments.chunk_by(|one, other| Arc::ptr_eq(&one.table, &other.table));
        pools.into_iter().find_map(|pool| {
            let place = pool.first()?.table.place(address, bytes)?;
            let segment = pool.iter().find(|segment| segment.ordinal == place.ordinal)?;
            Some((segment.number, place.offset))
        })
    }

    /// Finds a segment by its number.
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
