//! Enqueues the pieces of one call: its [zero-copy messages](crate::direct#zero-copy-messages), and the chunks of its
//! other messages, which go through [rings](crate::direct#the-ring). A lane is one direction between this rank and a
//! peer.

use std::sync::atomic::Ordering;

use cuda_driver::{DevicePtr, Event, EventFlags, Stream};
use process_group::group::path::{PathError, Way};

use super::{
    super::{
        chunk_pipeline::ChunkPipeline,
        flag_page::Word,
        lane::Lane,
        lane_launch::{LaneLaunch, Piece},
        rounds::{LaneSchedule, PieceAction, PieceKind, PieceStep, steps, takes_turns},
        zero_copy::ZeroCopy,
    },
    DirectCore,
};
use crate::lock::lock;

impl DirectCore {
    /// Enqueues the lanes' pieces in [rounds](super::super::rounds). [`first_streams`](Self::first_streams) selects the
    /// first stream of each lane. A lane with more than two chunks also uses a second stream of its own, except in two
    /// cases: that stream is in a capture other than `capture`, or the ring has only one slot for calls of this kind
    /// (captured or not). Updates [`LaneLaunch::unlaunched`].
    ///
    /// After an abort, leaves out the remaining chunks, and returns [`PathError::Aborted`] if there are any. Zero-copy
    /// messages are still enqueued. If the driver fails, returns the driver's error.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    pub(super) unsafe fn enqueue(
        &self,
        launches: &mut [LaneLaunch<'_>],
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<(), PathError> {
        let words: Vec<_> = launches.iter().map(|launch| self.words(launch.lane)).collect();
        let kinds: Vec<_> = launches.iter().map(LaneLaunch::kinds).collect();
        let firsts = self.first_streams(launches, stream, capture)?;
        let slots = self.ring.slots[usize::from(capture.is_some())];
        let mut pipelines = Vec::with_capacity(launches.len());
        for (((launch, kinds), first), words) in launches.iter().zip(&kinds).zip(firsts).zip(&words) {
            launch.lane.follow(&launch.state, first, capture)?;
            let second = self.second_stream(launch.lane, kinds, first, capture)?;
            let Lane { way, peer, .. } = *launch.lane;
            let (slot_bytes, ring) = (self.ring.slot_bytes, self.ring_address(way, peer));
            pipelines.push(ChunkPipeline { first, second, ring, slot_bytes, way, words });
        }
        let schedule = |(pieces, pipeline): (_, &ChunkPipeline<'_>)| LaneSchedule {
            pieces,
            sends: pipeline.way == Way::Send,
            slots,
            streams: pipeline.streams(),
        };
        let schedules: Vec<_> = kinds.into_iter().zip(&pipelines).map(schedule).collect();
        // SAFETY: the caller's contract.
        let enqueued = unsafe { self.enqueue_steps(&steps(&schedules), launches, &pipelines, capture) };
        // Record the events that mark the end of the lanes' work even after a failure. An abort stops ending the waits
        // of the lanes' streams once the streams have reached the last recorded events. Without new events, operations
        // that this call has enqueued could wait for ever.
        enqueued.and(self.mark_ends(launches, &pipelines, stream, capture))
    }

    /// Returns the second stream of a lane for pieces of these kinds, or `None` if the lane uses only the first stream.
    /// Makes the second stream wait for the current work of the first.
    fn second_stream<'a>(
        &self,
        lane: &'a Lane,
        kinds: &[PieceKind],
        first: &Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<Option<&'a Stream>> {
        let slots = self.ring.slots[usize::from(capture.is_some())];
        let chunks = kinds.iter().filter(|kind| **kind == PieceKind::Chunk).count();
        if !takes_turns(chunks, slots) {
            return Ok(None);
        }
        let second = lane.stream(1, &self.context, capture)?;
        if let Some(second) = second {
            self.chain(first, second, capture)?;
        }
        Ok(second)
    }

