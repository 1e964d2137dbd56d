//! Guarantees for trackers: an exact snapshot, then every entry, once and in order. Trackers cannot harm the
//! allocator.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use super::common::pause::Pause;
use super::common::{Bench, MIB, bench, check_tiling, remapping_bench, s, tight, used};
use caching_alloc::core::{
    Action, ActionKind, AllocError, Allocator, Attachment, Block, Entry, Fault, Filter, Hold, PoolId,
    PoolSettings, Reuse, Settings, Snapshot, StreamId, TrackError, Tracker, TrackerError,
};

/// Rebuilds an allocator's state from its snapshot and entries, and checks them on the way.
#[derive(Default)]
struct Mirror {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    attached: bool,
    generation: u64,
    segments: HashMap<u64, u64>,
    /// Address to (bytes, pending).
    blocks: HashMap<u64, (u64, bool)>,
    numbers: HashMap<(PoolId, StreamId), u64>,
    wrong: Vec<String>,
}

impl Tracker for Mirror {
    fn name(&self) -> &str {
        "mirror"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        let mut state = self.state.lock().unwrap();
        check_tiling(snapshot);
        state.attached = true;
        state.generation = snapshot.generation;
        state.segments =
            snapshot.segments.iter().map(|state| (state.segment.address(), state.segment.bytes())).collect();
        state.blocks = used(snapshot);
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        let state = &mut *self.state.lock().unwrap();
        for entry in entries {
            let attached = state.attached;
            let mut expect = |right: bool, what: &str| {
                if !right {
                    state.wrong.push(format!("{what}: {entry:?}"));
                }
            };
            expect(attached, "an entry before the snapshot");
            if entry.action.kind().is_block() {
                let last = state.numbers.insert((entry.pool, entry.stream), entry.number);
                expect(last.is_none_or(|last| entry.number == last + 1), "block entries in order");
            } else {
                expect(entry.number == state.generation + 1, "structural entries in order, none missing");
                state.generation = entry.number;
            }
            match &entry.action {
                Action::SegmentAlloc(segment) => {
                    let before = state.segments.insert(segment.address(), segment.bytes());
                    expect(before.is_none(), "a segment twice");
                }
                Action::SegmentFree(segment) => {
                    expect(state.segments.remove(&segment.address()).is_some(), "an unknown segment");
                    let range = segment.address()..segment.address() + segment.bytes();
                    let inside = state.blocks.keys().any(|address| range.contains(address));
                    expect(!inside, "a block of it is still used");
                }
                Action::Alloc(span) => {
                    expect(state.blocks.insert(span.address, (span.bytes, false)).is_none(), "a block twice");
                }
                Action::FreeRequested(span) => {
                    expect(
                        state.blocks.insert(span.address, (span.bytes, true)) == Some((span.bytes, false)),
                        "not let go",
                    );
                }
                Action::FreeCompleted(span) => {
                    expect(state.blocks.remove(&span.address) == Some((span.bytes, true)), "not pending");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Mirror {
    fn check(&self, snapshot: &Snapshot) {
        let state = self.state.lock().unwrap();
        assert!(state.wrong.is_empty(), "{:#?}", &state.wrong[..state.wrong.len().min(5)]);
        let segments: HashMap<u64, u64> =
            snapshot.segments.iter().map(|state| (state.segment.address(), state.segment.bytes())).collect();
        assert_eq!(state.segments, segments);
        assert_eq!(state.blocks, used(snapshot));
        assert_eq!(state.generation, snapshot.generation);
    }
}

/// Allocates and frees; a simple deterministic mixture.
fn work(allocator: &Allocator, stream: StreamId, seed: u64, rounds: usize) {
    let mut numbers = seed * 2 + 1;
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..rounds {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let limit = if numbers >> 60 == 0 { 6 * MIB } else { 40_000 };
        blocks.push(allocator.allocate((numbers >> 20) % limit + 1, stream).unwrap());
        if blocks.len() > 30 {
            let at = (numbers >> 33) as usize % blocks.len();
            blocks.swap_remove(at);
        }
        if round % 200 == 199 {
            blocks.clear();
            allocator.trim_to(8 * MIB).unwrap();
        }
    }
}

#[test]
fn a_tracker_misses_nothing_while_others_allocate() {
    let bench = bench(u64::MAX, tight());
    let running = AtomicUsize::new(4);
    let mut attached: Vec<(Arc<Mirror>, Attachment)> = Vec::new();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (allocator, running) = (&bench.allocator, &running);
            // Two threads have a stream of their own, and the other two share one.
            scope.spawn(move || {
                work(allocator, s(worker.min(2)), worker, 3000);
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let mut round = 0;
        while running.load(Ordering::Acquire) > 0 {
            let mirror = Arc::new(Mirror::default());
            let attachment = bench.allocator.attach(mirror.clone(), Filter::all()).unwrap();
            attached.push((mirror, attachment));
            round += 1;
            if round % 2 == 0 {
                let (mirror, attachment) = attached.swap_remove(0);
                attachment.detach().unwrap();
                let seen = mirror.state.lock().unwrap().generation;
                bench.allocator.annotate("later").unwrap();
                let state = mirror.state.lock().unwrap();
                assert_eq!(state.generation, seen, "nothing after detaching");
                assert!(state.wrong.is_empty(), "{:?}", state.wrong);
            }
            if attached.len() > 8 {
                attached.truncate(4);
            }
            std::thread::yield_now();
        }
    });
    let last = Arc::new(Mirror::default());
    attached.push((last.clone(), bench.allocator.attach(last, Filter::all()).unwrap()));
    work(&bench.allocator, s(7), 7, 100);
    let snapshot = bench.allocator.snapshot().unwrap();
    check_tiling(&snapshot);
    for (mirror, _) in &attached {
        mirror.check(&snapshot);
    }
    assert!(bench.allocator.faults().is_empty());
}

/// A mirror that applies its snapshot only after other threads have allocated.
struct Slow {
    mirror: Mirror,
    begun: Mutex<mpsc::Sender<()>>,
    done: Mutex<mpsc::Receiver<()>>,
}

impl Tracker for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        self.begun.lock().unwrap().send(())?;
        self.done.lock().unwrap().recv_timeout(Duration::from_secs(60))?;
        self.mirror.attached(snapshot)
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        self.mirror.observe(entries)
    }
}

/// Attaches a tracker, and allocates 500 blocks on `stream` while it applies its snapshot.
fn allocate_while_a_tracker_attaches(bench: &Bench, stream: StreamId) {
    let (begin, begun) = mpsc::channel();
    let (finish, done) = mpsc::channel();
    let slow = Arc::new(Slow { mirror: Mirror::default(), begun: Mutex::new(begin), done: Mutex::new(done) });
    let attachment = std::thread::scope(|scope| {
        let allocator = &bench.allocator;
        scope.spawn(move || {
            begun.recv_timeout(Duration::from_secs(60)).unwrap();
            for _ in 0..500 {
                allocator.allocate(1000, stream).unwrap();
            }
            finish.send(()).unwrap();
        });
        bench.allocator.attach(slow.clone(), Filter::all()).unwrap()
    });
    let snapshot = bench.allocator.snapshot().unwrap();
    slow.mirror.check(&snapshot);
    let state = slow.mirror.state.lock().unwrap();
    assert!(state.numbers[&(PoolId(0), stream)] >= 1500, "the hits were told afterwards");
    drop(state);
    attachment.detach().unwrap();
}

#[test]
fn hits_go_on_while_a_tracker_attaches_and_reach_it_after_its_snapshot() {
    let bench = bench(u64::MAX, tight());
    drop(bench.allocator.allocate(1000, s(1)).unwrap());
    allocate_while_a_tracker_attaches(&bench, s(1));
}

#[test]
fn a_stream_that_begins_while_a_tracker_attaches_reaches_it_after_its_snapshot() {
    let bench = remapping_bench(u64::MAX, tight());
    drop(bench.allocator.allocate(1000, s(1)).unwrap());
    // Stream 2 takes free memory of stream 1, for which there is no structural entry.
    allocate_while_a_tracker_attaches(&bench, s(2));
}

/// A tracker that knows the live segments from its entries.
#[derive(Default)]
struct Known(Mutex<HashSet<u64>>);

impl Tracker for Known {
    fn name(&self) -> &str {
        "known"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        for entry in entries {
            match &entry.action {
                Action::SegmentAlloc(segment) => drop(self.0.lock().unwrap().insert(segment.id().0)),
                Action::SegmentFree(segment) => drop(self.0.lock().unwrap().remove(&segment.id().0)),
                other => panic!("{other:?} does not pass the filter"),
            }
        }
        Ok(())
    }
}

#[test]
fn a_segment_is_told_before_its_blocks_are_handed_out() {
    let bench = bench(u64::MAX, tight());
    let known = Arc::new(Known::default());
    let filter = Filter::only(&[ActionKind::SegmentAlloc, ActionKind::SegmentFree]);
    let _attachment = bench.allocator.attach(known.clone(), filter).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let (allocator, known) = (&bench.allocator, &known);
            scope.spawn(move || {
                let mut blocks = Vec::new();
                for round in 0..500u64 {
                    let block = allocator.allocate((round * 37 % 5) * MIB + 1, s(worker % 2)).unwrap();
                    assert!(known.0.lock().unwrap().contains(&block.segment().id().0));
                    blocks.push(block);
                    if blocks.len() > 10 {
                        blocks.clear();
                        allocator.trim_to(0).unwrap();
                    }
                }
            });
        }
    });
}

