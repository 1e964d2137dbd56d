//! Batches: operations that are checked when they are queued, and launched together.

use std::{cell::RefCell, panic::Location};

use cuda_driver::Stream;

use super::{GroupErrorKind, KindResult, ProcessGroup, Result, Work, preflight::is_collective};
use crate::{
    comm::{ArgumentError, Group, Op},
    operation::Operation,
    profile,
    record::{Call, LogEntry, are_one},
};

/// Queues operations for [`ProcessGroup::batch`]. All are launched together after the last is queued. If this rank
/// sends a message to itself, the same batch must contain both the [`send`](Self::send) and the [`recv`](Self::recv).
#[derive(Debug)]
pub struct Batch<'a> {
    pub(super) group: &'a ProcessGroup,
    stream: &'a Stream,
    ops: RefCell<Vec<Op>>,
    /// The user's call site.
    site: &'static Location<'static>,
}

impl<'a> Batch<'a> {
    #[track_caller]
    pub(super) fn new(group: &'a ProcessGroup, stream: &'a Stream) -> Self {
        Self { group, stream, ops: RefCell::default(), site: Location::caller() }
    }

    /// Launches the queued ops as `operation`.
    pub(super) fn launch(&self, operation: Operation) -> KindResult<Work> {
        let Self { group, stream, site, .. } = *self;
        let health = &group.counter.health;
        health.check()?;
        let ops = self.ops.borrow();
        health.explain(match &ops[..] {
            // SAFETY: the caller of the method that queued the op upheld that method's contract. `check_op` checked
            // the op's arguments there.
            [op] if !group.messages.are_on_path() => unsafe {
                Ok(group.launch_op(*op, operation, false, stream, site)?)
            },
            ops => self.launch_all(ops, operation),
        })
    }

    fn launch_all(&self, ops: &[Op], operation: Operation) -> KindResult<Work> {
        let Self { group, stream, site, .. } = *self;
        group.examine(ops, operation, site)?;
        let parted;
        let (on_path, on_nccl) = match group.messages.are_on_path() {
            true => {
                parted = group.part(ops)?;
                (&*parted.0, &*parted.1)
            }
            false => (&[][..], ops),
        };
        if !on_nccl.is_empty() {
            group.connected(stream)?;
        }
        let bytes = ops.iter().map(Op::bytes).fold(0, u64::saturating_add);
        let _range = profile::range(operation.name(), &group.name, bytes);
        let _calling = group.messages.are_on_path().then(|| group.calling(operation));
        let mut blank = group.outstanding.blank(&group.marks, &group.counter, |_| ())?;
        blank.start(stream)?;
        let is_batch = ops.chunk_by(are_one).count() > 1;
        let mut entry = LogEntry::new(site, is_batch.then_some(operation));
        // SAFETY: the caller of the method that queued the op upheld that method's contract. `check_op` checked the
        // op's arguments there.
        unsafe { group.launch_on_path(on_path, stream, &mut entry) }?;
        if !on_nccl.is_empty() {
            self.launch_on_nccl(on_nccl, &mut entry).map_err(|error| match on_path {
                [] => error,
                _ => group.part_launched(operation, error),
            })?;
        }
        let collective = is_collective(operation, ops);
        Ok(group.commit(blank, entry, operation.name(), collective, ops, stream)?)
    }

    /// Launches `ops` on the group's communicator, in one NCCL group.
    fn launch_on_nccl(&self, ops: &[Op], entry: &mut LogEntry) -> KindResult<()> {
        let Self { group, stream, .. } = *self;
        let log = &group.counter.log;
        // SAFETY: the caller of the method that queued the op upheld that method's contract. `check_op` checked the
        // op's arguments there.
        let launch = |op: &Op| unsafe { group.communicator.launch(op, stream) };
        let together = Group::begin(group.nccl())?;
        let queued = ops.chunk_by(are_one).try_for_each(|ops| {
            log.begin(entry, &Call::of(ops, group.size()));
            ops.iter().try_for_each(launch).inspect_err(|_| log.refuse(*entry))
        });
        let launched = together.finish();
        queued?;
        Ok(launched?)
    }

    /// Returns true if `operation` with the queued ops is a call that all members make.
    pub(super) fn is_collective(&self, operation: Operation) -> bool {
        is_collective(operation, &self.ops.borrow())
    }

    pub(super) fn queue(&self, mut op: Op) -> Result<()> {
        let checked = self.group.check_op(&mut op, self.stream);
        self.group.in_call(op.call.name(), checked.map(|()| self.ops.borrow_mut().push(op)))
    }

    /// Queues all ops of one operation, or none if the check of one op fails.
    pub(super) fn queue_all(
        &self,
        operation: Operation,
        parts: Result<Vec<Op>, ArgumentError>,
    ) -> Result<()> {
        let check = |mut parts: Vec<Op>| {
            parts.iter_mut().try_for_each(|op| self.group.check_op(op, self.stream))?;
            self.ops.borrow_mut().extend(parts);
            Ok(())
        };
        self.group.in_call(operation.name(), parts.map_err(GroupErrorKind::of_argument).and_then(check))
    }
}
