//! Tests that simulate programs of several ranks on devices with few hardware queues. All operations must complete, and
//! each receiver must get the data that its peer has sent.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// Number of streams on which a rank's program makes its calls.
const CALLERS: usize = 3;

/// The way in which a message is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Through the ring, in this many chunks.
    Chunks(usize),
    /// Directly from buffer to buffer. The field is true if the sender is the first end (the end that offers its
    /// buffer).
    ZeroCopy { sender_first: bool },
}

/// The sender, the receiver, and the mode of a message.
type Message = (usize, usize, Mode);

/// A word that a stream of a rank waits for. It lies in the [flag page](super::super::flag_page) of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum AwaitedWord {
    /// The rank of the flag page, the peer, true for *full* or false for *empty*, and the slot.
    Slot(usize, usize, bool, usize),
    /// The rank of the flag page, the peer, whether the page's rank sends, and true for *done* or false for *ready*.
    Signal(usize, usize, bool, bool),
}

/// One operation of a stream.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Records the mark of this number, as a stream records an event.
    Mark(usize),
    /// Waits until the mark of this number is recorded.
    Await(usize),
    Wait(AwaitedWord),
    Reset(AwaitedWord),
    Set(AwaitedWord),
    /// Copies chunk `number` into a slot of the ring. A ring is identified by its sender and its receiver.
    Put {
        ring: (usize, usize),
        slot: usize,
        number: usize,
    },
    /// Copies chunk `number` out of a slot of the ring.
    Take {
        ring: (usize, usize),
        slot: usize,
        number: usize,
    },
    /// From here on, the peer may use the first end's buffer of zero-copy message `number`. `pair` is the sender and
    /// the receiver, here and below.
    Open {
        pair: (usize, usize),
        number: usize,
    },
    /// Copies zero-copy message `number`, on the second end.
    Copy {
        pair: (usize, usize),
        number: usize,
    },
    /// From here on, zero-copy message `number` is copied, and the peer no longer uses the first end's buffer.
    Close {
        pair: (usize, usize),
        number: usize,
    },
}

/// One direction between a rank and a peer, on the rank's side. `chunks` and `zero_copy` count the chunks and the
/// zero-copy messages of the lane's earlier calls.
#[derive(Debug, Clone, Default)]
struct LaneModel {
    chunks: usize,
    zero_copy: usize,
    /// The first stream of the lane in its last call, and the mark at the end of that call.
    last: Option<(usize, usize)>,
}

/// The operations of a rank with their streams, in the order in which the rank enqueues them.
#[derive(Debug)]
struct RankModel {
    rank: usize,
    slots: usize,
    /// Key: the peer, and whether the lane sends.
    lanes: HashMap<(usize, bool), LaneModel>,
    ops: Vec<(usize, Op)>,
    marks: usize,
}

impl RankModel {
    /// Makes stream `later` wait for the current work of stream `earlier`. Returns the number of the mark between them.
    fn chain(&mut self, earlier: usize, later: usize) -> usize {
        self.marks += 1;
        self.ops.extend([(earlier, Op::Mark(self.marks)), (later, Op::Await(self.marks))]);
        self.marks
    }

