//! Operations of a group on raw addresses, as single calls and as parts of a batch.

use std::panic::Location;

use cuda_driver::{DevicePtr, Stream};

use super::{Batch, Buffer, ProcessGroup, Result, Work};
use crate::{
    comm::{Given, Op, ReduceOp},
    operation::{Operation, Primitive},
};

/// The operations of a group on raw addresses, from [`ProcessGroup::raw`]. The operations on
/// [slices](cuda_driver::DeviceSlice) are methods of the group itself, and are safe.
///
/// Every operation enqueues work on `stream` and returns. All members make the same calls in the same order.
/// While `stream` captures, the operation becomes a part of the graph.
///
/// An error of the call or of its [`Work`] does not mean that the device has finished with the buffers. Synchronise the
/// stream before they are freed, or give them to [`Work::keep`].
///
/// An operation that divides a buffer into shares takes the buffer as a whole. An operation whose name ends
/// in `_list` takes one buffer per member, in the order of ranks, each of any length and at any address;
/// [`Buffer::split`] makes such a list from split sizes. The NCCL calls of a `_list` operation do not depend
/// on the addresses of the buffers, which may differ between ranks. The only exception is a share that a rank
/// sends to itself: in place, it is not sent.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a>(&'a ProcessGroup);

impl ProcessGroup {
    /// Returns the operations on raw addresses, which are `unsafe`.
    #[must_use]
    pub fn raw(&self) -> Raw<'_> {
        Raw(self)
    }

    #[inline(always)]
    pub(super) fn ops(&self) -> Ops {
        Ops { rank: self.rank, size: self.size() }
    }

    /// Launches several operations together, as one call with one number and one [`Work`]: for example
    /// messages in both directions, or several buckets to reduce. Each operation is checked when it is
    /// queued. All are launched after the closure has returned.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
    /// # fn exchange(group: &ProcessGroup, from: Buffer, to: Buffer, stream: &cuda_driver::Stream)
    /// # -> Result<(), GroupError> {
    /// let peer = group.rank() ^ 1;
    /// let work = group.batch(stream, |batch| {
    ///     // SAFETY: the buffers outlive the work.
    ///     unsafe {
    ///         batch.send(from, peer)?;
    ///         batch.recv(to, peer)
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The closure's error, after which nothing was launched. Otherwise as for the operations of [`Raw`].
    #[doc(alias = "coalescing")]
    #[doc(alias = "batch_isend_irecv")]
    #[track_caller]
    pub fn batch(&self, stream: &Stream, queue: impl FnOnce(&Batch<'_>) -> Result<()>) -> Result<Work> {
        self.together(Operation::Batch, stream, queue)
    }
}

/// The address of a buffer that this rank does not have.
const NONE: DevicePtr = DevicePtr(0);

/// Makes the [`Op`] of each operation of a group in which this rank is `rank` of `size`.
pub(super) struct Ops {
    pub(super) rank: usize,
    pub(super) size: usize,
}

impl Ops {
    #[inline(always)]
    pub(super) fn all_reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Op {
        on_buffers(Primitive::AllReduce, send, receive, send.elements).reduced_by(op)
    }

    #[inline(always)]
    pub(super) fn broadcast(&self, buffer: Buffer, root: usize) -> Op {
        on_buffers(Primitive::Broadcast, buffer, buffer, buffer.elements).with(root)
    }

    #[inline(always)]
    pub(super) fn reduce(&self, send: Buffer, receive: Buffer, op: ReduceOp, root: usize) -> Op {
        on_buffers(Primitive::Reduce, send, receive, send.elements).reduced_by(op).with(root)
    }

    #[inline(always)]
    pub(super) fn all_gather(&self, send: Buffer, receive: Buffer) -> Op {
        on_buffers(Primitive::AllGather, send, receive, send.elements)
    }

