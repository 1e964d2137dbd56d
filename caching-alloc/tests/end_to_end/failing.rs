//! Makes every call of the source and the streams in a mixed scenario fail, alone and with all later calls of its
//! kind. Errors are typed, nothing leaks, no memory is handed out twice, and the allocator stays usable.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::common::{Bench, MIB, bench, check_tiling, remapping_bench, s, tight};
use caching_alloc::core::{
    Action, AllocError, Allocator, Attachment, Block, Entry, Fault, Filter, PageSource, Pool, PoolKind,
    PoolSettings, SegmentMemory, SegmentSource, Settings, SourceError, StreamId, Tracker, TrackerError,
};
use caching_alloc::host::{Failing, HostSource, HostStreams, SourceCall, StreamCall};

/// The number of streams. Stream 3 carries collectives, and stream 4 is captured at times.
const STREAMS: u64 = 5;

const CAPACITY: u64 = 160 * MIB;

/// A size that exceeds the capacity, in bytes.
const TOO_MUCH: u64 = 200 * MIB;

/// The numbers of the live segments, according to the entries that trackers get.
#[derive(Default)]
struct Segments(Mutex<HashSet<u64>>);

impl Tracker for Segments {
    fn name(&self) -> &str {
        "segments"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        let mut live = self.0.lock().unwrap();
        for entry in entries {
            let told = match &entry.action {
                Action::SegmentAlloc(segment) | Action::SegmentMap(segment) => live.insert(segment.id().0),
                Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => live.remove(&segment.id().0),
                _ => true,
            };
            if !told {
                return Err(format!("{entry:?} was told twice").into());
            }
        }
        Ok(())
    }
}

/// A use of physical memory: the streams, and their positions at its end.
struct Use {
    token: u64,
    range: Range<u64>,
    by: Vec<(StreamId, u64)>,
}

/// Makes the allocator.
type Make = fn(Arc<HostSource>, Arc<HostStreams>, Settings) -> Allocator;

/// A run of the scenario: an allocator, and the test's own record of blocks and uses.
struct TestRun {
    bench: Bench,
    segments: Arc<Segments>,
    attachment: Attachment,
    live: Vec<(Block, Vec<StreamId>)>,
    uses: Vec<Use>,
    errors: Vec<AllocError>,
}

/// Returns a block's physical memory, as tokens with ranges of offsets in bytes.
fn physical(source: &HostSource, block: &Block) -> Vec<(u64, Range<u64>)> {
    let end = block.address() + block.bytes();
    let parts = block.segments().into_iter().map(|segment| {
        let from = segment.address().max(block.address());
        let to = (segment.address() + segment.bytes()).min(end);
        let (token, offset) = source.physical(from).expect("a block lies in memory");
        (token, offset..offset + (to - from))
    });
    parts.collect()
}

impl TestRun {
    fn new(make: Make) -> Self {
        let Bench { source, streams, .. } = bench(CAPACITY, tight());
        let allocator = make(source.clone(), streams.clone(), tight());
        allocator.mark_collective(s(3));
        let segments = Arc::new(Segments::default());
        let attachment = allocator.attach(segments.clone(), Filter::structural()).unwrap();
        let bench = Bench { source, streams, allocator };
        Self { bench, segments, attachment, live: Vec::new(), uses: Vec::new(), errors: Vec::new() }
    }

    fn allocate(&mut self, pool: &Pool, bytes: u64, stream: StreamId) {
        let block = match pool.allocate(bytes, stream) {
            Ok(block) => block,
            Err(error) => return self.errors.push(error),
        };
        let range = block.address()..block.address() + block.bytes();
        for (other, _) in &self.live {
            let apart = range.end <= other.address() || other.address() + other.bytes() <= range.start;
            assert!(apart, "{block:?} overlaps {other:?}");
        }
        {
            let told = self.segments.0.lock().unwrap();
            let all = block.segments();
            assert!(all.iter().all(|segment| told.contains(&segment.id().0)), "trackers know of {all:?}");
            let moves = all.iter().any(|segment| segment.memory().token != segment.address());
            assert!(!moves || self.bench.source.is_usable(range.start, block.bytes()), "{block:?} is mapped");
        }
        for (token, range) in physical(&self.bench.source, &block) {
            let same = |used: &&Use| {
                used.token == token && used.range.start < range.end && range.start < used.range.end
            };
            for (user, position) in self.uses.iter().filter(same).flat_map(|used| &used.by) {
                let ordered = self.bench.streams.comes_after(stream, *user, *position);
                assert!(ordered, "{block:?} is used on {stream} before {user} is done with it");
            }
        }
        self.bench.streams.enqueue(stream);
        self.live.push((block, Vec::new()));
    }

