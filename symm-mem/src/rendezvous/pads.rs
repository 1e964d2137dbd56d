//! A group's signal pads, and the operations that this rank has enqueued on them.
//!
//! Order of operations: a *slot* is this rank's signals to one peer on one channel, or its waits for one peer on one
//! channel. Operations on one slot run in the order in which the host enqueued them, on any streams. A barrier uses
//! every slot of its channel. The pads order nothing else: different channels are independent, and so are waits and
//! puts of one channel.
//!
//! The ranks cannot deadlock under two conditions:
//! - On every channel, each pair of ranks enqueues its puts, its barriers and the waits for these puts in matching
//!   order.
//! - If the peer sends the signal for a wait only after an operation of this rank, this rank does not enqueue that
//!   operation behind the wait on the same stream, because a stream runs its operations in order.
//!
//! Captured operations are ordered by their graph only.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cuda_driver::{
    Context, Event, EventFlags, Stream,
    graph::{CaptureStatus, RelaxedCapture},
    vmm::HandleTypes,
};

use super::{PeerBuffers, PeerMemory, RendezvousOptions, protocol::Subject};
use crate::kernels::{FaultRecord, KernelError, Kernels, PadLayout};

/// The direction of a signal: to the peer, or from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Way {
    To,
    From,
}

/// A slot as this rank uses it: direction, peer, channel.
pub(super) type Slot = (Way, u32, u32);

/// The last operation on a slot.
#[derive(Debug, Clone)]
struct Last {
    /// Kept alive, so that no new stream gets the same handle.
    stream: Stream,
    done: Arc<Event>,
}

/// This rank's pad, before it is shared.
#[derive(Debug)]
pub(super) struct OwnPad {
    pub(super) memory: PeerMemory,
    fault: FaultRecord,
}

impl OwnPad {
    pub(super) fn make(
        context: &Context,
        world: usize,
        options: &RendezvousOptions,
    ) -> Result<Self, Box<dyn Error>> {
        let bytes = PadLayout::new(u32::try_from(world).unwrap_or(u32::MAX)).bytes();
        let handles = options.handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
        let memory = PeerMemory::about(context, bytes, handles, Subject::Pads)?;
        // Cleared before it is shared, so that an early signal of a peer is not erased.
        memory.clear(context)?;
        Ok(Self { memory, fault: FaultRecord::new(context)? })
    }
}

/// The pads of all ranks.
#[derive(Debug)]
pub(super) struct Pads {
    lasts: Mutex<HashMap<Slot, Last>>,
    kernels: OnceLock<Kernels>,
    pub(super) fault: FaultRecord,
    pub(super) peers: Arc<PeerBuffers>,
    /// Kept while this rank's kernels wait on it.
    _own: PeerMemory,
}

impl Pads {
    pub(super) fn new(own: OwnPad, peers: Arc<PeerBuffers>) -> Self {
        let OwnPad { memory, fault } = own;
        Self { lasts: Mutex::default(), kernels: OnceLock::new(), fault, peers, _own: memory }
    }

    /// Returns the kernels that use the pads. The first call loads them.
    pub(super) fn kernels(&self, context: &Context) -> Result<&Kernels, KernelError> {
        match self.kernels.get() {
            Some(kernels) => Ok(kernels),
            None => {
                let kernels = Kernels::load(context)?;
                Ok(self.kernels.get_or_init(|| kernels))
            }
        }
    }

    /// Enqueues an operation after earlier operations on the same slots. If `stream` is being captured, only calls
    /// `launch`.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        slots: &[Slot],
        launch: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        if stream.capture_status()? != CaptureStatus::None {
            return launch();
        }
        // Held until the event is recorded, so that the steps of two threads do not interleave.
        let mut lasts = self.lasts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited: Vec<&Arc<Event>> = Vec::new();
        for last in slots.iter().filter_map(|slot| lasts.get(slot)) {
            if !last.stream.is_same(stream) && !waited.iter().any(|event| Arc::ptr_eq(event, &last.done)) {
                stream.wait(&last.done)?;
                waited.push(&last.done);
            }
        }
        // Reuses the event if all these slots have the same event and no other slot has it. This operation runs after
        // the one that recorded the event. The reference count is the number of slots, plus one for the clone in
        // `first`.
        let first = slots.first().and_then(|slot| lasts.get(slot)).map(|last| last.done.clone());
        let mine = first.filter(|event| {
            let names = |slot| lasts.get(slot).is_some_and(|last: &Last| Arc::ptr_eq(&last.done, event));
            slots.iter().all(names) && Arc::strong_count(event) == slots.len() + 1
        });
        let done = match mine {
            Some(event) => event,
            None => Arc::new(Event::new(stream.context(), EventFlags::DISABLE_TIMING)?),
        };
        launch()?;
        stream.record(&done)?;
        for slot in slots {
            lasts.insert(*slot, Last { stream: stream.clone(), done: done.clone() });
        }
        Ok(())
    }
}

impl Drop for Pads {
    /// Waits for the enqueued operations, except for those of graphs. Their deadlines bound the time that they wait for
    /// peers. Earlier work on their streams is waited for too, without a bound.
    fn drop(&mut self) {
        let lasts = self.lasts.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = lasts.values().next().map(|last| last.stream.context().driver().clone()) else {
            return;
        };
        // If a capture is open, a wait must neither invalidate it nor be refused because of it.
        let _relaxed = RelaxedCapture::enter(&driver);
        for last in lasts.values() {
            // A broken context runs no more work, so errors are ignored.
            let _ = last.done.synchronize();
        }
    }
}
