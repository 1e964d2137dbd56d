//! Point to point: on which communicator a message goes, or on what else, and what that costs.
//!
//! For: [`send`](crate::ProcessGroup::send) and [`recv`](crate::ProcessGroup::recv) that are called by themselves. Not
//! for messages in a [batch](crate::ProcessGroup::batch), nor for collectives that are made of messages: those always go
//! on the group's communicator, all in one launch. So a message that is batched on one end is batched on the other. With
//! [`Direct`](P2pPolicy::Direct) messages in a batch go where those by themselves go, and either end may batch them or not.
//!
//! NCCL runs the operations of one communicator one after the other, whatever streams they are on; those of different
//! communicators run at once. An operation runs on the stream that the caller gives, here as everywhere. So what is to
//! overlap needs both: [another communicator](P2pPolicy), and another stream.
//! [`send_stream`](crate::ProcessGroup::send_stream) and [`recv_stream`](crate::ProcessGroup::recv_stream) give one for
//! each communicator.
//!
//! | policy | communicators of a rank beyond the group's | at once |
//! |---|---|---|
//! | [`Shared`](P2pPolicy::Shared) | none | what is in one batch |
//! | [`Lanes(k)`](P2pPolicy::Lanes) | k | messages in different lanes; with k = [`colours`] all peers, with twice as many also both directions |
//! | [`PerPair`](P2pPolicy::PerPair) | one for each peer that is used | messages with different peers |
//! | [`Direct`](P2pPolicy::Direct) | none, nor the group's: a [path](crate::Path) that is installed | messages with different peers, and both directions |
//!
//! Measured on H200 (NCCL 2.28.9, NVLink, medians of 9 rounds, three to seven runs of `cargo xtask bench p2p`), with a stream
//! for each direction and peer, in µs; 2 GPUs:
//!
//! | policy | 256 MiB in both directions | 64 KiB down and up, a step | device memory beyond the group's 582 MiB |
//! |---|---|---|---|
//! | `Shared` | 1536 to 1565 | 18.1 to 23.7 | none |
//! | `Shared`, in a batch | 896 to 927 | 8.6 to 13.6 | none |
//! | `Lanes(1)` | 1532 to 1565 | 18.0 to 24.2 | 196 MiB |
//! | `Lanes(2)` | 789 to 828 | 13.7 to 24.2 | 392 MiB |
//! | `PerPair` | 1532 to 1552 | 18.3 to 23.3 | 196 MiB |
//! | `Direct` | 959 to 1018 | 12.8 to 19.4 | 96 MiB of rings, and no group's |
//! | `Direct`, in a batch | 908 to 940 | 22.8 | the same |
//! | a copy engine alone | 695 to 706 | | |
//!
//! 4 GPUs, where the second column is 256 MiB to each of three peers at once:
//!
//! | policy | 256 MiB in both directions | to three peers | 64 KiB down and up, a step | beyond the group's 710 MiB |
//! |---|---|---|---|---|
//! | `Shared` | 1535 to 1558 | 2241 to 2271 | 54 to 56 | none |
//! | `Shared`, in a batch | 952 to 966 | 2209 to 2253 | 9.9 to 15.3 | none |
//! | `Lanes(3)` | 1534 to 1558 | 2185 to 2214 | 52 to 53 | 590 MiB |
//! | `Lanes(6)` | 803 to 830 | 2188 to 2212 | 27 to 43 | 1182 MiB |
//! | `PerPair` | 1539 to 1544 | 2188 to 2214 | 51 to 53 | 590 MiB |
//! | `Direct` | 994 to 1054 | 2355 to 2365 | 28 to 42 | 288 MiB of rings, and no group's |
//! | `Direct`, in a batch | 911 to 929 | 2418 to 2432 | 28 to 37 | the same |
//! | a copy engine alone | 697 to 698 | 2045 to 2047 | | |
//!
//! lockstep-symm-mem has a path for `Direct`, in `symm_mem::direct`; its memory is for each other member, and an option.
//!
//! # What different communicators ask of a program
//! Kernels of two communicators that run at once wait for their peers on the multiprocessors that they hold. So that
//! none waits for room that another holds, the communicators of a policy are bound to such a part of the device's
//! multiprocessors that one launch of each has room at once ([`P2pReport::ctas`]); settings of one's own
//! ([`Builder::p2p_config`](crate::group::Builder::p2p_config)) may say otherwise. A stream has one launch at a time, so
//! what one stream carries is in the same order on both ends of each pair, as with one communicator.
//!
//! The first message with a peer under [`PerPair`](P2pPolicy::PerPair) waits on the host for the peer's first with this
//! rank: a ring in which each sends before it receives waits for ever (until the deadline, and
//! [`Absent`](crate::group::GroupError::Absent) names who is missing). Batch such messages, or have
//! [`connect_to`](crate::ProcessGroup::connect_to) meet the peers in one order before.
//!
//! # Invariants
//! Both ends of a message take the same communicator: it follows from what all members agreed on when they joined, and
//! where it depends on more, from what the two ends said in one meeting. Communicators are made by all their ranks or by
//! none. They end with the group, by whatever end. So does a path, which also compares both ends of each message before it
//! is launched, as [checked mode](crate::group::Builder::checked) does for the others.

