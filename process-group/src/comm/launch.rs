//! Enqueues one [`Op`]: the NCCL call that it becomes.

use cuda_driver::{DevicePtr, Stream};
use nccl_sys::{Feature, Version, cudaStream_t, ncclComm_t, ncclRedOp_t, ncclWindow_t};

use super::{
    ArgumentError, CommError, Communicator, Nccl, Result, call::call, call_guard::Kind, group, op::Op,
    open_group, primitive::Primitive, types::Place,
};
use crate::{BoxedResult, cold_err};

/// The functions that every call runs are inlined into the public method of each operation. There the operation is a
/// constant, so the compiler removes all other branches. NCCL evicts most of this code from the CPU caches between
/// two calls, so the cost of a call is mostly the code and data that it loads.
impl Communicator {
    /// Checks `op` without launching anything; `grouped` as for [`Op::check`].
    #[inline(always)]
    pub(crate) fn check_op(&self, op: &Op, stream: &Stream, grouped: bool) -> BoxedResult<(), CommError> {
        op.check(self.place(), grouped)?;
        if op.primitive.is_one_sided() {
            self.check_one_sided(*op, stream)?;
        }
        self.check_stream(op.call.name(), stream)
    }

    /// Checks that `stream` is of the communicator's device.
    #[inline(always)]
    pub(crate) fn check_stream(&self, call: &'static str, stream: &Stream) -> BoxedResult<(), CommError> {
        let (theirs, ours) = (stream.context().device().ordinal(), self.shared().context.device().ordinal());
        if theirs != ours {
            return Err(cold_err(move || {
                ArgumentError::ForeignStream { call, stream: theirs, communicator: ours }.into()
            }));
        }
        Ok(())
    }

    /// Enqueues `op`, which the caller has checked.
    ///
    /// # Safety
    /// The caller upholds the contract of the public method with the operation's name.
    #[inline(always)]
    pub(crate) unsafe fn launch(&self, op: &Op, stream: &Stream) -> BoxedResult<(), CommError> {
        let shared = self.shared();
        let window = self.window_of(*op)?;
        let _entry = shared.guard.enter(op.call.name(), Kind::Enqueue, None)?;
        if shared.registry.has_pending() {
            shared.flush_before(op.call.name())?;
        }
        // NCCL ignores a collective without elements. But with `NCCL_CHECK_MODE` it refuses a buffer that lies in no
        // allocation, such as an empty share at the end of one.
        if op.is_empty_collective() {
            return Ok(());
        }
        if open_group::is_open() {
            group::enrol(shared);
        }
        let launch = Launch {
            nccl: &shared.nccl,
            name: shared.name(),
            comm: shared.raw(),
            // The driver's and the runtime's stream are one type under two names.
            stream: stream.raw().cast(),
            place: self.place(),
            unused_buffer: &shared.unused_buffer,
            window,
        };
        // SAFETY: the caller upholds the contract of `launch`. The guard keeps the communicator alive, and admits
        // this thread alone.
        let launched = shared.context.with_current(|| unsafe { launch.enqueue(op) })?;
        launched.map_err(|error| shared.condemned(error))
    }
}

/// The arguments of the NCCL calls of one launch. Exists only while this thread is inside the call guard.
pub(super) struct Launch<'a> {
    pub(super) nccl: &'a Nccl,
    pub(super) name: &'a str,
    pub(super) comm: ncclComm_t,
    pub(super) stream: cudaStream_t,
    pub(super) place: &'a Place,
    /// See [`Shared::unused_buffer`](super::shared::Shared::unused_buffer).
    unused_buffer: &'a DevicePtr,
    /// The window that a put writes into, and the byte offset in that window.
    pub(super) window: Option<(ncclWindow_t, usize)>,
}

impl Launch<'_> {
    fn release(&self) -> Version {
        self.place.release
    }

    /// # Safety
    /// The communicator is alive, and no other thread is inside NCCL with it. The buffers meet the contract of the
    /// public method with the operation's name.
    #[inline(always)]
    pub(super) unsafe fn enqueue(&self, op: &Op) -> Result<()> {
        let Self { nccl, name, comm, stream, .. } = *self;
        let Op { primitive, count, dtype, rank, .. } = *op;
        let (send, receive, root) = (op.send.0 as *const _, op.receive.0 as *mut _, rank as i32);
        let moved = || dtype.moved(self.release());
        let native = || nccl.has(Feature::ALL_TO_ALL);
        let is_root = || self.place.rank == rank;
        // SAFETY: the caller upholds this function's contract. `Op::check` has checked the ranks.
        unsafe {
            match primitive {
                Primitive::AllReduce => self.reduction(op, move |by| {
                    call!(nccl, name, ncclAllReduce(send, receive, count, dtype.raw(), by, comm, stream))
                }),
                Primitive::Reduce => self.reduction(op, move |by| {
                    call!(nccl, name, ncclReduce(send, receive, count, dtype.raw(), by, root, comm, stream))
                }),
                Primitive::ReduceScatter => self.reduction(op, move |by| {
                    call!(nccl, name, ncclReduceScatter(send, receive, count, dtype.raw(), by, comm, stream))
                }),
                Primitive::Broadcast => {
                    call!(nccl, name, ncclBroadcast(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::AllGather => {
                    call!(nccl, name, ncclAllGather(send, receive, count, moved(), comm, stream))
                }
                Primitive::Send => call!(nccl, name, ncclSend(send, count, moved(), root, comm, stream)),
                Primitive::Recv => call!(nccl, name, ncclRecv(receive, count, moved(), root, comm, stream)),
                Primitive::PutSignal | Primitive::Signal | Primitive::WaitSignals => self.one_sided(op),
                Primitive::AllToAll if native() => {
                    call!(nccl, name, ncclAlltoAll(send, receive, count, moved(), comm, stream))
                }
                // Only the root uses both buffers.
                Primitive::Gather if native() => {
                    let receive = if is_root() { receive } else { self.unused_buffer.0 as *mut _ };
                    call!(nccl, name, ncclGather(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::Scatter if native() => {
                    let send = if is_root() { send } else { self.unused_buffer.0 as *const _ };
                    call!(nccl, name, ncclScatter(send, receive, count, moved(), root, comm, stream))
                }
                Primitive::AllToAll | Primitive::Gather | Primitive::Scatter => self.messages(*op),
            }
        }
    }

    /// Calls `launch` with the NCCL operator of the op's reduction. For a reduction with a factor, creates an
    /// operator for this call.
    ///
    /// # Safety
    /// As for [`enqueue`](Self::enqueue).
    #[inline(always)]
    unsafe fn reduction(&self, op: &Op, launch: impl FnOnce(ncclRedOp_t) -> Result<()>) -> Result<()> {
        match op.reduction.raw(op.dtype) {
            Some(operator) => launch(operator),
            // SAFETY: the caller's contract.
            None => unsafe { self.own_reduction(*op, launch) },
        }
    }
}
