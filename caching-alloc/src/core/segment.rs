//! Segments, and the holds that keep their memory.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::size::SizeClass;
use super::source::{SegmentMemory, SegmentSource};
use super::stream::StreamId;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The number of a segment. An allocator numbers its segments in order of creation, and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a pool in its allocator. The default pool has the number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolId(pub u32);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Memory that a [`SegmentSource`] returned in one piece, at a fixed address. In a re-mappable pool, each page is a
/// segment. A page that moves becomes a new segment at its new address.
///
/// This is a cheap handle. It does not keep the memory alive; a [`Hold`] does.
#[derive(Clone)]
pub struct Segment(Arc<Inner>);

struct Inner {
    id: SegmentId,
    device: u32,
    pool: PoolId,
    stream: AtomicU64,
    class: SizeClass,
    memory: SegmentMemory,
    source: Arc<dyn SegmentSource>,
    holds: Mutex<Holds>,
}

#[derive(Default)]
struct Holds {
    fate: Fate,
    next: u64,
    holders: Vec<(u64, Arc<str>)>,
}

/// The state of a segment's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// The allocator uses the memory.
    #[default]
    Live,
    /// The segment was held when it should have been released. It has no block any more, and is released once no hold
    /// is left.
    Quarantined,
    /// The memory was released or is about to be, or this is a page that is [claimed](Segment::claim). New holds are
    /// refused.
    Released,
}

/// The fields of a [`Segment`].
pub(super) struct SegmentParts {
    pub(super) id: SegmentId,
    pub(super) device: u32,
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
    pub(super) class: SizeClass,
    pub(super) memory: SegmentMemory,
    pub(super) source: Arc<dyn SegmentSource>,
}

impl Segment {
    pub(super) fn new(parts: SegmentParts) -> Self {
        let SegmentParts { id, device, pool, stream, class, memory, source } = parts;
        let stream = AtomicU64::new(stream.0);
        Self(Arc::new(Inner { id, device, pool, stream, class, memory, source, holds: Mutex::default() }))
    }

    /// Returns the segment's number, which is unique in its allocator.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.0.id
    }

    /// Returns the device address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.memory.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.memory.bytes
    }

    /// Returns the memory in the form in which it is passed to its source.
    #[must_use]
    pub fn memory(&self) -> SegmentMemory {
        self.0.memory
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.0.device
    }

    /// Returns the segment's pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.0.pool
    }

    /// Returns the stream that owns the segment. A block that is freed on this stream can be reused there without
    /// further ordering. The allocator may move a segment without blocks to another stream. The streams of a
    /// re-mappable pool share its pages: for a page, this is the stream that mapped it.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        StreamId(self.0.stream.load(Ordering::Relaxed))
    }

    pub(super) fn set_stream(&self, stream: StreamId) {
        self.0.stream.store(stream.0, Ordering::Relaxed);
    }

    /// Returns the class of requests that the segment serves. In a pool of another kind than
    /// [`Cached`](super::PoolKind::Cached), the class is always [`SizeClass::Large`], and the segment serves requests
    /// of all sizes.
    #[must_use]
    pub fn class(&self) -> SizeClass {
        self.0.class
    }

    /// Returns true if the source can [export](super::Block::export) the memory. NCCL registers only such memory.
    #[must_use]
    pub fn is_exportable(&self) -> bool {
        self.0.source.is_exportable()
    }

    /// Returns the source of the memory. Not public, because the source could then be asked to release memory that is
    /// in use.
    pub(crate) fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.0.source
    }

    /// Keeps the memory until the returned hold is dropped: it is not released to its source, and a page does not move.
    /// `holder` is the name of the hold in reports.
    ///
    /// Take a hold for as long as a user outside the allocator, such as a communicator, a peer or a graph, can access
    /// the memory. Before a segment is released, trackers get `SegmentFree` and can drop their holds. A segment that is
    /// still held after that is quarantined: it stays reserved until no hold is left. A held page of a re-mappable pool
    /// is not selected for release, so trackers get no entry for it. After its pool is dropped, it is released like any
    /// other segment.
    ///
    /// # Errors
    /// [`SegmentReleased`] if the memory was released or is about to be, or if this is a page that moved or is about to
    /// move.
    pub fn hold(&self, holder: &str) -> Result<Hold, SegmentReleased> {
        let mut holds = self.holds();
        if holds.fate == Fate::Released {
            return Err(SegmentReleased { id: self.id(), address: self.address(), holder: holder.into() });
        }
        let key = holds.next;
        holds.next += 1;
        holds.holders.push((key, holder.into()));
        drop(holds);
        Ok(Hold { segment: self.clone(), key })
    }

    /// Returns the names of the current holds.
    #[must_use]
    pub fn holders(&self) -> Vec<Arc<str>> {
        self.holds().holders.iter().map(|(_, name)| name.clone()).collect()
    }

    /// If the segment is held, marks it as quarantined and returns false. Otherwise marks it as released, so that it
    /// can no longer be held, and returns true. The caller then releases the memory.
    pub(super) fn try_release(&self) -> bool {
        let mut holds = self.holds();
        holds.fate = if holds.holders.is_empty() { Fate::Released } else { Fate::Quarantined };
        holds.fate == Fate::Released
    }

    /// Returns true if the segment is held.
    pub(super) fn is_held(&self) -> bool {
        !self.holds().holders.is_empty()
    }

    /// Claims this page for a move or a release, unless it is held. A claimed page cannot be held. Returns true if the
    /// page was claimed.
    pub(super) fn claim(&self) -> bool {
        let mut holds = self.holds();
        let free = holds.holders.is_empty();
        if free {
            holds.fate = Fate::Released;
        }
        free
    }

    /// Undoes [`claim`](Self::claim): the page can be held again.
    pub(super) fn revive(&self) {
        self.holds().fate = Fate::Live;
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    /// Releases quarantined memory that has outlived its allocator. Runs when the last hold and the last handle of
    /// the segment are dropped.
    fn drop(&mut self) {
        let holds = self.holds.get_mut().unwrap_or_else(PoisonError::into_inner);
        if holds.fate == Fate::Quarantined {
            // A failure cannot be reported any more.
            let _ = self.source.release(&self.memory);
        }
    }
}

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Segment {}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.0.id.0)
            .field("address", &format_args!("{:#x}", self.address()))
            .field("bytes", &self.bytes())
            .field("device", &self.0.device)
            .field("pool", &self.0.pool.0)
            .field("stream", &self.stream())
            .field("class", &self.0.class)
            .finish_non_exhaustive()
    }
}

/// Keeps a segment's memory from being released or moved. Dropping a hold does not release the memory: a quarantined
/// segment is released when a later request misses, or the program calls `trim_to`, `empty_cache` or
/// [`reap`](super::Allocator::reap). If the allocator is gone, the segment is released when the last hold and the last
/// [`Segment`] handle are dropped.
#[derive(Debug)]
pub struct Hold {
    segment: Segment,
    key: u64,
}

impl Hold {
    /// Returns the segment that is held.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.segment.holds().holders.retain(|(key, _)| *key != self.key);
    }
}

/// The error of [`Segment::hold`]: the memory was released or is about to be, or this is a page that moved or is about
/// to move.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{holder} cannot hold segment {} at {address:#x}: its memory has gone back to its source; take the hold while \
     the segment is live, from its SegmentAlloc entry or from a snapshot", id.0
)]
pub struct SegmentReleased {
    /// The segment.
    pub id: SegmentId,
    /// Its former address.
    pub address: u64,
    /// The name that was passed for the hold.
    pub holder: String,
}
