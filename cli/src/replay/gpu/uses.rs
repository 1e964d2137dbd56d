//! Uses by other streams, which end when the trace says so. Each waits behind a gate that the host opens.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caching_alloc::core::{CaptureCount, EventError, EventId, StreamEvents, StreamId};
use caching_alloc::driver::DriverEvents;
use cuda_driver::memory::{PinnedFlags, PinnedMemory};
use cuda_driver::{Context, DevicePtr, Event, EventFlags, Result, Stream, StreamFlags, WaitCondition};

/// The device's events and the gates. Before the host waits for the device, all gates are opened, so the uses behind
/// them end as they would on an unblocked device.
#[derive(Debug)]
pub(super) struct Uses {
    context: Context,
    events: DriverEvents,
    gates: Mutex<Vec<Gate>>,
    /// True if a stream may wait for a use that has not ended.
    entangled: AtomicBool,
}

/// A stream for one use at a time.
#[derive(Debug)]
struct Gate {
    stream: Stream,
    id: StreamId,
    event: Event,
    word: PinnedMemory,
    at: DevicePtr,
    /// The word's value when the gate is open.
    value: u32,
    /// The block that is used.
    block: Option<u32>,
}

impl Gate {
    fn new(context: &Context, events: &DriverEvents) -> Result<Self> {
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
        let word = PinnedMemory::new(context, size_of::<u32>(), PinnedFlags::DEVICE_MAPPED)?;
        Ok(Self {
            id: events.register(&stream),
            stream,
            event: Event::new(context, EventFlags::DISABLE_TIMING)?,
            at: word.device_ptr()?,
            word,
            value: 0,
            block: None,
        })
    }

    fn open(&self) {
        // SAFETY: the word is pinned memory that this gate owns, aligned as all of it is; host and device access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast()) }.store(self.value, Ordering::Release);
    }
}

impl Uses {
    pub(super) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            events: DriverEvents::new(context),
            gates: Mutex::default(),
            entangled: AtomicBool::new(false),
        })
    }

    fn gates(&self) -> MutexGuard<'_, Vec<Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a stream for the program itself.
    pub(super) fn stream(&self) -> Result<(Stream, StreamId)> {
        let stream = Stream::new(&self.context, StreamFlags::NON_BLOCKING)?;
        let id = self.events.register(&stream);
        Ok((stream, id))
    }

    /// Begins a use of a block of stream `after`, on a stream of its own. Work enqueued there runs when the use ends.
    pub(super) fn begin(&self, block: u32, after: &Stream) -> Result<(Stream, StreamId)> {
        let mut gates = self.gates();
        let at = match gates.iter().position(|gate| gate.block.is_none()) {
            Some(at) => at,
            None => {
                gates.push(Gate::new(&self.context, &self.events)?);
                gates.len() - 1
            }
        };
        let gate = &mut gates[at];
        gate.value += 1;
        gate.block = Some(block);
        after.record(&gate.event)?;
        gate.stream.wait(&gate.event)?;
        // SAFETY: the word is alive until the gate is dropped, which is after the device is done with everything.
        unsafe { gate.stream.wait_value32(gate.at, WaitCondition::GreaterOrEqual, gate.value)? };
        Ok((gate.stream.clone(), gate.id))
    }

    /// Ends the use of a block, and waits until it has ended.
    pub(super) fn end(&self, block: u32) -> Result<()> {
        let mut gates = self.gates();
        if self.entangled.swap(false, Ordering::Relaxed) {
            // The use may wait for another use, so open all gates.
            gates.iter().for_each(Gate::open);
        }
        let Some(gate) = gates.iter_mut().find(|gate| gate.block == Some(block)) else { return Ok(()) };
        gate.block = None;
        gate.open();
        gate.stream.synchronize()
    }

    /// Ends all uses, and waits for the device.
    pub(super) fn finish(&self) -> Result<()> {
        self.gates().iter().for_each(Gate::open);
        self.context.synchronize()
    }
}

impl Drop for Uses {
    /// Opens all gates and waits, because the device must not wait for words that are freed.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl StreamEvents for Uses {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.events.record(stream)
    }

    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.events.query(event)
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.entangled.store(true, Ordering::Relaxed);
        self.events.wait(stream, event)
    }

    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.gates().iter().for_each(Gate::open);
        self.events.synchronize(event)
    }

    fn synchronize_device(&self) -> Result<(), EventError> {
        self.gates().iter().for_each(Gate::open);
        self.events.synchronize_device()
    }

    fn recycle(&self, event: EventId) {
        self.events.recycle(event);
    }

    fn captures(&self) -> Option<CaptureCount> {
        self.events.captures()
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        self.events.is_capturing(stream)
    }
}
