//! The recorded data of a call.

use crate::{
    comm::{self, ReduceOp, Task},
    memory::CommonPlace,
    watch::Fold,
};
use comm::Operation as Native;

/// The operation of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Operation {
    /// All-reduce.
    AllReduce,
    /// Broadcast.
    Broadcast,
    /// Reduce to a root.
    Reduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter.
    ReduceScatter,
    /// All-to-all.
    AllToAll,
    /// Gather to a root.
    Gather,
    /// Scatter from a root.
    Scatter,
    /// All-to-all of shares of any length.
    AllToAllList,
    /// Gather of shares of any length.
    GatherList,
    /// Scatter of shares of any length.
    ScatterList,
    /// Send to one member.
    Send,
    /// Receive from one member.
    Recv,
    /// The end of an all-gather of shares of any length, which consists of broadcasts.
    AllGatherList,
    /// The end of a reduce-scatter of shares of any length, which consists of reductions.
    ReduceScatterList,
    /// The end of a batch.
    Batch,
    /// Write into one member's window.
    PutSignal,
    /// Signal to one member.
    Signal,
    /// Wait for one member's signals.
    WaitSignals,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 19] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::AllToAllList,
        Self::GatherList,
        Self::ScatterList,
        Self::Send,
        Self::Recv,
        Self::AllGatherList,
        Self::ReduceScatterList,
        Self::Batch,
        Self::PutSignal,
        Self::Signal,
        Self::WaitSignals,
    ];

    /// Returns the name of its method.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAllList => "all_to_all_list",
            Self::GatherList => "gather_list",
            Self::ScatterList => "scatter_list",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::AllGatherList => "all_gather_list",
            Self::ReduceScatterList => "reduce_scatter_list",
            Self::Batch => "batch",
            Self::PutSignal => "put_signal",
            Self::Signal => "signal",
            Self::WaitSignals => "wait_signals",
        }
    }

    /// Returns the name that PyTorch's analyser uses. An operation whose members have buffers of different
    /// lengths is reported as all-to-all, because for that the analyser compares the total sent with the
    /// total received.
    #[must_use]
    pub const fn torch_name(self) -> &'static str {
        match self {
            Self::AllGather => "_all_gather_base",
            Self::ReduceScatter => "_reduce_scatter_base",
            Self::AllToAll | Self::AllToAllList | Self::GatherList | Self::ScatterList => "all_to_all",
            Self::AllGatherList => "ALLGATHER_coalesced",
            Self::ReduceScatterList => "REDUCE_SCATTER_coalesced",
            Self::Batch => "coalesced",
            other => other.name(),
        }
    }

    /// Returns true if it is between two members. Such calls are counted separately, or not at all.
    #[must_use]
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    /// Returns true if it has no matching call on the other member. Such calls are not counted.
    #[must_use]
    pub const fn is_one_sided(self) -> bool {
        matches!(self, Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    /// Returns true if it only marks the end of a batch, whose calls are recorded before it.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::AllGatherList | Self::ReduceScatterList | Self::Batch)
    }
}

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
    pub(super) places: [CommonPlace; 2],
}

/// Returns true if two consecutive tasks are recorded as one: messages of one collective, of which its
/// members need not have equally many.
pub(crate) fn are_one(former: &Task, next: &Task) -> bool {
    list_of(former).is_some() && former.call == next.call
}

/// Returns the collective that a message is a part of.
#[inline(always)]
fn list_of(task: &Task) -> Option<Operation> {
    const LISTS: [Operation; 3] = [Operation::AllToAllList, Operation::GatherList, Operation::ScatterList];
    match task.operation {
        Native::Send | Native::Recv => LISTS.into_iter().find(|list| list.name() == task.call),
        _ => None,
    }
}

impl Call {
    /// Returns the record of tasks that [are one](are_one), in a group of `size`.
    pub(crate) fn of(tasks: &[Task], size: usize) -> Self {
        match tasks {
            [task] => Self::of_one(*task, size),
            _ => Self::of_list(tasks),
        }
    }

    /// Marks it as sent on a path besides NCCL.
    pub(crate) fn on_path(self) -> Self {
        Self { on_path: true, ..self }
    }

