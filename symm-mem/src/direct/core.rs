//! The path itself: rings in the receivers' memory, and how messages go through them.

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
    board::{AHEAD, Board, Word},
    conveyor::Conveyor,
    half::Half,
    lane::{Chunk, Lane, Ring, State, compare},
    rounds::{Load, Step, steps, takes_turns},
};
use crate::rendezvous::SymmetricMemory;

/// How long what was launched is given to end when nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rings, boards and lanes. Whoever lets go of it last has seen it [idle](Self::is_idle).
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) ring: Ring,
    context: Context,
    /// Two for each member: to it, and from it.
    lanes: Box<[Lane]>,
    /// Events for places from which streams begin together.
    forks: Mutex<Vec<Event>>,
    is_aborted: AtomicBool,
    /// Threads that are enqueueing.
    inside: AtomicUsize,
    /// Whether a graph has captured a message: when it runs cannot be known.
    has_captured: AtomicBool,
    /// By rank.
    boards: Vec<Arc<Board>>,
    /// Every rank's rings.
    memory: SymmetricMemory,
}

/// A thread that is enqueueing.
struct Inside<'a>(&'a Core);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lane's part of what is called together.
struct Part<'a> {
    lane: &'a Lane,
    state: MutexGuard<'a, State>,
    chunks: Vec<Chunk>,
}

/// Where rank `to` has its ring from rank `from`, as a number: none for itself.
pub(super) fn ring_of(from: usize, to: usize) -> usize {
    if from < to { from } else { from - 1 }
}

impl Core {
    pub(super) fn new(
        context: &Context,
        rank: usize,
        ring: Ring,
        boards: Vec<Arc<Board>>,
        memory: SymmetricMemory,
    ) -> cuda_driver::Result<Self> {
        let world = boards.len();
        let lane = |at: usize| Lane::new(context, [Way::Send, Way::Receive][at % 2], at / 2);
        Ok(Self {
            rank,
            world,
            ring,
            context: context.clone(),
            lanes: (0..2 * world).map(lane).collect::<cuda_driver::Result<_>>()?,
            forks: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            has_captured: AtomicBool::new(false),
            boards,
            memory,
        })
    }

    /// What the rings of this rank take of its device.
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
        // In one order, since others take them too; and those that send come first.
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
        // All are compared before anything is enqueued.
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

    /// The capture that `stream` is in.
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

