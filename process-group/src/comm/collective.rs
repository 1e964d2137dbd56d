//! Collectives, sends and receives on device memory.

use cuda_driver::{DevicePtr, Stream};

use super::{
    Communicator, DataType, ReduceOp, Result, open_group,
    task::{Primitive, Task},
};
use crate::graph_memory;

/// Collectives, sends and receives. Each call enqueues work on `stream` and returns. If the thread has an open
/// [`Group`](super::Group), the work is launched when the group is finished. All ranks make the same calls in the same
/// order, with the same counts and types. `count` is a number of elements.
///
/// # Errors
/// - [`CommError::Argument`](super::CommError::Argument), and nothing is enqueued, for: a rank that does not exist; a
///   null or misaligned buffer; buffers that overlap otherwise than in the operation's in-place form; a reduction that
///   the type or the loaded release does not support; a stream of another device;
/// - [`CommError::Nccl`](super::CommError::Nccl), which poisons the communicator unless NCCL refused the arguments;
///   [`CommError::Poisoned`](super::CommError::Poisoned) and [`CommError::Closed`](super::CommError::Closed).
///
/// # Safety
/// For every call: each buffer holds the stated number of elements, and is memory that the device can access. Each
/// buffer stays valid until the work is done. Until then nothing else writes memory that the call reads, and nothing
/// else reads or writes memory that the call writes.
impl Communicator {
    /// Reduces `count` elements of every rank and writes the result on all ranks. In place: `send` equals `receive`.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements each. The rules at the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Copies `count` elements of `root` to all ranks. `send` is read on the root only. In place: `send` equals
    /// `receive`.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `receive` holds `count` elements on every rank, and `send` holds `count` elements on the root. The rules at the
    /// top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Reduces `count` elements of every rank and writes the result on `root`. `receive` is written on the root only.
    /// In place: `send` equals `receive`.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` holds `count` elements on every rank, and `receive` holds `count` elements on the root. The rules at the
    /// top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Gathers `count` elements of every rank on all ranks, in rank order. In place: `send` is this rank's share of
    /// `receive`.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` holds `count` elements. `receive` holds `size` × `count` elements. The rules at the top of this `impl`
    /// block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Reduces `send`, which holds a share of `count` elements for each rank, and writes each reduced share on its
    /// rank. In place: `receive` is this rank's share of `send`.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` holds `size` × `count` elements. `receive` holds `count` elements. The rules at the top of this `impl`
    /// block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Exchanges `count` elements between each pair of ranks: share `j` of `send` on rank `i` is written to share `i`
    /// of `receive` on rank `j`. Never in place. Below NCCL 2.28, made of sends and receives in one NCCL group.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` and `receive` hold `size` × `count` elements each. The rules at the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Gathers `count` elements of every rank on `root`, in rank order. `receive` is written on the root only. In
    /// place: `send` is the root's share of `receive`. Below NCCL 2.28, made of sends and receives in one NCCL group.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `send` holds `count` elements on every rank. `receive` holds `size` × `count` elements on the root. The rules at
    /// the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Distributes `send` of `root`: each rank receives its share of `count` elements. `send` is read on the root only.
    /// In place: `receive` is the root's share of `send`. Below NCCL 2.28, made of sends and receives in one NCCL
    /// group.
    ///
    /// # Errors
    /// Those at the top of this `impl` block.
    ///
    /// # Safety
    /// `receive` holds `count` elements on every rank. `send` holds `size` × `count` elements on the root. The rules at
    /// the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Sends `count` elements to `peer`, which must receive the same number. If two ranks send to each other, each must
    /// put its send and its receive in one [`Group`](super::Group). Otherwise both ranks wait for ever.
    ///
    /// # Errors
    /// Those at the top of this `impl` block; [`ToOneself`](super::ArgumentError::ToOneself) if `peer` is this rank and
    /// no group is open.
    ///
    /// # Safety
    /// `send` holds `count` elements. The rules at the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Receives `count` elements from `peer`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    ///
    /// # Safety
    /// `receive` holds `count` elements. The rules at the top of this `impl` block apply.
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
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        unsafe { self.submit(&task, stream) }
    }

    /// Checks `task` and enqueues it.
    ///
    /// # Safety
    /// The caller upholds the contract of the public method of the operation's name.
    pub(super) unsafe fn submit(&self, task: &Task, stream: &Stream) -> Result<()> {
        self.check_task(task, stream, open_group::is_open())?;
        graph_memory::note(stream, task.memory(self.place()))?;
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        Ok(unsafe { self.launch(task, stream) }?)
    }
}
