//! Readers of the allocator's state: late readers, trackers of several devices, out-of-memory observers,
//! statistics, lookups by address.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::common::{Bench, MIB, bench, check_tiling, s, tight};
use caching_alloc::core::{
    Action, ActionKind, AllocError, Allocator, Block, Entry, ExportError, Fault, Filter, Fraction, Name,
    OomAction, Pool, PoolKind, PoolSettings, RawError, Segment, Settings, ShareKind, Since, Snapshot,
    SourceCalls, SourceError, Tracker, TrackerError,
};
use caching_alloc::host::{HostSource, HostStreams};
use proptest::prelude::*;

fn pool(allocator: &Allocator, kind: PoolKind) -> Pool {
    allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap()
}

/// A reader's view of the live segments: (address, bytes), by the segment's number.
#[derive(Debug, Default)]
struct Reader {
    segments: BTreeMap<u64, (u64, u64)>,
    generation: u64,
    late: usize,
}

impl Reader {
    fn begin(&mut self, snapshot: &Snapshot) {
        let fixed = snapshot.segments.iter().map(|state| &state.segment);
        let mapped = snapshot.mapped.iter().flat_map(|state| &state.segments);
        let all = fixed.chain(mapped);
        self.segments = all.map(|segment| (segment.id().0, (segment.address(), segment.bytes()))).collect();
        self.generation = snapshot.generation;
    }

    fn read(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.generation += 1;
            assert_eq!(entry.number, self.generation, "nothing missed, nothing twice");
            let place = |segment: &Segment| (segment.address(), segment.bytes());
            match &entry.action {
                Action::SegmentAlloc(segment) | Action::SegmentMap(segment) => {
                    assert_eq!(self.segments.insert(segment.id().0, place(segment)), None);
                }
                Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => {
                    assert_eq!(self.segments.remove(&segment.id().0), Some(place(segment)));
                }
                _ => {}
            }
        }
    }

    fn catch_up(&mut self, allocator: &Allocator) {
        match allocator.since(self.generation).unwrap() {
            Since::Entries(entries) => self.read(&entries),
            Since::TooOld(snapshot) => {
                assert!(snapshot.trace.is_empty());
                self.late += 1;
                self.begin(&snapshot);
            }
        }
        assert_eq!(self.generation, allocator.generation());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_late_reader_gets_the_state_and_exactly_what_follows(
        steps in prop::collection::vec((0..12u8, 1..9 * MIB, 0..3u64), 1..120),
        structural_entries in 1..24usize,
    ) {
        let Bench { allocator, streams, .. } = bench(80 * MIB, Settings { structural_entries, ..tight() });
        let pools = [
            allocator.default_pool().clone(),
            pool(&allocator, PoolKind::NoSplit),
            pool(&allocator, PoolKind::Remappable),
        ];
        let mut readers = [Reader::default(), Reader::default()];
        let mut live: Vec<Block> = Vec::new();
        for (what, bytes, stream) in steps {
            match what {
                0..=5 => live.extend(pools[usize::from(what % 3)].allocate(bytes, s(stream)).ok()),
                6..=8 if !live.is_empty() => drop(live.swap_remove(bytes as usize % live.len())),
                9 => drop(allocator.trim_to(bytes).unwrap()),
                10 => streams.complete(s(stream)),
                11 => readers[1].catch_up(&allocator),
                _ => {}
            }
            readers[0].catch_up(&allocator);
        }
        let mut now = Reader::default();
        now.begin(&allocator.snapshot().unwrap());
        for reader in &mut readers {
            reader.catch_up(&allocator);
            prop_assert_eq!(&reader.segments, &now.segments);
        }
    }
}

#[test]
fn who_asks_for_what_is_not_kept_gets_a_snapshot() {
    let Bench { allocator, .. } = bench(u64::MAX, Settings { structural_entries: 2, ..tight() });
    assert!(matches!(allocator.since(0).unwrap(), Since::Entries(entries) if entries.is_empty()));
    assert!(matches!(allocator.since(1).unwrap(), Since::TooOld(_)), "what has not been yet");
    let blocks: Vec<Block> = (1..4).map(|n| allocator.allocate(4 * MIB * n, s(n)).unwrap()).collect();
    let Since::TooOld(snapshot) = allocator.since(0).unwrap() else { panic!("two of three are kept") };
    check_tiling(&snapshot);
    assert_eq!((snapshot.generation, snapshot.segments.len()), (3, blocks.len()));
    let Since::Entries(entries) = allocator.since(1).unwrap() else { panic!("two are kept") };
    assert_eq!(entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [2, 3]);
}

#[derive(Default)]
struct Seen(Mutex<Vec<(u32, ActionKind)>>, AtomicU32);

