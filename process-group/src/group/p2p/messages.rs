//! The communicators and the path that carry a group's messages.

use std::sync::{Arc, Mutex, OnceLock, Weak, atomic::AtomicBool};

use cuda_driver::Stream;

use super::{Explanation, P2pPolicy, policy::Plan};
use crate::{
    comm::{Communicator, Config, Op, Turn},
    group::{GroupSettings, health::GroupHealth, path::Path, registered::Registered},
};

#[derive(Debug)]
pub(in crate::group) struct Messages {
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    /// Settings of the communicators that are made for messages.
    pub(super) config: Config,
    /// The communicators of [`P2pPolicy::Lanes`]. Made together with the group's communicator.
    pub(super) lanes: OnceLock<Vec<Communicator>>,
    /// The path that carries messages instead of NCCL. Unset until the path is installed.
    pub(super) path: OnceLock<Installed>,
    /// True once a path was installed. Locked during an installation.
    pub(super) has_path: Mutex<bool>,
    /// The communicator for messages with each member, indexed by the member's rank in the group.
    pub(super) peers: Box<[Peer]>,
    /// Streams that callers get for messages, made on demand: one for the group's communicator, or one for each lane.
    /// With communicators of pairs, one for each peer. On a path, one for each peer and direction.
    pub(super) streams: Box<[OnceLock<Stream>]>,
    /// True once the group has sent or received a message outside of a batch, or a message on a path.
    pub(super) used: AtomicBool,
    /// The explanations that were already given. Each is given once.
    pub(super) explained: Mutex<Vec<Explanation>>,
}

/// The communicator for messages with one member, under policies that have communicators for pairs.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) route: OnceLock<Route>,
    /// Admits one thread at a time to make the route.
    pub(super) turn: Turn,
}

#[derive(Debug)]
pub(super) enum Route {
    Group,
    /// The communicator of the pair, in which the member with the lower rank is rank 0, and the memory that
    /// is registered with that communicator.
    Pair(Box<Communicator>, Box<Registered>),
}

/// The communicator for a message, a batch or a collective. For a message to or from one peer, also the peer's rank in
/// that communicator.
#[derive(Debug, Clone, Copy)]
pub(in crate::group) struct Channel<'a> {
    pub(in crate::group) communicator: &'a Communicator,
    /// The peer's rank in the communicator. `None` if ranks are the same as in the group.
    pub(in crate::group) peer: Option<usize>,
}

impl Channel<'_> {
    /// Returns the op with the peer's rank in the group replaced by the peer's rank in this communicator.
    #[inline(always)]
    pub(in crate::group) fn op(&self, op: Op) -> Op {
        op.with(self.peer.unwrap_or(op.rank))
    }
}

/// Maximum number of thread blocks (CTAs) that NCCL uses for messages.
const MOST_CTAS: u32 = 32;

/// The values from which a group's [`Plan`] and the settings of its communicators for messages are derived.
#[derive(Debug, Clone)]
pub(in crate::group) struct Settings {
    pub(in crate::group) policy: P2pPolicy,
    /// Number of multiprocessors of the device.
    pub(in crate::group) multiprocessors: u32,
}

impl Messages {
    /// Makes the state for a group of `size` members with the settings `own`.
    pub(in crate::group) fn new(settings: Settings, lazy: bool, size: usize, own: &GroupSettings) -> Self {
        let plan = Plan::new(settings.policy, lazy);
        let config = own.p2p_config.clone().unwrap_or_else(|| {
            let config = own.communicator();
            let at_once = u32::try_from(plan.communicators(size)).unwrap_or(u32::MAX);
            let room = (settings.multiprocessors / at_once).clamp(1, MOST_CTAS);
            let (least, most) = config.ctas.unwrap_or((1, room));
            config.ctas(least.min(room), most.min(room))
        });
        let streams = match plan {
            Plan::Group => 1,
            Plan::Lanes(lanes) => lanes,
            Plan::Pairs | Plan::Choose => size,
            Plan::Path => 2 * size,
        };
        Self {
            settings,
            plan,
            config,
            lanes: OnceLock::new(),
            path: OnceLock::new(),
            has_path: Mutex::default(),
            peers: (0..size).map(|_| Peer::default()).collect(),
            streams: (0..streams).map(|_| OnceLock::new()).collect(),
            used: AtomicBool::new(false),
            explained: Mutex::default(),
        }
    }