/// A tracker that allocates a block at each delivery, and keeps the results.
struct Allocates(Allocator, Mutex<Vec<Result<Block, AllocError>>>);

impl Tracker for Allocates {
    fn name(&self) -> &str {
        "allocates"
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        let result = self.0.allocate(1000, s(1));
        self.1.lock().unwrap().push(result);
        Ok(())
    }
}

#[test]
fn a_segment_serves_no_hit_before_trackers_are_told_of_it() {
    for bench in [bench(u64::MAX, tight()), remapping_bench(u64::MAX, tight())] {
        let tracker = Arc::new(Allocates(bench.allocator.clone(), Mutex::default()));
        let filter = Filter::only(&[ActionKind::SegmentAlloc, ActionKind::SegmentMap]);
        let attachment = bench.allocator.attach(tracker.clone(), filter).unwrap();
        let _block = bench.allocator.allocate(1000, s(1)).unwrap();
        attachment.detach().unwrap();
        let results = std::mem::take(&mut *tracker.1.lock().unwrap());
        assert!(!results.is_empty());
        let is_miss = |result: &Result<Block, _>| matches!(result, Err(AllocError::ReentrantTracker { .. }));
        assert!(results.iter().all(is_miss), "{results:?}");
    }
}

/// A tracker that calls a function at its first delivery.
struct Once<F>(F, AtomicBool);

