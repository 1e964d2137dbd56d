//! Waiting for enqueued operations.
//!
//! | file | subject |
//! |---|---|
//! | `outstanding` | the works that are not known to be complete, by stream; the data of each, which is reused |
//! | `events` | a group's pool of events |
//! | `keep` | keeps the owners of buffers until operations are complete |
//! | `future` | waiting in asynchronous programs |

mod events;
mod future;
mod keep;
mod outstanding;

use std::{fmt, sync::Arc, time::Duration};

use bootstrap::runtime;
use cuda_driver::{Stream, graph::RelaxedCapture};

pub use self::future::WorkFuture;
pub(super) use self::{
    events::Marks,
    outstanding::{Blank, Outstanding},
};
use self::{
    events::{Lease, StreamKey},
    outstanding::Mark,
};
use super::{GroupError, GroupErrorKind, KindResult, Result, error::CallContext};
use crate::{profile, record::ticks, store::Deadline};

/// Handle of an operation that was enqueued on a stream.
///
/// A `Work` does not hold the operation's buffers. Slices that were passed to an operation stay allocated until
/// the operation is complete. For raw addresses, the caller keeps the buffers valid until then, or passes
/// their owners to [`keep`](Self::keep). Dropping a `Work` has no effect on the operation.
#[derive(Clone)]
pub struct Work {
    mark: Arc<Mark>,
}

