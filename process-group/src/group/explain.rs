//! Finds the cause of a call's error: the reason why the group has ended, if there is one.

use std::{sync::atomic::Ordering, time::Duration};

use bootstrap::runtime;
use nccl_sys::ncclResult_t;

use super::{
    GroupErrorKind, KindResult, Result,
    health::{End, GroupHealth},
};
use crate::{
    comm::{CommError, Force},
    store::{Deadline, StoreError},
    watch::Trouble,
};

impl GroupHealth {
    /// Replaces an error by its cause. If trouble or an abort has ended the group, the cause is the reason for the end.
    /// If a drop has ended the group, the error is kept, because the drop is usually a consequence of the error. Some
    /// other errors are kept too: see the comments in [`reason`](Self::reason).
    pub(super) fn explain<T>(&self, result: KindResult<T>) -> KindResult<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.reason(error)),
        }
    }

    /// Like [`explain`](Self::explain), for an error.
    #[cold]
    pub(super) fn reason(&self, error: GroupErrorKind) -> GroupErrorKind {
        use GroupErrorKind::{Comm, Driver, NotAgreed, Path, Store, WorkTimeout};
        match self.end.get() {
            None | Some(End::Force(Force::Dropped)) => error,
            // `NotAgreed` is kept, because it is the same error on all members.
            _ if matches!(error, NotAgreed { .. }) => error,
            // This rank's own driver error has ended the group, and has more detail than the trouble.
            Some(End::Trouble(Trouble::Failed { rank, .. }))
                if *rank == self.rank() && matches!(error, Driver(_)) =>
            {
                error
            }
            // A member has left. Errors of the kinds below can be a consequence of that, except `Revoked`, which this
            // rank has caused itself. All other errors are kept, because the members have agreed on them.
            Some(End::Trouble(Trouble::Left { .. }))
                if matches!(error, Comm(CommError::Revoked { .. }))
                    || !matches!(
                        error,
                        Comm(_) | Driver(_) | Path { .. } | Store(_) | WorkTimeout { .. }
                    ) =>
            {
                error
            }
            Some(end) => self.error(end),
        }
    }

    #[cold]
    pub(super) fn error(&self, end: &End) -> GroupErrorKind {
        match end {
            End::Trouble(trouble) => GroupErrorKind::of_trouble(trouble.clone()),
            End::Force(force) => {
                CommError::Closed { call: "", communicator: self.label(), how: force.how().into() }.into()
            }
        }
    }

    /// Runs `meet`, which waits for other members. The end of the group ends the wait. If `meet` fails, returns the
    /// cause of the error.
    pub(super) fn attend<T>(&self, meet: impl FnOnce() -> KindResult<T>) -> KindResult<T> {
        let _open = Open::new(self);
        // Count the wait first, then check. If the group ends after the count, `end` finds the count above 0. If the
        // group ended before the count, this check returns the error.
        self.check()?;
        meet().map_err(|error| self.cause(error))
    }

    /// Returns the cause of an error in a wait for the members. If another member may know the cause, waits a moment
    /// for its notification.
    pub(super) fn cause(&self, error: GroupErrorKind) -> GroupErrorKind {
        match &error {
            GroupErrorKind::Store(StoreError::GivenUp { .. }) => self.hear_why(self.heartbeat * 2),
            // The process that hosted the store may have been a member on this host. In that case the kernel soon
            // reports the death of the process.
            GroupErrorKind::Store(StoreError::HostDied { .. }) => self.hear_why(self.heartbeat / 2),
            _ => {}
        }
        self.reason(error)
    }

    /// Waits until the reason for the group's end arrives from another member, for at most `patience`.
    pub(super) fn hear_why(&self, patience: Duration) {
        self.signal.hurry();
        let patience = Deadline::after(patience);
        while !self.is_over() && !patience.expired() {
            runtime::sleep(Duration::from_millis(1));
        }
    }

    /// If `error` may come from the loss of another member, waits until the reason for the group's end arrives, for at
    /// most two heartbeats. For a step that all members take together: the first member to notice a loss aborts its
    /// communicator. The other members may see a remote error from that abort before they notice the loss.
    pub(super) fn await_cause(&self, error: &CommError) {
        if error.code() == Some(ncclResult_t::ncclRemoteError) {
            self.hear_why(self.heartbeat * 2);
        }
    }

    /// Replaces an NCCL error by its cause, for a step that all members take together.
    pub(super) fn explain_making<T>(&self, made: Result<T, CommError>) -> KindResult<T> {
        made.map_err(|error| {
            self.await_cause(&error);
            self.reason(error.into())
        })
    }
}

/// Counts a wait for other members in `waits`, until this value is dropped.
struct Open<'a>(&'a GroupHealth);

impl<'a> Open<'a> {
    fn new(health: &'a GroupHealth) -> Self {
        health.waits.fetch_add(1, Ordering::AcqRel);
        Self(health)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::AcqRel);
    }
}