mod choice;
mod direct;
mod lane;
mod pairs;
mod policy;
mod report;

use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use cuda_driver::{Stream, StreamFlags};
use nccl_sys::Feature;

use self::{direct::Installed, policy::Plan};
pub use self::{
    lane::{colours, lane},
    policy::P2pPolicy,
    report::{Explanation, P2pReport, PathReport, PeerChannel},
};
use super::{
    GroupError, Member, ProcessGroup, Result,
    connect::Turn,
    form::{Formation, announce},
    member,
    registration::Registered,
};
use crate::{
    Slim,
    comm::{Communicator, Config, Operation, Seat, Task},
    store::Deadline,
};

/// The communicators of a group's messages.
#[derive(Debug)]
pub(super) struct Messages {
    settings: Settings,
    plan: Plan,
    /// Settings of communicators beyond the group's.
    config: Config,
    /// Made with the group's communicator.
    lanes: OnceLock<Vec<Communicator>>,
    /// What messages go on beside NCCL, once it is installed.
    path: OnceLock<Installed>,
    installing: Mutex<bool>,
    /// By member.
    peers: Box<[Peer]>,
    /// One for each communicator that messages may take, made when it is asked for.
    streams: Box<[OnceLock<Stream>]>,
    /// Whether a message was sent or received.
    used: AtomicBool,
    explained: Mutex<Vec<Explanation>>,
}

/// What messages with one member go on.
#[derive(Debug, Default)]
struct Peer {
    route: OnceLock<Route>,
    attempts: AtomicU64,
    turn: Turn,
}

#[derive(Debug)]
enum Route {
    Group,
    /// A communicator of the two ends: the lower rank is its rank 0; and what they have registered with it.
    Pair(Communicator, Box<Registered>),
}

/// A communicator, and what the other end is called there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channel<'a> {
    pub(super) communicator: &'a Communicator,
    /// The other end's rank there, if it is not its rank of the group.
    pub(super) peer: Option<usize>,
}

impl<'a> Channel<'a> {
    /// The group's communicator.
    pub(super) fn of_all(group: &'a ProcessGroup) -> Self {
        Self { communicator: &group.communicator, peer: None }
    }

    /// A task of the group as it is there.
    #[inline(always)]
    pub(super) fn task(&self, task: Task) -> Task {
        task.with(self.peer.unwrap_or(task.rank))
    }
}

/// NCCL's messages never take more.
const MOST_CTAS: u32 = 32;

/// What the builder was told of messages.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) policy: P2pPolicy,
    /// Settings of the user's own for communicators beyond the group's.
    pub(super) own: Option<Config>,
    /// Of the device.
    pub(super) multiprocessors: u32,
}

