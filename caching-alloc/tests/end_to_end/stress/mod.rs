//! Threads that share streams, over real memory in which every block names its owner.
//!
//! An owner writes its word into a block after the allocation, and clears the word before the free. This finds two
//! owners of one unit, reuse of a block before a recorded use has ended, and memory that is released while a graph uses
//! it. AddressSanitizer finds the last one too.

mod memory;
mod streams;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use caching_alloc::core::{
    AllocError, Allocator, Block, Entry, Filter, GraphPool, PoolSettings, Settings, Snapshot, StreamId,
    Tracker, TrackerError,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use memory::{HeapSource, Span};
use streams::Streams;

const MIB: u64 = 1 << 20;
/// Host memory that the source may allocate, in bytes.
const CAPACITY: u64 = 96 * MIB;
/// Blocks that a thread has at most.
const HELD: usize = 12;
const SIZES: [u64; 8] = [512, 512, 1000, 4096, 70_000, 300_000, MIB, 3 * MIB];

/// The settings of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stress {
    pub(crate) threads: u64,
    /// Number of processors that the threads share. 0 means all.
    pub(crate) cores: usize,
    pub(crate) length: Duration,
    pub(crate) seed: u64,
}

/// State that the threads of a run share.
struct Shared {
    allocator: Allocator,
    streams: Arc<Streams>,
    graphs: GraphPool,
    /// Blocks on their way from one thread to another.
    passed: Mutex<Vec<Block>>,
    stop: AtomicBool,
    operations: AtomicU64,
}

/// The owner number of blocks that are in [`Shared::passed`].
const NOBODY: u64 = 0xffff;
/// Combined with a thread's number, the side stream: the thread uses some of its blocks there.
const SIDE: u64 = 0x10000;
/// Combined with a thread's number, the stream that the thread captures.
const CAPTURED: u64 = 0x20000;

impl Stress {
    /// Allocates and frees blocks of one length on one stream. Returns the number of operations.
    pub(crate) fn one_length(self) -> u64 {
        self.run(|shared, me, _| {
            let block = shared.allocator.allocate(512, StreamId(1)).unwrap();
            let span = Span::of(&block);
            span.pass(0, me);
            span.pass(me, 0);
        })
    }

    /// Runs a mixture of all operations, in which threads also pass blocks to each other. Returns the number of
    /// operations.
    pub(crate) fn everything(self) -> u64 {
        self.run(|shared, me, worker| worker.step(shared, me))
    }

    fn run(self, step: impl Fn(&Shared, u64, &mut Worker) + Sync) -> u64 {
        let streams = Arc::new(Streams::default());
        let source = Arc::new(HeapSource::new(CAPACITY));
        let settings = Settings { large_segment: 8 * MIB, quick_list_bytes: MIB, ..Settings::default() };
        let allocator = Allocator::new(source, streams.clone(), settings);
        let graphs = allocator.graph_pool(PoolSettings::default()).unwrap();
        let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Shared { allocator, streams, graphs, passed: Mutex::default(), stop, operations };
        let watched = shared.allocator.attach(Arc::new(Yields), Filter::structural()).unwrap();
        let end = Instant::now() + self.length;
        std::thread::scope(|scope| {
            for me in 1..=self.threads {
                let (shared, step) = (&shared, &step);
                scope.spawn(move || {
                    pin(self.cores);
                    let mut worker = Worker::new(self.seed, me);
                    // A panic of one thread ends the others.
                    let _guard = StopOnPanic(&shared.stop);
                    while !shared.stop.load(Ordering::Relaxed) && Instant::now() < end {
                        (0..64).for_each(|_| step(shared, me, &mut worker));
                        shared.operations.fetch_add(64, Ordering::Relaxed);
                    }
                    worker.held.drain(..).for_each(|block| Span::of(&block).pass(me, 0));
                    shared.streams.complete(StreamId(SIDE | me));
                });
            }
        });
        watched.detach().unwrap();
        shared.end()
    }
}

/// A tracker that lets other threads run while a change of the segments is delivered.
pub(crate) struct Yields;

impl Tracker for Yields {
    fn name(&self) -> &str {
        "yields"
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        std::thread::yield_now();
        Ok(())
    }
}

struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Restricts this thread to the first `cores` of the processors that it may run on. 0 means no restriction.
fn pin(cores: usize) {
    if cores == 0 {
        return;
    }
    let allowed = sched_getaffinity(None).unwrap();
    let mut set = CpuSet::new();
    let usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    usable.take(cores).for_each(|cpu| set.set(cpu));
    sched_setaffinity(None, &set).unwrap();
}

