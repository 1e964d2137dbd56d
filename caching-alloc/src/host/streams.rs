//! Streams without a device.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::failing::{Failing, Failures, StreamCall};
use crate::core::{CaptureCount, EventError, EventId, StreamEvents, StreamId};

/// Streams whose work completes when the program calls [`complete`](Self::complete), or when the host waits for it.
#[derive(Debug, Default)]
pub struct HostStreams {
    state: Mutex<StreamsState>,
    /// The number of streams that capture.
    captures: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct StreamsState {
    streams: HashMap<StreamId, HostStream>,
    events: HashMap<EventId, HostEvent>,
    next_event: u64,
    failures: Failures<StreamCall>,
    waits: Vec<(StreamId, StreamId)>,
    invalidated: u64,
}

#[derive(Debug, Default)]
struct HostStream {
    enqueued: u64,
    completed: u64,
    capturing: bool,
    /// The streams that later work of this stream waits for. The value is a number of work items: the wait is for that
    /// many items of the other stream, counted from its first one.
    after: HashMap<StreamId, u64>,
}

#[derive(Debug, Clone)]
struct HostEvent {
    stream: StreamId,
    position: u64,
    after: HashMap<StreamId, u64>,
    /// True if the event was recorded during a capture of its stream.
    captured: bool,
}

impl HostStreams {
    /// Makes streams without work.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Enqueues one work item.
    pub fn enqueue(&self, stream: StreamId) {
        self.state().streams.entry(stream).or_default().enqueued += 1;
    }

    /// Completes all work of a stream, and all work of other streams that it waits for.
    pub fn complete(&self, stream: StreamId) {
        let mut state = self.state();
        let stream = state.streams.entry(stream).or_default();
        stream.completed = stream.enqueued;
        let after = stream.after.clone();
        state.complete_upto(&after);
    }

    /// Returns the number of work items enqueued on the stream so far.
    #[must_use]
    pub fn position(&self, stream: StreamId) -> u64 {
        self.state().streams.get(&stream).map_or(0, |stream| stream.enqueued)
    }

    /// Returns true if later work of `stream` is ordered after the first `position` work items of `other`: both are the
    /// same stream, or the items have completed, or `stream` waits for them.
    #[must_use]
    pub fn comes_after(&self, stream: StreamId, other: StreamId, position: u64) -> bool {
        let state = self.state();
        let ended = state.streams.get(&other).map_or(0, |other| other.completed) >= position;
        let awaited = state.streams.get(&stream).and_then(|stream| stream.after.get(&other));
        stream == other || ended || awaited.is_some_and(|awaited| *awaited >= position)
    }

