//! Errors of transfers.

use std::time::Duration;

use super::{
    protocol::Part,
    regions::{DescriptorError, Side},
};
use crate::rendezvous::DeviceKind;

/// Condition that a rank waits for until a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Awaited {
    /// The peer's signal that the copy may begin: see [`Plan::ready`](super::Plan::ready).
    Ready,
    /// The end of the peer's copy.
    Done,
    /// The end of a graph launch. The graph may contain waits for `Ready` and for `Done`.
    Graph,
    /// The peer's [notification](super::Regions::transfer_and_notify) after a transfer between regions.
    Notification,
    /// The end of this rank's copies between regions, and of earlier work of the stream.
    Copies,
}

/// Reason why a [plan](super::Plan) has failed, or why the transfers between the [regions](super::Regions) of two ranks
/// have failed. The buffers of these transfers hold undefined data. Their memory stays allocated, and the CUDA context
/// stays usable. Unless the group has ended, the [`Exchange`](super::Exchange) stays usable too: the next call of
/// `exchange` or `share_regions` makes a new plan or new regions, also with the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An operation did not end by its deadline, usually because a peer is late.
    ///
    /// An earlier operation on the same stream may block the late one. So `transfer`, `peer` and `awaited` describe the
    /// first operation on that stream that has not ended. They describe the late operation itself in these cases:
    /// - The late operation is the first one.
    /// - The first operation has no deadline, or belongs to another plan (for regions: to the transfers with another
    ///   peer).
    /// - The stream is a per-thread default stream.
    #[error("Late: {} within {waited:.1?} (transfer {transfer})", match awaited {
        Awaited::Ready => format!("rank {peer} did not let the copy begin"),
        Awaited::Done => format!("rank {peer} did not end the copy"),
        Awaited::Graph => format!("rank {peer} did not take its part in the graph"),
        Awaited::Notification => format!("rank {peer} did not notify this rank"),
        Awaited::Copies => format!("the copies with rank {peer}, and earlier work of their stream, did not end"),
    })]
    Late {
        /// Index of the transfer that did not proceed, in the plan's list. 0 for a graph and for regions.
        transfer: usize,
        /// The peer of that transfer, as a rank of the job. For a graph, the peer of transfer 0, although another peer
        /// may be the late one.
        peer: u32,
        /// The condition that was not met in time.
        awaited: Awaited,
        /// Time since the late operation was enqueued. An earlier operation of the same stream may have delayed it.
        waited: Duration,
    },
    /// One of these has happened:
    /// - The plan, or the transfers between regions, have failed on a peer.
    /// - The peer has dropped its regions.
    #[error(
        "Abandoned: rank {peer} has given up the plan: late, broken or aborted there, or its regions were dropped"
    )]
    Abandoned {
        /// The peer, as a rank of the job.
        peer: u32,
    },
    /// The plan, or the transfers between regions, were aborted on this rank.
    #[error("Aborted: the plan was aborted on this rank")]
    Aborted,
    /// The group has ended.
    #[error("GroupOver: the group ended: {cause}")]
    GroupOver {
        /// Error that ended the group.
        cause: String,
    },
    /// A transfer was enqueued in part, or the driver failed to record the CUDA event that marks the end of enqueued
    /// work.
    #[error("Broken: transfer {transfer} was enqueued in part: {cause}")]
    Broken {
        /// Index of the transfer. 0 for a graph and for regions.
        transfer: usize,
        /// Error of the driver.
        cause: String,
    },
}