    /// Enqueues one call on the program's stream `caller`. `lanes` contains, for each lane of the call, the peer,
    /// whether the lane sends, and its pieces. Lanes that send come first. Mirrors
    /// [`DirectCore::enqueue`](super::super::core::DirectCore).
    fn call(&mut self, lanes: &[(usize, bool, Vec<PieceKind>)], caller: usize) {
        let (rank, slots) = (self.rank, self.slots);
        let own =
            |peer: usize, sends: bool, number: usize| CALLERS + 2 * (2 * peer + usize::from(sends)) + number;
        let mut streams = Vec::new();
        for (at, (peer, sends, kinds)) in lanes.iter().enumerate() {
            let first = if at == 0 { caller } else { own(*peer, *sends, 0) };
            if at > 0 {
                self.chain(caller, first);
            }
            match self.lanes.entry((*peer, *sends)).or_default().last {
                Some((last, mark)) if last != first => self.ops.push((first, Op::Await(mark))),
                _ => {}
            }
            let second = takes_turns(chunks_of(kinds), slots).then(|| own(*peer, *sends, 1));
            if let Some(second) = second {
                self.chain(first, second);
            }
            streams.push((first, second));
        }
        let schedule =
            |((_, sends, pieces), (_, second)): (&(_, bool, Vec<PieceKind>), &(_, Option<usize>))| {
                LaneSchedule {
                    pieces: pieces.clone(),
                    sends: *sends,
                    slots,
                    streams: 1 + usize::from(second.is_some()),
                }
            };
        let schedules: Vec<_> = lanes.iter().zip(&streams).map(schedule).collect();
        for PieceStep { lane, stream, action } in steps(&schedules) {
            let ((peer, sends, kinds), (first, second)) = (&lanes[lane], streams[lane]);
            let (peer, sends) = (*peer, *sends);
            let stream = if stream == 0 { first } else { second.unwrap() };
            let begun = &self.lanes[&(peer, sends)];
            let pair = if sends { (rank, peer) } else { (peer, rank) };
            let chunk_of = |piece: usize| begun.chunks + chunks_of(&kinds[..piece]);
            let zero_copy_of = |piece: usize| begun.zero_copy + piece - chunks_of(&kinds[..piece]);
            let signal_chunk =
                |piece: usize| Op::Set(AwaitedWord::Slot(peer, rank, sends, chunk_of(piece) % slots));
            let signal = |done| Op::Set(AwaitedWord::Signal(peer, rank, !sends, done));
            let wait = |word| [Op::Wait(word), Op::Reset(word)];
            let ready = |piece| vec![Op::Open { pair, number: zero_copy_of(piece) }, signal(false)];
            let done = |piece| {
                let number = zero_copy_of(piece);
                let waits = wait(AwaitedWord::Signal(rank, peer, sends, true)).into_iter();
                waits.chain([Op::Close { pair, number }]).collect::<Vec<_>>()
            };
            let ops = match action {
                PieceAction::Signal(piece) => vec![signal_chunk(piece)],
                PieceAction::Move { signal: earlier, chunk } => {
                    let (number, slot) = (chunk_of(chunk), chunk_of(chunk) % slots);
                    let copy = if sends {
                        Op::Put { ring: pair, slot, number }
                    } else {
                        Op::Take { ring: pair, slot, number }
                    };
                    let word = AwaitedWord::Slot(rank, peer, !sends, slot);
                    earlier.map(signal_chunk).into_iter().chain(wait(word)).chain([copy]).collect()
                }
                PieceAction::SignalReady(piece) => ready(piece),
                PieceAction::AwaitDone(piece) => done(piece),
                PieceAction::Offer(piece) => [ready(piece), done(piece)].concat(),
                PieceAction::Take(piece) => {
                    let copy = Op::Copy { pair, number: zero_copy_of(piece) };
                    let waits = wait(AwaitedWord::Signal(rank, peer, sends, false)).into_iter();
                    waits.chain([copy, signal(true)]).collect()
                }
            };
            self.ops.extend(ops.into_iter().map(|op| (stream, op)));
        }
        for ((peer, sends, kinds), (first, second)) in lanes.iter().zip(streams) {
            if let Some(second) = second {
                self.chain(second, first);
            }
            let mark = self.chain(first, caller);
            let lane = self.lanes.get_mut(&(*peer, *sends)).unwrap();
            lane.chunks += chunks_of(kinds);
            lane.zero_copy += kinds.len() - chunks_of(kinds);
            lane.last = Some((first, mark));
        }
    }

    /// Enqueues this rank's ends of `messages` as one call on the program's stream `caller`.
    fn calls(&mut self, messages: &[Message], caller: usize) {
        let mut lanes: Vec<(usize, bool, Vec<PieceKind>)> = Vec::new();
        for sends in [true, false] {
            for peer in 0..WORLD {
                let pair = if sends { (self.rank, peer) } else { (peer, self.rank) };
                let of_lane = messages.iter().filter(|(from, to, _)| (*from, *to) == pair);
                let kinds = of_lane.flat_map(|(.., mode)| match mode {
                    Mode::Chunks(chunks) => vec![PieceKind::Chunk; *chunks],
                    Mode::ZeroCopy { sender_first } if *sender_first == sends => vec![PieceKind::Offer],
                    Mode::ZeroCopy { .. } => vec![PieceKind::Take],
                });
                let kinds: Vec<_> = kinds.collect();
                if !kinds.is_empty() && peer != self.rank {
                    lanes.push((peer, sends, kinds));
                }
            }
        }
        if !lanes.is_empty() {
            self.call(&lanes, caller);
        }
    }
}

fn chunks_of(kinds: &[PieceKind]) -> usize {
    kinds.iter().filter(|kind| **kind == PieceKind::Chunk).count()
}

const WORLD: usize = 4;

