//! The streams of dropped slices. A slice is a block with typed elements, bound to a stream
//! ([`SymmetricPool::alloc`](crate::SymmetricPool::alloc)). When the slice is dropped and no
//! [buffer](crate::rendezvous::Buffer) or graph keeps its block, the block is freed at once, although work on its
//! stream may still use the block. So the next user of the memory must wait for that work.

use std::{
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use cuda_driver::{
    Error, Event, Stream,
    graph::{CaptureStatus, RelaxedCapture},
};

use crate::lock::lock;

/// The streams whose work may still use memory of dropped slices. Later allocations may get this memory.
#[derive(Debug, Default)]
pub(crate) struct DroppedOn(Mutex<Vec<Arc<DroppedStream>>>);

/// A stream to which dropped slices were bound. When the block of a further slice of the same stream is freed, a new
/// value replaces this one.
#[derive(Debug)]
struct DroppedStream {
    stream: Stream,
    /// An event that was recorded after the block of the last of these slices was freed, and so after all work that
    /// uses the block. Not set before it is recorded, which is impossible while the stream captures.
    end: OnceLock<Event>,
}

impl DroppedStream {
    /// Returns the event. Records it if there is none yet. Fails if there is none and the stream is capturing.
    fn end(&self) -> Result<&Event, Error> {
        if let Some(end) = self.end.get() {
            return Ok(end);
        }
        let end = self.stream.record_uncaptured()?;
        Ok(self.end.get_or_init(|| end))
    }

    fn has_ended(&self) -> Result<bool, Error> {
        let end = self.end()?;
        // If a capture is open, the query must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.stream.context().driver())?;
        end.query()
    }

    /// Blocks until all work that may use the freed blocks has ended.
    fn wait(&self) -> Result<(), Error> {
        let end = self.end()?;
        let _relaxed = RelaxedCapture::enter(self.stream.context().driver())?;
        end.synchronize()
    }
}

/// The result of [`DroppedOn::add`].
#[must_use = "the event is recorded once no lock is held"]
pub(super) struct Added {
    stream: Arc<DroppedStream>,
    /// The value that the new one has replaced. Kept until no lock is held, because the drop of its event calls the
    /// driver.
    _replaced: Option<Arc<DroppedStream>>,
}

impl Added {
    /// Records the event. Without the event, a capture that begins later on the stream would prevent waits for the
    /// stream. If the stream is capturing already, the event is recorded at the first wait after the capture. Calls the
    /// driver, so the caller must hold no lock.
    pub(super) fn record(self) {
        // An error is reported by the allocation that has to wait for the event.
        let _ = self.stream.end();
    }
}

impl DroppedOn {
    /// The number of streams that [`forget_ended`](Self::forget_ended) keeps.
    const KEPT: usize = 2;

    /// Adds the stream of a block that is being freed. Must be called before the free, so that the stream is in the
    /// list when another request gets the memory.
    pub(super) fn add(&self, stream: Stream) -> Added {
        let added = Arc::new(DroppedStream { stream, end: OnceLock::new() });
        let mut streams = lock(&self.0);
        let known = streams.iter_mut().find(|known| known.stream.is_same(&added.stream));
        let replaced = known.map(|known| std::mem::replace(known, added.clone()));
        if replaced.is_none() {
            streams.push(added.clone());
        }
        Added { stream: added, _replaced: replaced }
    }

    fn streams(&self) -> Vec<Arc<DroppedStream>> {
        lock(&self.0).clone()
    }

    /// Waits for the work that may use memory of dropped slices. Returns false if some of it may still run: a stream
    /// has been capturing since before its last slice was dropped, or a driver call has failed.
    pub(crate) fn wait(&self) -> bool {
        self.streams().iter().all(|stream| stream.wait().is_ok())
    }

    /// Waits for the work that may use memory of dropped slices. If a stream has been capturing since before its last
    /// slice was dropped, first waits until the capture is ended.
    pub(super) fn wait_beyond_captures(&self) -> Result<(), Error> {
        let wait = |stream: Arc<DroppedStream>| loop {
            match stream.wait() {
                Err(Error::WhileCapturing { .. } | Error::CaptureRace { .. }) => {
                    thread::sleep(Duration::from_millis(1));
                }
                ended => return ended,
            }
        };
        self.streams().into_iter().try_for_each(wait)
    }

    /// Returns true if a stream has been capturing since before its last slice was dropped, or cannot be asked.
    pub(super) fn waits_for_capture(&self) -> bool {
        self.streams().iter().any(|stream| stream.end().is_err())
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Returns whether `stream` can wait for the other streams of dropped slices. It cannot if one of them has been
    /// capturing since before its last slice was dropped. It also cannot if `stream` itself is capturing, unless all
    /// slices dropped so far were bound to `stream`.
    pub(super) fn can_order_before(&self, stream: &Stream) -> Result<bool, Error> {
        let others = self.others(stream);
        if !others.is_empty() && !does_not_capture(stream)? {
            return Ok(false);
        }
        for other in others {
            match other.end() {
                // After a race with another thread, `order_before` records the event.
                Ok(_) | Err(Error::CaptureRace { .. }) => {}
                Err(Error::WhileCapturing { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Makes `stream` wait for the work on all other streams of dropped slices.
    pub(super) fn order_before(&self, stream: &Stream) -> Result<(), Error> {
        self.forget_ended();
        let others = self.others(stream);
        if !others.is_empty() && !does_not_capture(stream)? {
            // Another thread has begun the capture since `can_order_before`. A wait would invalidate it.
            let what = "a wait for the streams of dropped slices";
            return Err(Error::WhileCapturing { what, instead: "allocate before the capture" });
        }
        others.iter().try_for_each(|other| stream.wait(other.end()?))
    }

    /// Removes streams whose work on dropped slices has ended, but only while more than [`KEPT`](Self::KEPT) streams
    /// are left. All ranks must refuse the same requests, so the answer of [`can_order_before`](Self::can_order_before)
    /// for a capturing stream must not depend on how fast the device is. It does not: after a removal, at least two
    /// streams are left. At least one of them is not the capturing stream, so the answer is false, as it was before.
    fn forget_ended(&self) {
        let mut ended = self.streams();
        if ended.len() <= Self::KEPT {
            return;
        }
        ended.retain(|stream| matches!(stream.has_ended(), Ok(true)));
        // `ended` is dropped after the lock is released. The drop of a stream or event calls the driver.
        let mut streams = lock(&self.0);
        for stream in &ended {
            let at = streams.iter().position(|known| Arc::ptr_eq(known, stream));
            if let Some(at) = at.filter(|_| streams.len() > Self::KEPT) {
                streams.remove(at);
            }
        }
    }

    fn others(&self, stream: &Stream) -> Vec<Arc<DroppedStream>> {
        let mut streams = self.streams();
        streams.retain(|known| !known.stream.is_same(stream));
        streams
    }
}

fn does_not_capture(stream: &Stream) -> Result<bool, Error> {
    Ok(stream.capture_status()? == CaptureStatus::None)
}