impl<F: Fn() -> Result<(), TrackerError> + Send + Sync> Tracker for Once<F> {
    fn name(&self) -> &str {
        "once"
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        if self.1.swap(true, Ordering::Relaxed) { Ok(()) } else { (self.0)() }
    }
}

fn once<F: Fn() -> Result<(), TrackerError> + Send + Sync + 'static>(then: F) -> Arc<Once<F>> {
    Arc::new(Once(then, AtomicBool::new(false)))
}

#[test]
fn a_tracker_may_hit_and_free_but_not_miss() {
    let bench = bench(u64::MAX, tight());
    let keep = Arc::new(Mutex::new(Some(bench.allocator.allocate(1000, s(1)).unwrap())));
    let found = Arc::new(OnceLock::new());
    let tracker = {
        let (allocator, keep, found) = (bench.allocator.clone(), keep.clone(), found.clone());
        once(move || {
            let hit = allocator.allocate(500, s(1))?;
            drop(keep.lock().unwrap().take());
            drop(hit);
            let errors = [
                allocator.allocate(50 * MIB, s(1)).unwrap_err(),
                allocator.allocate(1, s(99)).unwrap_err(),
                allocator.pool(PoolSettings::default()).unwrap_err(),
            ];
            let refusals = [
                allocator.trim_to(0).unwrap_err(),
                allocator.annotate("inside").unwrap_err(),
                allocator.snapshot().map(drop).unwrap_err(),
                allocator.attach(Arc::new(Known::default()), Filter::all()).map(drop).unwrap_err(),
            ];
            let right = errors.iter().all(|error| matches!(error, AllocError::ReentrantTracker { .. }))
                && refusals.iter().all(|error| matches!(error, TrackError::Reentrant { .. }));
            let _ = found.set(right);
            Ok(())
        })
    };
    let _attachment = bench.allocator.attach(tracker, Filter::structural()).unwrap();
    bench.allocator.allocate(10 * MIB, s(1)).unwrap();
    assert_eq!(found.get(), Some(&true));
    assert!(keep.lock().unwrap().is_none());
    assert!(bench.allocator.faults().is_empty(), "{:?}", bench.allocator.faults());
}