    fn record(&mut self, at: usize, stream: StreamId) {
        if !self.live.is_empty() {
            let at = at % self.live.len();
            let (block, users) = &mut self.live[at];
            block.record_stream(stream).unwrap();
            users.push(stream);
        }
    }

    fn free(&mut self, at: usize) {
        if !self.live.is_empty() {
            let (block, users) = self.live.swap_remove(at % self.live.len());
            let all: Vec<StreamId> = users.into_iter().chain([block.stream()]).collect();
            all.iter().for_each(|stream| self.bench.streams.enqueue(*stream));
            // Captured work (stream 4) runs when the graph is launched, in an order that the program ensures.
            let by: Vec<_> = all.into_iter().filter(|stream| *stream != s(4)).collect();
            let by: Vec<_> =
                by.into_iter().map(|stream| (stream, self.bench.streams.position(stream))).collect();
            for (token, range) in physical(&self.bench.source, &block) {
                self.uses.push(Use { token, range, by: by.clone() });
            }
        }
    }

    fn complete(&self) {
        (0..STREAMS).for_each(|stream| self.bench.streams.complete(s(stream)));
    }

    /// Runs a mixture of all operations. Its pools are dropped at its end.
    fn everything(&mut self) {
        let allocator = self.bench.allocator.clone();
        let pool = |settings: PoolSettings| allocator.pool(settings).expect("no driver is asked");
        let default = allocator.default_pool().clone();
        let whole = pool(PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() });
        let private = pool(PoolSettings { lends: true, ..PoolSettings::default() });
        let graphs = allocator.graph_pool(PoolSettings::default()).expect("no driver is asked");
        let sizes = [700, MIB / 2, 3 * MIB, 9 * MIB, 5 * MIB, 12 * MIB];
        for round in 0..30u64 {
            let place = usize::try_from(round).unwrap();
            let (stream, bytes) = (s(round % 4), sizes[place % sizes.len()] + round * 4096);
            match round % 6 {
                3 => self.allocate(&whole, bytes, stream),
                5 => self.allocate(&private, bytes, stream),
                _ => self.allocate(&default, bytes, stream),
            }
            if round % 3 == 0 {
                self.record(place, s((round + 1) % 4));
            }
            if round % 2 == 1 || round > 20 {
                self.free(place * 7);
            }
            match round {
                8 => self.bench.allocator.set_memory_limit(Some(100 * MIB)),
                9 | 26 => {
                    // A block used by a capturing stream stays pending until the capture has ended.
                    self.record(place, s(4));
                    self.bench.streams.set_capturing(s(4), true);
                    self.free(place);
                }
                12 => _ = allocator.trim_to(20 * MIB).unwrap(),
                13 | 28 => self.bench.streams.set_capturing(s(4), false),
                15 => {
                    self.complete();
                    self.allocate(&default, TOO_MUCH, stream);
                }
                17 => {
                    let capture = graphs.capture(&[s(2)]);
                    self.allocate(&allocator.pool_for(3 * MIB, s(2)), 3 * MIB, s(2));
                    let memory = capture.end();
                    _ = allocator.empty_cache().unwrap();
                    drop(memory);
                }
                19 => {
                    let holds: Vec<_> = self.live.iter().flat_map(|(block, _)| block.segments()).collect();
                    let holds: Vec<_> = holds.iter().map(|segment| segment.hold("test").unwrap()).collect();
                    self.free(place);
                    _ = allocator.empty_cache().unwrap();
                    drop(holds);
                    _ = allocator.reap().unwrap();
                }
                _ => {}
            }
            if round % 8 == 7 {
                check_tiling(&allocator.snapshot().unwrap());
            }
        }
        self.bench.allocator.set_memory_limit(None);
    }

    /// Frees all blocks, completes all work, and releases the cached memory. Returns the faults, except those about
    /// quarantined segments.
    fn drop_all(&mut self) -> Vec<Fault> {
        while !self.live.is_empty() {
            self.free(0);
        }
        self.complete();
        self.bench.allocator.empty_cache().unwrap();
        let faults = self.bench.allocator.faults().into_iter();
        faults.filter(|fault| !matches!(fault, Fault::Quarantined { .. })).collect()
    }

    /// Checks that no memory is left, except memory that the source failed to release.
    fn check_that_all_is_back(&mut self) {
        let faults = self.drop_all();
        let stats = self.bench.allocator.stats();
        assert_eq!((stats.reserved.current, stats.all.active.current), (0, 0), "{faults:?}");
        let calls = self.bench.source.calls();
        assert_eq!(calls.live_bytes, calls.lost_bytes, "{faults:?}");
        assert_eq!(self.bench.source.mapped_bytes(), 0, "{faults:?}");
        assert_eq!(self.bench.streams.live_events(), 0, "{faults:?}");
        assert!(self.segments.0.lock().unwrap().is_empty());
    }

    /// Drops the allocator. Returns its source and its streams.
    fn end(self) -> (Arc<HostSource>, Arc<HostStreams>) {
        let Self { bench: Bench { source, streams, allocator }, attachment, live, .. } = self;
        drop((live, attachment, allocator));
        (source, streams)
    }
}

