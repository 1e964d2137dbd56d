//! The direct path: a transport for the point-to-point messages of a [`ProcessGroup`]. Copy engines copy the messages
//! through memory that the ranks map from each other. The path uses no NCCL communicator.
//!
//! Build a group with [`P2pPolicy::Direct`], and call [`install`]. From then on, every `send` and `recv` of the group
//! uses this path, in [batches](ProcessGroup::batch) and outside of them. The messages are enqueued on the caller's
//! streams, and those from one rank to another are matched in the order of calls. Work handles, the flight recorder,
//! aborts and timeouts work as for messages through NCCL.
//!
//! ```no_run
//! # use process_group::{ProcessGroup, comm::DataType, group::{Buffer, P2pPolicy}, store::Deadline};
//! # use symm_mem::direct::{self, DirectOptions};
//! # fn rank(from: Buffer, to: Buffer) -> Result<(), Box<dyn std::error::Error>> {
//! let world = ProcessGroup::builder().p2p(P2pPolicy::Direct).build()?;
//! direct::install(&world, DirectOptions::default())?;
//! let stream = cuda_driver::Stream::new(world.context(), cuda_driver::StreamFlags::NON_BLOCKING)?;
//! let (next, before) = ((world.rank() + 1) % world.size(), (world.rank() + world.size() - 1) % world.size());
//! let work = world.batch(&stream, |batch| {
//!     // SAFETY: the buffers outlive the work.
//!     unsafe {
//!         batch.send(from, next)?;
//!         batch.recv(to, before)
//!     }
//! })?;
//! work.wait()?;
//! # Ok(()) }
//! ```
//!
//! Messages between blocks of a [symmetric pool](crate::SymmetricPool) are copied directly, once the pool is
//! [committed](crate::SymmetricPool::commit) for the group:
//!
//! ```no_run
//! # use process_group::{ProcessGroup, comm::DataType, group::Buffer};
//! # use symm_mem::{CommitOptions, Domain, Geometry, SymmetricPool, direct::{self, DirectOptions}};
//! # fn rank(world: &ProcessGroup, stream: &cuda_driver::Stream) -> Result<(), Box<dyn std::error::Error>> {
//! let direct = direct::install(world, DirectOptions::default())?;
//! let pool = SymmetricPool::new(&Domain::of(world)?, world.context(), Geometry::default())?;
//! let block = pool.allocate(256 << 20)?;
//! // All members map each other's segments. Commit again after the pool has grown.
//! pool.commit(world, CommitOptions::default())?;
//! let buffer = Buffer::new(block.ptr(), 256 << 20, DataType::U8);
//! // SAFETY: the block outlives the work.
//! let work = unsafe {
//!     match world.rank() {
//!         0 => world.raw().send(buffer, 1, stream)?,
//!         _ => world.raw().recv(buffer, 0, stream)?,
//!     }
//! };
//! work.wait()?;
//! println!("{:?}", direct.report()?);
//! # Ok(()) }
//! ```
//!
//! # Zero-copy messages
//! The two ends of a message are its sender and its receiver. Each end first writes an entry for the message into its
//! log in shared host memory. Then it claims the message by a compare-exchange on a word that both ends share. The end
//! that claims the message first is the *first end*, and the other one is the *second end*.
//!
//! The memory of a symmetric pool consists of segments. A segment is *mapped* if, by a commit for the group, all
//! members map each other's memory of the segment. The message is a zero-copy message if the buffer of the first end
//! lies in a mapped segment. The log entry of the first end then contains the segment and the offset of the buffer. So
//! with its claim, the first end offers its buffer to the second end, which takes the offer and makes the copy:
//!
//! 1. The stream of the first end signals *ready*. Then it waits for *done*.
//! 2. The stream of the second end waits for *ready*. Then it copies the whole message by one copy engine, between its
//!    own buffer and its mapping of the first end's buffer. If the second end receives, the copy reads from the peer.
//!    If it sends, the copy writes to the peer. After the copy, the stream signals *done*.
//!
//! The buffer of the second end may lie anywhere. If the buffer of the first end lies in no mapped segment, the message
//! goes through the [ring](#the-ring), wherever the other buffer lies. The program does not control which end comes
//! first. So a message is certain to be zero-copy only if both buffers lie in mapped segments. [`Direct::report`] and
//! the description in [`ProcessGroup::p2p`](process_group::ProcessGroup::p2p) show how many messages were zero-copy
//! messages, and how many went through the ring.
//!
//! If two ranks send each other messages at once, each rank should make one of the two copies. If one rank makes both,
//! its copies are a write and a read. The driver gives both to one copy engine, which runs them one after the other.
//! (This is a property of the driver, not of this path: any two such copies on two streams share one copy engine, for
//! virtual memory and for memory opened by IPC.) A rank that calls later than its peer would be the second end of both
//! messages, and so make both copies.
//!
//! To avoid this, a sender waits on the host before it claims its message, until the receiver has called one of these:
//!
//! - the receive of this message
//! - a send in the opposite direction whose receive the sender has not called yet
//!
//! If both ranks call at about the same time, this wait makes each of them the second end of one of the two messages.
//! The wait takes at most an eighth of the time of the message's copy at 400 GB/s: 84 µs for 256 MiB. A rank that calls
//! after the end of the other rank's wait makes both copies. The sender does not wait if the receiver has never called
//! a receive from it before, or if the buffer of the last such receive lies in no mapped segment.
//!
//! The ends claim a captured message during the capture, so its first end is the same in all runs of the graph. A rank
//! that captures after the end of its peer's wait makes both copies in every run. So let the ranks capture at about the
//! same time, for example after a barrier.
//!
//! Measured on two H200: 256 MiB in one direction take 1.02 to 1.07 times as long as a bare copy (a copy in one
//! direction without this path). 256 MiB in each direction take 1.05 to 1.13 times as long as that bare copy, and 2.0
//! times as long if one rank makes both copies.
//!
//! No host thread waits for the copy itself. The send of a zero-copy message completes only when the receiver has the
//! data. The send of a message through the ring can complete before the receiver calls, so a sender can run ahead.
//!
//! A commit with [`CommitOptions::map_peers`](crate::CommitOptions::map_peers) (the default) maps the segments, even if
//! it makes no NCCL windows. If the pool is dropped before the group, the path keeps the pool's memory until the group
//! is dropped. The path does not use windows, for two reasons. NCCL unmaps a window when its communicator is aborted,
//! while a stream or a graph may still copy. And NCCL returns the addresses of peers' windows only from release 2.29
//! on.
//!
//! A buffer must stay allocated until its own rank's stream has completed the message, as with NCCL. A free in stream
//! order after the message is safe: on both ends, the stream completes the message only after the copy.
//!
//! A graph pins the blocks that its messages use on its own rank: their memory is not freed while the graph exists. On
//! the second end, the graph also pins a segment: the second end's own segment that has the same ordinal (number in the
//! pool) as the first end's segment. The ranks [retire](crate::SymmetricPool::retire) (free) the segments of one
//! ordinal together, and only if no rank has a block or a pin in its own segment. So the first end's segment stays
//! mapped.
//!
//! # The ring
//! For every ordered pair of ranks, the receiver's memory holds a ring of slots. Messages that are not zero-copy go
//! through the ring in chunks of at most one slot. The sender's stream waits until a slot is empty, copies the chunk
//! into it by a copy engine, and signals that the slot is full. The receiver's stream waits for that signal, copies the
//! chunk to its destination, and signals that the slot is empty. The signals are words of host memory. Only one stream
//! at a time waits for a word, and resets the word after its wait. So after a message all words have their initial
//! values, and a captured message is correct in every run. The path uses no kernel, and so no multiprocessor.
//!
//! The chunks of one call for one peer and direction alternate between two streams: one stream copies while the other
//! one signals and waits. All of them use one stream in these cases:
//!
//! - There are at most two chunks.
//! - The ring has only one slot for messages of this kind (captured or not).
//! - The second stream belongs to a capture of which the call is not a part.
//!
//! | | |
//! |---|---|
//! | device memory of a rank | [`slot_bytes`](DirectOptions::slot_bytes) · ([`slots`](DirectOptions::slots) + [`graph_slots`](DirectOptions::graph_slots)) for each other member, by default 1.9 MiB |
//! | pinned host memory of a rank | about 42 KiB for each member |
//! | messages that run concurrently | those with different peers, and those in opposite directions between two ranks, if they are in one batch or on different streams |
//! | messages that run one after the other | those from one rank to another, in the order of calls, on any streams |
//! | driver calls of a zero-copy message, besides those for events | one on the first end, or two in a batch with several peers or directions; three on the second end |
//! | driver calls of a message through the ring, besides those for events | two for each chunk (a batch of memory operations, and a copy), and one for each stream; in a batch with several peers or directions, or with two streams and fewer than four slots, three for each chunk |
//!
//! # The size of the ring
//! A copy of 8 MiB over NVLink (H200, 395 GB/s) takes about 21 µs. The signals and waits of a stream around a chunk
//! take 8 to 10 µs. A second stream hides these 8 to 10 µs if the copy of a chunk takes longer than that, as it does
//! from 4 MiB on. Two costs per chunk remain. The copy engine takes a few µs to switch between the streams. And the
//! host makes two to three driver calls of a few µs each, which delay the next call of the same thread. So fewer and
//! larger chunks are better, until a ring takes too much memory. Four slots keep two streams busy: the sender fills two
//! slots while the receiver empties the other two.
//!
//! The default of 320 KiB for a slot suits messages of a few MiB. Larger messages should be zero-copy messages. With
//! default slots, a large message has many chunks of about 8 µs each: 256 MiB in 820 chunks take 6 to 7 ms, and 10 to
//! 15 ms if both ranks send that much at once (two H200). A program that sends large messages through the ring should
//! choose larger slots ([`DirectOptions::slot_bytes`]). The table below shows times in µs, measured with
//! `lockstep bench p2p` and four slots. In a cell with two times, the first one is for separate calls, and the second
//! one for one batch. The device memory includes two more slots, for graphs. For the same messages, NCCL with one
//! communicator and separate calls takes 1559 µs on 2 GPUs and 2264 µs on 4 GPUs.
//!
//! | slots of | 256 MiB both ways, 2 GPUs | 256 MiB to each of three peers, 4 GPUs | device memory for each peer |
//! |---|---|---|---|
//! | 8 MiB | 1186, 1075 | 2540, 2707 | 48 MiB |
//! | 16 MiB | 1010 to 1018, 908 to 940 | 2365, 2432 | 96 MiB |
//! | 32 MiB | 881, 823 | 2208, 2248 | 192 MiB |
//! | a bare copy | 699 | 2047 | |
//!
//! # Matching and limits
//! A send through the ring is done when its last chunk is in the ring. So if the receiver has not called yet, a sender
//! can send as much data as the ring holds.
//!
//! Each end logs a message before it enqueues any operation for it. Before the [second end](#zero-copy-messages)
//! enqueues anything, it compares the two log entries. If the number of elements or the type differs, or only one end
//! captures the message, the call of the second end fails, and the group ends. All members then get
//! [`MessagesDiffer`](process_group::group::GroupErrorKind::MessagesDiffer). Such a message is never delivered.
//!
//! In each direction between two ranks, either rank can call up to 512 messages that the other one has not called yet,
//! if the device's queues have room for them. The call of a further message waits on the host for the other rank.
//!
//! Messages complete in the following two cases, even if streams share hardware queues:
//!
//! - All ranks make matching batches in the same order. The order of the calls within a batch does not matter.
//! - All ranks make a separate call for each message, in the same order of messages.
//!
//! In the next two cases, messages complete only if no stream blocks another one in a shared hardware queue:
//!
//! - The ranks make separate calls, in orders that differ. For example, each of two ranks first calls the receive of
//!   the other's message, then the send of its own.
//! - One rank makes a send and a receive in separate calls, and its peer makes the matching calls in one batch. The two
//!   messages may then wait for each other, for example if they are zero-copy messages and the peer is the second end
//!   of both.
//!
//! In these last two cases, every stream needs its own hardware queue. This includes the streams that the path creates.
//! If a device has more than eight streams, `CUDA_DEVICE_MAX_CONNECTIONS=32` gives more queues.
//!
//! If each of two ranks has more than 512 messages to the other in one batch, both may wait on the host for the other
//! one until the [work timeout](process_group::group::Builder::work_timeout) and fail with [`PathError::Ahead`]. Use
//! several batches.
//!
//! A hardware queue holds 1,022 driver calls (H200, driver 580). A chunk takes two or three calls, as in the table of
//! [the ring](#the-ring). Each message takes two more, for events. So a stream with a queue of its own holds about 200
//! messages of one chunk, 200 zero-copy messages of any length, or 160 MiB of one message in default slots. If a rank
//! enqueues more than that before its peer makes the matching calls, its call blocks until the peer makes them. If the
//! peer never makes them, the group ends at the work timeout.
//!
//! # Graphs
//! If one end captures a message, the other end must capture it too. Captured messages use slots of their own. Within a
//! graph, the messages from one rank to another run in the order of calls. If several graphs have messages between the
//! same two ranks, the program must run these graphs one after the other, and in the same order on both ranks: for
//! example, by launches on one stream.
//!
//! A graph keeps the path's memory, also after the drop of the group. So graphs may run after the drop: if the group
//! was not aborted, their messages wait until the peers run their graphs too. Exception: if another library began the
//! capture, its graph keeps nothing, and must not be launched once the group is dropped. A graph that sends zero-copy
//! messages must not be launched after an abort: it may write into the buffer that a receiver passed at the capture,
//! and the receiver may have reused this buffer. All other graphs may be launched after an abort. Their runs complete
//! without valid data, and so do runs that are under way at the abort.
//!
//! # Aborts and timeouts
//! An abort, a lost member or a timeout ends the group. Each rank then ends the waits of its streams: a thread sets the
//! words that the streams wait for, again and again until the work that the path has enqueued is done. If the path has
//! captured messages, the thread continues until the path's memory is dropped, because a graph may run at any time. The
//! work handles report why the group has ended. Received data is invalid, and the context stays usable.
//!
//! After an abort, a sender must not write into a buffer that the receiver uses for something else. So a receiver
//! withdraws its offers that no sender has taken, except those of captured messages. If an offer of a receiver is
//! taken, or belongs to a captured message, the streams of both ends get extra time to wait for each other:
//!
//! - The receiver's stream waits until the sender has copied, for up to 2 s after the receiver's abort.
//! - The sender's stream waits until the receiver's stream is ready, for up to 4 s. The 4 s begin with the sender's
//!   abort. If the sender sees after its abort that the receiver has announced an abort too, the 4 s begin again. When
//!   the 4 s are over, the sender's stream copies, even if the receiver's stream is not ready.
//!
//! If the peer has died, a stream may wait for all of the extra time.
//!
//! The extra time is limited, so a sender may still write at the wrong time:
//!
//! - after the receiver's abort has returned, if the sender's earlier work and its copy are not complete after the
//!   receiver's 2 s
//! - while the receiver's earlier work uses the buffer, if the receiver's stream has not reached the message when the
//!   sender's 4 s are over
//!
//! A call may fail after it has offered the buffer of a receive. If the sender has taken that offer by then, the sender
//! still copies into the buffer. So the stream of the failed call still waits for this message. The caller must enqueue
//! later work on the buffer on the same stream, after the failed call.
//!
//! The path cannot query whether a captured message runs, or whether its graph still exists. So the drop of an aborted
//! group waits until all extra time of the rank's captured messages is over:
//!
//! - the 2 s, if the rank has captured the receive of a zero-copy message as the first end
//! - the 4 s, if the rank has captured the send of a zero-copy message as the second end
//!
//! # Files
//! | file | subject |
//! |---|---|
//! | root | [`install`], [`DirectOptions`], the implementation of [`Path`] |
//! | `handle` | [`Direct`] |
//! | `core` | launches messages, through rings and as zero-copy messages; aborts |
//! | `claim` | decides which end of a message comes first |
//! | `place` | the place of a buffer in the segments that all members have mapped: segment number and offset |
//! | `lane` | one direction between this rank and a peer: the order of its messages, and their chunks |
//! | `lane_launch` | the messages of one lane in one launch (the messages of one call) |
//! | `pushes` | the zero-copy messages for which an abort gives extra time: those that the sender copies |
//! | `rounds` | the order in which a call's chunks and zero-copy messages are enqueued, their streams, and why this cannot deadlock |
//! | `chunk_pipeline`, `zero_copy` | enqueue a lane's chunks, and its zero-copy messages |
//! | `flag_page` | shared host memory: the words that streams wait for, and the logs of messages |
//! | `half` | the part of a log entry that must be equal on both ends: element count, type, and whether captured |
//! | `meeting` | [`install`]: the ranks open each other's flag pages, and agree that all have a path or none |
//!
//! [`P2pPolicy::Direct`]: process_group::group::P2pPolicy::Direct