#[test]
fn a_tracker_that_fails_or_panics_is_reported_and_harms_nobody() {
    let bench = bench(u64::MAX, tight());
    let known = Arc::new(Known::default());
    let filter = Filter::only(&[ActionKind::SegmentAlloc, ActionKind::SegmentFree]);
    let _failing = bench.allocator.attach(once(|| Err("no".into())), Filter::structural()).unwrap();
    let _panicking = bench.allocator.attach(once(|| panic!("oh")), Filter::structural()).unwrap();
    let _known = bench.allocator.attach(known.clone(), filter).unwrap();
    let block = bench.allocator.allocate(1, s(1)).unwrap();
    assert!(known.0.lock().unwrap().contains(&block.segment().id().0), "those behind it are told");
    let faults = bench.allocator.faults();
    assert!(
        matches!(&faults[0], Fault::TrackerFailed { tracker, entry: 1, message } if tracker == "once" && message == "no")
    );
    assert!(matches!(&faults[1], Fault::TrackerPanicked { entry: 1, message, .. } if message == "oh"));
    assert_eq!(faults.len(), 2);
    bench.allocator.allocate(20 * MIB, s(1)).unwrap();
}

/// A tracker that fails, and panics when its name is asked for.
struct Nameless;

impl Tracker for Nameless {
    fn name(&self) -> &str {
        panic!("no name")
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        Err("no".into())
    }
}

#[test]
fn a_failing_tracker_whose_name_panics_is_reported_and_can_be_detached() {
    let bench = bench(u64::MAX, tight());
    let attachment = bench.allocator.attach(Arc::new(Nameless), Filter::structural()).unwrap();
    bench.allocator.allocate(1, s(1)).unwrap();
    let faults = bench.allocator.faults();
    assert!(
        matches!(&faults[0], Fault::TrackerFailed { tracker, .. } if tracker == "(panicked: no name)"),
        "{faults:?}"
    );
    attachment.detach().unwrap();
}

/// A tracker that returns an error or panics when it gets its snapshot.
struct Unwilling(bool);

impl Tracker for Unwilling {
    fn name(&self) -> &str {
        "unwilling"
    }

    fn attached(&self, _: &Snapshot) -> Result<(), TrackerError> {
        if self.0 { panic!("at all") } else { Err("not now".into()) }
    }

    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        panic!("it is not attached")
    }
}

#[test]
fn a_tracker_that_refuses_its_snapshot_is_not_attached() {
    let bench = bench(u64::MAX, tight());
    let attach = |panics| bench.allocator.attach(Arc::new(Unwilling(panics)), Filter::all()).map(drop);
    assert!(matches!(attach(false), Err(TrackError::Refused { tracker, .. }) if tracker == "unwilling"));
    assert!(matches!(attach(true), Err(TrackError::Panicked { message, .. }) if message == "at all"));
    work(&bench.allocator, s(1), 1, 300);
    assert!(bench.allocator.faults().is_empty());
}

/// A tracker that holds every segment. It drops the hold when the segment is removed, unless it is `stubborn`.
#[derive(Default)]
struct Registrar {
    holds: Mutex<HashMap<u64, Hold>>,
    stubborn: AtomicBool,
}

