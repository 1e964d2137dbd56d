//! A mark holds the data of an operation, and the CUDA events before and after the operation on its stream.
//!
//! An event is recorded right after every operation, although most callers drop the [`Work`] at once.
//! Recording the event later, on demand or with a later call, would have these problems:
//! - The event would come after other work that was enqueued in between. A stream that waits for the
//!   operation would also wait for that other work, which may itself wait for the waiting stream. The
//!   watchdog could not distinguish a late operation from a long-running kernel of the program.
//! - The program may have destroyed the stream before the event is recorded.
//! - At launch, it is not known whether a later call on the stream will follow soon.
//!
//! A mark is reused once nothing else refers to it, because making events costs more than recording them. All
//! data of an operation is in one mark, so that a [`Work`] counts references to one object instead of five.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
};

use cuda_driver::{
    Context, Event, EventFlags, Stream,
    graph::{CaptureStatus, RelaxedCapture},
};

use super::{
    super::{GroupError, Result, counter::Counter},
    Work,
    outstanding::Interval,
};
use crate::{BoxedResult, record::Span};

/// The data and the events of a launched operation.
pub(super) struct Mark {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) interval: Interval,
    pub(super) stream: StreamKey,
    /// True if the event `done` was recorded in a stream capture. The driver refuses to query such an event,
    /// and a query during the capture invalidates the capture (measured). The event is therefore never
    /// queried.
    pub(super) captured: bool,
    /// The operation's records in the flight recorder.
    pub(super) span: Span,
    /// The event before the operation. `None` if the group does not time operations.
    pub(super) start: Option<Lease>,
    /// The event after the operation.
    pub(super) done: Lease,
    pub(super) counter: Arc<Counter>,
}

impl Mark {
    /// Returns the time between the events before and after the operation, in µs. `None` without timing. The
    /// stream must have passed both events.
    pub(super) fn elapsed_us(&self) -> Result<Option<f64>> {
        let Some(start) = &self.start else { return Ok(None) };
        let done = self.done.event();
        let _relaxed = RelaxedCapture::enter(done.context().driver())?;
        Ok(Some(done.elapsed_us(start.event())?))
    }
}

/// The mark of an operation that is not launched yet. Nothing else refers to the mark.
pub(in crate::group) struct Blank {
    mark: Arc<Mark>,
    /// Logical time at which the call began; see [`Interval`].
    pub(super) begun: u64,
}

impl Blank {
    /// Makes a mark for an operation of the group that `counter` belongs to.
    #[cold]
    pub(super) fn new(marks: &Arc<Marks>, counter: &Arc<Counter>) -> BoxedResult<Self, GroupError> {
        let mark = Mark {
            operation: "",
            sequence: 0,
            interval: Interval::default(),
            stream: StreamKey::default(),
            captured: false,
            span: Span::default(),
            start: if marks.timing { Some(marks.lease()?) } else { None },
            done: marks.lease()?,
            counter: counter.clone(),
        };
        Ok(Self { mark: Arc::new(mark), begun: 0 })
    }

    /// Returns the mark of a finished work for reuse, if nothing else refers to the mark.
    pub(super) fn again(work: Work) -> Option<Self> {
        // The check does not race: if the count is 1, `work` holds the only reference, and there are no weak
        // references from which another thread could make a second one.
        (Arc::strong_count(&work.mark) == 1).then_some(Self { mark: work.mark, begun: 0 })
    }

    /// Records the event before the operation, if the group times operations. Captured operations are not
    /// timed.
    #[inline]
    pub(in crate::group) fn start(&mut self, stream: &Stream) -> BoxedResult<(), GroupError> {
        match &self.mark.start {
            None => Ok(()),
            Some(start) => start.record_timed(stream),
        }
    }

    /// Records the event after the launched operation, and returns its work. `sequence` is the operation's
    /// number in the group, and `span` its records in the flight recorder.
    #[inline(always)]
    pub(in crate::group) fn done(
        mut self,
        operation: &'static str,
        sequence: u64,
        stream: &Stream,
        span: Span,
    ) -> BoxedResult<Work, GroupError> {
        stream.record(self.mark.done.event())?;
        let captured = stream.capture_status()? != CaptureStatus::None;
        let Some(mark) = Arc::get_mut(&mut self.mark) else { unreachable!("a blank has one holder") };
        (mark.operation, mark.sequence, mark.span) = (operation, sequence, span);
        mark.interval = Interval { begun: self.begun, recorded: 0 };
        (mark.stream, mark.captured) = (StreamKey::of(stream), captured);
        Ok(Work { mark: self.mark })
    }
}

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

/// A group's pool of events. Events return to the pool when their marks are dropped.
pub(in crate::group) struct Marks {
    context: Context,
    /// True if the group times operations.
    timing: bool,
    free: Mutex<Vec<Event>>,
}

impl Marks {
    /// Maximum number of free events in the pool.
    const KEPT: usize = 1024;

    pub(in crate::group) fn new(context: &Context, timing: bool) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), timing, free: Mutex::default() })
    }

    fn lease(self: &Arc<Self>) -> Result<Lease> {
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
    fn record_timed(&self, stream: &Stream) -> BoxedResult<(), GroupError> {
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
