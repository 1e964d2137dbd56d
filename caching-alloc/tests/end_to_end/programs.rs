//! Random programs with typical patterns over a re-mappable pool: layers forwards and backwards, memory
//! gathered ahead on another stream, blocks of any lifetime. Checks the memory that each request gets, and
//! the reserved total.

use std::collections::VecDeque;
use std::sync::Arc;

use caching_alloc::core::{Allocator, Block, SegmentMemory, Settings, StreamId};
use caching_alloc::host::{HostSource, HostStreams};
use proptest::prelude::*;

use super::common::{MIB, check_tiling, s};
use super::model::intervals::{Intervals, Span};

/// Streams from here on carry the other uses of blocks, one stream for each block.
const USERS: u64 = 1000;

/// A part of a program. Lengths in bytes.
#[derive(Clone, Debug)]
enum Part {
    /// Each layer leaves tensors for the backward pass, and needs scratch memory in both passes.
    Layers { layers: usize, tensors: Vec<u64>, scratch: u64, stream: u64 },
    /// Blocks are gathered on stream 1 while stream 0 uses the ones gathered before. They are freed while that use
    /// still goes on.
    Ahead { lengths: Vec<u64>, work: u64 },
    /// Blocks, as (bytes, lifetime, stream). A lifetime is the number of blocks after which the block is freed.
    Any { blocks: Vec<(u64, usize, u64)> },
}

/// Lengths over many orders of magnitude, more of them long than short.
fn length() -> impl Strategy<Value = u64> {
    let power = prop_oneof![1 => 10..20u32, 3 => 20..27u32];
    (power, 0..1u64 << 26).prop_map(|(power, rest)| (1 << power) + rest % (1 << power))
}

fn part() -> impl Strategy<Value = Part> {
    let tensors = prop::collection::vec(length(), 1..5);
    let layers = (1..12usize, tensors, length(), 0..3u64)
        .prop_map(|(layers, tensors, scratch, stream)| Part::Layers { layers, tensors, scratch, stream });
    let ahead = (prop::collection::vec(length(), 2..12), length())
        .prop_map(|(lengths, work)| Part::Ahead { lengths, work });
    let any =
        prop::collection::vec((length(), 1..20usize, 0..3u64), 1..60).prop_map(|blocks| Part::Any { blocks });
    prop_oneof![layers, ahead, any]
}

/// The last owner of some memory.
#[derive(Clone, Debug)]
enum Tenure {
    Live,
    /// The block was freed. Its uses, as (stream, position).
    Left(Vec<(StreamId, u64)>),
}

/// A block, and the physical memory that it lies in.
struct Owned {
    block: Block,
    memory: Vec<Span>,
}

/// A run: an allocator, and the test's own record of its memory.
struct TestRun {
    source: Arc<HostSource>,
    streams: Arc<HostStreams>,
    allocator: Allocator,
    tenures: Intervals<Tenure>,
    /// Blocks that were freed while another stream used them, as (stream, bytes).
    late: VecDeque<(StreamId, u64)>,
    users: u64,
    active: u64,
    blocks: u64,
    /// The largest values of `active` and of `blocks` so far.
    peak: u64,
    most: u64,
}

impl TestRun {
    fn new() -> Self {
        let source = Arc::new(HostSource::new(u64::MAX));
        let streams = Arc::new(HostStreams::new());
        let allocator = Allocator::remapping(source.clone(), streams.clone(), Settings::default()).unwrap();
        let (tenures, late) = (Intervals::default(), VecDeque::new());
        Self {
            source,
            streams,
            allocator,
            tenures,
            late,
            users: USERS,
            active: 0,
            blocks: 0,
            peak: 0,
            most: 0,
        }
    }

    fn allocate(&mut self, bytes: u64, stream: u64) -> Owned {
        let block = self.allocator.allocate(bytes, s(stream)).unwrap();
        assert_eq!(block.bytes(), bytes.next_multiple_of(512));
        assert!(self.source.is_usable(block.address(), block.bytes()), "{block:?} is mapped");
        let memory = self.memory_of(&block);
        for span in &memory {
            for tenure in self.tenures.over(*span) {
                let Tenure::Left(uses) = tenure else { panic!("{block:?} overlaps a block that is in use") };
                for (user, position) in uses {
                    let after = self.streams.comes_after(block.stream(), *user, *position);
                    assert!(after, "{block:?} is handed out before {user:?} is done with its memory");
                }
            }
            self.tenures.set(*span, Tenure::Live);
        }
        self.streams.enqueue(block.stream());
        self.active += block.bytes();
        self.blocks += 1;
        self.peak = self.peak.max(self.active);
        self.most = self.most.max(self.blocks);
        Owned { block, memory }
    }

    /// Returns the physical memory of a block, by page.
    fn memory_of(&self, block: &Block) -> Vec<Span> {
        let (mut at, end) = (block.address(), block.address() + block.bytes());
        let spans = block.segments().into_iter().map(|page| {
            let SegmentMemory { address, bytes, token } = page.memory();
            assert_eq!(self.source.physical(at), Some((token, at - address)), "{block:?} lies in its pages");
            let (begin, to) = (at, end.min(address + bytes));
            at = to;
            Span { space: token, begin: begin - address, end: to - address }
        });
        let spans: Vec<Span> = spans.collect();
        assert_eq!(at, end, "{block:?} lies in its pages");
        spans
    }

