//! Operations that are checked, then launched together.

use std::{cell::RefCell, panic::Location, slice};

use cuda_driver::{DevicePtr, Stream};

use super::{Buffer, GroupError, ProcessGroup, Result, Work, checked, list};
use crate::{
    comm::{ArgumentError, Group, Operation, ReduceOp, Task},
    profile,
    record::{Call, Recording, Span, are_one},
};

/// No buffer of this rank.
const NONE: DevicePtr = DevicePtr(0);

/// Operations that are being queued by [`ProcessGroup::batch`]. Each does what the method of the same name of
/// [`ProcessGroup`] does, and has its errors and its contract; all are launched when the last is queued.
#[derive(Debug)]
pub struct Batch<'a> {
    group: &'a ProcessGroup,
    stream: &'a Stream,
    tasks: RefCell<Tasks>,
    /// Whether it is one message by itself.
    message: bool,
    /// Where the user called.
    site: &'static Location<'static>,
}

/// What was queued. One alone needs no allocation.
#[derive(Debug, Default)]
struct Tasks {
    first: Option<Task>,
    rest: Vec<Task>,
}

impl Tasks {
    fn iter(&self) -> impl Iterator<Item = &Task> {
        self.first.iter().chain(&self.rest)
    }
}

impl<'a> Batch<'a> {
    #[track_caller]
    pub(super) fn new(group: &'a ProcessGroup, stream: &'a Stream, message: bool) -> Self {
        Self { group, stream, tasks: RefCell::default(), message, site: Location::caller() }
    }

    /// Launches what was queued, as `operation`.
    pub(super) fn launch(&self, operation: &'static str) -> Result<Work> {
        let vigil = &self.group.counter.vigil;
        vigil.check()?;
        let tasks = self.tasks.borrow();
        vigil.explain(match &*tasks {
            Tasks { first: Some(task), rest } if rest.is_empty() => self.launch_one(task, operation),
            tasks => self.launch_all(tasks, operation),
        })
    }

    /// What most calls are: nothing is allocated, and nothing done twice.
    fn launch_one(&self, task: &Task, operation: &'static str) -> Result<Work> {
        let Self { group, stream, message, site, .. } = self;
        let alone = slice::from_ref(task);
        if task.operation.is_message() && task.rank == group.rank || group.checked.is_some() {
            self.examine(alone, operation)?;
        }
        let channel =
            if *message { group.channel(task, stream)? } else { group.channel_of_all(operation, stream)? };
        let _range = profile::range(operation, &group.name, task.bytes());
        let mut blank = group.outstanding.blank(&group.marks, &group.counter)?;
        blank.start(stream)?;
        let call = Call::of(alone, group.size());
        // SAFETY: the contract of the method that queued the task; it was checked there.
        let launch = || unsafe {
            match channel.peer {
                None => channel.communicator.launch(task, stream),
                Some(peer) => channel.communicator.launch(&task.with(peer), stream),
            }
        };
        let span = group.counter.track.one(&call, site, launch)?;
        group.mark(blank, operation, stream, span, !task.operation.is_one_sided())
    }

    fn launch_all(&self, tasks: &Tasks, operation: &'static str) -> Result<Work> {
        let Self { group, stream, site, .. } = self;
        let tasks: Vec<_> = tasks.iter().copied().collect();
        self.examine(&tasks, operation)?;
        if !tasks.is_empty() {
            group.connected(operation, stream)?;
        }
        let bytes = tasks.iter().map(Task::bytes).fold(0, u64::saturating_add);
        let _range = profile::range(operation, &group.name, bytes);
        let mut blank = group.outstanding.blank(&group.marks, &group.counter)?;
        blank.start(stream)?;
        let mut span = Span::default();
        if !tasks.is_empty() {
            let batch = tasks.chunk_by(are_one).count() > 1;
            let mut recording = Recording::new(&group.counter.track, site, batch);
            // SAFETY: the contract of the method that queued the task; it was checked there.
            let launch = |task: &Task| unsafe { group.communicator.launch(task, stream) };
            let together = Group::begin(group.nccl())?;
            let queued = tasks.chunk_by(are_one).try_for_each(|tasks| {
                recording.call(&Call::of(tasks, group.size()), || tasks.iter().try_for_each(launch))
            });
            let launched = together.finish();
            queued?;
            launched?;
            span = recording.end(operation);
        }
        // Members need not make equally many one-sided calls.
        let counted = tasks.is_empty() || tasks.iter().any(|task| !task.operation.is_one_sided());
        group.mark(blank, operation, stream, span, counted)
    }

