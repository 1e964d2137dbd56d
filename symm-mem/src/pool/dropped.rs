//! The streams of dropped slices, whose work may still use the blocks.

use std::sync::{Mutex, PoisonError};

use cuda_driver::{
    Event, EventFlags, Stream,
    graph::{CaptureStatus, RelaxedCapture},
};

/// The streams on which slices were dropped. Their blocks may be placed again.
#[derive(Debug, Default)]
pub(super) struct DroppedOn(Mutex<Vec<Stream>>);

impl DroppedOn {
    pub(super) fn add(&self, stream: &Stream) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.iter().any(|known| known.is_same(stream)) {
            streams.push(stream.clone());
        }
    }

    /// Waits for the work on these streams. Returns false if it is not known to be done.
    pub(super) fn wait(&self) -> bool {
        let streams = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        streams.iter().all(|stream| {
            // Must not become part of an open capture.
            let relaxed = RelaxedCapture::enter(stream.context().driver());
            relaxed.is_ok() && stream.synchronize().is_ok()
        })
    }

    /// Makes `stream` wait for the work on all other streams of dropped slices. Returns false if one of the two streams
    /// captures, so that they cannot be ordered.
    pub(super) fn order_before(&self, stream: &Stream) -> Result<bool, cuda_driver::Error> {
        let others: Vec<Stream> = {
            let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            streams.iter().filter(|known| !known.is_same(stream)).cloned().collect()
        };
        for other in others {
            for either in [&other, stream] {
                if either.capture_status()? != CaptureStatus::None {
                    return Ok(false);
                }
            }
            let event = Event::new(stream.context(), EventFlags::DISABLE_TIMING)?;
            other.record(&event)?;
            stream.wait(&event)?;
        }
        Ok(true)
    }
}
