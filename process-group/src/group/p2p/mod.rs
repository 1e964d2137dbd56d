//! Point-to-point messages: the communicator or [path](crate::Path) that carries them, and its cost.
//!
//! This module serves calls of [`send`](crate::ProcessGroup::send) and [`recv`](crate::ProcessGroup::recv) outside a
//! batch. Messages in a [batch](crate::ProcessGroup::batch), and collectives that consist of messages, always use the
//! group's communicator, with one launch for all. A message that is batched on one end must therefore also be batched
//! on the other end. With [`Direct`](P2pPolicy::Direct), batched and single messages use the same path, so each end may
//! batch its messages or not.
//!
//! NCCL serialises the operations of one communicator, even if they are on different streams. Operations of different
//! communicators run concurrently. As everywhere in this crate, an operation runs on the stream that the caller passes.
//! Overlap therefore needs both [another communicator](P2pPolicy) and another stream.
//! [`send_stream`](crate::ProcessGroup::send_stream) and [`recv_stream`](crate::ProcessGroup::recv_stream) return a
//! stream for messages with a peer: one for each communicator, or for a path one for each peer and direction.
//!
//! | policy | communicators of a rank besides the group's | run concurrently |
//! |---|---|---|
//! | [`Shared`](P2pPolicy::Shared) | none | messages in one batch |
//! | [`Lanes(k)`](P2pPolicy::Lanes) | k | messages in different lanes; with k = [`colours`] all peers, with twice as many also both directions |
//! | [`PerPair`](P2pPolicy::PerPair) | one for each peer that is used | messages with different peers |
//! | [`Direct`](P2pPolicy::Direct) | none; messages do not use the group's communicator either, because an installed [path](crate::Path) carries them | messages with different peers, and both directions |
//!
//! Times in µs, measured on H200 (NCCL 2.28.9, NVLink, medians of 9 rounds, three to seven runs of `cargo xtask bench
//! p2p`), with one stream for each direction and peer. The column "64 KiB down and up, a step" is the time of one step
//! of a pipeline: a message of 64 KiB passes from the first rank to the last, and an answer of 64 KiB passes back. The
//! rings of `Direct` are the path's staging buffers on the device, here with slots of 16 MiB; those of the default are
//! for small messages. They replace the memory of the group's communicator, which `Direct` does not need. With 2 GPUs:
//!
//! | policy | 256 MiB in both directions | 64 KiB down and up, a step | device memory beyond the group's 582 MiB |
//! |---|---|---|---|
//! | `Shared` | 1536 to 1565 | 18.1 to 23.7 | none |
//! | `Shared`, in a batch | 896 to 927 | 8.6 to 13.6 | none |
//! | `Lanes(1)` | 1532 to 1565 | 18.0 to 24.2 | 196 MiB |
//! | `Lanes(2)` | 789 to 828 | 13.7 to 24.2 | 392 MiB |
//! | `PerPair` | 1532 to 1552 | 18.3 to 23.3 | 196 MiB |
//! | `Direct` | 959 to 1018 | 12.8 to 19.4 | 96 MiB of rings, without the group's 582 MiB |
//! | `Direct`, in a batch | 908 to 940 | 22.8 | the same |
//! | a copy engine alone | 695 to 706 | | |
//!
//! With 4 GPUs. The column "to three peers" is for 256 MiB to each of three peers at once:
//!
//! | policy | 256 MiB in both directions | to three peers | 64 KiB down and up, a step | beyond the group's 710 MiB |
//! |---|---|---|---|---|
//! | `Shared` | 1535 to 1558 | 2241 to 2271 | 54 to 56 | none |
//! | `Shared`, in a batch | 952 to 966 | 2209 to 2253 | 9.9 to 15.3 | none |
//! | `Lanes(3)` | 1534 to 1558 | 2185 to 2214 | 52 to 53 | 590 MiB |
//! | `Lanes(6)` | 803 to 830 | 2188 to 2212 | 27 to 43 | 1182 MiB |
//! | `PerPair` | 1539 to 1544 | 2188 to 2214 | 51 to 53 | 590 MiB |
//! | `Direct` | 994 to 1054 | 2355 to 2365 | 28 to 42 | 288 MiB of rings, without the group's 710 MiB |
//! | `Direct`, in a batch | 911 to 929 | 2418 to 2432 | 28 to 37 | the same |
//! | a copy engine alone | 697 to 698 | 2045 to 2047 | | |
//!
//! lockstep-symm-mem implements a path for `Direct`, in `symm_mem::direct`. That path's device memory is proportional
//! to the number of peers, and configurable.
//!
//! # Requirements of several communicators
//! When kernels of two communicators run concurrently, each waits for its peers while it holds multiprocessors. A
//! deadlock is possible if a kernel has to wait for multiprocessors that another kernel holds. Each communicator of a
//! policy is therefore limited to a part of the device's multiprocessors, so that one launch of each communicator fits
//! on the device at once ([`P2pReport::ctas`]). Explicit settings
//! ([`Builder::p2p_config`](crate::group::Builder::p2p_config)) override the limit. A stream runs one launch at a time,
//! so the messages on one stream must be called in the same order on both ends of each pair, as with one communicator.
//!
//! Under [`PerPair`](P2pPolicy::PerPair), the first message with a peer blocks on the host until the peer's first
//! message with this rank. A ring in which each rank sends before it receives therefore blocks until the deadline, and
//! [`Absent`](crate::group::GroupErrorKind::Absent) names the missing rank. Batch the messages of a ring, or connect
//! beforehand: call [`connect_to`](crate::ProcessGroup::connect_to) for each peer, in an order of pairs that is the
//! same on all ranks.
//!
//! # Invariants
//! Both ends of a message use the same communicator. The choice depends on the settings that all members agreed on when
//! they joined, and under [`Auto`](P2pPolicy::Auto) also on data that the two ends exchange before their first message.
//! Communicators are made by all their ranks or by none. Communicators and a path end with the group, however the group
//! ends. A path also compares both ends of each message before the message is launched. [Checked
//! mode](crate::group::Builder::checked) does this for messages on NCCL.

