//! The part of a pool that its stream caches refer to.

use std::ptr;
use std::sync::{Arc, OnceLock};

use super::error::{AllocError, Fault, chain};
use super::fixed::Splitting;
use super::key::Key;
use super::lock::{Rank, RankedSpin, RankedSpinGuard};
use super::pending::Pending;
use super::registry::{DeferredBlock, DeferredRelease, Registry, Structure, locked};
use super::remap::{Arena, Remains};
use super::segment::PoolId;
use super::settings::{PoolKind, PoolSettings};
use super::size::{MAX_BLOCK, SEGMENT_STEP, UNIT, Units};
use super::source::{self, SegmentSource};
use super::stream::StreamId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// A pool's identity and settings, the counts of its guards, and the arena that its streams share.
#[derive(Debug)]
pub(super) struct PoolInfo {
    pub(super) id: PoolId,
    /// The pool's number among all pools of the process.
    pub(super) key: u64,
    pub(super) name: Arc<str>,
    pub(super) kind: PoolKind,
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) registry: Arc<Registry>,
    lends: bool,
    borrows: bool,
    freezes: AtomicUsize,
    keeps: AtomicUsize,
    /// The arena that the streams of a re-mappable pool share. `None` in other pools.
    pub(super) arena: Option<Arc<RankedSpin<Arena>>>,
    /// In a re-mappable pool, the streams and the pending blocks of dropped caches.
    detached: Mutex<DetachedPending>,
    /// The total memory of the source's device in bytes, after the first query. `u64::MAX` if that query failed.
    total: OnceLock<u64>,
}

/// The uses that must end before a dropped re-mappable pool releases its memory.
#[derive(Debug, Default)]
struct DetachedPending {
    /// Streams whose work may still use the memory.
    streams: Vec<StreamId>,
    /// Blocks that other streams or graphs may still use.
    pending: Vec<Pending>,
}

/// A guard. While it lives, its pool neither releases nor lends memory.
#[derive(Debug)]
pub(super) struct Keep(Arc<PoolInfo>);

/// A guard for captures. While it lives, its pool neither grows, nor releases or lends memory. Blocks that captured
/// requests get are not reused before the end of the graph; see [`Pool::freeze`](super::Pool::freeze).
#[derive(Debug)]
#[must_use = "the pool thaws when this is dropped"]
pub struct Freeze(Arc<PoolInfo>);

/// The kinds of guards of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) enum Guarded {
    /// [`Freeze`]: prevents growth, release and lending.
    Frozen,
    /// [`Keep`]: prevents release and lending.
    Kept,
}

impl PoolInfo {
    pub(super) fn new(
        registry: &Arc<Registry>,
        structure: &mut Structure,
        settings: PoolSettings,
    ) -> Arc<Self> {
        let PoolSettings { name, source, kind, lends, borrows } = settings;
        let source = source.unwrap_or_else(|| registry.source.clone());
        let arena = (kind == PoolKind::Remappable)
            .then(|| Arc::new(RankedSpin::new(Rank::Arena, Arena::new(source::step(&*source)))));
        Arc::new(Self {
            id: structure.pool_id(),
            key: Key::new_pool(),
            name: name.into(),
            kind,
            source,
            registry: registry.clone(),
            lends,
            borrows,
            freezes: AtomicUsize::new(0),
            keeps: AtomicUsize::new(0),
            arena,
            detached: Mutex::default(),
            total: OnceLock::new(),
        })
    }

    /// Counts a new guard of this kind. The caller then makes the guard, with [`Keep::counted`] or [`Freeze::counted`].
    pub(super) fn add_guard(&self, kind: Guarded) {
        self.guards(kind).fetch_add(1, Ordering::AcqRel);
    }

