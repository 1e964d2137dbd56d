//! The recorded data of a call.

use std::panic::Location;

use crate::{
    comm::{Op, ReduceOp},
    memory::WindowOffset,
    operation::{Operation, Primitive},
    watch::Fold,
};

/// Names of the reductions, indexed by `Call::reduction`. Index 0 stands for no reduction.
pub(super) const REDUCTIONS: [&str; 7] = ["", "sum", "prod", "max", "min", "avg", "premul_sum"];

/// The recorded data of one call. Known before the call is launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(super) operation: Operation,
    /// Discriminant of the element type (`DataType as u8`).
    pub(super) dtype: u8,
    /// Index of the reduction's name in [`REDUCTIONS`].
    pub(super) reduction: u8,
    /// The rank in the group of a collective's root or of a message's peer.
    pub(super) peer: Option<u32>,
    /// Number of elements that this rank reads.
    pub(super) send: u64,
    /// Number of elements that this rank writes to the receive buffer, or number of signals that it waits
    /// for.
    pub(super) receive: u64,
    /// True if the call uses a [`Path`](crate::Path), another transport, instead of NCCL.
    pub(super) on_path: bool,
    /// Window offsets of the send and the receive buffer, if they must be equal on all ranks.
    pub(super) places: [WindowOffset; 2],
}

/// Returns true if two consecutive ops belong to one record: both are messages that implement the same
/// collective. Members may have different numbers of such messages.
pub(crate) fn are_one(former: &Op, next: &Op) -> bool {
    is_of_list(former) && former.call == next.call
}

/// Returns true if the op is one of the messages that implement a collective.
#[inline(always)]
fn is_of_list(op: &Op) -> bool {
    op.primitive.is_message() && op.call.is_list_of_messages()
}

/// The range of record numbers that contains the records of one work: `count` numbers, starting at `first`, which is
/// the work's first record. The range may also contain records of works that other threads launch at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Span {
    /// Returns this span extended up to `record`.
    pub(crate) fn with(self, record: u64) -> Self {
        match self.count {
            0 => Self { first: record, count: 1 },
            _ => Self { first: self.first, count: record + 1 - self.first },
        }
    }
}

/// A call's numbers in its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// The group's number in the recorder.
    pub(super) group: u32,
    /// Number of collectives called in the group so far, including this call.
    pub(super) collective: u64,
    /// Number of messages that this rank has called in the group so far, including this call.
    pub(super) messages: u64,
    /// For a message: its number among the messages in the same direction with the same peer. 0 for other calls.
    pub(super) pair: u64,
    /// True for a message or a one-sided call, and for the end of a batch that contains no collectives.
    pub(super) message: bool,
    /// True if the call is part of a batch.
    pub(super) batched: bool,
}

/// A record in the ring: a call, its numbers, and the state of its operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) number: u64,
    /// Number of the first record of the same work.
    pub(super) work: u64,
    pub(super) call: Call,
    pub(super) position: Position,
    pub(super) captured: bool,
    /// Time of the call, in [ticks](super::clock::ticks).
    pub(super) created: u64,
    /// Time at which the operation was first seen to have started, in ticks. 0 until then, and always 0 without timing.
    pub(super) started: u64,
    /// Time at which the operation was first seen to be complete, in ticks. 0 until then.
    pub(super) completed: u64,
    /// Time that the operation took on the device, in ns. 0 if that was not measured.
    pub(super) elapsed: u64,
    pub(super) site: &'static Location<'static>,
}

impl Call {
    /// Makes the record of one op, or of several ops that [`are_one`] combines, in a group of `size`
    /// members.
    #[inline(always)]
    pub(crate) fn of(ops: &[Op], size: usize) -> Self {
        match ops {
            [op] if !is_of_list(op) => Self::of_primitive(*op, size),
            _ => Self::of_list(ops),
        }
    }

    /// Marks the call as one that uses a path instead of NCCL.
    pub(crate) fn on_path(self) -> Self {
        Self { on_path: true, ..self }
    }

