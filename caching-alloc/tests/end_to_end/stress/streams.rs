//! Streams for the stress test: work on the side streams ends when the test, or a wait of the allocator, says so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use caching_alloc::core::{EventError, EventId, StreamEvents, StreamId};

use super::memory::Span;

/// In-order streams. An item of work is the use of a span. Its end clears the span's ownership words.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    streams: HashMap<StreamId, Stream>,
    events: HashMap<EventId, (StreamId, u64)>,
    recorded: u64,
}

#[derive(Debug, Default)]
struct Stream {
    enqueued: u64,
    ended: u64,
    capturing: bool,
    uses: VecDeque<(u64, Span, u64)>,
}

impl Stream {
    fn end(&mut self, position: u64) {
        while self.uses.front().is_some_and(|(at, ..)| *at <= position) {
            let (_, span, owner) = self.uses.pop_front().expect("there is a first one");
            span.pass(owner, 0);
        }
        self.ended = self.ended.max(position);
    }
}

impl Streams {
    /// Enqueues a use of a span that belongs to `owner` until the use ends.
    pub(crate) fn enqueue(&self, stream: StreamId, span: Span, owner: u64) {
        let mut state = self.state();
        let stream = state.streams.entry(stream).or_default();
        stream.enqueued += 1;
        stream.uses.push_back((stream.enqueued, span, owner));
    }

    /// Ends all work of a stream.
    pub(crate) fn complete(&self, stream: StreamId) {
        let mut state = self.state();
        let stream = state.streams.entry(stream).or_default();
        stream.end(stream.enqueued);
    }

    pub(crate) fn set_capturing(&self, stream: StreamId, capturing: bool) {
        self.state().streams.entry(stream).or_default().capturing = capturing;
    }

    pub(crate) fn live_events(&self) -> usize {
        self.state().events.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn end_up_to(&self, event: EventId) {
        let mut state = self.state();
        let (stream, position) = state.events[&event];
        state.streams.entry(stream).or_default().end(position);
    }
}

impl StreamEvents for Streams {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        let mut state = self.state();
        let recorded = state.streams.entry(stream).or_default();
        if recorded.capturing {
            return Err(EventError { call: "record", source: "the stream is capturing".into() });
        }
        let position = recorded.enqueued;
        let event = EventId(state.recorded);
        state.recorded += 1;
        state.events.insert(event, (stream, position));
        Ok(event)
    }

    fn query(&self, event: EventId) -> Result<bool, EventError> {
        let state = self.state();
        let (stream, position) = state.events[&event];
        Ok(state.streams[&stream].ended >= position)
    }

    /// The work ends at once, which is one of the orders that a device may choose.
    fn wait(&self, _: StreamId, event: EventId) -> Result<(), EventError> {
        self.end_up_to(event);
        Ok(())
    }

    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.end_up_to(event);
        Ok(())
    }

    fn synchronize_device(&self) -> Result<(), EventError> {
        Err(EventError { call: "synchronize_device", source: "no stream is ever unknown here".into() })
    }

    fn recycle(&self, event: EventId) {
        self.state().events.remove(&event).expect("an event is given back once");
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        Ok(self.state().streams.get(&stream).is_some_and(|stream| stream.capturing))
    }
}