impl Tracker for Seen {
    fn name(&self) -> &str {
        "seen"
    }

    fn attached(&self, _: &Snapshot) -> Result<(), TrackerError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        self.0.lock().unwrap().extend(entries.iter().map(|entry| (entry.device, entry.action.kind())));
        Ok(())
    }
}

#[test]
fn one_tracker_follows_the_devices_that_its_filter_names() {
    let allocators = [0, 1].map(|device| {
        let source = Arc::new(HostSource::new(u64::MAX).on_device(device));
        Allocator::new(source, Arc::new(HostStreams::new()), tight())
    });
    for (filter, wanted) in [
        (Filter::all(), vec![(0, ActionKind::SegmentAlloc), (1, ActionKind::SegmentAlloc)]),
        (Filter::all().on_device(1), vec![(1, ActionKind::SegmentAlloc)]),
        (Filter::only(&[ActionKind::Alloc]).on_device(0), vec![(0, ActionKind::Alloc)]),
    ] {
        let seen = Arc::new(Seen::default());
        let attachments = allocators.each_ref().map(|a| a.attach(seen.clone(), filter).unwrap());
        let devices = wanted.iter().map(|(device, _)| device).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(seen.1.load(Ordering::Relaxed) as usize, devices.len(), "snapshots of those alone");
        for allocator in &allocators {
            // Needs a segment of its own each time.
            let big = allocator.stats().reserved.peak + 4 * MIB;
            drop(allocator.allocate(big, s(1)).unwrap());
            // Taking a snapshot delivers the waiting entries.
            allocator.snapshot().unwrap();
        }
        attachments.into_iter().for_each(|attachment| attachment.detach().unwrap());
        let mut seen = seen.0.lock().unwrap().clone();
        assert!(seen.iter().all(|(device, _)| devices.contains(device)), "{seen:?}");
        seen.retain(|entry| wanted.contains(entry));
        assert_eq!(seen, wanted);
    }
}

#[test]
fn an_observer_may_free_and_ask_for_another_try() {
    let Bench { allocator, .. } = bench(16 * MIB, tight());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::new(AtomicU32::new(0));
    let observation = {
        let (kept, asked, inside) = (kept.clone(), asked.clone(), allocator.clone());
        allocator.on_out_of_memory(move |figures| {
            asked.fetch_add(1, Ordering::Relaxed);
            assert_eq!((figures.wanted, figures.reserved), (10 * MIB, 12 * MIB));
            // No lock is held here, and no observer is called for an observer's own request.
            inside.empty_cache().unwrap();
            assert!(inside.allocate(15 * MIB, s(2)).is_err());
            let freed: Option<Block> = kept.lock().unwrap().pop();
            if freed.is_some() { OomAction::Retry } else { OomAction::GiveUp }
        })
    };
    kept.lock().unwrap().push(allocator.allocate(12 * MIB, s(1)).unwrap());
    let block = allocator.allocate(10 * MIB, s(1)).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // The observer's own request failed; this one did not.
    assert_eq!(allocator.stats().out_of_memory, 1);
    drop(block);
    let keep = allocator.allocate(12 * MIB, s(1)).unwrap();
    assert!(matches!(allocator.allocate(10 * MIB, s(1)), Err(AllocError::OutOfMemory(_))));
    assert_eq!((asked.load(Ordering::Relaxed), allocator.stats().out_of_memory), (2, 3));
    drop(observation);
    assert!(allocator.allocate(10 * MIB, s(1)).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 2, "it is not asked any more");
    drop(keep);
    assert!(allocator.faults().is_empty(), "{:?}", allocator.faults());
}

