//! Release of idle segments by age, before the memory limit is reached.
//!
//! The age of a segment is the number of calls of `collect_idle` since a block of it was last in use. While more is
//! reserved than the configured part of the limit, segments without used blocks are released if their age is at least
//! the average.

use super::Engine;
use crate::core::registry::StructureLock;

impl Engine {
    /// Releases idle segments of at least average age until no more than the threshold is reserved. Called before the
    /// allocator reserves more memory. Does nothing without a threshold.
    pub(super) fn collect_idle(&self, structure: &mut StructureLock<'_>) {
        let Some(threshold) = self.registry.collect_above() else { return };
        let caches = self.caches();
        caches.iter().for_each(|cache| cache.state.lock().grow_older());
        loop {
            let before = structure.own_released();
            if self.registry.totals().reserved.current <= threshold {
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
            // Nothing was released, so the next iteration could select the same segments again. Possible reasons: the
            // segments are held, so that they are released later; the host could not wait for their streams; they are
            // used again, or their pool was frozen.
            if structure.own_released() == before {
                return;
            }
        }
    }
}
