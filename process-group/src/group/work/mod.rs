//! Waiting for enqueued operations.
//!
//! | file | subject |
//! |---|---|
//! | `mark` | the events before and after an operation on its stream, which are reused |
//! | `outstanding` | the works of every stream that are not known to be done |
//! | `keep` | owners of memory, kept until operations are done |
//! | `future` | waiting in asynchronous programs |

mod future;
mod keep;
mod mark;
mod outstanding;

use std::{fmt, sync::Arc, time::Duration};

use bootstrap::runtime;
use cuda_driver::{Stream, graph::RelaxedCapture};

pub use self::future::WorkFuture;
use self::mark::{Lease, Mark, StreamKey};
pub(super) use self::{
    mark::{Blank, Marks},
    outstanding::Outstanding,
};
use super::{GroupError, Result};
use crate::{profile, record::ticks, store::Deadline};

/// An operation that was enqueued.
///
/// It holds no memory. The caller keeps buffers valid until it is done, or passes their owners to
/// [keep](Self::keep). Dropping it has no effect on the operation.
#[derive(Clone)]
pub struct Work {
    mark: Arc<Mark>,
}

impl Work {
    /// Returns its number among the group's operations, beginning with 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.mark.sequence
    }

    /// Returns the operation's name.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.mark.operation
    }

    /// Returns its key among the group's works.
    pub(super) fn key(&self) -> u64 {
        self.mark.interval.recorded
    }

    /// Returns true if a graph captured it, so that it was not enqueued itself.
    pub(super) fn is_captured(&self) -> bool {
        self.mark.captured
    }

    /// Makes `stream` wait until the operation is done; the host does not wait. Does nothing for the stream
    /// that it was enqueued on.
    ///
    /// # Errors
    /// [`GroupError::Driver`].
    pub fn order_before(&self, stream: &Stream) -> Result<()> {
        let done = self.mark.done.event();
        if StreamKey::of(stream) == self.mark.stream && stream.context() == done.context() {
            return Ok(());
        }
        Ok(stream.wait(done)?)
    }

    /// Waits on the host until the operation is done, at most for the group's timeout.
    ///
    /// # Errors
    /// As for [`wait_until`](Self::wait_until).
    pub fn wait(&self) -> Result<()> {
        self.wait_until(Deadline::after(self.mark.counter.timeout))
    }

    /// Waits on the host until the operation is done, or until the deadline.
    ///
    /// # Errors
    /// The error that ended the group, as soon as it is known: [`GroupError::Lost`],
    /// [`GroupError::Overdue`], [`GroupError::CollectiveDiverged`], [`GroupError::MemberFailed`].
    /// [`GroupError::Path`] if another member has ended messages and has not reported why in time, or by the
    /// deadline. [`GroupError::WorkTimeout`] after the deadline, with the members that have not joined unless
    /// the deadline is shorter than a second. [`GroupError::Comm`] for an asynchronous error;
    /// [`GroupError::Captured`]; [`GroupError::Driver`].
    pub fn wait_until(&self, deadline: Deadline) -> Result<()> {
        self.mark.counter.health.explain(self.look_until(deadline))
    }

    fn look_until(&self, deadline: Deadline) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(2);
        let _range = profile::range("wait", &self.mark.counter.name, 0);
        let health = &self.mark.counter.health;
        let mut asked = None;
        loop {
            match self.is_completed() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(health.conclude(error, deadline)),
            }
            if asked.is_none() && Self::asks(deadline) {
                // A later answer would not arrive in time.
                let until = Deadline::after(deadline.remaining() / 4 * 3);
                asked = Some(health.ask_aside(until));
            }
            if deadline.expired() {
                let timeout = || GroupError::WorkTimeout {
                    operation: self.mark.operation,
                    sequence: self.mark.sequence,
                    group: self.mark.counter.name.to_string(),
                    waited: deadline.waited(),
                    progress: asked.as_ref().and_then(|asked| asked.get()).cloned().map(Box::new),
                };
                // The member that has given up is known sooner than its reason.
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

    /// Returns true when it is time to ask the members for their progress, so that the error can report it at
    /// the deadline. Waits of less than a second do not ask, since callers tend to repeat them.
    fn asks(deadline: Deadline) -> bool {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(2);
        let timeout = deadline.timeout();
        timeout >= SHORTEST && deadline.remaining() <= LONGEST.min(timeout / 4)
    }

    /// Reports an error to the flight recorder and the profilers.
    fn trouble(&self, error: GroupError) -> GroupError {
        self.mark.counter.log.recorder().trouble();
        profile::trouble(self.mark.operation, &self.mark.counter.name, &error);
        error
    }

    /// Returns true if the operation is done.
    ///
    /// # Errors
    /// [`GroupError::Lost`]: the operation may have been given up. [`GroupError::Path`]: another
    /// member has given it up, and has not reported why in time. [`GroupError::Captured`] for a captured
    /// operation. [`GroupError::Driver`], also for errors of earlier work on the device.
    pub fn is_completed(&self) -> Result<bool> {
        let done = self.is_done()?;
        // Checked afterwards, because aborted, revoked and given-up work looks done as well.
        let health = &self.mark.counter.health;
        health.check_work()?;
        if done {
            health.check_done()?;
        }
        Ok(done && !health.is_given_up()?)
    }

    /// Returns true if no part of it runs any more.
    fn is_done(&self) -> Result<bool> {
        if self.mark.captured {
            return Err(self.captured());
        }
        let done = self.passed(&self.mark.done)?;
        if done {
            self.tell_done(ticks);
        }
        Ok(done)
    }

    /// Returns the time that the operation took on its stream, in µs, including the wait for the other
    /// members and other work that was enqueued there in between. `None` until it is done, and without
    /// [timing](super::Builder::timing).
    ///
    /// # Errors
    /// Those of [`is_completed`](Self::is_completed).
    pub fn elapsed_us(&self) -> Result<Option<f64>> {
        if !self.is_completed()? {
            return Ok(None);
        }
        self.mark.elapsed_us()
    }

    /// Returns true if the stream has passed an event.
    fn passed(&self, mark: &Lease) -> Result<bool> {
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

    /// Tells the flight recorder that it is done. The time is `now`, unless that was recorded before.
    fn tell_done(&self, now: impl FnOnce() -> u64) {
        // If the driver does not report the duration, the operation is recorded as done without one.
        self.mark.counter.log.completed(self.mark.span, now, || self.mark.elapsed_us().ok().flatten());
    }

    /// Tells the flight recorder that it has begun, if so. Returns true if it has.
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
