//! Received data equals sent data: for any sequence, any length, any streams, and both directions at once.

use cuda_driver::{Stream, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    group::{Batch, Buffer, Result},
};
use proptest::prelude::*;
use symm_mem::{SymmetricBlock, SymmetricPool, direct::DirectOptions};

use super::{
    job::commit,
    rig::{Machine, Memory, Rank, buffer, bytes, far, pattern, small},
};

/// Number of streams of a rank.
const STREAMS: usize = 3;

const TYPES: [DataType; 4] = [DataType::U8, DataType::F16, DataType::F32, DataType::I64];

#[derive(Debug, Clone)]
struct Message {
    from: usize,
    to: usize,
    elements: usize,
    dtype: DataType,
    /// Index of the stream that each end uses.
    streams: [usize; 2],
    /// Whether each end's buffer lies in a mapped segment.
    shared: [bool; 2],
}

impl Message {
    fn length(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// Messages that every rank calls in this order: separately, or in one batch.
#[derive(Debug, Clone)]
struct Step {
    batched: bool,
    messages: Vec<Message>,
}

fn message(world: usize) -> impl Strategy<Value = Message> {
    // Slots have 64 bytes: this covers empty messages, messages shorter than a chunk, and messages of several rings.
    let elements = prop_oneof![1 => Just(0usize), 3 => 1usize..20, 2 => 20usize..200];
    let (dtype, streams) = (prop::sample::select(&TYPES[..]), prop::array::uniform2(0..STREAMS));
    (0..world, 0..world, elements, dtype, streams, prop::array::uniform2(any::<bool>())).prop_map(
        |(from, to, elements, dtype, streams, shared)| Message { from, to, elements, dtype, streams, shared },
    )
}

/// Number of ranks, number of slots of a ring, and the calls.
fn program() -> impl Strategy<Value = (usize, usize, Vec<Step>)> {
    (2usize..5, 1usize..6).prop_flat_map(|(world, slots)| {
        let step = (any::<bool>(), prop::collection::vec(message(world), 1..6)).prop_map(
            move |(batched, mut messages)| {
                // Messages to the own rank are allowed only in a batch.
                if !batched {
                    messages.retain(|message| message.from != message.to);
                }
                Step { batched, messages }
            },
        );
        (Just(world), Just(slots), prop::collection::vec(step, 1..8))
    })
}

/// The part of one rank in a program, and its memory.
struct Part<'a> {
    rank: &'a Rank,
    group: &'a ProcessGroup,
    streams: Vec<Stream>,
    /// By number of the message: the send buffer and the receive buffer of this rank.
    memory: Vec<[Option<Memory>; 2]>,
    /// All blocks. Dropped last, so that all ranks free them in the same order.
    _blocks: Vec<SymmetricBlock>,
}

impl<'a> Part<'a> {
    fn new(rank: &'a Rank, group: &'a ProcessGroup, pool: &SymmetricPool, steps: &[Step]) -> Self {
        let messages = steps.iter().flat_map(|step| &step.messages).enumerate();
        let mut kept = Vec::new();
        let memory = messages.map(|(number, message)| {
            let length = message.length();
            let allocate = || pool.allocate(length.max(1) as u64).unwrap();
            let blocks = message.shared.map(|is_shared| is_shared.then(allocate));
            let ends = [(message.from, pattern(number, length)), (message.to, vec![0; length])];
            let mut ends = blocks.into_iter().zip(ends).map(|(block, (end, content))| {
                kept.extend(block.clone());
                if end != rank.rank {
                    return None;
                }
                let memory = block.map_or_else(|| Memory::Other(rank.memory(&content)), Memory::Block);
                rank.write(memory.ptr(), &content);
                Some(memory)
            });
            std::array::from_fn(|_| ends.next().flatten())
        });
        let memory = memory.collect();
        let streams = (0..STREAMS).map(|_| rank.stream()).collect();
        Self { rank, group, streams, memory, _blocks: kept }
    }