impl Work {
    /// Returns the operation's number among this rank's operations in the group, starting at 1. One-sided
    /// operations are not counted, and have the number of the last counted operation before them.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.mark.sequence
    }

    /// Returns the operation's name.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.mark.operation
    }

    /// Returns a key that is unique among the group's works. Keys increase in the order in which works are
    /// added to [`Outstanding`].
    pub(super) fn key(&self) -> u64 {
        self.mark.interval.recorded
    }

    /// Returns true if the call was captured into a graph, so that the operation itself was not enqueued.
    pub(super) fn is_captured(&self) -> bool {
        self.mark.captured
    }

    /// Makes `stream` wait until the operation is complete. The host does not wait. Does nothing if `stream`
    /// is the stream on which the operation was enqueued.
    ///
    /// # Errors
    /// [`GroupErrorKind::Driver`] if the driver refuses the wait.
    pub fn order_before(&self, stream: &Stream) -> Result<()> {
        let done = self.mark.done.event();
        if StreamKey::of(stream) == self.mark.stream && stream.context() == done.context() {
            return Ok(());
        }
        self.in_call(stream.wait(done))
    }

    /// Blocks the calling thread until the operation is complete, for at most the group's timeout.
    ///
    /// # Errors
    /// Those of [`wait_until`](Self::wait_until).
    pub fn wait(&self) -> Result<()> {
        self.wait_until(Deadline::after(self.mark.counter.timeout))
    }

    /// Blocks the calling thread until the operation is complete, or until the deadline.
    ///
    /// # Errors
    /// The error that ended the group, as soon as it is known, for example [`GroupErrorKind::Lost`],
    /// [`GroupErrorKind::Left`], [`GroupErrorKind::Overdue`], [`GroupErrorKind::CollectiveDiverged`] or
    /// [`GroupErrorKind::MemberFailed`]. [`GroupErrorKind::Path`] if another member has given up messages on the
    /// group's path, and that member's reason has not arrived in time or by the deadline.
    /// [`GroupErrorKind::WorkTimeout`] after the deadline. If the deadline was at least a second away at the
    /// start, this error names the members that have not joined. [`GroupErrorKind::Comm`] for an asynchronous
    /// error. [`GroupErrorKind::Captured`] if a graph captured the operation. [`GroupErrorKind::Driver`] if a query
    /// of the device fails.
    pub fn wait_until(&self, deadline: Deadline) -> Result<()> {
        self.in_call(self.done_by(deadline))
    }

    /// Like [`wait_until`](Self::wait_until), as part of another call.
    pub(super) fn done_by(&self, deadline: Deadline) -> KindResult<()> {
        self.mark.counter.health.explain(self.look_until(deadline))
    }

    /// Adds the group, this operation and its number to an error of it.
    pub(super) fn in_call<T>(&self, result: Result<T, impl Into<GroupError>>) -> Result<T> {
        let Mark { counter, operation, sequence, .. } = &*self.mark;
        result.map_err(|error| CallContext::of_work(&counter.name, operation, *sequence).error(error))
    }

    fn look_until(&self, deadline: Deadline) -> KindResult<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(2);
        let _range = profile::range("wait", &self.mark.counter.name, 0);
        let health = &self.mark.counter.health;
        let mut asked = None;
        loop {
            match self.completion() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(health.conclude(error, deadline)),
            }
            if asked.is_none() && Self::asks(deadline) {
                // The query ends before the deadline, so that its answer can be part of the timeout error.
                let until = Deadline::after(deadline.remaining() / 4 * 3);
                asked = Some(health.ask_aside(until));
            }
            if deadline.expired() {
                let timeout = || GroupErrorKind::WorkTimeout {
                    waited: deadline.waited(),
                    progress: asked.as_ref().and_then(|asked| asked.get()).cloned().map(Box::new),
                };
                // If a member has given up messages, report that instead of the timeout, even if the member's
                // reason is not known yet.
                let error = health.given_up().map_or_else(timeout, |(_, peer)| health.gave_up(peer));
                return Err(self.trouble(error));
            }
            if pause >= LONGEST {
                health.check_background().map_err(|error| self.trouble(health.conclude(error, deadline)))?;
            }
            runtime::sleep(pause.min(deadline.remaining()));
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Returns true when it is time to query the members' progress, so that the error at the deadline can
    /// report it. Waits of less than a second make no query, because callers tend to repeat such waits.
    fn asks(deadline: Deadline) -> bool {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(2);
        let timeout = deadline.timeout();
        timeout >= SHORTEST && deadline.remaining() <= LONGEST.min(timeout / 4)
    }

    /// Reports an error to the flight recorder and the profilers, and returns the error.
    fn trouble(&self, error: GroupErrorKind) -> GroupErrorKind {
        self.mark.counter.recorder.trouble();
        let Mark { operation, sequence, counter, .. } = &*self.mark;
        let problem = format_args!("{operation} (number {sequence} of {}): {error}", counter.name);
        profile::trouble(operation, &counter.name, &problem);
        error
    }

    /// Returns true if the operation is complete. Does not block.
    ///
    /// # Errors
    /// The error that ended the group, for example [`GroupErrorKind::Lost`], because the operation may have been
    /// given up. [`GroupErrorKind::Path`] if another member has given up messages on the group's path, and has
    /// not reported the reason in time. [`GroupErrorKind::Captured`] if a graph captured the operation.
    /// [`GroupErrorKind::Driver`] if a query of the device fails, also because of an error of earlier work on the
    /// device.
    pub fn is_completed(&self) -> Result<bool> {
        self.in_call(self.completion())
    }

    /// Like [`is_completed`](Self::is_completed), as part of another call.
    pub(super) fn completion(&self) -> KindResult<bool> {
        let done = self.is_done()?;
        // Checked after the query, because aborted, revoked and given-up operations look complete too.
        let health = &self.mark.counter.health;
        health.check_work()?;
        if done {
            health.check_done()?;
        }
        Ok(done && !health.is_given_up()?)
    }

    /// Returns true if no part of the operation runs any more, whether or not the operation was successful.
    fn is_done(&self) -> KindResult<bool> {
        if self.mark.captured {
            return Err(GroupErrorKind::Captured);
        }
        let done = self.passed(&self.mark.done)?;
        if done {
            self.tell_done(ticks);
        }
        Ok(done)
    }

    /// Returns the time that the operation took on its stream, in µs. This includes the wait for the other
    /// members, and work that other threads enqueued on the stream during the call. `None` until the
    /// operation is complete, and in groups without [timing](super::Builder::timing).
    ///
    /// # Errors
    /// Those of [`is_completed`](Self::is_completed).
    pub fn elapsed_us(&self) -> Result<Option<f64>> {
        let completed = self.completion();
        self.in_call(completed.and_then(|done| if done { self.mark.elapsed_us() } else { Ok(None) }))
    }

    /// Returns true if the stream has passed the event that `mark` holds.
    fn passed(&self, mark: &Lease) -> KindResult<bool> {
        let event = mark.event();
        let query = || {
            // Another thread may be capturing in global mode, and a query would invalidate its capture.
            let _relaxed = RelaxedCapture::enter(event.context().driver())?;
            event.query()
        };
        query().map_err(|error| {
            self.mark.counter.health.driver_failed(&error);
            error.into()
        })
    }

    /// Records in the flight recorder that the operation is complete. `now` returns the time, which is
    /// ignored if a time was recorded before.
    fn tell_done(&self, now: impl FnOnce() -> u64) {
        // If the driver does not report the duration, the operation is recorded as complete without a
        // duration.
        self.mark.counter.log.completed(self.mark.span, now, || self.mark.elapsed_us().ok().flatten());
    }

    /// Returns true if the operation has started, and records that in the flight recorder. Always false
    /// without timing.
    fn tell_started(&self) -> bool {
        let started = self.mark.start.as_ref().is_some_and(|start| self.passed(start).unwrap_or(false));
        if started {
            self.mark.counter.log.started(self.mark.span);
        }
        started
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({} {} of {})", self.mark.operation, self.mark.sequence, self.mark.counter.name)
    }
}
