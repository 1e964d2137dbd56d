//! Batches: operations that are checked when they are queued, and launched together.

use std::{cell::RefCell, panic::Location};

use cuda_driver::Stream;

use super::{ProcessGroup, Result, Work, preflight::is_collective};
use crate::{
    comm::{Group, Task},
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
    tasks: RefCell<Vec<Task>>,
    /// The user's call site.
    site: &'static Location<'static>,
}

impl<'a> Batch<'a> {
    #[track_caller]
    pub(super) fn new(group: &'a ProcessGroup, stream: &'a Stream) -> Self {
        Self { group, stream, tasks: RefCell::default(), site: Location::caller() }
    }

    /// Launches the queued tasks as `operation`.
    pub(super) fn launch(&self, operation: Operation) -> Result<Work> {
        let Self { group, stream, site, .. } = *self;
        let health = &group.counter.health;
        health.check()?;
        let tasks = self.tasks.borrow();
        health.explain(match &tasks[..] {
            // SAFETY: the caller of the method that queued the task upheld that method's contract. `check_task` checked
            // the task's arguments there.
            [task] if !group.messages.are_on_path() => unsafe {
                Ok(group.launch_task(*task, operation, false, stream, site)?)
            },
            tasks => self.launch_all(tasks, operation),
        })
    }

    fn launch_all(&self, tasks: &[Task], operation: Operation) -> Result<Work> {
        let Self { group, stream, site, .. } = *self;
        group.examine(tasks, operation, site)?;
        let parted;
        let (on_path, on_nccl) = match group.messages.are_on_path() {
            true => {
                parted = group.part(tasks)?;
                (&*parted.0, &*parted.1)
            }
            false => (&[][..], tasks),
        };
        if !on_nccl.is_empty() {
            group.connected(operation.name(), stream)?;
        }
        let bytes = tasks.iter().map(Task::bytes).fold(0, u64::saturating_add);
        let _range = profile::range(operation.name(), &group.name, bytes);
        let _calling = group.messages.are_on_path().then(|| group.calling(operation));
        let mut blank = group.outstanding.blank(&group.marks, &group.counter, |_| ())?;
        blank.start(stream)?;
        let is_batch = tasks.chunk_by(are_one).count() > 1;
        let mut entry = LogEntry::new(site, is_batch.then_some(operation));
        // SAFETY: the caller of the method that queued the task upheld that method's contract. `check_task` checked the
        // task's arguments there.
        unsafe { group.launch_on_path(on_path, stream, &mut entry) }?;
        if !on_nccl.is_empty() {
            self.launch_on_nccl(on_nccl, &mut entry).map_err(|error| match on_path {
                [] => error,
                _ => group.part_launched(operation, error),
            })?;
        }
        let collective = is_collective(operation, tasks);
        Ok(group.commit(blank, entry, operation.name(), collective, tasks, stream)?)
    }

    /// Launches `tasks` on the group's communicator, in one NCCL group.
    fn launch_on_nccl(&self, tasks: &[Task], entry: &mut LogEntry) -> Result<()> {
        let Self { group, stream, .. } = *self;
        let log = &group.counter.log;
        // SAFETY: the caller of the method that queued the task upheld that method's contract. `check_task` checked the
        // task's arguments there.
        let launch = |task: &Task| unsafe { group.communicator.launch(task, stream) };
        let together = Group::begin(group.nccl())?;
        let queued = tasks.chunk_by(are_one).try_for_each(|tasks| {
            log.begin(entry, &Call::of(tasks, group.size()));
            tasks.iter().try_for_each(launch).inspect_err(|_| log.refuse(*entry))
        });
        let launched = together.finish();
        queued?;
        Ok(launched?)
    }

    /// Returns true if `operation` with the queued tasks is a call that all members make.
    pub(super) fn is_collective(&self, operation: Operation) -> bool {
        is_collective(operation, &self.tasks.borrow())
    }

    pub(super) fn queue(&self, mut task: Task) -> Result<()> {
        self.group.check_task(&mut task, self.stream)?;
        self.tasks.borrow_mut().push(task);
        Ok(())
    }

    /// Queues all tasks of one operation, or none if the check of one task fails.
    pub(super) fn queue_all(&self, mut parts: Vec<Task>) -> Result<()> {
        parts.iter_mut().try_for_each(|task| self.group.check_task(task, self.stream))?;
        self.tasks.borrow_mut().extend(parts);
        Ok(())
    }
}