#[test]
fn one_more_try_is_all_that_observers_get() {
    let Bench { allocator, .. } = bench(MIB, tight());
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let _liar = allocator.on_out_of_memory(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        OomAction::Retry
    });
    assert!(allocator.allocate(4 * MIB, s(1)).is_err());
    let remapped = pool(&allocator, PoolKind::Remappable);
    assert!(remapped.allocate(4 * MIB, s(1)).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn an_observer_that_panics_is_a_fault_and_the_others_are_told() {
    let Bench { allocator, .. } = bench(16 * MIB, tight());
    let kept = Arc::new(Mutex::new(Some(allocator.allocate(12 * MIB, s(1)).unwrap())));
    let _panics = allocator.on_out_of_memory(|_| panic!("what now"));
    let given = kept.clone();
    let _frees = allocator.on_out_of_memory(move |_| {
        given.lock().unwrap().take().map_or(OomAction::GiveUp, |_| OomAction::Retry)
    });
    assert!(allocator.allocate(10 * MIB, s(1)).is_ok());
    let faults = allocator.faults();
    assert!(
        matches!(&faults[..], [Fault::ObserverPanicked { message }] if message == "what now"),
        "{faults:?}"
    );
}

#[test]
fn peaks_and_totals_begin_anew() {
    let Bench { allocator, streams, .. } = bench(u64::MAX, tight());
    let private = pool(&allocator, PoolKind::Cached);
    let keep = [allocator.allocate(MIB, s(1)).unwrap(), private.allocate(3 * MIB, s(2)).unwrap()];
    streams.enqueue(s(3));
    keep[1].record_stream(s(3)).unwrap();
    drop(allocator.allocate(20 * MIB, s(1)).unwrap());
    allocator.empty_cache().unwrap();
    let [_, lent] = keep;
    drop(lent);
    allocator.reset_peaks();
    let stats = allocator.stats();
    for gauge in [stats.reserved, stats.segments, stats.all.blocks, stats.all.allocated, stats.all.active] {
        assert_eq!(gauge.peak, gauge.current);
        assert!(gauge.total > gauge.current);
    }
    assert_eq!(stats.all.active.peak, stats.all.allocated.current + 3 * MIB, "what is pending counts");
    assert_eq!(stats.large.active.peak, 3 * MIB);
    allocator.reset_totals();
    let stats = allocator.stats();
    for gauge in [stats.reserved, stats.all.blocks, stats.all.allocated, stats.all.active, stats.large.active]
    {
        assert_eq!(gauge.total, gauge.current);
    }
    assert_eq!(stats.large.active.total, 3 * MIB, "what is pending counts");
    assert_eq!((stats.source_allocations, stats.calls), (0, SourceCalls::default()));
    drop(allocator.allocate(2 * MIB, s(1)).unwrap());
    assert_eq!(allocator.stats().all.blocks.total, stats.all.blocks.current + 1);
    private.reset_peaks();
    private.reset_totals();
    assert_eq!(private.stats().reserved.peak, private.stats().reserved.current);
}

#[test]
fn every_call_of_a_source_is_counted() {
    let Bench { source, allocator, streams } = bench(24 * MIB, tight());
    let pools = [allocator.default_pool().clone(), pool(&allocator, PoolKind::Remappable)];
    let mut live: Vec<Block> = Vec::new();
    for round in 0..80u64 {
        live.extend(pools[(round % 2) as usize].allocate((round * 7 % 5 + 1) * MIB, s(round % 3)).ok());
        if round % 3 == 0 {
            live.swap_remove((round * 5) as usize % live.len());
        }
        if round % 20 == 19 {
            live.clear();
            (0..3).for_each(|stream| streams.complete(s(stream)));
            allocator.trim_to(round * MIB / 8).unwrap();
        }
    }
    let (ours, theirs) = (allocator.stats().calls, source.calls());
    assert!(
        ours.map > 0 && ours.unmap > 0 && ours.allocate > 0 && ours.release > 0 && ours.reserve > 0,
        "{ours:?}"
    );
    let SourceCalls { allocate, release, create, discard, map, enable, unmap, .. } = ours;
    assert_eq!(
        [allocate, release, create, discard, map, enable, unmap],
        [
            theirs.allocate,
            theirs.release,
            theirs.create,
            theirs.discard,
            theirs.map,
            theirs.enable,
            theirs.unmap
        ]
    );
}

#[test]
fn memory_has_owners() {
    let Bench { source, allocator, .. } = bench(100 * MIB, tight());
    assert!(allocator.stats().fragmentation().abs() < f64::EPSILON);
    let other = Allocator::new(source, Arc::new(HostStreams::new()), tight());
    let _theirs = other.allocate(30 * MIB, s(1)).unwrap();
    let block = allocator.allocate(MIB, s(1)).unwrap();
    let _more = allocator.allocate(3 * MIB, s(2)).unwrap();
    let report = allocator.memory_report().unwrap();
    assert_eq!((report.total, report.foreign, report.active), (100 * MIB, 30 * MIB, 4 * MIB));
    assert_eq!(report.free, 70 * MIB - report.reserved);
    let unused = 1.0 - 4.0 * MIB as f64 / report.reserved as f64;
    assert!((allocator.stats().fragmentation() - unused).abs() < 1e-9);
    let by_stream = allocator.usage_by_stream();
    let allocated = |stream| by_stream.iter().find(|(of, _)| *of == stream).unwrap().1.allocated.current;
    assert_eq!([allocated(s(1)), allocated(s(2))], [block.bytes(), 3 * MIB]);
    assert!(Fraction::new(0.3).unwrap().of(report.total) == report.foreign);
}

/// Runs `call` on a thread, and fails if it hangs.
fn finishes<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    result.recv_timeout(Duration::from_secs(60)).expect("the call neither hangs nor panics")
}

