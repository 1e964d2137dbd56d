//! Pools whose segments all members of the group have mapped.

use std::sync::{Arc, PoisonError, RwLock};

use crate::{membership::Published, pool::Memory, rendezvous::Buffer, symmetric_pool::SymmetricPool};

/// A segment that every member has mapped.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// The number of the rendezvous that mapped it, the same on every member.
    pub(super) number: u64,
    /// The whole segment on this rank. The pool finds its mappings of the peers' segments by this buffer.
    pub(super) buffer: Buffer,
}

#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    table: Arc<Published>,
    segments: Vec<Segment>,
}

/// The pools that were shared with a direct path. The path keeps their memory allocated, as a communicator keeps the
/// memory of its windows.
#[derive(Debug, Default)]
pub(super) struct SharedPools(RwLock<Vec<Shared>>);

/// A segment's number and an offset in that segment, packed into 64 bits: the number plus one in the upper 20 bits, and
/// the offset in bytes in the lower 44.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(pub(super) u64);

impl Place {
    /// Memory that peers cannot reach.
    pub(super) const NONE: Self = Self(0);
    const OFFSET_BITS: u32 = 44;

    fn new(number: u64, offset: u64) -> Option<Self> {
        let fits = number + 1 < 1 << (u64::BITS - Self::OFFSET_BITS) && offset < 1 << Self::OFFSET_BITS;
        fits.then_some(Self((number + 1) << Self::OFFSET_BITS | offset))
    }

    /// Returns the number of the segment, and the offset in it in bytes. `None` for [`NONE`](Self::NONE).
    pub(super) fn get(self) -> Option<(u64, u64)> {
        let number = (self.0 >> Self::OFFSET_BITS).checked_sub(1)?;
        Some((number, self.0 & ((1 << Self::OFFSET_BITS) - 1)))
    }
}

impl SharedPools {
    /// The segments of `pool` that are neither [added](Self::add) nor retired, in the order of their ordinals.
    pub(super) fn missing(&self, pool: &SymmetricPool) -> Vec<Buffer> {
        let memory = pool.memory();
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let shared = all.iter().find(|shared| Arc::ptr_eq(&shared.memory, memory));
        let is_new = |ordinal: u32| {
            shared.is_none_or(|shared| shared.segments.iter().all(|it| it.buffer.ordinal() != ordinal))
        };
        let arena = memory.arena();
        let new = arena.segments().iter().filter(|segment| !segment.retired && is_new(segment.ordinal));
        new.map(|segment| Buffer::of_segment(memory, segment.ordinal, segment.bytes)).collect()
    }

    /// Adds a segment of `pool` that all members have mapped.
    pub(super) fn add(&self, pool: &SymmetricPool, segment: Segment) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = all.iter_mut().find(|shared| Arc::ptr_eq(&shared.memory, pool.memory())) {
            // Remove segments that were retired since the last call: the pool has already removed their mappings.
            let arena = shared.memory.arena();
            let is_live = |ordinal: u32| arena.segments().get(ordinal as usize).is_some_and(|it| !it.retired);
            shared.segments.retain(|segment| is_live(segment.buffer.ordinal()));
            drop(arena);
            return shared.segments.push(segment);
        }
        let (memory, table) = (pool.memory().clone(), pool.published().clone());
        all.push(Shared { memory, table, segments: vec![segment] });
    }

    /// Finds the segment that contains the `bytes` bytes at `address`. Returns the segment's number, and a [`Place`]
    /// with the number and the offset of `address`. Returns `None` if the bytes lie in no single segment that all
    /// members have mapped, or if the number or the offset does not fit into a `Place`.
    pub(super) fn place(&self, address: u64, bytes: u64) -> Option<(u64, Place)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find_map(|shared| {
            let place = shared.table.place(address, bytes)?;
            let segment = shared.segments.iter().find(|segment| segment.buffer.ordinal() == place.ordinal)?;
            Some((segment.number, Place::new(segment.number, place.offset)?))
        })
    }

    /// Finds a segment by its number.
    pub(super) fn find(&self, number: u64) -> Option<Segment> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut segments = all.iter().flat_map(|shared| &shared.segments);
        segments.find(|segment| segment.number == number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_place_is_what_it_was_made_of(number in 0u64..1 << 21, offset in 0u64..1 << 45) {
            match Place::new(number, offset) {
                Some(place) => {
                    prop_assert_ne!(place, Place::NONE);
                    prop_assert_eq!(place.get(), Some((number, offset)));
                }
                None => prop_assert!(number >= (1 << 20) - 1 || offset >= 1 << 44),
            }
        }
    }

    #[test]
    fn no_place_has_no_segment() {
        assert_eq!(Place::NONE.get(), None);
    }
}
