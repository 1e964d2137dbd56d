//! What was chosen for a group's messages, and what it costs.

use std::{
    fmt,
    sync::{PoisonError, atomic::Ordering},
};

use super::{P2pPolicy, Plan, Route, colours, direct::Installed};
use crate::{
    group::{NotRegistered, ProcessGroup, path::Operation},
    profile,
};

/// What messages with one member go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerChannel {
    /// This rank itself: batches only, on the group's communicator.
    Oneself,
    /// The group's communicator.
    Group,
    /// Lanes, by their numbers.
    Lane {
        /// For messages to the member.
        send: usize,
        /// For messages from it.
        receive: usize,
    },
    /// A communicator of the two.
    Pair,
    /// A [path](crate::Path) beside NCCL.
    Path,
    /// There was no message yet, and the two ends make or choose a communicator at the first.
    Undecided,
}

/// What a choice costs: told once in a group, as a warning to who [traces](crate::ProcessGroup::p2p), and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Explanation {
    /// Messages share the group's communicator.
    Serialised,
    /// There are fewer lanes than peers.
    SharedLanes {
        /// How many lanes there are.
        lanes: usize,
        /// How many would keep all peers of a member apart.
        wanted: usize,
    },
    /// Communicators of pairs are made.
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

/// What was chosen for a group's messages; see [`ProcessGroup::p2p`](crate::ProcessGroup::p2p).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2pReport {
    /// What the members agreed on.
    pub policy: P2pPolicy,
    /// What messages with each member go on.
    pub peers: Vec<PeerChannel>,
    /// The path that they go on, where they go on one.
    pub path: Option<PathReport>,
    /// How many communicators this rank has made for messages, beyond the group's.
    pub communicators: usize,
    /// Thread blocks that a launch of each may use, at least and at most, where that is set.
    pub ctas: Option<(u32, u32)>,
    /// Peers with whose communicator of a pair no memory is registered, and why, the same on both ends: the two agree on
    /// it when they make the communicator, by what [`Builder::registration`](crate::group::Builder::registration) says.
    pub not_registered: Vec<(usize, NotRegistered)>,
    /// What the choices cost, as far as they had to be made.
    pub explanations: Vec<Explanation>,
}

/// A [path](crate::Path), as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// In one word.
    pub name: &'static str,
    /// In one line.
    pub description: String,
    /// What it takes of this rank's device, in bytes.
    pub device_bytes: u64,
}

impl ProcessGroup {
    /// On which communicators messages go, and why that costs overlap or memory where it does. What is explained here
    /// is also told once by feature `tracing`, as a warning.
    #[must_use]
    pub fn p2p(&self) -> P2pReport {
        let messages = &self.messages;
        let peers: Vec<_> = (0..self.size()).map(|peer| self.peer_channel(peer)).collect();
        let pairs = peers.iter().filter(|peer| **peer == PeerChannel::Pair).count();
        let not_registered =
            messages.peers.iter().enumerate().filter_map(|(peer, it)| match it.route.get() {
                Some(Route::Pair(_, registered)) => Some((peer, registered.outcome.clone().err()?)),
                _ => None,
            });
        P2pReport {
            policy: messages.settings.policy,
            path: messages.path.get().map(|Installed { path, .. }| PathReport {
                name: path.name(),
                description: path.describe(),
                device_bytes: path.device_bytes(),
            }),
            communicators: pairs + messages.lanes.get().map_or(0, Vec::len),
            peers,
            ctas: (!matches!(messages.plan, Plan::Group | Plan::Path))
                .then_some(messages.config.ctas)
                .flatten(),
            not_registered: not_registered.collect(),
            explanations: messages.explained.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn peer_channel(&self, peer: usize) -> PeerChannel {
        let takes = |Installed { path, .. }: &Installed| {
            path.plan(Operation::Message { from: self.rank, to: peer }).is_ok()
        };
        match self.messages.plan {
            Plan::Path => match self.messages.path.get() {
                Some(installed) if takes(installed) => PeerChannel::Path,
                Some(_) => PeerChannel::Group,
                None => PeerChannel::Undecided,
            },
            _ if peer == self.rank => PeerChannel::Oneself,
            Plan::Group => PeerChannel::Group,
            Plan::Lanes(lanes) => PeerChannel::Lane {
                send: self.lane_of(peer, true, lanes),
                receive: self.lane_of(peer, false, lanes),
            },
            Plan::Pairs | Plan::Choose => match self.messages.peers[peer].route.get() {
                Some(Route::Group) => PeerChannel::Group,
                Some(Route::Pair(..)) => PeerChannel::Pair,
                None => PeerChannel::Undecided,
            },
        }
    }

    /// Explains what follows from the policy alone.
    #[cold]
    pub(super) fn first_message(&self) {
        self.messages.used.store(true, Ordering::Relaxed);
        match self.messages.plan {
            Plan::Group => self.explain_once(Explanation::Serialised),
            Plan::Path => self.explain_once(Explanation::OnPath),
            Plan::Lanes(lanes) if lanes < colours(self.size()) => {
                self.explain_once(Explanation::SharedLanes { lanes, wanted: colours(self.size()) });
            }
            _ => {}
        }
    }

    /// Explains what a choice costs, unless that was explained.
    pub(super) fn explain_once(&self, explanation: Explanation) {
        let mut explained = self.messages.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if !explained.contains(&explanation) {
            explained.push(explanation);
            drop(explained);
            profile::trouble("p2p", &self.name, &explanation);
        }
    }
}
