//! The memory behind device slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_driver_sys::CUresult;

use crate::graph::{BoundMemory, CaptureStatus, StreamBound, Watch, keep_in_capture, refuse_capture};
use crate::memory::StreamMemory;
use crate::{DevicePtr, Error, Result, Stream, device, teardown};

/// Memory that is freed in the order of its stream. That stream waits for each use on another stream, so the free comes
/// after all uses.
pub(crate) struct Allocation {
    /// `None` for zero bytes.
    memory: Option<StreamMemory>,
    stream: Stream,
    /// True if the memory must never be freed.
    is_kept: AtomicBool,
}

impl Allocation {
    pub(super) fn new(stream: &Stream, bytes: usize) -> Result<Arc<Self>> {
        if stream.is_per_thread() {
            return Err(Error::PerThreadStream);
        }
        let new = |memory| Arc::new(Self { memory, stream: stream.clone(), is_kept: AtomicBool::new(false) });
        if bytes == 0 {
            return Ok(new(None));
        }
        let watch = Watch::new([stream]);
        refuse_capture(stream)?;
        let allocation = new(Some(StreamMemory::new(stream, bytes)?));
        if !watch.is_certain() {
            // The allocation may have been captured. A graph then allocates the memory, at its launches.
            allocation.keep_for_ever();
            return Err(Error::CaptureRace { what: "an allocation" });
        }
        Ok(allocation)
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.as_ref().map_or(DevicePtr::NULL, StreamMemory::ptr)
    }
}

// SAFETY: the stream never changes. `Drop` frees the memory in the order of that stream. If the stream captures, `Drop`
// instead makes the graph of the capture hold the memory. The last graph or executable that holds it then frees it, in
// the same order. If the graph cannot hold the memory, if the driver would refuse the free because of a capture, or
// after `keep_for_ever`, the memory is never freed.
unsafe impl StreamBound for Allocation {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keep_for_ever(&self) {
        self.is_kept.store(true, Ordering::SeqCst);
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.is_kept.load(Ordering::SeqCst) {
            std::mem::forget(memory);
            return;
        }
        match self.stream.capture_status() {
            // Race: another thread may begin a capture of the stream before the free. The free would then be captured,
            // and the driver only captures frees of memory that the graph allocated. It refuses this one, the memory is
            // leaked, and the error is reported.
            Ok(CaptureStatus::None) => drop(memory),
            Ok(_) => free_with_graph(&self.stream, memory),
            Err(error) => {
                // `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the stream is the legacy default stream, and a blocking stream
                // of its context captures. The driver would refuse a free and invalidate that capture, so the memory is
                // leaked. After any other error, the memory is dropped here, which frees it in the stream's order.
                if error.code() == Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
                    std::mem::forget(memory);
                }
                teardown::report(Err(error));
            }
        }
    }
}

/// Makes the graph of the stream's capture hold memory that is dropped during this capture, because a free that is
/// enqueued now would become part of the graph. The memory is freed with the last graph or executable that holds it.
/// If the graph cannot hold the memory, the memory is never freed.
fn free_with_graph(stream: &Stream, memory: StreamMemory) {
    let again: BoundMemory = Arc::new(Allocation {
        memory: Some(memory),
        stream: stream.clone(),
        is_kept: AtomicBool::new(false),
    });
    let held = keep_in_capture(stream, std::slice::from_ref(&again));
    if held.is_err() {
        again.keep_for_ever();
    }
    teardown::report(held);
}

/// Returns an error if the memory is of another context than the stream.
pub(crate) fn require_context(memory: &BoundMemory, stream: &Stream) -> Result<()> {
    let (found, wanted) = (memory.stream().context(), stream.context());
    if found == wanted {
        return Ok(());
    }
    Err(device::mismatch(("a slice", found.device()), ("the stream that should use it", wanted.device())))
}
