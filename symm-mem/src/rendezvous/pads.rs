//! A group's signal pads, and the operations that this rank has enqueued on them.
//!
//! Each rank has a signal pad: device memory that all ranks map, and into which the peers write their signals. A pad
//! has numbered channels, which programs use for independent signals ([`PadLayout`]). The operations are those of
//! [`SymmetricMemory`](super::SymmetricMemory): a put sends a signal to a peer, a wait consumes a signal of a peer, and
//! a barrier does both with all peers.
//!
//! A *slot* is the combination of one direction (puts or waits), one peer and one channel. A barrier uses every slot of
//! its channel. The operations have this order:
//! - Captured operations are ordered by their graph alone.
//! - Other operations on one slot run in the order in which this rank enqueued them, even on different streams.
//! - Other operations on different slots have only the order of their streams: different channels are independent, and
//!   so are waits and puts on one channel.
//!
//! To avoid a deadlock, the ranks must keep two rules:
//! - On each channel, each two ranks A and B must enqueue in matching order: the sequence of A's barriers and puts to B
//!   must match the sequence of B's barriers and waits for A.
//! - Suppose that a peer sends a signal only after an operation X of this rank has run. Then this rank must not enqueue
//!   the wait for that signal on the stream of X before X. Otherwise neither completes: X runs only after the wait, the
//!   wait ends only after the signal, and the peer sends the signal only after X.

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

use process_group::group::path::Way;

use super::{PeerBuffers, PeerMemory, protocol::Subject};
use crate::{
    kernels::{FaultRecord, KernelError, Kernels, PadLayout},
    lock::lock,
};

/// The direction of the signals (puts or waits of this rank), the peer, and the channel.
pub(super) type Slot = (Way, u32, u32);

/// The last operation that this rank has enqueued on a slot, captured operations excepted.
#[derive(Debug, Clone)]
struct LastOperation {
    /// The operation's stream. Kept alive, because a new stream could otherwise get the same handle, and would be taken
    /// for this one.
    stream: Stream,
    /// Recorded on `stream` after the operation.
    done: Arc<Event>,
}

/// This rank's pad, and the [`FaultRecord`], into which this rank's kernels write the first wait that exceeded its
/// deadline.
#[derive(Debug)]
pub(crate) struct OwnPad {
    pub(crate) memory: PeerMemory,
    pub(super) fault: FaultRecord,
}

impl OwnPad {
    /// Allocates and clears this rank's pad for a group of `world` ranks. The pad can be exported as handles of the
    /// types `handles`. `None` means all types that the driver grants.
    pub(crate) fn make(
        context: &Context,
        world: usize,
        handles: Option<HandleTypes>,
    ) -> Result<Self, Box<dyn Error>> {
        let bytes = PadLayout::new(u32::try_from(world).unwrap_or(u32::MAX)).bytes();
        let handles = handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
        let memory = PeerMemory::with_subject(context, bytes, handles, Subject::Pads)?;
        // A clear after the peers have mapped the pad could erase a signal that a peer has already sent.
        memory.clear(context)?;
        Ok(Self { memory, fault: FaultRecord::new(context)? })
    }
}

/// The pads of all ranks, and the [last operation](LastOperation) of this rank on each slot.
#[derive(Debug)]
pub(crate) struct Pads {
    last_operations: Mutex<HashMap<Slot, LastOperation>>,
    kernels: OnceLock<Kernels>,
    pub(super) peers: Arc<PeerBuffers>,
    /// Freed after `drop` has waited for the kernels that use it.
    pub(super) own: OwnPad,
}

impl Pads {
    /// `peers` has the addresses of all ranks' pads.
    pub(crate) fn new(own: OwnPad, peers: Arc<PeerBuffers>) -> Self {
        Self { last_operations: Mutex::default(), kernels: OnceLock::new(), peers, own }
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

    /// Calls `launch`, which enqueues an operation on `stream`. The operation runs after the last operations on
    /// `slots`, unless `stream` is being captured.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        slots: &[Slot],
        launch: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        if stream.capture_status()? != CaptureStatus::None {
            return launch();
        }
        // The lock is held until this operation is in the map. Otherwise another thread could enqueue an operation on
        // one of these slots that does not wait for this one.
        let mut last_operations = lock(&self.last_operations);
        let mut waited: Vec<&Arc<Event>> = Vec::new();
        for last in slots.iter().filter_map(|slot| last_operations.get(slot)) {
            if !last.stream.is_same(stream) && !waited.iter().any(|event| Arc::ptr_eq(event, &last.done)) {
                stream.wait(&last.done)?;
                waited.push(&last.done);
            }
        }
        // Reuse an event if its operation is the last one on all of `slots` and on no other slot. The event's reference
        // count is then the number of slots, plus one for the clone in `first`. To record the event again is correct:
        // no other slot needs it, and the new operation runs after the old one.
        let first = slots.first().and_then(|slot| last_operations.get(slot)).map(|last| last.done.clone());
        let reusable = first.filter(|event| {
            let has_event = |slot| {
                last_operations.get(slot).is_some_and(|last: &LastOperation| Arc::ptr_eq(&last.done, event))
            };
            slots.iter().all(has_event) && Arc::strong_count(event) == slots.len() + 1
        });
        let done = match reusable {
            Some(event) => event,
            None => Arc::new(Event::new(stream.context(), EventFlags::DISABLE_TIMING)?),
        };
        launch()?;
        stream.record(&done)?;
        for slot in slots {
            last_operations.insert(*slot, LastOperation { stream: stream.clone(), done: done.clone() });
        }
        Ok(())
    }
}

impl Drop for Pads {
    /// Waits for the enqueued operations, except for those of graphs. Each operation waits for peers only until its
    /// deadline. But earlier work on the same streams must end first, and has no time limit.
    fn drop(&mut self) {
        let last_operations = self.last_operations.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = last_operations.values().next().map(|last| last.stream.context().driver().clone())
        else {
            return;
        };
        // If a capture is open, the waits below must not invalidate it, and the driver must not refuse them.
        let _relaxed = RelaxedCapture::enter(&driver);
        for last in last_operations.values() {
            // A broken context runs no more work, so errors are ignored.
            let _ = last.done.synchronize();
        }
    }
}
