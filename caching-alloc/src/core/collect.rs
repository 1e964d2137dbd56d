//! Collection by age: what has lain idle longest goes before the limit is reached.
//!
//! A segment's age is how often the allocator has grown since a block of it was last handed out. Before it grows, while
//! more is reserved than the part of the limit that is set, segments that are idle and at least of average age go.

use super::device::{Device, Growth};
use super::rounding::Fraction;
use super::sync::atomic::Ordering;

impl Device {
    /// What is collected above.
    pub(super) fn collect_above(&self) -> Option<u64> {
        let part = Fraction::from_millionths(self.collect.load(Ordering::Relaxed))?;
        self.limit().map(|limit| part.of(limit))
    }

    /// Gives back idle segments of at least average age until no more is reserved than is to be. Before growth.
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
            // What cannot go (it is held, or its stream cannot be waited for) would be found again.
            if self.totals().reserved.current == reserved {
                return;
            }
        }
    }
}
