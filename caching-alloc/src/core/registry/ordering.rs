//! The ordering of streams. This file records events that mark uses of memory, and waits for these events. It also
//! has the sets of streams for which waits are restricted.

use std::collections::HashSet;
use std::sync::PoisonError;

use super::Registry;
use crate::core::error::{Fault, chain};
use crate::core::pending::Wait;
use crate::core::stream::{EventError, EventId, StreamId};
use crate::sync::RwLock;

/// Streams with a restriction on waits. The allocator adds no device-side waits for streams that carry collectives.
/// It does not release the memory of streams whose capture was announced, because the host would have to wait for
/// them.
#[derive(Debug, Default)]
pub(super) struct StreamMarks {
    /// Streams that carry collectives.
    collective: RwLock<HashSet<StreamId>>,
    /// Streams whose capture was announced, each with the number of its announcement.
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

    /// Announces a capture of streams. `number` identifies the announcement. A later call with the same number adds
    /// streams.
    pub(in crate::core) fn announce_capture(&self, number: u64, streams: &[StreamId]) {
        let mut announced = self.marks.announced.write().unwrap_or_else(PoisonError::into_inner);
        announced.extend(streams.iter().map(|stream| (number, *stream)));
    }

    /// Ends the announcement with this number, for all of its streams.
    pub(in crate::core) fn end_announcement(&self, number: u64) {
        let mut announced = self.marks.announced.write().unwrap_or_else(PoisonError::into_inner);
        announced.retain(|(other, _)| *other != number);
    }

    /// Returns the identifier of the latest announcement that the stream will be captured, or `None` if there is none.
    pub(in crate::core) fn announced(&self, stream: StreamId) -> Option<u64> {
        let announced = self.marks.announced.read().unwrap_or_else(PoisonError::into_inner);
        announced.iter().filter(|(_, other)| *other == stream).map(|(number, _)| *number).max()
    }

    /// Returns true if a stream is being captured, or its capture was announced. The host must not wait for such a
    /// stream.
    pub(in crate::core) fn is_captured(&self, stream: StreamId) -> bool {
        self.announced(stream).is_some() || self.events.is_capturing(stream).unwrap_or(false)
    }

    /// Returns true if the allocator may make a stream wait for others on the device, and others for it. Returns
    /// false for a stream that carries collectives, because other ranks would not add the same waits. Also returns
    /// false for a stream that is being captured, or that cannot be queried.
    pub(in crate::core) fn may_wait(&self, stream: StreamId) -> bool {
        !self.is_collective(stream) && !self.events.is_capturing(stream).unwrap_or(true)
    }

    /// Records an event after all work that was enqueued on the stream so far. Returns `None` if the stream is being
    /// captured or its capture was announced, because the event could become part of the graph. Also returns `None` if
    /// a call fails; the failure is recorded as a fault.
    pub(in crate::core) fn mark(&self, stream: StreamId) -> Option<EventId> {
        match self.events.is_capturing(stream) {
            Ok(false) if self.announced(stream).is_none() => {}
            Ok(_) => return None,
            Err(error) => return self.unmarked(stream, &error),
        }
        match self.record_uncaptured(stream) {
            Ok(event) => event,
            Err(error) => self.unmarked(stream, &error),
        }
    }

    /// Records an event on the stream. Returns `None` if the stream captures afterwards: another thread may have begun
    /// the capture before the record, so that the event is part of it. A query of such an event, or a wait for it, would
    /// invalidate the capture.
    fn record_uncaptured(&self, stream: StreamId) -> Result<Option<EventId>, EventError> {
        let event = self.events.record(stream)?;
        if !self.events.is_capturing(stream).unwrap_or(true) {
            return Ok(Some(event));
        }
        self.events.recycle(event);
        Ok(None)
    }

    fn unmarked(&self, stream: StreamId, error: &EventError) -> Option<EventId> {
        self.fault(Fault::Unordered { stream, message: chain(error) });
        None
    }

    /// Returns true if a use has ended, as far as the host can see, and recycles its event. If the use has no event
    /// yet, tries to record one first.
    pub(in crate::core) fn has_ended(&self, wait: &mut Wait) -> bool {
        let Some(event) = wait.event else {
            // The event does not cover captured work, which runs only when the graph is launched. The program must
            // order the launches with other uses of the memory. So an event after the work that was enqueued outside of
            // a capture is enough.
            wait.event = self.mark(wait.stream);
            return wait.event.is_some() && self.has_ended(wait);
        };
        // A failed query, for example while the stream is being captured, does not tell whether the use has ended.
        let ended = self.events.query(event).unwrap_or(false);
        if ended {
            self.events.recycle(event);
        }
        ended
    }

    /// Blocks the host until a use has ended. If the use has no event, records one first. If that fails, or the wait
    /// for the event fails, blocks the host until all work of the device has ended. Returns true if the use has ended,
    /// and recycles the event then. Returns false without waiting if the stream [is captured](Self::is_captured), or
    /// begins to capture.
    pub(in crate::core) fn wait_for(&self, wait: &Wait) -> bool {
        if self.is_captured(wait.stream) {
            return false;
        }
        let event = match wait.event {
            Some(event) => Some(event),
            None => match self.record_uncaptured(wait.stream) {
                Ok(None) => return false,
                Ok(event) => event,
                Err(_) => None,
            },
        };
        let ended = event.is_some_and(|event| self.events.synchronize(event).is_ok())
            || self.events.synchronize_device().is_ok();
        if let Some(event) = event.filter(|_| ended || wait.event.is_none()) {
            self.events.recycle(event);
        }
        ended
    }

    /// Makes `stream` wait, on the device, for the event, and recycles the event. Returns false if that fails. The
    /// event is not recycled then.
    pub(in crate::core) fn order(&self, stream: StreamId, event: EventId) -> bool {
        let ordered = self.events.wait(stream, event).is_ok();
        if ordered {
            self.events.recycle(event);
        }
        ordered
    }

    /// Returns true if later work of `stream` is ordered after all work that was enqueued on `other` so far. This is so
    /// if both are the same stream, or if the host sees that the work of `other` has ended. Otherwise, if `wait` is
    /// true and both streams [may wait](Self::may_wait), makes `stream` wait for that work on the device. Returns true
    /// if this succeeds.
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

    /// Blocks the host until all work that was enqueued on `stream` so far has ended. Fails without waiting if the
    /// stream begins to capture.
    pub(in crate::core) fn drain_stream(&self, stream: StreamId) -> Result<(), EventError> {
        let ended = match self.record_uncaptured(stream) {
            Ok(None) => {
                let source = "the stream began to capture".into();
                return Err(EventError { call: "recording an event outside of a capture", source });
            }
            Ok(Some(event)) => {
                let ended = self.events.synchronize(event);
                self.events.recycle(event);
                ended
            }
            // No event can be recorded on a destroyed stream, but its work may still run.
            Err(error) => Err(error),
        };
        ended.or_else(|_| self.events.synchronize_device())
    }
}
