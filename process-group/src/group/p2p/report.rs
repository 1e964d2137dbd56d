//! Reports the communicators chosen for a group's messages, and their cost.

use std::sync::{PoisonError, atomic::Ordering};

use super::{
    Explanation, P2pPolicy, Plan, colours,
    messages::{Installed, Route},
};
use crate::{
    group::{NotRegistered, ProcessGroup, path::Operation},
    profile,
};

/// The communicator or path of messages with one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerChannel {
    /// This rank itself, in batches only, on the group's communicator.
    Oneself,
    /// The group's communicator.
    Group,
    /// Lanes, by their indices.
    Lane {
        /// The lane of messages to the member.
        send: usize,
        /// The lane of messages from it.
        receive: usize,
    },
    /// A communicator of the two ends.
    Pair,
    /// A [path](crate::Path) besides NCCL.
    Path,
    /// There was no message yet. The two ends make or choose a communicator at the first.
    Undecided,
}

/// The communicators chosen for a group's messages; see [`ProcessGroup::p2p`](crate::ProcessGroup::p2p).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct P2pReport {
    /// The policy that the members agreed on.
    pub policy: P2pPolicy,
    /// The communicator or path of messages with each member.
    pub peers: Vec<PeerChannel>,
    /// The installed path, if messages use one.
    pub path: Option<PathReport>,
    /// The number of communicators that this rank has made for messages, besides the group's.
    pub communicators: usize,
    /// The least and the most thread blocks that a launch of each may use, if set.
    pub ctas: Option<(u32, u32)>,
    /// Peers for which the pair's communicator has no registered memory, with the reason. Both ends have the
    /// same entry: they agree on it when they make the communicator, under
    /// [`Builder::registration`](crate::group::Builder::registration).
    pub not_registered: Vec<(usize, NotRegistered)>,
    /// The costs of the choices made so far.
    pub explanations: Vec<Explanation>,
}

/// A [path](crate::Path), as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// Its name, one word.
    pub name: &'static str,
    /// A description in one line.
    pub description: String,
    /// The device memory that it uses on this rank, in bytes.
    pub device_bytes: u64,
}

impl ProcessGroup {
    /// Reports the communicators for messages, and the cost of the choice in overlap or memory. Feature
    /// `tracing` logs each explanation once, as a warning.
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

    /// Explains the consequences of the policy alone.
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

    /// Explains the cost of a choice, unless it was explained before.
    pub(super) fn explain_once(&self, explanation: Explanation) {
        let mut explained = self.messages.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if !explained.contains(&explanation) {
            explained.push(explanation);
            drop(explained);
            profile::trouble("p2p", &self.name, &explanation);
        }
    }
}