impl Shared {
    fn end(self) -> u64 {
        let Self { allocator, streams, graphs, passed, operations, .. } = self;
        for block in passed.into_inner().unwrap() {
            Span::of(&block).pass(NOBODY, 0);
        }
        let stats = allocator.stats();
        assert_eq!((stats.all.blocks.current, stats.all.allocated.current), (0, 0));
        drop(graphs);
        allocator.empty_cache().unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.all.active.current, stats.reserved.current), (0, 0));
        assert_eq!(streams.live_events(), 0);
        assert!(allocator.faults().is_empty(), "{:?}", allocator.faults());
        operations.into_inner()
    }
}

/// A thread's random numbers and its blocks.
struct Worker {
    random: u64,
    held: Vec<Block>,
}

impl Worker {
    fn new(seed: u64, me: u64) -> Self {
        Self { random: (seed ^ me).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, held: Vec::new() }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % limit
    }

    fn any_held(&mut self) -> Option<Block> {
        let at = self.below(self.held.len().max(1) as u64) as usize;
        (at < self.held.len()).then(|| self.held.swap_remove(at))
    }

    fn step(&mut self, shared: &Shared, me: u64) {
        match self.below(1000) {
            0..500 => self.allocate(shared, me),
            500..800 => {
                if let Some(block) = self.any_held() {
                    Span::of(&block).pass(me, 0);
                }
            }
            800..850 => {
                if let Some(block) = self.any_held() {
                    Span::of(&block).pass(me, NOBODY);
                    shared.passed.lock().unwrap().push(block);
                }
            }
            850..900 => {
                let block = shared.passed.lock().unwrap().pop();
                if let Some(block) = block {
                    Span::of(&block).pass(NOBODY, me);
                    self.held.push(block);
                }
            }
            900..960 => self.free_in_use(shared, me),
            960..990 => shared.streams.complete(StreamId(SIDE | me)),
            990..994 => capture(shared, me),
            994..996 => _ = shared.allocator.empty_cache().unwrap(),
            996..998 => self.private_pool(shared, me),
            998 => check(&shared.allocator.snapshot().unwrap()),
            _ => _ = shared.allocator.trim_to(CAPACITY / 4).unwrap(),
        }
    }

    fn allocate(&mut self, shared: &Shared, me: u64) {
        if self.held.len() >= HELD
            && let Some(block) = self.any_held()
        {
            Span::of(&block).pass(me, 0);
        }
        let (bytes, stream) = (SIZES[self.below(8) as usize], StreamId(1 + self.below(2)));
        match shared.allocator.allocate(bytes, stream) {
            Ok(block) => {
                Span::of(&block).pass(0, me);
                self.held.push(block);
            }
            Err(AllocError::OutOfMemory(_)) => {
                self.held.drain(..).for_each(|block| Span::of(&block).pass(me, 0));
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Frees a block that the thread's side stream still uses.
    fn free_in_use(&mut self, shared: &Shared, me: u64) {
        let Some(block) = self.any_held() else { return };
        let (span, side) = (Span::of(&block), StreamId(SIDE | me));
        block.record_stream(side).unwrap();
        span.pass(me, SIDE | me);
        shared.streams.enqueue(side, span, SIDE | me);
        drop(block);
    }

    /// Makes a pool, and drops it while a block of it is handed out.
    fn private_pool(&mut self, shared: &Shared, me: u64) {
        let pool = shared.allocator.pool(PoolSettings { lends: true, ..PoolSettings::default() }).unwrap();
        if let Ok(block) = pool.allocate(SIZES[self.below(8) as usize], StreamId(1)) {
            Span::of(&block).pass(0, me);
            self.held.push(block);
        }
    }
}

/// Captures a graph, and replays it once. The replay writes to the addresses of the block that the capture allocated.
fn capture(shared: &Shared, me: u64) {
    let stream = StreamId(CAPTURED | me);
    let warm = shared.graphs.capture(&[stream]);
    let warmed = shared.allocator.allocate(MIB, stream).map(drop);
    drop(warm);
    if warmed.is_err() {
        return;
    }
    let capture = shared.graphs.capture(&[stream]);
    shared.streams.set_capturing(stream, true);
    let block = shared.allocator.allocate(MIB, stream);
    let baked = block.as_ref().ok().map(Span::of);
    drop(block);
    shared.streams.set_capturing(stream, false);
    let graph = capture.end();
    if let Some(span) = baked {
        std::thread::yield_now();
        // Graphs of one pool are replayed one after the other.
        let _one = shared.passed.lock().unwrap();
        span.pass(0, CAPTURED | me);
        span.pass(CAPTURED | me, 0);
    }
    drop(graph);
}

/// Checks that the blocks cover their segments without gaps.
fn check(snapshot: &Snapshot) {
    for state in &snapshot.segments {
        let mut at = state.segment.address();
        for block in &state.blocks {
            assert_eq!(block.address, at, "{:?}", state.segment);
            at += block.bytes;
        }
        assert_eq!(at, state.segment.address() + state.segment.bytes());
    }
}
