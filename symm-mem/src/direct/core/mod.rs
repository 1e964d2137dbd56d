//! The core of a [direct path](super): launches messages. A message goes through a [ring](super#the-ring) in the
//! receiver's memory, or is copied directly from buffer to buffer ([zero-copy](super#zero-copy-messages)). For a
//! zero-copy message, the end that comes first offers its buffer, and the other end takes the offer and makes the copy.

mod abort;
mod enqueue;
mod reach;

use std::{
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{
    Context, Event, Stream,
    graph::{CaptureInfo, CaptureStatus},
};
use process_group::{
    group::path::{Message, MessageDifference, PathError, Way},
    store::Deadline,
};

use super::{
    claim::{await_claim, claim, take, withdraw},
    flag_page::{AHEAD, FlagPage},
    half::Half,
    lane::{Lane, Ring},
    lane_launch::{LaneLaunch, Piece},
    place::MappedPlace,
    zero_copy::{ZeroCopyOffer, ZeroCopyTake},
};
use crate::{lock::lock, membership::MappedUse, rendezvous::SymmetricMemory};

/// Counts of this rank's messages on a direct path, sent and received together. Returned by
/// [`Direct::report`](super::Direct::report). A message is counted during its call, so a captured message is counted
/// once. Messages of 0 bytes, and messages of a rank to itself, are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DirectReport {
    /// Messages that are copied [directly from buffer to buffer](super#zero-copy-messages).
    pub zero_copy: u64,
    /// Messages that go through a [ring](super#the-ring).
    pub staged: u64,
}

/// This rank's state of a path: rings, [flag pages](super::flag_page) and [lanes](super::lane) (a lane is one direction
/// between this rank and a peer). The last reference is dropped only once no launched work runs, because the drop frees
/// memory that this work uses. Captured work does not count: for it, the drop waits until the device is idle.
#[derive(Debug)]
pub(super) struct DirectCore {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) ring: Ring,
    context: Context,
    /// For each member, the lane of messages to it. Then for each member, the lane of messages from it.
    lanes: Box<[Lane]>,
    /// Events that order one stream after another, kept for reuse. Index 0: for use outside of captures. Index 1: for
    /// use in captures. An event that was recorded in a capture is not used outside of captures, because a wait for it
    /// might make the waiting stream part of that capture.
    spare_events: [Mutex<Vec<Event>>; 2],
    is_aborted: AtomicBool,
    /// Time of the first abort.
    aborted: OnceLock<Instant>,
    /// For each peer: the time at which this rank, after its own abort, first saw that the peer has [given
    /// up](super::flag_page) (has announced an abort).
    given_up_since: Box<[OnceLock<Instant>]>,
    /// Number of threads in [`launch`](Self::launch).
    enqueuers: AtomicUsize,
    /// True once a launch was called on a capturing stream. From then on, a graph may contain messages and run at any
    /// time.
    has_captured: AtomicBool,
    /// The value that the graphs with messages own, as long as such graphs exist. It keeps the path's memory.
    graphs: Mutex<Weak<GraphHold>>,
    /// Number of launched messages of at least 1 byte. Index 0: zero-copy messages. Index 1: messages through rings.
    launched: [AtomicU64; 2],
    /// The pool segments that all members have mapped.
    mapped: MappedUse,
    /// The flag pages of all ranks, by rank.
    pub(super) flag_pages: Vec<FlagPage>,
    /// The memory of all ranks in which the rings lie.
    memory: SymmetricMemory,
}

/// Counts a thread in [`DirectCore::enqueuers`] until the guard is dropped.
struct EnqueueGuard<'a>(&'a DirectCore);

