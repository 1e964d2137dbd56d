//! What the members of a group may be told about their messages.

use std::fmt;

/// On which communicator messages that are not in a batch go, or what all messages go on in its place: agreed by all members when they join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum P2pPolicy {
    /// On the group's communicator, which runs one after the other. No memory beyond it.
    Shared,
    /// On so many further communicators (1 to [`MAX_LANES`](Self::MAX_LANES)), which all members make together with the
    /// group's; a message takes the one that [`lane`](super::lane()) says. What is in different lanes, on different
    /// streams, runs at once. The memory is so many communicators', however many peers there are.
    Lanes(u32),
    /// On a communicator of the two ends, which they make at their first message. Different peers' messages run at once,
    /// both directions of one pair do not. The memory is a communicator's for every peer that is ever used.
    PerPair,
    /// On no communicator: on a [path](crate::Path) that another crate installs, as `symm_mem::direct::install` of
    /// lockstep-symm-mem does, through symmetric memory and copy engines. All messages go there, those in batches too, and
    /// different peers' and both directions of one pair run at once. The memory is what the path says. What collectives are
    /// made of stays with NCCL.
    Direct,
    /// [`Shared`](Self::Shared) in a group that is connected when it is made. In a [lazy](crate::group::Builder::lazy)
    /// one the two ends choose at their first message, for good: `Shared` if the group was connected then on both, as it
    /// is by the first collective; else `PerPair`.
    #[default]
    Auto,
}

impl P2pPolicy {
    /// More lanes than this are refused: a communicator each.
    pub const MAX_LANES: u32 = 64;

    /// What is wrong with it, if anything.
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

/// What a policy comes to in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Group,
    Lanes(usize),
    Pairs,
    /// None for messages.
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

    /// Communicators of one member, of `size`, that may be in flight at once.
    pub(super) fn communicators(self, size: usize) -> usize {
        match self {
            Self::Group | Self::Path => 1,
            Self::Lanes(lanes) => lanes + 1,
            Self::Pairs | Self::Choose => size.max(1),
        }
    }
}