impl Tracker for Registrar {
    fn name(&self) -> &str {
        "registrar"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        for state in &snapshot.segments {
            let hold = state.segment.hold("registrar")?;
            self.holds.lock().unwrap().insert(state.segment.id().0, hold);
        }
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        for entry in entries {
            match &entry.action {
                Action::SegmentAlloc(segment) => {
                    self.holds.lock().unwrap().insert(segment.id().0, segment.hold("registrar")?);
                }
                Action::SegmentFree(_) if self.stubborn.load(Ordering::Relaxed) => {
                    return Err("deregistration failed".into());
                }
                Action::SegmentFree(segment) => {
                    assert_eq!(segment.holders().len(), 1);
                    self.holds.lock().unwrap().remove(&segment.id().0);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn what_is_held_stays_until_it_is_let_go() {
    let bench = bench(u64::MAX, tight());
    let early = bench.allocator.allocate(MIB, s(1)).unwrap();
    let registrar = Arc::new(Registrar::default());
    let attachment = bench.allocator.attach(registrar.clone(), Filter::structural()).unwrap();
    let late = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    assert_eq!(registrar.holds.lock().unwrap().len(), 2);

    // The tracker drops its hold, so the memory is released.
    let segment = late.segment();
    drop(late);
    assert!(bench.allocator.empty_cache().unwrap() >= 8 * MIB);
    assert!(segment.hold("too late").is_err());

    // The tracker fails and keeps its hold, so the memory stays, and a fault reports that.
    registrar.stubborn.store(true, Ordering::Relaxed);
    let segment = early.segment();
    drop(early);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 0);
    let stats = bench.allocator.stats();
    assert_eq!((stats.quarantined, stats.reserved.current), (segment.bytes(), segment.bytes()));
    assert_eq!(bench.source.calls().live_bytes, segment.bytes());
    assert_eq!(bench.allocator.snapshot().unwrap().quarantined, std::slice::from_ref(&segment));
    let faults = bench.allocator.faults();
    assert!(faults.iter().any(|fault| matches!(fault, Fault::TrackerFailed { .. })));
    assert!(faults.iter().any(|fault| {
        matches!(fault, Fault::Quarantined { segment: held, holders }
            if *held == segment && holders.len() == 1 && &*holders[0] == "registrar")
    }));
    // The allocator does not use quarantined memory, so new requests get other memory.
    let other = bench.allocator.allocate(MIB, s(1)).unwrap();
    assert_ne!(other.segment(), segment);
    assert_eq!(bench.allocator.reap().unwrap(), 0);

    registrar.holds.lock().unwrap().remove(&segment.id().0);
    assert_eq!(bench.allocator.reap().unwrap(), segment.bytes());
    assert_eq!(bench.allocator.stats().quarantined, 0);
    attachment.detach().unwrap();
}

#[test]
fn a_hold_may_outlive_the_allocator() {
    let Bench { source, streams, allocator } = bench(u64::MAX, tight());
    let block = allocator.allocate(MIB, s(1)).unwrap();
    let hold = block.segment().hold("a graph").unwrap();
    drop(allocator);
    assert!(source.calls().live_bytes > 0, "the block keeps it");
    drop(block);
    assert!(source.calls().live_bytes > 0, "the hold keeps it");
    drop(hold);
    assert_eq!(source.calls().live_bytes, 0);
    assert_eq!(streams.live_events(), 0);
}

/// Keeps every entry.
#[derive(Default)]
struct Entries(Mutex<Vec<Entry>>);

impl Tracker for Entries {
    fn name(&self) -> &str {
        "entries"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        self.0.lock().unwrap().extend_from_slice(entries);
        Ok(())
    }
}

#[test]
fn a_segment_that_another_stream_takes_over_is_an_entry() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let entries = Arc::new(Entries::default());
    let attachment = allocator.attach(entries.clone(), Filter::structural()).unwrap();
    let segment = allocator.allocate(3 * MIB, s(1)).unwrap().segment();
    let block = allocator.allocate(3 * MIB, s(2)).unwrap();
    assert_eq!((block.segment(), segment.stream()), (segment.clone(), s(2)));
    attachment.detach().unwrap();
    let entries = entries.0.lock().unwrap();
    let [_, moved] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((moved.stream, moved.pool), (s(2), segment.pool()));
    assert_eq!(moved.action, Action::SegmentMoved { segment, from: s(1) });
}

/// A tracker that stops the thread that delivers a new segment.
#[derive(Default)]
struct StopsGrowth {
    pause: Pause,
    seen: Mutex<Vec<u64>>,
}

impl Tracker for StopsGrowth {
    fn name(&self) -> &str {
        "stops growth"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        self.pause.pass();
        self.seen.lock().unwrap().extend(entries.iter().map(|entry| entry.number));
        Ok(())
    }
}

#[test]
fn a_tracker_delays_only_calls_that_have_entries_for_it() {
    let bench = bench(64 * MIB, Settings { reuse: Reuse::DeviceWait, ..tight() });
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let address = block.address();
    bench.streams.enqueue(s(2));
    block.record_stream(s(2)).unwrap();
    drop(block);
    let tracker = Arc::new(StopsGrowth::default());
    let attachment = bench.allocator.attach(tracker.clone(), Filter::structural()).unwrap();
    tracker.pause.arm();
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| bench.allocator.allocate(16 * MIB, s(3)).unwrap());
        tracker.pause.wait_until_reached();
        // The stream waits on the device for the use of its own block. Until the tracker goes on, none of these calls
        // could end if a tracker were called under the structure lock.
        let served = scope.spawn(|| bench.allocator.allocate(8 * MIB, s(1)).unwrap().address());
        let pool = scope.spawn(|| bench.allocator.pool(PoolSettings::default()).unwrap().id());
        let since = scope.spawn(|| bench.allocator.since(0).is_ok());
        let ended = || served.is_finished() && pool.is_finished() && since.is_finished();
        let begun = Instant::now();
        while !ended() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let was_ended = ended();
        tracker.pause.open();
        assert!(was_ended, "a call waited for the tracker");
        assert_eq!(served.join().unwrap(), address);
        drop(growing.join().unwrap());
    });
    attachment.detach().unwrap();
    let seen = tracker.seen.lock().unwrap();
    assert!(seen.is_sorted() && !seen.is_empty(), "{seen:?}");
}