/// Runs the operations of all ranks. Each hardware queue runs its operations in order, and the queues are interleaved
/// at random. `queues` contains, for each rank, the hardware queue of each stream. Fails in these cases:
/// - Operations remain, and none of them can proceed.
/// - A word is set that is already set, or two streams pass a wait for one signal.
/// - A slot does not contain the chunk that the receiver expects.
/// - A zero-copy message is copied before its buffer is ready, or its wait for *done* ends before it is copied.
fn run(ranks: &[RankModel], queues: &[Vec<usize>], mut seed: u64) -> Result<(), TestCaseError> {
    let (mut words, mut rings) = (HashMap::<AwaitedWord, bool>::new(), HashMap::new());
    // Zero-copy messages whose buffer the peer may use, and those that are copied.
    let (mut open, mut copied) = (HashSet::new(), HashSet::new());
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
        let is_set = |words: &HashMap<AwaitedWord, bool>, word: &AwaitedWord| {
            *words.get(word).unwrap_or(&matches!(word, AwaitedWord::Slot(_, _, false, _)))
        };
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
            (_, Op::Open { pair, number }) => drop(open.insert((pair, number))),
            (_, Op::Copy { pair, number }) => {
                prop_assert!(open.contains(&(pair, number)), "{number} of {pair:?} is not ready");
                copied.insert((pair, number));
            }
            (_, Op::Close { pair, number }) => {
                open.remove(&(pair, number));
                prop_assert!(copied.contains(&(pair, number)), "{number} of {pair:?} was not copied");
            }
            _ => {}
        }
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    let zero_copy = any::<bool>().prop_map(|sender_first| Mode::ZeroCopy { sender_first });
    prop_oneof![(0usize..14).prop_map(Mode::Chunks), zero_copy]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn all_operations_complete_on_few_queues(
        slots in 1usize..7,
        calls in prop::collection::vec((
            prop::collection::vec((0..WORLD, 0..WORLD, mode()), 1..8),
            any::<bool>(),
            prop::array::uniform4(0..CALLERS),
        ), 1..5),
        // With one queue, all streams share it. With several queues, some streams still share one.
        queues in (1usize..8).prop_flat_map(|most| prop::collection::vec(
            prop::collection::vec(0..most, CALLERS + 4 * WORLD), WORLD,
        )),
        seed: u64,
    ) {
        let rank = |rank| RankModel { rank, slots, lanes: HashMap::new(), ops: Vec::new(), marks: 0 };
        let mut ranks: Vec<_> = (0..WORLD).map(rank).collect();
        for (messages, together, callers) in &calls {
            let calls: Vec<_> = messages.chunks(if *together { messages.len() } else { 1 }).collect();
            for call in calls {
                ranks.iter_mut().for_each(|rank| rank.calls(call, callers[rank.rank]));
            }
        }
        run(&ranks, &queues, seed)?;
    }

    /// Each chunk is moved once, in order. It is then signalled once, on the stream that moved it. All chunks of a slot
    /// are on one stream. Zero-copy messages come in order. In a call of one lane, all chunks that were moved before a
    /// zero-copy message are also signalled before it.
    #[test]
    fn every_piece_is_enqueued_once(
        schedules in prop::collection::vec((
            prop::collection::vec(prop::sample::select(&[PieceKind::Chunk, PieceKind::Chunk, PieceKind::Offer, PieceKind::Take][..]), 0..20),
            any::<bool>(), 1usize..7, 1usize..=STREAMS,
        ), 0..5)
    ) {
        let schedules: Vec<_> = schedules
            .into_iter()
            .map(|(pieces, sends, slots, streams)| LaneSchedule { pieces, sends, slots, streams })
            .collect();
        let mut moved = vec![Vec::new(); schedules.len()];
        let (mut signalled, mut opened, mut ended) = (moved.clone(), vec![Vec::new(); schedules.len()], vec![Vec::new(); schedules.len()]);
        for PieceStep { lane, stream, action } in steps(&schedules) {
            let mut signal_chunk = |chunk: usize| {
                prop_assert!(moved[lane].contains(&(chunk, stream)), "{chunk} is not there");
                signalled[lane].push((chunk, stream));
                Ok(())
            };
            match action {
                PieceAction::Signal(chunk) => signal_chunk(chunk)?,
                PieceAction::Move { signal: earlier, chunk } => {
                    earlier.map_or(Ok(()), signal_chunk)?;
                    moved[lane].push((chunk, stream));
                }
                PieceAction::SignalReady(piece) => opened[lane].push(piece),
                PieceAction::AwaitDone(piece) => ended[lane].push(piece),
                PieceAction::Offer(piece) | PieceAction::Take(piece) => {
                    if matches!(action, PieceAction::Offer(_)) {
                        opened[lane].push(piece);
                    }
                    ended[lane].push(piece);
                    if schedules.len() == 1 {
                        prop_assert_eq!(signalled[lane].len(), moved[lane].len());
                    }
                }
            }
        }
        for (lane, schedule) in schedules.iter().enumerate() {
            let of = |wanted: &[PieceKind]| -> Vec<usize> {
                let pieces = schedule.pieces.iter().enumerate().filter(|(_, kind)| wanted.contains(kind));
                pieces.map(|(piece, _)| piece).collect()
            };
            let mut all: Vec<_> = signalled[lane].iter().map(|(chunk, _)| *chunk).collect();
            all.sort_unstable();
            prop_assert_eq!(&all, &of(&[PieceKind::Chunk]));
            prop_assert_eq!(moved[lane].iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), all);
            prop_assert_eq!(&opened[lane], &of(&[PieceKind::Offer]));
            prop_assert_eq!(&ended[lane], &of(&[PieceKind::Offer, PieceKind::Take]));
            for (at, (chunk, stream)) in moved[lane].iter().enumerate() {
                prop_assert_eq!(*stream, moved[lane][at % schedule.slots].1, "of chunk {}'s slot", chunk);
            }
        }
    }
}
