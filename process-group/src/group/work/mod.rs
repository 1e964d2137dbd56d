//! Waiting for enqueued operations.
//!
//! | file | subject |
//! |---|---|
//! | `mark` | the places before and after an operation on its stream, which are used again |
//! | `outstanding` | the works of every stream that are not known to be done |
//! | `keep` | owners of memory that are kept until operations are done |

mod keep;
mod mark;
mod outstanding;

use std::{fmt, sync::Arc, thread, time::Duration};

use cuda_driver::{Stream, graph::RelaxedCapture};

use self::mark::{Lease, Mark, StreamKey};
pub(super) use self::{
    mark::{Blank, Marks},
    outstanding::Outstanding,
};
use super::{GroupError, Result};
use crate::{profile, record::ticks, store::Deadline};

/// An operation that was enqueued.
///
/// It holds no memory: buffers stay good until it is done because their owners keep them so, or because it was told to
/// [keep](Self::keep) these. Dropping it changes nothing.
#[derive(Clone)]
pub struct Work {
    mark: Arc<Mark>,
}

impl Work {
    /// Its number among the group's operations, beginning with 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.mark.sequence
    }

    /// What it is.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.mark.operation
    }

    /// What tells it from the group's other works.
    pub(super) fn key(&self) -> u64 {
        self.mark.interval.recorded
    }

    /// Whether a graph captured it, so that it was not enqueued itself.
    pub(super) fn is_captured(&self) -> bool {
        self.mark.captured
    }

    /// Has `stream` wait until the operation is done; the host does not wait. Nothing for the stream that it was
    /// enqueued on.
    ///
    /// # Errors
    /// [`GroupError::Driver`].
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        let done = self.mark.done.event();
        if StreamKey::of(stream) == self.mark.stream && stream.context() == done.context() {
            return Ok(());
        }
        Ok(stream.wait(done)?)
    }

    /// Waits on the host until the operation is done.
    ///
    /// # Errors
    /// What has ended the group, as soon as it is known: [`GroupError::Lost`], [`GroupError::Overdue`],
    /// [`GroupError::CollectiveDiverged`], [`GroupError::MemberFailed`]; [`GroupError::Path`] if another member
    /// has ended messages and not said why for long, or by the deadline; [`GroupError::WorkTimeout`] past the deadline, with
    /// the members that have not joined unless the deadline is shorter than a second;
    /// [`GroupError::Comm`] for what went wrong in the background; [`GroupError::Captured`]; [`GroupError::Driver`].
    pub fn wait_timeout(&self, deadline: Deadline) -> Result<()> {
        self.mark.counter.vigil.explain(self.wait_until(deadline))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(2);
        let _range = profile::range("wait", &self.mark.counter.name, 0);
        let vigil = &self.mark.counter.vigil;
        let mut asked = None;
        loop {
            match self.is_completed() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(vigil.conclude(error, deadline)),
            }
            if asked.is_none() && Self::asks(deadline) {
                // What is answered later comes too late.
                let until = Deadline::after(deadline.remaining() / 4 * 3);
                asked = Some(vigil.ask_aside(until));
            }
            if deadline.expired() {
                let timeout = || GroupError::WorkTimeout {
                    operation: self.mark.operation,
                    sequence: self.mark.sequence,
                    group: self.mark.counter.name.to_string(),
                    waited: deadline.waited(),
                    progress: asked.as_ref().and_then(|asked| asked.get()).cloned().map(Box::new),
                };
                // Who has given up is known sooner than why.
                let error = vigil.given_up().map_or_else(timeout, |(_, peer)| vigil.gave_up(peer));
                return Err(self.trouble(error));
            }
            if pause >= LONGEST {
                vigil.check_background().map_err(|error| self.trouble(vigil.conclude(error, deadline)))?;
            }
            thread::sleep(pause.min(deadline.remaining()));
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Whether it is time to ask the members how far they are, so that the error can say so when the deadline passes. Who
    /// waits for less than a second asks again and again.
    fn asks(deadline: Deadline) -> bool {
        const SHORTEST: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(2);
        let timeout = deadline.timeout();
        timeout >= SHORTEST && deadline.remaining() <= LONGEST.min(timeout / 4)
    }

    /// Tells the flight recorder and the profilers of an error.
    fn trouble(&self, error: GroupError) -> GroupError {
        self.mark.counter.track.recorder().trouble();
        profile::trouble(self.mark.operation, &self.mark.counter.name, &error);
        error
    }

    /// Whether the operation is done.
    ///
    /// # Errors
    /// [`GroupError::Lost`]: it may have been given up; so [`GroupError::Path`], by another member, which has not said why for
    /// long; [`GroupError::Captured`] for one that a graph captured; [`GroupError::Driver`], also for what earlier work
    /// on the device did wrong.
    pub fn is_completed(&self) -> Result<bool> {
        let done = self.is_done()?;
        // Looked at after: what was aborted, revoked or given up is done as well.
        let vigil = &self.mark.counter.vigil;
        vigil.check_work()?;
        if done {
            vigil.check_done()?;
        }
        Ok(done && !vigil.is_given_up()?)
    }

    /// Whether nothing of it runs any more.
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

    /// How long the operation took on its stream, in µs, with the wait for the other members; `None` until it is done,
    /// and without [timing](super::Builder::timing). It includes what else was enqueued there in between.
    ///
    /// # Errors
    /// As [`is_completed`](Self::is_completed).
    pub fn elapsed_us(&self) -> Result<Option<f64>> {
        if !self.is_completed()? {
            return Ok(None);
        }
        self.mark.elapsed_us()
    }

    /// Whether the stream has come past a mark.
    fn passed(&self, mark: &Lease) -> Result<bool> {
        let event = mark.event();
        let query = || {
            // Another thread may be capturing in global mode, whose capture a query would end.
            let _relaxed = RelaxedCapture::enter(event.context().driver())?;
            event.query()
        };
        query().map_err(|error| {
            self.mark.counter.vigil.driver_failed(&error);
            error.into()
        })
    }

    /// Tells the flight recorder that it is done, at `now` if that was not told before.
    fn tell_done(&self, now: impl FnOnce() -> u64) {
        // A driver that does not say how long leaves that it is done.
        self.mark.counter.track.completed(self.mark.span, now, || self.mark.elapsed_us().ok().flatten());
    }

    /// Tells the flight recorder that it has begun, if it has; whether it has.
    fn tell_started(&self) -> bool {
        let started = self.mark.start.as_ref().is_some_and(|start| self.passed(start).unwrap_or(false));
        if started {
            self.mark.counter.track.started(self.mark.span);
        }
        started
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({} {} of {})", self.mark.operation, self.mark.sequence, self.mark.counter.name)
    }
}
