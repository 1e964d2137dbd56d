//! The recorded data of a call.

use crate::{
    comm::{Primitive, ReduceOp, Task},
    memory::WindowOffset,
    operation::Operation,
    watch::Fold,
};

/// The reductions' names. The first stands for no reduction.
pub(super) const REDUCTIONS: [&str; 7] = ["", "sum", "prod", "max", "min", "avg", "premul_sum"];

/// One call, as the operation describes it before it is launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(super) operation: Operation,
    /// The type's discriminant.
    pub(super) dtype: u8,
    /// Its index in [`REDUCTIONS`].
    pub(super) reduction: u8,
    /// The root, or the other end of a message.
    pub(super) peer: Option<u32>,
    /// Elements read.
    pub(super) send: u64,
    /// Elements written, or signals waited for.
    pub(super) receive: u64,
    /// True if it uses a path besides NCCL.
    pub(super) on_path: bool,
    /// The positions of the send and the receive buffer, if they need the same position on all ranks.
    pub(super) places: [WindowOffset; 2],
}

/// Returns true if two consecutive tasks are recorded as one: messages of one collective, of which its
/// members need not have equally many.
pub(crate) fn are_one(former: &Task, next: &Task) -> bool {
    is_of_list(former) && former.call == next.call
}

/// Returns true for a message that is a part of a collective.
#[inline(always)]
fn is_of_list(task: &Task) -> bool {
    task.primitive.is_message() && task.call.is_list_of_messages()
}

impl Call {
    /// Returns the record of tasks that [are one](are_one), in a group of `size`.
    #[inline(always)]
    pub(crate) fn of(tasks: &[Task], size: usize) -> Self {
        match tasks {
            [task] if !is_of_list(task) => Self::of_primitive(*task, size),
            _ => Self::of_list(tasks),
        }
    }

    /// Marks it as sent on a path besides NCCL.
    pub(crate) fn on_path(self) -> Self {
        Self { on_path: true, ..self }
    }

    /// Adds to a batch's hash the data that all members of a collective have in common. That excludes
    /// messages, the lengths of a list's shares, and places outside of windows.
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
    fn of_list(tasks: &[Task]) -> Self {
        let sum = |primitive| {
            let counts =
                tasks.iter().filter(|task| task.primitive == primitive).map(|task| task.count as u64);
            counts.fold(0, u64::saturating_add)
        };
        let first = tasks.first();
        Self {
            operation: first.map_or(Operation::Batch, |task| task.call),
            dtype: first.map_or(0, |task| task.dtype as u8),
            reduction: 0,
            peer: None,
            send: sum(Primitive::Send),
            receive: sum(Primitive::Recv),
            on_path: false,
            places: Default::default(),
        }
    }

    /// Returns the record of a task that is not part of a list.
    #[inline(always)]
    fn of_primitive(task: Task, size: usize) -> Self {
        let Task { primitive, count, dtype, op, rank, places, .. } = task;
        let [send, receive] = match primitive {
            Primitive::PutSignal => [1, 0],
            Primitive::WaitSignals => [0, 1],
            _ => primitive.shares(size, true),
        }
        .map(|shares| (count as u64).saturating_mul(shares as u64));
        let reduction = match op {
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

    /// Returns the end of the batch that `operation` consists of.
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
            let task = Task::new(Primitive::AllReduce, DevicePtr(0), DevicePtr(0), 8, DataType::F32);
            Call::of(&[Task { places: [place; 2], ..task }], 2).fold(Fold::default())
        };
        let here = fold(7, 0, 64);
        assert!([1, 126, 127, 1000].into_iter().all(|number| fold(7, number, 64) == here));
        assert!([fold(8, 0, 64), fold(7 + (1 << 63), 0, 64), fold(7, 0, 65)].iter().all(|it| *it != here));
    }
}