#[test]
fn an_address_that_names_no_raw_block_is_refused_by_every_call() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let raw = allocator.allocate_raw(3 * MIB, s(1)).unwrap();
    let owned = allocator.allocate(MIB, s(1)).unwrap();
    let address = owned.address();
    for (asked, error) in [
        (raw + 512, RawError::Inside { address: raw + 512, begin: raw }),
        (address, RawError::Owned { address }),
        (42, RawError::Foreign { address: 42 }),
    ] {
        let here = allocator.clone();
        assert_eq!(finishes(move || here.with_raw(asked, Block::bytes)), Err(error));
        assert_eq!(allocator.release_raw(asked), Err(error));
    }
}

#[test]
fn whoever_looks_at_a_raw_block_may_use_raw_blocks() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let raw = allocator.allocate_raw(MIB, s(1)).unwrap();
    let here = allocator.clone();
    let other = finishes(move || {
        let look = |block: &Block| {
            here.release_raw(raw).unwrap();
            let other = here.allocate_raw(MIB, s(1)).unwrap();
            assert_ne!(other, block.address(), "it is freed when nobody looks at it any more");
            // The block is still in use by this call, but was released.
            assert_eq!(here.release_raw(raw), Err(RawError::Free { address: raw }));
            assert_eq!(here.release_raw(raw + 512), Err(RawError::Free { address: raw + 512 }));
            other
        };
        here.with_raw(raw, look).unwrap()
    });
    assert_eq!(allocator.allocate(MIB, s(1)).unwrap().address(), raw);
    allocator.release_raw(other).unwrap();
}

#[test]
fn a_raw_block_is_given_back_once_by_its_address() {
    let settings = Settings { replace_idle: false, ..tight() };
    let Bench { allocator, streams, .. } = bench(u64::MAX, settings);
    let raw = allocator.allocate_raw(3 * MIB, s(1)).unwrap();
    let owned = allocator.allocate(MIB, s(1)).unwrap();
    streams.enqueue(s(2));
    assert_eq!(
        allocator.with_raw(raw, |block| block.record_stream(s(2)).map(|()| block.bytes())).unwrap().unwrap(),
        3 * MIB
    );
    assert_eq!(allocator.release_raw(raw + 512), Err(RawError::Inside { address: raw + 512, begin: raw }));
    let address = owned.address();
    assert_eq!(allocator.release_raw(address), Err(RawError::Owned { address }));
    assert_eq!(allocator.release_raw(42), Err(RawError::Foreign { address: 42 }));
    allocator.release_raw(raw).unwrap();
    assert_eq!(allocator.release_raw(raw), Err(RawError::Free { address: raw }), "stream 2 still uses it");
    streams.complete(s(2));
    drop(allocator.allocate(30 * MIB, s(1)).unwrap());
    assert_eq!(allocator.release_raw(raw), Err(RawError::Free { address: raw }));
    assert!(matches!(allocator.with_raw(raw, Block::bytes), Err(RawError::Free { .. })));
    drop(owned);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.release_raw(raw), Err(RawError::Foreign { address: raw }));
}

#[test]
fn entries_show_the_request_of_their_block() {
    let allocator = bench(u64::MAX, tight()).allocator;
    let mut wanted = Vec::new();
    for name in [Some("first"), None, Some("third")] {
        let name = name.map(Name::new);
        // The same memory, requested in two places.
        let block = match name {
            Some(name) => allocator.allocate_named(1000, s(1), name),
            None => allocator.allocate(1000, s(1)),
        }
        .unwrap();
        assert_eq!(block.name(), name);
        // Handed out, free requested, free completed.
        wanted.extend([(name, block.call_site()); 3]);
    }
    let trace = allocator.snapshot().unwrap().trace;
    let shown = trace.iter().filter_map(|entry| match &entry.action {
        Action::Alloc(span) | Action::FreeRequested(span) | Action::FreeCompleted(span) => {
            Some((span.request.name, span.request.call_site))
        }
        _ => None,
    });
    assert_eq!(shown.collect::<Vec<_>>(), wanted);
    let lines: HashSet<u32> = wanted.iter().map(|(_, site)| site.line()).collect();
    assert_eq!(lines.len(), 2, "the two places");
}

#[test]
fn what_has_no_handle_is_not_exported() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let block = allocator.allocate(3 * MIB, s(1)).unwrap();
    let error = block.export(ShareKind::PosixFd, "peer").unwrap_err();
    assert!(
        matches!(error, ExportError::Source { source: SourceError::NotExportable { .. }, .. }),
        "{error}"
    );
    assert!(block.segment().holders().is_empty());
}
