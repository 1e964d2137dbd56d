//! `HostStreams` behind a lock of the model checker. All calls take the lock, except `captures`, `invalidated` and
//! `live_events`. So the checker can try different orders of the calls that take the lock.

use crate::core::lock::assert_may_call_out;
use crate::core::{CaptureCount, EventError, EventId, StreamEvents, StreamId};
use crate::host::HostStreams;
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct Streams {
    host: HostStreams,
    /// The addresses of the blocks in `note_allocation`. Locked during each call.
    noted: Mutex<Vec<u64>>,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { host: HostStreams::new(), noted: Mutex::new(Vec::new()) }
    }

    fn step<R>(&self, call: impl FnOnce(&HostStreams) -> R) -> R {
        assert_may_call_out();
        let _step = self.noted.lock();
        call(&self.host)
    }

    pub(super) fn enqueue(&self, stream: StreamId) {
        self.step(|host| host.enqueue(stream));
    }

    pub(super) fn complete(&self, stream: StreamId) {
        self.step(|host| host.complete(stream));
    }

    pub(super) fn comes_after(&self, stream: StreamId, other: StreamId, position: u64) -> bool {
        self.step(|host| host.comes_after(stream, other, position))
    }

    pub(super) fn set_capturing(&self, stream: StreamId, capturing: bool) {
        self.step(|host| host.set_capturing(stream, capturing));
    }

    pub(super) fn invalidated(&self) -> u64 {
        self.host.invalidated()
    }

    pub(super) fn live_events(&self) -> usize {
        self.host.live_events()
    }

    pub(super) fn noted(&self) -> Vec<u64> {
        self.noted.lock().unwrap().clone()
    }
}

impl StreamEvents for Streams {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.step(|host| host.record(stream))
    }
    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.step(|host| host.query(event))
    }
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.step(|host| host.wait(stream, event))
    }
    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.step(|host| host.synchronize(event))
    }
    fn synchronize_device(&self) -> Result<(), EventError> {
        self.step(HostStreams::synchronize_device)
    }
    fn recycle(&self, event: EventId) {
        self.step(|host| host.recycle(event));
    }
    fn captures(&self) -> Option<CaptureCount> {
        self.host.captures()
    }
    fn note_allocation(&self, _stream: StreamId, address: u64, _bytes: u64) {
        assert_may_call_out();
        self.noted.lock().unwrap().push(address);
    }
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        self.step(|host| host.is_capturing(stream))
    }
}
