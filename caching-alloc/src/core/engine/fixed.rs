//! The actions ([`Effect`](super::attempts::Effect)s) with which the engine serves a miss in a pool of fixed
//! segments, whose memory never moves to other addresses. A miss is a request for which the stream's cache has no
//! free block that fits.

use super::miss::Miss;
use super::release::settle;
use crate::core::block::Block;
use crate::core::entry::Action;
use crate::core::error::AllocError;
use crate::core::registry::StructureLock;
use crate::core::segment::{Segment, SegmentParts};
use crate::core::size::{bytes_of, units_for};
use crate::core::source::{self, Cause, SourceError};
use crate::sync::atomic::Ordering;

impl Miss<'_> {
    /// Moves an idle segment with room for the request from another stream of the pool to this stream, and allocates
    /// the block there. Without `wait`, takes segments only from streams whose work has ended. With `wait`, this
    /// stream may have to wait for the other one on the device. The caller holds the structure lock, because segments
    /// change streams only under it.
    pub(super) fn adopt(self, structure: &mut StructureLock<'_>, wait: bool) -> Option<Block> {
        for other in self.others() {
            other.merge();
            let withdrawn = other.state.lock().withdraw_idle(self.class, self.request.units);
            let Some(segment) = withdrawn else { continue };
            if !self.registry().is_ordered_after(self.stream(), other.stream, wait) {
                other.put_back(segment);
                continue;
            }
            settle(structure, &other);
            segment.set_stream(self.stream());
            let action = Action::SegmentMoved { segment: segment.clone(), from: other.stream };
            self.registry().emit(structure, self.info().id, self.stream(), [action]);
            self.cache.put_back(segment);
            return self.hit();
        }
        None
    }

    /// Makes pending blocks available, oldest first, until a free block is long enough. Then allocates the request's
    /// block. A pending block was freed, but other streams may still use it. It becomes available when the request's
    /// stream waits, on the device, for those uses.
    pub(super) fn order_pending(self) -> Option<Block> {
        let is_enough = self.cache.order_pending(|cache| {
            cache.merge();
            cache.state.lock().longest(self.class) >= self.request.units
        });
        if is_enough { self.hit() } else { None }
    }

    /// Releases idle segments of this stream that have the class of the request but are shorter than the request,
    /// until at least `bytes` bytes are released. Returns the number of bytes released.
    pub(super) fn replace_short(self, structure: &mut StructureLock<'_>, bytes: u64) -> u64 {
        let wanted = bytes_of(self.request.units);
        let is_short = |segment: &Segment, _| segment.class() == self.class && segment.bytes() < wanted;
        let before = structure.own_released();
        self.engine.release_cache(structure, self.cache, &is_short, bytes);
        structure.own_released() - before
    }

    /// Releases idle segments of the pool that are too long to be split (longer than `Splitting::longest`), until at
    /// least `wanted` bytes are released. Returns the number of bytes released.
    pub(super) fn release_unsplit(self, structure: &mut StructureLock<'_>, wanted: u64) -> u64 {
        let longest = bytes_of(self.info().splitting().longest);
        let before = structure.own_released();
        for cache in self.pool.caches() {
            let left = wanted.saturating_sub(structure.own_released() - before);
            if left > 0 {
                self.engine.release_cache(structure, &cache, &|segment, _| segment.bytes() > longest, left);
            }
        }
        structure.own_released() - before
    }

    /// Allocates a segment of `bytes` from the source, notifies all trackers, and then allocates the block there.
    /// Returns `None` if the segment would exceed the allocator's limit, or if the source is out of memory. In that case,
    /// sets `cause` to the cause of the source's error.
    pub(super) fn add_segment(
        self,
        structure: &mut StructureLock<'_>,
        bytes: u64,
        cause: &mut Option<Cause>,
    ) -> Result<Option<Block>, AllocError> {
        match self.allocate_segment(structure, bytes) {
            Ok(segment) => Ok(Some(self.publish_segment(structure, segment))),
            Err(SourceError::OutOfMemory { source, .. }) => {
                *cause = source;
                Ok(None)
            }
            Err(source) => Err(AllocError::Source { bytes, source }),
        }
    }

    fn allocate_segment(self, structure: &mut StructureLock<'_>, bytes: u64) -> Result<Segment, SourceError> {
        let registry = self.registry();
        let reserved = registry.totals().reserved.current;
        if reserved.saturating_add(bytes) > registry.limit.load(Ordering::Relaxed)
            || units_for(bytes).is_err()
        {
            return Err(SourceError::out_of_memory(bytes));
        }
        let source = &self.info().source;
        registry.totals().source_allocations += 1;
        registry.count(|calls| calls.allocate += 1);
        let memory = source::allocate(&**source, bytes)?;
        registry.count_in(self.info().id, 1, bytes);
        Ok(Segment::new(SegmentParts {
            id: structure.segment_id(),
            device: source.device(),
            pool: self.info().id,
            stream: self.stream(),
            class: self.class,
            memory,
            source: source.clone(),
        }))
    }

    fn publish_segment(self, structure: &mut StructureLock<'_>, segment: Segment) -> Block {
        let units =
            units_for(segment.bytes()).expect("a segment's length was checked before it was allocated");
        let action = Action::SegmentAlloc(segment.clone());
        let now = self.registry().emit(structure, self.info().id, self.stream(), [action]);
        let mut state = self.cache.state.lock();
        state.publish(segment, units, now);
        let id = state.reserve(self.request.units).expect("a new segment has room for its request");
        Block::hand_out(self.cache.state, &mut state, id, self.request, self.stream())
    }
}
