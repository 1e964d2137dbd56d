//! Pages of a re-mappable pool: listing them, and releasing the old addresses of pages that have moved.

use super::PoolCore;
use crate::core::error::{Fault, chain};
use crate::core::remap::FreeSpan;
use crate::core::segment::Segment;
use crate::core::source::PageSource;

impl PoolCore {
    /// Returns all pages of a re-mappable pool in order of address. The caller holds the structure lock.
    pub(in crate::core) fn pages(&self) -> Vec<Segment> {
        /// The number of granules that are examined per acquisition of the arena's lock. A granule has the length of
        /// the smallest page.
        const CHUNK: usize = 1024;
        let Some(arena) = &self.info.arena else { return Vec::new() };
        let mut pages = Vec::new();
        let (mut range, mut first) = (0, 0);
        loop {
            pages.reserve(CHUNK);
            let more = arena.lock().copy_pages(range, first, CHUNK, &mut pages);
            match more {
                None => break,
                Some(true) => first += CHUNK,
                Some(false) => (range, first) = (range + 1, 0),
            }
        }
        pages.sort_unstable_by_key(Segment::address);
        pages
    }

    /// Turns the old addresses of moved pages into holes, once all work that used the pages at these addresses has
    /// ended. A hole is a part of a reserved range without usable memory. The moved pages are still mapped in the
    /// holes too. They must be unmapped from a hole before other pages are mapped in it.
    ///
    /// With `wait`, blocks the host until the work has ended. Otherwise only queries the events. Returns true if all
    /// old addresses were turned into holes.
    pub(in crate::core) fn retire_old_mappings(&self, wait: bool) -> bool {
        let registry = self.registry();
        let mut left = Vec::new();
        let old_mappings = self.info.arena_mut().take_old_mappings();
        for mut old_mapping in old_mappings {
            let ended = if wait {
                registry.wait_for(&old_mapping.wait)
            } else {
                registry.has_ended(&mut old_mapping.wait)
            };
            if ended {
                let mut arena = self.info.arena_mut();
                old_mapping.places.iter().for_each(|place| arena.retire_block(place.block));
            } else {
                left.push(old_mapping);
            }
        }
        let all = left.is_empty();
        self.info.arena_mut().keep_old_mappings(left);
        all
    }

    /// Unmaps old addresses that no work uses any more. Returns true if all of them were unmapped. Addresses that
    /// could not be unmapped are recorded as a fault and never used again.
    pub(in crate::core) fn unmap_stale(&self, source: &dyn PageSource, stale: &[FreeSpan]) -> bool {
        let registry = self.registry();
        let mut all = true;
        for span in stale {
            let (address, bytes) = self.info.arena_mut().span(*span);
            registry.count(|calls| calls.unmap += 1);
            if let Err(error) = source.unmap(address, bytes) {
                all = false;
                self.info.arena_mut().leak_span(*span);
                registry.fault(Fault::Unmapped { pool: self.info.id, message: chain(&error) });
            }
        }
        all
    }
}
