//! One operation of this rank.

use cuda_driver::DevicePtr;

use super::{DataType, ReduceOp, types::Place};
use crate::{
    memory::WindowOffset,
    operation::{Operation, Primitive},
};

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
}

/// The length and type of a buffer of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// The number of elements. `None` if the caller gave no buffer.
    pub(crate) elements: Option<usize>,
    pub(crate) dtype: DataType,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: DevicePtr = DevicePtr(0x1000);
    const RECEIVE: DevicePtr = DevicePtr(0x9000);
    const FACTOR: DevicePtr = DevicePtr(0x100);

    #[test]
    fn every_operation_names_all_memory_that_it_uses() {
        let place = Place { rank: 1, size: 4, release: nccl_sys::Version::new(2, 30, 7) };
        // Bytes sent and received: first on the rank that the operation names, then on another rank.
        for (primitive, named, other) in [
            (Primitive::AllReduce, [40, 40], [40, 40]),
            (Primitive::Broadcast, [40, 40], [0, 40]),
            (Primitive::Reduce, [40, 40], [40, 0]),
            (Primitive::AllGather, [40, 160], [40, 160]),
            (Primitive::ReduceScatter, [160, 40], [160, 40]),
            (Primitive::AllToAll, [160, 160], [160, 160]),
            (Primitive::Gather, [40, 160], [40, 0]),
            (Primitive::Scatter, [160, 40], [0, 40]),
            (Primitive::Send, [40, 0], [40, 0]),
            (Primitive::Recv, [0, 40], [0, 40]),
            (Primitive::PutSignal, [40, 40], [40, 40]),
            (Primitive::Signal, [0, 0], [0, 0]),
            (Primitive::WaitSignals, [0, 0], [0, 0]),
        ] {
            for (rank, [send, receive]) in [(1, named), (2, other)] {
                let op = Op::new(primitive, SEND, RECEIVE, 10, DataType::F32).with(rank);
                let mut wanted = vec![(SEND, send), (RECEIVE, receive)];
                wanted.retain(|(_, bytes)| *bytes > 0);
                assert_eq!(op.memory(&place).collect::<Vec<_>>(), wanted, "{primitive:?} of rank {rank}");
            }
        }
        // An in-place buffer is named once, and the factor too.
        let op = Op::new(Primitive::AllReduce, SEND, SEND, 10, DataType::F64);
        let op = op.reduced_by(ReduceOp::PreMulSumAt(FACTOR));
        assert_eq!(op.memory(&place).collect::<Vec<_>>(), [(SEND, 80), (FACTOR, 8)]);
    }
}
