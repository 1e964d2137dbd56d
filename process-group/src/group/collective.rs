//! The group's operations on raw addresses.

use cuda_driver::Stream;

use super::{Batch, Buffer, ProcessGroup, Result, Work};
use crate::comm::{Operation, ReduceOp};

/// The operations of a group on raw addresses, from [`ProcessGroup::raw`]. The operations on
/// [slices](cuda_driver::DeviceSlice) are methods of the group itself, and are safe.
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
    /// The closure's error, with nothing launched; otherwise see the head of this section.
    #[doc(alias = "coalescing")]
    #[doc(alias = "batch_isend_irecv")]
    #[track_caller]
    pub fn batch(&self, stream: &Stream, queue: impl FnOnce(&Batch<'_>) -> Result<()>) -> Result<Work> {
        self.together("batch", stream, queue)
    }
}

/// Every operation enqueues work on `stream` and returns. All members make the same calls in the same order.
/// While `stream` captures, the operation becomes a part of the graph.
///
/// Operations whose shares lie in one buffer take it whole. Operations with a name that ends in `_list` take
/// a buffer for every member, in the order of ranks, of any length and at any address; [`Buffer::split`]
/// makes such a list from split sizes. The NCCL calls of a `_list` operation depend on the call alone. They
/// never depend on the addresses of the buffers, which may differ between ranks.
///
/// Lengths, types and ranks are checked before anything is enqueued:
/// # Errors
/// [`Lengths`], [`ListLength`] and [`RootBuffer`]; [`Comm`] with an argument that the communicator refuses, or with
/// NCCL's error; [`Driver`] if the work was enqueued but could not be marked.
///
/// [`Lengths`]: super::GroupError::Lengths
/// [`ListLength`]: super::GroupError::ListLength
/// [`RootBuffer`]: super::GroupError::RootBuffer
/// [`Comm`]: super::GroupError::Comm
/// [`Driver`]: super::GroupError::Driver
///
/// # Safety
/// For every operation: the buffers are device-accessible memory of the stated length until the work
/// is done. Until then nothing else writes memory that the operation reads, or accesses memory that it
/// writes.
impl Raw<'_> {
    /// Reduces all members' `send` and gives the result to all. For an in-place operation, pass the same
    /// buffer twice.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "allreduce")]
    #[track_caller]
    pub unsafe fn all_reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::AllReduce, self.0.parts().all_reduce(send, receive, op), stream) }
    }

    /// Gives the root's `buffer` to all, into theirs.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn broadcast(&self, buffer: Buffer, root: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Broadcast, self.0.parts().broadcast(buffer, root), stream) }
    }

    /// Reduces all members' `send` into the root's `receive`; the others' `receive` stays as it is.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Reduce, self.0.parts().reduce(send, receive, op, root), stream) }
    }

    /// Gives all members' `send`, in the order of ranks, to all; `receive` holds as many for every member. In
    /// place: `send` is this rank's share of `receive`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_gather_into_tensor")]
    #[track_caller]
    pub unsafe fn all_gather(&self, send: Buffer, receive: Buffer, stream: &Stream) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::AllGather, self.0.parts().all_gather(send, receive), stream) }
    }

    /// Gives every member's `send` to all, each into its buffer of the list. `receive[i]` is as long as
    /// member `i`'s `send`, and all members give the same lengths. In place: `send` is `receive[rank]`.
    /// Launches one broadcast per member in one NCCL group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_gather")]
    #[doc(alias = "allgatherv")]
    #[track_caller]
    pub unsafe fn all_gather_list(&self, send: Buffer, receive: &[Buffer], stream: &Stream) -> Result<Work> {
        self.0.together("all_gather_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_gather_list(send, receive) }
        })
    }

    /// Reduces all members' `send`, which holds a share for every member, and gives each member its own. In place:
    /// `receive` is this rank's share of `send`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "reduce_scatter_tensor")]
    #[track_caller]
    pub unsafe fn reduce_scatter(
        &self,
        send: Buffer,
        receive: Buffer,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe {
            self.0.alone(Operation::ReduceScatter, self.0.parts().reduce_scatter(send, receive, op), stream)
        }
    }

    /// Reduces every `send[i]` into member `i`'s `receive`. All members give the same lengths. In place:
    /// `receive` is `send[rank]`. Launches one reduction per member in one NCCL group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "reduce_scatter")]
    #[track_caller]
    pub unsafe fn reduce_scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Work> {
        self.0.together("reduce_scatter_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.reduce_scatter_list(send, receive, op) }
        })
    }

    /// Gives the `j`-th share of every member's `send` to member `j`, in the order of ranks. Never in place.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_to_all_single")]
    #[track_caller]
    pub unsafe fn all_to_all(&self, send: Buffer, receive: Buffer, stream: &Stream) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::AllToAll, self.0.parts().all_to_all(send, receive), stream) }
    }

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
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "all_to_all_single")]
    #[doc(alias = "alltoallv")]
    #[track_caller]
    pub unsafe fn all_to_all_list(
        &self,
        send: &[Buffer],
        receive: &[Buffer],
        stream: &Stream,
    ) -> Result<Work> {
        self.0.together("all_to_all_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_to_all_list(send, receive) }
        })
    }

    /// Gives all members' `send`, in the order of ranks, to the root, whose `receive` holds as many for every
    /// member. `receive` is ignored on the other members. In place: `send` is the root's share of `receive`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[doc(alias = "gather_single")]
    #[track_caller]
    pub unsafe fn gather(
        &self,
        send: Buffer,
        receive: Option<Buffer>,
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Gather, self.0.parts().gather(send, receive, root), stream) }
    }

    /// Gives every member's `send` to the root, each into its buffer of the root's list. The list is ignored
    /// on the other members. In place: the root's `send` is its `receive[rank]`. Launches messages in one
    /// NCCL group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn gather_list(
        &self,
        send: Buffer,
        receive: &[Buffer],
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        self.0.together("gather_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.gather_list(send, receive, root) }
        })
    }

    /// Gives every member its share of the root's `send`, which holds as many elements as `receive` for every
    /// member. `send` is ignored on the other members. In place: `receive` is the root's share of `send`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn scatter(
        &self,
        send: Option<Buffer>,
        receive: Buffer,
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Scatter, self.0.parts().scatter(send, receive, root), stream) }
    }

    /// Gives every member its buffer of the root's list. The list is ignored on the other members. In place:
    /// the root's `receive` is its `send[rank]`. Launches messages in one NCCL group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        root: usize,
        stream: &Stream,
    ) -> Result<Work> {
        self.0.together("scatter_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.scatter_list(send, receive, root) }
        })
    }

    /// Sends `buffer` to member `peer`, which receives as many elements.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn send(&self, buffer: Buffer, peer: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Send, self.0.parts().send(buffer, peer), stream) }
    }

    /// Receives `buffer` from member `peer`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// See the head of this section.
    #[track_caller]
    pub unsafe fn recv(&self, buffer: Buffer, peer: usize, stream: &Stream) -> Result<Work> {
        // SAFETY: the caller's contract.
        unsafe { self.0.alone(Operation::Recv, self.0.parts().recv(buffer, peer), stream) }
    }
}
