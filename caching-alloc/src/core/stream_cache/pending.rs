//! Pending blocks of a cache: blocks that were freed, but that other streams or graphs may still use.

use std::sync::Arc;

use super::StreamCache;
use crate::core::pending::{Pending, Wait};
use crate::core::registry::Registry;

impl StreamCache {
    /// Queries the events of the pending blocks, and completes the blocks whose uses have ended: returns them to the
    /// cache's free memory. Returns true if any block was completed. Waits while another thread processes the pending
    /// blocks.
    pub(in crate::core) fn poll_pending(&self) -> bool {
        self.poll(&mut self.pending.lock())
    }

    /// Like [`poll_pending`](Self::poll_pending), but returns `None` at once if another thread processes the pending
    /// blocks.
    pub(in crate::core) fn try_poll_pending(&self) -> Option<bool> {
        self.pending.try_lock().map(|mut pending| self.poll(&mut pending))
    }

    fn poll(&self, pending: &mut Vec<Pending>) -> bool {
        let mut busy = Vec::new();
        self.settle(pending, |device, waits| {
            waits.retain_mut(|wait| {
                // Events of a stream complete in order, so those after an incomplete one need no query.
                let ended = !busy.contains(&wait.stream) && device.has_ended(wait);
                if !ended {
                    busy.push(wait.stream);
                }
                !ended
            });
            waits.is_empty()
        })
    }

    /// Makes this cache's stream wait on the device for the uses of pending blocks, oldest first, and completes these
    /// blocks. Stops when `enough` returns true. Skips a block if one of its uses has no event, or is by a graph, or by
    /// a stream that this stream may not wait for. Does nothing if the allocator may not make this stream wait at all.
    /// Returns true if it completed any block.
    pub(in crate::core) fn order_pending(&self, mut enough: impl FnMut(&Self) -> bool) -> bool {
        if !self.registry.may_wait(self.stream) {
            return false;
        }
        let mut met = false;
        self.settle(&mut self.pending.lock(), |device, waits| {
            met = met || enough(self);
            if met || !waits.iter().all(|wait| wait.event.is_some() && device.may_wait(wait.stream)) {
                return false;
            }
            waits.retain(|wait| !wait.event.is_some_and(|event| device.order(self.stream, event)));
            waits.is_empty()
        })
    }

    /// Blocks the host until the uses of all pending blocks have ended, and completes these blocks. Skips blocks that
    /// graphs use, and uses by streams that are being captured. Returns true if it completed any block.
    pub(in crate::core) fn synchronize_pending(&self) -> bool {
        self.settle(&mut self.pending.lock(), |device, waits| {
            waits.retain_mut(|wait| !device.wait_for(wait));
            waits.is_empty()
        })
    }

    /// Calls `settled` for each pending block that no graph uses, oldest first, with the uses of the block that have
    /// not ended yet. Completes the block if `settled` returns true. Returns true if any block was completed.
    ///
    /// The caller holds the lock on `pending`, but `settled` is called without any lock that a hit takes. A thread that
    /// needs a pending block waits for the lock on `pending`. So it does not miss a block whose events are being
    /// queried.
    fn settle(
        &self,
        pending: &mut Vec<Pending>,
        mut settled: impl FnMut(&Arc<Registry>, &mut Vec<Wait>) -> bool,
    ) -> bool {
        pending.append(&mut self.state.lock().newly_pending);
        let before = pending.len();
        pending.retain_mut(|block| {
            let over = !block.is_in_graph() && settled(&self.registry, &mut block.waits);
            if over {
                self.state.lock().complete(block.id);
            }
            !over
        });
        pending.len() < before
    }
}
