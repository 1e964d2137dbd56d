//! Blocks of a cache that other streams still use.

use std::sync::Arc;

use super::StreamCache;
use crate::core::pending::{Pending, Wait};
use crate::core::registry::Registry;

impl StreamCache {
    /// Completes every pending block whose uses have ended, as far as the host can see. Returns whether there
    /// was one. Waits for a thread that is doing so already.
    pub(in crate::core) fn poll_pending(&self) -> bool {
        self.poll(&mut self.pending.lock())
    }

    /// Like [`poll_pending`](Self::poll_pending); returns `None` if another thread is doing so already.
    pub(in crate::core) fn try_poll_pending(&self) -> Option<bool> {
        self.pending.try_lock().map(|mut pending| self.poll(&mut pending))
    }

    fn poll(&self, pending: &mut Vec<Pending>) -> bool {
        let mut busy = Vec::new();
        self.settle(pending, |device, waits| {
            waits.retain_mut(|wait| {
                // A stream's events end in order: after the first unfinished one, the others need no query.
                let ended = !busy.contains(&wait.stream) && device.has_ended(wait);
                if !ended {
                    busy.push(wait.stream);
                }
                !ended
            });
            waits.is_empty()
        })
    }

    /// Lets this cache's stream wait for the uses of pending blocks, oldest first, until `enough` is met.
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

    /// Blocks the host until no block is pending, except those whose uses have no event yet.
    pub(in crate::core) fn synchronize_pending(&self) -> bool {
        self.settle(&mut self.pending.lock(), |device, waits| {
            waits.retain_mut(|wait| !device.wait_for(wait));
            waits.is_empty()
        })
    }

    /// Runs `settled` over the pending blocks, oldest first, and completes those for which it returns true.
    /// No lock that a hit takes is held meanwhile. A thread that needs a pending block waits for the lock on
    /// `pending`, so a block that is just being queried is never overlooked.
    fn settle(
        &self,
        pending: &mut Vec<Pending>,
        mut settled: impl FnMut(&Arc<Registry>, &mut Vec<Wait>) -> bool,
    ) -> bool {
        pending.append(&mut self.state.lock().newly_pending);
        let before = pending.len();
        pending.retain_mut(|block| {
            let over = settled(&self.registry, &mut block.waits);
            if over {
                self.state.lock().complete(block.id);
            }
            !over
        });
        pending.len() < before
    }
}