    /// Makes the state for a group that is split off from this one.
    pub(in crate::group) fn of_subgroup(&self, lazy: bool, size: usize, own: &GroupSettings) -> Self {
        Self::new(self.settings.clone(), lazy, size, own)
    }

    /// Returns true if the group's policy is to send messages on a path.
    #[inline]
    pub(in crate::group) fn are_on_path(&self) -> bool {
        self.plan == Plan::Path
    }

    /// Returns the installed path's name, or `direct` before a path is installed.
    pub(super) fn path_name(&self) -> &'static str {
        self.path.get().map_or("direct", |installed| installed.path.name())
    }

    /// Returns the communicators of the lanes. Empty before they are made.
    pub(in crate::group) fn lanes(&self) -> impl Iterator<Item = &Communicator> {
        self.lanes.get().into_iter().flatten()
    }

    /// Sets the communicators of the lanes. Later calls have no effect.
    pub(in crate::group) fn set_lanes(&self, lanes: Vec<Communicator>) {
        let _ = self.lanes.set(lanes);
    }

    /// Returns the communicators that exist besides the group's own, in any order.
    pub(in crate::group) fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.pairs().map(|(_, communicator)| communicator).chain(self.lanes())
    }

    /// Returns the communicators that exist besides the group's own, in an order that is the same on all
    /// members: pairs, then lanes. `rank` is this member's rank in the group.
    pub(in crate::group) fn in_order(&self, rank: usize) -> Vec<&Communicator> {
        let mut pairs: Vec<_> = self.pairs().collect();
        pairs.sort_unstable_by_key(|(peer, _)| pair_of(rank, *peer));
        pairs.into_iter().map(|(_, communicator)| communicator).chain(self.lanes()).collect()
    }

    /// Returns the communicators of pairs, each with the other member's rank in the group.
    fn pairs(&self) -> impl Iterator<Item = (usize, &Communicator)> {
        self.peers.iter().enumerate().filter_map(|(peer, it)| match it.route.get() {
            Some(Route::Pair(communicator, _)) => Some((peer, &**communicator)),
            _ => None,
        })
    }

    /// Returns the communicators that exist besides the group's own, for the end of the group. The order is
    /// the same on all members: pairs, then lanes. `rank` is this member's rank in the group.
    pub(in crate::group) fn into_communicators(self, rank: usize) -> Vec<Communicator> {
        let pair = |(peer, it): (usize, Peer)| match it.route.into_inner() {
            Some(Route::Pair(communicator, _)) => Some((pair_of(rank, peer), *communicator)),
            _ => None,
        };
        let mut pairs: Vec<_> = self.peers.into_iter().enumerate().filter_map(pair).collect();
        pairs.sort_unstable_by_key(|(pair, _)| *pair);
        let pairs = pairs.into_iter().map(|(_, communicator)| communicator);
        pairs.chain(self.lanes.into_inner().unwrap_or_default()).collect()
    }
}

/// Returns the ranks of a pair in ascending order, so that both members get the same value.
fn pair_of(rank: usize, peer: usize) -> (usize, usize) {
    (rank.min(peer), rank.max(peer))
}

/// The path that is installed in a group.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) path: Arc<dyn Path>,
    pub(super) health: Weak<GroupHealth>,
}

impl Drop for Installed {
    fn drop(&mut self) {
        // Fails the pending work first. Dropping the path ends the work's waits, and the work would then look
        // complete.
        if let Some(health) = self.health.upgrade() {
            health.leave_path();
        }
    }
}
