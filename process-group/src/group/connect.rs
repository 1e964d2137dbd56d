//! Makes a group's communicator: when the group is made, or later if the group is lazy.

use std::iter;

use cuda_driver::{Stream, graph::CaptureStatus};

use super::{
    GroupErrorKind, KindResult, ProcessGroup, Result,
    meeting::{Meeting, follow_up},
};
use crate::{
    BoxedResult,
    comm::{CommError, refuse_inside_group},
    profile,
    store::Deadline,
};

/// The operation in errors, and the name of its range in profiles.
const CONNECT: &str = "connect";

impl ProcessGroup {
    /// Returns true if the group's communicator is made. Can be false only for a [lazy](super::Builder::lazy)
    /// group.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_made()
    }

    /// Makes the communicator of a [lazy](super::Builder::lazy) group, and the group's [lanes](super::p2p)
    /// for messages, unless they exist. Collective: every member calls `connect`, or an operation that needs
    /// the communicator. The communicator is made on all members, or on none. The deadline limits the wait
    /// for the other members. The time limit of the calls into NCCL is half of the longest deadline that a
    /// member gave, at least 10 s and at most 10 minutes. The agreements after these calls wait at least 10 s.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Absent`] with the members that did not come to the first agreement. Every member that
    ///   came gets the same error. [`GroupErrorKind::NotAgreed`] if the missing members wait for this one in
    ///   another call, which fails too. [`GroupErrorKind::Unmade`] if a member found before the NCCL call that it
    ///   cannot take part. After these errors nothing has changed, and all members may try again.
    /// - [`GroupErrorKind::Comm`] for a failure of NCCL on this rank, [`GroupErrorKind::Unmade`] for a failure on
    ///   another rank, [`GroupErrorKind::Lost`], [`GroupErrorKind::Store`], and [`GroupErrorKind::Absent`] for members
    ///   that did not come to a later agreement. After these errors the group must be aborted. A communicator
    ///   that was being made is poisoned, and a further attempt returns [`CommError::Poisoned`].
    pub fn connect(&self, deadline: Deadline) -> Result<()> {
        self.in_call(CONNECT, self.connect_by(deadline))
    }

    /// Like [`connect`](Self::connect), as part of another call.
    pub(super) fn connect_by(&self, deadline: Deadline) -> KindResult<()> {
        if self.is_connected() {
            return Ok(());
        }
        refuse_inside_group(CONNECT)?;
        let _range = profile::range(CONNECT, &self.name, 0);
        let _turn = self.connection.turn.take(deadline).ok_or_else(|| self.busy(CONNECT, deadline))?;
        if self.is_connected() {
            return Ok(());
        }
        let all = self.meeting("the group's communicator", "connect");
        self.counter.health.check()?;
        match self.communicator.check() {
            // The communicator exists already: the caller gave it, or it was split or grown from another.
            Ok(()) => self.make_together(&all, deadline, |_, _| self.announce(&self.communicator))?,
            Err(CommError::Unmade { .. }) => self.form(&all, &self.communicator, deadline)?,
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        }
        self.furnish(&all, follow_up(deadline))
            .inspect_err(|error| self.communicator.give_up(&error.to_string()))?;
        self.connection.set_made();
        Ok(())
    }

    /// Makes the lanes for messages. Agrees with the members on registering memory with the group's
    /// communicator and the lanes.
    fn furnish(&self, all: &Meeting<'_>, deadline: Deadline) -> KindResult<()> {
        let lanes = self.make_lanes(all, deadline)?;
        let communicators: Vec<_> = iter::once(&self.communicator).chain(&lanes).collect();
        let registered = self.agree_on_registration(all, &communicators, deadline)?;
        self.buffer_cache.agreed(&registered);
        // Neither is set yet: threads connect one at a time, and none connects after the first success.
        let _ = (self.registered.set(registered), self.messages.set_lanes(lanes));
        Ok(())
    }

    /// Makes the group's communicator unless it exists. `operation` and `stream` are those of the call that
    /// needs it.
    #[inline]
    pub(super) fn connected(&self, stream: &Stream) -> BoxedResult<(), GroupErrorKind> {
        if self.connection.is_made() { Ok(()) } else { self.connect_for(stream) }
    }

    #[cold]
    fn connect_for(&self, stream: &Stream) -> BoxedResult<(), GroupErrorKind> {
        self.refuse_capture(stream)?;
        Ok(self.connect_by(self.timeout())?)
    }

    /// Fails if the stream is capturing, because a communicator cannot be made during a capture.
    pub(super) fn refuse_capture(&self, stream: &Stream) -> KindResult<()> {
        match stream.capture_status()? {
            CaptureStatus::None => Ok(()),
            _ => Err(GroupErrorKind::UnmadeInCapture),
        }
    }

    pub(super) fn busy(&self, call: &'static str, deadline: Deadline) -> GroupErrorKind {
        let (communicator, waited) = (self.communicator.name().to_owned(), deadline.waited());
        CommError::Busy { call, communicator, busy_with: "another thread that makes it", waited }.into()
    }
}