mod chunk_pipeline;
mod claim;
mod core;
mod flag_page;
mod half;
mod handle;
mod lane;
mod lane_launch;
mod meeting;
mod place;
mod pushes;
mod rounds;
mod zero_copy;

use std::{fmt, sync::Arc, time::Duration};

use cuda_driver::{Context, Stream, sys::Feature, vmm::HandleTypes};
use process_group::{
    ProcessGroup, error_text,
    group::{
        GroupError, GroupErrorKind, P2pPolicy,
        path::{Declined, Message, Operation, Path, PathError},
    },
    store::Deadline,
};

use self::{core::DirectCore, lane::Ring};
pub use self::{core::DirectReport, handle::Direct};
use crate::{
    agreement::rank_of,
    error::{CallContext, Error},
    error_kind::ErrorKind,
    membership::{MappedSegments, MappedUse},
    rendezvous::{PeerMemory, Rendezvous, RendezvousOptions},
};

const NAME: &str = "direct";

/// Options of a direct path. All members pass the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectOptions {
    /// Size of a slot in bytes (default 320 KiB), a multiple of 16. Messages that are not zero-copy go through a
    /// [ring](self#the-ring) of slots, in chunks of at most this size. With larger slots a message has fewer chunks,
    /// but the first chunk arrives later. [The size of the ring](self#the-size-of-the-ring) helps to choose.
    pub slot_bytes: usize,
    /// Number of slots of a ring for messages that are not captured (default 4; at least 1 and at most 65,536). A
    /// sender can be ahead of the receiver by this many chunks. With one slot, all chunks use one stream, one after the
    /// other. An odd number is a little slower than the next larger even number.
    pub slots: usize,
    /// Number of further slots of a ring, for captured messages (default 2, at most 65,536). With 0, all captured
    /// messages are refused.
    pub graph_slots: usize,
    /// Time limit of [`install`] (default 30 s). A member waits for half of this time for the other members to call
    /// `install`. If a member dies during the call, the others may get their error after the time limit, because two
    /// later steps have limits of their own. Whatever this time is, these limits are at least:
    /// - 10 s to map the other members' memory
    /// - 5 s to wait until the other members have reported whether they have mapped it
    ///
    /// The members take both steps twice: first for the rings, in a [rendezvous](RendezvousOptions::deadline), and then
    /// for the host memory through which the streams signal.
    pub deadline: Duration,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self { slot_bytes: 320 << 10, slots: 4, graph_slots: 2, deadline: Duration::from_secs(30) }
    }
}

