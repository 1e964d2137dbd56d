//! Marks: the places before and after an operation on its stream, and what is known of the operation.
//!
//! Every operation has an event right after it, though most works are dropped at once. Nothing less keeps what works
//! promise: an event that were recorded when somebody asks, or with a later call, would stand for whatever else was
//! enqueued in between. A stream that waits for the work would wait for that too, perhaps for what waits for this very
//! stream; the watchdog could not tell a late operation from a kernel of the program's that runs long; and a stream that
//! the program has destroyed by then could not be asked at all. What is last before a silence is not known when it is
//! launched.
//!
//! A mark is used again when nobody holds it any more: to make its events costs more than to record them, and to
//! count the holders of five things more than to count those of one.

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
use crate::{Slim, record::Span};

/// An operation that was launched.
pub(super) struct Mark {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) interval: Interval,
    pub(super) stream: StreamKey,
    /// Its event is a mark in a capture. The driver refuses to answer for such a one, and asking it during the
    /// capture ends the capture in vain (measured), so it is never asked.
    pub(super) captured: bool,
    /// What the flight recorder holds of it.
    pub(super) span: Span,
    /// Before it, where operations are timed.
    pub(super) start: Option<Lease>,
    /// After it.
    pub(super) done: Lease,
    pub(super) counter: Arc<Counter>,
}

impl Mark {
    /// The time between both places, in µs, when both have been passed.
    pub(super) fn elapsed_us(&self) -> Result<Option<f64>> {
        let Some(start) = &self.start else { return Ok(None) };
        let done = self.done.event();
        let _relaxed = RelaxedCapture::enter(done.context().driver())?;
        Ok(Some(done.elapsed_us(start.event())?))
    }
}

/// A mark of an operation that is yet to be launched; nobody else holds it.
pub(in crate::group) struct Blank {
    mark: Arc<Mark>,
    /// See [`Interval`].
    begun: u64,
}

impl Blank {
    /// Of an operation of a group.
    #[cold]
    pub(super) fn new(marks: &Arc<Marks>, counter: &Arc<Counter>) -> Slim<Self, GroupError> {
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

    /// For an operation that begins at this time of its group's clock.
    pub(super) fn begun(self, begun: u64) -> Self {
        Self { begun, ..self }
    }

    /// That of a work that is done, if nobody else holds it.
    pub(super) fn again(work: Work) -> Option<Self> {
        // There are no weak ones, and who holds the only one is the only one who could make another.
        (Arc::strong_count(&work.mark) == 1).then_some(Self { mark: work.mark, begun: 0 })
    }

    /// Marks the place before the operation, where operations are timed. What is captured is not.
    #[inline]
    pub(in crate::group) fn start(&mut self, stream: &Stream) -> Slim<(), GroupError> {
        match &self.mark.start {
            None => Ok(()),
            Some(start) => start.record_timed(stream),
        }
    }

    /// Marks the place after the operation, number `sequence` of its group, which was launched.
    #[inline(always)]
    pub(in crate::group) fn done(
        mut self,
        operation: &'static str,
        sequence: u64,
        stream: &Stream,
        span: Span,
    ) -> Slim<Work, GroupError> {
        stream.record(self.mark.done.event())?;
        let captured = stream.capture_status()? != CaptureStatus::None;
        if captured {
            self.mark.counter.track.captured(span);
        }
        let Some(mark) = Arc::get_mut(&mut self.mark) else { unreachable!("a blank has one holder") };
        (mark.operation, mark.sequence, mark.span) = (operation, sequence, span);
        mark.interval = Interval { begun: self.begun, recorded: 0 };
        (mark.stream, mark.captured) = (StreamKey::of(stream), captured);
        Ok(Work { mark: self.mark })
    }
}

/// What tells a stream from the others of its context. (The legacy default stream has the same one in every context.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(in crate::group) struct StreamKey {
    handle: usize,
    /// Whose stream it is, where the handle means another one on each thread.
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

/// Events of marks that have gone.
pub(in crate::group) struct Marks {
    context: Context,
    /// Whether operations are timed.
    timing: bool,
    free: Mutex<Vec<Event>>,
}

impl Marks {
    /// How many are kept.
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

/// An event on loan. A stream that waits for it waits for what was recorded then, so it may be used again at once.
pub(super) struct Lease {
    /// There until the lease ends.
    event: Option<Event>,
    marks: Arc<Marks>,
}

impl Lease {
    pub(super) fn event(&self) -> &Event {
        self.event.as_ref().unwrap_or_else(|| unreachable!("a lease holds its event until it is dropped"))
    }

    /// Records it as the place before an operation.
    #[cold]
    fn record_timed(&self, stream: &Stream) -> Slim<(), GroupError> {
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
