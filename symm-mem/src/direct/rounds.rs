//! The order in which the operations of one call are enqueued, and their streams. A call is a send, a receive, or a
//! batch of both.
//!
//! A lane is one direction between this rank and a peer. Its ring is a buffer of slots: the sender puts a chunk (a part
//! of a message) into a slot, and the receiver moves it out. Each slot has two words in host memory, through which the
//! ranks signal that the slot is full or empty. A call consists of pieces. A piece of a lane is a chunk that goes
//! through the ring, or a whole [zero-copy message](super#zero-copy-messages). One rank of the lane *offers* its buffer
//! for the zero-copy message: the rank that has [claimed](super::claim) the message before the other one. The other
//! rank *takes* the offer, and makes the copy. Both ranks have the same pieces in the same order, except that an offer
//! on one rank is a take on the other.
//!
//! # Two alternating streams
//! If one stream made all copies, the copy engine would idle between them: the stream signals the end of a copy, and
//! waits for the slot of the next one. Both operations access host memory, which takes time. So the chunks of a large
//! message alternate between two streams: one stream copies while the other signals and waits. Within a call, all
//! chunks of a slot use the same stream: if two streams waited for the same word of the slot, one signal could release
//! both. In a later call, the slot may belong to the other stream, because the calls of a lane do not overlap. All
//! zero-copy messages of a lane in a call use the lane's first stream.
//!
//! # Why this cannot deadlock
//! Assume that all ranks make matching calls in the same order. Streams may share a hardware queue, in which earlier
//! work blocks later work. In the worst case a rank runs all its operations in the order in which it enqueued them. So
//! it is enough to show one total order of the operations of all ranks with two properties: each operation comes after
//! those that it waits for, and the operations of each rank are in the order in which the rank enqueued them.
//!
//! A call is enqueued in rounds. A round contains the next piece of every lane that still has pieces. It has four
//! phases:
//!
//! 1. Every offer signals that its buffer is ready.
//! 2. Every chunk of a lane that sends is put into its slot. A signal tells the receiver that the slot is full.
//! 3. Every take copies its message, and every chunk of a lane that receives is moved out of its slot. A signal tells
//!    the peer that the message is copied, or that the slot is empty.
//! 4. Every offer waits for the signal that its message is copied.
//!
//! The total order is by call, then by round, then by phase. Within a phase, the operations of each rank keep their
//! order.
//!
//! Each operation comes after those that it waits for. A sender waits until the slot of its chunk is empty: either the
//! slot has been empty from the beginning, or the peer signalled this in an earlier round or call. Every other wait is
//! for a signal of an earlier phase of the same round. The argument does not depend on the streams.
//!
//! # Delayed signals
//! In a call of one lane, the signal of a chunk is delayed: it is enqueued together with the next wait of the same
//! stream, or at the end of the call. This saves a driver call, and an operation of the stream. There are two
//! exceptions:
//!
//! - With two streams and fewer than four slots, each chunk is signalled at once, as in a call of several lanes.
//! - Before a zero-copy message, all earlier chunks are signalled, because the peer may need these signals before it
//!   reaches the message.
//!
//! A call of one lane with delayed signals cannot deadlock. For signals that are not delayed, the argument above holds.
//!
//! With one stream, no other chunk is enqueued between a chunk and its signal, so the argument above still holds.
//!
//! With two streams, a rank enqueues up to d other chunks between a chunk and its signal. Let s be the number of
//! [slots](LaneSchedule::slots) that the call uses. If s is even, d is 1. If s is odd, d may be 2: the last
//! and the first slot belong to one stream, so two of its chunks may come before the signal of the other one's chunk.
//!
//! If s is more than 2d, the waits form no cycle: the send of a chunk depends only on sends of earlier chunks. To see
//! this, follow the waits back from the send of a chunk c:
//!
//! 1. The sender waits until the slot of chunk c is empty. The slot's previous chunk was c − s. So the sender waits for
//!    the receiver's signal of chunk c − s.
//! 2. The receiver enqueues this signal after at most d further chunks. So it may first have to receive chunk
//!    c − s + d. For that, it waits for the sender's signal of chunk c − s + d.
//! 3. The sender enqueues this signal after at most d further chunks. So it may first have to send chunk c − s + 2d.
//! 4. Chunk c − s + 2d is earlier than chunk c, because s is more than 2d.
//!
//! So four or more slots are enough: with four slots d is 1, and with five or more slots 2d is at most 4.

/// Number of streams between which a lane's chunks alternate.
pub(super) const STREAMS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    Chunk,
    Offer,
    Take,
}

/// The pieces of one lane in one call, and the numbers of slots and streams that they use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneSchedule {
    pub(super) pieces: Vec<PieceKind>,
    /// True if this rank sends in the lane, and false if it receives.
    pub(super) sends: bool,
    /// Number of slots in the part of the lane's ring that this call uses: the part for captured messages if the call
    /// is captured, otherwise the part for eager (not captured) messages.
    pub(super) slots: usize,
    /// Number of streams that the lane uses in this call: 1 or 2.
    pub(super) streams: usize,
}

/// With at least this many slots, a call of one lane [delays signals](self#delayed-signals) even if it uses two
/// streams.
const ENOUGH_SLOTS: usize = 2 * STREAMS;