    fn buffer(&self, number: usize, end: usize, message: &Message) -> Option<Buffer> {
        let memory = self.memory[number][end].as_ref()?;
        Some(Buffer::new(memory.ptr(), message.elements, message.dtype))
    }

    fn run(&self, steps: &[Step]) {
        let mut number = 0;
        for step in steps {
            let numbered: Vec<_> = step.messages.iter().zip(number..).collect();
            number += step.messages.len();
            if step.batched {
                let stream = &self.streams[number % STREAMS];
                let queue = |batch: &Batch<'_>| -> Result<()> {
                    // SAFETY: the memory lives until the streams are done.
                    numbered.iter().try_for_each(|(message, number)| unsafe {
                        if let Some(from) = self.buffer(*number, 0, message) {
                            batch.send(from, message.to)?;
                        }
                        self.buffer(*number, 1, message).map_or(Ok(()), |to| batch.recv(to, message.from))
                    })
                };
                self.group.batch(stream, queue).unwrap();
                continue;
            }
            for (message, number) in numbered {
                let [out, back] = message.streams.map(|stream| &self.streams[stream]);
                // SAFETY: as above.
                unsafe {
                    if let Some(from) = self.buffer(number, 0, message) {
                        self.group.raw().send(from, message.to, out).unwrap();
                    }
                    if let Some(to) = self.buffer(number, 1, message) {
                        self.group.raw().recv(to, message.from, back).unwrap();
                    }
                }
            }
        }
    }

