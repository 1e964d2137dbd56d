//! The operations of groups, and the operations of NCCL that they consist of, with one table for each property.

use std::fmt;

/// An operation of a group.
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
    /// Marks the end of the broadcasts that make up an all-gather of shares of any length.
    AllGatherList,
    /// Marks the end of the reductions that make up a reduce-scatter of shares of any length.
    ReduceScatterList,
    /// Marks the end of a batch.
    Batch,
    /// Write into one member's window, then signal to that member.
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

    /// Returns the name of the method that performs the operation.
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

    /// Returns the name that PyTorch's flight recorder analyser uses. An operation whose members have buffers of
    /// different lengths is reported as all-to-all, because for all-to-all the analyser compares the total sent with
    /// the total received.
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

    /// Returns true if the operation takes place between two members. Such calls are counted separately from
    /// collectives. [One-sided](Self::is_one_sided) calls are not counted.
    #[must_use]
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    /// Returns true if the operation needs no matching call on the other member. Such calls are not counted.
    #[must_use]
    pub const fn is_one_sided(self) -> bool {
        matches!(self, Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    /// Returns true if the operation consists of messages, whose number may differ between the members.
    pub(crate) const fn is_list_of_messages(self) -> bool {
        matches!(self, Self::AllToAllList | Self::GatherList | Self::ScatterList)
    }

    /// Returns true if a record of this operation only marks the end of a batch. The calls of the batch have records
    /// of their own, before the mark.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::AllGatherList | Self::ReduceScatterList | Self::Batch)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An operation that NCCL carries out: by one call or, in old releases, by messages in one NCCL group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Primitive {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Recv,
    PutSignal,
    Signal,
    WaitSignals,
}

impl Primitive {
    pub(crate) const ALL: [Self; 13] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Send,
        Self::Recv,
        Self::PutSignal,
        Self::Signal,
        Self::WaitSignals,
    ];

    /// Returns the `ProcessGroup` operation that consists of this primitive alone.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Broadcast => Operation::Broadcast,
            Self::Reduce => Operation::Reduce,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::AllToAll => Operation::AllToAll,
            Self::Gather => Operation::Gather,
            Self::Scatter => Operation::Scatter,
            Self::Send => Operation::Send,
            Self::Recv => Operation::Recv,
            Self::PutSignal => Operation::PutSignal,
            Self::Signal => Operation::Signal,
            Self::WaitSignals => Operation::WaitSignals,
        }
    }

    /// Returns true for a send or a receive.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Returns true for puts, signals, and waits for signals.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self, Self::PutSignal | Self::Signal | Self::WaitSignals)
    }

    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns the length of the send buffer and of the receive buffer, in shares (of `count` elements each), for a
    /// communicator of `size` ranks; 0 for an unused buffer. `named` is true on the rank that is the operation's root
    /// or peer. Both lengths are 0 for one-sided operations, whose buffers lie in windows and are checked separately.
    #[inline(always)]
    pub(crate) fn shares(self, size: usize, named: bool) -> [usize; 2] {
        let root = if named { size } else { 0 };
        match self {
            Self::AllReduce => [1, 1],
            Self::Broadcast => [usize::from(named), 1],
            Self::Reduce => [1, usize::from(named)],
            Self::AllGather => [1, size],
            Self::ReduceScatter => [size, 1],
            Self::AllToAll => [size, size],
            Self::Gather => [1, root],
            Self::Scatter => [root, 1],
            Self::Send => [1, 0],
            Self::Recv => [0, 1],
            Self::PutSignal | Self::Signal | Self::WaitSignals => [0, 0],
        }
    }

    /// Returns the overlap of the send and the receive buffer that this primitive allows. `named` is as for
    /// [`shares`](Self::shares).
    pub(crate) const fn in_place(self, named: bool) -> InPlace {
        match self {
            // A put writes into the window of another rank.
            Self::PutSignal if !named => InPlace::Anywhere,
            Self::AllReduce | Self::Broadcast | Self::Reduce => InPlace::Same,
            Self::AllGather | Self::Gather => InPlace::ShareOfReceive,
            Self::ReduceScatter | Self::Scatter => InPlace::ShareOfSend,
            _ => InPlace::Never,
        }
    }

    /// Returns, for the send and the receive buffer, whether NCCL requires the same offset of the same window on
    /// every rank if the buffer lies in a window.
    pub(crate) const fn symmetric(self) -> [bool; 2] {
        match self {
            Self::AllReduce | Self::AllToAll => [true, true],
            Self::ReduceScatter | Self::Gather => [true, false],
            Self::AllGather | Self::Scatter => [false, true],
            _ => [false, false],
        }
    }

    /// Returns the role of the rank that is an argument of the operation. `None` if the operation has no such
    /// argument.
    pub(crate) const fn role(self) -> Option<&'static str> {
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter => Some("root"),
            Self::Send | Self::Recv | Self::PutSignal | Self::Signal | Self::WaitSignals => Some("peer"),
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll => None,
        }
    }

    /// Returns the rule that the lengths of the send and the receive buffer must satisfy.
    pub(crate) const fn length_rule(self) -> &'static str {
        match self {
            Self::AllGather | Self::Gather => "receive must hold send's once for every member",
            Self::ReduceScatter | Self::Scatter => "send must hold receive's once for every member",
            Self::AllToAll => "both must hold one share for every member",
            Self::Reduce => "both must be equal on the root",
            _ => "both must be equal",
        }
    }
}

/// How the send and the receive buffer of an operation may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// The buffers have the same address, or do not overlap.
    Same,
    /// The send buffer is this rank's share of the receive buffer, or the buffers do not overlap.
    ShareOfReceive,
    /// The receive buffer is this rank's share of the send buffer, or the buffers do not overlap.
    ShareOfSend,
    /// The buffers must not overlap.
    Never,
    /// The buffers may overlap in any way.
    Anywhere,
}

impl InPlace {
    pub(crate) const fn allowed(self) -> &'static str {
        match self {
            Self::Same => "in place they must be the same address",
            Self::ShareOfReceive => {
                "in place the send buffer must be this rank's share of the receive buffer (rank times its bytes)"
            }
            Self::ShareOfSend => {
                "in place the receive buffer must be this rank's share of the send buffer (rank times its bytes)"
            }
            Self::Never | Self::Anywhere => "this operation has no in-place form",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_places() {
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, place);
        }
    }
}
