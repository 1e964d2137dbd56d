//! What a [`GroupError`](super::GroupError) reports about buffers, messages, shrinking and PyTorch's ranks.

use std::time::Duration;

use bootstrap::{Ranges, wire::wire_struct};

/// The two ends of a message have made different calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {number} of rank {from} to rank {to}: {sent} were sent, but {received} received")]
pub struct MessageDifference {
    /// The sender; in a group's error, its rank of the job.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// The number of the message from the one to the other, beginning with 1.
    pub number: u64,
    /// The data sent: the number of elements and their type.
    pub sent: String,
    /// The data that the other end would receive.
    pub received: String,
}
wire_struct!(MessageDifference { from, to, number, sent, received });

/// The reason why a path has not launched messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// They cannot be launched. Nothing was enqueued, and the other ends were told nothing.
    #[error("{0}")]
    Refused(String),
    /// A message does not match the other end's call.
    #[error(transparent)]
    Differ(#[from] MessageDifference),
    /// This rank is too far ahead of a peer.
    #[error(
        "{messages} messages with rank {peer} are under way, and it has not called for the first of them after {waited:.1?}"
    )]
    Ahead {
        /// The peer.
        peer: usize,
        /// The number of messages.
        messages: u64,
        /// The time that this rank waited.
        waited: Duration,
    },
    /// The path was aborted.
    #[error("the path was aborted")]
    Aborted,
    /// A member has ended unfinished work. Received data is not valid, and the group is over.
    #[error("rank {peer} has ended what was under way, so what has arrived is not to be trusted")]
    GivenUp {
        /// The member.
        peer: usize,
    },
    /// An error of the CUDA driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

/// A buffer of a collective that does not lie at the same place on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{buffer} lies {place} on rank {rank}, but {} on rank {other}", differing(.place, .other_place))]
pub struct Misplaced {
    /// The call and the buffer.
    pub buffer: String,
    /// The rank of the job that differs from the majority.
    pub rank: usize,
    /// The buffer's place on that rank.
    pub place: String,
    /// Another rank of the job.
    pub other: usize,
    /// The buffer's place on the other rank.
    pub other_place: String,
}
wire_struct!(Misplaced { buffer, rank, place, other, other_place });

/// Returns the part of `other` that differs from `place`: the offset if both lie in one segment, otherwise all of it.
fn differing<'a>(place: &str, other: &'a str) -> &'a str {
    match (place.rsplit_once(" at offset "), other.rsplit_once(" at offset ")) {
        (Some((segment, _)), Some((same, _))) if segment == same => other[same.len()..].trim_start(),
        _ => other,
    }
}

/// The reason why a group cannot be shrunk as its members asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// Two members exclude different ranks.
    #[error(
        "rank {rank} leaves out the ranks {}, but rank {other} the ranks {}; ask again when both know the same",
        Ranges(.excluded), Ranges(.other_excluded)
    )]
    Differ {
        /// One member.
        rank: usize,
        /// The ranks that it excludes.
        excluded: Vec<usize>,
        /// The other.
        other: usize,
        /// The ranks that the other excludes.
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
        /// The keys that releases use.
        looked_for: Vec<String>,
        /// The keys in the store; empty if the store cannot list them.
        found: Vec<String>,
        /// The time that this rank waited.
        waited: Duration,
    },

    /// The job has so many ranks that PyTorch uses several unique ids.
    #[error(
        "of {size} ranks PyTorch has every {limit} share a unique id, and a job can be joined that has one; give \
         all ranks TORCH_NCCL_RANKS_PER_ROOT={size}"
    )]
    SeveralRoots {
        /// The world size.
        size: usize,
        /// The number of ranks that share one.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_both_values() {
        let (sent, received) = ("3 f32".to_owned(), "4 f32".to_owned());
        let text = MessageDifference { from: 5, to: 6, number: 2, sent, received }.to_string();
        assert_eq!(text, "message 2 of rank 5 to rank 6: 3 f32 were sent, but 4 f32 received");
    }
}