impl Drop for EnqueueGuard<'_> {
    fn drop(&mut self) {
        self.0.enqueuers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Keeps the path for graphs with messages, also after the drop of the group.
struct GraphHold {
    _core: Arc<DirectCore>,
}

/// A message that this rank has written into its [log](super::flag_page::Log). Before this rank [claims](super::claim)
/// the message, `place` and `is_first` assume that this rank is the [first end](super#zero-copy-messages). If the claim
/// finds that the peer is the first end, it corrects both.
#[derive(Debug, Clone, Copy)]
struct LoggedMessage {
    message: Message,
    captured: bool,
    /// The number of the message in its lane, from 0 on.
    number: u64,
    /// The place (segment and offset) of the first end's buffer, or [`MappedPlace::NONE`].
    place: MappedPlace,
    /// True if this rank is the first end.
    is_first: bool,
}

impl DirectCore {
    pub(super) fn new(
        context: &Context,
        rank: usize,
        ring: Ring,
        flag_pages: Vec<FlagPage>,
        (mapped, memory): (MappedUse, SymmetricMemory),
    ) -> cuda_driver::Result<Self> {
        let world = flag_pages.len();
        let lanes =
            [Way::Send, Way::Receive].into_iter().flat_map(|way| (0..world).map(move |peer| (way, peer)));
        Ok(Self {
            rank,
            world,
            ring,
            context: context.clone(),
            lanes: lanes
                .map(|(way, peer)| Lane::new(context, way, peer))
                .collect::<cuda_driver::Result<_>>()?,
            spare_events: Default::default(),
            is_aborted: AtomicBool::new(false),
            aborted: OnceLock::new(),
            given_up_since: (0..world).map(|_| OnceLock::new()).collect(),
            enqueuers: AtomicUsize::new(0),
            has_captured: AtomicBool::new(false),
            graphs: Mutex::default(),
            launched: Default::default(),
            mapped,
            flag_pages,
            memory,
        })
    }

    /// Device memory that is allocated for this rank's rings, in bytes.
    pub(super) fn device_bytes(&self) -> u64 {
        self.memory.allocated_bytes() as u64
    }

    pub(super) fn report(&self) -> DirectReport {
        let [zero_copy, staged] = self.launched.each_ref().map(|count| count.load(Ordering::Relaxed));
        DirectReport { zero_copy, staged }
    }

    /// Counts the calling thread in `enqueuers` until the guard is dropped. Fails after an abort.
    fn enter(&self) -> Result<EnqueueGuard<'_>, PathError> {
        self.enqueuers.fetch_add(1, Ordering::SeqCst);
        let guard = EnqueueGuard(self);
        self.check()?;
        Ok(guard)
    }

    /// Returns [`PathError::Aborted`] after an abort.
    fn check(&self) -> Result<(), PathError> {
        if self.is_aborted.load(Ordering::SeqCst) { Err(PathError::Aborted) } else { Ok(()) }
    }

    /// # Safety
    /// As [`Path::launch`](process_group::Path::launch).
    pub(super) unsafe fn launch(
        self: &Arc<Self>,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError> {
        let _guard = self.enter()?;
        let capture = self.capture(stream)?;
        let others = messages.iter().filter(|message| message.peer != self.rank);
        let mut lanes: Vec<_> = others.map(|message| self.lane_number(message.way, message.peer)).collect();
        // All threads lock lanes in the same order, to avoid a deadlock. Lanes that send come first.
        lanes.sort_unstable();
        lanes.dedup();
        let launch = |at: &usize| {
            let lane = &self.lanes[*at];
            let state = lock(&lane.state);
            let unlaunched = self.flag_pages[self.rank].log(lane.peer, lane.way).count();
            LaneLaunch { lane, state, pieces: Vec::new(), unlaunched }
        };
        let mut launches: Vec<_> = lanes.iter().map(launch).collect();
        // SAFETY: the caller's contract.
        let launched = unsafe { self.launch_lanes(&mut launches, messages, stream, (capture, deadline)) };
        // After a failed launch in a capture, this rank's offers need no withdrawal: the failure ends the group, and
        // then graphs that send zero-copy messages must not be launched. So no peer copies into the offered buffers.
        if launched.is_err() && capture.is_none() {
            // SAFETY: as above.
            unsafe { self.fail(launches, stream) };
        }
        launched
    }

    /// Launches `messages`. `launches` has the locked lanes of the messages, in ascending order of
    /// [`lane_number`](Self::lane_number).
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn launch_lanes(
        &self,
        launches: &mut Vec<LaneLaunch<'_>>,
        messages: &[Message],
        stream: &Stream,
        (capture, deadline): (Option<u64>, Deadline),
    ) -> Result<(), PathError> {
        // All messages are logged and claimed before this launch takes a peer's offer or enqueues anything. So if
        // `claim` finds that the two ends describe a message differently, this launch fails before it has taken any
        // offer, and the peers can withdraw their offers at once.
        let others: Vec<_> = messages.iter().filter(|message| message.peer != self.rank).collect();
        let mut claimed = Vec::new();
        for batch in others.chunks(CLAIM_BATCH) {
            self.log_and_claim(batch, capture.is_some(), deadline, &mut claimed)?;
        }
        for logged in claimed {
            let (message, zero_copy) = (logged.message, self.zero_copy(&logged, stream, deadline)?);
            let (at, bytes) = (message.buffer.ptr, message.buffer.bytes());
            let lane = self.lane_number(message.way, message.peer);
            let number = |launch: &LaneLaunch<'_>| self.lane_number(launch.lane.way, launch.lane.peer);
            let found = launches.binary_search_by_key(&lane, number);
            let LaneLaunch { state, pieces, .. } =
                &mut launches[found.unwrap_or_else(|_| unreachable!("the lane of {message:?} is locked"))];
            match zero_copy {
                Some(piece) => pieces.push(piece),
                None => {
                    let chunks = self.ring.cut(at, bytes, capture.is_some(), &mut state.next);
                    pieces.extend(chunks.map(Piece::Chunk));
                }
            }
            let launched = &self.launched[usize::from(zero_copy.is_none())];
            launched.fetch_add(u64::from(bytes > 0), Ordering::Relaxed);
        }
        launches.retain(|launch| !launch.pieces.is_empty());
        // SAFETY: the caller's contract.
        unsafe {
            self.copy_to_self(messages, stream)?;
            self.enqueue(launches, stream, capture)
        }
    }

    /// Cleans up after a failed launch. This rank may have offered to receive messages without enqueueing its
    /// operations for them. This function withdraws every such offer that the sender has not taken. If the sender has
    /// taken an offer, it still copies into the buffer. So for each taken offer, this function enqueues this rank's
    /// operations, including the wait for the copy. The caller may reuse the buffers once `stream` has completed the
    /// enqueued operations.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn fail(&self, mut launches: Vec<LaneLaunch<'_>>, stream: &Stream) {
        for LaneLaunch { lane, pieces, unlaunched, .. } in &mut launches {
            let Lane { way, peer, .. } = **lane;
            // In a lane that sends, this rank has not enqueued the copies that it would make. So the messages count as
            // not taken.
            let is_taken = |number| way == Way::Receive && !self.withdraw(peer, number);
            let taken = lane.pushes().fail(*unlaunched, is_taken).into_iter();
            *pieces = taken.map(|number| Piece::Offer(ZeroCopyOffer { pushed: Some(number) })).collect();
        }
        launches.retain(|launch| !launch.pieces.is_empty());
        // The result is ignored: if the driver fails again, its context is broken, and runs nothing any more.
        // SAFETY: the caller's contract.
        let _ = unsafe { self.enqueue(&mut launches, stream, None) };
    }

    /// If `stream` captures: returns the id of the capture, records that the path has captured work, and makes the
    /// graph keep the path's memory. (If another library began the capture, the graph keeps nothing.) If `stream` does
    /// not capture: returns `None`. Refuses a captured launch if the ring has no slots for graphs, or if the capture is
    /// invalid.
    fn capture(self: &Arc<Self>, stream: &Stream) -> Result<Option<u64>, PathError> {
        let refused = |problem: &str| Err(PathError::Refused(problem.to_owned()));
        match stream.capture_info()? {
            CaptureInfo { status: CaptureStatus::None, .. } => Ok(None),
            CaptureInfo { id: Some(_), .. } if self.ring.slots[1] == 0 => refused(
                "the stream captures, and the path has no slots for graphs: install it with DirectOptions::graph_slots",
            ),
            CaptureInfo { id: Some(id), .. } => {
                self.has_captured.store(true, Ordering::Relaxed);
                let mut graphs = lock(&self.graphs);
                let hold = graphs.upgrade().unwrap_or_else(|| Arc::new(GraphHold { _core: self.clone() }));
                *graphs = Arc::downgrade(&hold);
                drop(graphs);
                stream.keep_in_graph(hold)?;
                Ok(Some(id))
            }
            _ => refused("the stream's capture was ruined by another call"),
        }
    }

    /// Logs and claims `messages`, and adds them to `claimed`. Receives are claimed before sends, because the peers'
    /// sends [may wait](Self::await_receiver) for these claims. Messages are logged in their order. So a rank that is
    /// too far ahead of a peer [waits](Self::await_peer) at the same message as with separate calls.
    fn log_and_claim(
        &self,
        messages: &[&Message],
        captured: bool,
        deadline: Deadline,
        claimed: &mut Vec<LoggedMessage>,
    ) -> Result<(), PathError> {
        let mut sends = Vec::new();
        for message in messages {
            let logged = self.log(message, captured, deadline)?;
            match message.way {
                Way::Send => sends.push(logged),
                Way::Receive => claimed.push(self.claim(logged)?),
            }
        }
        for logged in sends {
            self.await_receiver(&logged);
            claimed.push(self.claim(logged)?);
        }
        Ok(())
    }

    /// Logs this rank's [`Half`] (description) of a message, and the place of its buffer. First waits while this rank
    /// is too far ahead of the peer.
    fn log(&self, message: &Message, captured: bool, deadline: Deadline) -> Result<LoggedMessage, PathError> {
        let Message { way, peer, buffer } = *message;
        let own = self.flag_pages[self.rank].log(peer, way);
        let other = self.flag_pages[peer].log(self.rank, way.opposite());
        self.await_peer(peer, || own.count().saturating_sub(other.count()), deadline)?;
        let place = self.place(message);
        let number = own.put(Half::of(&buffer, captured).0, place.0);
        Ok(LoggedMessage { message: *message, captured, number, place, is_first: true })
    }

    /// [Claims](super::claim) a message that this rank has logged. Fails after an abort.
    /// - If this rank comes first: returns `logged` unchanged. If the claim offers a buffer to receive into, the lane's
    ///   [`Pushes`](super::pushes::Pushes) has an entry for the message.
    /// - If the peer came first: returns `logged` with the place of the peer's buffer. Fails if the [`Half`]s of the
    ///   two ends differ.
    fn claim(&self, logged: LoggedMessage) -> Result<LoggedMessage, PathError> {
        let LoggedMessage { message, captured, number, place, .. } = logged;
        let Message { way, peer, buffer } = message;
        let offers_to_receive = way == Way::Receive && place != MappedPlace::NONE;
        // An abort withdraws, or waits for, only offers that are noted in `Pushes`, and must not miss one. So a
        // receiver first notes its offer, then checks that no abort has begun, and only then makes the offer.
        if offers_to_receive {
            self.note_push(&logged);
        }
        let is_first = self.check().map(|()| claim(self.claim_of(&logged), number, way));
        if matches!(is_first, Ok(true)) {
            return Ok(logged);
        }
        if offers_to_receive {
            self.lane(way, peer).pushes().forget(number, captured);
        }
        is_first?;
        let (peer_half, peer_place) = self.flag_pages[peer].log(self.rank, way.opposite()).get(number);
        let (own, theirs) = (Half::of(&buffer, captured), Half(peer_half));
        if own != theirs {
            let (from, to) = self.ends(way, peer);
            let (sent, received) = if way == Way::Send { (own, theirs) } else { (theirs, own) };
            let (sent, received) = (sent.to_string(), received.to_string());
            return Err(MessageDifference { from, to, number: number + 1, sent, received }.into());
        }
        Ok(LoggedMessage { place: MappedPlace(peer_place), is_first: false, ..logged })
    }

    /// Decides whether a claimed message is a zero-copy message, and takes the peer's offer, if there is one. Returns
    /// the piece of a zero-copy message, and `None` for a message that goes through the ring. Only receivers withdraw
    /// offers. If the peer has withdrawn its offer, this rank sends the message through the ring, and the peer does not
    /// receive it.
    fn zero_copy(
        &self,
        logged: &LoggedMessage,
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<Option<Piece>, PathError> {
        let LoggedMessage { message, captured, number, place, is_first } = *logged;
        let Message { way, peer, buffer } = message;
        let Some(place) = place.get() else { return Ok(None) };
        if is_first {
            return Ok(Some(Piece::Offer(ZeroCopyOffer { pushed: (way == Way::Receive).then_some(number) })));
        }
        let bytes = buffer.bytes();
        let address = self.reach(peer, place, bytes, (captured.then_some(stream), deadline))?;
        // After an abort, the streams of both ends still wait a while for copies that are noted in `Pushes`. So, as in
        // `claim`, a sender first notes its copy, then checks that no abort has begun, and only then takes the offer.
        if way == Way::Send {
            self.note_push(logged);
        }
        let taken = self.check().map(|()| take(self.claim_of(logged), number));
        if !matches!(taken, Ok(true)) {
            if way == Way::Send {
                self.lane(way, peer).pushes().forget(number, captured);
            }
            // The peer has withdrawn the offer because its launch has failed or its group has ended. Or the check has
            // failed because of an abort.
            return taken.map(|_| None);
        }
        Ok(Some(Piece::Take(match way {
            Way::Send => ZeroCopyTake { to: address, from: buffer.ptr, bytes, pushed: Some(number) },
            Way::Receive => ZeroCopyTake { to: buffer.ptr, from: address, bytes, pushed: None },
        })))
    }

    /// Index of a lane in [`lanes`](Self::lanes).
    fn lane_number(&self, way: Way, peer: usize) -> usize {
        usize::from(way == Way::Receive) * self.world + peer
    }

    /// The sender and the receiver of a message.
    fn ends(&self, way: Way, peer: usize) -> (usize, usize) {
        match way {
            Way::Send => (self.rank, peer),
            Way::Receive => (peer, self.rank),
        }
    }

    fn lane(&self, way: Way, peer: usize) -> &Lane {
        &self.lanes[self.lane_number(way, peer)]
    }

    /// Returns the word in which both ends [claim](super::claim) a message.
    fn claim_of(&self, LoggedMessage { message, number, .. }: &LoggedMessage) -> &AtomicU64 {
        let (from, to) = self.ends(message.way, message.peer);
        self.flag_pages[to].claim(from, *number)
    }

    /// Withdraws this rank's offer to receive message `number` from `peer`. Returns true if this call or an earlier one
    /// has withdrawn the offer. Returns false if the peer has taken the offer, or if the [claim](super::claim) word of
    /// the message contains no such offer.
    fn withdraw(&self, peer: usize, number: u64) -> bool {
        withdraw(self.flag_pages[self.rank].claim(peer, number), number)
    }

    /// Notes in the lane's [`Pushes`](super::pushes::Pushes) that the sender may copy this message into the receiver's
    /// buffer, so that an abort gives the copy time.
    fn note_push(&self, LoggedMessage { message, number, captured, .. }: &LoggedMessage) {
        let passed = self.flag_pages[self.rank].passed(message.peer, message.way);
        self.lane(message.way, message.peer).pushes().note(*number, *captured, passed);
    }

    /// Waits while this rank is [`AHEAD`] messages or more ahead of the peer. `lead` returns the number of messages by
    /// which it is ahead.
    fn await_peer(&self, peer: usize, lead: impl Fn() -> u64, deadline: Deadline) -> Result<(), PathError> {
        let mut pause = Duration::from_micros(20);
        while lead() >= AHEAD {
            self.check()?;
            if deadline.expired() {
                return Err(PathError::Ahead { peer, messages: AHEAD, waited: deadline.waited() });
            }
            thread::sleep(pause.min(deadline.remaining()));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Called before this rank claims a message that it sends. Waits until one of these conditions is true:
    /// - The receiver has claimed the message. This rank is then the second end, and makes the copy.
    /// - The receiver has called more sends to this rank than this rank has called receives from the receiver. This
    ///   rank will call the missing receive later, and then make the copy of that message. So the receiver should make
    ///   the copy of this one.
    /// - An eighth of [`copy_time`] has passed.
    ///
    /// Because of this wait, each of two ranks that send each other a message at about the same time makes one copy. If
    /// both call the receive first, or both messages in one batch, each rank copies the message that it sends. If both
    /// call the send first, each rank copies the message that it receives. If one rank calls after the end of the
    /// other's wait, it is the second end of both messages, and its GPU makes the copies one after the other.
    ///
    /// The wait does not delay this message's copy, which starts only when both ends have called. But the wait may
    /// delay the other messages of the call, and later calls of the thread.
    ///
    /// Does not wait if the receiver has logged no receive from this rank yet, or if the buffer of its last such
    /// receive lies in no mapped segment. Then the receiver's buffer for this message, which this rank does not know
    /// yet, probably lies in none either. If such a receiver came first, the message would go through the ring.
    fn await_receiver(&self, logged: &LoggedMessage) {
        let LoggedMessage { message: Message { peer, buffer, .. }, number, .. } = *logged;
        let theirs = self.flag_pages[peer].log(self.rank, Way::Receive);
        let last = theirs.count().checked_sub(1).map(|last| theirs.get(last).1);
        if last.is_none_or(|place| place == MappedPlace::NONE.0) {
            return;
        }
        let sent = self.flag_pages[peer].log(self.rank, Way::Send);
        let received = self.flag_pages[self.rank].log(peer, Way::Receive);
        let peer_sends = || sent.count() > received.count();
        await_claim(self.claim_of(logged), number, copy_time(buffer.bytes()) / 8, peer_sends);
    }

    /// Enqueues copies for those of `messages` that this rank sends to itself. The n-th such send matches the n-th such
    /// receive. The caller passes as many of these sends as receives, and matching ones have equal lengths.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn copy_to_self(&self, messages: &[Message], stream: &Stream) -> cuda_driver::Result<()> {
        let buffers = |way: Way| {
            let is_own = move |message: &&Message| message.peer == self.rank && message.way == way;
            messages.iter().filter(is_own).map(|message| message.buffer)
        };
        for (from, to) in buffers(Way::Send).zip(buffers(Way::Receive)) {
            if from.ptr != to.ptr && from.bytes() > 0 {
                // SAFETY: the caller's contract; the two buffers have the same length.
                unsafe { stream.copy(to.ptr, from.ptr, from.bytes()) }?;
            }
        }
        Ok(())
    }
}

/// Largest number of messages of a launch that are logged before the first of them is claimed. Each direction between
/// two ranks has 1024 claim words, which its messages use in turn. The peer may have claimed up to [`AHEAD`] messages
/// that this rank has not logged yet. This rank may have logged up to `CLAIM_BATCH` messages that it has not claimed
/// yet. `AHEAD + CLAIM_BATCH` is at most 1024, so the peer's claims do not overwrite the words of these messages.
const CLAIM_BATCH: usize = AHEAD as usize / 2;

/// The time in which a copy engine copies this many bytes to another GPU, at 400 GB/s.
fn copy_time(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 / 400)
}
