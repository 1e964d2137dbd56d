//! The group's operations on typed slices.

use std::panic::Location;

use cuda_driver::{DeviceView, DeviceViewMut, Element, Stream, graph::BoundMemory};

use super::{Buffer, GroupErrorKind, KindResult, ProcessGroup, Result, Work};
use crate::comm::{ArgumentError, DataType, Op, ReduceOp};

/// An element type that NCCL supports. `half::f16` and `half::bf16` need the feature `half` of
/// `lockstep-process-group`.
///
/// # Safety
/// An element of [`DTYPE`](Self::DTYPE) has the same size as `Self`.
#[diagnostic::on_unimplemented(
    note = "`half::f16` and `half::bf16` need the feature `half` of lockstep-process-group"
)]
pub unsafe trait Scalar: Element {
    /// NCCL's data type for `Self`.
    const DTYPE: DataType;
}

macro_rules! scalars {
    ($($(#[$attribute:meta])* $scalar:ty => $dtype:ident),* $(,)?) => {$(
        $(#[$attribute])*
        const _: () = assert!(DataType::$dtype.size() == size_of::<$scalar>());

        $(#[$attribute])*
        // SAFETY: the assertion above compares the sizes.
        unsafe impl Scalar for $scalar {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

scalars! {
    i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64,
    #[cfg(feature = "half")] half::f16 => F16,
    #[cfg(feature = "half")] half::bf16 => Bf16,
}

fn buffer<T: Scalar>(view: DeviceView<'_, T>) -> Buffer {
    Buffer::new(view.device_ptr(), view.len(), T::DTYPE)
}

fn memory<T: Element>(view: DeviceView<'_, T>) -> BoundMemory {
    view.memory().clone()
}

/// Every method enqueues its operation on the stream of the slice that this rank receives into, or of the slice to send
/// if there is no other, and returns without waiting for it. All members make the same calls in the same order, with
/// slices of the same lengths. Later accesses to the slices, on any stream or from the host, are ordered after the
/// operation. The slices may be dropped as soon as the method has returned.
///
/// While the stream captures, the operation becomes a part of the graph, and the graph keeps the memory of the slices.
/// Do not wait for the captured operation. Wait for launches of the graph instead:
/// [`track_graph_launch`](ProcessGroup::track_graph_launch) returns the [`Work`] of a launch.
///
/// # Errors
/// As for the operation of the same name in [`Raw`](super::Raw).
/// [`GroupErrorKind::Driver`] if the operation cannot be
/// [ordered](cuda_driver::slice#order) with the other uses of the slices. [`GroupErrorKind::Argument`] with
/// [`ArgumentError::RawFactor`] for [`ReduceOp::PreMulSumAt`], because nothing checks the address of its factor.
///
/// [`GroupErrorKind::Argument`]: super::GroupErrorKind::Argument
impl ProcessGroup {
    /// Reduces the `values` of all members, and writes the result to every member's `values`.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn all_reduce<'a, T: Scalar>(
        &self,
        values: impl Into<DeviceViewMut<'a, T>>,
        op: ReduceOp,
    ) -> Result<Work> {
        let values = values.into();
        let values = values.as_view();
        let op = self.in_call("all_reduce", checked(op))?;
        let op = self.ops().all_reduce(buffer(values), buffer(values), op);
        // SAFETY: `values` is of a slice that is borrowed exclusively.
        unsafe { self.on_slices(&[memory(values)], op, values.stream()) }
    }

    /// Copies the root's `values` to the `values` of every member.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn broadcast<'a, T: Scalar>(
        &self,
        values: impl Into<DeviceViewMut<'a, T>>,
        root: usize,
    ) -> Result<Work> {
        let values = values.into();
        let values = values.as_view();
        let op = self.ops().broadcast(buffer(values), root);
        // SAFETY: as in `all_reduce`.
        unsafe { self.on_slices(&[memory(values)], op, values.stream()) }
    }

    /// Reduces the `values` of all members into the root's `values`. The other members' `values` stay as they are.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn reduce<'a, T: Scalar>(
        &self,
        values: impl Into<DeviceViewMut<'a, T>>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Work> {
        let values = values.into();
        let values = values.as_view();
        let op = self.in_call("reduce", checked(op))?;
        let op = self.ops().reduce(buffer(values), buffer(values), op, root);
        // SAFETY: as in `all_reduce`.
        unsafe { self.on_slices(&[memory(values)], op, values.stream()) }
    }

    /// Concatenates the `send` of all members, in the order of ranks, into every member's `receive`, which holds as
    /// many elements as `send` for each member.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[doc(alias = "all_gather_into_tensor")]
    #[track_caller]
    pub fn all_gather<'a, 'b, T: Scalar>(
        &self,
        send: impl Into<DeviceView<'a, T>>,
        receive: impl Into<DeviceViewMut<'b, T>>,
    ) -> Result<Work> {
        let (send, receive) = (send.into(), receive.into());
        let receive = receive.as_view();
        let op = self.ops().all_gather(buffer(send), buffer(receive));
        // SAFETY: `receive` is of a slice that is borrowed exclusively. The operation only reads `send`.
        unsafe { self.on_slices(&[memory(send), memory(receive)], op, receive.stream()) }
    }

    /// Reduces the `send` of all members, which holds one share for every member, and writes share `i` of the result to
    /// member `i`'s `receive`.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[doc(alias = "reduce_scatter_tensor")]
    #[track_caller]
    pub fn reduce_scatter<'a, 'b, T: Scalar>(
        &self,
        send: impl Into<DeviceView<'a, T>>,
        receive: impl Into<DeviceViewMut<'b, T>>,
        op: ReduceOp,
    ) -> Result<Work> {
        let (send, receive) = (send.into(), receive.into());
        let receive = receive.as_view();
        let op = self.in_call("reduce_scatter", checked(op))?;
        let op = self.ops().reduce_scatter(buffer(send), buffer(receive), op);
        // SAFETY: as in `all_gather`.
        unsafe { self.on_slices(&[memory(send), memory(receive)], op, receive.stream()) }
    }

    /// Copies share `j` of every member's `send` to member `j`, whose `receive` holds these shares in the order of
    /// ranks.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[doc(alias = "all_to_all_single")]
    #[track_caller]
    pub fn all_to_all<'a, 'b, T: Scalar>(
        &self,
        send: impl Into<DeviceView<'a, T>>,
        receive: impl Into<DeviceViewMut<'b, T>>,
    ) -> Result<Work> {
        let (send, receive) = (send.into(), receive.into());
        let receive = receive.as_view();
        let op = self.ops().all_to_all(buffer(send), buffer(receive));
        // SAFETY: as in `all_gather`.
        unsafe { self.on_slices(&[memory(send), memory(receive)], op, receive.stream()) }
    }

    /// Concatenates the `send` of all members, in the order of ranks, into the root's `receive`, which holds as many
    /// elements as `send` for each member. On the other members, `receive` is `None`.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn gather<'a, T: Scalar>(
        &self,
        send: impl Into<DeviceView<'a, T>>,
        receive: Option<DeviceViewMut<'_, T>>,
        root: usize,
    ) -> Result<Work> {
        let send = send.into();
        let receive = receive.as_ref().map(DeviceViewMut::as_view);
        let op = self.ops().gather(buffer(send), receive.map(buffer), root);
        let used: Vec<_> = [Some(send), receive].into_iter().flatten().map(memory).collect();
        // SAFETY: as in `all_gather`.
        unsafe { self.on_slices(&used, op, receive.unwrap_or(send).stream()) }
    }

    /// Copies share `i` of the root's `send` to member `i`'s `receive`. `send` holds as many elements as `receive` for
    /// each member. On the other members, `send` is `None`.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn scatter<'a, T: Scalar>(
        &self,
        send: Option<DeviceView<'_, T>>,
        receive: impl Into<DeviceViewMut<'a, T>>,
        root: usize,
    ) -> Result<Work> {
        let receive = receive.into();
        let receive = receive.as_view();
        let op = self.ops().scatter(send.map(buffer), buffer(receive), root);
        let used: Vec<_> = [send, Some(receive)].into_iter().flatten().map(memory).collect();
        // SAFETY: as in `all_gather`.
        unsafe { self.on_slices(&used, op, receive.stream()) }
    }

    /// Sends `values` to member `peer`, which must receive as many elements.
    ///
    /// With the default [policy](super::P2pPolicy), the calls of a rank run one after the other on the group's
    /// communicator. If every rank of a ring sends to the next and then receives from the one before, all of them wait
    /// forever. Enqueue such messages in one [`batch`](Self::batch), which takes raw buffers.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn send<'a, T: Scalar>(&self, values: impl Into<DeviceView<'a, T>>, peer: usize) -> Result<Work> {
        let values = values.into();
        let op = self.ops().send(buffer(values), peer);
        // SAFETY: as in `all_gather`.
        unsafe { self.on_slices(&[memory(values)], op, values.stream()) }
    }

    /// Receives into `values` from member `peer`. Two calls of a rank run one after the other: see [`send`](Self::send).
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn recv<'a, T: Scalar>(&self, values: impl Into<DeviceViewMut<'a, T>>, peer: usize) -> Result<Work> {
        let values = values.into();
        let values = values.as_view();
        let op = self.ops().recv(buffer(values), peer);
        // SAFETY: as in `all_reduce`.
        unsafe { self.on_slices(&[memory(values)], op, values.stream()) }
    }
}

impl ProcessGroup {
    /// Launches `op` on slices in `memory`.
    ///
    /// # Safety
    /// The buffers of `op` are elements of borrowed slices in `memory`. The slices that the operation writes are
    /// borrowed exclusively.
    #[inline(always)]
    #[track_caller]
    unsafe fn on_slices(&self, memory: &[BoundMemory], op: Op, stream: &Stream) -> Result<Work> {
        let site = Location::caller();
        // SAFETY: the caller's contract. `enqueue_using` orders the operation with other uses of the memory, and keeps
        // the memory until the operation is done.
        let launched = stream.enqueue_using(memory, || unsafe { self.alone(op, stream, site) });
        self.in_call(op.call.name(), launched)
    }
}

/// Refuses [`ReduceOp::PreMulSumAt`], which reads its factor from an address that nothing checks.
fn checked(op: ReduceOp) -> KindResult<ReduceOp> {
    match op {
        ReduceOp::PreMulSumAt(_) => Err(GroupErrorKind::of_argument(ArgumentError::RawFactor)),
        op => Ok(op),
    }
}
