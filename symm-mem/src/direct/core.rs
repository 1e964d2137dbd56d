//! Core of the path: rings in the receivers' memory, and the messages that go through them.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use cuda_driver::{
    Context, DevicePtr, Event, EventFlags, Stream,
    graph::{CaptureInfo, CaptureStatus},
};
use process_group::{
    group::path::{Message, PathError, Way},
    store::Deadline,
};

use super::{
    chunk_pipeline::ChunkPipeline,
    flag_page::{AHEAD, FlagPage, Word},
    half::Half,
    lane::{Chunk, Lane, Ring, State, compare},
    rounds::{Load, Step, steps, takes_turns},
};
use crate::rendezvous::SymmetricMemory;

/// Time for launched work to end once no caller waits for it any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rings, flag pages and lanes. The last reference is dropped only after the core was seen [idle](Self::is_idle).
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) ring: Ring,
    context: Context,
    /// Two lanes for each member: to it, and from it.
    lanes: Box<[Lane]>,
    /// Spare events for points from which several streams continue: index 0 for use outside of captures, index 1
    /// inside. An event that was recorded in a capture is not used outside of one, because a wait for it might make the
    /// stream part of the capture.
    forks: [Mutex<Vec<Event>>; 2],
    is_aborted: AtomicBool,
    /// Number of threads that are enqueueing.
    inside: AtomicUsize,
    /// A graph has captured a message. It is unknown when the graph runs.
    has_captured: AtomicBool,
    /// By rank.
    flag_pages: Vec<Arc<FlagPage>>,
    /// The rings of all ranks.
    memory: SymmetricMemory,
}

/// Counts a thread that is enqueueing.
struct Inside<'a>(&'a Core);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lane's part of one call.
struct Part<'a> {
    lane: &'a Lane,
    state: MutexGuard<'a, State>,
    chunks: Vec<Chunk>,
}

/// Index of the ring from rank `from` in the memory of rank `to`; a rank has no ring from itself.
pub(super) fn ring_of(from: usize, to: usize) -> usize {
    if from < to { from } else { from - 1 }
}

impl Core {
    pub(super) fn new(
        context: &Context,
        rank: usize,
        ring: Ring,
        flag_pages: Vec<Arc<FlagPage>>,
        memory: SymmetricMemory,
    ) -> cuda_driver::Result<Self> {
        let world = flag_pages.len();
        let lane = |at: usize| Lane::new(context, [Way::Send, Way::Receive][at % 2], at / 2);
        Ok(Self {
            rank,
            world,
            ring,
            context: context.clone(),
            lanes: (0..2 * world).map(lane).collect::<cuda_driver::Result<_>>()?,
            forks: Default::default(),
            is_aborted: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            has_captured: AtomicBool::new(false),
            flag_pages,
            memory,
        })
    }