impl DirectOptions {
    /// Sets the size of a slot in bytes.
    #[must_use]
    pub fn slot_bytes(self, slot_bytes: usize) -> Self {
        Self { slot_bytes, ..self }
    }

    /// Sets the number of slots of a ring for messages that are not captured.
    #[must_use]
    pub fn slots(self, slots: usize) -> Self {
        Self { slots, ..self }
    }

    /// Sets the number of further slots of a ring, for captured messages.
    #[must_use]
    pub fn graph_slots(self, graph_slots: usize) -> Self {
        Self { graph_slots, ..self }
    }

    /// Sets the time limit of [`install`].
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Returns the size of the rings in the memory of one rank, in bytes, for a group of `world` ranks. `None` if it
    /// exceeds the address space. The driver rounds the allocation up to its granularity, usually 2 MiB.
    ///
    /// ```
    /// # use symm_mem::direct::DirectOptions;
    /// assert_eq!(DirectOptions::default().device_bytes(2), Some(1920 << 10));
    /// ```
    #[must_use]
    pub fn device_bytes(self, world: usize) -> Option<usize> {
        let slots = self.slots.checked_add(self.graph_slots)?;
        slots.checked_mul(self.slot_bytes)?.checked_mul(world.saturating_sub(1))
    }

    fn ring(self) -> Ring {
        Ring { slot_bytes: self.slot_bytes, slots: [self.slots, self.graph_slots] }
    }

