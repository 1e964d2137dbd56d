//! Messages on a [`Path`], a transport that another crate installs and that replaces NCCL for messages.

use std::{
    panic::Location,
    sync::{Arc, PoisonError},
};

use cuda_driver::Stream;

use super::{Plan, messages::Installed};
use crate::{
    BoxedResult,
    comm::Op,
    error_text,
    group::{
        Buffer, GroupErrorKind, KindResult, ProcessGroup, Result, Work,
        calls::Calling,
        path::{self, Message, Path, PathError, Way},
    },
    operation::{Operation, Primitive},
    profile,
    record::{Call, LogEntry},
};

/// Name of the function that installs a path for [`P2pPolicy::Direct`](super::P2pPolicy::Direct). Used in
/// error messages.
const INSTALLER: &str = "lockstep-symm-mem's symm_mem::direct::install";

impl ProcessGroup {
    /// Makes the group send and receive its messages on `path` from now on. The group's members must have
    /// agreed on [`P2pPolicy::Direct`](super::P2pPolicy::Direct). This method is for crates that implement a
    /// path. Programs call such a crate's own function instead, on all members together. This method itself
    /// does not communicate. It is called once, before the group's first message.
    ///
    /// # Errors
    /// [`GroupErrorKind::PathRefused`] if the group has another policy, or has a path already. If the group is
    /// over: the error that ended it.
    pub fn install(&self, path: Arc<dyn Path>) -> Result<()> {
        self.in_call("install", self.install_path(path))
    }

