//! Operations that need more than one NCCL call.

use cuda_driver::DevicePtr;
use nccl_sys::{ncclRedOp_t, ncclScalarResidence_t};

use super::{ReduceOp, Result, call::call, launch::Launch, op::Op, types};
use crate::operation::Primitive;

impl Launch<'_> {
    /// Launches an all-to-all, a gather or a scatter as sends and receives in one NCCL group. For releases before
    /// 2.28, which have no calls for these operations.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    #[inline(never)]
    pub(super) unsafe fn messages(&self, op: Op) -> Result<()> {
        let Self { nccl, name, place, .. } = *self;
        let own = place.rank == op.rank;
        let share = (op.count * op.dtype.size()) as u64;
        let part = |ptr: DevicePtr, rank: usize| DevicePtr(ptr.0 + rank as u64 * share);
        let message = |primitive, ptr, peer| Op { primitive, send: ptr, receive: ptr, rank: peer, ..op };
        let send = |ptr, peer| message(Primitive::Send, ptr, peer);
        let recv = |ptr, peer| message(Primitive::Recv, ptr, peer);
        let queue = || {
            // SAFETY: the caller upholds this function's contract. Every peer is a rank, and the share of each peer
            // lies in the buffer.
            let put = |message: Op| unsafe { self.enqueue(&message) };
            match op.primitive {
                Primitive::Gather => {
                    put(send(op.send, op.rank))?;
                    (0..if own { place.size } else { 0 })
                        .try_for_each(|peer| put(recv(part(op.receive, peer), peer)))
                }
                Primitive::Scatter => {
                    (0..if own { place.size } else { 0 })
                        .try_for_each(|peer| put(send(part(op.send, peer), peer)))?;
                    put(recv(op.receive, op.rank))
                }
                _ => (0..place.size).try_for_each(|peer| {
                    put(send(part(op.send, peer), peer))?;
                    put(recv(part(op.receive, peer), peer))
                }),
            }
        };
        // SAFETY: the function has no arguments.
        unsafe { call!(nccl, name, ncclGroupStart()) }?;
        let queued = queue();
        // SAFETY: closes the group that was opened above, also after a failure.
        let ended = unsafe { call!(nccl, name, ncclGroupEnd()) };
        queued.and(ended)
    }

    /// Creates an NCCL operator for a reduction with a factor, calls `launch` with it, and destroys the operator.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    #[cold]
    pub(super) unsafe fn own_reduction(
        &self,
        op: Op,
        launch: impl FnOnce(ncclRedOp_t) -> Result<()>,
    ) -> Result<()> {
        let Self { nccl, name, comm, .. } = *self;
        let mut element = match op.reduction {
            ReduceOp::PreMulSum(factor) => types::scalar(factor, op.dtype),
            _ => 0,
        };
        let (scalar, residence) = match op.reduction {
            ReduceOp::PreMulSum(_) => {
                ((&raw mut element).cast(), ncclScalarResidence_t::ncclScalarHostImmediate)
            }
            ReduceOp::PreMulSumAt(factor) => (factor.0 as *mut _, ncclScalarResidence_t::ncclScalarDevice),
            reduction => return launch(reduction.raw(op.dtype).unwrap_or(ncclRedOp_t::ncclSum)),
        };
        let (mut operator, dtype) = (ncclRedOp_t::ncclSum, op.dtype.raw());
        // SAFETY: the communicator is alive. NCCL reads one element: from the local `element` during this call, or
        // from device memory when the operation runs. The caller keeps that device memory valid. NCCL writes the
        // operator to the local `operator`.
        unsafe {
            call!(nccl, name, ncclRedOpCreatePreMulSum(&mut operator, scalar, dtype, residence, comm))
        }?;
        let launched = launch(operator);
        // SAFETY: `operator` was created above. NCCL copies the operator into each call that uses it, also in an open
        // group, so it can be destroyed now.
        let destroyed = unsafe { call!(nccl, name, ncclRedOpDestroy(operator, comm)) };
        launched.and(destroyed)
    }
}