    #[inline(always)]
    pub(super) fn reduce_scatter(&self, send: Buffer, receive: Buffer, op: ReduceOp) -> Op {
        on_buffers(Primitive::ReduceScatter, send, receive, receive.elements).reduced_by(op)
    }

    #[inline(always)]
    pub(super) fn all_to_all(&self, send: Buffer, receive: Buffer) -> Op {
        on_buffers(Primitive::AllToAll, send, receive, send.elements / self.size)
    }

    #[inline(always)]
    pub(super) fn gather(&self, send: Buffer, receive: Option<Buffer>, root: usize) -> Op {
        let receive = receive.filter(|_| self.rank == root);
        let all = receive.unwrap_or(Buffer { ptr: NONE, ..send });
        let elements = receive.map(|receive| receive.elements);
        Op::new(Primitive::Gather, send.ptr, all.ptr, send.elements, send.dtype)
            .with(root)
            .given(send.into(), Given { elements, dtype: all.dtype })
    }

    #[inline(always)]
    pub(super) fn scatter(&self, send: Option<Buffer>, receive: Buffer, root: usize) -> Op {
        let send = send.filter(|_| self.rank == root);
        let all = send.unwrap_or(Buffer { ptr: NONE, ..receive });
        let elements = send.map(|send| send.elements);
        Op::new(Primitive::Scatter, all.ptr, receive.ptr, receive.elements, receive.dtype)
            .with(root)
            .given(Given { elements, dtype: all.dtype }, receive.into())
    }

    #[inline(always)]
    pub(super) fn send(&self, buffer: Buffer, peer: usize) -> Op {
        message(Operation::Send, buffer, true, peer)
    }

    #[inline(always)]
    pub(super) fn recv(&self, buffer: Buffer, peer: usize) -> Op {
        message(Operation::Recv, buffer, false, peer)
    }

    #[inline(always)]
    pub(super) fn put_signal(&self, local: Buffer, place: DevicePtr, peer: usize) -> Op {
        Op::new(Primitive::PutSignal, local.ptr, place, local.elements, local.dtype).with(peer)
    }

    #[inline(always)]
    pub(super) fn signal(&self, peer: usize) -> Op {
        Op::signals(Primitive::Signal, 1, peer)
    }

    #[inline(always)]
    pub(super) fn wait_signals(&self, peer: usize, count: usize) -> Op {
        Op::signals(Primitive::WaitSignals, count, peer)
    }
}

#[inline(always)]
pub(super) fn on_buffers(primitive: Primitive, send: Buffer, receive: Buffer, count: usize) -> Op {
    Op::new(primitive, send.ptr, receive.ptr, count, send.dtype).given(send.into(), receive.into())
}

/// Returns one message to or from `peer`, as a part of the operation `call`. `out` is true for a send.
#[inline(always)]
pub(super) fn message(call: Operation, buffer: Buffer, out: bool, peer: usize) -> Op {
    let primitive = if out { Primitive::Send } else { Primitive::Recv };
    Op::new(primitive, buffer.ptr, buffer.ptr, buffer.elements, buffer.dtype).with(peer).within(call)
}

impl From<Buffer> for Given {
    #[inline(always)]
    fn from(buffer: Buffer) -> Self {
        Self { elements: Some(buffer.elements), dtype: buffer.dtype }
    }
}

