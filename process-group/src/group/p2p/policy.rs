//! Policies that select the communicator or path for a group's messages.

use std::fmt;

/// Selects the communicators for messages that are not in a batch, or a path for all messages. All members
/// must choose the same policy. This is checked when they join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum P2pPolicy {
    /// Messages use the group's communicator, which runs them one after the other. Needs no further memory.
    Shared,
    /// Messages use this many further communicators, the lanes (1 to [`MAX_LANES`](Self::MAX_LANES)). All
    /// members make the lanes together with the group's communicator. [`lane`](super::lane()) assigns each
    /// message to a lane. Messages in different lanes and on different streams run concurrently. The memory
    /// for the lanes' communicators does not depend on the number of peers.
    Lanes(u32),
    /// Each pair of members uses its own communicator, which the two members make at their first message.
    /// Messages with different peers run concurrently. The two directions of one pair do not. Needs the
    /// memory of one communicator for every peer with which messages are exchanged.
    PerPair,
    /// Messages use no communicator, but a [path](crate::Path) that another crate installs. For example,
    /// `symm_mem::direct::install` of lockstep-symm-mem installs a path that uses symmetric memory and copy
    /// engines. Messages in batches use the path too. Messages with different peers, and both directions of
    /// one pair, run concurrently. The memory needed depends on the path. Messages that are part of
    /// collectives stay with NCCL.
    Direct,
    /// The same as [`Shared`](Self::Shared), except in a [lazy](crate::group::Builder::lazy) group. There,
    /// the two ends of a pair choose once, at their first message. They choose `Shared` if the group is
    /// already connected on both ends, for example by its first collective, and `PerPair` otherwise.
    #[default]
    Auto,
}

impl P2pPolicy {
    /// Maximum number of lanes. Each lane is a communicator.
    pub const MAX_LANES: u32 = 64;

    /// Returns a description of the problem if the policy is invalid, and otherwise `None`.
    pub(in crate::group) fn problem(self) -> Option<String> {
        match self {
            Self::Lanes(lanes) if !(1..=Self::MAX_LANES).contains(&lanes) => {
                Some(format!("{lanes} lanes; a group has 1 to {}", Self::MAX_LANES))
            }
            _ => None,
        }
    }
}

impl fmt::Display for P2pPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Lanes(lanes) => write!(f, "lanes({lanes})"),
            Self::PerPair => f.write_str("per-pair"),
            Self::Direct => f.write_str("direct"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// The policy of a group, after [`P2pPolicy::Auto`] is resolved by whether the group is lazy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Group,
    Lanes(usize),
    Pairs,
    /// An installed path carries messages. There are no communicators for messages.
    Path,
    /// Each pair chooses between the group's communicator and its own, at its first message.
    Choose,
}

impl Plan {
    pub(super) fn new(policy: P2pPolicy, lazy: bool) -> Self {
        match policy {
            P2pPolicy::Shared => Self::Group,
            P2pPolicy::Lanes(lanes) => Self::Lanes(lanes as usize),
            P2pPolicy::PerPair => Self::Pairs,
            P2pPolicy::Direct => Self::Path,
            P2pPolicy::Auto if lazy => Self::Choose,
            P2pPolicy::Auto => Self::Group,
        }
    }

    /// Returns the maximum number of communicators of one member whose kernels may run at the same time, in a
    /// group of `size` members.
    pub(super) fn communicators(self, size: usize) -> usize {
        match self {
            Self::Group | Self::Path => 1,
            Self::Lanes(lanes) => lanes + 1,
            Self::Pairs | Self::Choose => size.max(1),
        }
    }
}