/// A call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Source(SourceCall),
    Stream(StreamCall),
}

impl Call {
    fn made(self, bench: &Bench) -> u64 {
        match self {
            Self::Source(call) => bench.source.made(call),
            Self::Stream(call) => bench.streams.made(call),
        }
    }

    fn fail(self, bench: &Bench, failing: Failing) {
        match self {
            Self::Source(call) => bench.source.fail(call, failing),
            Self::Stream(call) => bench.streams.fail(call, failing),
        }
    }

    /// Returns true if the call can fail for lack of memory.
    fn can_be_scarce(self) -> bool {
        matches!(self, Self::Source(SourceCall::Allocate | SourceCall::Create | SourceCall::Map))
    }

    /// Returns true if the failure must be reported. After a lack of memory, the allocator makes room and tries
    /// again. For failed stream calls and queries of free memory, it has a fallback: it keeps the memory longer,
    /// waits for more work, or reports less.
    fn is_told(self, failing: Failing) -> bool {
        match self {
            Self::Source(call) => call != SourceCall::MemoryInfo && !failing.is_scarce(),
            Self::Stream(_) => false,
        }
    }
}

fn is_of_the_source(error: &AllocError) -> bool {
    match error {
        AllocError::OutOfMemory(_) => true,
        AllocError::Source { source, .. } => {
            matches!(source, SourceError::Failed { .. } | SourceError::OutOfMemory { .. })
        }
        _ => false,
    }
}

fn survive_every_failure(make: Make) {
    let mut clean = TestRun::new(make);
    clean.everything();
    assert!(matches!(clean.errors[..], [AllocError::OutOfMemory(_)]), "too much: {:?}", clean.errors);
    let of_source = SourceCall::ALL.into_iter().map(Call::Source);
    let calls: Vec<(Call, u64)> = of_source
        .chain(StreamCall::ALL.into_iter().map(Call::Stream))
        .map(|call| (call, call.made(&clean.bench)))
        .collect();
    let faults = clean.drop_all();
    assert!(faults.is_empty(), "{faults:?}");
    clean.check_that_all_is_back();
    assert_eq!(clean.end().0.calls().ranges, 0);

    for (call, count) in calls {
        for index in 0..count {
            for failing in [Failing::once(index), Failing::for_ever(index)] {
                survive(make, &[(call, failing)]);
                if call.can_be_scarce() {
                    survive(make, &[(call, failing.for_want_of_memory())]);
                }
                // The calls that undo the earlier ones fail too.
                if matches!(call, Call::Source(SourceCall::Map | SourceCall::Enable | SourceCall::Create)) {
                    let undoing = [SourceCall::Unmap, SourceCall::Discard].map(Call::Source);
                    let undoing = undoing.map(|call| (call, Failing::for_ever(0)));
                    survive(make, &[(call, failing), undoing[0], undoing[1]]);
                }
            }
            // The failure persists while the allocator is dropped.
            let mut run = TestRun::new(make);
            call.fail(&run.bench, Failing::for_ever(index));
            run.everything();
            run.end();
        }
    }
}