    /// Adds this call to the hash of its batch. Only data that must be equal on all members is added, hence
    /// no messages, no lengths of collectives that consist of messages, and no buffers outside windows.
    #[inline(always)]
    pub(super) fn fold(&self, batch: Fold) -> Fold {
        let length = match self.operation {
            message if message.is_message() => return batch,
            list if list.is_list_of_messages() => 0,
            _ => self.send,
        };
        let root = u64::from(self.peer.map_or(0, |root| root + 1));
        let kind =
            u64::from(self.operation as u8) << 16 | u64::from(self.dtype) << 8 | u64::from(self.reduction);
        let batch = batch.with(root << 24 | kind, length);
        let [send, receive] = self.places;
        match [send.in_plan(), receive.in_plan()] {
            [0, 0] => batch,
            [sent, received] => batch.with(send.plan(), sent).with(receive.plan(), received),
        }
    }

    #[inline(never)]
    fn of_list(ops: &[Op]) -> Self {
        let sum = |primitive| {
            let counts = ops.iter().filter(|op| op.primitive == primitive).map(|op| op.count as u64);
            counts.fold(0, u64::saturating_add)
        };
        let first = ops.first();
        Self {
            operation: first.map_or(Operation::Batch, |op| op.call),
            dtype: first.map_or(0, |op| op.dtype as u8),
            reduction: 0,
            peer: None,
            send: sum(Primitive::Send),
            receive: sum(Primitive::Recv),
            on_path: false,
            places: Default::default(),
        }
    }

    /// Makes the record of an op that is not one of the messages of a collective.
    #[inline(always)]
    fn of_primitive(op: Op, size: usize) -> Self {
        let Op { primitive, count, dtype, reduction, rank, places, .. } = op;
        let [send, receive] = match primitive {
            Primitive::PutSignal => [1, 0],
            Primitive::WaitSignals => [0, 1],
            _ => primitive.shares(size, true),
        }
        .map(|shares| (count as u64).saturating_mul(shares as u64));
        let reduction = match reduction {
            _ if !primitive.reduces() => 0,
            ReduceOp::Sum => 1,
            ReduceOp::Prod => 2,
            ReduceOp::Max => 3,
            ReduceOp::Min => 4,
            ReduceOp::Avg => 5,
            ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => 6,
        };
        let peer = u32::try_from(rank).ok().filter(|_| primitive.role().is_some());
        let operation = primitive.operation();
        Self { operation, dtype: dtype as u8, reduction, peer, send, receive, on_path: false, places }
    }

    /// Makes the record that ends a batch. Its operation is `operation` if that denotes the end of a batch,
    /// and otherwise [`Operation::Batch`].
    pub(super) fn end(operation: Operation) -> Self {
        let operation = if operation.is_end() { operation } else { Operation::Batch };
        let (on_path, places) = (false, Default::default());
        Self { operation, dtype: 0, reduction: 0, peer: None, send: 0, receive: 0, on_path, places }
    }
}

#[cfg(test)]
mod tests {
    use cuda_driver::DevicePtr;

    use super::*;
    use crate::{comm::DataType, memory::PlanKey};

    #[test]
    fn a_plan_is_compared_by_its_identity_and_not_by_its_number_here() {
        let fold = |digest, number, offset| {
            let place = WindowOffset::new(PlanKey { digest, number }, 3, offset);
            let op = Op::new(Primitive::AllReduce, DevicePtr(0), DevicePtr(0), 8, DataType::F32);
            Call::of(&[Op { places: [place; 2], ..op }], 2).fold(Fold::default())
        };
        let here = fold(7, 0, 64);
        assert!([1, 126, 127, 1000].into_iter().all(|number| fold(7, number, 64) == here));
        assert!([fold(8, 0, 64), fold(7 + (1 << 63), 0, 64), fold(7, 0, 65)].iter().all(|it| *it != here));
    }
}
