//! Waiting for enqueued operations.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use cuda_driver::{
    Context, Event, EventFlags, Stream,
    graph::{CaptureStatus, RelaxedCapture},
    sys::CUstream,
};

use super::{GroupError, Result, process_group::Counter};
use crate::{
    comm::AbortHandle,
    profile,
    record::{Look, Span, now},
    store::Deadline,
};

/// An operation that was enqueued.
///
/// It holds no memory: buffers stay good until it is done because their owners keep them so. Dropping it changes
/// nothing.
#[derive(Clone)]
pub struct Work {
    operation: &'static str,
    sequence: u64,
    counter: Arc<Counter>,
    communicator: AbortHandle,
    stream: StreamKey,
    /// Its event is a mark in a capture. The driver refuses to answer for such a one, and asking it during the
    /// capture ends the capture in vain (measured), so it is never asked.
    captured: bool,
    marks: Arc<Marks>,
    /// What the flight recorder holds of it.
    span: Span,
}

impl Work {
    /// Marks the place after the operation on its stream.
    pub(super) fn record(
        operation: &'static str,
        sequence: u64,
        counter: &Arc<Counter>,
        communicator: AbortHandle,
        events: &Arc<EventPool>,
        stream: &Stream,
        launched: Launched,
    ) -> Result<Self> {
        let Launched { start, span } = launched;
        let done = events.lease()?;
        stream.record(done.event())?;
        let captured = stream.capture_status()? != CaptureStatus::None;
        let stream = StreamKey(stream.raw());
        counter.track.enqueued(span, stream.0.addr() as u64, captured);
        let (counter, marks) = (counter.clone(), Arc::new(Marks { start, done }));
        Ok(Self { operation, sequence, counter, communicator, stream, captured, marks, span })
    }

    /// Its number among the group's operations, beginning with 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What it is.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Whether a graph captured it, so that it was not enqueued itself.
    pub(super) fn is_captured(&self) -> bool {
        self.captured
    }

    /// Has `stream` wait until the operation is done; the host does not wait. Nothing for the stream that it was
    /// enqueued on.
    ///
    /// # Errors
    /// [`GroupError::Driver`].
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        if stream.raw() == self.stream.0 {
            return Ok(());
        }
        Ok(stream.wait(self.marks.done.event())?)
    }

    /// Waits on the host until the operation is done.
    ///
    /// # Errors
    /// [`GroupError::Lost`] as soon as a member is; [`GroupError::WorkTimeout`] past the deadline; [`GroupError::Comm`]
    /// for what went wrong in the background; [`GroupError::Captured`]; [`GroupError::Driver`].
    pub fn wait_timeout(&self, deadline: Deadline) -> Result<()> {
        self.counter.vigil.explain(self.wait_until(deadline))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(2);
        let _range = profile::range("wait", &self.counter.name, 0);
        loop {
            if self.is_completed()? {
                return Ok(());
            }
            if deadline.expired() {
                let error = GroupError::WorkTimeout {
                    operation: self.operation,
                    sequence: self.sequence,
                    group: self.counter.name.to_string(),
                    waited: deadline.waited(),
                };
                return Err(self.trouble(error));
            }
            if pause >= LONGEST {
                self.communicator.async_error().map_err(|error| self.trouble(error.into()))?;
            }
            thread::sleep(pause.min(deadline.remaining()));
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Tells the flight recorder and the profilers of an error.
    fn trouble(&self, error: GroupError) -> GroupError {
        self.counter.track.recorder().trouble();
        profile::trouble(self.operation, &self.counter.name, &error);
        error
    }

    /// Whether the operation is done.
    ///
    /// # Errors
    /// [`GroupError::Lost`]: it may have been given up; [`GroupError::Captured`] for one that a graph captured; [`GroupError::Driver`], also for what earlier work
    /// on the device did wrong.
    pub fn is_completed(&self) -> Result<bool> {
        let done = self.is_done()?;
        // Looked at after: what was aborted is done as well.
        self.counter.vigil.check()?;
        Ok(done)
    }

    /// Whether nothing of it runs any more.
    fn is_done(&self) -> Result<bool> {
        if self.captured {
            return Err(GroupError::Captured {
                operation: self.operation,
                sequence: self.sequence,
                group: self.counter.name.to_string(),
            });
        }
        let done = self.passed(&self.marks.done)?;
        if done {
            self.tell_done(now);
        }
        Ok(done)
    }

    /// How long the operation took on its stream, in µs, with the wait for the other members; `None` until it is done,
    /// and without [timing](super::Builder::timing). It includes what else was enqueued there in between.
    ///
    /// # Errors
    /// As [`is_completed`](Self::is_completed).
    pub fn elapsed_us(&self) -> Result<Option<f64>> {
        if !self.is_completed()? {
            return Ok(None);
        }
        self.marks.elapsed_us()
    }

    /// Whether the stream has come past a mark.
    fn passed(&self, mark: &Lease) -> Result<bool> {
        let event = mark.event();
        // Another thread may be capturing in global mode, whose capture a query would end.
        let _relaxed = RelaxedCapture::enter(event.context().driver())?;
        Ok(event.query()?)
    }

    /// Tells the flight recorder that it is done, at `now` if that was not told before.
    fn tell_done(&self, now: impl FnOnce() -> u64) {
        // A driver that does not say how long leaves that it is done.
        self.counter.track.completed(self.span, now, || self.marks.elapsed_us().ok().flatten());
    }

    /// Tells the flight recorder that it has begun, if it has; whether it has.
    fn tell_started(&self) -> bool {
        let started = self.marks.start.as_ref().is_some_and(|start| self.passed(start).unwrap_or(false));
        if started {
            self.counter.track.started(self.span);
        }
        started
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({} {} of {})", self.operation, self.sequence, self.counter.name)
    }
}

/// What was launched and is not marked yet.
pub(super) struct Launched {
    /// Before it on its stream.
    pub(super) start: Option<Lease>,
    pub(super) span: Span,
}

/// Places on a stream.
struct Marks {
    /// Before the operation, where operations are timed.
    start: Option<Lease>,
    /// After it.
    done: Lease,
}

impl Marks {
    /// The time between them, in µs, when both have been passed.
    fn elapsed_us(&self) -> Result<Option<f64>> {
        let Some(start) = &self.start else { return Ok(None) };
        let done = self.done.event();
        let _relaxed = RelaxedCapture::enter(done.context().driver())?;
        Ok(Some(done.elapsed_us(start.event())?))
    }
}

/// A stream's handle, only ever compared.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StreamKey(CUstream);

// SAFETY: the handle is compared and never given to the driver.
unsafe impl Send for StreamKey {}
// SAFETY: as above.
unsafe impl Sync for StreamKey {}

/// Events that are used again: making one costs more than recording it.
pub(super) struct EventPool {
    context: Context,
    /// Whether operations are timed.
    timing: bool,
    free: Mutex<Vec<Event>>,
}

impl EventPool {
    /// How many are kept: as many as the works that a stream is remembered by, so that one that runs far ahead makes
    /// no new ones.
    const KEPT: usize = Outstanding::KEPT;

    pub(super) fn new(context: &Context, timing: bool) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), timing, free: Mutex::default() })
    }

    pub(super) fn timing(&self) -> bool {
        self.timing
    }

    /// Marks the place before an operation on its stream, where operations are timed. What is captured is not.
    pub(super) fn start(self: &Arc<Self>, stream: &Stream) -> Result<Option<Lease>> {
        if !self.timing || stream.capture_status()? != CaptureStatus::None {
            return Ok(None);
        }
        let start = self.lease()?;
        stream.record(start.event())?;
        Ok(Some(start))
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
        Ok(Lease { event: Some(event), pool: self.clone() })
    }
}

