//! The group's operations on raw addresses, as calls and as parts of a batch.

use std::panic::Location;

use cuda_driver::Stream;

use super::{Batch, Buffer, ProcessGroup, Result, Work};
use crate::{comm::ReduceOp, operation::Operation};

/// The operations of a group on raw addresses, from [`ProcessGroup::raw`]. The operations on
/// [slices](cuda_driver::DeviceSlice) are methods of the group itself, and are safe.
///
/// Every operation enqueues work on `stream` and returns. All members make the same calls in the same order.
/// While `stream` captures, the operation becomes a part of the graph.
///
/// Operations whose shares lie in one buffer take it whole. Operations with a name that ends in `_list` take
/// a buffer for every member, in the order of ranks, of any length and at any address; [`Buffer::split`]
/// makes such a list from split sizes. The NCCL calls of a `_list` operation depend on the call alone. They
/// never depend on the addresses of the buffers, which may differ between ranks.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a>(&'a ProcessGroup);

impl ProcessGroup {
    /// Returns the operations on raw addresses, which are `unsafe`.
    #[must_use]
    pub fn raw(&self) -> Raw<'_> {
        Raw(self)
    }

    /// Launches several operations together, with one number and one [`Work`]: for example messages in both
    /// directions, or several buckets to reduce. All are checked as they are queued, and launched when the
    /// closure has returned.
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
    /// The closure's error, with nothing launched; otherwise as for the operations of [`Raw`].
    #[doc(alias = "coalescing")]
    #[doc(alias = "batch_isend_irecv")]
    #[track_caller]
    pub fn batch(&self, stream: &Stream, queue: impl FnOnce(&Batch<'_>) -> Result<()>) -> Result<Work> {
        self.together(Operation::Batch, stream, queue)
    }
}

/// Defines each operation as a method of [`Raw`] and as a method of [`Batch`]. A `single` operation is one task, a
/// `list` operation several.
macro_rules! operations {
    ($($(#[$about:meta])* $kind:ident $method:ident($($argument:ident: $type:ty),*) => $operation:ident;)*) => {
        impl Raw<'_> {$(
            $(#[$about])*
            ///
            /// # Errors
            /// Lengths, types and ranks are checked before anything is enqueued:
            /// [`GroupError::Lengths`](super::GroupError::Lengths),
            /// [`GroupError::ListLength`](super::GroupError::ListLength) and
            /// [`GroupError::RootBuffer`](super::GroupError::RootBuffer).
            /// [`GroupError::Comm`](super::GroupError::Comm) with an argument that the communicator refuses, or with
            /// NCCL's error. [`GroupError::Driver`](super::GroupError::Driver) if the work was enqueued but could
            /// not be marked.
            ///
            /// # Safety
            /// The buffers are device-accessible memory of the stated length until the work is done. Until then
            /// nothing else writes memory that the operation reads, or accesses memory that it writes.
            #[track_caller]
            pub unsafe fn $method(&self, $($argument: $type,)* stream: &Stream) -> Result<Work> {
                launch!($kind self.0, Operation::$operation, stream, $method($($argument),*))
            }
        )*}

        impl Batch<'_> {$(
            #[doc = concat!("Queues [`Raw::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// Those of the checks of the operation in [`Raw`]; nothing is queued then.
            ///
            /// # Safety
            /// From the launch of the batch until its work is done, the buffers are device-accessible memory of the
            /// stated length, nothing else writes memory that the operation reads, and nothing else accesses memory
            /// that it writes.
            pub unsafe fn $method(&self, $($argument: $type),*) -> Result<()> {
                let parts = self.group.validate().$method($($argument),*)?;
                queue!($kind self, parts)
            }
        )*}
    };
}

macro_rules! launch {
    (single $group:expr, $operation:expr, $stream:expr, $method:ident($($argument:expr),*)) => {
        // SAFETY: the caller's contract.
        unsafe { $group.alone($operation, $group.validate().$method($($argument),*), $stream, Location::caller()) }
    };
    (list $group:expr, $operation:expr, $stream:expr, $method:ident($($argument:expr),*)) => {
        // SAFETY: the caller's contract.
        $group.together($operation, $stream, |batch| unsafe { batch.$method($($argument),*) })
    };
}

