//! The streams of dropped slices. A slice is a block with typed elements, bound to a stream
//! ([`SymmetricPool::alloc`](crate::SymmetricPool::alloc)). When a slice is dropped, its block is freed at once,
//! although work on its stream may still use the block. So the next user of the memory must wait for that stream.

use std::sync::Mutex;

use cuda_driver::{
    Stream,
    graph::{CaptureStatus, RelaxedCapture},
};

use crate::lock::lock;

/// The streams of all slices that were dropped so far. Later allocations may get the memory of these slices.
#[derive(Debug, Default)]
pub(crate) struct DroppedOn(Mutex<Vec<Stream>>);

impl DroppedOn {
    /// Adds the stream of a slice that is being dropped. Must be called before the slice's block is freed, so that the
    /// stream is in the list when another request gets the memory.
    pub(super) fn add(&self, stream: &Stream) {
        let mut streams = lock(&self.0);
        if !streams.iter().any(|known| known.is_same(stream)) {
            streams.push(stream.clone());
        }
    }

    fn streams(&self) -> Vec<Stream> {
        lock(&self.0).clone()
    }

    /// Waits for the work on these streams. Does not wait for a capturing stream, because that would invalidate the
    /// capture. Returns false if some of the work may still run: a stream is capturing, or a driver call has failed.
    pub(crate) fn wait(&self) -> bool {
        self.streams().iter().all(|stream| {
            // If a capture is open, the calls below must neither join it nor invalidate it.
            let relaxed = RelaxedCapture::enter(stream.context().driver());
            relaxed.is_ok() && matches!(does_not_capture(stream), Ok(true)) && stream.synchronize().is_ok()
        })
    }

    /// Returns whether `stream` can wait for the other streams of dropped slices. It cannot if one of them is
    /// capturing. If `stream` itself is capturing, it can only if there are no other streams.
    pub(super) fn can_order_before(&self, stream: &Stream) -> Result<bool, cuda_driver::Error> {
        for other in self.others(stream) {
            if !does_not_capture(&other)? || !does_not_capture(stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes `stream` wait for the work on all other streams of dropped slices.
    pub(super) fn order_before(&self, stream: &Stream) -> Result<(), cuda_driver::Error> {
        self.others(stream).iter().try_for_each(|other| stream.wait_stream(other))
    }

    fn others(&self, stream: &Stream) -> Vec<Stream> {
        let mut streams = self.streams();
        streams.retain(|known| !known.is_same(stream));
        streams
    }
}

fn does_not_capture(stream: &Stream) -> Result<bool, cuda_driver::Error> {
    Ok(stream.capture_status()? == CaptureStatus::None)
}
