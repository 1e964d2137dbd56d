//! Operations that are checked, then launched together.

use std::{cell::RefCell, panic::Location};

use cuda_driver::Stream;

use super::{Buffer, ProcessGroup, Result, Work, checked, counter::Count};
use crate::{
    comm::{Group, ReduceOp, Task},
    profile,
    record::{Call, Recording, Span, are_one},
};

/// Queues operations for [`ProcessGroup::batch`]. Each method queues the operation of the [`ProcessGroup`] method
/// with the same name, with its errors and contract. All are launched together after the last is queued.
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
    pub(super) fn launch(&self, operation: &'static str) -> Result<Work> {
        let Self { group, stream, site, .. } = *self;
        let vigil = &group.counter.vigil;
        vigil.check()?;
        let tasks = self.tasks.borrow();
        vigil.explain(match &tasks[..] {
            // SAFETY: the contract of the method that queued the task; it was checked there.
            [task] if !group.messages.are_on_path() => unsafe {
                Ok(group.launch_task(*task, operation, false, stream, site)?)
            },
            tasks => self.launch_all(tasks, operation),
        })
    }

    fn launch_all(&self, tasks: &[Task], operation: &'static str) -> Result<Work> {
        let Self { group, stream, site, .. } = *self;
        group.examine(tasks, operation)?;
        let parted;
        let (on_path, on_nccl) = match group.messages.are_on_path() {
            true => {
                parted = group.part(tasks)?;
                (&*parted.0, &*parted.1)
            }
            false => (&[][..], tasks),
        };
        if !on_nccl.is_empty() {
            group.connected(operation, stream)?;
        }
        let bytes = tasks.iter().map(Task::bytes).fold(0, u64::saturating_add);
        let _range = profile::range(operation, &group.name, bytes);
        let _calling = group.messages.are_on_path().then(|| group.calling(operation));
        let mut blank = group.outstanding.blank(&group.marks, &group.counter)?;
        blank.start(stream)?;
        let mut span = Span::default();
        if !tasks.is_empty() {
            let batch = tasks.chunk_by(are_one).count() > 1;
            let mut recording = Recording::new(&group.counter.track, site, batch);
            // SAFETY: the contract of the method that queued the task; it was checked there.
            unsafe { group.record_on_path(on_path, stream, &mut recording) }?;
            if !on_nccl.is_empty() {
                self.launch_on_nccl(on_nccl, &mut recording).map_err(|error| match on_path {
                    [] => error,
                    _ => group.part_launched(operation, error),
                })?;
            }
            span = recording.end(operation);
        }
        let count = Count::of(tasks, checked::is_collective(operation, tasks.iter()));
        Ok(group.mark(blank, operation, stream, span, count, tasks)?)
    }

    /// Launches tasks on the group's communicator.
    fn launch_on_nccl(&self, tasks: &[Task], recording: &mut Recording<'_>) -> Result<()> {
        let Self { group, stream, .. } = *self;
        // SAFETY: the contract of the method that queued the task; it was checked there.
        let launch = |task: &Task| unsafe { group.communicator.launch(task, stream) };
        let together = Group::begin(group.nccl())?;
        let queued = tasks.chunk_by(are_one).try_for_each(|tasks| {
            recording.call(&Call::of(tasks, group.size()), || tasks.iter().try_for_each(launch))
        });
        let launched = together.finish();
        queued?;
        Ok(launched?)
    }

    /// Returns true if all members make this call, judged by the queued tasks.
    pub(super) fn is_collective(&self, operation: &str) -> bool {
        checked::is_collective(operation, self.tasks.borrow().iter())
    }

    pub(super) fn queue(&self, mut task: Task) -> Result<()> {
        self.group.check_task(&mut task, self.stream)?;
        self.tasks.borrow_mut().push(task);
        Ok(())
    }

    /// Queues all parts of one operation, or none of them.
    fn queue_all(&self, mut parts: Vec<Task>) -> Result<()> {
        parts.iter_mut().try_for_each(|task| self.group.check_task(task, self.stream))?;
        self.tasks.borrow_mut().extend(parts);
        Ok(())
    }

    /// [`ProcessGroup::all_reduce`].
    ///
    /// # Errors
    /// See [`ProcessGroup::all_reduce`].
    ///
    /// # Safety
    /// See [`ProcessGroup::all_reduce`].
    pub unsafe fn all_reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        self.queue(self.group.parts().all_reduce(send, receive, op)?)
    }

    /// [`ProcessGroup::broadcast`].
    ///
    /// # Errors
    /// See [`ProcessGroup::broadcast`].
    ///
    /// # Safety
    /// See [`ProcessGroup::broadcast`].
    pub unsafe fn broadcast(&self, buffer: Buffer, root: usize) -> Result<()> {
        self.queue(self.group.parts().broadcast(buffer, root)?)
    }

    /// [`ProcessGroup::reduce`].
    ///
    /// # Errors
    /// See [`ProcessGroup::reduce`].
    ///
    /// # Safety
    /// See [`ProcessGroup::reduce`].
    pub unsafe fn reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp, root: usize) -> Result<()> {
        self.queue(self.group.parts().reduce(send, receive, op, root)?)
    }

    /// [`ProcessGroup::all_gather`].
    ///
    /// # Errors
    /// See [`ProcessGroup::all_gather`].
    ///
    /// # Safety
    /// See [`ProcessGroup::all_gather`].
    pub unsafe fn all_gather(&self, send: Buffer, receive: Buffer) -> Result<()> {
        self.queue(self.group.parts().all_gather(send, receive)?)
    }

    /// [`ProcessGroup::all_gather_list`].
    ///
    /// # Errors
    /// See [`ProcessGroup::all_gather_list`].
    ///
    /// # Safety
    /// See [`ProcessGroup::all_gather_list`].
    pub unsafe fn all_gather_list(&self, send: Buffer, receive: &[Buffer]) -> Result<()> {
        self.queue_all(self.group.parts().all_gather_list(send, receive)?)
    }

    /// [`ProcessGroup::reduce_scatter`].
    ///
    /// # Errors
    /// See [`ProcessGroup::reduce_scatter`].
    ///
    /// # Safety
    /// See [`ProcessGroup::reduce_scatter`].
    pub unsafe fn reduce_scatter(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        self.queue(self.group.parts().reduce_scatter(send, receive, op)?)
    }

    /// [`ProcessGroup::reduce_scatter_list`].
    ///
    /// # Errors
    /// See [`ProcessGroup::reduce_scatter_list`].
    ///
    /// # Safety
    /// See [`ProcessGroup::reduce_scatter_list`].
    pub unsafe fn reduce_scatter_list(&self, send: &[Buffer], receive: Buffer, op: ReduceOp) -> Result<()> {
        self.queue_all(self.group.parts().reduce_scatter_list(send, receive, op)?)
    }

    /// [`ProcessGroup::all_to_all`].
    ///
    /// # Errors
    /// See [`ProcessGroup::all_to_all`].
    ///
    /// # Safety
    /// See [`ProcessGroup::all_to_all`].
    pub unsafe fn all_to_all(&self, send: Buffer, receive: Buffer) -> Result<()> {
        self.queue(self.group.parts().all_to_all(send, receive)?)
    }

    /// [`ProcessGroup::all_to_all_list`].
    ///
    /// # Errors
    /// See [`ProcessGroup::all_to_all_list`].
    ///
    /// # Safety
    /// See [`ProcessGroup::all_to_all_list`].
    pub unsafe fn all_to_all_list(&self, send: &[Buffer], receive: &[Buffer]) -> Result<()> {
        self.queue_all(self.group.parts().all_to_all_list(send, receive)?)
    }

    /// [`ProcessGroup::gather`].
    ///
    /// # Errors
    /// See [`ProcessGroup::gather`].
    ///
    /// # Safety
    /// See [`ProcessGroup::gather`].
    pub unsafe fn gather(&self, send: Buffer, receive: Option<Buffer>, root: usize) -> Result<()> {
        self.queue(self.group.parts().gather(send, receive, root)?)
    }

    /// [`ProcessGroup::gather_list`].
    ///
    /// # Errors
    /// See [`ProcessGroup::gather_list`].
    ///
    /// # Safety
    /// See [`ProcessGroup::gather_list`].
    pub unsafe fn gather_list(&self, send: Buffer, receive: &[Buffer], root: usize) -> Result<()> {
        self.queue_all(self.group.parts().gather_list(send, receive, root)?)
    }

    /// [`ProcessGroup::scatter`].
    ///
    /// # Errors
    /// See [`ProcessGroup::scatter`].
    ///
    /// # Safety
    /// See [`ProcessGroup::scatter`].
    pub unsafe fn scatter(&self, send: Option<Buffer>, receive: Buffer, root: usize) -> Result<()> {
        self.queue(self.group.parts().scatter(send, receive, root)?)
    }

    /// [`ProcessGroup::scatter_list`].
    ///
    /// # Errors
    /// See [`ProcessGroup::scatter_list`].
    ///
    /// # Safety
    /// See [`ProcessGroup::scatter_list`].
    pub unsafe fn scatter_list(&self, send: &[Buffer], receive: Buffer, root: usize) -> Result<()> {
        self.queue_all(self.group.parts().scatter_list(send, receive, root)?)
    }

    /// [`ProcessGroup::send`]; to this rank itself with a [`recv`](Self::recv) in the same batch.
    ///
    /// # Errors
    /// See [`ProcessGroup::send`].
    ///
    /// # Safety
    /// See [`ProcessGroup::send`].
    pub unsafe fn send(&self, buffer: Buffer, peer: usize) -> Result<()> {
        self.queue(self.group.parts().send(buffer, peer)?)
    }

    /// [`ProcessGroup::recv`]; from this rank itself with a [`send`](Self::send) in the same batch.
    ///
    /// # Errors
    /// See [`ProcessGroup::recv`].
    ///
    /// # Safety
    /// See [`ProcessGroup::recv`].
    pub unsafe fn recv(&self, buffer: Buffer, peer: usize) -> Result<()> {
        self.queue(self.group.parts().recv(buffer, peer)?)
    }
}
