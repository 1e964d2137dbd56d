//! What a choice of communicators costs, in words.

use std::fmt;

/// The cost of a choice. Reported once per group as a warning of feature `tracing`, and kept in the
/// [report](crate::ProcessGroup::p2p).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Explanation {
    /// Messages share the group's communicator.
    Serialised,
    /// There are fewer lanes than peers.
    SharedLanes {
        /// The number of lanes.
        lanes: usize,
        /// The number of lanes that would keep all peers of a member apart.
        wanted: usize,
    },
    /// Communicators are made for pairs.
    CommunicatorsOfPairs,
    /// Messages go on a path: no communicator for them, and device memory for each peer.
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