impl Messages {
    /// For a group of `size` whose communicator has the settings `config`.
    pub(super) fn new(settings: Settings, lazy: bool, size: usize, config: &Config) -> Self {
        let plan = Plan::new(settings.policy, lazy);
        let config = settings.own.clone().unwrap_or_else(|| {
            let at_once = u32::try_from(plan.communicators(size)).unwrap_or(u32::MAX);
            let room = (settings.multiprocessors / at_once).clamp(1, MOST_CTAS);
            let (least, most) = config.ctas.unwrap_or((1, room));
            config.clone().ctas(least.min(room), most.min(room))
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

    /// For a group that is split off, with a communicator of its own settings.
    pub(super) fn of_subgroup(&self, lazy: bool, size: usize, config: &Config) -> Self {
        Self::new(self.settings.clone(), lazy, size, config)
    }

    /// Whether messages go on a path.
    #[inline]
    pub(super) fn are_on_path(&self) -> bool {
        self.plan == Plan::Path
    }

    /// What the path is called.
    fn path_name(&self) -> &'static str {
        self.path.get().map_or("direct", |installed| installed.path.name())
    }

    /// Takes the lanes, once.
    pub(super) fn set_lanes(&self, lanes: Vec<Communicator>) {
        let _ = self.lanes.set(lanes);
    }

    /// What is made now beyond the group's own, in any order.
    pub(super) fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        let routes = self.peers.iter().filter_map(|peer| peer.route.get());
        let pairs = routes.filter_map(|route| match route {
            Route::Pair(communicator, _) => Some(communicator),
            _ => None,
        });
        pairs.chain(self.lanes.get().into_iter().flatten())
    }

    /// What is made now, for the group's end: pairs in the one order that all members have, then lanes.
    pub(super) fn into_communicators(self, rank: usize) -> Vec<Communicator> {
        let pair = |(peer, it): (usize, Peer)| match it.route.into_inner() {
            Some(Route::Pair(communicator, _)) => Some(((peer.min(rank), peer.max(rank)), communicator)),
            _ => None,
        };
        let mut pairs: Vec<_> = self.peers.into_iter().enumerate().filter_map(pair).collect();
        pairs.sort_unstable_by_key(|(ends, _)| *ends);
        let pairs = pairs.into_iter().map(|(_, communicator)| communicator);
        pairs.chain(self.lanes.into_inner().unwrap_or_default()).collect()
    }
}

impl ProcessGroup {
    /// What collectives and batches go on, which is made now if need be.
    #[inline]
    pub(super) fn channel_of_all(
        &self,
        operation: &'static str,
        stream: &Stream,
    ) -> Slim<Channel<'_>, GroupError> {
        self.connected(operation, stream)?;
        Ok(Channel::of_all(self))
    }

