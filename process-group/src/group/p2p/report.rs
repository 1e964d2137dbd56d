//! The report on the communicators chosen for a group's messages, and on their cost.

use std::sync::{PoisonError, atomic::Ordering};

use super::{
    Explanation, P2pPolicy, Plan, colours,
    messages::{Installed, Route},
};
use crate::{
    group::{NotRegistered, ProcessGroup, path::Operation},
    profile,
};

/// The communicator or path that carries messages with one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerChannel {
    /// The member is this rank itself. Such messages are possible only in batches, on the group's
    /// communicator.
    Oneself,
    /// Messages use the group's communicator.
    Group,
    /// Messages use these lanes.
    Lane {
        /// Index of the lane of messages to the member.
        send: usize,
        /// Index of the lane of messages from the member.
        receive: usize,
    },
    /// Messages use a communicator of this rank and the member.
    Pair,
    /// Messages use a [path](crate::Path) instead of NCCL.
    Path,
    /// Not chosen yet. The two ends choose or make a communicator at their first message, or no path is
    /// installed yet.
    Undecided,
}

/// The communicators chosen for a group's messages; see [`ProcessGroup::p2p`](crate::ProcessGroup::p2p).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2pReport {
    /// The policy that all members chose.
    pub policy: P2pPolicy,
    /// The communicator or path for messages with each member, by rank in the group.
    pub peers: Vec<PeerChannel>,
    /// The installed path. `None` if messages use communicators, or if no path is installed yet.
    pub path: Option<PathReport>,
    /// Number of communicators that this rank has made for messages, without the group's communicator.
    pub communicators: usize,
    /// Minimum and maximum number of thread blocks (CTAs) that one launch on a communicator for messages may
    /// use. `None` if there is no such limit.
    pub ctas: Option<(u32, u32)>,
    /// Peers for which the pair's communicator has no registered memory, each with the reason. Both ends of a
    /// pair report the same reason: they decide on registration together when they make the communicator, as
    /// set by [`Builder::registration`](crate::group::Builder::registration).
    pub not_registered: Vec<(usize, NotRegistered)>,
    /// Explanations of the costs of the choices made so far.
    pub explanations: Vec<Explanation>,
}

/// Name, description and memory of a [path](crate::Path), as reported by the path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// The path's name, one word.
    pub name: &'static str,
    /// A description of the path in one line.
    pub description: String,
    /// Device memory that the path uses on this rank, in bytes.
    pub device_bytes: u64,
}

impl ProcessGroup {
    /// Returns a report on the communicators or path for messages, and on their cost in overlap and memory.
    /// With the feature `tracing`, each explanation in the report is also logged once, as a warning.
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

    /// Called at the first message. Reports the costs that follow from the policy alone.
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

    /// Adds an explanation to the report and logs it, unless this was done before.
    pub(super) fn explain_once(&self, explanation: Explanation) {
        let mut explained = self.messages.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if !explained.contains(&explanation) {
            explained.push(explanation);
            drop(explained);
            profile::trouble("p2p", &self.name, &explanation);
        }
    }
}