    /// Checks the options. Returns [`device_bytes`](Self::device_bytes) of a group of `world` ranks.
    fn check(self, world: usize) -> Result<usize, ErrorKind> {
        const MOST: usize = 1 << 16;
        let wrong = |problem: String| Err(ErrorKind::Options { problem });
        let Self { slot_bytes, slots, graph_slots, .. } = self;
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(16) {
            return wrong(format!("slots of {slot_bytes} bytes; expected a multiple of 16"));
        }
        if slots == 0 || slots > MOST || graph_slots > MOST {
            return wrong(format!(
                "{slots} slots and {graph_slots} for graphs; expected 1 and 0, and at most {MOST}"
            ));
        }
        match self.device_bytes(world) {
            Some(bytes) => Ok(bytes),
            None => wrong(format!("{self} for {world} ranks; that is more than addresses can count")),
        }
    }
}

impl fmt::Display for DirectOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot_bytes, slots, graph_slots, .. } = self;
        write!(out, "{slots} slots of {slot_bytes} bytes, and {graph_slots} for graphs")
    }
}

/// Makes the messages of `group` use this path from now on. Collective: all members call it once, with the same
/// options, before the group's first message. A group that is split off from `group` has no path until one is installed
/// for it.
///
/// All members must run on one host, with devices that can access each other's memory.
///
/// # Errors
/// [`ErrorKind::Group`] with [`GroupErrorKind::PathRefused`] if the group was not built with [`P2pPolicy::Direct`], or
/// if it has a path already. In the second case, the group keeps its path. [`ErrorKind::OtherHosts`] if not all members
/// run on one host.
///
/// The members agree twice: in a [rendezvous](crate::rendezvous), in which they map each other's
/// [rings](self#the-ring), and then in a second agreement, in which they map the host memory for signals. If they agree
/// that they have no path, all get an error from `install` and may call it again. Until a path is installed, the
/// group's messages fail with [`GroupErrorKind::NoPath`], and all other operations of the group stay usable. The error
/// from `install` has one of these kinds, the same on all members except for invalid options and failed allocations:
/// - [`ErrorKind::RendezvousRefused`] if a member does not arrive, if the memory cannot be shared, or if its size
///   differs between members (for example because their options differ).
/// - If a member has invalid options or cannot allocate its memory, that member gets its own error, for example
///   [`ErrorKind::Options`]. The others get [`ErrorKind::RendezvousRefused`].
/// - [`ErrorKind::OptionsDiffer`] if the options differ although the memory has the same size.
/// - [`ErrorKind::Unmade`] if all members have shared their memory, but one of them could not set up its path, or not
///   in time.
/// - [`ErrorKind::NotAgreed`] if the second agreement failed, for example because a member did not arrive.
///
/// In two more cases, this rank gets an error although the other members may have a path:
/// - This rank loses the store before it has read the result of the second agreement.
/// - The group ends on this rank during the call.
pub fn install(group: &ProcessGroup, options: DirectOptions) -> Result<Direct, Error> {
    let call = CallContext::of_group("direct path", group.id(), Some(group.name().into()));
    let (rank, world, context) = (group.rank(), group.size(), group.context());
    let report = group.p2p();
    let problem = match report {
        ref report if report.policy != P2pPolicy::Direct => {
            format!("its members agreed on messages by {}; build it with P2pPolicy::Direct", report.policy)
        }
        report if report.path.is_some() => "it has one already".to_owned(),
        _ => String::new(),
    };
    if !problem.is_empty() {
        let refused = GroupErrorKind::PathRefused { path: NAME, problem };
        return Err(call.error(GroupError::from(refused).of_group(group.name())));
    }
    let own = group.members()[rank].host;
    let away = group.members().iter().filter(|member| member.host != own).map(|member| member.rank);
    let ranks: Vec<_> = away.collect();
    if !ranks.is_empty() {
        return Err(call.error(ErrorKind::OtherHosts { own: group.global_rank(), ranks }));
    }
    let deadline = Deadline::after(options.deadline);
    // All members are on one host, so file descriptors are enough.
    let meeting = RendezvousOptions::default().deadline(options.deadline).handles(HandleTypes::POSIX_FD);
    let of_call = |error: Error| call.error(error.into_kind());
    // The path signals through flag pages (shared host memory), so it needs no signal pads (device memory for signals).
    let (rendezvous, site) = Rendezvous::without_pads(group.into(), context, meeting).map_err(of_call)?;
    let made = site.map_err(ErrorKind::from).and_then(|()| options.check(world));
    let memory = match made.and_then(|bytes| rings(context, bytes)) {
        Ok(memory) => memory,
        Err(kind) => {
            // The others get this rank's error at once, so they do not wait for this rank.
            rendezvous.decline(error_text(&kind));
            return Err(call.error(kind));
        }
    };
    let memory = rendezvous.rendezvous(&memory).map_err(of_call)?;
    let (info, attempt) = (rendezvous.group(), rendezvous.prefix(&memory).unwrap_or_default());
    let mapped = MappedSegments::of(group.id(), rank_of(group.global_rank()));
    let mapped = MappedUse::of(mapped);
    let make = |flag_pages| DirectCore::new(context, rank, options.ring(), flag_pages, (mapped, memory));
    let core =
        Arc::new(meeting::exchange_flag_pages(info, context, &options, (&attempt, deadline), &call, make)?);
    let handle = Direct::new(call.clone(), &core);
    group.install(Arc::new(DirectPath { core: Some(core) })).map_err(|error| call.error(error))?;
    Ok(handle)
}

