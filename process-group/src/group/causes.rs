//! Sources of [`GroupErrorKind`](super::GroupErrorKind)s about buffers, messages, shrinking and joining PyTorch's
//! ranks.

use std::time::Duration;

use bootstrap::{Ranges, wire::wire_struct};

use crate::watch::MessageDifference;

/// An error of a [`Path`](super::path::Path), the transport that carries messages in place of NCCL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path refused the messages. Nothing was enqueued, and no peer was notified.
    #[error("{0}")]
    Refused(String),
    /// A message does not match the peer's call.
    #[error(transparent)]
    Differ(#[from] MessageDifference),
    /// This rank is too far ahead of a peer: too many of its messages with that peer are still waiting for the peer's
    /// matching calls.
    #[error(
        "{messages} messages with rank {peer} are under way, and it has not called for the first of them after {waited:.1?}"
    )]
    Ahead {
        /// The peer's rank in the group.
        peer: usize,
        /// The number of messages with the peer that are under way.
        messages: u64,
        /// The time that this rank waited.
        waited: Duration,
    },
    /// The path was aborted.
    #[error("the path was aborted")]
    Aborted,
    /// A member has given up work before completion. Received data may be invalid, and the group is over.
    #[error("rank {peer} has ended what was under way, so what has arrived is not to be trusted")]
    GivenUp {
        /// The member's rank of the job.
        peer: usize,
    },
    /// The two ends of a message do not know the same memory.
    #[error("a message with rank {peer}: {problem}")]
    Unreachable {
        /// The peer's rank in the group.
        peer: usize,
        /// The problem.
        problem: String,
    },
    /// An error of the CUDA driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

/// A buffer of a collective that does not lie at the same position of symmetric memory on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{buffer} lies {place} on rank {rank}, but {} on rank {other}", differing(.place, .other_place))]
pub struct Misplaced {
    /// A description of the call and of the buffer.
    pub buffer: String,
    /// The rank of the job that differs from the majority.
    pub rank: usize,
    /// The buffer's position on `rank`.
    pub place: String,
    /// Another rank of the job, where the position is different.
    pub other: usize,
    /// The buffer's position on `other`.
    pub other_place: String,
}
wire_struct!(Misplaced { buffer, rank, place, other, other_place });

/// Returns the part of the text `other` that differs from the text `place`: the offset if both name the same segment,
/// otherwise all of `other`.
fn differing<'a>(place: &str, other: &'a str) -> &'a str {
    match (place.rsplit_once(" at offset "), other.rsplit_once(" at offset ")) {
        (Some((segment, _)), Some((same, _))) if segment == same => other[same.len()..].trim_start(),
        _ => other,
    }
}

/// The reason why the members' calls that shrink a group do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// Two members exclude different ranks.
    #[error(
        "rank {rank} leaves out the ranks {}, but rank {other} the ranks {}; ask again when both know the same",
        Ranges(.excluded), Ranges(.other_excluded)
    )]
    Differ {
        /// One member's rank in the group.
        rank: usize,
        /// The ranks of the group that `rank` excludes.
        excluded: Vec<usize>,
        /// Another member's rank in the group.
        other: usize,
        /// The ranks of the group that `other` excludes.
        other_excluded: Vec<usize>,
    },
}

/// The reason why a rank cannot join a `torch.distributed` job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
    /// Rank 0 has not published a unique id.
    #[error(
        "rank 0 has put a unique id under none of the keys {looked_for:?} (waited {waited:.1?}); it does when it makes its \
         communicator: in init_process_group with a device_id, else in its first collective. The store holds {found:?}"
    )]
    NoUniqueId {
        /// The store keys under which the supported PyTorch releases publish the unique id.
        looked_for: Vec<String>,
        /// The keys in the store; empty if the store cannot list them.
        found: Vec<String>,
        /// The time that this rank waited.
        waited: Duration,
    },

    /// The job has so many ranks that PyTorch uses several unique ids. Only a job with one unique id can be joined.
    #[error(
        "of {size} ranks PyTorch has every {limit} share a unique id, and a job can be joined that has one; give \
         all ranks TORCH_NCCL_RANKS_PER_ROOT={size}"
    )]
    SeveralRoots {
        /// The world size.
        size: usize,
        /// The maximum number of ranks that share one unique id.
        limit: usize,
    },
}