/// An event on loan. A stream that waits for it waits for what was recorded then, so it may be used again at once.
pub(super) struct Lease {
    /// There until the lease ends.
    event: Option<Event>,
    pool: Arc<EventPool>,
}

impl Lease {
    fn event(&self) -> &Event {
        self.event.as_ref().unwrap_or_else(|| unreachable!("a lease holds its event until it is dropped"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < EventPool::KEPT {
            free.extend(self.event.take());
        }
    }
}

/// The latest works of every stream. When one is done, so is everything before it there, so the last of each stands
/// for all; the others are for the flight recorder, which wants to know how far a stream has come.
#[derive(Default)]
pub(super) struct Outstanding {
    streams: Mutex<Vec<VecDeque<Work>>>,
}

impl Outstanding {
    /// A stream takes about as many launches before the host waits: what is further back is done.
    const KEPT: usize = 1024;
    /// After how many works a stream is looked at, and how many go at a time.
    const STRIDE: usize = 128;

    fn streams(&self) -> MutexGuard<'_, Vec<VecDeque<Work>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the latest work of its stream.
    pub(super) fn put(&self, work: &Work) {
        let mut streams = self.streams();
        let own = |works: &&mut VecDeque<Work>| works.back().is_some_and(|last| last.stream == work.stream);
        let Some(works) = streams.iter_mut().find(own) else {
            streams.iter_mut().for_each(drop_done);
            let mut works = VecDeque::with_capacity(Self::STRIDE);
            works.push_back(work.clone());
            return streams.push(works);
        };
        if works.len().is_multiple_of(Self::STRIDE) {
            drop_oldest(works);
        }
        works.push_back(work.clone());
    }

    /// The last work of every stream.
    pub(super) fn all(&self) -> Vec<Work> {
        self.streams().iter().filter_map(|works| works.back().cloned()).collect()
    }
}

/// Lets go of a stream's oldest works, a stride at a time, with one query for each and one more: a query costs as much
/// as ten event records.
fn drop_oldest(works: &mut VecDeque<Work>) {
    const STRIDE: usize = Outstanding::STRIDE;
    while let Some(last) = works.get(STRIDE - 1) {
        let done = last.is_done().unwrap_or(false);
        if !done && works.len() < Outstanding::KEPT {
            return;
        }
        if done {
            tell_done(works.range(..STRIDE));
        }
        works.drain(..STRIDE);
    }
}

/// Tells the recorder that all these are done, at one moment.
fn tell_done<'a>(works: impl Iterator<Item = &'a Work>) {
    let now = now();
    works.for_each(|work| work.tell_done(|| now));
}

/// Tells the recorder which of a stream's works are done, and lets go of them, but for the last.
fn drop_done(works: &mut VecDeque<Work>) {
    // What the driver does not answer for is not known to be done.
    let done = |work: &Work| work.is_done().unwrap_or(false);
    let count = match works.back() {
        Some(last) if done(last) => works.len(),
        _ => works.partition_point(done),
    };
    tell_done(works.range(..count));
    works.drain(..count.min(works.len().saturating_sub(1)));
}

impl Look for Outstanding {
    fn look(&self) {
        for works in self.streams().iter_mut() {
            drop_done(works);
            let _ = works.iter().all(Work::tell_started);
        }
    }
}
