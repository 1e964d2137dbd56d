//! The group's operations, as a user calls them.

use cuda_driver::Stream;

use super::{Batch, Buffer, ProcessGroup, Result, Work};
use crate::comm::{Operation, ReduceOp};

/// Every operation is enqueued on `stream` and returns; all members make the same calls in the same order. While
/// `stream` captures, the operation becomes a part of the graph.
///
/// Operations whose shares lie in one buffer take it whole; those of a name that ends in `_list` take a buffer for
/// every member, in the order of ranks, of any lengths and anywhere: what [`Buffer::split`] gives, for split sizes.
/// What a list's operation is made of follows from the call alone and never from where the buffers lie, which may
/// differ from rank to rank.
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
/// Of every operation: the buffers are memory that the device can reach, as long as they say; they stay so until the
/// work is done, and nothing else writes what the operation reads, or touches what it writes, in between.
impl ProcessGroup {
    /// Reduces all members' `send` and gives the result to all. In place: the same buffer twice.
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
        unsafe { self.alone(Operation::AllReduce, self.parts().all_reduce(send, receive, op), stream) }
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
        unsafe { self.alone(Operation::Broadcast, self.parts().broadcast(buffer, root), stream) }
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
        unsafe { self.alone(Operation::Reduce, self.parts().reduce(send, receive, op, root), stream) }
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
        unsafe { self.alone(Operation::AllGather, self.parts().all_gather(send, receive), stream) }
    }

    /// Gives every member's `send` to all, each into its buffer of the list: `receive[i]` is as long as member `i`'s
    /// `send`, and all members give the same lengths. In place: `send` is `receive[rank]`. One broadcast a member, in
    /// one group.
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
        self.together("all_gather_list", stream, |batch| {
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
            self.alone(Operation::ReduceScatter, self.parts().reduce_scatter(send, receive, op), stream)
        }
    }

    /// Reduces every `send[i]` into member `i`'s `receive`; all members give the same lengths. In place: `receive` is
    /// `send[rank]`. One reduction a member, in one group.
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
        self.together("reduce_scatter_list", stream, |batch| {
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
        unsafe { self.alone(Operation::AllToAll, self.parts().all_to_all(send, receive), stream) }
    }

    /// Gives every member's `send[i]` to member `i`, which receives it in `receive` at the sender's rank: what rank `a`
    /// sends to `b` is as long as what `b` receives from `a`, and may be nothing. The own share may be in place.
    /// Messages in one group.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::{Buffer, GroupError}};
    /// # unsafe fn exchange(group: &ProcessGroup, input: Buffer, output: Buffer, input_sizes: &[usize],
    /// #     output_sizes: &[usize], stream: &cuda_driver::Stream) -> Result<(), GroupError> {
    /// // torch's all_to_all_single with split sizes.
    /// // SAFETY: the buffers outlive the work.
    /// unsafe { group.all_to_all_list(&input.split(input_sizes)?, &output.split(output_sizes)?, stream)? };
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
        self.together("all_to_all_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.all_to_all_list(send, receive) }
        })
    }

    /// Gives all members' `send`, in the order of ranks, to the root, whose `receive` holds as many for every member.
    /// What another member gives as `receive` is not looked at. In place: `send` is the root's share of `receive`.
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
        unsafe { self.alone(Operation::Gather, self.parts().gather(send, receive, root), stream) }
    }

    /// Gives every member's `send` to the root, each into its buffer of the root's list; the others' list is not looked
    /// at. In place: the root's `send` is its `receive[rank]`. Messages in one group.
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
        self.together("gather_list", stream, |batch| {
            // SAFETY: the caller's contract.
            unsafe { batch.gather_list(send, receive, root) }
        })
    }

    /// Gives every member its share of the root's `send`, which holds as many as `receive` for every member. What another
    /// member gives as `send` is not looked at. In place: `receive` is the root's share of `send`.
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
        unsafe { self.alone(Operation::Scatter, self.parts().scatter(send, receive, root), stream) }
    }

    /// Gives every member its buffer of the root's list; the others' list is not looked at. In place: the root's `receive`
    /// is its `send[rank]`. Messages in one group.
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
        self.together("scatter_list", stream, |batch| {
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
        unsafe { self.alone(Operation::Send, self.parts().send(buffer, peer), stream) }
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
        unsafe { self.alone(Operation::Recv, self.parts().recv(buffer, peer), stream) }
    }

    /// Several operations that begin together, with one number and one [`Work`]: messages in both directions,
    /// buckets that are reduced at once. All are checked as they are queued, and launched when the closure has
    /// returned.
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