    /// Device memory of this rank's rings, in bytes.
    pub(super) fn device_bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    fn enter(&self) -> Result<Inside<'_>, PathError> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(self);
        if self.is_aborted.load(Ordering::SeqCst) { Err(PathError::Aborted) } else { Ok(inside) }
    }

    /// # Safety
    /// As [`Path::launch`](process_group::Path::launch).
    pub(super) unsafe fn launch(
        &self,
        messages: &[Message],
        stream: &Stream,
        deadline: Deadline,
    ) -> Result<(), PathError> {
        let _inside = self.enter()?;
        let capture = self.capture(stream)?;
        let lane_of = |message: &Message| 2 * message.peer + usize::from(message.way == Way::Receive);
        let mut wanted: Vec<_> =
            messages.iter().filter(|message| message.peer != self.rank).map(lane_of).collect();
        // Locked in one order, since other threads lock them too; sending lanes come first.
        wanted.sort_unstable_by_key(|lane| (lane % 2, *lane));
        wanted.dedup();
        let part = |at: &usize| {
            let lane = &self.lanes[*at];
            Part {
                lane,
                state: lane.state.lock().unwrap_or_else(PoisonError::into_inner),
                chunks: Vec::new(),
            }
        };
        let mut parts: Vec<_> = wanted.iter().map(part).collect();
        // All messages are compared before anything is enqueued.
        for message in messages.iter().filter(|message| message.peer != self.rank) {
            self.call(message, capture.is_some(), deadline)?;
        }
        for message in messages {
            let (at, bytes) = (message.buffer.ptr, message.buffer.bytes());
            if let Ok(place) = wanted.binary_search_by_key(&order(lane_of(message)), |lane| order(*lane)) {
                let Part { state, chunks, .. } = &mut parts[place];
                state.cut(self.ring, at, bytes, capture.is_some(), chunks);
            }
        }
        parts.retain(|part| !part.chunks.is_empty());
        // SAFETY: the caller's contract.
        unsafe {
            self.to_oneself(messages, stream)?;
            self.enqueue(parts, stream, capture)
        }
    }

    /// The capture that `stream` is in, if any.
    fn capture(&self, stream: &Stream) -> Result<Option<u64>, PathError> {
        let refused = |problem: &str| Err(PathError::Refused(problem.to_owned()));
        match stream.capture_info()? {
            CaptureInfo { status: CaptureStatus::None, .. } => Ok(None),
            CaptureInfo { id: Some(_), .. } if self.ring.slots[1] == 0 => refused(
                "the stream captures, and the path has no slots for graphs: install it with DirectOptions::graph_slots",
            ),
            CaptureInfo { id: Some(id), .. } => {
                self.has_captured.store(true, Ordering::Relaxed);
                Ok(Some(id))
            }
            _ => refused("the stream's capture was ruined by another call"),
        }
    }

    /// Logs this rank's half of a message, and compares it with the peer's half if the peer was first.
    fn call(&self, message: &Message, captured: bool, deadline: Deadline) -> Result<(), PathError> {
        let Message { way, peer, buffer } = message;
        let opposite = match way {
            Way::Send => Way::Receive,
            Way::Receive => Way::Send,
        };
        let own = self.flag_pages[self.rank].log(*peer, *way);
        let other = self.flag_pages[*peer].log(self.rank, opposite);
        let mut pause = Duration::from_micros(20);
        while own.count().saturating_sub(other.count()) >= AHEAD {
            if self.is_aborted.load(Ordering::Acquire) {
                return Err(PathError::Aborted);
            }
            if deadline.expired() {
                return Err(PathError::Ahead { peer: *peer, messages: AHEAD, waited: deadline.waited() });
            }
            thread::sleep(pause.min(deadline.remaining()));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(compare((self.rank, *peer), *way, Half::of(buffer, captured), own, other)?)
    }

    /// Copies messages of this rank to itself. The halves come in pairs.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn to_oneself(&self, messages: &[Message], stream: &Stream) -> cuda_driver::Result<()> {
        let own = |way: Way| {
            let own = move |message: &&Message| message.peer == self.rank && message.way == way;
            messages.iter().filter(own).map(|message| message.buffer)
        };
        for (from, to) in own(Way::Send).zip(own(Way::Receive)) {
            if from.ptr != to.ptr && from.bytes() > 0 {
                // SAFETY: the caller's contract; the halves of a pair have the same length.
                unsafe { stream.copy(to.ptr, from.ptr, from.bytes()) }?;
            }
        }
        Ok(())
    }

    /// Enqueues the lanes' chunks in [rounds](super::rounds). Each lane uses streams of its own if possible: the
    /// first lane uses the caller's stream, and lanes with many chunks also use a second stream.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn enqueue(
        &self,
        mut parts: Vec<Part<'_>>,
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<(), PathError> {
        let words: Vec<_> = parts.iter().map(|part| self.words(part.lane)).collect();
        let firsts = self.part_ways(&parts, stream, capture)?;
        let slots = self.ring.slots[usize::from(capture.is_some())];
        let mut pipelines = Vec::with_capacity(parts.len());
        for ((part, first), words) in parts.iter().zip(firsts).zip(&words) {
            part.lane.follow(&part.state, first, capture)?;
            let mut second = None;
            if takes_turns(part.chunks.len(), slots) {
                second = part.lane.stream(1, &self.context, capture)?;
            }
            if let Some(second) = second {
                self.chain(first, second, capture)?;
            }
            let Lane { way, peer, .. } = *part.lane;
            let (slot_bytes, ring) = (self.ring.slot_bytes, self.slots_of(way, peer));
            pipelines.push(ChunkPipeline { first, second, ring, slot_bytes, way, words });
        }
        let load = |(part, pipeline): (&Part<'_>, &ChunkPipeline<'_>)| Load {
            chunks: part.chunks.len(),
            slots,
            streams: pipeline.streams(),
        };
        let loads: Vec<_> = parts.iter().zip(&pipelines).map(load).collect();
        let carried = steps(&loads).into_iter().try_for_each(|Step { part, stream, tell, carry }| {
            if self.is_aborted.load(Ordering::Relaxed) {
                return Err(PathError::Aborted);
            }
            let chunk = |chunk: Option<usize>| chunk.map(|at| parts[part].chunks[at]);
            // SAFETY: the caller's contract; flag pages and rings stay until the lanes are idle.
            Ok(unsafe { pipelines[part].step(stream, chunk(tell), chunk(carry)) }?)
        });
        // Enqueued work is marked also after a failure: an abort ends waits until the marks are reached.
        let marked = parts.iter_mut().zip(&pipelines).map(|(part, ChunkPipeline { first, second, .. })| {
            let joined = second.map_or(Ok(()), |second| match capture {
                Some(_) => self.chain(second, first, capture),
                None => part.lane.join(first, second),
            });
            let marked = part.lane.mark(&mut part.state, first, capture);
            let is_own = first.raw() == stream.raw();
            joined.and(marked.and_then(|end| if is_own { Ok(()) } else { stream.wait(end) }))
        });
        marked.fold(carried, |carried, marked| carried.and(marked.map_err(PathError::from)))
    }

    /// The first stream of each part: the caller's for the first part, then the lanes' own, which continue after the
    /// current work of the caller's.
    fn part_ways<'a>(
        &self,
        parts: &[Part<'a>],
        stream: &'a Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<Vec<&'a Stream>> {
        let mut firsts = vec![stream; parts.len()];
        if parts.len() > 1 {
            let fork = self.fork(capture)?;
            stream.record(&fork)?;
            for (part, first) in parts.iter().zip(&mut firsts).skip(1) {
                if let Some(apart) = part.lane.stream(0, &self.context, capture)? {
                    apart.wait(&fork)?;
                    *first = apart;
                }
            }
            self.keep(fork, capture);
        }
        Ok(firsts)
    }

    /// Makes `later` continue after the current work of `earlier`.
    fn chain(&self, earlier: &Stream, later: &Stream, capture: Option<u64>) -> cuda_driver::Result<()> {
        let fork = self.fork(capture)?;
        earlier.record(&fork)?;
        later.wait(&fork)?;
        self.keep(fork, capture);
        Ok(())
    }

    fn fork(&self, capture: Option<u64>) -> cuda_driver::Result<Event> {
        let forks = &self.forks[usize::from(capture.is_some())];
        let kept = forks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| Event::new(&self.context, EventFlags::DISABLE_TIMING), Ok)
    }

    /// Keeps an event for reuse: a wait that is already enqueued refers to the earlier record.
    fn keep(&self, fork: Event, capture: Option<u64>) {
        self.forks[usize::from(capture.is_some())].lock().unwrap_or_else(PoisonError::into_inner).push(fork);
    }

    /// Given a slot of a lane, the word that this rank waits for and the word by which it signals the peer.
    fn words<'a>(&'a self, lane: &'a Lane) -> impl Fn(usize) -> (DevicePtr, DevicePtr) + 'a {
        let (rank, peer) = (self.rank, lane.peer);
        let (own, other) = (&self.flag_pages[rank], &self.flag_pages[peer]);
        let (awaited, told) = match lane.way {
            Way::Send => (Word::Empty, Word::Full),
            Way::Receive => (Word::Full, Word::Empty),
        };
        move |slot| (own.at(peer, awaited, slot), other.at(rank, told, slot))
    }

    /// First slot of the ring for messages to or from a peer.
    fn slots_of(&self, way: Way, peer: usize) -> DevicePtr {
        let (from, to) = match way {
            Way::Send => (self.rank, peer),
            Way::Receive => (peer, self.rank),
        };
        let bytes = self.ring.slots() * self.ring.slot_bytes;
        self.memory.buffers().addresses()[to] + self.memory.offset() + ring_of(from, to) * bytes
    }

    /// Returns whether nothing runs any more, apart from captured work.
    fn is_idle(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == 0 && self.lanes.iter().all(Lane::is_idle)
    }

    /// Ends the waits that this rank's streams may be in. Returns whether nothing runs any more, apart from captured
    /// work.
    fn let_go(&self) -> bool {
        let is_idle = self.is_idle();
        if !is_idle || self.has_captured.load(Ordering::Relaxed) {
            let own = &self.flag_pages[self.rank];
            // The flag comes first: chunks now go into slots that are not free, and no peer may take them for valid
            // messages.
            own.give_up();
            own.release();
        }
        is_idle
    }

    /// Another rank that has ended its waits, if there is one.
    pub(super) fn given_up(&self) -> Option<usize> {
        (0..self.world).find(|peer| *peer != self.rank && self.flag_pages[*peer].has_given_up())
    }

    /// Refuses later calls, and repeatedly ends the waits of launched work until nothing runs any more. Returns
    /// whether that was before the deadline.
    pub(super) fn abort(self: &Arc<Self>, deadline: Deadline) -> bool {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            // A stream may reach its waits long after the deadline, and it is unknown when a graph runs.
            let core = Arc::downgrade(self);
            let linger = move || {
                let until = Deadline::after(PATIENCE);
                while let Some(core) = core.upgrade() {
                    if core.let_go() && !core.has_captured.load(Ordering::Relaxed) {
                        return;
                    }
                    drop(core);
                    thread::sleep(Duration::from_millis(if until.expired() { 20 } else { 1 }));
                }
            };
            // Without the thread, only the loop below ends waits.
            let _ = thread::Builder::new().name("direct-abort".into()).spawn(linger);
        }
        loop {
            if self.let_go() {
                return true;
            }
            if deadline.expired() {
                return false;
            }
            thread::sleep(Duration::from_micros(200).min(deadline.remaining()));
        }
    }

    /// Called when the group ends: waits for launched work, or aborts it.
    pub(super) fn end(mut self: Arc<Self>) {
        if !self.is_idle() && !self.abort(Deadline::after(PATIENCE)) {
            // The device still writes to the memory, so it is kept until that has ended.
            let kept = ManuallyDrop::new(self);
            let linger = move || {
                while !kept.abort(Deadline::after(PATIENCE)) {}
                drop(ManuallyDrop::into_inner(kept));
            };
            // Without the thread the memory is leaked. That is better than reuse while the device writes to it.
            let _ = thread::Builder::new().name("direct-end".into()).spawn(linger);
            return;
        }
        if self.is_aborted.load(Ordering::Relaxed) && self.has_captured.load(Ordering::Relaxed) {
            self.settle();
        }
        // The thread started by an abort holds a reference from time to time.
        while let Err(held) = Arc::try_unwrap(self) {
            self = held;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until streams have passed no wait for a while, because graphs may still be running.
    fn settle(&self) {
        const QUIET: u32 = 50;
        let (until, mut quiet) = (Deadline::after(PATIENCE), 0);
        while quiet < QUIET && !until.expired() {
            quiet = if self.flag_pages[self.rank].release() { 0 } else { quiet + 1 };
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sort key: the order in which lanes are locked.
fn order(lane: usize) -> (usize, usize) {
    (lane % 2, lane)
}