    /// What is looked at when all is queued.
    #[cold]
    fn examine(&self, tasks: &[Task], operation: &'static str) -> Result<()> {
        let group = self.group;
        to_oneself(group, tasks)
            .inspect_err(|error| group.refused(checked::is_collective(operation, tasks.iter()), error))?;
        match &group.checked {
            Some(checked) => checked.compare(group, tasks.to_vec()),
            None => Ok(()),
        }
    }

    /// Whether all members make the call, as far as what was queued tells.
    pub(super) fn is_collective(&self, operation: &str) -> bool {
        checked::is_collective(operation, self.tasks.borrow().iter())
    }

    pub(super) fn queue(&self, task: Task) -> Result<()> {
        self.check(&task)?;
        self.push(task);
        Ok(())
    }

    /// Queues what one operation is made of, or nothing of it.
    fn queue_all(&self, parts: impl IntoIterator<Item = Task>) -> Result<()> {
        let parts: Vec<_> = parts.into_iter().collect();
        parts.iter().try_for_each(|task| self.check(task))?;
        parts.into_iter().for_each(|task| self.push(task));
        Ok(())
    }

    fn check(&self, task: &Task) -> Result<()> {
        let Self { group, stream, .. } = self;
        group.communicator.check_task(task, stream, true)?;
        group.sight.look(&group.name, &group.communicator, task)
    }

    fn push(&self, task: Task) {
        let mut tasks = self.tasks.borrow_mut();
        match &tasks.first {
            None => tasks.first = Some(task),
            Some(_) => tasks.rest.push(task),
        }
    }

