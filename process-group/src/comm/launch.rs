//! Checks the arguments of one [`Op`], and enqueues it: the NCCL call that it becomes.
//!
//! The check sees addresses, counts, types and ranks. It never reads memory: the caller guarantees that a buffer is as
//! long as stated and stays valid during the operation. The overlap rules are those of NCCL's documentation of in-place
//! operations.

use cuda_driver::{DevicePtr, Stream};
use nccl_sys::{Feature, Version, cudaStream_t, ncclComm_t, ncclRedOp_t, ncclWindow_t};

use super::{
    ArgumentError, CommError, Communicator, DataType, Nccl, ReduceOp, Result,
    call::call,
    call_guard::Kind,
    group,
    op::{Given, Op},
    open_group,
    types::Place,
};
use crate::{
    BoxedResult, cold_err,
    operation::{InPlace, Primitive},
};

impl Op {
    /// Makes the argument checks that need no other rank. `grouped` is true if the op will be launched in an NCCL
    /// group.
    #[inline(always)]
    pub(crate) fn check(&self, place: &Place, grouped: bool) -> BoxedResult<(), ArgumentError> {
        let Self { primitive, call, count, dtype, reduction, rank, .. } = *self;
        let call = call.name();
        let rules = Rules { place, call };
        let named = place.rank == rank;
        if let Some(given) = self.given {
            let shares = primitive.shares(place.size, named);
            self.lengths(place, shares, given)?;
        }
        if primitive.reduces() {
            rules.reduction(reduction, dtype)?;
        }
        if let Some(role) = primitive.role() {
            rules.member(role, rank)?;
        }
        if primitive.is_message() && named && !grouped {
            return Err(cold_err(move || ArgumentError::ToOneself { call, rank }));
        }
        if primitive == Primitive::WaitSignals {
            return rules.signals(count);
        }
        let [send, receive] = match primitive {
            Primitive::PutSignal => [1, 1],
            _ => primitive.shares(place.size, named),
        };
        let send = Span { address: self.send.0, shares: send };
        let receive = Span { address: self.receive.0, shares: receive };
        rules.buffers(send, receive, count, dtype, primitive.in_place(named))
    }

    /// Checks the buffers that this rank uses: equal types, and each of the length of its `shares`.
    #[inline(always)]
    fn lengths(
        &self,
        place: &Place,
        shares: [usize; 2],
        [send, receive]: [Given; 2],
    ) -> BoxedResult<(), ArgumentError> {
        let fits = |given: Given, shares: usize| {
            shares == 0 || given.elements.is_some() && given.elements == self.count.checked_mul(shares)
        };
        let is_one_type = send.dtype == receive.dtype || shares.contains(&0);
        if is_one_type && fits(send, shares[0]) && fits(receive, shares[1]) {
            return Ok(());
        }
        let (primitive, call, size, root) = (self.primitive, self.call.name(), place.size, self.rank);
        Err(cold_err(move || {
            let (sent, received) = match (send.elements, receive.elements) {
                (None, _) => return ArgumentError::RootBuffer { call, buffer: "send", root },
                (_, None) => return ArgumentError::RootBuffer { call, buffer: "receive", root },
                (Some(sent), Some(received)) => (sent, received),
            };
            ArgumentError::Lengths {
                call,
                size,
                send: sent,
                send_type: send.dtype,
                receive: received,
                receive_type: receive.dtype,
                rule: primitive.length_rule(),
            }
        }))
    }
}

/// A buffer of a call: its address, and the number of ranks whose elements the buffer holds. With 0 shares, the call
/// does not use the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    address: u64,
    shares: usize,
}

/// The rules for the arguments of one call.
#[derive(Clone, Copy)]
struct Rules<'a> {
    place: &'a Place,
    call: &'static str,
}

