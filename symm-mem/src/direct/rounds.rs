//! In which order the chunks of one call are enqueued, and on which of its lane's streams each is.
//!
//! # Two streams in turns
//! Between two copies of one stream its copy engine idles: it tells of the one and waits for the other's slot, in words of
//! host memory. So the chunks of a large message take turns on two streams, and while one of these tells and waits the
//! other copies. Within a call a slot has one stream: two that waited for one word would both go on at once. Calls of a
//! lane follow each other whole.
//!
//! # Why all comes to its end
//! Also where streams share a hardware queue, or all are one: what was enqueued earlier then holds up what was later. Such
//! a rank does everything in the order in which it was enqueued, so it is enough that there is one order of all that all
//! ranks do in which everything comes after what it waits for, and each rank's part is as enqueued. With fewer queues
//! shared there is less to wait for.
//!
//! Calls are in rounds: in each, of every lane that sends one chunk, then one of every lane that receives; and a chunk is
//! told of at once. So a chunk is sent when its slot is empty, which an earlier round of the peer saw to, and received when
//! it was sent, in the same round, before. Which stream a chunk has does not matter.
//!
//! A call of one lane tells of a chunk with the next wait of the same stream, which saves a call of the driver's and the
//! device a step. Of one stream that is at once all the same. Of two there are d other chunks before: then chunk c is sent
//! after c + d − s was received, for a ring of s slots, and that after c + 2d − s was sent, which is an earlier one if s is
//! more than 2d. Where s is even d is 1; where it is odd the last slot and the first have one stream, and d may be 2. So
//! four slots are enough, and with fewer, chunks are told of at once here too.

/// The streams that a lane's chunks take turns on.
pub(super) const STREAMS: usize = 2;

/// A lane's part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) chunks: usize,
    /// Of its ring, for what is captured or for what is not.
    pub(super) slots: usize,
    /// How many streams it has.
    pub(super) streams: usize,
}

/// From so many slots on chunks may be told of later.
const AMPLE: usize = 2 * STREAMS;

/// What comes next: first it is told of a chunk that the stream has carried, then one is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Whose chunks these are.
    pub(super) part: usize,
    /// Which of the lane's streams.
    pub(super) stream: usize,
    pub(super) tell: Option<usize>,
    pub(super) carry: Option<usize>,
}

/// Whether so many chunks are to take turns: one or two have next to nothing to hide behind, and a fork its price.
pub(super) fn takes_turns(chunks: usize, slots: usize) -> bool {
    chunks > STREAMS && slots >= STREAMS
}

impl Load {
    /// The stream of a chunk's slot.
    fn stream(self, chunk: usize) -> usize {
        chunk % self.slots % self.streams
    }
}

/// The steps of a call, in their order.
pub(super) fn steps(loads: &[Load]) -> Vec<Step> {
    let later = matches!(loads, [Load { slots, streams, .. }] if *streams == 1 || *slots >= AMPLE);
    // Of the only lane, what its streams have not told of.
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
