//! A group's pool of events, and the keys of streams.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
};

use cuda_driver::{Context, Event, EventFlags, Stream, graph::CaptureStatus};

use super::super::{GroupErrorKind, KindResult};
use crate::BoxedResult;

/// Identifies a stream among those of its context. (The legacy default stream has the same handle in every
/// context.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(in crate::group) struct StreamKey {
    handle: usize,
    /// The calling thread, if `handle` is that of the per-thread default stream, which denotes a different
    /// stream on each thread. Otherwise `None`.
    thread: Option<ThreadId>,
}

impl StreamKey {
    #[inline(always)]
    pub(super) fn of(stream: &Stream) -> Self {
        let thread = if stream.is_per_thread() { this_thread() } else { None };
        Self { handle: stream.raw().addr(), thread }
    }
}

#[cold]
fn this_thread() -> Option<ThreadId> {
    Some(thread::current().id())
}

/// A group's pool of events. An event returns to the pool when its [`Lease`] is dropped.
pub(in crate::group) struct Marks {
    context: Context,
    /// True if the group times operations.
    pub(super) timing: bool,
    free: Mutex<Vec<Event>>,
}

impl Marks {
    /// Maximum number of free events in the pool.
    const KEPT: usize = 1024;

    pub(in crate::group) fn new(context: &Context, timing: bool) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), timing, free: Mutex::default() })
    }

    pub(super) fn lease(self: &Arc<Self>) -> KindResult<Lease> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match kept {
            Some(event) => event,
            None => {
                let untimed = if self.timing { EventFlags::empty() } else { EventFlags::DISABLE_TIMING };
                Event::new(&self.context, untimed)?
            }
        };
        Ok(Lease { event: Some(event), marks: self.clone() })
    }
}

/// An event from the pool. The event may be recorded again while streams still wait for its previous record:
/// a wait is for the record that was the latest when the wait was enqueued.
pub(super) struct Lease {
    /// `Some` until the drop returns it to the pool.
    event: Option<Event>,
    marks: Arc<Marks>,
}

impl Lease {
    pub(super) fn event(&self) -> &Event {
        self.event.as_ref().unwrap_or_else(|| unreachable!("a lease holds its event until it is dropped"))
    }

    /// Records the event before an operation, unless the stream is being captured.
    #[cold]
    pub(super) fn record_timed(&self, stream: &Stream) -> BoxedResult<(), GroupErrorKind> {
        if stream.capture_status()? == CaptureStatus::None {
            stream.record(self.event())?;
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = self.marks.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < Marks::KEPT {
            free.extend(self.event.take());
        }
    }
}