#[test]
fn a_pool_is_frozen_only_after_its_growth_is_delivered() {
    let bench = bench(64 * MIB, tight());
    let pool = bench.allocator.pool(PoolSettings::default()).unwrap();
    let tracker = Arc::new(StopsGrowth::default());
    let attachment = bench.allocator.attach(tracker.clone(), Filter::structural()).unwrap();
    tracker.pause.arm();
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| pool.allocate(16 * MIB, s(1)).unwrap());
        tracker.pause.wait_until_reached();
        let freezing = scope.spawn(|| {
            let frozen = pool.freeze();
            (pool.stats().all.blocks.total, frozen)
        });
        tracker.pause.release_after(&freezing);
        let (blocks, frozen) = freezing.join().unwrap();
        assert_eq!(blocks, 1, "the request was served before the pool was frozen");
        drop((growing.join().unwrap(), frozen));
    });
    attachment.detach().unwrap();
}

#[test]
fn memory_that_waits_for_a_tracker_is_not_missed() {
    let bench = bench(16 * MIB, tight());
    let tracker = Arc::new(StopsGrowth::default());
    let attachment = bench.allocator.attach(tracker.clone(), Filter::structural()).unwrap();
    drop(bench.allocator.allocate(16 * MIB, s(1)).unwrap());
    tracker.pause.arm();
    std::thread::scope(|scope| {
        // The segment is in no cache while its release is delivered.
        let trimming = scope.spawn(|| bench.allocator.empty_cache().unwrap());
        tracker.pause.wait_until_reached();
        let served = scope.spawn(|| bench.allocator.allocate(16 * MIB, s(1)).map(drop));
        tracker.pause.release_after(&served);
        assert_eq!(trimming.join().unwrap(), 16 * MIB);
        served.join().unwrap().expect("the released memory serves it");
    });
    attachment.detach().unwrap();
}

#[test]
fn a_stream_is_not_forgotten_while_its_first_segment_is_delivered() {
    let bench = bench(64 * MIB, tight());
    let tracker = Arc::new(StopsGrowth::default());
    let attachment = bench.allocator.attach(tracker.clone(), Filter::structural()).unwrap();
    tracker.pause.arm();
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| bench.allocator.allocate(16 * MIB, s(1)).unwrap());
        tracker.pause.wait_until_reached();
        bench.allocator.forget_stream(s(1)).unwrap();
        tracker.pause.open();
        let block = growing.join().unwrap();
        assert_eq!(bench.allocator.stats().all.blocks.current, 1);
        assert!(bench.allocator.find(block.address()).is_some_and(|found| found.segment == block.segment()));
    });
    attachment.detach().unwrap();
}
