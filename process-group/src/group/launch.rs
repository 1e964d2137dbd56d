//! How operations are launched: checked, recorded, enqueued on the caller's stream, marked there, counted.
//!
//! Most calls are one task, and are made by [`ProcessGroup::alone`]. It is inlined into each operation's method, as is
//! what it calls: between two calls NCCL and the driver run many thousand instructions, which leave little of ours in
//! the processor's caches and branch predictors. So what a call costs is what it touches, and one straight line on which
//! the operation is known touches least. What is rare is out of line.

use std::{panic::Location, slice};

use cuda_driver::Stream;

use super::{Batch, GroupError, ProcessGroup, Result, Work, counter::Count, parts, work::Blank};
use crate::{
    Slim,
    comm::{Operation, Task, refuse_inside_group},
    graph_memory, profile,
    record::{Call, Span},
};

impl ProcessGroup {
    /// Checks and launches an operation that is one task.
    ///
    /// # Safety
    /// As for the operation's public method.
    #[inline(always)]
    #[track_caller]
    pub(super) unsafe fn alone(
        &self,
        operation: Operation,
        task: Slim<Task, GroupError>,
        stream: &Stream,
    ) -> Result<Work> {
        let (name, site) = (operation.name(), Location::caller());
        // In an open group the operation would be launched after the mark that says when it is done.
        refuse_inside_group(name)?;
        let mut task = match task {
            Ok(task) => task,
            Err(error) => return Err(self.wrong(operation, error)),
        };
        if let Err(error) = self.check_task(&mut task, stream) {
            return Err(self.wrong(operation, error));
        }
        let vigil = &self.counter.vigil;
        vigil.check()?;
        // SAFETY: the caller's contract; the task was checked.
        let launched = unsafe { self.launch_task(task, name, operation.is_message(), stream, site) };
        launched.map_err(|error| vigil.reason(*error))
    }

    /// Launches several operations under one name, on the group's communicator.
    #[track_caller]
    pub(super) fn together(
        &self,
        operation: &'static str,
        stream: &Stream,
        queue: impl FnOnce(&Batch<'_>) -> Result<()>,
    ) -> Result<Work> {
        // As above.
        refuse_inside_group(operation)?;
        let batch = Batch::new(self, stream);
        queue(&batch).inspect_err(|error| self.refused(batch.is_collective(operation), error))?;
        batch.launch(operation)
    }

    /// What one rank can check alone; notes where the task's buffers lie.
    #[inline(always)]
    pub(super) fn check_task(&self, task: &mut Task, stream: &Stream) -> Slim<(), GroupError> {
        self.communicator.check_task(task, stream, true)?;
        self.sight.look(&self.name, &self.communicator, task, stream)
    }

    /// Tells the members that compare their calls of an error in this rank's.
    #[cold]
    fn wrong(&self, operation: Operation, error: Box<GroupError>) -> GroupError {
        self.refused(!Operation::ALONE.contains(&operation), &error);
        *error
    }

    /// Launches a task, which was checked, as `operation`; `message` says that it is one by itself, which goes where its
    /// policy says.
    ///
    /// # Safety
    /// As for the task's operation.
    #[inline(always)]
    pub(super) unsafe fn launch_task(
        &self,
        task: Task,
        operation: &'static str,
        message: bool,
        stream: &Stream,
        site: &'static Location<'static>,
    ) -> Slim<Work, GroupError> {
        if task.operation.is_message() && task.rank == self.rank || self.checked.is_some() {
            self.examine(&[task], operation)?;
        }
        if message && self.messages.are_on_path() && self.takes_path(&task)? {
            // SAFETY: the caller's contract.
            return unsafe { self.launch_on_path(task, stream, site) };
        }
        let channel =
            if message { self.channel(task, stream)? } else { self.channel_of_all(operation, stream)? };
        let _range = profile::range(operation, &self.name, task.bytes());
        let mut blank = self.outstanding.blank(&self.marks, &self.counter)?;
        blank.start(stream)?;
        let (call, track) = (Call::of_one(task, self.size()), &self.counter.track);
        let begun = track.begin_one(&call, site);
        // SAFETY: the caller's contract.
        let launched = unsafe { channel.communicator.launch(&channel.task(task), stream) };
        if let Err(error) = launched {
            track.refuse_one(Call::of_one(task, self.size()), begun);
            return Err(error.into());
        }
        let span = track.launched_one(&call, begun);
        self.mark(blank, operation, stream, span, Count::of_one(&task), slice::from_ref(&task))
    }

    /// What is looked at when all that is launched together is there.
    #[cold]
    pub(super) fn examine(&self, tasks: &[Task], operation: &'static str) -> Result<()> {
        parts::to_oneself(self, tasks).inspect_err(|error| {
            self.refused(super::checked::is_collective(operation, tasks.iter()), error)
        })?;
        match &self.checked {
            Some(checked) => checked.compare(self, tasks.to_vec()),
            None => Ok(()),
        }
    }

    /// Marks the place on `stream` after a launch of a graph that captured operations of the group. A run is not seen by
    /// itself: with the mark it can be waited for with a deadline, the watchdog gives it the
    /// [time](super::Builder::work_timeout) that work has, and it counts as a call that all members make, as
    /// often. One event a run, none a call.
    ///
    /// # Errors
    /// What ended the group; [`GroupError::Comm`] for a stream of another device; [`GroupError::Driver`].
    pub fn launched(&self, stream: &Stream) -> Result<Work> {
        let vigil = &self.counter.vigil;
        vigil.check()?;
        // What is counted here and cannot be marked would set this rank apart from the others.
        self.communicator.check_stream("launched", stream).map_err(|error| *error)?;
        let blank = self.outstanding.blank(&self.marks, &self.counter)?;
        let marked = self.mark(blank, "graph", stream, Span::default(), Count::Collective, &[]);
        marked.map_err(|error| vigil.reason(*error))
    }

    /// Counts what was enqueued, which are `tasks`, and marks its place on the stream.
    #[inline(always)]
    pub(super) fn mark(
        &self,
        blank: Blank,
        operation: &'static str,
        stream: &Stream,
        span: Span,
        count: Count<'_>,
        tasks: &[Task],
    ) -> Slim<Work, GroupError> {
        let sequence = self.counter.count(count);
        let work = blank.done(operation, sequence, stream, span)?;
        // What is captured is not on the stream; it must not hide what is.
        if work.is_captured() {
            self.counter.captured(count);
            let place = self.communicator.place();
            graph_memory::note_captured(stream, tasks.iter().flat_map(|task| task.memory(place)))?;
            return Ok(work);
        }
        Ok(self.outstanding.put(work))
    }
}
