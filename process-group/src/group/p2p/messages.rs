//! The communicators and the path of a group's messages.

use std::sync::{Arc, Mutex, OnceLock, Weak, atomic::AtomicBool};

use cuda_driver::Stream;

use super::{Explanation, P2pPolicy, policy::Plan};
use crate::{
    comm::{Communicator, Config, Task, Turn},
    group::{GroupSettings, health::GroupHealth, path::Path, registered::Registered},
};

/// The communicators of a group's messages.
#[derive(Debug)]
pub(in crate::group) struct Messages {
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    /// Settings of communicators beyond the group's.
    pub(super) config: Config,
    /// Made with the group's communicator.
    pub(super) lanes: OnceLock<Vec<Communicator>>,
    /// The path besides NCCL, once it is installed.
    pub(super) path: OnceLock<Installed>,
    pub(super) installing: Mutex<bool>,
    /// Indexed by member.
    pub(super) peers: Box<[Peer]>,
    /// One for each communicator that messages may use, made on demand.
    pub(super) streams: Box<[OnceLock<Stream>]>,
    /// True once a message was sent or received.
    pub(super) used: AtomicBool,
    pub(super) explained: Mutex<Vec<Explanation>>,
}

/// The communicator or lane of messages with one member.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) route: OnceLock<Route>,
    pub(super) turn: Turn,
}

#[derive(Debug)]
pub(super) enum Route {
    Group,
    /// A communicator of the two ends, in which the lower rank is rank 0, and its registered memory.
    Pair(Box<Communicator>, Box<Registered>),
}

/// A communicator, and the other end's rank in it.
#[derive(Debug, Clone, Copy)]
pub(in crate::group) struct Channel<'a> {
    pub(in crate::group) communicator: &'a Communicator,
    /// The other end's rank in it, if that is not its rank in the group.
    pub(in crate::group) peer: Option<usize>,
}

impl Channel<'_> {
    /// Converts a task of the group to the ranks of this communicator.
    #[inline(always)]
    pub(in crate::group) fn task(&self, task: Task) -> Task {
        task.with(self.peer.unwrap_or(task.rank))
    }
}

/// The most thread blocks that NCCL uses for messages.
const MOST_CTAS: u32 = 32;

/// The builder's settings for messages.
#[derive(Debug, Clone)]
pub(in crate::group) struct Settings {
    pub(in crate::group) policy: P2pPolicy,
    /// The number of the device's multiprocessors.
    pub(in crate::group) multiprocessors: u32,
}

impl Messages {
    /// Makes the state for a group of `size` with its `own` settings.
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
            installing: Mutex::default(),
            peers: (0..size).map(|_| Peer::default()).collect(),
            streams: (0..streams).map(|_| OnceLock::new()).collect(),
            used: AtomicBool::new(false),
            explained: Mutex::default(),
        }
    }

    /// Makes the state for a group that is split off.
    pub(in crate::group) fn of_subgroup(&self, lazy: bool, size: usize, own: &GroupSettings) -> Self {
        Self::new(self.settings.clone(), lazy, size, own)
    }

    /// Returns true if messages go on a path.
    #[inline]
    pub(in crate::group) fn are_on_path(&self) -> bool {
        self.plan == Plan::Path
    }

    /// Returns the path's name.
    pub(super) fn path_name(&self) -> &'static str {
        self.path.get().map_or("direct", |installed| installed.path.name())
    }

    /// Returns the lanes, once they are made.
    pub(in crate::group) fn lanes(&self) -> impl Iterator<Item = &Communicator> {
        self.lanes.get().into_iter().flatten()
    }

    /// Sets the lanes, once.
    pub(in crate::group) fn set_lanes(&self, lanes: Vec<Communicator>) {
        let _ = self.lanes.set(lanes);
    }

    /// Returns the communicators that exist besides the group's own, in any order.
    pub(in crate::group) fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.pairs().map(|(_, communicator)| communicator).chain(self.lanes())
    }

    /// Returns them in the one order that all members have: pairs, then lanes. `rank` is this member's.
    pub(in crate::group) fn in_order(&self, rank: usize) -> Vec<&Communicator> {
        let mut pairs: Vec<_> = self.pairs().collect();
        pairs.sort_unstable_by_key(|(peer, _)| (rank.min(*peer), rank.max(*peer)));
        pairs.into_iter().map(|(_, communicator)| communicator).chain(self.lanes()).collect()
    }

    /// Returns the communicators of pairs, each with the other member.
    fn pairs(&self) -> impl Iterator<Item = (usize, &Communicator)> {
        self.peers.iter().enumerate().filter_map(|(peer, it)| match it.route.get() {
            Some(Route::Pair(communicator, _)) => Some((peer, &**communicator)),
            _ => None,
        })
    }

    /// Returns the existing communicators for the group's end: pairs in the one order that all members have,
    /// then lanes.
    pub(in crate::group) fn into_communicators(self, rank: usize) -> Vec<Communicator> {
        let pair = |(peer, it): (usize, Peer)| match it.route.into_inner() {
            Some(Route::Pair(communicator, _)) => Some(((peer.min(rank), peer.max(rank)), *communicator)),
            _ => None,
        };
        let mut pairs: Vec<_> = self.peers.into_iter().enumerate().filter_map(pair).collect();
        pairs.sort_unstable_by_key(|(ends, _)| *ends);
        let pairs = pairs.into_iter().map(|(_, communicator)| communicator);
        pairs.chain(self.lanes.into_inner().unwrap_or_default()).collect()
    }
}

/// A group's path, for the lifetime of the group.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) path: Arc<dyn Path>,
    pub(super) health: Weak<GroupHealth>,
}

impl Drop for Installed {
    fn drop(&mut self) {
        // Before the path ends its pending work, which then looks done.
        if let Some(health) = self.health.upgrade() {
            health.leave_path();
        }
    }
}
