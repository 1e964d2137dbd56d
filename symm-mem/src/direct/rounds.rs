//! The order in which the chunks of one call are enqueued, and the stream of each chunk.
//!
//! # Two alternating streams
//! Between two copies of one stream the copy engine idles: the stream signals the end of one copy and waits for the
//! slot of the next, in words of host memory. So the chunks of a large message alternate between two streams, and one
//! copies while the other signals and waits. Within a call, a slot belongs to one stream: two streams that wait for
//! one word would both go on at once. Calls of a lane do not overlap.
//!
//! # Why this cannot deadlock
//! Streams may share a hardware queue, and all of them may be one stream. Earlier work then blocks later work. Such a
//! rank runs everything in the order in which it was enqueued. So it is enough to show one total order of the work of
//! all ranks with two properties: everything comes after the work that it waits for, and each rank's part has the
//! order in which it was enqueued. With fewer shared queues there are fewer dependencies.
//!
//! Calls are enqueued in rounds: in each round one chunk of every lane that sends, then one of every lane that
//! receives; and each chunk is signalled at once. So a chunk is sent when its slot is empty, which the peer signalled
//! in an earlier round. It is received when it was sent, which is earlier in the same round. The stream of a chunk
//! does not matter.
//!
//! A call of one lane signals a chunk together with the next wait of the same stream. That saves a driver call, and a
//! step of the device. With one stream nothing comes in between. With two streams, d other chunks come before the
//! signal. Then, for a ring of s slots, chunk c is sent after chunk c + d − s was received, and chunk c + d − s is
//! received after chunk c + 2d − s was sent. That is an earlier chunk than c if s is more than 2d. If s is even, d is
//! 1; if it is odd, the last slot and the first have one stream, and d may be 2. So four slots are enough. With fewer
//! slots, chunks are signalled at once here too.

/// Number of streams between which a lane's chunks alternate.
pub(super) const STREAMS: usize = 2;

/// A lane's part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) chunks: usize,
    /// Slots of its ring, either for eager or for captured messages.
    pub(super) slots: usize,
    /// Number of its streams.
    pub(super) streams: usize,
}

/// With at least this many slots, the signal of a chunk may be delayed.
const AMPLE: usize = 2 * STREAMS;

/// One step: first it signals a chunk that the stream has moved, then it moves one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Index of the lane's part.
    pub(super) part: usize,
    /// Index of the lane's stream.
    pub(super) stream: usize,
    pub(super) tell: Option<usize>,
    pub(super) carry: Option<usize>,
}

/// Returns whether this many chunks alternate between two streams. One or two chunks gain little, and a second stream
/// has a cost.
pub(super) fn takes_turns(chunks: usize, slots: usize) -> bool {
    chunks > STREAMS && slots >= STREAMS
}

impl Load {
    /// The stream of a chunk's slot.
    fn stream(self, chunk: usize) -> usize {
        chunk % self.slots % self.streams
    }
}

/// The steps of a call, in the order in which they are enqueued.
pub(super) fn steps(loads: &[Load]) -> Vec<Step> {
    let later = matches!(loads, [Load { slots, streams, .. }] if *streams == 1 || *slots >= AMPLE);
    // For a single lane: the last chunk of each stream, which is not signalled yet.
    let mut untold = [None; STREAMS];
    let mut steps = Vec::new();
    for round in 0..loads.iter().map(|load| load.chunks).max().unwrap_or(0) {
        for (part, load) in loads.iter().enumerate().filter(|(_, load)| round < load.chunks) {
            let stream = load.stream(round);
            let tell = if later { untold[stream].replace(round) } else { None };
            steps.push(Step { part, stream, tell, carry: Some(round) });
            if !later {
                steps.push(Step { part, stream, tell: Some(round), carry: None });
            }
        }
    }
    untold.sort_unstable();
    for chunk in untold.into_iter().flatten() {
        steps.push(Step { part: 0, stream: loads[0].stream(chunk), tell: Some(chunk), carry: None });
    }
    steps
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
