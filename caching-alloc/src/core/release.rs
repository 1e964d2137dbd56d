//! Giving memory back: cached segments, and what the last block of a dropped pool leaves.

use super::device::{Device, Growth};
use super::error::{Fault, chain};
use super::segment::SizeClass;
use super::shard::Shard;

impl Device {
    /// Gives back segments without blocks, newest first, until `wanted` bytes have gone or none are left; returns
    /// how many bytes went. Held ones go into quarantine and do not count.
    pub(super) fn release_cached(&self, growth: &mut Growth, wanted: u64) -> u64 {
        let before = self.totals().reserved.current;
        let gone = |device: &Self| before - device.totals().reserved.current;
        for shard in self.shards() {
            let left = wanted.saturating_sub(gone(self));
            if left == 0 {
                break;
            }
            self.release_shard(growth, &shard, None, left);
        }
        gone(self)
    }

    /// Gives back a shard's segments without blocks, of one class or of both, until `wanted` bytes have gone.
    pub(super) fn release_shard(
        &self,
        growth: &mut Growth,
        shard: &Shard,
        class: Option<SizeClass>,
        wanted: u64,
    ) {
        let stays = shard.pool.is_symmetric() || shard.pool.is_frozen();
        if stays || self.events.is_capturing(shard.stream).unwrap_or(false) {
            return;
        }
        let segments = shard.state.lock().withdraw_all(class, wanted);
        if segments.is_empty() {
            return;
        }
        shard.settle_entries();
        match self.drain_stream(shard.stream) {
            Ok(()) => segments.into_iter().for_each(|segment| self.remove_segment(growth, segment)),
            Err(error) => {
                let message = chain(&error);
                for segment in segments {
                    self.fault(Fault::Stranded { segment: segment.clone(), message: message.clone() });
                    shard.put_back(segment);
                }
            }
        }
    }
}