    fn install_path(&self, path: Arc<dyn Path>) -> KindResult<()> {
        let health = &self.counter.health;
        health.check()?;
        let refused = |problem: String| Err(GroupErrorKind::PathRefused { path: path.name(), problem });
        if self.messages.plan != Plan::Path {
            let policy = self.messages.settings.policy;
            return refused(format!(
                "its members agreed on messages by {policy}; build it with P2pPolicy::Direct"
            ));
        }
        let mut has_path = self.messages.has_path.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *has_path, true) {
            return refused("it has one already".to_owned());
        }
        // The path is registered before it carries a message, so that the group's end always ends the path
        // too.
        health.guard_path(&path);
        let health = Arc::downgrade(health);
        let _ = self.messages.path.set(Installed { path, health });
        Ok(())
    }

    /// Returns the path of the group's messages.
    ///
    /// # Errors
    /// [`GroupErrorKind::NoPath`] if the group's path is not installed.
    pub(in crate::group) fn path(&self) -> KindResult<&dyn Path> {
        match self.messages.path.get() {
            Some(installed) => Ok(&*installed.path),
            None => Err(GroupErrorKind::NoPath { installer: INSTALLER }),
        }
    }

    /// Returns true if `op`, whose arguments were checked before, is a message that goes on the group's
    /// path.
    ///
    /// # Errors
    /// [`GroupErrorKind::NoPath`] if the group's path is not installed.
    pub(in crate::group) fn takes_path(&self, op: &Op) -> KindResult<bool> {
        // Messages that implement a collective have the collective's name in `op.call`. They stay with
        // NCCL.
        if self.messages.plan != Plan::Path || !op.is_message() {
            return Ok(false);
        }
        let (from, to) = match op.primitive {
            Primitive::Send => (self.rank, op.rank),
            Primitive::Recv => (op.rank, self.rank),
            _ => return Ok(false),
        };
        Ok(self.path()?.plan(path::Operation::Message { from, to }).is_ok())
    }

    /// Separates the ops that go on the group's path (returned first) from those that go to NCCL.
    ///
    /// # Errors
    /// [`GroupErrorKind::NoPath`] if the group's path is not installed.
    pub(in crate::group) fn part(&self, ops: &[Op]) -> KindResult<(Vec<Op>, Vec<Op>)> {
        let (mut on_path, mut on_nccl) = (Vec::new(), Vec::new());
        for op in ops {
            if self.takes_path(op)? { on_path.push(*op) } else { on_nccl.push(*op) }
        }
        Ok((on_path, on_nccl))
    }

    /// Launches one message, which is not in a batch, on the group's path.
    ///
    /// # Safety
    /// The caller upholds the contract of the op's operation.
    #[inline(never)]
    pub(in crate::group) unsafe fn message_on_path(
        &self,
        op: Op,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> BoxedResult<Work, GroupErrorKind> {
        let operation = op.call;
        let _range = profile::range(operation.name(), &self.name, op.bytes());
        let _calling = self.calling(operation);
        let mut blank = self.outstanding.blank(&self.marks, &self.counter, |_| ())?;
        blank.start(stream)?;
        let mut entry = LogEntry::new(site, None);
        // SAFETY: the caller upholds the contracts of the ops' operations.
        unsafe { self.launch_on_path(&[op], stream, &mut entry) }?;
        self.commit(blank, entry, operation.name(), false, &[op], stream)
    }

    /// Marks a call that may block in the driver as running, until the returned value is dropped.
    pub(in crate::group) fn calling(&self, operation: Operation) -> Option<Calling<'_>> {
        self.counter
            .health
            .monitor()
            .map(|monitor| monitor.calls().begin(operation.name(), self.sequence() + 1))
    }

    /// Launches `ops`, which are messages, together on the group's path, and records them in the log.
    ///
    /// # Safety
    /// The caller upholds the contracts of the ops' operations.
    pub(in crate::group) unsafe fn launch_on_path(
        &self,
        ops: &[Op],
        stream: &Stream,
        entry: &mut LogEntry,
    ) -> KindResult<()> {
        let Some((first, others)) = ops.split_first() else { return Ok(()) };
        // A path that was given up accepts no more messages. This check reports the reason why it was given
        // up.
        self.counter.health.check_work()?;
        if !self.messages.used.load(std::sync::atomic::Ordering::Relaxed) {
            self.first_message();
        }
        let messages: Vec<_> = ops.iter().map(message).collect();
        let log = &self.counter.log;
        let call = |op: &Op| Call::of(&[*op], self.size()).on_path();
        let path = self.path()?;
        log.begin(entry, &call(first));
        // SAFETY: the caller upholds the contracts of the ops' operations.
        if let Err(error) = unsafe { path.launch(&messages, stream, self.timeout()) } {
            let error = self.off_path(first.call, error);
            log.refuse(*entry);
            return Err(error);
        }
        // The other messages were launched together with the first.
        others.iter().for_each(|op| log.begin(entry, &call(op)));
        Ok(())
    }

    /// Ends the group after a batch of which only the messages on the path were launched, because other
    /// members may wait for the ops that were not launched. Returns `error`.
    #[cold]
    pub(in crate::group) fn part_launched(
        &self,
        operation: Operation,
        error: GroupErrorKind,
    ) -> GroupErrorKind {
        let health = &self.counter.health;
        // If the group is over already, its end may have caused the error.
        if !health.is_over() {
            let path = self.messages.path_name();
            health.fail(format!(
                "{}: only its messages on the {path} path were launched: {}",
                operation.name(),
                error_text(&error)
            ));
        }
        error
    }

    /// Converts the path's error for messages that were not launched. Ends the group, because peers may wait
    /// for these messages, unless the path refused the messages before it notified any peer.
    #[cold]
    fn off_path(&self, operation: Operation, error: PathError) -> GroupErrorKind {
        let health = &self.counter.health;
        let job = |rank: usize| self.ranks.get(rank).copied().unwrap_or(rank);
        let error = match error {
            PathError::Ahead { peer, messages, waited } => {
                PathError::Ahead { peer: job(peer), messages, waited }
            }
            PathError::Unreachable { peer, problem } => PathError::Unreachable { peer: job(peer), problem },
            error => error,
        };
        match error {
            PathError::Differ(difference) => {
                let (from, to) = (job(difference.from), job(difference.to));
                let difference = path::MessageDifference { from, to, ..difference };
                health.differ(difference.clone());
                GroupErrorKind::MessagesDiffer { difference: Box::new(difference) }
            }
            PathError::Refused(_) => GroupErrorKind::Path { source: Box::new(error) },
            // The reason why the group ended is known, or will be soon.
            PathError::Aborted if health.is_over() => {
                health.reason(GroupErrorKind::Path { source: Box::new(error) })
            }
            error => {
                health.fail(format!(
                    "{} on the {} path: {error}",
                    operation.name(),
                    self.messages.path_name()
                ));
                GroupErrorKind::Path { source: Box::new(error) }
            }
        }
    }
}

fn message(op: &Op) -> Message {
    let (way, ptr) = match op.primitive {
        Primitive::Send => (Way::Send, op.send),
        _ => (Way::Receive, op.receive),
    };
    Message { way, peer: op.rank, buffer: Buffer::new(ptr, op.count, op.dtype) }
}