    /// Like [`of`](Self::of), for a single task.
    #[inline(always)]
    pub(crate) fn of_one(task: Task, size: usize) -> Self {
        if list_of(&task).is_none() { Self::of_native(task, size) } else { Self::of_list(&[task]) }
    }

    /// Adds to a batch's hash the data that all members of a collective have in common. That excludes
    /// messages, the lengths of a list's shares, and places outside of windows.
    #[inline(always)]
    pub(super) fn fold(&self, batch: Fold) -> Fold {
        let length = match self.operation {
            message if message.is_message() => return batch,
            Operation::AllToAllList | Operation::GatherList | Operation::ScatterList => 0,
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

    fn of_list(tasks: &[Task]) -> Self {
        let sum = |operation| {
            let counts =
                tasks.iter().filter(|task| task.operation == operation).map(|task| task.count as u64);
            counts.fold(0, u64::saturating_add)
        };
        let first = tasks.first();
        Self {
            operation: first.and_then(list_of).unwrap_or(Operation::Batch),
            dtype: first.map_or(0, |task| task.dtype as u8),
            reduction: 0,
            peer: None,
            send: sum(Native::Send),
            receive: sum(Native::Recv),
            on_path: false,
            places: Default::default(),
        }
    }

    /// Returns the record of a task that is not part of a list.
    #[inline(always)]
    fn of_native(task: Task, size: usize) -> Self {
        let Task { operation, count, dtype, op, rank, places, .. } = task;
        let (one, all) = (count as u64, (count as u64).saturating_mul(size as u64));
        let (operation, send, receive, reduces, names) = match operation {
            Native::AllReduce => (Operation::AllReduce, one, one, true, false),
            Native::Broadcast => (Operation::Broadcast, one, one, false, true),
            Native::Reduce => (Operation::Reduce, one, one, true, true),
            Native::AllGather => (Operation::AllGather, one, all, false, false),
            Native::ReduceScatter => (Operation::ReduceScatter, all, one, true, false),
            Native::AllToAll => (Operation::AllToAll, all, all, false, false),
            Native::Gather => (Operation::Gather, one, all, false, true),
            Native::Scatter => (Operation::Scatter, all, one, false, true),
            Native::Send => (Operation::Send, one, 0, false, true),
            Native::Recv => (Operation::Recv, 0, one, false, true),
            Native::PutSignal => (Operation::PutSignal, one, 0, false, true),
            Native::Signal => (Operation::Signal, 0, 0, false, true),
            Native::WaitSignals => (Operation::WaitSignals, 0, one, false, true),
        };
        let reduction = match op {
            _ if !reduces => 0,
            ReduceOp::Sum => 1,
            ReduceOp::Prod => 2,
            ReduceOp::Max => 3,
            ReduceOp::Min => 4,
            ReduceOp::Avg => 5,
            ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => 6,
        };
        let peer = u32::try_from(rank).ok().filter(|_| names);
        Self { operation, dtype: dtype as u8, reduction, peer, send, receive, on_path: false, places }
    }

    /// Returns the end of the batch that `name` consists of.
    pub(super) fn end(name: &str) -> Self {
        let named =
            Operation::ALL.into_iter().find(|operation| operation.is_end() && operation.name() == name);
        let operation = named.unwrap_or(Operation::Batch);
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
    fn codes_are_places() {
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, place);
        }
    }

    #[test]
    fn a_plan_is_compared_by_its_identity_and_not_by_its_number_here() {
        let fold = |digest, number, offset| {
            let place = CommonPlace::new(PlanKey { digest, number }, 3, offset);
            let task = Task::new(Native::AllReduce, DevicePtr(0), DevicePtr(0), 8, DataType::F32);
            Call::of_one(Task { places: [place; 2], ..task }, 2).fold(Fold::default())
        };
        let here = fold(7, 0, 64);
        assert!([1, 126, 127, 1000].into_iter().all(|number| fold(7, number, 64) == here));
        assert!([fold(8, 0, 64), fold(7 + (1 << 63), 0, 64), fold(7, 0, 65)].iter().all(|it| *it != here));
    }
}