/// Allocates this rank's rings. Fails if the driver lacks stream memory operations, by which streams signal and wait.
fn rings(context: &Context, bytes: usize) -> Result<PeerMemory, ErrorKind> {
    let feature = Feature::STREAM_MEMORY_OPERATIONS;
    context.driver().api().require(feature).map_err(cuda_driver::Error::from)?;
    // At least one byte: a group of one rank has no rings.
    Ok(PeerMemory::new(context, bytes.max(1), HandleTypes::POSIX_FD)?)
}

/// The path, as installed in its group.
#[derive(Debug)]
struct DirectPath {
    /// `None` only during drop.
    core: Option<Arc<DirectCore>>,
}

impl DirectPath {
    fn core(&self) -> &Arc<DirectCore> {
        self.core.as_ref().unwrap_or_else(|| unreachable!("a path has its core until it is dropped"))
    }
}

impl Path for DirectPath {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let Ring { slot_bytes, slots: [slots, graph_slots] } = self.core().ring;
        let options = DirectOptions { slot_bytes, slots, graph_slots, ..DirectOptions::default() };
        let DirectReport { zero_copy, staged } = self.core().report();
        format!(
            "symmetric memory and copy engines: from each of the other ranks {options}; {zero_copy} zero-copy messages, \
             {staged} through rings"
        )
    }

    fn device_bytes(&self) -> u64 {
        self.core().device_bytes()
    }

    fn plan(&self, operation: Operation) -> Result<(), Declined> {
        let world = self.core().world;
        match operation {
            Operation::Message { from, to } if from < world && to < world => Ok(()),
            other => Err(Declined(format!("{other:?} is no message between ranks of {world}"))),
        }
    }

    unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError> {
        // SAFETY: the caller's contract.
        unsafe { self.core().launch(messages, stream, deadline) }
    }

    fn abort(&self, deadline: Deadline) {
        self.core().abort(deadline);
    }

    fn given_up(&self) -> Option<usize> {
        self.core().given_up()
    }
}

impl Drop for DirectPath {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.end();
        }
    }
}