    /// Says what this rank calls, and compares it with what the peer has called, if it was first.
    fn call(&self, message: &Message, captured: bool, deadline: Deadline) -> Result<(), PathError> {
        let Message { way, peer, buffer } = message;
        let opposite = match way {
            Way::Send => Way::Receive,
            Way::Receive => Way::Send,
        };
        let own = self.boards[self.rank].log(*peer, *way);
        let other = self.boards[*peer].log(self.rank, opposite);
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

    /// Copies what this rank sends itself. Its halves come in pairs.
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
                // SAFETY: the caller's contract; both are as long.
                unsafe { stream.copy(to.ptr, from.ptr, from.bytes()) }?;
            }
        }
        Ok(())
    }

    /// Enqueues the lanes' chunks in [rounds](super::rounds), each lane's on streams of its own where that can be: the
    /// caller's for the first lane, and a second where there is much to carry.
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
        let mut conveyors = Vec::with_capacity(parts.len());
        for ((part, first), words) in parts.iter().zip(firsts).zip(&words) {
            part.lane.follow(&part.state, first, capture)?;
            let mut second = None;
            if takes_turns(part.chunks.len(), slots) {
                second = part.lane.stream(1, &self.context, capture)?;
            }
            if let Some(second) = second {
                self.chain(first, second)?;
            }
            let Lane { way, peer, .. } = *part.lane;
            let (slot_bytes, ring) = (self.ring.slot_bytes, self.slots_of(way, peer));
            conveyors.push(Conveyor { first, second, ring, slot_bytes, way, words });
        }
        let load = |(part, conveyor): (&Part<'_>, &Conveyor<'_>)| Load {
            chunks: part.chunks.len(),
            slots,
            streams: conveyor.streams(),
        };
        let loads: Vec<_> = parts.iter().zip(&conveyors).map(load).collect();
        let carried = steps(&loads).into_iter().try_for_each(|Step { part, stream, tell, carry }| {
            if self.is_aborted.load(Ordering::Relaxed) {
                return Err(PathError::Aborted);
            }
            let chunk = |chunk: Option<usize>| chunk.map(|at| parts[part].chunks[at]);
            // SAFETY: the caller's contract; boards and rings stay until the lanes are idle.
            Ok(unsafe { conveyors[part].step(stream, chunk(tell), chunk(carry)) }?)
        });
        // All that was enqueued has its marks, also when more could not be: it is ended until it has come there.
        let marked = parts.iter_mut().zip(&conveyors).map(|(part, Conveyor { first, second, .. })| {
            let joined = second.map_or(Ok(()), |second| match capture {
                Some(_) => self.chain(second, first),
                None => part.lane.join(first, second),
            });
            let marked = part.lane.mark(&mut part.state, first, capture);
            let is_own = first.raw() == stream.raw();
            joined.and(marked.and_then(|end| if is_own { Ok(()) } else { stream.wait(end) }))
        });
        marked.fold(carried, |carried, marked| carried.and(marked.map_err(PathError::from)))
    }

    /// The first stream of each part: the caller's, and the lanes' own, which come after what is on the caller's.
    fn part_ways<'a>(
        &self,
        parts: &[Part<'a>],
        stream: &'a Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<Vec<&'a Stream>> {
        let mut firsts = vec![stream; parts.len()];
        if parts.len() > 1 {
            let fork = self.fork()?;
            stream.record(&fork)?;
            for (part, first) in parts.iter().zip(&mut firsts).skip(1) {
                if let Some(apart) = part.lane.stream(0, &self.context, capture)? {
                    apart.wait(&fork)?;
                    *first = apart;
                }
            }
            self.keep(fork);
        }
        Ok(firsts)
    }

    /// Has `later` come after what is on `earlier` now.
    fn chain(&self, earlier: &Stream, later: &Stream) -> cuda_driver::Result<()> {
        let fork = self.fork()?;
        earlier.record(&fork)?;
        later.wait(&fork)?;
        self.keep(fork);
        Ok(())
    }

    fn fork(&self) -> cuda_driver::Result<Event> {
        let kept = self.forks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| Event::new(&self.context, EventFlags::DISABLE_TIMING), Ok)
    }

    /// For another place: who waits for it waits for what was recorded then.
    fn keep(&self, fork: Event) {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner).push(fork);
    }

    /// By slot, what this rank waits for in a lane, and what it tells the peer.
    fn words<'a>(&'a self, lane: &'a Lane) -> impl Fn(usize) -> (DevicePtr, DevicePtr) + 'a {
        let (rank, peer) = (self.rank, lane.peer);
        let (own, other) = (&self.boards[rank], &self.boards[peer]);
        let (awaited, told) = match lane.way {
            Way::Send => (Word::Empty, Word::Full),
            Way::Receive => (Word::Full, Word::Empty),
        };
        move |slot| (own.at(peer, awaited, slot), other.at(rank, told, slot))
    }

    /// The slots that messages to or from a peer go through.
    fn slots_of(&self, way: Way, peer: usize) -> DevicePtr {
        let (from, to) = match way {
            Way::Send => (self.rank, peer),
            Way::Receive => (peer, self.rank),
        };
        let bytes = self.ring.slots() * self.ring.slot_bytes;
        self.memory.buffers().addresses()[to] + self.memory.offset() + ring_of(from, to) * bytes
    }

    /// Whether nothing runs any more, as far as it was not captured.
    fn is_idle(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == 0 && self.lanes.iter().all(Lane::is_idle)
    }

    /// Ends the waits that this rank's streams are in, if they may be in any; whether nothing runs any more.
    fn let_go(&self) -> bool {
        let is_idle = self.is_idle();
        if !is_idle || self.has_captured.load(Ordering::Relaxed) {
            let own = &self.boards[self.rank];
            // First, so that no peer takes for a message what comes through now: chunks go into slots that are not free.
            own.give_up();
            own.release();
        }
        is_idle
    }

    /// Another rank that has ended its waits.
    pub(super) fn given_up(&self) -> Option<usize> {
        (0..self.world).find(|peer| *peer != self.rank && self.boards[*peer].has_given_up())
    }

    /// Refuses what comes later, and ends the waits of what was launched, again and again, until nothing runs any more;
    /// whether that was before the deadline.
    pub(super) fn abort(self: &Arc<Self>, deadline: Deadline) -> bool {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            // A stream may come to its waits long after the deadline; and when a graph runs nobody knows.
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
            // Without a thread there are the rounds below.
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

    /// The group goes: waits for what was launched, which the group's end has seen to, or ends it.
    pub(super) fn end(mut self: Arc<Self>) {
        if !self.is_idle() && !self.abort(Deadline::after(PATIENCE)) {
            // The device still writes there: it goes when that is over.
            let kept = ManuallyDrop::new(self);
            let linger = move || {
                while !kept.abort(Deadline::after(PATIENCE)) {}
                drop(ManuallyDrop::into_inner(kept));
            };
            // Without a thread it is lost, which is better than given to somebody else.
            let _ = thread::Builder::new().name("direct-end".into()).spawn(linger);
            return;
        }
        if self.is_aborted.load(Ordering::Relaxed) && self.has_captured.load(Ordering::Relaxed) {
            self.settle();
        }
        // The thread that an abort began holds it now and then.
        while let Err(held) = Arc::try_unwrap(self) {
            self = held;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until nothing has come through a wait for a while: runs of graphs.
    fn settle(&self) {
        const QUIET: u32 = 50;
        let (until, mut quiet) = (Deadline::after(PATIENCE), 0);
        while quiet < QUIET && !until.expired() {
            quiet = if self.boards[self.rank].release() { 0 } else { quiet + 1 };
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Lanes in the order in which they are taken.
fn order(lane: usize) -> (usize, usize) {
    (lane % 2, lane)
}
