//! Launches operations: checks them, logs them, enqueues them on the caller's stream, records an event after them, and
//! counts them.
//!
//! Most calls launch one op, through [`ProcessGroup::alone`]. `alone` and its callees are inlined into each
//! operation's method. Between two calls NCCL and the driver run many thousand instructions, which evict this code from
//! the processor's caches and branch predictors. The cost of a call is therefore dominated by the memory that the call
//! touches. Straight-line code in which the operation is a constant touches the least memory. Code for rare cases is
//! not inlined.

use std::{panic::Location, slice};

use cuda_driver::{Stream, graph_memory};

use super::{
    Batch, GroupError, GroupErrorKind, KindResult, ProcessGroup, Result, Work, error::CallContext,
    preflight::is_collective, work::Blank,
};
use crate::{
    BoxedResult,
    comm::{CommError, Op, refuse_inside_group},
    operation::Operation,
    profile,
    record::{Call, LogEntry},
};

/// The operation in errors of [`ProcessGroup::track_graph_launch`].
const TRACK_GRAPH_LAUNCH: &str = "track_graph_launch";

impl ProcessGroup {
    /// Checks and launches an operation that is one op, called at `site`.
    ///
    /// # Safety
    /// As for the operation's public method.
    #[inline(always)]
    pub(super) unsafe fn alone(
        &self,
        op: Op,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> Result<Work> {
        let operation = op.call;
        // SAFETY: the caller's contract.
        let launched = unsafe { self.launch_alone(op, stream, site) };
        launched.map_err(|error| self.not_launched(operation, error))
    }

    /// Like [`alone`](Self::alone). The error does not name the call.
    ///
    /// # Safety
    /// As for [`alone`](Self::alone).
    #[inline(always)]
    unsafe fn launch_alone(
        &self,
        mut op: Op,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> BoxedResult<Work, GroupErrorKind> {
        let operation = op.call;
        // Inside an open NCCL group, the operation would be launched after the event that marks its
        // completion.
        refuse_inside_group(operation.name())?;
        if let Err(error) = self.check_op(&mut op, stream) {
            return Err(self.wrong(operation, error));
        }
        let health = &self.counter.health;
        health.check()?;
        // False for one-sided operations, because these use the windows of the group's communicator.
        let is_message = op.primitive.is_message();
        // SAFETY: the caller upholds the operation's contract. `check_op` has checked the op.
        let launched = unsafe { self.launch_op(op, operation, is_message, stream, site) };
        launched.map_err(|error| Box::new(health.reason(*error)))
    }

    /// Adds the group and the operation to the error of a launch.
    #[cold]
    fn not_launched(&self, operation: Operation, error: Box<GroupErrorKind>) -> GroupError {
        CallContext::of_call(&self.name, operation.name()).error(error)
    }

    /// Launches the ops that `queue` adds to a batch, together and as one `operation`.
    #[track_caller]
    pub(super) fn together(
        &self,
        operation: Operation,
        stream: &Stream,
        queue: impl FnOnce(&Batch<'_>) -> Result<()>,
    ) -> Result<Work> {
        let batch = Batch::new(self, stream);
        // See `launch_alone` for the reason.
        let allowed = refuse_inside_group(operation.name()).map_err(GroupError::from);
        let queued = allowed.and_then(|()| {
            queue(&batch)
                .inspect_err(|error| self.refused(operation, batch.is_collective(operation), error.kind()))
        });
        self.in_call(operation.name(), queued.and_then(|()| Ok(batch.launch(operation)?)))
    }

    /// Checks the op's arguments and buffers, as far as this rank can without the others. Records the window
    /// positions of the buffers in the op.
    #[inline(always)]
    pub(super) fn check_op(&self, op: &mut Op, stream: &Stream) -> BoxedResult<(), GroupErrorKind> {
        self.communicator.check_op(op, stream, true).map_err(|error| self.refused_by_check(*error))?;
        self.buffer_cache.look(&self.communicator, op, stream)
    }

    #[cold]
    fn refused_by_check(&self, error: CommError) -> Box<GroupErrorKind> {
        Box::new(match error {
            CommError::Argument(source) => GroupErrorKind::of_argument(source),
            other => other.into(),
        })
    }

    /// In checked mode, notifies the other members of an error in this rank's call. Returns the error.
    #[cold]
    fn wrong(&self, operation: Operation, error: Box<GroupErrorKind>) -> Box<GroupErrorKind> {
        self.refused(operation, !operation.is_message(), &error);
        error
    }

    /// Launches a checked op as `operation`. `message` is true for a message outside a batch. The group's policy for
    /// messages then selects the communicator.
    ///
    /// # Safety
    /// As for the op's operation.
    #[inline(always)]
    pub(super) unsafe fn launch_op(
        &self,
        op: Op,
        operation: Operation,
        message: bool,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> BoxedResult<Work, GroupErrorKind> {
        if op.primitive.is_message() && op.rank == self.rank || self.shared_settings.checked {
            self.examine(&[op], operation, site)?;
        }
        if message && self.messages.are_on_path() && self.takes_path(&op)? {
            // SAFETY: the caller upholds the contract of the op's operation.
            return unsafe { self.message_on_path(op, stream, site) };
        }
        let channel = if message { self.channel(op, stream)? } else { self.channel_of_all(stream)? };
        let _range = profile::range(operation.name(), &self.name, op.bytes());
        let (mut entry, ops, log) = (LogEntry::new(site, None), slice::from_ref(&op), &self.counter.log);
        let call = Call::of(ops, self.size());
        let begin = |ring: &mut _| log.begin_in(ring, &mut entry, &call);
        let mut blank = self.outstanding.blank(&self.marks, &self.counter, begin)?;
        let launched = blank.start(stream).and_then(|()| {
            // SAFETY: the caller upholds the contract of the op's operation.
            Ok(unsafe { channel.communicator.launch(&channel.op(op), stream) }?)
        });
        if let Err(error) = launched {
            log.refuse(entry);
            return Err(error);
        }
        self.commit(blank, entry, operation.name(), is_collective(operation, ops), ops, stream)
    }

    /// Checks all ops of a launch together: messages to this rank itself must match, and in checked mode the ops must
    /// match the calls of the other members.
    #[cold]
    pub(super) fn examine(
        &self,
        ops: &[Op],
        operation: Operation,
        site: &'static Location<'static>,
    ) -> KindResult<()> {
        self.ops()
            .to_oneself(ops)
            .map_err(GroupErrorKind::of_argument)
            .inspect_err(|error| self.refused(operation, is_collective(operation, ops), error))?;
        if self.shared_settings.checked { self.compare(ops, site) } else { Ok(()) }
    }

    /// Records an event on `stream` after a launch of a graph that captured operations of the group. The group cannot
    /// detect graph launches. With the returned work the caller can wait for the launch with a deadline, and the
    /// watchdog applies the [work timeout](super::Builder::work_timeout) to the launch. `track_graph_launch` counts as
    /// a call that all members make, so all members must call it for the same number of launches. A member that has
    /// marked fewer launches is named when the work of the others is late. The cost is one event per graph launch, and
    /// none per captured call.
    ///
    /// ```no_run
    /// # use process_group::comm::ReduceOp;
    /// # fn rank(world: process_group::ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// # let stream = cuda_driver::Stream::new(world.context(), cuda_driver::StreamFlags::NON_BLOCKING)?;
    /// let mut values = stream.clone_htod(&[1f32; 1024])?;
    /// let capture = stream.begin_capture(cuda_driver::graph::CaptureMode::ThreadLocal)?;
    /// world.all_reduce(&mut values, ReduceOp::Sum)?; // recorded, does not run yet
    /// let graph = capture.end()?.instantiate()?;
    /// for _ in 0..10 {
    ///     stream.launch(&graph)?;
    ///     world.track_graph_launch(&stream)?.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error that ended the group; [`GroupErrorKind::Argument`] for a stream of another device;
    /// [`GroupErrorKind::Driver`].
    #[track_caller]
    pub fn track_graph_launch(&self, stream: &Stream) -> Result<Work> {
        self.in_call(TRACK_GRAPH_LAUNCH, self.mark_graph_launch(stream, Location::caller()))
    }

    fn mark_graph_launch(
        &self,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> BoxedResult<Work, GroupErrorKind> {
        let health = &self.counter.health;
        health.check()?;
        // The stream is checked before the call is counted. A call that is counted and then fails would make this
        // rank's count differ from the other members'.
        self.communicator
            .check_stream(TRACK_GRAPH_LAUNCH, stream)
            .map_err(|error| self.refused_by_check(*error))?;
        let blank = self.outstanding.blank(&self.marks, &self.counter, |_| ())?;
        let entry = LogEntry::new(site, None);
        self.counter.log.count_graph_launch();
        let marked = self.commit(blank, entry, "graph", true, &[], stream);
        marked.map_err(|error| Box::new(health.reason(*error)))
    }

    /// Commits the enqueued `ops` to the log, and records an event after them on `stream`. `collective` is true if
    /// all members make the call.
    #[inline(always)]
    pub(super) fn commit(
        &self,
        blank: Blank,
        entry: LogEntry,
        operation: &'static str,
        collective: bool,
        ops: &[Op],
        stream: &Stream,
    ) -> BoxedResult<Work, GroupErrorKind> {
        let log = &self.counter.log;
        let (sequence, span) = log.commit(entry, collective, ops);
        let work = blank.done(operation, sequence, stream, span)?;
        // Captured work does not run on the stream yet. It must not replace enqueued work as the stream's latest work.
        if work.is_captured() {
            log.captured(span, ops);
            let place = self.communicator.place();
            graph_memory::note_captured(stream, ops.iter().flat_map(|op| op.memory(place)))?;
            return Ok(work);
        }
        Ok(self.outstanding.put(work))
    }
}
