//! Lanes: the messages of one direction between this rank and a peer, their order, and the chunks in which they go
//! through the [ring](super#the-ring). A call enqueues one or more messages, and uses one lane for each peer and
//! direction. A call, message or chunk is *eager* if it is not captured.

use std::sync::{Mutex, MutexGuard, OnceLock};

use cuda_driver::{
    Context, DevicePtr, Event, EventFlags, Stream, StreamFlags,
    graph::{CaptureStatus, RelaxedCapture},
};
use process_group::group::path::Way;

use super::{pushes::Pushes, rounds::STREAMS};
use crate::lock::lock;

/// One direction between this rank and a peer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) way: Way,
    pub(super) peer: usize,
    /// The lane's own streams 0 and 1, created on first use. In each call, the lane has a *first stream*:
    /// - the caller's stream, if this lane is the first one of the call, or if stream 0 belongs to a capture of which
    ///   the call is not a part
    /// - stream 0 in all other cases
    ///
    /// If the lane has [enough chunks](super::rounds::takes_turns) in the call, stream 1 is the *second stream*, and
    /// the chunks alternate between the first and the second stream. If stream 1 belongs to a capture of which the call
    /// is not a part, there is no second stream.
    streams: [OnceLock<Stream>; STREAMS],
    /// Event recorded on the first stream, after the lane's work in its last eager call.
    end: Event,
    /// Event recorded on the second stream, after the lane's last eager chunk there. The first stream waits for this
    /// event before `end` is recorded.
    second_end: Event,
    /// Streams on which an event could not be recorded after eager work of the lane, because the driver call failed.
    /// [`is_idle`](Self::is_idle) queries these streams in addition to the two events above.
    unmarked: Mutex<Vec<Stream>>,
    pushes: Mutex<Pushes>,
    pub(super) state: Mutex<LaneState>,
}

/// The part of a lane that changes with each call: the next slots, and the ends of the last calls.
#[derive(Debug)]
pub(super) struct LaneState {
    /// Index of the slot for the next eager chunk, and for the next captured chunk. The second index counts from the
    /// first slot for captured messages.
    pub(super) next: [usize; 2],
    /// The lane's [first stream](Lane::streams) in the last eager call. [`Lane::follow`] compares the first stream of
    /// the next call with it by handle. Keeping it alive prevents the driver from giving its handle to another stream.
    last: Option<Stream>,
    /// Id of the capture to which the lane's last captured call belongs.
    captured: Option<u64>,
    /// Event recorded on the first stream, after the lane's work in its last captured call.
    captured_end: Event,
}

/// A chunk of a message: the bytes at address `at` of this rank's buffer, and the slot through which they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) at: DevicePtr,
    pub(super) bytes: usize,
    pub(super) slot: usize,
}

/// The layout of a lane's ring. The ring consists of slots in the receiver's memory. Messages that are not zero-copy go
/// through it in chunks, and each chunk takes the next slot. All rings have the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) slot_bytes: usize,
    /// Index 0: number of slots for eager messages. Index 1: number of slots for captured messages, which lie behind
    /// those for eager messages.
    pub(super) slots: [usize; 2],
}

impl Ring {
    pub(super) fn slots(self) -> usize {
        self.slots[0] + self.slots[1]
    }

    /// Cuts a message of `bytes` bytes at `at` into chunks. `next` is [`LaneState::next`]. If `captured` is true, the
    /// chunks use the slots for captured messages, and `next[1]` advances. Otherwise they use the slots for eager
    /// messages, and `next[0]` advances.
    pub(super) fn cut(
        self,
        at: DevicePtr,
        bytes: usize,
        captured: bool,
        next: &mut [usize; 2],
    ) -> impl Iterator<Item = Chunk> {
        let kind = usize::from(captured);
        (0..bytes).step_by(self.slot_bytes).map(move |offset| {
            let slot = next[kind] + if captured { self.slots[0] } else { 0 };
            next[kind] = (next[kind] + 1) % self.slots[kind];
            Chunk { at: at + offset, bytes: (bytes - offset).min(self.slot_bytes), slot }
        })
    }
}

impl Lane {
    pub(super) fn new(context: &Context, way: Way, peer: usize) -> cuda_driver::Result<Self> {
        let event = || Event::new(context, EventFlags::DISABLE_TIMING);
        let state = LaneState { next: [0, 0], last: None, captured: None, captured_end: event()? };
        let (streams, unmarked, pushes) = Default::default();
        let (end, second_end, state) = (event()?, event()?, Mutex::new(state));
        Ok(Self { way, peer, streams, end, second_end, unmarked, pushes, state })
    }

