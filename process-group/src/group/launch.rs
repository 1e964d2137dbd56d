//! Launches operations: checks them, logs them, enqueues them on the caller's stream, records an event after them, and
//! counts them.
//!
//! Most calls launch one task, through [`ProcessGroup::alone`]. `alone` and its callees are inlined into each
//! operation's method. Between two calls NCCL and the driver run many thousand instructions, which evict this code from
//! the processor's caches and branch predictors. The cost of a call is therefore dominated by the memory that the call
//! touches. Straight-line code in which the operation is a constant touches the least memory. Code for rare cases is
//! not inlined.

use std::{panic::Location, slice};

use cuda_driver::Stream;

use super::{Batch, GroupError, ProcessGroup, Result, Work, preflight::is_collective, validate, work::Blank};
use crate::{
    BoxedResult,
    comm::{Task, refuse_inside_group},
    graph_memory,
    operation::Operation,
    profile,
    record::{Call, LogEntry},
};

impl ProcessGroup {
    /// Checks and launches an operation that is one task, called at `site`.
    ///
    /// # Safety
    /// As for the operation's public method.
    #[inline(always)]
    pub(super) unsafe fn alone(
        &self,
        operation: Operation,
        task: BoxedResult<Task, GroupError>,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> Result<Work> {
        let name = operation.name();
        // Inside an open NCCL group, the operation would be launched after the event that marks its
        // completion.
        refuse_inside_group(name)?;
        let mut task = match task {
            Ok(task) => task,
            Err(error) => return Err(self.wrong(operation, error)),
        };
        if let Err(error) = self.check_task(&mut task, stream) {
            return Err(self.wrong(operation, error));
        }
        let health = &self.counter.health;
        health.check()?;
        // False for one-sided operations, because these use the windows of the group's communicator.
        let is_message = task.primitive.is_message();
        // SAFETY: the caller upholds the operation's contract. `check_task` has checked the task.
        let launched = unsafe { self.launch_task(task, operation, is_message, stream, site) };
        launched.map_err(|error| health.reason(*error))
    }

    /// Launches the tasks that `queue` adds to a batch, together and as one `operation`.
    #[track_caller]
    pub(super) fn together(
        &self,
        operation: Operation,
        stream: &Stream,
        queue: impl FnOnce(&Batch<'_>) -> Result<()>,
    ) -> Result<Work> {
        // See `alone` for the reason.
        refuse_inside_group(operation.name())?;
        let batch = Batch::new(self, stream);
        queue(&batch).inspect_err(|error| self.refused(batch.is_collective(operation), error))?;
        batch.launch(operation)
    }

    /// Checks the task's arguments and buffers, as far as this rank can without the others. Records the window
    /// positions of the buffers in the task.
    #[inline(always)]
    pub(super) fn check_task(&self, task: &mut Task, stream: &Stream) -> BoxedResult<(), GroupError> {
        self.communicator.check_task(task, stream, true)?;
        self.buffer_cache.look(&self.name, &self.communicator, task, stream)
    }

    /// In checked mode, notifies the other members of an error in this rank's call. Returns the error.
    #[cold]
    fn wrong(&self, operation: Operation, error: Box<GroupError>) -> GroupError {
        self.refused(!operation.is_message(), &error);
        *error
    }

    /// Launches a checked task as `operation`. `message` is true for a message outside a batch. The group's policy for
    /// messages then selects the communicator.
    ///
    /// # Safety
    /// As for the task's operation.
    #[inline(always)]
    pub(super) unsafe fn launch_task(
        &self,
        task: Task,
        operation: Operation,
        message: bool,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> BoxedResult<Work, GroupError> {
        if task.primitive.is_message() && task.rank == self.rank || self.shared_settings.checked {
            self.examine(&[task], operation, site)?;
        }
        if message && self.messages.are_on_path() && self.takes_path(&task)? {
            // SAFETY: the caller upholds the contract of the task's operation.
            return unsafe { self.message_on_path(task, stream, site) };
        }
        let channel =
            if message { self.channel(task, stream)? } else { self.channel_of_all(operation, stream)? };
        let _range = profile::range(operation.name(), &self.name, task.bytes());
        let (mut entry, tasks, log) = (LogEntry::new(site, None), slice::from_ref(&task), &self.counter.log);
        let call = Call::of(tasks, self.size());
        let begin = |ring: &mut _| log.begin_in(ring, &mut entry, &call);
        let mut blank = self.outstanding.blank(&self.marks, &self.counter, begin)?;
        let launched = blank.start(stream).and_then(|()| {
            // SAFETY: the caller upholds the contract of the task's operation.
            Ok(unsafe { channel.communicator.launch(&channel.task(task), stream) }?)
        });
        if let Err(error) = launched {
            log.refuse(entry);
            return Err(error);
        }
        self.commit(blank, entry, operation.name(), is_collective(operation, tasks), tasks, stream)
    }

    /// Checks all tasks of a launch together: messages to this rank itself, and in checked mode the other members'
    /// calls.
    #[cold]
    pub(super) fn examine(
        &self,
        tasks: &[Task],
        operation: Operation,
        site: &'static Location<'static>,
    ) -> Result<()> {
        validate::to_oneself(self, tasks)
            .inspect_err(|error| self.refused(is_collective(operation, tasks), error))?;
        if self.shared_settings.checked { self.compare(tasks, site) } else { Ok(()) }
    }

    /// Records an event on `stream` after a launch of a graph that captured operations of the group. The group cannot
    /// detect graph launches. With the returned work the caller can wait for the launch with a deadline, and the
    /// watchdog applies the [work timeout](super::Builder::work_timeout) to the launch. `track_graph_launch` counts as
    /// a call that all members make, so all members must call it for the same number of launches. The cost is one event
    /// per graph launch, and none per captured call.
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
    /// The error that ended the group; [`GroupError::Comm`] for a stream of another device;
    /// [`GroupError::Driver`].
    #[track_caller]
    pub fn track_graph_launch(&self, stream: &Stream) -> Result<Work> {
        let health = &self.counter.health;
        health.check()?;
        // The stream is checked before the call is counted. A call that is counted and then fails would make this
        // rank's count differ from the other members'.
        self.communicator.check_stream("track_graph_launch", stream).map_err(|error| *error)?;
        let blank = self.outstanding.blank(&self.marks, &self.counter, |_| ())?;
        let entry = LogEntry::new(Location::caller(), None);
        let marked = self.commit(blank, entry, "graph", true, &[], stream);
        marked.map_err(|error| health.reason(*error))
    }

    /// Commits the enqueued `tasks` to the log, and records an event after them on `stream`. `collective` is true if
    /// all members make the call.
    #[inline(always)]
    pub(super) fn commit(
        &self,
        blank: Blank,
        entry: LogEntry,
        operation: &'static str,
        collective: bool,
        tasks: &[Task],
        stream: &Stream,
    ) -> BoxedResult<Work, GroupError> {
        let log = &self.counter.log;
        let (sequence, span) = log.commit(entry, collective, tasks);
        let work = blank.done(operation, sequence, stream, span)?;
        // Captured work does not run on the stream yet. It must not replace enqueued work as the stream's latest work.
        if work.is_captured() {
            log.captured(span, tasks);
            let place = self.communicator.place();
            graph_memory::note_captured(stream, tasks.iter().flat_map(|task| task.memory(place)))?;
            return Ok(work);
        }
        Ok(self.outstanding.put(work))
    }
}
