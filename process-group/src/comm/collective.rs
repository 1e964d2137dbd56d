//! Collectives and messages on device memory.

use cuda_driver::{DevicePtr, Stream};

use super::{
    Communicator, DataType, ReduceOp, Result, open_group,
    task::{Primitive, Task},
};
use crate::graph_memory;

/// Every call enqueues work on `stream` and returns. If the thread has an open group, the work starts when the group
/// is finished. All ranks make the same calls in the same order, with the same counts and types. `count` is in
/// elements.
///
/// # Errors
/// - [`CommError::Argument`](super::CommError::Argument), when nothing was enqueued: a rank that does not exist,
///   a null or misaligned buffer, buffers that overlap in another way than the operation's in-place form, a
///   reduction that the type or the release lacks, a stream of another device;
/// - [`CommError::Nccl`](super::CommError::Nccl), after which the communicator is poisoned unless NCCL refused the
///   arguments; [`CommError::Poisoned`](super::CommError::Poisoned) and
///   [`CommError::Closed`](super::CommError::Closed).
///
/// # Safety
/// For every call: each buffer holds as many elements as the call says, and is memory that the device can access. It
/// stays valid until the work is done. In between nothing else writes memory that the call reads, and nothing else
/// reads or writes memory that the call writes.
impl Communicator {
    /// Reduces `count` elements of every rank and writes the result on all ranks. In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements; see the head of this section.
    #[doc(alias = "ncclAllReduce")]
    pub unsafe fn all_reduce(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::AllReduce, send, receive, count, dtype).reduced_by(op);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Copies `count` elements of `root` to all ranks. `send` is read on the root only. In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `receive`, and on the root `send`, hold `count` elements; see the head of this section.
    #[doc(alias = "ncclBroadcast")]
    pub unsafe fn broadcast(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Broadcast, send, receive, count, dtype).with(root);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Reduces `count` elements of every rank and writes the result on `root`. `receive` is written on the root only.
    /// In place: the same address.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send`, and on the root `receive`, hold `count` elements; see the head of this section.
    #[doc(alias = "ncclReduce")]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn reduce(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Reduce, send, receive, count, dtype).reduced_by(op).with(root);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Gathers `count` elements of every rank on all ranks, in rank order. In place: `send` is this rank's share of
    /// `receive`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` holds `count` elements and `receive` as many for every rank; see the head of this section.
    #[doc(alias = "ncclAllGather")]
    pub unsafe fn all_gather(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::AllGather, send, receive, count, dtype);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Reduces `count` elements for each rank, and writes each rank's share on that rank. In place: `receive` is this
    /// rank's share of `send`.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` holds `count` elements for every rank and `receive` holds `count`; see the head of this section.
    #[doc(alias = "ncclReduceScatter")]
    pub unsafe fn reduce_scatter(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::ReduceScatter, send, receive, count, dtype).reduced_by(op);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Exchanges `count` elements between each pair of ranks: share `j` of `send` on rank `i` is written to share `i`
    /// of `receive` on rank `j`. Never in place. Below 2.28 it consists of messages in one group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements for every rank; see the head of this section.
    #[doc(alias = "ncclAlltoAll")]
    pub unsafe fn all_to_all(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::AllToAll, send, receive, count, dtype);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Gathers `count` elements of every rank on `root`, in rank order. `receive` is written on the root only. In
    /// place: `send` is the root's share of `receive`. Below 2.28 it consists of messages in one group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `send` holds `count` elements, and on the root `receive` as many for every rank; see the head of this section.
    #[doc(alias = "ncclGather")]
    pub unsafe fn gather(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Gather, send, receive, count, dtype).with(root);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Distributes the shares of `root`: each rank receives its `count` elements. `send` is read on the root only. In
    /// place: `receive` is the root's share of `send`. Below 2.28 it consists of messages in one group.
    ///
    /// # Errors
    /// See the head of this section.
    ///
    /// # Safety
    /// `receive` holds `count` elements, and on the root `send` as many for every rank; see the head of this section.
    #[doc(alias = "ncclScatter")]
    pub unsafe fn scatter(
        &self,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Scatter, send, receive, count, dtype).with(root);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Sends `count` elements to `peer`, which receives as many. If two ranks send to each other, each puts its send
    /// and its receive in one group; otherwise both wait.
    ///
    /// # Errors
    /// See the head of this section; [`ToOneself`](super::ArgumentError::ToOneself) outside a group.
    ///
    /// # Safety
    /// `send` holds `count` elements; see the head of this section.
    #[doc(alias = "ncclSend")]
    pub unsafe fn send(
        &self,
        send: DevicePtr,
        count: usize,
        dtype: DataType,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Send, send, DevicePtr(0), count, dtype).with(peer);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Receives `count` elements from `peer`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    ///
    /// # Safety
    /// `receive` holds `count` elements; see the head of this section.
    #[doc(alias = "ncclRecv")]
    pub unsafe fn recv(
        &self,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
        peer: usize,
        stream: &Stream,
    ) -> Result<()> {
        let task = Task::new(Primitive::Recv, DevicePtr(0), receive, count, dtype).with(peer);
        // SAFETY: the caller's contract.
        unsafe { self.submit(&task, stream) }
    }

    /// Checks `task` and enqueues it.
    ///
    /// # Safety
    /// As for the public methods.
    pub(super) unsafe fn submit(&self, task: &Task, stream: &Stream) -> Result<()> {
        self.check_task(task, stream, open_group::is_open())?;
        graph_memory::note(stream, task.memory(self.place()))?;
        // SAFETY: the caller's contract.
        Ok(unsafe { self.launch(task, stream) }?)
    }
}
