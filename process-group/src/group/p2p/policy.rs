//! The policies for a group's messages.

use std::fmt;

/// Selects the communicator for messages that are not in a batch, or a path for all messages. All members
/// agree on it when they join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum P2pPolicy {
    /// The group's communicator, which runs messages one after the other. Needs no further memory.
    Shared,
    /// This many further communicators (1 to [`MAX_LANES`](Self::MAX_LANES)), which all members make together
    /// with the group's. [`lane`](super::lane()) assigns each message to one. Messages in different lanes and
    /// on different streams run concurrently. The memory is that of the communicators, independent of the
    /// number of peers.
    Lanes(u32),
    /// A communicator of the two ends, which they make at their first message. Messages with different peers
    /// run concurrently; the two directions of one pair do not. The memory is one communicator for every peer
    /// that is ever used.
    PerPair,
    /// No communicator, but a [path](crate::Path) that another crate installs. For example
    /// `symm_mem::direct::install` of lockstep-symm-mem uses symmetric memory and copy engines. All messages
    /// use it, including those in batches. Messages with different peers, and both directions of one pair,
    /// run concurrently. The path defines its memory. The tasks of collectives stay with NCCL.
    Direct,
    /// [`Shared`](Self::Shared) in a group that is connected when it is made. In a
    /// [lazy](crate::group::Builder::lazy) group the two ends choose once, at their first message: `Shared`
    /// if the group was connected on both by then, for example by its first collective; otherwise `PerPair`.
    #[default]
    Auto,
}

impl P2pPolicy {
    /// The limit on lanes, each of which is a communicator.
    pub const MAX_LANES: u32 = 64;

    /// Returns the problem of an invalid policy.
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

/// A policy resolved for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Group,
    Lanes(usize),
    Pairs,
    /// No communicators for messages.
    Path,
    /// Each pair chooses.
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

    /// Returns the number of communicators of one member, in a group of `size`, that may be in flight at
    /// once.
    pub(super) fn communicators(self, size: usize) -> usize {
        match self {
            Self::Group | Self::Path => 1,
            Self::Lanes(lanes) => lanes + 1,
            Self::Pairs | Self::Choose => size.max(1),
        }
    }
}