    fn check(&self, steps: &[Step]) {
        self.group.quiesce(far()).unwrap();
        self.streams.iter().try_for_each(Stream::synchronize).unwrap();
        for (number, message) in steps.iter().flat_map(|step| &step.messages).enumerate() {
            if let Some(received) = &self.memory[number][1] {
                let wanted = pattern(number, message.length());
                let found = self.rank.read(received.ptr(), wanted.len());
                assert!(found == wanted, "message {number} at rank {}", self.rank.rank);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_arrives((world, slots, steps) in program()) {
        let machine = Machine::start(world);
        machine.ranks(world, |rank| {
            let (group, _) = rank.direct(rank.builder(), small().slots(slots));
            let pool = rank.pool(&group);
            // Twice, since the second run starts from the state that the first one leaves.
            for _ in 0..2 {
                let part = Part::new(&rank, &group, &pool, &steps);
                commit(&pool, &group);
                part.run(&steps);
                part.check(&steps);
            }
            assert!(!group.is_connected(), "no communicator was made");
            group.destroy(far()).unwrap();
        });
        prop_assert_eq!(machine.world.calls("ncclCommInitRankConfig"), 0);
        machine.finish();
    }
}

/// Messages larger than their ring, around a circle and in opposite directions: every way that could deadlock.
#[test]
fn what_does_not_fit_the_ring_goes_round_in_a_circle() {
    let machine = Machine::start(3);
    machine.ranks(3, |rank| {
        let one_slot = DirectOptions::default().slot_bytes(4096).slots(1).graph_slots(0);
        let group = rank.group(one_slot);
        let (me, stream) = (rank.rank, rank.stream());
        let from = rank.memory(&pattern(me, 50_000));
        let [next, before] = [rank.memory(&[0; 50_000]), rank.memory(&[0; 50_000])];
        for _ in 0..3 {
            let work = group.batch(&stream, |batch| {
                // SAFETY: the memory lives until the work is done. Receives come first, which one stream alone could not.
                unsafe {
                    batch.recv(buffer(&before), (me + 2) % 3)?;
                    batch.recv(buffer(&next), (me + 1) % 3)?;
                    batch.send(buffer(&from), (me + 1) % 3)?;
                    batch.send(buffer(&from), (me + 2) % 3)
                }
            });
            work.unwrap().wait_until(far()).unwrap();
            assert_eq!(bytes(&before), pattern((me + 2) % 3, 50_000));
            assert_eq!(bytes(&next), pattern((me + 1) % 3, 50_000));
        }
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// One or two chunks use only the caller's stream; more chunks alternate with a second stream, which is made once.
#[test]
fn large_messages_alone_have_a_second_stream() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let stream = rank.stream();
        let send = |number: usize, length| {
            let memory = rank.memory(&pattern(number * (1 - rank.rank), length));
            // SAFETY: the memory lives until the work is done.
            let work = unsafe {
                match rank.rank {
                    0 => group.raw().send(buffer(&memory), 1, &stream),
                    _ => group.raw().recv(buffer(&memory), 0, &stream),
                }
            };
            work.unwrap().wait_until(far()).unwrap();
            assert_eq!(bytes(&memory), pattern(number, length));
            group.barrier(far()).unwrap();
            let calls = ["cuStreamCreate", "cuStreamWaitEvent"].map(|call| machine.world.calls(call));
            group.barrier(far()).unwrap();
            calls
        };
        let before = send(1, 64);
        assert_eq!(send(2, 128), before);
        let [streams, waits] = send(3, 129);
        assert_eq!([streams, waits], [before[0] + 2, before[1] + 4], "there and back, at both ends");
        assert_eq!(send(4, 1000), [streams, waits + 4]);
        assert_eq!(send(5, 128), [streams, waits + 4]);
        group.destroy(far()).unwrap();
    });
    machine.finish();
}

/// A batch may also hold collectives; NCCL runs those.
#[test]
fn collectives_go_on_beside_messages() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small());
        let (me, peer, stream) = (rank.rank, 1 - rank.rank, rank.stream());
        let (from, to) = (rank.memory(&pattern(me, 500)), rank.memory(&[0; 500]));
        let sum = rank.memory(&(me as u32 + 1).to_le_bytes());
        let shares = [rank.memory(&[me as u8; 4]), rank.memory(&[me as u8; 4])];
        let parts = [rank.memory(&[9; 4]), rank.memory(&[9; 4])];
        let word = |memory: &DeviceMemory| Buffer::new(memory.ptr(), 1, DataType::U32);
        let work = group.batch(&stream, |batch| {
            // SAFETY: the memory lives until the work is done.
            unsafe {
                batch.send(buffer(&from), peer)?;
                batch.all_reduce(word(&sum), word(&sum), ReduceOp::Sum)?;
                batch.recv(buffer(&to), peer)
            }
        });
        work.unwrap().wait_until(far()).unwrap();
        assert_eq!((bytes(&to), bytes(&sum)), (pattern(peer, 500), 3u32.to_le_bytes().to_vec()));
        let send: Vec<_> = shares.iter().map(buffer).collect();
        let receive: Vec<_> = parts.iter().map(buffer).collect();
        // SAFETY: as above.
        let work = unsafe { group.raw().all_to_all_list(&send, &receive, &stream) };
        work.unwrap().wait_until(far()).unwrap();
        assert_eq!([bytes(&parts[0]), bytes(&parts[1])], [vec![0; 4], vec![1; 4]]);
        group.destroy(far()).unwrap();
    });
    assert!(machine.world.calls("ncclSend") > 0, "of the list alone");
    machine.finish();
}

/// A rank that is far ahead of a peer blocks on the host until the peer catches up, and loses no message.
#[test]
fn who_is_far_ahead_waits() {
    let machine = Machine::start(2);
    machine.ranks(2, |rank| {
        let group = rank.group(small().slots(40));
        let stream = rank.stream();
        let memory: Vec<_> =
            (0..700).map(|number| rank.memory(&pattern(number * (1 - rank.rank), 3))).collect();
        for (number, memory) in memory.iter().enumerate() {
            // SAFETY: the memory lives until the stream is done.
            unsafe {
                if rank.rank == 0 {
                    group.raw().send(buffer(memory), 1, &stream).unwrap();
                } else {
                    if number == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(300));
                    }
                    group.raw().recv(buffer(memory), 0, &stream).unwrap();
                }
            }
        }
        stream.synchronize().unwrap();
        for (number, memory) in memory.iter().enumerate() {
            assert_eq!(bytes(memory), pattern(number, 3), "message {number}");
        }
        group.destroy(far()).unwrap();
    });
    machine.finish();
}