/// Defines each operation as a method of [`Raw`] and as a method of [`Batch`]. A `single` operation becomes
/// one op, a `list` operation several.
macro_rules! operations {
    ($($(#[$about:meta])* $kind:ident $method:ident($($argument:ident: $type:ty),*) => $operation:ident;)*) => {
        impl Raw<'_> {$(
            $(#[$about])*
            ///
            /// # Errors
            /// Lengths, types, ranks and addresses are checked before anything is enqueued:
            /// [`GroupErrorKind::Argument`](super::GroupErrorKind::Argument),
            /// [`GroupErrorKind::Buffer`](super::GroupErrorKind::Buffer).
            /// [`GroupErrorKind::Comm`](super::GroupErrorKind::Comm) with NCCL's error.
            /// [`GroupErrorKind::Driver`](super::GroupErrorKind::Driver) if the work was enqueued, but the event after
            /// it could not be recorded. If the group is over: the error that ended it.
            ///
            /// # Safety
            /// Until the work is done, the buffers are device-accessible memory of the stated length, nothing
            /// else writes memory that the operation reads, and nothing else accesses memory that the
            /// operation writes.
            #[track_caller]
            pub unsafe fn $method(&self, $($argument: $type,)* stream: &Stream) -> Result<Work> {
                launch!($kind self.0, Operation::$operation, stream, $method($($argument),*))
            }
        )*}

        impl Batch<'_> {$(
            #[doc = concat!("Queues [`Raw::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// The errors of the argument checks of the same operation in [`Raw`]. After such an error
            /// nothing is queued.
            ///
            /// # Safety
            /// From the launch of the batch until its work is done, the buffers are device-accessible memory
            /// of the stated length, nothing else writes memory that the operation reads, and nothing else
            /// accesses memory that the operation writes.
            pub unsafe fn $method(&self, $($argument: $type),*) -> Result<()> {
                queue!($kind self, Operation::$operation, self.group.ops().$method($($argument),*))
            }
        )*}
    };
}

macro_rules! launch {
    (single $group:expr, $operation:expr, $stream:expr, $method:ident($($argument:expr),*)) => {
        // SAFETY: the caller of the method of `Raw` upholds the method's contract.
        unsafe { $group.alone($group.ops().$method($($argument),*), $stream, Location::caller()) }
    };
    (list $group:expr, $operation:expr, $stream:expr, $method:ident($($argument:expr),*)) => {
        // SAFETY: the caller of the method of `Raw` upholds the method's contract.
        $group.together($operation, $stream, |batch| unsafe { batch.$method($($argument),*) })
    };
}

macro_rules! queue {
    (single $batch:expr, $operation:expr, $op:expr) => {
        $batch.queue($op)
    };
    (list $batch:expr, $operation:expr, $ops:expr) => {
        $batch.queue_all($operation, $ops)
    };
}