    /// [`ProcessGroup::all_reduce`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        self.fits("all_reduce", send, receive, (1, 1), "both must be equal")?;
        self.queue(task(Operation::AllReduce, send, receive, send.elements).reduced_by(op))
    }

    /// [`ProcessGroup::broadcast`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn broadcast(&self, buffer: Buffer, root: usize) -> Result<()> {
        self.queue(task(Operation::Broadcast, buffer, buffer, buffer.elements).with(root))
    }

    /// [`ProcessGroup::reduce`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp, root: usize) -> Result<()> {
        if self.group.rank == root {
            self.fits("reduce", send, receive, (1, 1), "both must be equal on the root")?;
        }
        self.queue(task(Operation::Reduce, send, receive, send.elements).reduced_by(op).with(root))
    }

    /// [`ProcessGroup::all_gather`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_gather(&self, send: Buffer, receive: Buffer) -> Result<()> {
        let rule = "receive must hold send's once for every member";
        self.fits("all_gather", send, receive, (1, self.group.size()), rule)?;
        self.queue(task(Operation::AllGather, send, receive, send.elements))
    }

    /// [`ProcessGroup::all_gather_list`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_gather_list(&self, send: Buffer, receive: &[Buffer]) -> Result<()> {
        const CALL: &str = "all_gather_list";
        let own = self.own(CALL, "receive", receive)?;
        self.fits(CALL, send, receive[own], (1, 1), "this rank's receive buffer must be as send")?;
        self.one_type(CALL, send, receive)?;
        self.apart(CALL, &[send], receive, Some((0, own)))?;
        self.queue_all(receive.iter().enumerate().map(|(root, receive)| {
            task(Operation::Broadcast, send, *receive, receive.elements).with(root).within(CALL)
        }))
    }

    /// [`ProcessGroup::reduce_scatter`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reduce_scatter(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Result<()> {
        let rule = "send must hold receive's once for every member";
        self.fits("reduce_scatter", send, receive, (self.group.size(), 1), rule)?;
        self.queue(task(Operation::ReduceScatter, send, receive, receive.elements).reduced_by(op))
    }

    /// [`ProcessGroup::reduce_scatter_list`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reduce_scatter_list(&self, send: &[Buffer], receive: Buffer, op: ReduceOp) -> Result<()> {
        const CALL: &str = "reduce_scatter_list";
        let own = self.own(CALL, "send", send)?;
        self.fits(CALL, send[own], receive, (1, 1), "this rank's send buffer must be as receive")?;
        self.one_type(CALL, receive, send)?;
        self.apart(CALL, send, &[receive], Some((own, 0)))?;
        self.queue_all(send.iter().enumerate().map(|(root, send)| {
            task(Operation::Reduce, *send, receive, send.elements).reduced_by(op).with(root).within(CALL)
        }))
    }

    /// [`ProcessGroup::all_to_all`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_to_all(&self, send: Buffer, receive: Buffer) -> Result<()> {
        let size = self.group.size();
        self.fits("all_to_all", send, receive, (size, size), "both must hold one share for every member")?;
        self.queue(task(Operation::AllToAll, send, receive, send.elements / size))
    }

    /// [`ProcessGroup::all_to_all_list`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_to_all_list(&self, send: &[Buffer], receive: &[Buffer]) -> Result<()> {
        const CALL: &str = "all_to_all_list";
        let own = self.own(CALL, "send", send)?;
        self.own(CALL, "receive", receive)?;
        self.fits(
            CALL,
            send[own],
            receive[own],
            (1, 1),
            "this rank's share for itself must be equal in both",
        )?;
        self.one_type(CALL, send[own], send)?;
        self.one_type(CALL, send[own], receive)?;
        self.apart(CALL, send, receive, Some((own, own)))?;
        let in_place = |peer: usize| peer == own && send[own] == receive[own];
        let pair =
            |peer: usize| [message(CALL, send[peer], true, peer), message(CALL, receive[peer], false, peer)];
        self.queue_all((0..send.len()).filter(|peer| !in_place(*peer)).flat_map(pair))
    }

    /// [`ProcessGroup::gather`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn gather(&self, send: Buffer, receive: Option<Buffer>, root: usize) -> Result<()> {
        const CALL: &str = "gather";
        let mut all = Buffer { ptr: NONE, ..send };
        if self.group.rank == root {
            all = receive.ok_or_else(|| self.rootless(CALL, "receive", root))?;
            let rule = "receive must hold send's once for every member";
            self.fits(CALL, send, all, (1, self.group.size()), rule)?;
        }
        self.queue(task(Operation::Gather, send, all, send.elements).with(root))
    }

    /// [`ProcessGroup::gather_list`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn gather_list(&self, send: Buffer, receive: &[Buffer], root: usize) -> Result<()> {
        const CALL: &str = "gather_list";
        let own = self.group.rank;
        if own != root {
            return self.queue(message(CALL, send, true, root));
        }
        self.own(CALL, "receive", receive)?;
        self.fits(CALL, send, receive[own], (1, 1), "the root's own receive buffer must be as send")?;
        self.one_type(CALL, send, receive)?;
        self.apart(CALL, &[send], receive, Some((0, own)))?;
        let to_root = (send != receive[own]).then_some(message(CALL, send, true, own));
        let from = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, false, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || to_root.is_some();
        self.queue_all(to_root.into_iter().chain(receive.iter().enumerate().filter(wanted).map(from)))
    }

    /// [`ProcessGroup::scatter`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn scatter(&self, send: Option<Buffer>, receive: Buffer, root: usize) -> Result<()> {
        const CALL: &str = "scatter";
        let mut all = Buffer { ptr: NONE, ..receive };
        if self.group.rank == root {
            all = send.ok_or_else(|| self.rootless(CALL, "send", root))?;
            let rule = "send must hold receive's once for every member";
            self.fits(CALL, all, receive, (self.group.size(), 1), rule)?;
        }
        self.queue(task(Operation::Scatter, all, receive, receive.elements).with(root))
    }

    /// [`ProcessGroup::scatter_list`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn scatter_list(&self, send: &[Buffer], receive: Buffer, root: usize) -> Result<()> {
        const CALL: &str = "scatter_list";
        let own = self.group.rank;
        if own != root {
            return self.queue(message(CALL, receive, false, root));
        }
        self.own(CALL, "send", send)?;
        self.fits(CALL, send[own], receive, (1, 1), "the root's own send buffer must be as receive")?;
        self.one_type(CALL, receive, send)?;
        self.apart(CALL, send, &[receive], Some((own, 0)))?;
        let from_root = (receive != send[own]).then_some(message(CALL, receive, false, own));
        let to = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, true, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || from_root.is_some();
        self.queue_all(send.iter().enumerate().filter(wanted).map(to).chain(from_root))
    }

    /// [`ProcessGroup::send`]; to this rank itself with a [`recv`](Self::recv) in the same batch.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn send(&self, buffer: Buffer, peer: usize) -> Result<()> {
        self.queue(message("send", buffer, true, peer))
    }

    /// [`ProcessGroup::recv`]; from this rank itself with a [`send`](Self::send) in the same batch.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn recv(&self, buffer: Buffer, peer: usize) -> Result<()> {
        self.queue(message("recv", buffer, false, peer))
    }

    /// Checks two buffers that hold so many shares against each other.
    fn fits(
        &self,
        operation: &'static str,
        send: Buffer,
        receive: Buffer,
        shares: (usize, usize),
        rule: &'static str,
    ) -> Result<()> {
        // A share that is no whole number of elements never fits.
        let share = |buffer: Buffer, shares: usize| {
            buffer.elements.is_multiple_of(shares).then_some(buffer.elements / shares)
        };
        let (from, to) = (share(send, shares.0), share(receive, shares.1));
        if send.dtype == receive.dtype && from.is_some() && from == to {
            return Ok(());
        }
        Err(lengths(self.group, operation, send, receive, rule))
    }

    /// Checks that a list has one buffer for every member; where this rank's lies.
    fn own(&self, operation: &'static str, list: &'static str, buffers: &[Buffer]) -> Result<usize> {
        let (found, size) = (buffers.len(), self.group.size());
        if found == size {
            return Ok(self.group.rank);
        }
        Err(GroupError::ListLength { operation, group: self.group.name.to_string(), list, found, size })
    }

    /// Checks that a list holds elements of one type.
    fn one_type(&self, operation: &'static str, like: Buffer, buffers: &[Buffer]) -> Result<()> {
        match buffers.iter().find(|buffer| buffer.dtype != like.dtype) {
            None => Ok(()),
            Some(other) => Err(lengths(
                self.group,
                operation,
                like,
                *other,
                "all buffers must hold elements of one type",
            )),
        }
    }

    fn apart(
        &self,
        operation: &'static str,
        send: &[Buffer],
        receive: &[Buffer],
        in_place: Option<(usize, usize)>,
    ) -> Result<()> {
        Ok(list::apart(operation, list::parts(send, receive, in_place))?)
    }

    fn rootless(&self, operation: &'static str, buffer: &'static str, root: usize) -> GroupError {
        GroupError::RootBuffer { operation, group: self.group.name.to_string(), buffer, root }
    }
}

