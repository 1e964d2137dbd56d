//! A source and streams without a device: addresses are numbers, and streams move when told to.
//!
//! For tests, for replays of traces, and for examples; nothing can be read or written at these addresses.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::{
    EventError, EventId, MemoryInfo, PageSource, SegmentMemory, SegmentSource, SourceError, StreamEvents,
    StreamId,
};

/// Memory that is only counted.
#[derive(Debug)]
pub struct HostSource {
    device: u32,
    state: Mutex<HostState>,
}

#[derive(Debug)]
struct HostState {
    next: u64,
    capacity: u64,
    live: BTreeMap<u64, u64>,
    /// Pages, by token: length, and how often mapped.
    pages: HashMap<u64, (u64, u32)>,
    /// Mappings of pages, by address: length, token, and whether the device may use them.
    mapped: BTreeMap<u64, (u64, u64, bool)>,
    calls: Calls,
    fail_allocate: Option<u64>,
    fail_release: Option<u64>,
    fail_map: Option<u64>,
    fail_enable: Option<u64>,
    fail_unmap: Option<u64>,
}

/// How often a source was called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Segments asked for.
    pub allocate: u64,
    /// Segments given back.
    pub release: u64,
    /// Pages made.
    pub create: u64,
    /// Pages taken back.
    pub discard: u64,
    /// Pages mapped.
    pub map: u64,
    /// Ranges that the device was let use.
    pub enable: u64,
    /// Ranges unmapped.
    pub unmap: u64,
    /// Bytes that are out now.
    pub live_bytes: u64,
    /// The most that ever were.
    pub peak_bytes: u64,
}