mod direct;
mod explanation;
mod lane;
pub(super) mod messages;
mod pairs;
mod policy;
mod report;

use std::sync::atomic::Ordering;

use cuda_driver::{Stream, StreamFlags};
use nccl_sys::Feature;

pub use self::{
    explanation::Explanation,
    lane::{colours, lane},
    policy::P2pPolicy,
    report::{P2pReport, PathReport, PeerChannel},
};
use self::{
    messages::{Channel, Route},
    policy::Plan,
};
use super::{
    GroupErrorKind, KindResult, Member, ProcessGroup, Result,
    meeting::{Meeting, follow_up},
    member,
};
use crate::{
    BoxedResult,
    comm::{Communicator, Config, MemberSetup, Op},
    operation::Primitive,
    store::Deadline,
};

/// The operation in errors, and the name of its range in profiles.
const CONNECT_TO: &str = "connect_to";

impl ProcessGroup {
    /// Returns the communicator for collectives and batches. Makes the communicator if it does not exist.
    #[inline]
    pub(super) fn channel_of_all(&self, stream: &Stream) -> BoxedResult<Channel<'_>, GroupErrorKind> {
        self.connected(stream)?;
        Ok(Channel { communicator: &self.communicator, peer: None })
    }

    /// Returns the communicator for a message that is not in a batch. Makes the communicator if it does not exist.
    pub(super) fn channel(&self, message: Op, stream: &Stream) -> BoxedResult<Channel<'_>, GroupErrorKind> {
        if !self.messages.used.load(Ordering::Relaxed) {
            self.first_message();
        }
        let peer = message.rank;
        match self.messages.plan {
            // Messages that the path carries were separated from the others before this call.
            Plan::Group | Plan::Path => {}
            Plan::Lanes(count) => {
                self.connected(stream)?;
                let lane = self.lane_of(peer, message.primitive == Primitive::Send, count);
                if let Some(communicator) = self.messages.lanes.get().and_then(|lanes| lanes.get(lane)) {
                    return Ok(Channel { communicator, peer: None });
                }
            }
            Plan::Pairs | Plan::Choose => {
                let route = match self.messages.peers[peer].route.get() {
                    Some(route) => route,
                    None => {
                        self.refuse_capture(stream)?;
                        self.route(peer, self.timeout())?
                    }
                };
                if let Route::Pair(communicator, _) = route {
                    return Ok(Channel { communicator, peer: Some(usize::from(self.rank < peer)) });
                }
            }
        }
        self.channel_of_all(stream)
    }

    fn lane_of(&self, peer: usize, out: bool, lanes: usize) -> usize {
        let (from, to) = if out { (self.rank, peer) } else { (peer, self.rank) };
        lane(self.size(), from, to, lanes)
    }

    /// Makes the communicator for messages with member `peer`, and blocks until it is made. Both ends make the
    /// communicator together, each by this call or by its first message with the other end. A program that connects to
    /// several peers must do so on every rank in the same order of pairs (lower rank, higher rank), to avoid a circular
    /// wait. If the policy is [`Shared`](P2pPolicy::Shared) or [`Lanes`](P2pPolicy::Lanes), or
    /// [`Auto`](P2pPolicy::Auto) in a group that is not lazy, this call is the same as [`connect`](Self::connect),
    /// which all members must call. With [`Direct`](P2pPolicy::Direct) it only checks that a path is installed.
    ///
    /// # Errors
    /// - [`GroupErrorKind::Absent`] if the other end did not connect by the deadline. [`GroupErrorKind::Unmade`] if the
    ///   other end failed. After either error, both ends may try again.
    /// - [`GroupErrorKind::Comm`] and [`GroupErrorKind::Driver`] for failures of this rank. [`GroupErrorKind::Lost`]
    ///   and [`GroupErrorKind::Store`] as in other calls. [`GroupErrorKind::NoPath`] if the policy is
    ///   [`Direct`](P2pPolicy::Direct) and no path is installed.
    /// - [`GroupErrorKind::NoSuchRank`] if `peer` is not the rank of another member.
    pub fn connect_to(&self, peer: usize, deadline: Deadline) -> Result<()> {
        self.in_call(CONNECT_TO, self.connect_to_by(peer, deadline))
    }

    fn connect_to_by(&self, peer: usize, deadline: Deadline) -> KindResult<()> {
        crate::comm::refuse_inside_group(CONNECT_TO)?;
        self.other(peer)?;
        match self.messages.plan {
            Plan::Group | Plan::Lanes(_) => self.connect_by(deadline),
            Plan::Path => self.path().map(drop),
            Plan::Pairs | Plan::Choose => self.route(peer, deadline).map(drop),
        }
    }

    fn other(&self, peer: usize) -> KindResult<()> {
        if peer >= self.size() || peer == self.rank {
            return Err(GroupErrorKind::NoSuchRank { rank: peer, size: self.size() });
        }
        Ok(())
    }

    /// Returns a stream for messages to member `peer`. Messages that may use different communicators have different
    /// streams, so that they overlap: one stream for each lane or pair. On a [path](crate::Path), there is one stream
    /// for each peer and direction. The stream does not wait for other streams, not even for the default stream.
    /// Order it after other work with events, or with [`Work::order_before`](super::Work::order_before).
    ///
    /// # Errors
    /// [`GroupErrorKind::NoSuchRank`] if `peer` is not the rank of another member. [`GroupErrorKind::Driver`] if the
    /// stream cannot be made.
    pub fn send_stream(&self, peer: usize) -> Result<&Stream> {
        self.in_call("send_stream", self.stream_of(peer, true))
    }

    /// Like [`send_stream`](Self::send_stream), for messages from member `peer`.
    ///
    /// # Errors
    /// Those of [`send_stream`](Self::send_stream).
    pub fn recv_stream(&self, peer: usize) -> Result<&Stream> {
        self.in_call("recv_stream", self.stream_of(peer, false))
    }

    fn stream_of(&self, peer: usize, out: bool) -> KindResult<&Stream> {
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
        // If another thread has set its stream first, the new one is dropped.
        let stream = Stream::new(self.context(), StreamFlags::NON_BLOCKING)?;
        Ok(place.get_or_init(|| stream))
    }

    /// Makes the communicators of the lanes, which have the same ranks as the group's communicator. Called after the
    /// group's communicator is made. `all` is a meeting of all members.
    pub(super) fn make_lanes(&self, all: &Meeting<'_>, deadline: Deadline) -> KindResult<Vec<Communicator>> {
        let Plan::Lanes(count) = self.messages.plan else { return Ok(Vec::new()) };
        let config = |lane: usize| self.messages_config(&self.members, &format!("lane {lane}"));
        let mut lanes = Vec::new();
        if self.nccl().has(Feature::SPLIT) {
            let all = all.part("a lane", "lanes");
            lanes = self.make_together(&all, deadline, |until, go_on| {
                let lane = |lane| {
                    let made = self.communicator.split_while(
                        Some(0),
                        self.rank as i32,
                        &config(lane),
                        until,
                        &mut *go_on,
                    )?;
                    let made = made.ok_or_else(|| all.unmade(all.rank, "NCCL gave none".into()))?;
                    self.announce(&made)?;
                    Ok(made)
                };
                (0..count).map(lane).collect::<KindResult<Vec<_>>>()
            })?;
            // An abort of a guarded communicator ends the group. The lanes are guarded only after all are made, so that
            // a lane that is dropped after a failure does not end the group.
            lanes.iter().for_each(|lane| self.counter.health.guard(&lane.abort_handle()));
        } else {
            for lane in 0..count {
                let all = all.part("a lane", &format!("lane/{lane}"));
                lanes.push(self.prepare(&all, self.rank, &config(lane), follow_up(deadline))?);
            }
        }
        Ok(lanes)
    }

    /// Makes a communicator of the ranks that meet in `all`. This rank is `rank` in the communicator. The communicator
    /// ends with the group.
    fn prepare(
        &self,
        all: &Meeting<'_>,
        rank: usize,
        config: &Config,
        deadline: Deadline,
    ) -> KindResult<Communicator> {
        let parts = MemberSetup { nccl: self.nccl(), context: self.context(), rank };
        let made = match Communicator::prepare(&parts, all.ranks.len(), config) {
            Ok(made) => made,
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        };
        let handle = made.abort_handle();
        self.counter.health.guard(&handle);
        self.form(all, &made, deadline).inspect_err(|_| self.without(&made))?;
        Ok(made)
    }

    /// Stops guarding a communicator that is about to be dropped, so that the group's end does not abort it.
    fn without(&self, communicator: &Communicator) {
        self.counter.health.release(&communicator.abort_handle());
    }

    /// Returns the settings of a communicator for messages of `members`.
    fn messages_config(&self, members: &[Member], name: &str) -> Config {
        Config {
            name: Some(format!("{} {name}", self.name)),
            window_facts: member::window_facts(members),
            ..self.messages.config.clone()
        }
    }
}