operations! {
    /// Reduces the `send` of all members, and writes the result to every member's `receive`. For an in-place
    /// operation, pass the same buffer twice.
    #[doc(alias = "allreduce")]
    single all_reduce(send: Buffer, receive: Buffer, op: ReduceOp) => AllReduce;

    /// Copies the root's `buffer` to the `buffer` of every member.
    single broadcast(buffer: Buffer, root: usize) => Broadcast;

    /// Reduces the `send` of all members into the root's `receive`. On the other members `receive` stays as
    /// it is.
    single reduce(send: Buffer, receive: Buffer, op: ReduceOp, root: usize) => Reduce;

    /// Concatenates the `send` of all members, in the order of ranks, into every member's `receive`, which
    /// holds as many elements as `send` for each member. In place: `send` is this rank's share of `receive`.
    #[doc(alias = "all_gather_into_tensor")]
    single all_gather(send: Buffer, receive: Buffer) => AllGather;

    /// Copies the `send` of every member `i` to `receive[i]` on all members. `receive[i]` is as long as
    /// member `i`'s `send`, and all members pass the same lengths. In place: `send` is `receive[rank]`.
    /// Launches one broadcast per member in one NCCL group.
    #[doc(alias = "all_gather")]
    #[doc(alias = "allgatherv")]
    list all_gather_list(send: Buffer, receive: &[Buffer]) => AllGatherList;

    /// Reduces the `send` of all members, which holds one share for every member, and writes share `i` of the
    /// result to member `i`'s `receive`. In place: `receive` is this rank's share of `send`.
    #[doc(alias = "reduce_scatter_tensor")]
    single reduce_scatter(send: Buffer, receive: Buffer, op: ReduceOp) => ReduceScatter;

    /// Reduces the `send[i]` of all members into member `i`'s `receive`. All members pass the same lengths.
    /// In place: `receive` is `send[rank]`. Launches one reduction per member in one NCCL group.
    #[doc(alias = "reduce_scatter")]
    list reduce_scatter_list(send: &[Buffer], receive: Buffer, op: ReduceOp) => ReduceScatterList;

    /// Copies share `j` of every member's `send` to member `j`, whose `receive` holds these shares in the
    /// order of ranks. Never in place.
    #[doc(alias = "all_to_all_single")]
    single all_to_all(send: Buffer, receive: Buffer) => AllToAll;

    /// Sends every member's `send[i]` to member `i`, which receives it in the entry of `receive` for the
    /// sender's rank. The lengths on both ends are equal, and may be 0. Only the share that a rank sends to
    /// itself may be in place. Launches messages in one NCCL group.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
    /// # unsafe fn exchange(group: &ProcessGroup, input: Buffer, output: Buffer, input_sizes: &[usize],
    /// #     output_sizes: &[usize], stream: &cuda_driver::Stream) -> Result<(), GroupError> {
    /// // torch's all_to_all_single with split sizes.
    /// // SAFETY: the buffers outlive the work.
    /// unsafe { group.raw().all_to_all_list(&input.split(input_sizes)?, &output.split(output_sizes)?, stream)? };
    /// # Ok(()) }
    /// ```
    #[doc(alias = "all_to_all_single")]
    #[doc(alias = "alltoallv")]
    list all_to_all_list(send: &[Buffer], receive: &[Buffer]) => AllToAllList;

    /// Concatenates the `send` of all members, in the order of ranks, into the root's `receive`, which holds
    /// as many elements as `send` for each member. `receive` is ignored on the other members. In place:
    /// `send` is the root's share of `receive`.
    #[doc(alias = "gather_single")]
    single gather(send: Buffer, receive: Option<Buffer>, root: usize) => Gather;

    /// Copies the `send` of every member `i` to the root's `receive[i]`. `receive` is ignored on the other
    /// members. In place: the root's `send` is its `receive[rank]`. Launches messages in one NCCL group.
    list gather_list(send: Buffer, receive: &[Buffer], root: usize) => GatherList;

    /// Copies share `i` of the root's `send` to member `i`'s `receive`. `send` holds as many elements as
    /// `receive` for each member, and is ignored on the other members. In place: `receive` is the root's
    /// share of `send`.
    single scatter(send: Option<Buffer>, receive: Buffer, root: usize) => Scatter;

    /// Copies the root's `send[i]` to member `i`'s `receive`. `send` is ignored on the other members. In
    /// place: the root's `receive` is its `send[rank]`. Launches messages in one NCCL group.
    list scatter_list(send: &[Buffer], receive: Buffer, root: usize) => ScatterList;

    /// Sends `buffer` to member `peer`, which must receive as many elements.
    single send(buffer: Buffer, peer: usize) => Send;

    /// Receives into `buffer` from member `peer`.
    single recv(buffer: Buffer, peer: usize) => Recv;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::DataType;

    #[test]
    fn the_buffer_of_a_root_is_ignored_on_other_ranks() {
        let buffer = |at| Buffer::new(DevicePtr(at), 2, DataType::F32);
        let op = |rank| {
            let ops = Ops { rank, size: 2 };
            let gather = ops.gather(buffer(64), Some(buffer(128)), 0);
            let scatter = ops.scatter(Some(buffer(64)), buffer(128), 0);
            [gather.send, gather.receive, scatter.send, scatter.receive]
        };
        let (from, to) = (DevicePtr(64), DevicePtr(128));
        assert_eq!(op(0), [from, to, from, to]);
        assert_eq!(op(1), [from, NONE, NONE, to]);
    }
}