    fn free(&mut self, Owned { block, memory }: Owned) {
        let stream = block.stream();
        let uses = vec![(stream, self.streams.position(stream))];
        self.leave(&memory, &uses);
        self.active -= block.bytes();
        self.blocks -= 1;
    }

    /// Frees a block while another stream uses it. The use ends later.
    fn free_in_use(&mut self, Owned { block, memory }: Owned) {
        self.users += 1;
        let user = s(self.users);
        self.streams.enqueue(user);
        block.record_stream(user).unwrap();
        let uses = [block.stream(), user].map(|stream| (stream, self.streams.position(stream)));
        self.leave(&memory, &uses);
        self.late.push_back((user, block.bytes()));
    }

    fn leave(&mut self, memory: &[Span], uses: &[(StreamId, u64)]) {
        memory.iter().for_each(|span| self.tenures.set(*span, Tenure::Left(uses.to_vec())));
    }

    /// Ends the uses of freed blocks, except of the last `left` ones.
    fn settle(&mut self, left: usize) {
        while self.late.len() > left {
            let Some((user, bytes)) = self.late.pop_front() else { break };
            self.streams.complete(user);
            self.active -= bytes;
            self.blocks -= 1;
        }
    }

    fn run(&mut self, part: &Part, scale: u64) {
        let of = |bytes: &u64| (bytes * scale / 100).max(1);
        match part {
            Part::Layers { layers, tensors, scratch, stream } => {
                let mut kept = Vec::new();
                for _ in 0..*layers {
                    let work = self.allocate(of(scratch), *stream);
                    kept.extend(tensors.iter().map(|bytes| self.allocate(of(bytes), *stream)));
                    self.free(work);
                }
                while let Some(tensor) = kept.pop() {
                    let gradient = self.allocate(tensor.block.bytes(), *stream);
                    self.free(tensor);
                    self.free(gradient);
                }
            }
            Part::Ahead { lengths, work } => {
                let mut gathered = VecDeque::new();
                for bytes in lengths {
                    gathered.push_back(self.allocate(of(bytes), 1));
                    let used = self.allocate(of(work), 0);
                    if gathered.len() > 2 {
                        let oldest = gathered.pop_front().expect("there are three");
                        self.free_in_use(oldest);
                    }
                    self.free(used);
                    self.settle(2);
                }
                gathered.into_iter().for_each(|last| self.free_in_use(last));
            }
            Part::Any { blocks } => {
                let mut live: Vec<(usize, Owned)> = Vec::new();
                for (now, (bytes, age, stream)) in blocks.iter().enumerate() {
                    live.push((now + age, self.allocate(of(bytes), *stream)));
                    let (gone, left) = live.into_iter().partition(|(end, _)| *end <= now);
                    live = left;
                    let gone: Vec<(usize, Owned)> = gone;
                    gone.into_iter().for_each(|(_, owned)| self.free(owned));
                }
                live.into_iter().for_each(|(_, owned)| self.free(owned));
            }
        }
    }

    /// Checks the invariants that hold at any time.
    fn check(&self) {
        let (stats, calls) = (self.allocator.stats(), self.source.calls());
        assert!(self.allocator.faults().is_empty(), "{:?}", self.allocator.faults());
        assert_eq!(stats.all.allocated.current + self.late_bytes(), self.active, "{stats:?}");
        assert_eq!(stats.reserved.current, calls.live_bytes, "every byte that was made is counted");
        let snapshot = self.allocator.snapshot().unwrap();
        check_tiling(&snapshot);
        let tiled = snapshot.mapped.iter().flat_map(|state| &state.blocks).map(|block| block.bytes);
        assert_eq!(tiled.sum::<u64>(), calls.live_bytes, "every byte that was made is a block's, or free");
        assert!(calls.peak_bytes <= self.bound(), "{} reserved, {} at most", calls.peak_bytes, self.bound());
    }

    fn late_bytes(&self) -> u64 {
        self.late.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the documented upper bound on the reserved memory of a re-mappable pool, in bytes.
    fn bound(&self) -> u64 {
        let slack = (8 * MIB).max(self.peak / 64);
        let page = (2 * MIB).max(self.peak / 256);
        self.peak + slack + 2 * page * self.most
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn re_mappable_memory_is_handed_out_once_in_order_and_little_is_left_over(
        parts in prop::collection::vec(part(), 1..5),
        scales in prop::collection::vec(50..200u64, 1..5),
    ) {
        let mut run = TestRun::new();
        for scale in scales {
            for part in &parts {
                run.run(part, scale);
                run.check();
            }
            run.settle(0);
        }
        prop_assert_eq!(run.active, 0);
        let reserved = run.source.calls().live_bytes;
        prop_assert_eq!(run.allocator.empty_cache().unwrap(), reserved);
        prop_assert_eq!(run.source.calls().live_bytes, 0, "everything has merged, and goes");
    }
}