impl HostSource {
    /// A source of `capacity` bytes as device 0.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self::at(0x7f00_0000_0000, capacity)
    }

    /// A source whose addresses begin at `base`, a multiple of 2 MiB that is not 0.
    #[must_use]
    pub fn at(base: u64, capacity: u64) -> Self {
        let state = HostState {
            next: base,
            capacity,
            live: BTreeMap::new(),
            pages: HashMap::new(),
            mapped: BTreeMap::new(),
            calls: Calls::default(),
            fail_allocate: None,
            fail_release: None,
            fail_map: None,
            fail_enable: None,
            fail_unmap: None,
        };
        Self { device: 0, state: Mutex::new(state) }
    }

    /// The same as another device.
    #[must_use]
    pub fn on_device(mut self, device: u32) -> Self {
        self.device = device;
        self
    }

    /// Lets the allocation after `calls` further ones fail, as if for want of memory.
    pub fn fail_allocate_after(&self, calls: u64) {
        self.state().fail_allocate = Some(calls);
    }

    /// Lets the release after `calls` further ones fail.
    pub fn fail_release_after(&self, calls: u64) {
        self.state().fail_release = Some(calls);
    }

    /// Lets the mapping of a page after `calls` further ones fail.
    pub fn fail_map_after(&self, calls: u64) {
        self.state().fail_map = Some(calls);
    }

    /// Lets a range not be used by the device, after `calls` further ones.
    pub fn fail_enable_after(&self, calls: u64) {
        self.state().fail_enable = Some(calls);
    }

    /// Lets the unmapping of a range after `calls` further ones fail.
    pub fn fail_unmap_after(&self, calls: u64) {
        self.state().fail_unmap = Some(calls);
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Whether every byte of a range of pages can be used.
    #[must_use]
    pub fn is_usable(&self, address: u64, bytes: u64) -> bool {
        let state = self.state();
        let mut at = address;
        while at < address + bytes {
            match state.mapped.range(..=at).next_back() {
                Some((base, (length, _, true))) if at < base + length => at = base + length,
                _ => return false,
            }
        }
        true
    }

    /// The physical memory at an address, as a token and an offset into it.
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<(u64, u64)> {
        let state = self.state();
        let page = state.mapped.range(..=address).next_back();
        let page = page.filter(|(base, (length, ..))| address < *base + length);
        let segment = || {
            let (base, bytes) = state.live.range(..=address).next_back()?;
            (address < base + bytes).then_some(*base)
        };
        match page {
            Some((base, (_, token, _))) => Some((*token, address - base)),
            None => segment().map(|base| (base, address - base)),
        }
    }

    /// How often it was called.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.state().calls
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts down to the call that is to fail.
fn due(countdown: &mut Option<u64>) -> bool {
    match countdown {
        Some(0) => {
            *countdown = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

impl HostState {
    fn page(&mut self, token: u64) -> Result<&mut (u64, u32), SourceError> {
        self.pages.get_mut(&token).ok_or_else(|| wrong("page", format!("there is no page {token:#x}")))
    }
}

/// The allocator broke the contract.
fn wrong(call: &'static str, what: String) -> SourceError {
    SourceError::Failed { call, source: what.into() }
}

impl PageSource for HostSource {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        let mut state = self.state();
        let address = state.next;
        state.next += bytes + (2 << 20);
        Ok(address)
    }

    fn unreserve(&self, _address: u64, _bytes: u64) {}

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let mut state = self.state();
        state.calls.create += 1;
        let live = state.calls.live_bytes.saturating_add(bytes);
        if due(&mut state.fail_allocate) || live > state.capacity {
            return Err(SourceError::OutOfMemory { wanted: bytes });
        }
        state.calls.live_bytes = live;
        state.calls.peak_bytes = state.calls.peak_bytes.max(live);
        let token = state.calls.create;
        state.pages.insert(token, (bytes, 0));
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        state.calls.discard += 1;
        if due(&mut state.fail_release) {
            return Err(wrong("discard", "told to fail".into()));
        }
        match state.page(token)? {
            (length, 0) if *length == bytes => {}
            (length, mappings) => {
                let what =
                    format!("page {token:#x} has {length} bytes, not {bytes}, and {mappings} mappings");
                return Err(wrong("discard", what));
            }
        }
        state.pages.remove(&token);
        state.calls.live_bytes -= bytes;
        Ok(())
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut state = self.state();
        state.calls.map += 1;
        let SegmentMemory { address, bytes, token } = *memory;
        if due(&mut state.fail_map) {
            return Err(SourceError::OutOfMemory { wanted: bytes });
        }
        if let Some((base, (length, ..))) = state.mapped.range(..address + bytes).next_back()
            && base + length > address
        {
            let what = format!("{bytes} bytes at {address:#x} overlap {length} at {base:#x}");
            return Err(wrong("map", what));
        }
        let page = state.page(token)?;
        if page.0 != bytes {
            let what = format!("page {token:#x} has {} bytes, not {bytes}", page.0);
            return Err(wrong("map", what));
        }
        page.1 += 1;
        state.mapped.insert(address, (bytes, token, false));
        Ok(())
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        state.calls.enable += 1;
        if due(&mut state.fail_enable) {
            return Err(wrong("enable", "told to fail".into()));
        }
        let mut covered = 0;
        for (length, _, usable) in state.mapped.range_mut(address..address + bytes).map(|(_, page)| page) {
            *usable = true;
            covered += *length;
        }
        if covered == bytes {
            Ok(())
        } else {
            Err(wrong("enable", format!("{covered} of {bytes} bytes are mapped")))
        }
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        let mut state = self.state();
        state.calls.unmap += 1;
        if due(&mut state.fail_unmap) {
            return Err(wrong("unmap", "told to fail".into()));
        }
        let gone: Vec<u64> = state.mapped.range(address..address + bytes).map(|(base, _)| *base).collect();
        let mut covered = 0;
        for base in gone {
            let Some((length, token, _)) = state.mapped.remove(&base) else { continue };
            covered += length;
            state.page(token)?.1 -= 1;
        }
        if covered == bytes {
            Ok(())
        } else {
            Err(wrong("unmap", format!("{covered} of {bytes} bytes were mapped")))
        }
    }
}

impl SegmentSource for HostSource {
    fn as_pages(&self) -> Option<&dyn PageSource> {
        Some(self)
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mut state = self.state();
        state.calls.allocate += 1;
        let live = state.calls.live_bytes.saturating_add(bytes);
        if due(&mut state.fail_allocate) || live > state.capacity {
            return Err(SourceError::OutOfMemory { wanted: bytes });
        }
        let address = state.next;
        // A gap, so that blocks of two segments never look like neighbours.
        state.next += bytes.next_multiple_of(2 << 20) + (2 << 20);
        state.live.insert(address, bytes);
        state.calls.live_bytes = live;
        state.calls.peak_bytes = state.calls.peak_bytes.max(live);
        Ok(SegmentMemory { address, bytes, token: address })
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        let mut state = self.state();
        state.calls.release += 1;
        if due(&mut state.fail_release) {
            return Err(SourceError::Failed { call: "release", source: "told to fail".into() });
        }
        if state.mapped.get(&memory.address).is_some_and(|(_, token, _)| *token == memory.token) {
            drop(state);
            self.unmap(memory.address, memory.bytes)?;
            return self.discard(memory.token, memory.bytes);
        }
        if state.live.remove(&memory.address) != Some(memory.bytes) {
            let source = format!("no segment of {} bytes at {:#x}", memory.bytes, memory.address).into();
            return Err(SourceError::Failed { call: "release", source });
        }
        state.calls.live_bytes -= memory.bytes;
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let state = self.state();
        Ok(MemoryInfo { free: state.capacity.saturating_sub(state.calls.live_bytes), total: state.capacity })
    }
}

/// Streams whose work ends when the program says so.
#[derive(Debug, Default)]
pub struct HostStreams {
    state: Mutex<StreamsState>,
}

#[derive(Debug, Default)]
struct StreamsState {
    streams: HashMap<StreamId, HostStream>,
    events: HashMap<EventId, HostEvent>,
    next_event: u64,
    fail_record: Option<u64>,
    waits: Vec<(StreamId, StreamId)>,
}

#[derive(Debug, Default)]
struct HostStream {
    enqueued: u64,
    completed: u64,
    capturing: bool,
    /// How far each other stream has come before anything enqueued here from now on.
    after: HashMap<StreamId, u64>,
}

#[derive(Debug, Clone)]
struct HostEvent {
    stream: StreamId,
    position: u64,
    after: HashMap<StreamId, u64>,
}

impl HostStreams {
    /// Streams with nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Enqueues a piece of work.
    pub fn enqueue(&self, stream: StreamId) {
        self.state().streams.entry(stream).or_default().enqueued += 1;
    }

    /// Ends all work of a stream, and all work that it waited for.
    pub fn complete(&self, stream: StreamId) {
        let mut state = self.state();
        let stream = state.streams.entry(stream).or_default();
        stream.completed = stream.enqueued;
        let after = stream.after.clone();
        state.complete_upto(&after);
    }

    /// How many pieces of work were enqueued.
    #[must_use]
    pub fn position(&self, stream: StreamId) -> u64 {
        self.state().streams.get(&stream).map_or(0, |stream| stream.enqueued)
    }

    /// Whether what `stream` does from now on comes after the first `position` pieces of work of `other`: they have
    /// ended, or `stream` waits for them.
    #[must_use]
    pub fn comes_after(&self, stream: StreamId, other: StreamId, position: u64) -> bool {
        let state = self.state();
        let ended = state.streams.get(&other).map_or(0, |other| other.completed) >= position;
        let awaited = state.streams.get(&stream).and_then(|stream| stream.after.get(&other));
        stream == other || ended || awaited.is_some_and(|awaited| *awaited >= position)
    }

    /// Begins or ends a capture.
    pub fn set_capturing(&self, stream: StreamId, capturing: bool) {
        self.state().streams.entry(stream).or_default().capturing = capturing;
    }

    /// Lets the recording of an event after `calls` further ones fail.
    pub fn fail_record_after(&self, calls: u64) {
        self.state().fail_record = Some(calls);
    }

    /// Events that were recorded and not given back.
    #[must_use]
    pub fn live_events(&self) -> usize {
        self.state().events.len()
    }

    /// Device-side waits so far, as (who waits, for whom).
    #[must_use]
    pub fn waits(&self) -> Vec<(StreamId, StreamId)> {
        self.waits_after(0)
    }

    /// Those after the first `seen`.
    #[must_use]
    pub fn waits_after(&self, seen: usize) -> Vec<(StreamId, StreamId)> {
        self.state().waits.get(seen..).unwrap_or_default().to_vec()
    }

    fn state(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamsState {
    fn event(&self, call: &'static str, event: EventId) -> Result<HostEvent, EventError> {
        let found = self.events.get(&event).cloned();
        found.ok_or_else(|| EventError { call, source: format!("there is no {event:?}").into() })
    }

    fn complete_upto(&mut self, positions: &HashMap<StreamId, u64>) {
        for (stream, position) in positions {
            let stream = self.streams.entry(*stream).or_default();
            stream.completed = stream.completed.max(*position);
        }
    }
}

impl StreamEvents for HostStreams {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        let mut state = self.state();
        if due(&mut state.fail_record) {
            return Err(EventError { call: "record", source: "told to fail".into() });
        }
        let recorded = state.streams.entry(stream).or_default();
        let recorded = HostEvent { stream, position: recorded.enqueued, after: recorded.after.clone() };
        let event = EventId(state.next_event);
        state.next_event += 1;
        state.events.insert(event, recorded);
        Ok(event)
    }

    fn query(&self, event: EventId) -> Result<bool, EventError> {
        let state = self.state();
        let HostEvent { stream, position, after } = state.event("query", event)?;
        if state.streams.get(&stream).is_some_and(|stream| stream.capturing) {
            let source = "the event's stream is being captured".into();
            return Err(EventError { call: "query", source });
        }
        // What the stream waited for before has come to pass too.
        let ended = |(stream, position): (&StreamId, &u64)| {
            state.streams.get(stream).is_some_and(|stream| stream.completed >= *position)
        };
        Ok(after.iter().chain([(&stream, &position)]).all(ended))
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        let mut state = self.state();
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
        let event = state.event("synchronize", event)?;
        let ended = event.after.into_iter().chain([(event.stream, event.position)]).collect();
        state.complete_upto(&ended);
        Ok(())
    }

    fn synchronize_device(&self) -> Result<(), EventError> {
        let mut state = self.state();
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

    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        Ok(self.state().streams.get(&stream).is_some_and(|stream| stream.capturing))
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