/// Runs everything while calls fail, and once more afterwards.
fn survive(make: Make, failures: &[(Call, Failing)]) {
    println!("{failures:?}");
    let mut run = TestRun::new(make);
    failures.iter().for_each(|(call, failing)| call.fail(&run.bench, *failing));
    run.everything();
    let errors = std::mem::take(&mut run.errors);
    assert_eq!(run.bench.source.calls().broken, 0, "{errors:?}");
    assert!(errors.iter().all(is_of_the_source), "{errors:?}");
    let faults = run.drop_all();
    let hit = run.bench.source.failed() + run.bench.streams.failed() > 0;
    let told = errors.len() > 1 || !faults.is_empty();
    assert!(told || !hit || !failures[0].0.is_told(failures[0].1), "nobody heard");
    // Once the failures have ended, the allocator works as if they had not happened.
    run.bench.source.heal();
    run.bench.streams.heal();
    let lost = run.bench.source.calls().lost_bytes;
    run.bench.source.set_capacity(CAPACITY + lost);
    run.everything();
    assert!(matches!(run.errors[..], [AllocError::OutOfMemory(_)]), "{:?}", run.errors);
    run.check_that_all_is_back();
    let (source, streams) = run.end();
    assert_eq!((source.calls().ranges, streams.live_events()), (0, 0));
}

#[test]
fn every_failure_of_fixed_segments_is_survived() {
    survive_every_failure(|source, streams, settings| Allocator::new(source, streams, settings));
}

#[test]
fn every_failure_of_pages_that_move_is_survived() {
    survive_every_failure(|source, streams, settings| {
        Allocator::remapping(source, streams, settings).unwrap()
    });
}

#[test]
fn a_released_page_that_cannot_be_unmapped_is_counted_as_lost() {
    let source = HostSource::new(CAPACITY);
    let (bytes, address) = (2 * MIB, source.reserve(8 * MIB).unwrap());
    let page = SegmentMemory { address, bytes, token: source.create(bytes).unwrap() };
    source.map(&page).unwrap();
    source.fail(SourceCall::Unmap, Failing::once(0));
    assert!(matches!(source.release(&page), Err(SourceError::Failed { call: "unmap", .. })));
    let calls = source.calls();
    assert_eq!((calls.live_bytes, calls.lost_bytes, calls.broken), (bytes, bytes, 0));
}

#[test]
fn a_segment_that_cannot_be_released_is_one_fault() {
    for Bench { streams, allocator, .. } in [bench(CAPACITY, tight()), remapping_bench(CAPACITY, tight())] {
        drop(allocator.allocate(MIB, s(1)).unwrap());
        let pool = allocator.pool(PoolSettings::default()).unwrap();
        drop(pool.allocate(MIB, s(1)).unwrap());
        streams.fail(StreamCall::Record, Failing::for_ever(0));
        streams.fail(StreamCall::SynchronizeDevice, Failing::for_ever(0));
        drop(pool);
        for _ in 0..3 {
            assert_eq!(allocator.empty_cache().unwrap(), 0);
        }
        let faults = allocator.faults();
        let stranded = faults.iter().filter(|fault| matches!(fault, Fault::Stranded { .. }));
        assert_eq!(stranded.count(), 2, "one of the default pool, one of the dropped pool: {faults:?}");
        streams.heal();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.stats().reserved.current, 0);
    }
}