/// Error of a transfer of a [plan](super::Plan) or between [regions](super::Regions), or of its preparation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The group has no such rank.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank within the group.
        rank: usize,
        /// Size of the group.
        world: usize,
    },
    /// The peer of a call or of a transfer is this rank itself.
    #[error("rank {rank} has a transfer with itself; copy on a stream instead")]
    ToSelf {
        /// The rank within the group.
        rank: usize,
    },
    /// The memory has 0 bytes.
    #[error("a transfer of no bytes")]
    Empty,
    /// The memory does not belong to a CUDA device, so the copy engines of the CUDA driver cannot access it.
    #[error(
        "OtherDevice: memory of kind {kind:?}, which copy engines of the CUDA driver do not reach; expected memory of \
         kind {:?}",
        DeviceKind::Cuda
    )]
    OtherDevice {
        /// The kind of device.
        kind: DeviceKind,
    },
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
    /// The range extends beyond the memory.
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
    /// This rank's [role](super::Part) in the transfer does not allow the call.
    #[error("WrongPart: in transfer {at} this rank {found}; `{asked}` is for a rank that {}", match expected {
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
    /// [`ready`](super::Plan::ready) and [`wait`](super::Plan::wait) of a transfer were not called alternately.
    #[error("OutOfTurn: transfer {at}: `{asked}` comes after `{expected}`")]
    OutOfTurn {
        /// Index of the transfer.
        at: usize,
        /// Name of the function called.
        asked: &'static str,
        /// Name of the function that must be called before.
        expected: &'static str,
    },
    /// One of these is invalid: a [descriptor](super::Descriptor) of a transfer between regions, a range to
    /// [prepare](super::Regions::prepare), or a pair of prepared ranges. Nothing was transferred or prepared.
    #[error("descriptor {at}: {problem}")]
    Descriptor {
        /// Index of the descriptor, range or pair in its list.
        at: usize,
        /// The reason.
        problem: DescriptorError,
    },
    /// A transfer of [prepared ranges](super::PreparedRanges) selects more ranges of one rank than of the other.
    /// Nothing was transferred.
    #[error("{local} indices of local ranges and {remote} of remote ranges, expected as many")]
    IndexCounts {
        /// Number of indices of this rank's ranges.
        local: usize,
        /// Number of indices of the peer's ranges.
        remote: usize,
    },
    /// Ranges passed to [`transfer_prepared`](super::Regions::transfer_prepared) were prepared by another set of
    /// regions, or the `local` ranges are not this rank's. Nothing was transferred.
    #[error(
        "OtherRanges: the {side} list has ranges of rank {rank} in regions {regions:?} of generation {generation}; \
         prepare a list of {side} ranges with the set of the transfer"
    )]
    OtherRanges {
        /// The side of the list.
        side: Side,
        /// The rank in whose regions the ranges lie, as a rank within the group.
        rank: usize,
        /// Name of the set of regions that prepared the list.
        regions: String,
        /// [Generation](super::Regions::generation) of that set.
        generation: u64,
    },
    /// The rank passed to a function of [`Regions`](super::Regions) belongs to the group, but does not share this set
    /// of regions.
    #[error("rank {rank} of the group does not share the regions, which belong to ranks {members:?}")]
    NotShared {
        /// The rank asked for, within the group.
        rank: usize,
        /// The members, as ranks within the group.
        members: Vec<usize>,
    },
    /// One of these calls was made:
    /// - On a stream that captures, a call that sends a notification or waits for one. Each notification has its own
    ///   number, but every launch of the graph would use the captured number again.
    /// - [`is_done`](super::PendingTransfer::is_done) for a captured transfer. Each launch of the graph repeats the
    ///   transfer, so it has no single end.
    #[error(
        "Captured: `{asked}` on a stream that captures; capture the transfer alone, and call it between launches"
    )]
    Captured {
        /// Name of the function called.
        asked: &'static str,
    },
    /// A block of a caching allocator cannot be kept allocated for the exchange. One of the segments (allocations of
    /// the driver) in which the block lies is about to move or to be released, so the exchange cannot take a
    /// [hold](caching_alloc::core::Segment::hold) on it.
    #[error("the block at {address:#x} cannot be held: {cause}")]
    Unheld {
        /// Address of the block.
        address: u64,
        /// The reason.
        cause: String,
    },
    /// The memory of a slice is neither memory of a symmetric pool nor of a caching allocator, so peers cannot open it.
    #[error(
        "ForeignSlice: the slice at {address:#x} is neither memory of a symmetric pool nor of a caching allocator; \
         allocate it with SymmetricPool::alloc or DeviceAllocator::alloc"
    )]
    ForeignSlice {
        /// Address of the slice.
        address: u64,
    },
    /// A later plan or set of regions of the same name has replaced this one.
    #[error(
        "StalePlan: plan {plan:?} of generation {found}, expected generation {expected}: it was exchanged again since"
    )]
    StalePlan {
        /// Name of the plan, or of the set of regions.
        plan: String,
        /// The [generation](super::Plan::generation) of the plan or set that is current under this name.
        expected: u64,
        /// The generation of this plan or set.
        found: u64,
    },
    /// The plan has failed, or the transfers between the regions of this rank and the peer have failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}
