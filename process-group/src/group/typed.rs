//! The group's operations on typed slices.

use std::panic::Location;

use cuda_driver::{DeviceView, DeviceViewMut, Element, graph::BoundMemory};

use super::{Buffer, ProcessGroup, Result, Work};
use crate::{
    comm::{ArgumentError, DataType, ReduceOp},
    operation::Operation,
};

/// An element type that NCCL has. `half::f16` and `half::bf16` need the feature `half` of `lockstep-process-group`.
///
/// # Safety
/// An element of [`DTYPE`](Self::DTYPE) has as many bytes as the type.
#[diagnostic::on_unimplemented(
    note = "`half::f16` and `half::bf16` need the feature `half` of lockstep-process-group"
)]
pub unsafe trait Scalar: Element {
    /// NCCL's name of the type.
    const DTYPE: DataType;
}

macro_rules! scalars {
    ($($(#[$attribute:meta])* $scalar:ty => $dtype:ident),* $(,)?) => {$(
        $(#[$attribute])*
        const _: () = assert!(DataType::$dtype.size() == size_of::<$scalar>());

        $(#[$attribute])*
        // SAFETY: checked above.
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
/// same calls in the same order, with slices of the same lengths. Later calls on the slices, on any stream and from the
/// host, take effect after the operation; the slices may be dropped at once.
///
/// While the stream captures, the operation becomes a part of the graph, which holds the slices. Wait for the launches
/// of the graph with [`track_graph_launch`](ProcessGroup::track_graph_launch), whose [`Work`] has an end, and not for
/// the captured operation.
///
/// # Errors
/// As for the operation of the same name in [`Raw`](super::Raw); [`GroupError::Driver`](super::GroupError::Driver) if
/// the operation cannot be [ordered](cuda_driver::slice#order) with the other uses of the slices. [`GroupError::Comm`]
/// with [`ArgumentError::RawFactor`] for [`ReduceOp::PreMulSumAt`], whose address nothing checks.
///
/// [`GroupError::Comm`]: super::GroupError::Comm
impl ProcessGroup {
    /// Reduces all members' `values` and gives the result to all, in place.
    ///
    /// # Errors
    /// See the head of this section.
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
            // SAFETY: the elements are memory of a slice, borrowed exclusively. `enqueue_using` orders the operation
            // with the other uses, and holds the memory until they are done.
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

    /// Gives the root's `values` to all, into theirs.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Reduces all members' `values` into the root's, in place. Those of the others keep their values.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Gives all members' `send`, in the order of ranks, to all; `receive` holds as many for every member.
    ///
    /// # Errors
    /// See the head of this section.
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
            // SAFETY: as in `all_reduce`; `send` is borrowed.
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

    /// Reduces all members' `send`, which holds a share for every member, and gives each member its own.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Gives the `j`-th share of every member's `send` to member `j`, in the order of ranks.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Gives all members' `send`, in the order of ranks, to the root, whose `receive` holds as many for every member.
    /// On the other members, `receive` is `None`.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Gives every member its share of the root's `send`, which holds as many elements as `receive` for every member.
    /// On the other members, `send` is `None`.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Sends `values` to member `peer`, which receives as many elements.
    ///
    /// # Errors
    /// See the head of this section.
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

    /// Receives `values` from member `peer`.
    ///
    /// # Errors
    /// See the head of this section.
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

/// Refuses a reduction that reads memory at an address that nothing checks.
fn checked(op: ReduceOp) -> Result<ReduceOp> {
    match op {
        ReduceOp::PreMulSumAt(_) => Err(ArgumentError::RawFactor.into()),
        op => Ok(op),
    }
}
