//! Collectives, sends and receives on device memory.

use cuda_driver::{DevicePtr, Stream, graph_memory};

use super::{Communicator, DataType, ReduceOp, Result, op::Op, open_group};
use crate::operation::Primitive;

/// Defines a method for each operation: checks its [`Op`] and enqueues it.
macro_rules! operations {
    ($(#[$about:meta])* impl Communicator; $($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*) => $op:expr;)*) => {
        $(#[$about])*
        impl Communicator {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// Those at the top of this `impl` block.
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $method(&self, $($argument: $type,)* stream: &Stream) -> Result<()> {
                // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
                unsafe { self.submit(&$op, stream) }
            }
        )*}
    };
}

operations! {
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
    impl Communicator;

    /// Reduces `count` elements of every rank and writes the result on all ranks. In place: `send` equals `receive`.
    ///
    /// # Safety
    /// `send` and `receive` hold `count` elements each. The rules at the top of this `impl` block apply.
    #[doc(alias = "ncclAllReduce")]
    all_reduce(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, op: ReduceOp) =>
        Op::new(Primitive::AllReduce, send, receive, count, dtype).reduced_by(op);

    /// Copies `count` elements of `root` to all ranks. `send` is read on the root only. In place: `send` equals
    /// `receive`.
    ///
    /// # Safety
    /// `receive` holds `count` elements on every rank, and `send` holds `count` elements on the root. The rules at the
    /// top of this `impl` block apply.
    #[doc(alias = "ncclBroadcast")]
    broadcast(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, root: usize) =>
        Op::new(Primitive::Broadcast, send, receive, count, dtype).with(root);

    /// Reduces `count` elements of every rank and writes the result on `root`. `receive` is written on the root only.
    /// In place: `send` equals `receive`.
    ///
    /// # Safety
    /// `send` holds `count` elements on every rank, and `receive` holds `count` elements on the root. The rules at the
    /// top of this `impl` block apply.
    #[doc(alias = "ncclReduce")]
    reduce(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, op: ReduceOp, root: usize) =>
        Op::new(Primitive::Reduce, send, receive, count, dtype).reduced_by(op).with(root);

    /// Gathers `count` elements of every rank on all ranks, in rank order. In place: `send` is this rank's share of
    /// `receive`.
    ///
    /// # Safety
    /// `send` holds `count` elements. `receive` holds `size` × `count` elements. The rules at the top of this `impl`
    /// block apply.
    #[doc(alias = "ncclAllGather")]
    all_gather(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType) =>
        Op::new(Primitive::AllGather, send, receive, count, dtype);

    /// Reduces `send`, which holds a share of `count` elements for each rank, and writes each reduced share on its
    /// rank. In place: `receive` is this rank's share of `send`.
    ///
    /// # Safety
    /// `send` holds `size` × `count` elements. `receive` holds `count` elements. The rules at the top of this `impl`
    /// block apply.
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, op: ReduceOp) =>
        Op::new(Primitive::ReduceScatter, send, receive, count, dtype).reduced_by(op);

    /// Exchanges `count` elements between each pair of ranks: share `j` of `send` on rank `i` is written to share `i`
    /// of `receive` on rank `j`. Never in place. Below NCCL 2.28, made of sends and receives in one NCCL group.
    ///
    /// # Safety
    /// `send` and `receive` hold `size` × `count` elements each. The rules at the top of this `impl` block apply.
    #[doc(alias = "ncclAlltoAll")]
    all_to_all(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType) =>
        Op::new(Primitive::AllToAll, send, receive, count, dtype);

    /// Gathers `count` elements of every rank on `root`, in rank order. `receive` is written on the root only. In
    /// place: `send` is the root's share of `receive`. Below NCCL 2.28, made of sends and receives in one NCCL group.
    ///
    /// # Safety
    /// `send` holds `count` elements on every rank. `receive` holds `size` × `count` elements on the root. The rules at
    /// the top of this `impl` block apply.
    #[doc(alias = "ncclGather")]
    gather(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, root: usize) =>
        Op::new(Primitive::Gather, send, receive, count, dtype).with(root);

    /// Distributes `send` of `root`: each rank receives its share of `count` elements. `send` is read on the root only.
    /// In place: `receive` is the root's share of `send`. Below NCCL 2.28, made of sends and receives in one NCCL
    /// group.
    ///
    /// # Safety
    /// `receive` holds `count` elements on every rank. `send` holds `size` × `count` elements on the root. The rules at
    /// the top of this `impl` block apply.
    #[doc(alias = "ncclScatter")]
    scatter(send: DevicePtr, receive: DevicePtr, count: usize, dtype: DataType, root: usize) =>
        Op::new(Primitive::Scatter, send, receive, count, dtype).with(root);

    /// Sends `count` elements to `peer`, which must receive the same number. If two ranks send to each other, each must
    /// put its send and its receive in one [`Group`](super::Group). Otherwise both ranks wait for ever.
    /// [`ToOneself`](super::ArgumentError::ToOneself) is the error if `peer` is this rank and no group is open.
    ///
    /// # Safety
    /// `send` holds `count` elements. The rules at the top of this `impl` block apply.
    #[doc(alias = "ncclSend")]
    send(send: DevicePtr, count: usize, dtype: DataType, peer: usize) =>
        Op::new(Primitive::Send, send, DevicePtr(0), count, dtype).with(peer);

    /// Receives `count` elements from `peer`. [`ToOneself`](super::ArgumentError::ToOneself) is the error if `peer` is
    /// this rank and no group is open.
    ///
    /// # Safety
    /// `receive` holds `count` elements. The rules at the top of this `impl` block apply.
    #[doc(alias = "ncclRecv")]
    recv(receive: DevicePtr, count: usize, dtype: DataType, peer: usize) =>
        Op::new(Primitive::Recv, DevicePtr(0), receive, count, dtype).with(peer);
}

impl Communicator {
    /// Checks `op` and enqueues it.
    ///
    /// # Safety
    /// The caller upholds the contract of the public method of the operation's name.
    pub(super) unsafe fn submit(&self, op: &Op, stream: &Stream) -> Result<()> {
        self.check_op(op, stream, open_group::is_open())?;
        graph_memory::note(stream, op.memory(self.place()))?;
        // SAFETY: the caller upholds this method's contract, which is the contract of the called method.
        Ok(unsafe { self.launch(op, stream) }?)
    }
}
