//! Converts operations to NCCL tasks. Checks the arguments against the group, and against each other.

use cuda_driver::DevicePtr;

use super::{Buffer, GroupError, ProcessGroup, Result, list};
use crate::{
    BoxedResult, cold_err,
    comm::{ArgumentError, Primitive, ReduceOp, Task},
    operation::Operation,
};

/// The address in a [`Buffer`] that this rank does not have.
const NONE: DevicePtr = DevicePtr(0);

/// Converts each operation of a group, with its arguments, to tasks.
pub(super) struct Validator<'a> {
    group: &'a ProcessGroup,
}

impl ProcessGroup {
    #[inline(always)]
    pub(super) fn validate(&self) -> Validator<'_> {
        Validator { group: self }
    }
}

impl Validator<'_> {
    #[inline(always)]
    pub(super) fn all_reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
    ) -> BoxedResult<Task, GroupError> {
        self.fits(Operation::AllReduce, send, receive, (1, 1), "both must be equal")?;
        Ok(task(Primitive::AllReduce, send, receive, send.elements).reduced_by(op))
    }

    #[inline(always)]
    pub(super) fn broadcast(&self, buffer: Buffer, root: usize) -> BoxedResult<Task, GroupError> {
        Ok(task(Primitive::Broadcast, buffer, buffer, buffer.elements).with(root))
    }

    #[inline(always)]
    pub(super) fn reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        root: usize,
    ) -> BoxedResult<Task, GroupError> {
        if self.group.rank == root {
            self.fits(Operation::Reduce, send, receive, (1, 1), "both must be equal on the root")?;
        }
        Ok(task(Primitive::Reduce, send, receive, send.elements).reduced_by(op).with(root))
    }

    #[inline(always)]
    pub(super) fn all_gather(&self, send: Buffer, receive: Buffer) -> BoxedResult<Task, GroupError> {
        let rule = "receive must hold send's once for every member";
        self.fits(Operation::AllGather, send, receive, (1, self.group.size()), rule)?;
        Ok(task(Primitive::AllGather, send, receive, send.elements))
    }

    pub(super) fn all_gather_list(
        &self,
        send: Buffer,
        receive: &[Buffer],
    ) -> BoxedResult<Vec<Task>, GroupError> {
        const CALL: Operation = Operation::AllGatherList;
        let own = self.own(CALL, "receive", receive)?;
        self.fits(CALL, send, receive[own], (1, 1), "this rank's receive buffer must be as send")?;
        self.one_type(CALL, send, receive)?;
        self.apart(CALL, &[send], receive, Some((0, own)))?;
        Ok(receive
            .iter()
            .enumerate()
            .map(|(root, receive)| {
                task(Primitive::Broadcast, send, *receive, receive.elements).with(root).within(CALL)
            })
            .collect())
    }

    #[inline(always)]
    pub(super) fn reduce_scatter(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
    ) -> BoxedResult<Task, GroupError> {
        let rule = "send must hold receive's once for every member";
        self.fits(Operation::ReduceScatter, send, receive, (self.group.size(), 1), rule)?;
        Ok(task(Primitive::ReduceScatter, send, receive, receive.elements).reduced_by(op))
    }

    pub(super) fn reduce_scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        op: ReduceOp,
    ) -> BoxedResult<Vec<Task>, GroupError> {
        const CALL: Operation = Operation::ReduceScatterList;
        let own = self.own(CALL, "send", send)?;
        self.fits(CALL, send[own], receive, (1, 1), "this rank's send buffer must be as receive")?;
        self.one_type(CALL, receive, send)?;
        self.apart(CALL, send, &[receive], Some((own, 0)))?;
        Ok(send
            .iter()
            .enumerate()
            .map(|(root, send)| {
                task(Primitive::Reduce, *send, receive, send.elements).reduced_by(op).with(root).within(CALL)
            })
            .collect())
    }

    #[inline(always)]
    pub(super) fn all_to_all(&self, send: Buffer, receive: Buffer) -> BoxedResult<Task, GroupError> {
        let size = self.group.size();
        self.fits(
            Operation::AllToAll,
            send,
            receive,
            (size, size),
            "both must hold one share for every member",
        )?;
        Ok(task(Primitive::AllToAll, send, receive, send.elements / size))
    }

    pub(super) fn all_to_all_list(
        &self,
        send: &[Buffer],
        receive: &[Buffer],
    ) -> BoxedResult<Vec<Task>, GroupError> {
        const CALL: Operation = Operation::AllToAllList;
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
        Ok((0..send.len()).filter(|peer| !in_place(*peer)).flat_map(pair).collect())
    }

    #[inline(always)]
    pub(super) fn gather(
        &self,
        send: Buffer,
        receive: Option<Buffer>,
        root: usize,
    ) -> BoxedResult<Task, GroupError> {
        const CALL: Operation = Operation::Gather;
        let mut all = Buffer { ptr: NONE, ..send };
        if self.group.rank == root {
            all = receive.ok_or_else(|| cold_err(move || self.rootless(CALL, "receive", root)))?;
            let rule = "receive must hold send's once for every member";
            self.fits(CALL, send, all, (1, self.group.size()), rule)?;
        }
        Ok(task(Primitive::Gather, send, all, send.elements).with(root))
    }

    pub(super) fn gather_list(
        &self,
        send: Buffer,
        receive: &[Buffer],
        root: usize,
    ) -> BoxedResult<Vec<Task>, GroupError> {
        const CALL: Operation = Operation::GatherList;
        let own = self.group.rank;
        if own != root {
            return Ok(vec![message(CALL, send, true, root)]);
        }
        self.own(CALL, "receive", receive)?;
        self.fits(CALL, send, receive[own], (1, 1), "the root's own receive buffer must be as send")?;
        self.one_type(CALL, send, receive)?;
        self.apart(CALL, &[send], receive, Some((0, own)))?;
        let to_root = (send != receive[own]).then_some(message(CALL, send, true, own));
        let from = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, false, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || to_root.is_some();
        Ok(to_root.into_iter().chain(receive.iter().enumerate().filter(wanted).map(from)).collect())
    }

    #[inline(always)]
    pub(super) fn scatter(
        &self,
        send: Option<Buffer>,
        receive: Buffer,
        root: usize,
    ) -> BoxedResult<Task, GroupError> {
        const CALL: Operation = Operation::Scatter;
        let mut all = Buffer { ptr: NONE, ..receive };
        if self.group.rank == root {
            all = send.ok_or_else(|| cold_err(move || self.rootless(CALL, "send", root)))?;
            let rule = "send must hold receive's once for every member";
            self.fits(CALL, all, receive, (self.group.size(), 1), rule)?;
        }
        Ok(task(Primitive::Scatter, all, receive, receive.elements).with(root))
    }

    pub(super) fn scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        root: usize,
    ) -> BoxedResult<Vec<Task>, GroupError> {
        const CALL: Operation = Operation::ScatterList;
        let own = self.group.rank;
        if own != root {
            return Ok(vec![message(CALL, receive, false, root)]);
        }
        self.own(CALL, "send", send)?;
        self.fits(CALL, send[own], receive, (1, 1), "the root's own send buffer must be as receive")?;
        self.one_type(CALL, receive, send)?;
        self.apart(CALL, send, &[receive], Some((own, 0)))?;
        let from_root = (receive != send[own]).then_some(message(CALL, receive, false, own));
        let to = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, true, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || from_root.is_some();
        Ok(send.iter().enumerate().filter(wanted).map(to).chain(from_root).collect())
    }

    #[inline(always)]
    pub(super) fn send(&self, buffer: Buffer, peer: usize) -> BoxedResult<Task, GroupError> {
        Ok(message(Operation::Send, buffer, true, peer))
    }

    #[inline(always)]
    pub(super) fn recv(&self, buffer: Buffer, peer: usize) -> BoxedResult<Task, GroupError> {
        Ok(message(Operation::Recv, buffer, false, peer))
    }

    #[inline(always)]
    pub(super) fn put_signal(
        &self,
        local: Buffer,
        place: DevicePtr,
        peer: usize,
    ) -> BoxedResult<Task, GroupError> {
        let place = Buffer { ptr: place, ..local };
        Ok(task(Primitive::PutSignal, local, place, local.elements).with(peer))
    }

    #[inline(always)]
    pub(super) fn signal(&self, peer: usize) -> BoxedResult<Task, GroupError> {
        Ok(Task::signals(Primitive::Signal, 1, peer))
    }

    #[inline(always)]
    pub(super) fn wait_signals(&self, peer: usize, count: usize) -> BoxedResult<Task, GroupError> {
        Ok(Task::signals(Primitive::WaitSignals, count, peer))
    }

    /// Checks that both buffers have the same type and shares of the same size. `shares` has the number of
    /// shares in `send` and in `receive`.
    #[inline(always)]
    fn fits(
        &self,
        operation: Operation,
        send: Buffer,
        receive: Buffer,
        shares: (usize, usize),
        rule: &'static str,
    ) -> BoxedResult<(), GroupError> {
        // A buffer that cannot be divided into equal shares never fits.
        let share = |buffer: Buffer, shares: usize| {
            buffer.elements.is_multiple_of(shares).then_some(buffer.elements / shares)
        };
        let (from, to) = (share(send, shares.0), share(receive, shares.1));
        if send.dtype == receive.dtype && from.is_some() && from == to {
            return Ok(());
        }
        Err(cold_err(move || lengths(self.group, operation, send, receive, rule)))
    }

    /// Checks that `buffers` has one buffer for every member. Returns the index of this rank's buffer.
    fn own(
        &self,
        operation: Operation,
        list: &'static str,
        buffers: &[Buffer],
    ) -> BoxedResult<usize, GroupError> {
        let (found, size) = (buffers.len(), self.group.size());
        if found == size {
            return Ok(self.group.rank);
        }
        Err(cold_err(move || GroupError::ListLength {
            operation: operation.name(),
            group: self.group.name.to_string(),
            list,
            found,
            size,
        }))
    }

    /// Checks that all `buffers` have the type of `like`.
    fn one_type(&self, operation: Operation, like: Buffer, buffers: &[Buffer]) -> Result<()> {
        const RULE: &str = "all buffers must hold elements of one type";
        match buffers.iter().find(|buffer| buffer.dtype != like.dtype) {
            None => Ok(()),
            Some(other) => Err(lengths(self.group, operation, like, *other, RULE)),
        }
    }

    fn apart(
        &self,
        operation: Operation,
        send: &[Buffer],
        receive: &[Buffer],
        in_place: Option<(usize, usize)>,
    ) -> Result<()> {
        Ok(list::apart(operation.name(), list::parts(send, receive, in_place))?)
    }

    fn rootless(&self, operation: Operation, buffer: &'static str, root: usize) -> GroupError {
        GroupError::RootBuffer {
            operation: operation.name(),
            group: self.group.name.to_string(),
            buffer,
            root,
        }
    }
}

