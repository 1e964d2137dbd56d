//! Programs of several ranks on devices with few hardware queues: everything completes, and the data is as sent.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Number of caller streams of a rank's program.
const CALLERS: usize = 3;

/// Sender, receiver, and number of chunks.
type Message = (usize, usize, usize);

/// A word: rank of the flag page, peer, whether it is *full*, and slot.
type Word = (usize, usize, bool, usize);

/// One operation of a stream.
#[derive(Debug, Clone, Copy)]
enum Op {
    Mark(usize),
    /// Waits until the mark is reached.
    Await(usize),
    Wait(Word),
    Reset(Word),
    Set(Word),
    /// Copies the chunk of this number into a ring's slot.
    Put {
        ring: (usize, usize),
        slot: usize,
        number: usize,
    },
    /// Copies the chunk of this number out of a ring's slot.
    Take {
        ring: (usize, usize),
        slot: usize,
        number: usize,
    },
}

/// One direction between a rank and a peer, on the rank's side.
#[derive(Debug, Clone, Default)]
struct Lane {
    chunks: usize,
    /// The first stream of the lane in its last call, and the mark at the end of that call.
    last: Option<(usize, usize)>,
}

/// The operations of a rank with their streams, in the order in which the rank enqueues them.
#[derive(Debug)]
struct Rank {
    rank: usize,
    slots: usize,
    /// Key: the peer, and whether the lane sends.
    lanes: HashMap<(usize, bool), Lane>,
    ops: Vec<(usize, Op)>,
    marks: usize,
}

impl Rank {
    fn chain(&mut self, earlier: usize, later: usize) -> usize {
        self.marks += 1;
        self.ops.extend([(earlier, Op::Mark(self.marks)), (later, Op::Await(self.marks))]);
        self.marks
    }

    /// One call with these lanes, sending lanes first. Mirrors [`Core::enqueue`](super::super::core::Core).
    fn call(&mut self, lanes: &[(usize, bool, usize)], caller: usize) {
        let (rank, slots) = (self.rank, self.slots);
        let own = |(peer, sends, _): (usize, bool, usize), number: usize| {
            CALLERS + 2 * (2 * peer + usize::from(sends)) + number
        };
        let mut streams = Vec::new();
        for (at, lane) in lanes.iter().enumerate() {
            let first = if at == 0 { caller } else { own(*lane, 0) };
            if at > 0 {
                self.chain(caller, first);
            }
            match self.lanes.entry((lane.0, lane.1)).or_default().last {
                Some((last, mark)) if last != first => self.ops.push((first, Op::Await(mark))),
                _ => {}
            }
            let second = takes_turns(lane.2, slots).then(|| own(*lane, 1));
            if let Some(second) = second {
                self.chain(first, second);
            }
            streams.push((first, second));
        }
        let loads: Vec<_> = lanes
            .iter()
            .zip(&streams)
            .map(|((.., chunks), (_, second))| Load {
                chunks: *chunks,
                slots,
                streams: 1 + usize::from(second.is_some()),
            })
            .collect();
        for Step { part, stream, tell, carry } in steps(&loads) {
            let ((peer, sends, _), (first, second)) = (lanes[part], streams[part]);
            let stream = if stream == 0 { first } else { second.unwrap() };
            let begun = self.lanes[&(peer, sends)].chunks;
            if let Some(chunk) = tell {
                self.ops.push((stream, Op::Set((peer, rank, sends, (begun + chunk) % slots))));
            }
            if let Some(chunk) = carry {
                let (number, slot) = (begun + chunk, (begun + chunk) % slots);
                let word = (rank, peer, !sends, slot);
                let copy = if sends {
                    Op::Put { ring: (rank, peer), slot, number }
                } else {
                    Op::Take { ring: (peer, rank), slot, number }
                };
                self.ops.extend([(stream, Op::Wait(word)), (stream, Op::Reset(word)), (stream, copy)]);
            }
        }
        for ((peer, sends, chunks), (first, second)) in lanes.iter().zip(streams) {
            if let Some(second) = second {
                self.chain(second, first);
            }
            let mark = self.chain(first, caller);
            let lane = self.lanes.get_mut(&(*peer, *sends)).unwrap();
            lane.chunks += chunks;
            lane.last = Some((first, mark));
        }
    }

    /// Enqueues this rank's ends of `messages` as one call.
    fn calls(&mut self, messages: &[Message], caller: usize) {
        let mut lanes: Vec<(usize, bool, usize)> = Vec::new();
        for sends in [true, false] {
            for peer in 0..WORLD {
                let pair = if sends { (self.rank, peer) } else { (peer, self.rank) };
                let of_lane = messages.iter().filter(|(from, to, _)| (*from, *to) == pair);
                let chunks = of_lane.map(|(.., chunks)| chunks).sum();
                if chunks > 0 && peer != self.rank {
                    lanes.push((peer, sends, chunks));
                }
            }
        }
        if !lanes.is_empty() {
            self.call(&lanes, caller);
        }
    }
}

