//! Collection by age: releases the memory that has been idle longest before the limit is reached.
//!
//! The age of a segment is the number of times that the allocator has grown since a block of it was last
//! handed out. Before growth, while more is reserved than the configured part of the limit, idle segments of
//! at least average age are released.

use super::Engine;
use crate::core::registry::Structure;

impl Engine {
    /// Releases idle segments of at least average age until the threshold is met. Runs before growth.
    pub(super) fn collect_idle(&self, structure: &mut Structure) {
        let Some(threshold) = self.registry.collect_above() else { return };
        let caches = self.caches();
        caches.iter().for_each(|cache| cache.state.lock().grow_older());
        loop {
            let reserved = self.registry.totals().reserved.current;
            if reserved <= threshold {
                return;
            }
            let eligible = || caches.iter().filter(|cache| cache.may_release());
            let ages: Vec<u64> = eligible()
                .flat_map(|cache| {
                    cache.merge();
                    cache.state.lock().fixed.idle_ages()
                })
                .filter(|age| *age > 0)
                .collect();
            let Some(average) = ages.iter().sum::<u64>().checked_div(ages.len() as u64) else { return };
            for cache in eligible() {
                let left = self.registry.totals().reserved.current.saturating_sub(threshold);
                if left > 0 {
                    self.release_cache(structure, cache, &|_, age| age > 0 && age >= average, left);
                }
            }
            // Stops when nothing was released: a segment that is held, or whose stream cannot be waited for,
            // would be chosen again.
            if self.registry.totals().reserved.current == reserved {
                return;
            }
        }
    }
}