    /// What a message by itself goes on, which is made now if need be.
    pub(super) fn channel(&self, message: Task, stream: &Stream) -> Slim<Channel<'_>, GroupError> {
        if !self.messages.used.load(Ordering::Relaxed) {
            self.first_message();
        }
        let (call, peer) = (message.call, message.rank);
        match self.messages.plan {
            // On a path goes what it takes, before this is asked.
            Plan::Group | Plan::Path => {}
            Plan::Lanes(count) => {
                self.connected(call, stream)?;
                let lane = self.lane_of(peer, message.operation == Operation::Send, count);
                if let Some(communicator) = self.messages.lanes.get().and_then(|lanes| lanes.get(lane)) {
                    return Ok(Channel { communicator, peer: None });
                }
            }
            Plan::Pairs | Plan::Choose => {
                let route = match self.messages.peers[peer].route.get() {
                    Some(route) => route,
                    None => {
                        self.refuse_capture(call, stream)?;
                        self.route(peer, self.timeout())?
                    }
                };
                if let Route::Pair(communicator, _) = route {
                    return Ok(Channel { communicator, peer: Some(usize::from(self.rank < peer)) });
                }
            }
        }
        self.channel_of_all(call, stream)
    }

    fn lane_of(&self, peer: usize, out: bool, lanes: usize) -> usize {
        let (from, to) = if out { (self.rank, peer) } else { (peer, self.rank) };
        lane(self.size(), from, to, lanes)
    }

    /// Makes now what messages with member `peer` need. The two ends do so together, each by this call or by its first
    /// message with the other; who meets several peers so takes them in the order of pairs (lower rank, higher rank),
    /// which never waits in a circle. Where the policy gives pairs no communicator of their own this is
    /// [`connect`](Self::connect), of all members.
    ///
    /// # Errors
    /// - [`GroupError::Absent`] with the rank that did not come, on both ends if both came, and
    ///   [`GroupError::Unmade`] with what the other end met: both may try again;
    /// - [`GroupError::Comm`] and [`GroupError::Driver`] for what went wrong here, [`GroupError::Lost`],
    ///   [`GroupError::Store`]; with an argument that is no other member, [`GroupError::NoSuchRank`].
    pub fn connect_to(&self, peer: usize, deadline: Deadline) -> Result<()> {
        crate::comm::refuse_inside_group("connect_to")?;
        self.other(peer)?;
        match self.messages.plan {
            Plan::Group | Plan::Lanes(_) => self.connect(deadline),
            Plan::Path => self.path("connect_to").map(drop),
            Plan::Pairs | Plan::Choose => self.route(peer, deadline).map(drop),
        }
    }

    fn other(&self, peer: usize) -> Result<()> {
        if peer >= self.size() || peer == self.rank {
            return Err(GroupError::NoSuchRank { rank: peer, size: self.size() });
        }
        Ok(())
    }

    /// A stream for messages to member `peer`: one for each communicator, so that what may overlap does, and what may
    /// not shares one. It waits for nothing else; order it with events, or with [`Work::wait`](super::Work::wait).
    ///
    /// # Errors
    /// [`GroupError::NoSuchRank`]; [`GroupError::Driver`].
    pub fn send_stream(&self, peer: usize) -> Result<&Stream> {
        self.stream_of(peer, true)
    }

    /// [`send_stream`](Self::send_stream) for messages from member `peer`.
    ///
    /// # Errors
    /// As there.
    pub fn recv_stream(&self, peer: usize) -> Result<&Stream> {
        self.stream_of(peer, false)
    }

    fn stream_of(&self, peer: usize, out: bool) -> Result<&Stream> {
        self.other(peer)?;
        let at = match self.messages.plan {
            Plan::Group => 0,
            Plan::Lanes(lanes) => self.lane_of(peer, out, lanes),
            Plan::Pairs | Plan::Choose => peer,
            Plan::Path => 2 * peer + usize::from(!out),
        };
        let place = &self.messages.streams[at];
        if let Some(stream) = place.get() {
            return Ok(stream);
        }
        // Who comes second lets go of its own.
        let stream = Stream::new(self.context(), StreamFlags::NON_BLOCKING)?;
        Ok(place.get_or_init(|| stream))
    }

    /// Makes the lanes, after the group's communicator and with the same ranks.
    pub(super) fn make_lanes(&self, all: &Formation<'_>, deadline: Deadline) -> Result<Vec<Communicator>> {
        let Plan::Lanes(count) = self.messages.plan else { return Ok(Vec::new()) };
        let members: Vec<_> = self.members.iter().collect();
        let config = |lane: usize| self.messages_config(&members, &format!("lane {lane}"));
        let mut lanes = Vec::new();
        if self.nccl().has(Feature::SPLIT) {
            let all = Formation { what: "a lane", meeting: format!("{}/lanes", all.meeting), ..*all };
            lanes = all.together(deadline, |go_on| {
                let lane = |lane| {
                    let made = self.communicator.split_while(
                        Some(0),
                        self.rank as i32,
                        &config(lane),
                        deadline,
                        &mut *go_on,
                    )?;
                    let made = made.ok_or_else(|| all.unmade(self.rank, "NCCL gave none".into()))?;
                    announce(&self.followers, &made)?;
                    Ok(made)
                };
                (0..count).map(lane).collect::<Result<Vec<_>>>()
            })?;
            // Not before: what is dropped with a failure does not end the group by itself.
            lanes.iter().for_each(|lane| self.counter.vigil.guard(&lane.abort_handle()));
        } else {
            for lane in 0..count {
                let all =
                    Formation { what: "a lane", meeting: format!("{}/lane/{lane}", all.meeting), ..*all };
                lanes.push(self.prepare(&all, self.rank, &config(lane), deadline)?);
            }
        }
        Ok(lanes)
    }

    /// Makes a communicator of a formation's ranks, of which this one is `rank`, that ends with the group.
    fn prepare(
        &self,
        all: &Formation<'_>,
        rank: usize,
        config: &Config,
        deadline: Deadline,
    ) -> Result<Communicator> {
        let seat = Seat { nccl: self.nccl(), context: self.context(), rank };
        let made = match Communicator::prepare(&seat, all.ranks.len(), config) {
            Ok(made) => made,
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        };
        let handle = made.abort_handle();
        self.counter.vigil.guard(&handle);
        all.form(&made, deadline).inspect_err(|_| self.without(&made))?;
        Ok(made)
    }

    /// The group goes on without a communicator that is about to be dropped.
    fn without(&self, communicator: &Communicator) {
        self.counter.vigil.release(&communicator.abort_handle());
    }

    /// Settings of a communicator of these members.
    fn messages_config(&self, members: &[&Member], name: &str) -> Config {
        Config {
            name: Some(format!("{} {name}", self.name)),
            window_facts: member::window_facts(members),
            ..self.messages.config.clone()
        }
    }
}