pub(super) fn task(operation: Operation, send: Buffer, receive: Buffer, count: usize) -> Task {
    Task::new(operation, send.ptr, receive.ptr, count, send.dtype)
}

/// One message of the operation `call`, out of `buffer` or into it.
fn message(call: &'static str, buffer: Buffer, out: bool, peer: usize) -> Task {
    let operation = if out { Operation::Send } else { Operation::Recv };
    task(operation, buffer, buffer, buffer.elements).with(peer).within(call)
}

/// Refuses messages to this rank itself that have no other half, or another length.
fn to_oneself(group: &ProcessGroup, tasks: &[Task]) -> Result<()> {
    let own =
        |operation| tasks.iter().filter(move |task| task.operation == operation && task.rank == group.rank);
    let (mut sent, mut received) = (own(Operation::Send), own(Operation::Recv));
    loop {
        match (sent.next(), received.next()) {
            (None, None) => return Ok(()),
            (Some(from), Some(to)) if (from.count, from.dtype) == (to.count, to.dtype) => {}
            (Some(from), Some(to)) => {
                let buffer = |task: &Task| Buffer::new(task.send, task.count, task.dtype);
                let rule = "a message to oneself is received as it is sent";
                return Err(lengths(group, from.call, buffer(from), buffer(to), rule));
            }
            (Some(half), None) | (None, Some(half)) => {
                return Err(ArgumentError::ToOneself { call: half.call, rank: group.rank }.into());
            }
        }
    }
}

fn lengths(
    group: &ProcessGroup,
    operation: &'static str,
    send: Buffer,
    receive: Buffer,
    rule: &'static str,
) -> GroupError {
    GroupError::Lengths {
        operation,
        group: group.name.to_string(),
        size: group.size(),
        send: send.elements,
        send_type: send.dtype,
        receive: receive.elements,
        receive_type: receive.dtype,
        rule,
    }
}