    /// Enqueues `steps` in their order, and updates [`LaneLaunch::unlaunched`]. `pipelines` has one pipeline for each
    /// of `launches`. [`enqueue`](Self::enqueue) describes the behaviour after an abort, and the errors.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn enqueue_steps(
        &self,
        steps: &[PieceStep],
        launches: &mut [LaneLaunch<'_>],
        pipelines: &[ChunkPipeline<'_>],
        capture: Option<u64>,
    ) -> Result<(), PathError> {
        let mut result = Ok(());
        for step in steps {
            // After an abort, chunks are useless and are left out. Zero-copy messages are still enqueued: a peer that
            // has taken this rank's offer still copies, so this rank's stream must still wait for the copy before the
            // caller reuses the buffer.
            let is_chunk = matches!(step.action, PieceAction::Move { .. } | PieceAction::Signal(_));
            if is_chunk && self.is_aborted.load(Ordering::Relaxed) {
                result = Err(PathError::Aborted);
                continue;
            }
            let (launch, pipeline) = (&launches[step.lane], &pipelines[step.lane]);
            // SAFETY: the caller's contract.
            unsafe { self.enqueue_step(launch, pipeline, *step, capture.is_some()) }?;
            if let PieceAction::AwaitDone(at) | PieceAction::Offer(at) | PieceAction::Take(at) = step.action
                && let Some(number) = launch.pieces[at].pushed()
            {
                launches[step.lane].unlaunched = number + 1;
            }
        }
        result
    }

    /// Records the events that mark the end of the lanes' work, and makes `stream`, the caller's stream, wait for this
    /// work.
    fn mark_ends(
        &self,
        launches: &mut [LaneLaunch<'_>],
        pipelines: &[ChunkPipeline<'_>],
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<(), PathError> {
        let mut result = Ok(());
        for (launch, ChunkPipeline { first, second, .. }) in launches.iter_mut().zip(pipelines) {
            let joined = second.map_or(Ok(()), |second| match capture {
                Some(_) => self.chain(second, first, capture),
                None => launch.lane.join(first, second),
            });
            let marked = launch.lane.mark(&mut launch.state, first, capture);
            let is_own = first.raw() == stream.raw();
            let awaited = marked.and_then(|end| if is_own { Ok(()) } else { stream.wait(end) });
            result = result.and(joined.and(awaited).map_err(PathError::from));
        }
        result
    }

    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn enqueue_step(
        &self,
        launch: &LaneLaunch<'_>,
        pipeline: &ChunkPipeline<'_>,
        PieceStep { stream, action, .. }: PieceStep,
        captured: bool,
    ) -> cuda_driver::Result<()> {
        let Lane { way, peer, .. } = *launch.lane;
        let (own, other) = (&self.flag_pages[self.rank], &self.flag_pages[peer]);
        let zero_copy = ZeroCopy { own, other, rank: self.rank, peer, way, captured };
        // SAFETY: the caller's contract. Flag pages, rings and mappings stay valid until the lanes are idle. Only a
        // lane's first stream waits for words of zero-copy messages.
        unsafe {
            match action {
                PieceAction::Signal(chunk) => pipeline.signal(stream, launch.chunk(chunk)),
                PieceAction::Move { signal, chunk } => pipeline.move_chunk(
                    stream,
                    signal.map(|earlier| launch.chunk(earlier)),
                    launch.chunk(chunk),
                ),
                PieceAction::SignalReady(_) => zero_copy.ready(pipeline.first),
                PieceAction::AwaitDone(at) | PieceAction::Offer(at) | PieceAction::Take(at) => {
                    match (launch.pieces[at], action) {
                        (Piece::Offer(offer), PieceAction::AwaitDone(_)) => {
                            zero_copy.done(pipeline.first, offer)
                        }
                        (Piece::Offer(offer), _) => zero_copy.offer(pipeline.first, offer),
                        (Piece::Take(take), _) => zero_copy.take(pipeline.first, take),
                        (other, _) => unreachable!("{action:?} of {other:?}"),
                    }
                }
            }
        }
    }

    /// Returns the first stream of each lane of `launches`:
    /// - For the first lane, and for a lane whose own stream 0 is in a capture other than `capture`: the caller's
    ///   stream, `stream`.
    /// - For any other lane: its own stream 0, which first waits for the current work of the caller's stream.
    fn first_streams<'a>(
        &self,
        launches: &[LaneLaunch<'a>],
        stream: &'a Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<Vec<&'a Stream>> {
        let mut firsts = vec![stream; launches.len()];
        if launches.len() > 1 {
            let event = self.take_event(capture)?;
            stream.record(&event)?;
            for (launch, first) in launches.iter().zip(&mut firsts).skip(1) {
                if let Some(own) = launch.lane.stream(0, &self.context, capture)? {
                    own.wait(&event)?;
                    *first = own;
                }
            }
            self.return_event(event, capture);
        }
        Ok(firsts)
    }

    /// Makes stream `later` wait for the current work of stream `earlier`.
    fn chain(&self, earlier: &Stream, later: &Stream, capture: Option<u64>) -> cuda_driver::Result<()> {
        let event = self.take_event(capture)?;
        earlier.record(&event)?;
        later.wait(&event)?;
        self.return_event(event, capture);
        Ok(())
    }

    fn take_event(&self, capture: Option<u64>) -> cuda_driver::Result<Event> {
        let spare = &self.spare_events[usize::from(capture.is_some())];
        let event = lock(spare).pop();
        event.map_or_else(|| Event::new(&self.context, EventFlags::DISABLE_TIMING), Ok)
    }

    /// Keeps an event for reuse. Streams may still wait for the event: recording it again does not change waits that
    /// are already enqueued.
    fn return_event(&self, event: Event, capture: Option<u64>) {
        lock(&self.spare_events[usize::from(capture.is_some())]).push(event);
    }

    /// Returns a function from the index of a slot of the lane to the addresses of two of its words: the word that this
    /// rank's streams wait for, and the word that they write to signal the peer.
    fn words<'a>(&'a self, lane: &'a Lane) -> impl Fn(usize) -> (DevicePtr, DevicePtr) + 'a {
        let (rank, peer) = (self.rank, lane.peer);
        let (own, other) = (&self.flag_pages[rank], &self.flag_pages[peer]);
        move |slot| {
            let (awaited, signalled) = match lane.way {
                Way::Send => (Word::Empty(slot), Word::Full(slot)),
                Way::Receive => (Word::Full(slot), Word::Empty(slot)),
            };
            (own.at(peer, awaited), other.at(rank, signalled))
        }
    }

    /// Address of the first slot of a lane's ring, in the receiver's memory as mapped on this rank.
    fn ring_address(&self, way: Way, peer: usize) -> DevicePtr {
        let (from, to) = self.ends(way, peer);
        // The memory of rank `to` has one ring for each other rank, in ascending order, and none for `to` itself.
        let ring = if from < to { from } else { from - 1 };
        let bytes = self.ring.slots() * self.ring.slot_bytes;
        self.memory.buffers().addresses()[to] + self.memory.offset() + ring * bytes
    }
}