    /// Returns the lane's own stream `number` (0 or 1), or `None` if that stream is in a capture other than `capture`.
    pub(super) fn stream(
        &self,
        number: usize,
        context: &Context,
        capture: Option<u64>,
    ) -> cuda_driver::Result<Option<&Stream>> {
        let stream = match self.streams[number].get() {
            Some(stream) => stream,
            None => {
                // If two threads create the stream at the same time, one of them drops the stream that it has created.
                let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
                self.streams[number].get_or_init(|| stream)
            }
        };
        let info = stream.capture_info()?;
        // An invalidated capture has no id. So two ids that are `None` do not mean the same capture.
        let is_own = capture.is_some() && info.id == capture;
        Ok((info.status == CaptureStatus::None || is_own).then_some(stream))
    }

    pub(super) fn pushes(&self) -> MutexGuard<'_, Pushes> {
        lock(&self.pushes)
    }

    /// Makes `stream` wait for the lane's earlier work: for its work in the same capture if `capture` is an id, and for
    /// its eager work otherwise.
    pub(super) fn follow(
        &self,
        state: &LaneState,
        stream: &Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<()> {
        match (capture, &state.last) {
            // A capture does not wait for other captures: the program must order the launches of different graphs.
            (Some(capture), _) if state.captured == Some(capture) => stream.wait(&state.captured_end),
            (None, Some(last)) if !last.is_same(stream) => stream.wait(&self.end),
            _ => Ok(()),
        }
    }

    /// Makes the first stream wait for the lane's eager work on the second stream.
    pub(super) fn join(&self, first: &Stream, second: &Stream) -> cuda_driver::Result<()> {
        self.record(second, &self.second_end)?;
        first.wait(&self.second_end)
    }

    /// Records `event` on `stream`. If that fails, the lane counts as idle only once the stream has completed all of
    /// its work.
    fn record(&self, stream: &Stream, event: &Event) -> cuda_driver::Result<()> {
        stream.record(event).inspect_err(|_| {
            lock(&self.unmarked).push(stream.clone());
        })
    }

    /// Records the event that marks the end of the lane's work in a call, and returns the event. `stream` is the lane's
    /// first stream in the call. Updates `state`, so that [`follow`](Self::follow) makes the next call wait for the
    /// event.
    pub(super) fn mark<'a>(
        &'a self,
        state: &'a mut LaneState,
        stream: &Stream,
        capture: Option<u64>,
    ) -> cuda_driver::Result<&'a Event> {
        if capture.is_some() {
            stream.record(&state.captured_end)?;
            state.captured = capture;
            return Ok(&state.captured_end);
        }
        self.record(stream, &self.end)?;
        if !state.last.as_ref().is_some_and(|last| last.is_same(stream)) {
            state.last = Some(stream.clone());
        }
        Ok(&self.end)
    }

    /// Returns true if all eager work of the lane has completed.
    pub(super) fn is_idle(&self) -> bool {
        // Another thread may be capturing in global mode. Without relaxed mode, the queries would invalidate that
        // capture.
        let _relaxed = RelaxedCapture::enter(self.end.context().driver());
        // If a query fails, the context is broken, and runs nothing any more. So the work counts as completed.
        let is_past = |end: &Event| end.query().unwrap_or(true);
        let unmarked = lock(&self.unmarked).clone();
        is_past(&self.end)
            && is_past(&self.second_end)
            && unmarked.iter().all(|stream| stream.query().unwrap_or(true))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both ends cut a message alike for any buffer addresses. The chunks cover the message. They use the slots in
        /// turn: eager chunks the slots for eager messages, and captured chunks those for captured messages.
        #[test]
        fn a_message_is_its_chunks(
            slot_bytes in 1usize..20, slots in prop::array::uniform2(1usize..4),
            messages in prop::collection::vec((0usize..70, any::<bool>()), 0..12),
        ) {
            let ring = Ring { slot_bytes, slots };
            let (mut next, mut other) = ([0, 0], [0, 0]);
            let mut expected = [0, 0];
            for (bytes, captured) in messages {
                let chunks: Vec<_> = ring.cut(DevicePtr(1000), bytes, captured, &mut next).collect();
                let others: Vec<_> = ring.cut(DevicePtr(5000), bytes, captured, &mut other).collect();
                let mut at = 1000;
                for (chunk, theirs) in chunks.iter().zip(&others) {
                    prop_assert_eq!((chunk.at, theirs.at), (DevicePtr(at), DevicePtr(at + 4000)));
                    prop_assert_eq!((chunk.slot, chunk.bytes), (theirs.slot, theirs.bytes));
                    prop_assert!(chunk.bytes > 0 && chunk.bytes <= slot_bytes);
                    let kind = usize::from(captured);
                    prop_assert_eq!(chunk.slot, expected[kind] + kind * slots[0]);
                    expected[kind] = (expected[kind] + 1) % slots[kind];
                    at += chunk.bytes as u64;
                }
                prop_assert_eq!((at as usize, others.len()), (1000 + bytes, chunks.len()));
            }
        }
    }
}
