//! Marks: the events before and after an operation on its stream, and the data of the operation.
//!
//! Every operation has an event right after it, although most works are dropped at once. An event that is
//! recorded later, on demand or with a later call, would not do, because it would also stand for other work
//! that was enqueued in between:
//! - A stream that waits for the work would also wait for that other work, which may itself wait for this
//!   stream.
//! - The watchdog could not distinguish a late operation from a long-running kernel of the program.
//! - The program may have destroyed the stream by then.
//! - At launch it is not known whether an operation is the last one for a while.
//!
//! A mark is reused when it has no other holder. Making its events costs more than recording them, and
//! counting the references to five objects costs more than counting those to one.

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

/// The mark of a launched operation.
pub(super) struct Mark {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) interval: Interval,
    pub(super) stream: StreamKey,
    /// Its event was recorded in a capture. The driver refuses to query such an event, and a query during the
    /// capture invalidates the capture (measured), so it is never queried.
    pub(super) captured: bool,
    /// Its records in the flight recorder.
    pub(super) span: Span,
    /// The event before it, if operations are timed.
    pub(super) start: Option<Lease>,
    /// The event after it.
    pub(super) done: Lease,
    pub(super) counter: Arc<Counter>,
}

impl Mark {
    /// Returns the time between both events, in µs, when both have been passed.
    pub(super) fn elapsed_us(&self) -> Result<Option<f64>> {
        let Some(start) = &self.start else { return Ok(None) };
        let done = self.done.event();
        let _relaxed = RelaxedCapture::enter(done.context().driver())?;
        Ok(Some(done.elapsed_us(start.event())?))
    }
}

/// The mark of an operation that is not launched yet. It has no other holder.
pub(in crate::group) struct Blank {
    mark: Arc<Mark>,
    /// The time of its group's clock at which the operation begins; see [`Interval`].
    pub(super) begun: u64,
}

impl Blank {
    /// Makes a mark for an operation of a group.
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

    /// Returns the mark of a finished work for reuse, if it has no other holder.
    pub(super) fn again(work: Work) -> Option<Self> {
        // There are no weak references, and only the holder of the single reference could clone it.
        (Arc::strong_count(&work.mark) == 1).then_some(Self { mark: work.mark, begun: 0 })
    }

    /// Records the event before the operation, if operations are timed. Captured operations are not timed.
    #[inline]
    pub(in crate::group) fn start(&mut self, stream: &Stream) -> BoxedResult<(), GroupError> {
        match &self.mark.start {
            None => Ok(()),
            Some(start) => start.record_timed(stream),
        }
    }

    /// Records the event after the launched operation, which has number `sequence` in its group.
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
    /// The thread, for the handle that means a different stream on each thread.
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

/// The pool of events of marks that were dropped.
pub(in crate::group) struct Marks {
    context: Context,
    /// True if operations are timed.
    timing: bool,
    free: Mutex<Vec<Event>>,
}

impl Marks {
    /// The most events that are kept.
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

/// An event from the pool. A stream that waits for an event waits for its last record at that time, so the
/// event may be reused at once.
pub(super) struct Lease {
    /// `Some` until the drop returns it to the pool.
    event: Option<Event>,
    marks: Arc<Marks>,
}

impl Lease {
    pub(super) fn event(&self) -> &Event {
        self.event.as_ref().unwrap_or_else(|| unreachable!("a lease holds its event until it is dropped"))
    }

    /// Records it before an operation.
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
