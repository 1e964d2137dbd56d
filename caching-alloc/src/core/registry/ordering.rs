//! The order of streams: events that mark uses, waits, and the streams that must not be waited for.

use std::collections::HashSet;
use std::sync::PoisonError;

use super::Registry;
use crate::core::error::{Fault, chain};
use crate::core::pending::Wait;
use crate::core::stream::{EventError, EventId, StreamId};
use crate::core::sync::RwLock;

/// Streams that are treated specially.
#[derive(Debug, Default)]
pub(super) struct StreamMarks {
    collective: RwLock<HashSet<StreamId>>,
    /// Streams whose capture was announced, each with the number of the announcement.
    announced: RwLock<Vec<(u64, StreamId)>>,
}

impl Registry {
    pub(in crate::core) fn mark_collective(&self, stream: StreamId) {
        self.marks.collective.write().unwrap_or_else(PoisonError::into_inner).insert(stream);
    }

    pub(in crate::core) fn unmark_collective(&self, stream: StreamId) {
        self.marks.collective.write().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    pub(in crate::core) fn is_collective(&self, stream: StreamId) -> bool {
        self.marks.collective.read().unwrap_or_else(PoisonError::into_inner).contains(&stream)
    }

    /// Announces a capture of streams, under a number of the caller's.
    pub(in crate::core) fn announce_capture(&self, number: u64, streams: &[StreamId]) {
        let mut announced = self.marks.announced.write().unwrap_or_else(PoisonError::into_inner);
        announced.extend(streams.iter().map(|stream| (number, *stream)));
    }

    /// Ends the announcement with this number.
    pub(in crate::core) fn end_announcement(&self, number: u64) {
        let mut announced = self.marks.announced.write().unwrap_or_else(PoisonError::into_inner);
        announced.retain(|(other, _)| *other != number);
    }

    /// The greatest number of an announced capture of the stream.
    pub(in crate::core) fn announced(&self, stream: StreamId) -> Option<u64> {
        let announced = self.marks.announced.read().unwrap_or_else(PoisonError::into_inner);
        announced.iter().filter(|(_, other)| *other == stream).map(|(number, _)| *number).max()
    }

    /// Returns true if a stream captures, or a capture of it was announced: the host must not wait for it.
    pub(in crate::core) fn is_captured(&self, stream: StreamId) -> bool {
        self.announced(stream).is_some() || self.events.is_capturing(stream).unwrap_or(false)
    }

    /// Returns true if a stream may wait for others, and others for it, because of this rank's memory alone.
    /// False for a stream that carries collectives or is being captured.
    pub(in crate::core) fn may_wait(&self, stream: StreamId) -> bool {
        !self.is_collective(stream) && !self.events.is_capturing(stream).unwrap_or(true)
    }

    /// Records an event at the end of a stream's work so far; `None` while no event can be recorded.
    pub(in crate::core) fn mark(&self, stream: StreamId) -> Option<EventId> {
        match self.events.is_capturing(stream) {
            Ok(false) => {}
            Ok(true) => return None,
            Err(error) => return self.unmarked(stream, &error),
        }
        self.events.record(stream).map_or_else(|error| self.unmarked(stream, &error), Some)
    }

    fn unmarked(&self, stream: StreamId, error: &EventError) -> Option<EventId> {
        self.fault(Fault::Unordered { stream, message: chain(error) });
        None
    }

    /// Returns true if a use has ended, as far as the host can see.
    pub(in crate::core) fn has_ended(&self, wait: &mut Wait) -> bool {
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
    pub(in crate::core) fn wait_for(&self, wait: &Wait) -> bool {
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
    pub(in crate::core) fn order(&self, stream: StreamId, event: EventId) -> bool {
        let ordered = self.events.wait(stream, event).is_ok();
        if ordered {
            self.events.recycle(event);
        }
        ordered
    }

    /// Returns true if work enqueued on `stream` from now on is ordered after all work enqueued on `other`.
    /// The host can see that it has ended, or, with `wait`, `stream` waits for it if that is allowed.
    pub(in crate::core) fn is_ordered_after(&self, stream: StreamId, other: StreamId, wait: bool) -> bool {
        if other == stream {
            return true;
        }
        let Some(event) = self.mark(other) else { return false };
        if self.events.query(event).unwrap_or(false) {
            self.events.recycle(event);
            return true;
        }
        let ordered = wait && self.may_wait(stream) && self.may_wait(other) && self.order(stream, event);
        if !ordered {
            self.events.recycle(event);
        }
        ordered
    }

    /// Blocks the host until all work enqueued on `stream` has ended. It does not touch the stream's memory.
    pub(in crate::core) fn drain_stream(&self, stream: StreamId) -> Result<(), EventError> {
        let ended = self.events.record(stream).and_then(|event| {
            let ended = self.events.synchronize(event);
            self.events.recycle(event);
            ended
        });
        // A destroyed stream takes no event, but its work may still run.
        ended.or_else(|_| self.events.synchronize_device())
    }
}