    fn guards(&self, kind: Guarded) -> &AtomicUsize {
        match kind {
            Guarded::Frozen => &self.freezes,
            Guarded::Kept => &self.keeps,
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.freezes.load(Ordering::Acquire) > 0
    }

    /// Returns true if the pool must neither release nor lend memory, because it is frozen or a graph uses its memory.
    pub(super) fn is_kept(&self) -> bool {
        self.is_frozen() || self.keeps.load(Ordering::Acquire) > 0
    }

    /// Returns an error if the stream is being captured, and the pool does not keep its memory for the graph. Otherwise
    /// returns true if the pool keeps its memory, so that the stream may be capturing.
    #[cold]
    pub(super) fn refuse_capture(&self, stream: StreamId) -> Result<bool, AllocError> {
        if self.is_kept() {
            return Ok(true);
        }
        // If the query fails, the stream is not being captured, because the query succeeds for a captured stream.
        if self.registry.events.is_capturing(stream).unwrap_or(false) {
            return Err(AllocError::CaptureOutsideGraphPool { pool: self.id, stream });
        }
        Ok(false)
    }

    /// Returns true if a request in this pool may use free blocks of `other` when no memory can be allocated for the
    /// request.
    pub(super) fn may_borrow_from(&self, other: &Self) -> bool {
        let is_default = |pool: &Self| pool.id == PoolId::default();
        let agreed = is_default(self) && other.lends || self.borrows && is_default(other);
        // Re-mappable memory can only be used by its own device, so it cannot replace other memory.
        let stays = self.arena.is_some() || other.arena.is_none();
        agreed && stays && !other.is_kept()
    }

    /// Returns the pool's rule for splitting free blocks.
    pub(super) fn splitting(&self) -> Splitting {
        let settings = &self.registry.settings;
        match (self.kind, settings.max_split) {
            (PoolKind::NoSplit, _) => Splitting::NONE,
            (PoolKind::Cached, Some(longest)) => {
                let step = SEGMENT_STEP.max(source::step(&*self.source));
                let up = |bytes: u64| bytes.clamp(1, MAX_BLOCK).next_multiple_of(step);
                let units = |bytes: u64| Units::try_from(up(bytes) / UNIT).unwrap_or(Units::MAX);
                Splitting { longest: units(longest), waste: units(settings.max_unsplit_waste) }
            }
            _ => Splitting::ALL,
        }
    }

    /// Locks the arena of a re-mappable pool. Panics for other pools.
    pub(super) fn arena_mut(&self) -> RankedSpinGuard<'_, Arena> {
        self.arena.as_ref().expect("asked of a re-mappable pool").lock()
    }

    /// Stores the stream and the pending blocks of a dropped cache of a re-mappable pool. The cache's memory stays in
    /// the pool. After the pool is dropped too, its memory is released once that stream's work and the uses of those
    /// blocks have ended.
    pub(super) fn leave(&self, stream: StreamId, pending: impl IntoIterator<Item = Pending>) {
        let mut detached = locked(&self.detached);
        detached.streams.push(stream);
        detached.pending.extend(pending);
    }

    /// Returns the streams of dropped caches. Their work may still use memory of the re-mappable pool.
    pub(super) fn left_streams(&self) -> Vec<StreamId> {
        locked(&self.detached).streams.clone()
    }

    /// Returns how many bytes the allocator may still request from the pool's source: up to its limit, and up to the
    /// total memory that the source reports. `elsewhere` is the number of bytes that pools with other sources have
    /// reserved. Only the first call queries the source.
    pub(super) fn available(&self, elsewhere: u64) -> u64 {
        let total = *self.total.get_or_init(|| match self.source.memory_info() {
            Ok(info) => info.total,
            Err(error) => {
                self.registry.fault(Fault::MemoryUnknown { pool: self.id, message: chain(&error) });
                u64::MAX
            }
        });
        let reserved = self.registry.totals().reserved.current.saturating_sub(elsewhere);
        self.registry.room().min(total.saturating_sub(reserved))
    }

    /// Returns true if both pools have the same source.
    pub(super) fn has_source_of(&self, other: &Self) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.source), Arc::as_ptr(&other.source))
    }

    /// Returns the total length of the pool's segments in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.registry.pool_reserved(self.id).current
    }
}

impl Drop for PoolInfo {
    /// Runs when no handle, block or guard of the pool is left. Passes the pages and address ranges of a re-mappable
    /// pool to the registry, which releases them after their last uses.
    fn drop(&mut self) {
        self.registry.forget_pool(self.id);
        let Some(arena) = self.arena.take().and_then(Arc::into_inner) else { return };
        let arena = arena.into_inner();
        let DetachedPending { streams, pending } = std::mem::take(&mut *locked(&self.detached));
        let with_pages = |pending: Pending| DeferredBlock { segments: arena.pages_of(pending.id), pending };
        let pending = pending.into_iter().map(with_pages).collect();
        let Remains { pages, old, events, ranges } = arena.dissolve();
        let source = Some(self.source.clone());
        let kept = DeferredRelease { streams, segments: pages, pending, ..DeferredRelease::default() };
        self.registry.defer_release(DeferredRelease { old, events, ranges, source, ..kept });
    }
}

impl Keep {
    /// Returns a further guard if the pool has one. Does not block: because of that guard, no release is under way.
    pub(super) fn further(pool: &Arc<PoolInfo>) -> Option<Self> {
        let count = |keeps: usize| (keeps > 0).then(|| keeps + 1);
        pool.keeps.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).ok()?;
        Some(Self(pool.clone()))
    }

    /// Makes a guard that [`add_guard`](PoolInfo::add_guard) has counted already.
    pub(super) fn counted(pool: Arc<PoolInfo>) -> Self {
        Self(pool)
    }
}

impl Freeze {
    /// Makes a guard that [`add_guard`](PoolInfo::add_guard) has counted already.
    pub(super) fn counted(pool: Arc<PoolInfo>) -> Self {
        Self(pool)
    }
}

impl Clone for Keep {
    fn clone(&self) -> Self {
        self.0.add_guard(Guarded::Kept);
        Self(self.0.clone())
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.keeps.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        self.0.freezes.fetch_sub(1, Ordering::AcqRel);
    }
}
