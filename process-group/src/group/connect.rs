//! Makes a group's communicator: with the group, or at the first use of a lazy group by all members.

use std::iter;

use cuda_driver::{Stream, graph::CaptureStatus};

use super::{
    GroupError, ProcessGroup, Result,
    meeting::{Meeting, follow_up},
};
use crate::{
    BoxedResult,
    comm::{CommError, refuse_inside_group},
    profile,
    store::Deadline,
};

impl ProcessGroup {
    /// Returns true if the group's communicator is made. It always is, unless the group is
    /// [lazy](super::Builder::lazy).
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_made()
    }

    /// Makes the communicator of a [lazy](super::Builder::lazy) group, and the lanes of its messages, unless
    /// they exist. Collective: all members connect, each by this call or by its first operation that needs
    /// the communicator. It is made on all of them, or on none. The deadline limits the wait for the other
    /// members. The calls into NCCL may take half of the longest deadline among them, and at least 10 s.
    /// Later meetings wait for at least 10 s.
    ///
    /// # Errors
    /// - [`GroupError::Absent`] with the members that did not come to the first meeting, the same on every
    ///   member that came; [`GroupError::NotAgreed`] if those wait for this one in another call, which fails
    ///   too; and [`GroupError::Unmade`] if a member found before the NCCL call that it cannot take part.
    ///   Nothing has changed, and all may try again.
    /// - [`GroupError::Comm`] for NCCL's failure on this rank, [`GroupError::Unmade`] for another's,
    ///   [`GroupError::Lost`], [`GroupError::Store`], and [`GroupError::Absent`] for members that did not
    ///   come to a later meeting. The group has to be aborted then. A communicator that was being made is
    ///   poisoned, and a further attempt returns [`CommError::Poisoned`].
    pub fn connect(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "connect";
        if self.is_connected() {
            return Ok(());
        }
        refuse_inside_group(CALL)?;
        let _range = profile::range(CALL, &self.name, 0);
        let _turn = self.connection.turn.take(deadline).ok_or_else(|| self.busy(CALL, deadline))?;
        if self.is_connected() {
            return Ok(());
        }
        let all = self.meeting("the group's communicator", "connect");
        self.counter.health.check()?;
        match self.communicator.check() {
            // It exists already: it was given, or split off from another.
            Ok(()) => self.make_together(&all, deadline, |_, _| self.announce(&self.communicator))?,
            Err(CommError::Unmade { .. }) => self.form(&all, &self.communicator, deadline)?,
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        }
        self.furnish(&all, follow_up(deadline))
            .inspect_err(|error| self.communicator.give_up(&error.to_string()))?;
        self.connection.set_made();
        Ok(())
    }

    /// Makes the lanes, and agrees on registration with the group's communicator and the lanes.
    fn furnish(&self, all: &Meeting<'_>, deadline: Deadline) -> Result<()> {
        let lanes = self.make_lanes(all, deadline)?;
        let communicators: Vec<_> = iter::once(&self.communicator).chain(&lanes).collect();
        let registered = self.agree_on_registration(all, &communicators, deadline)?;
        self.buffer_cache.agreed(&registered);
        // Set once: only one thread at a time connects, until one has succeeded.
        let _ = (self.registered.set(registered), self.messages.set_lanes(lanes));
        Ok(())
    }

    /// Makes the communicator unless it exists.
    #[inline]
    pub(super) fn connected(&self, operation: &'static str, stream: &Stream) -> BoxedResult<(), GroupError> {
        if self.connection.is_made() { Ok(()) } else { self.connect_for(operation, stream) }
    }

    #[cold]
    fn connect_for(&self, operation: &'static str, stream: &Stream) -> BoxedResult<(), GroupError> {
        self.refuse_capture(operation, stream)?;
        Ok(self.connect(self.timeout())?)
    }

    /// Fails if the stream captures, because a communicator cannot be made then.
    pub(super) fn refuse_capture(&self, operation: &'static str, stream: &Stream) -> Result<()> {
        match stream.capture_status()? {
            CaptureStatus::None => Ok(()),
            _ => Err(GroupError::UnmadeInCapture { operation, group: self.name.to_string() }),
        }
    }

    pub(super) fn busy(&self, call: &'static str, deadline: Deadline) -> GroupError {
        let (communicator, waited) = (self.communicator.name().to_owned(), deadline.waited());
        CommError::Busy { call, communicator, busy_with: "another thread that makes it", waited }.into()
    }
}