    /// Sets whether the stream captures.
    pub fn set_capturing(&self, stream: StreamId, capturing: bool) {
        let mut state = self.state();
        let stream = state.streams.entry(stream).or_default();
        match (std::mem::replace(&mut stream.capturing, capturing), capturing) {
            (false, true) => _ = self.captures.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.captures.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Makes later calls of this kind fail as `failing` says. Replaces an earlier setting for this kind.
    pub fn fail(&self, call: StreamCall, failing: Failing) {
        self.state().failures.arm(call, failing);
    }

    /// Removes all settings of [`fail`](Self::fail).
    pub fn heal(&self) {
        self.state().failures.disarm();
    }

    /// Returns the number of calls of this kind, including failed ones.
    #[must_use]
    pub fn made(&self, call: StreamCall) -> u64 {
        self.state().failures.made(call)
    }

    /// Returns the number of injected failures so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.state().failures.failed()
    }

    /// Returns the number of queries and waits that would have invalidated a capture: those of an event that the capture
    /// has recorded.
    #[must_use]
    pub fn invalidated(&self) -> u64 {
        self.state().invalidated
    }

    /// Returns the number of events that were recorded and not recycled.
    #[must_use]
    pub fn live_events(&self) -> usize {
        self.state().events.len()
    }

    /// Returns all successful calls of [`wait`](StreamEvents::wait) so far, as pairs: the stream that waits, and the
    /// event's stream.
    #[must_use]
    pub fn waits(&self) -> Vec<(StreamId, StreamId)> {
        self.waits_after(0)
    }

    /// Like [`waits`](Self::waits), without the first `seen` calls.
    #[must_use]
    pub fn waits_after(&self, seen: usize) -> Vec<(StreamId, StreamId)> {
        self.state().waits.get(seen..).unwrap_or_default().to_vec()
    }

    fn state(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamsState {
    /// Counts a call. Returns an error if the call is to fail.
    fn call(&mut self, call: StreamCall, name: &'static str) -> Result<(), EventError> {
        self.failures.due(call).map_or(Ok(()), |failing| Err(failing.event_error(name)))
    }

    fn event(&self, call: &'static str, event: EventId) -> Result<HostEvent, EventError> {
        let found = self.events.get(&event).cloned();
        found.ok_or_else(|| EventError { call, source: format!("there is no {event:?}").into() })
    }

    fn complete_upto(&mut self, positions: &HashMap<StreamId, u64>) {
        for (stream, position) in positions.iter().filter(|(_, position)| **position > 0) {
            let stream = self.streams.entry(*stream).or_default();
            stream.completed = stream.completed.max(*position);
        }
    }
}

impl StreamEvents for HostStreams {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        let mut state = self.state();
        state.call(StreamCall::Record, "record")?;
        // Does not create an entry for a stream without work.
        let known = state.streams.get(&stream);
        let (position, after, captured) = known
            .map_or_else(Default::default, |known| (known.enqueued, known.after.clone(), known.capturing));
        let recorded = HostEvent { stream, position, after, captured };
        let event = EventId(state.next_event);
        state.next_event += 1;
        state.events.insert(event, recorded);
        Ok(event)
    }

    fn query(&self, event: EventId) -> Result<bool, EventError> {
        let mut state = self.state();
        state.call(StreamCall::Query, "query")?;
        let HostEvent { stream, position, after, captured } = state.event("query", event)?;
        if state.streams.get(&stream).is_some_and(|stream| stream.capturing) {
            state.invalidated += u64::from(captured);
            let source = "the event's stream is being captured".into();
            return Err(EventError { call: "query", source });
        }
        // An event completes only after all work that its stream waited for before the record.
        let ended = |(stream, position): (&StreamId, &u64)| {
            state.streams.get(stream).map_or(0, |stream| stream.completed) >= *position
        };
        Ok(after.iter().chain([(&stream, &position)]).all(ended))
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        let mut state = self.state();
        state.call(StreamCall::Wait, "wait")?;
        let event = state.event("wait", event)?;
        state.waits.push((stream, event.stream));
        let after = &mut state.streams.entry(stream).or_default().after;
        for (other, position) in event.after.into_iter().chain([(event.stream, event.position)]) {
            let known = after.entry(other).or_default();
            *known = position.max(*known);
        }
        Ok(())
    }

    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        let mut state = self.state();
        state.call(StreamCall::Synchronize, "synchronize")?;
        let event = state.event("synchronize", event)?;
        if state.streams.get(&event.stream).is_some_and(|stream| stream.capturing) && event.captured {
            state.invalidated += 1;
            let source = "the event is part of a capture".into();
            return Err(EventError { call: "synchronize", source });
        }
        let ended = event.after.into_iter().chain([(event.stream, event.position)]).collect();
        state.complete_upto(&ended);
        Ok(())
    }

    fn synchronize_device(&self) -> Result<(), EventError> {
        let mut state = self.state();
        state.call(StreamCall::SynchronizeDevice, "synchronize_device")?;
        if state.streams.values().any(|stream| stream.capturing) {
            let source = "a stream is being captured".into();
            return Err(EventError { call: "synchronize_device", source });
        }
        state.streams.values_mut().for_each(|stream| stream.completed = stream.enqueued);
        Ok(())
    }

    fn recycle(&self, event: EventId) {
        self.state().events.remove(&event);
    }

    fn captures(&self) -> Option<CaptureCount> {
        Some(CaptureCount::of(&self.captures))
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        let mut state = self.state();
        state.call(StreamCall::IsCapturing, "is_capturing")?;
        Ok(state.streams.get(&stream).is_some_and(|stream| stream.capturing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_ends_after_what_its_stream_waited_for() {
        let streams = HostStreams::new();
        let [first, second] = [1, 2].map(StreamId);
        streams.enqueue(first);
        streams.wait(second, streams.record(first).unwrap()).unwrap();
        let event = streams.record(second).unwrap();
        assert!(!streams.query(event).unwrap());
        streams.complete(first);
        assert!(streams.query(event).unwrap());
    }
}
