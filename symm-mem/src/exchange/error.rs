//! Errors of transfers.

use std::time::Duration;

use super::protocol::Part;

/// Event that a transfer waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// The peer's `ready`, which lets the copy begin.
    Ready,
    /// The end of the peer's copy.
    Done,
    /// The end of a graph, which may wait for either.
    Graph,
}

/// Reason why a plan has stopped. Its buffers hold undefined data. The memory, the context and the exchange are
/// intact, and the next exchange of the same name makes a new plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A peer did not do its part in time.
    #[error("Late: rank {peer} did not {} within {waited:.1?} (transfer {transfer})", match awaited {
        Awaited::Ready => "let the copy begin",
        Awaited::Done => "end the copy",
        Awaited::Graph => "take its part in the graph",
    })]
    Late {
        /// Index of the transfer in the plan; for a graph, the first one of the plan.
        transfer: usize,
        /// The peer, as a rank of the job; for a graph that of the first transfer.
        peer: u32,
        /// The event that did not occur in time.
        awaited: Awaited,
        /// Time waited.
        waited: Duration,
    },
    /// A peer has given up the plan.
    #[error("Abandoned: rank {peer} has given up the plan: late, broken or aborted there")]
    Abandoned {
        /// The peer, as a rank of the job.
        peer: u32,
    },
    /// The plan was aborted on this rank.
    #[error("Aborted: the plan was aborted on this rank")]
    Aborted,
    /// The group is over.
    #[error("GroupOver: the group ended: {cause}")]
    GroupOver {
        /// Error that ended the group.
        cause: String,
    },
    /// A transfer was enqueued in part.
    #[error("Broken: transfer {transfer} was enqueued in part: {cause}")]
    Broken {
        /// Index of the transfer.
        transfer: usize,
        /// Error of the driver.
        cause: String,
    },
}

/// Error of one transfer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The group has no such rank.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// Size of the group.
        world: usize,
    },
    /// A transfer from a rank to itself.
    #[error("rank {rank} has a transfer with itself; copy on a stream instead")]
    ToSelf {
        /// The rank.
        rank: usize,
    },
    /// The memory is empty.
    #[error("a transfer of no bytes")]
    Empty,
    /// A tensor whose elements are not contiguous in row-major order.
    #[error(
        "NotContiguous: strides {strides:?} of shape {shape:?}; copy engines move bytes that lie next to each other: \
         transfer a contiguous copy"
    )]
    NotContiguous {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },
    /// The range leaves the memory.
    #[error("{bytes} bytes at byte {offset} leave the memory of {whole} bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset: usize,
        /// Length of the range in bytes.
        bytes: usize,
        /// Length of the memory in bytes.
        whole: usize,
    },
    /// The plan has no such transfer.
    #[error("transfer {at} of a plan that has {transfers}")]
    NoSuchTransfer {
        /// The index asked for.
        at: usize,
        /// Number of transfers of the plan.
        transfers: usize,
    },
    /// The call belongs to the other end of the transfer.
    #[error("WrongPart: in transfer {at} this rank {found}; `{asked}` is for who {}", match expected {
        [one] => one.to_string(),
        [one, other] => format!("{one}, or {other}"),
        _ => "has another part".to_owned(),
    })]
    WrongPart {
        /// Index of the transfer.
        at: usize,
        /// Name of the function called.
        asked: &'static str,
        /// Roles that may call it.
        expected: &'static [Part],
        /// Role of this rank.
        found: Part,
    },
    /// `ready` and `wait` were not called alternately.
    #[error("OutOfTurn: transfer {at}: `{asked}` comes after `{expected}`")]
    OutOfTurn {
        /// Index of the transfer.
        at: usize,
        /// Name of the function called.
        asked: &'static str,
        /// Name of the function that must be called before.
        expected: &'static str,
    },
    /// A later exchange has replaced the plan.
    #[error(
        "StalePlan: plan {plan:?} of generation {found}, expected generation {expected}: it was exchanged again since"
    )]
    StalePlan {
        /// The plan's name.
        plan: String,
        /// The current generation.
        expected: u64,
        /// The generation of this plan.
        found: u64,
    },
    /// The plan has stopped.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