#[inline(always)]
fn task(primitive: Primitive, send: Buffer, receive: Buffer, count: usize) -> Task {
    Task::new(primitive, send.ptr, receive.ptr, count, send.dtype)
}

/// Returns one message to or from `peer`, as a part of the operation `call`. `out` is true for a send.
#[inline(always)]
fn message(call: Operation, buffer: Buffer, out: bool, peer: usize) -> Task {
    let primitive = if out { Primitive::Send } else { Primitive::Recv };
    task(primitive, buffer, buffer, buffer.elements).with(peer).within(call)
}

/// Fails if `tasks` contains a message from this rank to itself without a counterpart, or with one of another
/// length or type.
pub(super) fn to_oneself(group: &ProcessGroup, tasks: &[Task]) -> Result<()> {
    let own =
        |primitive| tasks.iter().filter(move |task| task.primitive == primitive && task.rank == group.rank);
    let (mut sent, mut received) = (own(Primitive::Send), own(Primitive::Recv));
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
                return Err(ArgumentError::ToOneself { call: half.call.name(), rank: group.rank }.into());
            }
        }
    }
}

#[cold]
fn lengths(
    group: &ProcessGroup,
    operation: Operation,
    send: Buffer,
    receive: Buffer,
    rule: &'static str,
) -> GroupError {
    GroupError::Lengths {
        operation: operation.name(),
        group: group.name.to_string(),
        size: group.size(),
        send: send.elements,
        send_type: send.dtype,
        receive: receive.elements,
        receive_type: receive.dtype,
        rule,
    }
}
