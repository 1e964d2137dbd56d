//! Collection by age: releases the memory that has been idle longest before the limit is reached.
//!
//! The age of a segment is the number of times that the allocator has grown since a block of it was last
//! handed out. Before growth, while more is reserved than the configured part of the limit, idle segments of
//! at least average age are released.

use super::device::{Device, Growth};
use super::rounding::Fraction;
use super::sync::atomic::Ordering;

impl Device {
    /// The threshold in reserved bytes above which idle segments are collected.
    pub(super) fn collect_above(&self) -> Option<u64> {
        let part = Fraction::from_millionths(self.collect.load(Ordering::Relaxed))?;
        self.limit().map(|limit| part.of(limit))
    }

    /// Releases idle segments of at least average age until the threshold is met. Runs before growth.
    pub(super) fn collect_garbage(&self, growth: &mut Growth) {
        let Some(threshold) = self.collect_above() else { return };
        let shards = self.shards();
        shards.iter().for_each(|shard| shard.state.lock().grow_older());
        loop {
            let reserved = self.totals().reserved.current;
            if reserved <= threshold {
                return;
            }
            let eligible = || shards.iter().filter(|shard| shard.may_release());
            let ages: Vec<u64> = eligible()
                .flat_map(|shard| {
                    shard.merge();
                    shard.state.lock().fixed.idle_ages()
                })
                .filter(|age| *age > 0)
                .collect();
            let Some(average) = ages.iter().sum::<u64>().checked_div(ages.len() as u64) else { return };
            for shard in eligible() {
                let left = self.totals().reserved.current.saturating_sub(threshold);
                if left > 0 {
                    self.release_shard(growth, shard, &|_, age| age > 0 && age >= average, left);
                }
            }
            // Stops when nothing was released: a segment that is held, or whose stream cannot be waited for,
            // would be chosen again.
            if self.totals().reserved.current == reserved {
                return;
            }
        }
    }
}