/// A [`PieceAction`] with the lane and the stream on which a rank enqueues its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceStep {
    /// Index of the lane's [`LaneSchedule`] in the call.
    pub(super) lane: usize,
    /// Index of the stream among the lane's streams: 0 or 1.
    pub(super) stream: usize,
    pub(super) action: PieceAction,
}

/// The action of a step. The numbers are indices in [`LaneSchedule::pieces`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceAction {
    /// Signals to the peer that the stream has moved chunk `signal`, if there is one. Then waits until the slot of
    /// `chunk` is empty (to send) or full (to receive), and moves `chunk` into the slot or out of it.
    Move { signal: Option<usize>, chunk: usize },
    /// Signals to the peer that the stream has moved this chunk.
    Signal(usize),
    /// Signals to the peer that the buffer of an offer is ready.
    SignalReady(usize),
    /// Waits until the peer has copied the message of an offer.
    AwaitDone(usize),
    /// [`SignalReady`](Self::SignalReady) and [`AwaitDone`](Self::AwaitDone) in one step, for a call of one lane.
    Offer(usize),
    /// Waits until the peer's buffer is ready, copies the message, and signals that it is copied.
    Take(usize),
}

/// Returns whether a lane's chunks in a call should alternate between two streams. `chunks` is their number, and
/// `slots` is as in [`LaneSchedule::slots`]. Returns false for one or two chunks, which gain little from a second
/// stream, and for one slot.
pub(super) fn takes_turns(chunks: usize, slots: usize) -> bool {
    chunks > STREAMS && slots >= STREAMS
}

impl LaneSchedule {
    /// Returns the index of the stream of each piece. All chunks of one slot have the same stream. Offers and takes
    /// have stream 0.
    fn streams_of_pieces(&self) -> Vec<usize> {
        let mut chunks = 0;
        let stream = |kind: &PieceKind| match kind {
            PieceKind::Chunk => {
                chunks += 1;
                (chunks - 1) % self.slots % self.streams
            }
            PieceKind::Offer | PieceKind::Take => 0,
        };
        self.pieces.iter().map(stream).collect()
    }
}

/// Returns the steps of a call, in the order in which they are enqueued.
pub(super) fn steps(schedules: &[LaneSchedule]) -> Vec<PieceStep> {
    if let [schedule] = schedules {
        return steps_of_one_lane(schedule);
    }
    let streams: Vec<_> = schedules.iter().map(LaneSchedule::streams_of_pieces).collect();
    let mut steps = Vec::new();
    let rounds = schedules.iter().map(|schedule| schedule.pieces.len()).max().unwrap_or(0);
    for round in 0..rounds {
        // The steps of this round, by phase.
        let mut phases: [Vec<PieceStep>; 4] = Default::default();
        for (lane, (schedule, streams)) in schedules.iter().zip(&streams).enumerate() {
            let (Some(kind), Some(stream)) = (schedule.pieces.get(round), streams.get(round)) else {
                continue;
            };
            let mut add =
                |phase: usize, action| phases[phase].push(PieceStep { lane, stream: *stream, action });
            match kind {
                PieceKind::Chunk => {
                    let phase = if schedule.sends { 1 } else { 2 };
                    add(phase, PieceAction::Move { signal: None, chunk: round });
                    add(phase, PieceAction::Signal(round));
                }
                PieceKind::Take => add(2, PieceAction::Take(round)),
                PieceKind::Offer => {
                    add(0, PieceAction::SignalReady(round));
                    add(3, PieceAction::AwaitDone(round));
                }
            }
        }
        steps.extend(phases.into_iter().flatten());
    }
    steps
}

/// Returns the steps of a call of one lane, in which [signals are delayed](self#delayed-signals) where that is safe.
fn steps_of_one_lane(schedule: &LaneSchedule) -> Vec<PieceStep> {
    let delays_signals = schedule.streams == 1 || schedule.slots >= ENOUGH_SLOTS;
    let streams = schedule.streams_of_pieces();
    let step = |piece: usize, action| PieceStep { lane: 0, stream: streams[piece], action };
    // For each stream: the last chunk that it has moved, if the signal of this chunk is not enqueued yet.
    let mut unsignalled = [None; STREAMS];
    let mut steps = Vec::new();
    let signal_all = |unsignalled: &mut [Option<usize>; STREAMS], steps: &mut Vec<PieceStep>| {
        unsignalled.sort_unstable();
        let moved = unsignalled.iter_mut().filter_map(Option::take);
        steps.extend(moved.map(|chunk| step(chunk, PieceAction::Signal(chunk))));
    };
    for (piece, kind) in schedule.pieces.iter().enumerate() {
        match kind {
            PieceKind::Chunk if delays_signals => {
                let signal = unsignalled[streams[piece]].replace(piece);
                steps.push(step(piece, PieceAction::Move { signal, chunk: piece }));
            }
            PieceKind::Chunk => {
                steps.push(step(piece, PieceAction::Move { signal: None, chunk: piece }));
                steps.push(step(piece, PieceAction::Signal(piece)));
            }
            PieceKind::Offer | PieceKind::Take => {
                signal_all(&mut unsignalled, &mut steps);
                let action = if *kind == PieceKind::Offer {
                    PieceAction::Offer(piece)
                } else {
                    PieceAction::Take(piece)
                };
                steps.push(step(piece, action));
            }
        }
    }
    signal_all(&mut unsignalled, &mut steps);
    steps
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
