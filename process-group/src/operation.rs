//! The kinds of operations.

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