macro_rules! queue {
    (single $batch:expr, $task:expr) => {
        $batch.queue($task)
    };
    (list $batch:expr, $tasks:expr) => {
        $batch.queue_all($tasks)
    };
}

operations! {
    /// Reduces all members' `send` and gives the result to all. For an in-place operation, pass the same
    /// buffer twice.
    #[doc(alias = "allreduce")]
    single all_reduce(send: Buffer, receive: Buffer, op: ReduceOp) => AllReduce;

    /// Gives the root's `buffer` to all, into theirs.
    single broadcast(buffer: Buffer, root: usize) => Broadcast;

    /// Reduces all members' `send` into the root's `receive`; the others' `receive` stays as it is.
    single reduce(send: Buffer, receive: Buffer, op: ReduceOp, root: usize) => Reduce;

    /// Gives all members' `send`, in the order of ranks, to all; `receive` holds as many for every member. In
    /// place: `send` is this rank's share of `receive`.
    #[doc(alias = "all_gather_into_tensor")]
    single all_gather(send: Buffer, receive: Buffer) => AllGather;

    /// Gives every member's `send` to all, each into its buffer of the list. `receive[i]` is as long as
    /// member `i`'s `send`, and all members give the same lengths. In place: `send` is `receive[rank]`.
    /// Launches one broadcast per member in one NCCL group.
    #[doc(alias = "all_gather")]
    #[doc(alias = "allgatherv")]
    list all_gather_list(send: Buffer, receive: &[Buffer]) => AllGatherList;

    /// Reduces all members' `send`, which holds a share for every member, and gives each member its own. In place:
    /// `receive` is this rank's share of `send`.
    #[doc(alias = "reduce_scatter_tensor")]
    single reduce_scatter(send: Buffer, receive: Buffer, op: ReduceOp) => ReduceScatter;

    /// Reduces every `send[i]` into member `i`'s `receive`. All members give the same lengths. In place:
    /// `receive` is `send[rank]`. Launches one reduction per member in one NCCL group.
    #[doc(alias = "reduce_scatter")]
    list reduce_scatter_list(send: &[Buffer], receive: Buffer, op: ReduceOp) => ReduceScatterList;

    /// Gives the `j`-th share of every member's `send` to member `j`, in the order of ranks. Never in place.
    #[doc(alias = "all_to_all_single")]
    single all_to_all(send: Buffer, receive: Buffer) => AllToAll;

    /// Gives every member's `send[i]` to member `i`, which receives it in the entry of `receive` for the
    /// sender's rank. The lengths on both ends are equal, and may be 0. The own share may be in place.
    /// Launches messages in one NCCL group.
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

    /// Gives all members' `send`, in the order of ranks, to the root, whose `receive` holds as many for every
    /// member. `receive` is ignored on the other members. In place: `send` is the root's share of `receive`.
    #[doc(alias = "gather_single")]
    single gather(send: Buffer, receive: Option<Buffer>, root: usize) => Gather;

    /// Gives every member's `send` to the root, each into its buffer of the root's list. The list is ignored
    /// on the other members. In place: the root's `send` is its `receive[rank]`. Launches messages in one
    /// NCCL group.
    list gather_list(send: Buffer, receive: &[Buffer], root: usize) => GatherList;

    /// Gives every member its share of the root's `send`, which holds as many elements as `receive` for every
    /// member. `send` is ignored on the other members. In place: `receive` is the root's share of `send`.
    single scatter(send: Option<Buffer>, receive: Buffer, root: usize) => Scatter;

    /// Gives every member its buffer of the root's list. The list is ignored on the other members. In place:
    /// the root's `receive` is its `send[rank]`. Launches messages in one NCCL group.
    list scatter_list(send: &[Buffer], receive: Buffer, root: usize) => ScatterList;

    /// Sends `buffer` to member `peer`, which receives as many elements.
    single send(buffer: Buffer, peer: usize) => Send;

    /// Receives `buffer` from member `peer`.
    single recv(buffer: Buffer, peer: usize) => Recv;
}
