//! One operation of this rank, and the check of its arguments.
//!
//! The check sees addresses, counts, types and ranks. It never reads memory: the caller guarantees that a buffer is as
//! long as stated and stays valid during the operation. The overlap rules are those of NCCL's documentation of in-place
//! operations.

use cuda_driver::DevicePtr;

use super::{
    ArgumentError, DataType, ReduceOp,
    primitive::{InPlace, Primitive},
    types::Place,
};
use crate::{BoxedResult, cold_err, memory::WindowOffset, operation::Operation};

/// One operation of this rank. The address of a buffer that this rank does not use is ignored. A *share* is the part of
/// a buffer that belongs to one rank: `count` elements.
///
/// For a put, `receive` is an address in this rank's own part of the window. The data goes to the same offset in the
/// peer's part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) primitive: Primitive,
    /// The `ProcessGroup` operation that this op is a part of.
    pub(crate) call: Operation,
    pub(crate) send: DevicePtr,
    pub(crate) receive: DevicePtr,
    /// Number of elements of one share, or number of signals.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    /// Used by reducing operations only.
    pub(crate) reduction: ReduceOp,
    /// The root, or the peer.
    pub(crate) rank: usize,
    /// The lengths and types of the send and the receive buffer, if the caller gave them.
    pub(crate) given: Option<[Given; 2]>,
    /// Window offsets of the send and the receive buffer, if the operation needs them [equal](Primitive::symmetric)
    /// on all ranks.
    pub(crate) places: [WindowOffset; 2],
}

impl Op {
    /// Makes an op. Set the reduction with [`reduced_by`](Self::reduced_by) and the root or peer with
    /// [`with`](Self::with).
    pub(crate) const fn new(
        primitive: Primitive,
        send: DevicePtr,
        receive: DevicePtr,
        count: usize,
        dtype: DataType,
    ) -> Self {
        let (call, places) = (primitive.operation(), [WindowOffset::from_code(0); 2]);
        Self {
            primitive,
            call,
            send,
            receive,
            count,
            dtype,
            reduction: ReduceOp::Sum,
            rank: 0,
            given: None,
            places,
        }
    }

    /// Gives the lengths and types of the send and the receive buffer, which [`check`](Self::check) compares with the
    /// size of a share.
    #[inline(always)]
    pub(crate) const fn given(self, send: Given, receive: Given) -> Self {
        Self { given: Some([send, receive]), ..self }
    }

    /// Makes an op that signals `peer`, or that waits for `count` signals from `peer`.
    pub(crate) const fn signals(primitive: Primitive, count: usize, peer: usize) -> Self {
        Self::new(primitive, DevicePtr(0), DevicePtr(0), count, DataType::U8).with(peer)
    }

    pub(crate) const fn reduced_by(self, reduction: ReduceOp) -> Self {
        Self { reduction, ..self }
    }

    /// Makes the op a part of the operation `call`.
    pub(crate) const fn within(self, call: Operation) -> Self {
        Self { call, ..self }
    }

    /// Sets the root or the peer.
    pub(crate) const fn with(self, rank: usize) -> Self {
        Self { rank, ..self }
    }

    /// Returns the buffers that this rank uses: name, address and size in bytes. An in-place buffer is returned once.
    #[inline(always)]
    pub(crate) fn buffers(&self, place: &Place) -> [Option<(&'static str, u64, u64)>; 2] {
        let buffer = |name, ptr: DevicePtr, shares| {
            (shares > 0).then(|| (name, ptr.0, self.bytes().saturating_mul(shares as u64)))
        };
        let [send, receive] = self.primitive.shares(place.size, place.rank == self.rank);
        let (send, receive) = (buffer("send", self.send, send), buffer("receive", self.receive, receive));
        match (send, receive) {
            (Some((_, from, bytes)), Some((_, to, length))) if from == to && bytes == length => [send, None],
            _ => [send, receive],
        }
    }

    /// Returns the ranges of this rank's memory that the operation uses.
    pub(crate) fn memory(&self, place: &Place) -> impl Iterator<Item = (DevicePtr, u64)> + use<> {
        let buffers = match self.primitive {
            Primitive::PutSignal => [Some(self.send), Some(self.receive)].map(|at| Some((at?, self.bytes()))),
            _ => self.buffers(place).map(|buffer| buffer.map(|(_, at, bytes)| (DevicePtr(at), bytes))),
        };
        let factor = match self.reduction {
            ReduceOp::PreMulSumAt(at) => Some((at, self.dtype.size() as u64)),
            _ => None,
        };
        buffers.into_iter().flatten().chain(factor)
    }

    /// Returns the buffers that need [equal](Primitive::symmetric) window offsets: name, address and size in bytes.
    pub(crate) fn symmetric_buffers(
        &self,
        place: &Place,
    ) -> impl Iterator<Item = (&'static str, u64, u64)> + use<> {
        let [send, receive] = match (self.buffers(place), self.primitive.symmetric()) {
            // In place: one buffer serves as both.
            ([Some((_, at, bytes)), None], [true, true]) => {
                [Some(("send", at, bytes)), Some(("receive", at, bytes))]
            }
            ([send, receive], [sends, receives]) => [send.filter(|_| sends), receive.filter(|_| receives)],
        };
        send.into_iter().chain(receive)
    }

    /// Returns true for a send or a receive that is not part of a collective.
    #[inline(always)]
    pub(crate) fn is_message(&self) -> bool {
        self.primitive.is_message() && self.call.is_message()
    }

    /// Returns true if the op is a collective, or a part of one, without elements. Every rank that takes part passes the
    /// same number of elements, so every rank can omit the call.
    #[inline(always)]
    pub(super) fn is_empty_collective(&self) -> bool {
        self.count == 0 && !self.primitive.is_one_sided() && !self.is_message()
    }

    /// Returns the size of one share in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.count as u64).saturating_mul(self.dtype.size() as u64)
    }

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

/// The length and type of a buffer of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// The number of elements. `None` if the caller gave no buffer.
    pub(crate) elements: Option<usize>,
    pub(crate) dtype: DataType,
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

#[cfg(test)]
mod tests;
