//! Enqueues the pieces of one call: its chunks and zero-copy messages.

use std::sync::atomic::Ordering;

use cuda_driver::{DevicePtr, Event, EventFlags, Stream};
use process_group::group::path::{PathError, Way};

use super::{
    super::{
        chunk_pipeline::ChunkPipeline,
        flag_page::Word,
        lane::Lane,
        part::{Part, Piece},
        rounds::{Action, Kind, Load, Step, steps, takes_turns},
        zero_copy::ZeroCopy,
    },
    Core,
};
use crate::lock::lock;

impl Core {
    /// Enqueues the lanes' pieces in [rounds](super::super::rounds). [`part_ways`](Self::part_ways) selects the first
    /// stream of each lane. A lane with more than two chunks also uses a second stream of its own, unless another
    /// capture uses that stream, or the ring has only one slot for this kind of call (captured or not). Updates
    /// [`Part::unlaunched`].
    ///
    /// After an abort, leaves out the remaining chunks, but still enqueues zero-copy messages. If it has left out
    /// chunks, returns [`PathError::Aborted`], or the driver's error if a later zero-copy message could not be
    /// enqueued.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    pub(super) unsafe fn enqueue(
        &self,
        parts: &mut [Part<'_>],
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<(), PathError> {
        let words: Vec<_> = parts.iter().map(|part| self.words(part.lane)).collect();
        let kinds: Vec<_> = parts.iter().map(Part::kinds).collect();
        let firsts = self.part_ways(parts, stream, capture)?;
        let slots = self.ring.slots[usize::from(capture.is_some())];
        let mut pipelines = Vec::with_capacity(parts.len());
        for (((part, kinds), first), words) in parts.iter().zip(&kinds).zip(firsts).zip(&words) {
            part.lane.follow(&part.state, first, capture)?;
            let chunks = kinds.iter().filter(|kind| **kind == Kind::Chunk).count();
            let mut second = None;
            if takes_turns(chunks, slots) {
                second = part.lane.stream(1, &self.context, capture)?;
            }
            if let Some(second) = second {
                self.chain(first, second, capture)?;
            }
            let Lane { way, peer, .. } = *part.lane;
            let (slot_bytes, ring) = (self.ring.slot_bytes, self.slots_of(way, peer));
            pipelines.push(ChunkPipeline { first, second, ring, slot_bytes, way, words });
        }
        let load = |(pieces, pipeline): (_, &ChunkPipeline<'_>)| Load {
            pieces,
            sends: pipeline.way == Way::Send,
            slots,
            streams: pipeline.streams(),
        };
        let loads: Vec<_> = kinds.into_iter().zip(&pipelines).map(load).collect();
        let mut carried = Ok(());
        for step in steps(&loads) {
            // After an abort, chunks are useless and are left out. Zero-copy messages are still enqueued: a peer that
            // has taken this rank's offer still copies, so this rank's stream must still wait for the copy before the
            // caller reuses the buffer.
            let is_chunk = matches!(step.action, Action::Carry { .. } | Action::Tell(_));
            if is_chunk && self.is_aborted.load(Ordering::Relaxed) {
                carried = Err(PathError::Aborted);
                continue;
            }
            let (part, pipeline) = (&parts[step.part], &pipelines[step.part]);
            // SAFETY: the caller's contract.
            if let Err(error) = unsafe { self.enqueue_step(part, pipeline, step, capture.is_some()) } {
                carried = Err(error.into());
                break;
            }
            if let Action::Done(at) | Action::Offer(at) | Action::Take(at) = step.action
                && let Some(number) = part.pieces[at].pushed()
            {
                parts[step.part].unlaunched = number + 1;
            }
        }
        // Record the events that mark the end of the lanes' work even after a failure. An abort ends the waits of the
        // lanes' streams only until the streams have reached the last recorded events. Without new events, operations
        // that this call has enqueued could wait for ever.
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

    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn enqueue_step(
        &self,
        part: &Part<'_>,
        pipeline: &ChunkPipeline<'_>,
        Step { stream, action, .. }: Step,
        captured: bool,
    ) -> cuda_driver::Result<()> {
        let Lane { way, peer, .. } = *part.lane;
        let (own, other) = (&self.flag_pages[self.rank], &self.flag_pages[peer]);
        let zero_copy = ZeroCopy { own, other, rank: self.rank, peer, way, captured };
        // SAFETY: the caller's contract. Flag pages, rings and mappings stay valid until the lanes are idle. Only a
        // lane's first stream waits for words of zero-copy messages.
        unsafe {
            match action {
                Action::Tell(chunk) => pipeline.tell(stream, part.chunk(chunk)),
                Action::Carry { tell, chunk } => {
                    pipeline.carry(stream, tell.map(|tell| part.chunk(tell)), part.chunk(chunk))
                }
                Action::Ready(_) => zero_copy.ready(pipeline.first),
                Action::Done(at) | Action::Offer(at) | Action::Take(at) => match (part.pieces[at], action) {
                    (Piece::Offer(offer), Action::Done(_)) => zero_copy.done(pipeline.first, offer),
                    (Piece::Offer(offer), _) => zero_copy.offer(pipeline.first, offer),
                    (Piece::Take(take), _) => zero_copy.take(pipeline.first, take),
                    (other, _) => unreachable!("{action:?} of {other:?}"),
                },
            }
        }
    }

    /// Returns the first stream of each [`Part`]. The first part uses the caller's stream. Every other part uses stream
    /// 0 of its lane, which first waits for the current work of the caller's stream. If another capture uses stream 0
    /// of the lane, the part uses the caller's stream instead.
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

    /// Makes stream `later` wait for the current work of stream `earlier`.
    fn chain(&self, earlier: &Stream, later: &Stream, capture: Option<u64>) -> cuda_driver::Result<()> {
        let fork = self.fork(capture)?;
        earlier.record(&fork)?;
        later.wait(&fork)?;
        self.keep(fork, capture);
        Ok(())
    }

    fn fork(&self, capture: Option<u64>) -> cuda_driver::Result<Event> {
        let forks = &self.forks[usize::from(capture.is_some())];
        let kept = lock(forks).pop();
        kept.map_or_else(|| Event::new(&self.context, EventFlags::DISABLE_TIMING), Ok)
    }

    /// Keeps an event for reuse. A wait that is already enqueued refers to the earlier record, so reuse is safe.
    fn keep(&self, fork: Event, capture: Option<u64>) {
        lock(&self.forks[usize::from(capture.is_some())]).push(fork);
    }

    /// Returns a function that takes a slot of the lane, and returns the addresses of two words: the word that this
    /// rank waits for, and the word that it writes to signal the peer.
    fn words<'a>(&'a self, lane: &'a Lane) -> impl Fn(usize) -> (DevicePtr, DevicePtr) + 'a {
        let (rank, peer) = (self.rank, lane.peer);
        let (own, other) = (&self.flag_pages[rank], &self.flag_pages[peer]);
        move |slot| {
            let (awaited, told) = match lane.way {
                Way::Send => (Word::Empty(slot), Word::Full(slot)),
                Way::Receive => (Word::Full(slot), Word::Empty(slot)),
            };
            (own.at(peer, awaited), other.at(rank, told))
        }
    }

    /// Address of the first slot of the ring for messages to or from a peer.
    fn slots_of(&self, way: Way, peer: usize) -> DevicePtr {
        let (from, to) = self.ends(way, peer);
        // The memory of rank `to` has no ring for messages from `to` to itself.
        let ring = if from < to { from } else { from - 1 };
        let bytes = self.ring.slots() * self.ring.slot_bytes;
        self.memory.buffers().addresses()[to] + self.memory.offset() + ring * bytes
    }
}