const WORLD: usize = 4;

/// Runs all queues in a random interleaving. Fails if operations remain and none can proceed.
fn run(ranks: &[Rank], queues: &[Vec<usize>], mut seed: u64) -> Result<(), TestCaseError> {
    let (mut words, mut rings) = (HashMap::<Word, bool>::new(), HashMap::new());
    let mut marked = vec![vec![false]; WORLD];
    // Remaining operations, by rank and queue.
    let mut waiting: Vec<Vec<_>> = vec![Vec::new(); WORLD * queues[0].len()];
    for rank in ranks {
        for (stream, op) in &rank.ops {
            let queues = &queues[rank.rank];
            waiting[rank.rank * queues.len() + queues[stream % queues.len()]].push((rank.rank, *op));
        }
        marked[rank.rank] = vec![false; rank.marks + 1];
    }
    waiting.iter_mut().for_each(|queue| queue.reverse());
    loop {
        let is_set = |words: &HashMap<Word, bool>, word: &Word| *words.get(word).unwrap_or(&!word.2);
        let ready = waiting.iter().enumerate().filter_map(|(at, queue)| {
            let goes_on = match queue.last()? {
                (rank, Op::Await(mark)) => marked[*rank][*mark],
                (_, Op::Wait(word)) => is_set(&words, word),
                _ => true,
            };
            goes_on.then_some(at)
        });
        let ready: Vec<_> = ready.collect();
        if ready.is_empty() {
            let left: Vec<_> = waiting.iter().filter_map(|queue| queue.last()).collect();
            prop_assert!(left.is_empty(), "wait for ever: {left:?}");
            return Ok(());
        }
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let queue = ready[(seed >> 33) as usize % ready.len()];
        match waiting[queue].pop().unwrap() {
            (rank, Op::Mark(mark)) => marked[rank][mark] = true,
            (_, Op::Reset(word)) => {
                prop_assert!(is_set(&words, &word), "two went on at {word:?}");
                words.insert(word, false);
            }
            (_, Op::Set(word)) => {
                prop_assert!(!is_set(&words, &word), "{word:?} was set before it was waited for");
                words.insert(word, true);
            }
            (_, Op::Put { ring, slot, number }) => drop(rings.insert((ring, slot), number)),
            (_, Op::Take { ring, slot, number }) => {
                prop_assert_eq!(rings.get(&(ring, slot)), Some(&number), "ring {:?}, slot {}", ring, slot);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn all_comes_to_its_end_on_few_queues(
        slots in 1usize..7,
        calls in prop::collection::vec((
            prop::collection::vec((0..WORLD, 0..WORLD, 0usize..14), 1..6),
            any::<bool>(),
            prop::array::uniform4(0..CALLERS),
        ), 1..5),
        // With one queue all streams share it; with many, some are still shared.
        queues in (1usize..8).prop_flat_map(|most| prop::collection::vec(
            prop::collection::vec(0..most, CALLERS + 4 * WORLD), WORLD,
        )),
        seed: u64,
    ) {
        let rank = |rank| Rank { rank, slots, lanes: HashMap::new(), ops: Vec::new(), marks: 0 };
        let mut ranks: Vec<_> = (0..WORLD).map(rank).collect();
        for (messages, together, callers) in &calls {
            let calls: Vec<_> = messages.chunks(if *together { messages.len() } else { 1 }).collect();
            for call in calls {
                ranks.iter_mut().for_each(|rank| rank.calls(call, callers[rank.rank]));
            }
        }
        run(&ranks, &queues, seed)?;
    }

    /// Each chunk is moved once, in order, and then signalled once, on its stream; a slot has one stream.
    #[test]
    fn every_chunk_is_carried_and_told_of(
        loads in prop::collection::vec((0usize..20, 1usize..7, 1usize..=STREAMS), 0..5)
    ) {
        let loads: Vec<_> = loads
            .into_iter()
            .map(|(chunks, slots, streams)| Load { chunks, slots, streams })
            .collect();
        let (mut carried, mut told) = (vec![Vec::new(); loads.len()], vec![Vec::new(); loads.len()]);
        for Step { part, stream, tell, carry } in steps(&loads) {
            if let Some(chunk) = tell {
                prop_assert!(carried[part].contains(&(chunk, stream)), "{chunk} is not there");
                told[part].push(chunk);
            }
            if let Some(chunk) = carry {
                carried[part].push((chunk, stream));
            }
        }
        for ((load, carried), mut told) in loads.iter().zip(carried).zip(told) {
            let all: Vec<_> = (0..load.chunks).collect();
            told.sort_unstable();
            prop_assert_eq!(&told, &all);
            prop_assert_eq!(carried.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), all);
            for (chunk, stream) in &carried {
                prop_assert_eq!(*stream, carried[chunk % load.slots].1, "of chunk {}'s slot", chunk);
            }
        }
    }
}
