//! The group's operations on typed slices.

use std::panic::Location;

use cuda_driver::{DeviceView, DeviceViewMut, Element, graph::BoundMemory};

use super::{Buffer, ProcessGroup, Result, Work};
use crate::{
    comm::{ArgumentError, DataType, ReduceOp},
    operation::Operation,
};

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

/// Every operation is enqueued on the stream of the slice that it writes (or sends), and returns. All members make the
/// same calls in the same order, with slices of the same lengths. Later accesses to the slices, on any stream or from
/// the host, are ordered after the operation. The slices may be dropped at once.
///
/// While the stream captures, the operation becomes a part of the graph, and the graph keeps the memory of the slices.
/// Do not wait for the captured operation. Wait for launches of the graph instead:
/// [`track_graph_launch`](ProcessGroup::track_graph_launch) returns the [`Work`] of a launch.
///
/// # Errors
/// As for the operation of the same name in [`Raw`](super::Raw). [`GroupError::Driver`](super::GroupError::Driver) if
/// the operation cannot be [ordered](cuda_driver::slice#order) with the other uses of the slices. [`GroupError::Comm`]
/// with [`ArgumentError::RawFactor`] for [`ReduceOp::PreMulSumAt`], because nothing checks the address of its factor.
///
/// [`GroupError::Comm`]: super::GroupError::Comm
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
        let (values, op) = (values.as_view(), checked(op)?);
        let stream = values.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(values)], || {
            // SAFETY: the elements are memory of a slice that is borrowed exclusively. `enqueue_using` orders the
            // operation with other uses of this memory, and keeps the memory until the operation is done.
            unsafe {
                self.alone(
                    Operation::AllReduce,
                    self.validate().all_reduce(buffer(values), buffer(values), op),
                    stream,
                    site,
                )
            }
        })
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
        let stream = values.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(values)], || {
            // SAFETY: as in `all_reduce`.
            unsafe {
                self.alone(
                    Operation::Broadcast,
                    self.validate().broadcast(buffer(values), root),
                    stream,
                    site,
                )
            }
        })
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
        let (values, op) = (values.as_view(), checked(op)?);
        let stream = values.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(values)], || {
            // SAFETY: as in `all_reduce`.
            unsafe {
                self.alone(
                    Operation::Reduce,
                    self.validate().reduce(buffer(values), buffer(values), op, root),
                    stream,
                    site,
                )
            }
        })
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
        let stream = receive.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(send), memory(receive)], || {
            // SAFETY: as in `all_reduce` for `receive`. `send` is a borrowed slice that the operation only reads.
            unsafe {
                self.alone(
                    Operation::AllGather,
                    self.validate().all_gather(buffer(send), buffer(receive)),
                    stream,
                    site,
                )
            }
        })
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
        let (send, receive, op) = (send.into(), receive.into(), checked(op)?);
        let receive = receive.as_view();
        let stream = receive.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(send), memory(receive)], || {
            // SAFETY: as in `all_gather`.
            unsafe {
                self.alone(
                    Operation::ReduceScatter,
                    self.validate().reduce_scatter(buffer(send), buffer(receive), op),
                    stream,
                    site,
                )
            }
        })
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
        let stream = receive.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(send), memory(receive)], || {
            // SAFETY: as in `all_gather`.
            unsafe {
                self.alone(
                    Operation::AllToAll,
                    self.validate().all_to_all(buffer(send), buffer(receive)),
                    stream,
                    site,
                )
            }
        })
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
        let stream = receive.unwrap_or(send).stream();
        let site = Location::caller();
        let used: Vec<_> = [Some(send), receive].into_iter().flatten().map(memory).collect();
        stream.enqueue_using(&used, || {
            // SAFETY: as in `all_gather`.
            unsafe {
                self.alone(
                    Operation::Gather,
                    self.validate().gather(buffer(send), receive.map(buffer), root),
                    stream,
                    site,
                )
            }
        })
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
        let stream = receive.stream();
        let site = Location::caller();
        let used: Vec<_> = [send, Some(receive)].into_iter().flatten().map(memory).collect();
        stream.enqueue_using(&used, || {
            // SAFETY: as in `all_gather`.
            unsafe {
                self.alone(
                    Operation::Scatter,
                    self.validate().scatter(send.map(buffer), buffer(receive), root),
                    stream,
                    site,
                )
            }
        })
    }

    /// Sends `values` to member `peer`, which must receive as many elements.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn send<'a, T: Scalar>(&self, values: impl Into<DeviceView<'a, T>>, peer: usize) -> Result<Work> {
        let values = values.into();
        let stream = values.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(values)], || {
            // SAFETY: as in `all_gather`.
            unsafe { self.alone(Operation::Send, self.validate().send(buffer(values), peer), stream, site) }
        })
    }

    /// Receives into `values` from member `peer`.
    ///
    /// # Errors
    /// See the documentation of this `impl` block.
    #[track_caller]
    pub fn recv<'a, T: Scalar>(&self, values: impl Into<DeviceViewMut<'a, T>>, peer: usize) -> Result<Work> {
        let values = values.into();
        let values = values.as_view();
        let stream = values.stream();
        let site = Location::caller();
        stream.enqueue_using(&[memory(values)], || {
            // SAFETY: as in `all_reduce`.
            unsafe { self.alone(Operation::Recv, self.validate().recv(buffer(values), peer), stream, site) }
        })
    }
}

/// Refuses [`ReduceOp::PreMulSumAt`], which reads its factor from an address that nothing checks.
fn checked(op: ReduceOp) -> Result<ReduceOp> {
    match op {
        ReduceOp::PreMulSumAt(_) => Err(ArgumentError::RawFactor.into()),
        op => Ok(op),
    }
}
