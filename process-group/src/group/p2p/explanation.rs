//! Explanations of the cost of a choice of communicators.

use std::fmt;

/// The cost of the communicators or the path that carry a group's messages. Logged once per group as a
/// warning, with the feature `tracing`, and listed in the [report](crate::ProcessGroup::p2p).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Explanation {
    /// Messages use the group's communicator, which runs them one after the other. With
    /// [`P2pPolicy::Auto`](super::P2pPolicy::Auto) in a lazy group, this applies to at least one pair of ranks, and
    /// other pairs may have their own communicators.
    Serialised,
    /// There are fewer lanes than needed to give each peer of a member its own lane.
    SharedLanes {
        /// The number of lanes.
        lanes: usize,
        /// Number of lanes with which no two peers of a member share a lane.
        wanted: usize,
    },
    /// Each pair of ranks that exchanges messages has its own communicator. With
    /// [`P2pPolicy::Auto`](super::P2pPolicy::Auto) in a lazy group, this applies to at least one pair, and other pairs
    /// may use the group's communicator. Messages in batches use the group's communicator.
    CommunicatorsOfPairs,
    /// Messages use a [path](crate::Path), which needs no communicator, but device memory for each peer.
    OnPath,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serialised => f.write_str(
                "messages go on the group's communicator, where NCCL runs them one after the other, on whatever \
                 streams they are: batch those that are to run at once, or choose P2pPolicy::Lanes",
            ),
            Self::OnPath => f.write_str(
                "messages go on a path beside NCCL, as all members agreed by P2pPolicy::Direct: no communicator for them, \
                 and device memory for each peer, which ProcessGroup::p2p states",
            ),
            Self::SharedLanes { lanes, wanted } => write!(
                f,
                "{lanes} lanes: a member's messages with different peers may share one, and wait for each other \
                 there; {wanted} lanes keep all peers apart, at a communicator's memory each",
            ),
            Self::CommunicatorsOfPairs => f.write_str(
                "each pair of ranks that exchanges a message has a communicator of its own, made at its first \
                 message: device memory for every peer (hundreds of MB each), and a wait for the other end; connect \
                 the group first for P2pPolicy::Auto to do without, or bound the memory by P2pPolicy::Lanes",
            ),
        }
    }
}
