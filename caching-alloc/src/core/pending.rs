//! Blocks that their owners freed while other streams still use them.
//!
//! Freeing such a block records an event on each of those streams. The events are queried only when a request
//! would otherwise miss.

use std::sync::Arc;

use super::device::Device;
use super::error::{Fault, chain};
use super::heap::BlockId;
use super::shard::Shard;
use super::stream::{EventId, StreamId};

/// The list of a block that no other stream uses.
pub(super) const NOBODY: u32 = u32::MAX;

/// A block in use by other streams.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: BlockId,
    pub(super) waits: Vec<Wait>,
}

/// A stream's last use of a block. It has no event while none can be recorded, because the stream is being
/// captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) event: Option<EventId>,
}

/// The streams that use blocks besides the blocks' own streams: short lists in one table.
#[derive(Debug, Default)]
pub(super) struct Uses {
    nodes: Vec<(StreamId, u32)>,
    spare: Vec<u32>,
}

impl Uses {
    /// Adds `stream` to the list that begins at `head`, once; returns the new head.
    pub(super) fn add(&mut self, head: u32, stream: StreamId) -> u32 {
        let mut at = head;
        while at != NOBODY {
            let (other, next) = self.nodes[at as usize];
            if other == stream {
                return head;
            }
            at = next;
        }
        if let Some(at) = self.spare.pop() {
            self.nodes[at as usize] = (stream, head);
            return at;
        }
        self.nodes.push((stream, head));
        u32::try_from(self.nodes.len() - 1).unwrap_or(NOBODY)
    }

    /// Empties the list that begins at `head`.
    pub(super) fn take(&mut self, mut head: u32) -> Vec<StreamId> {
        let mut streams = Vec::new();
        while head != NOBODY {
            let (stream, next) = self.nodes[head as usize];
            streams.push(stream);
            self.spare.push(head);
            head = next;
        }
        streams
    }
}

impl Shard {
    /// Records events for the last uses of a block that was freed.
    pub(super) fn await_uses(&self, id: BlockId, streams: &[StreamId]) {
        let waits = streams.iter().map(|stream| Wait { stream: *stream, event: self.device.mark(*stream) });
        let pending = Pending { id, waits: waits.collect() };
        self.state.lock().newly_pending.push(pending);
    }

    /// Completes every pending block whose uses have ended, as far as the host can see. Returns whether there
    /// was one. Waits for a thread that is doing so already.
    pub(super) fn poll_pending(&self) -> bool {
        self.poll(&mut self.pending.lock())
    }

    /// Like [`poll_pending`](Self::poll_pending); returns `None` if another thread is doing so already.
    pub(super) fn try_poll_pending(&self) -> Option<bool> {
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

    /// Lets this shard's stream wait for the uses of pending blocks, oldest first, until `enough` is met.
    pub(super) fn order_pending(&self, mut enough: impl FnMut(&Self) -> bool) -> bool {
        if !self.device.may_wait(self.stream) {
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
    pub(super) fn synchronize_pending(&self) -> bool {
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
        mut settled: impl FnMut(&Arc<Device>, &mut Vec<Wait>) -> bool,
    ) -> bool {
        pending.append(&mut self.state.lock().newly_pending);
        let before = pending.len();
        pending.retain_mut(|block| {
            let over = settled(&self.device, &mut block.waits);
            if over {
                self.state.lock().complete(block.id);
            }
            !over
        });
        pending.len() < before
    }
}

impl Device {
    /// Records an event at the end of a stream's work so far; `None` while no event can be recorded.
    pub(super) fn mark(&self, stream: StreamId) -> Option<EventId> {
        match self.events.is_capturing(stream) {
            Ok(false) => {}
            Ok(true) => return None,
            Err(error) => return self.unmarked(stream, &error),
        }
        self.events.record(stream).map_or_else(|error| self.unmarked(stream, &error), Some)
    }

    fn unmarked(&self, stream: StreamId, error: &super::stream::EventError) -> Option<EventId> {
        self.fault(Fault::Unordered { stream, message: chain(error) });
        None
    }

    /// Returns true if a use has ended, as far as the host can see.
    pub(super) fn has_ended(&self, wait: &mut Wait) -> bool {
        let Some(event) = wait.event else {
            // Captured work runs when the graph is launched, in an order that the program ensures. Only work
            // after the capture on the stream is marked now.
            wait.event = self.mark(wait.stream);
            return wait.event.is_some() && self.has_ended(wait);
        };
        // An error, as for a stream that is being captured, says nothing about the use.
        let ended = self.events.query(event).unwrap_or(false);
        if ended {
            self.events.recycle(event);
        }
        ended
    }

    /// Blocks the host until a use has ended. Returns whether it has.
    pub(super) fn wait_for(&self, wait: &Wait) -> bool {
        if self.events.is_capturing(wait.stream).unwrap_or(false) {
            return false;
        }
        let event = wait.event.or_else(|| self.events.record(wait.stream).ok());
        let ended = event.is_some_and(|event| self.events.synchronize(event).is_ok())
            || self.events.synchronize_device().is_ok();
        if let Some(event) = event.filter(|_| ended || wait.event.is_none()) {
            self.events.recycle(event);
        }
        ended
    }

    /// Lets `stream` wait for the event, which is recycled. Returns whether it does.
    pub(super) fn order(&self, stream: StreamId, event: EventId) -> bool {
        let ordered = self.events.wait(stream, event).is_ok();
        if ordered {
            self.events.recycle(event);
        }
        ordered
    }
}
