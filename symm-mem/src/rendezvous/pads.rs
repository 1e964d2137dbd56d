//! A group's signal pads, and what this rank has enqueued on them.
//!
//! The order of operations: those that use one *slot* — this rank's signals to one peer on one channel, or its waits for
//! one peer on one channel — run in the order in which the host enqueued them, whatever their streams. A barrier uses
//! every slot of its channel. Nothing else is ordered: channels are independent of each other, and so is a wait of a put
//! on the same channel. So no operation ever stands behind a wait that only a later one of this rank would let its peer
//! answer: between ranks that issue the same operations of a slot in the same order there is no cycle.
//!
//! What a graph captures is ordered by the graph alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cuda_driver::{Context, Event, EventFlags, Stream, graph::CaptureStatus, vmm::HandleTypes};

use super::{PeerBuffers, PeerMemory, RendezvousError, RendezvousOptions, protocol::Subject};
use crate::kernels::{FaultRecord, KernelError, Kernels, PadLayout};

/// Which way a signal goes, as this rank uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Way {
    To,
    From,
}

/// A slot as this rank uses it: which way, the peer, the channel.
pub(super) type Slot = (Way, u32, u32);

/// The last operation on a slot.
#[derive(Debug, Clone)]
struct Last {
    /// Kept, so that no other stream has its number.
    stream: Stream,
    done: Arc<Event>,
}

/// This rank's pad, before the others know of it.
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
    ) -> Result<Self, RendezvousError> {
        let bytes = PadLayout::new(u32::try_from(world).unwrap_or(u32::MAX)).bytes();
        let handles = options.handles.map_or_else(|| HandleTypes::granted(context), Ok)?;
        let memory = PeerMemory::about(context, bytes, handles, Subject::Pads)?;
        // Before anybody knows of it: a signal that comes early must not be wiped out.
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
    /// As long as this rank's kernels wait here.
    _own: PeerMemory,
}

impl Pads {
    pub(super) fn new(own: OwnPad, peers: Arc<PeerBuffers>) -> Self {
        let OwnPad { memory, fault } = own;
        Self { lasts: Mutex::default(), kernels: OnceLock::new(), fault, peers, _own: memory }
    }

    /// The kernels that work on the pads, loaded with the first that is wanted.
    pub(super) fn kernels(&self, context: &Context) -> Result<&Kernels, KernelError> {
        match self.kernels.get() {
            Some(kernels) => Ok(kernels),
            None => {
                let kernels = Kernels::load(context)?;
                Ok(self.kernels.get_or_init(|| kernels))
            }
        }
    }

    /// Enqueues an operation behind those that use the same slots.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        slots: &[Slot],
        launch: impl FnOnce() -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        if stream.capture_status()? != CaptureStatus::None {
            return launch();
        }
        // Until it is recorded: two threads must not come between each other's steps.
        let mut lasts = self.lasts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited: Vec<&Arc<Event>> = Vec::new();
        for last in slots.iter().filter_map(|slot| lasts.get(slot)) {
            if !last.stream.is_same(stream) && !waited.iter().any(|event| Arc::ptr_eq(event, &last.done)) {
                stream.wait(&last.done)?;
                waited.push(&last.done);
            }
        }
        // An event that these slots alone name can tell the next end too, which comes behind it. One more is the clone here.
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
    /// Waits for what was enqueued: every kernel ends by its deadline.
    fn drop(&mut self) {
        let lasts = self.lasts.get_mut().unwrap_or_else(PoisonError::into_inner);
        for last in lasts.values() {
            // A context that is broken runs nothing any more.
            let _ = last.done.synchronize();
        }
    }
}