impl Rules<'_> {
    /// Returns the size in bytes of `count` elements for each of `shares` ranks.
    #[inline(always)]
    fn bytes(&self, count: usize, dtype: DataType, shares: usize) -> BoxedResult<usize, ArgumentError> {
        let call = self.call;
        count
            .checked_mul(dtype.size())
            .and_then(|bytes| bytes.checked_mul(shares))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                cold_err(move || ArgumentError::TooLarge { call, elements: count, dtype, ranks: shares })
            })
    }

    /// Checks that the loaded release supports the reduction `op` for elements of `dtype`.
    #[inline(always)]
    fn reduction(&self, op: ReduceOp, dtype: DataType) -> BoxedResult<(), ArgumentError> {
        let call = self.call;
        if !op.allows(dtype) {
            return Err(cold_err(move || ArgumentError::Reduction { call, dtype, op }));
        }
        let (since, release) = (dtype.since(), self.place.release);
        if release < since {
            return Err(cold_err(move || ArgumentError::TypeTooNew { call, dtype, since, release }));
        }
        if let ReduceOp::PreMulSumAt(factor) = op {
            self.buffer("factor", Span { address: factor.0, shares: 1 }, 1, dtype)?;
        }
        Ok(())
    }

    /// Checks that `rank` is a rank of the communicator.
    #[inline(always)]
    fn member(&self, role: &'static str, rank: usize) -> BoxedResult<(), ArgumentError> {
        let call = self.call;
        if rank < self.place.size {
            return Ok(());
        }
        let size = self.place.size;
        Err(cold_err(move || ArgumentError::NoSuchRank { call, role, rank, size }))
    }

    /// Checks that the number of signals to wait for is in NCCL's range.
    fn signals(&self, count: usize) -> BoxedResult<(), ArgumentError> {
        let call = self.call;
        match i32::try_from(count) {
            Ok(1..) => Ok(()),
            _ => Err(cold_err(move || ArgumentError::Signals { call, count })),
        }
    }

    /// Checks one buffer and returns the buffer's length in bytes. Returns 0 if the call does not use the buffer.
    #[inline(always)]
    fn buffer(
        &self,
        buffer: &'static str,
        span: Span,
        count: usize,
        dtype: DataType,
    ) -> BoxedResult<usize, ArgumentError> {
        let call = self.call;
        let bytes = if span.shares > 0 { self.bytes(count, dtype, span.shares)? } else { 0 };
        if bytes == 0 {
            return Ok(0);
        }
        if span.address == 0 {
            return Err(cold_err(move || ArgumentError::Null { call, buffer, bytes }));
        }
        // Every element size is a power of two, so a mask replaces a division, which would cost more than the rest of
        // this function.
        let Span { address, shares } = span;
        if address & (dtype.size() as u64 - 1) != 0 {
            return Err(cold_err(move || ArgumentError::Misaligned { call, buffer, address, dtype }));
        }
        if address.checked_add(bytes as u64).is_none() {
            return Err(cold_err(move || ArgumentError::TooLarge {
                call,
                elements: count,
                dtype,
                ranks: shares,
            }));
        }
        Ok(bytes)
    }

    /// Checks the send and the receive buffer, and that they overlap only as `in_place` allows.
    #[inline(always)]
    fn buffers(
        &self,
        send: Span,
        receive: Span,
        count: usize,
        dtype: DataType,
        in_place: InPlace,
    ) -> BoxedResult<(), ArgumentError> {
        let call = self.call;
        let send_bytes = self.buffer("send", send, count, dtype)?;
        if in_place == InPlace::Same && send == receive {
            return Ok(());
        }
        let receive_bytes = self.buffer("receive", receive, count, dtype)?;
        if send_bytes == 0 || receive_bytes == 0 {
            return Ok(());
        }
        let (from, to) = (send.address, receive.address);
        let apart = from + send_bytes as u64 <= to || to + receive_bytes as u64 <= from;
        // For `ShareOfReceive` and `ShareOfSend`, one buffer holds a share of every rank. Its length was checked above
        // and exceeds this offset. In the other cases the product may overflow, so it is computed only on demand.
        let offset = || (self.place.rank * count * dtype.size()) as u64;
        let fits = match in_place {
            InPlace::Same => from == to,
            InPlace::ShareOfReceive => Some(from) == to.checked_add(offset()),
            InPlace::ShareOfSend => Some(to) == from.checked_add(offset()),
            InPlace::Never => false,
            InPlace::Anywhere => true,
        };
        if apart || fits {
            return Ok(());
        }
        Err(cold_err(move || {
            let allowed = in_place.allowed();
            ArgumentError::Overlap { call, send: from, send_bytes, receive: to, receive_bytes, allowed }
        }))
    }
}

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

#[cfg(test)]
mod tests;
