//! `LoggingSource`: each call of a source is one record with its outcome, whatever fails, and no sink changes a
//! result.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use caching_alloc::core::{
    Allocator, Block, Filter, PageSource, SegmentSource, Settings, ShareKind, SourceError,
};
use caching_alloc::driver::{DriverSource, Sharing, VirtualMemorySource};
use caching_alloc::host::{Failing, HostSource, HostStreams, SourceCall};
use caching_alloc::sources::{
    CallOutcome, CallSink, CsvSink, LimitingSource, LoggedCall, LoggingSource, SinkError, SourceMethod,
};

use super::common::{MIB, s, tight};
use super::driver::on_devices;

const CAPACITY: u64 = 64 * MIB;

/// Keeps the calls, for a test.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<LoggedCall>>);

impl Kept {
    fn calls(&self) -> Vec<LoggedCall> {
        self.0.lock().unwrap().clone()
    }
}

impl CallSink for Kept {
    fn record(&self, call: &LoggedCall) -> Result<(), SinkError> {
        self.0.lock().unwrap().push(call.clone());
        Ok(())
    }
}

/// The adapters of most tests: the log is above the limit.
type Stack<L> = LoggingSource<LimitingSource<Arc<HostSource>>, L>;

fn stack<L: CallSink>(sink: L) -> (Arc<HostSource>, Arc<Stack<L>>) {
    let host = Arc::new(HostSource::new(CAPACITY));
    let source = LoggingSource::new(LimitingSource::new(host.clone(), CAPACITY / 2), sink);
    (host, Arc::new(source))
}

/// Makes the allocator.
type Make = fn(Arc<dyn SegmentSource>, Settings) -> Allocator;

fn fixed(source: Arc<dyn SegmentSource>, settings: Settings) -> Allocator {
    Allocator::new(source, Arc::new(HostStreams::new()), settings)
}

fn remapping(source: Arc<dyn SegmentSource>, settings: Settings) -> Allocator {
    Allocator::remapping(source, Arc::new(HostStreams::new()), settings).unwrap()
}

/// Lets the allocator grow, split blocks, move pages, run out of memory and release memory. Returns the results of
/// the requests, without addresses.
fn scenario(allocator: &Allocator) -> Vec<Result<u64, String>> {
    let mut live: Vec<Block> = Vec::new();
    let mut results = Vec::new();
    for round in 0..24u64 {
        let bytes = [3 * MIB, MIB / 2, 5 * MIB, 7 * MIB][(round % 4) as usize] + round * 4096;
        match allocator.allocate(bytes, s(round % 2)) {
            Ok(block) => {
                results.push(Ok(block.bytes()));
                live.push(block);
            }
            Err(error) => results.push(Err(error.to_string())),
        }
        if round % 3 != 0 && !live.is_empty() {
            live.swap_remove((round * 5) as usize % live.len());
        }
        if round == 11 {
            _ = allocator.trim_to(8 * MIB).unwrap();
        }
    }
    let too_much = allocator.allocate(CAPACITY, s(1));
    results.push(too_much.map(|block| block.bytes()).map_err(|error| error.to_string()));
    drop(live);
    _ = allocator.empty_cache().unwrap();
    results
}

fn method_of(call: SourceCall) -> Option<SourceMethod> {
    Some(match call {
        SourceCall::Allocate => SourceMethod::Allocate,
        SourceCall::Release => SourceMethod::Release,
        SourceCall::Reserve => SourceMethod::Reserve,
        SourceCall::Create => SourceMethod::Create,
        SourceCall::Discard => SourceMethod::Discard,
        SourceCall::Map => SourceMethod::Map,
        SourceCall::Enable => SourceMethod::Enable,
        SourceCall::Unmap => SourceMethod::Unmap,
        SourceCall::MemoryInfo => return None,
    })
}

/// Replays the records, and checks that they agree with each other. Returns the number of bytes that are allocated at
/// their end.
fn replay(calls: &[LoggedCall]) -> u64 {
    let (mut segments, mut pages) = (HashMap::new(), HashMap::new());
    let mut ranges = HashMap::new();
    for call in calls {
        let known = |what: Option<u64>| what.expect("a call that succeeded names its memory");
        if !call.outcome.is_success() {
            let returns = [SourceMethod::Allocate, SourceMethod::Reserve, SourceMethod::Create];
            assert!(!returns.contains(&call.method) || (call.address, call.token) == (None, None));
            continue;
        }
        match call.method {
            SourceMethod::Allocate => {
                assert_eq!(segments.insert(known(call.address), call.bytes), None, "{call}");
            }
            SourceMethod::Release => {
                let segment = segments.remove(&known(call.address));
                let page = || pages.remove(&known(call.token));
                assert_eq!(segment.or_else(page), Some(call.bytes), "{call}");
            }
            SourceMethod::Create => {
                assert_eq!(pages.insert(known(call.token), call.bytes), None, "{call}");
            }
            SourceMethod::Discard => assert_eq!(pages.remove(&known(call.token)), Some(call.bytes), "{call}"),
            SourceMethod::Map => {
                assert_eq!(pages.get(&known(call.token)), Some(&call.bytes), "{call}");
            }
            SourceMethod::Reserve => _ = ranges.insert(known(call.address), call.bytes),
            SourceMethod::Unreserve => {
                assert_eq!(ranges.remove(&known(call.address)), Some(call.bytes), "{call}");
            }
            _ => {}
        }
    }
    segments.values().chain(pages.values()).sum()
}

/// Checks the log of a run against the source's own counts.
fn check(host: &HostSource, source: &Stack<Kept>) {
    let calls = source.sink().calls();
    let count = |method, refused: bool| {
        let of_method = calls.iter().filter(|call| call.method == method);
        of_method.filter(|call| refused || call.outcome != CallOutcome::OutOfMemory).count() as u64
    };
    for call in SourceCall::ALL {
        let Some(method) = method_of(call) else { continue };
        // The limit refuses requests without a call of the source, and a page's release unmaps and discards.
        let (least, most) = (count(method, false), count(method, true));
        match call {
            SourceCall::Unmap | SourceCall::Discard => assert!(host.made(call) >= most, "{call:?}"),
            _ => assert!((least..=most).contains(&host.made(call)), "{call:?}"),
        }
    }
    let live = host.calls().live_bytes;
    assert_eq!((replay(&calls), source.upstream().allocated()), (live, live));
    assert_eq!((source.lost(), host.calls().broken), (0, 0));
    for call in &calls {
        assert_eq!(call.device, 0);
        assert!(call.bytes.is_multiple_of(2 * MIB), "{call}");
    }
}

fn every_call_is_logged_when_one_fails(make: Make) {
    let (host, source) = stack(Kept::default());
    scenario(&make(source.clone(), tight()));
    check(&host, &source);
    let refused = source.sink().calls();
    assert!(refused.iter().any(|call| call.outcome == CallOutcome::OutOfMemory), "the limit is logged");
    assert!(!refused.iter().any(|call| matches!(call.outcome, CallOutcome::Failed(_))));

    for call in SourceCall::ALL {
        for index in 0..host.made(call) {
            for scarce in [false, true] {
                println!("{call:?} {index} {scarce}");
                let (host, source) = stack(Kept::default());
                let failing = Failing::once(index);
                host.fail(call, if scarce { failing.for_want_of_memory() } else { failing });
                let allocator = make(source.clone(), tight());
                scenario(&allocator);
                check(&host, &source);
                drop(allocator);
                let Some(method) = method_of(call) else { continue };
                let calls = source.sink().calls();
                if host.failed() > 0 && !scarce {
                    // The release of a mapped page is one record, even if the unmapping or discarding inside it
                    // failed.
                    let failed = calls.iter().filter(|logged| {
                        let same = logged.method == method || logged.method == SourceMethod::Release;
                        same && matches!(&logged.outcome, CallOutcome::Failed(why) if why.contains("injected failure"))
                    });
                    assert_eq!(failed.count(), 1, "{calls:?}");
                }
            }
        }
    }
}

#[test]
fn every_call_for_fixed_segments_is_logged_when_one_fails() {
    every_call_is_logged_when_one_fails(fixed);
}

#[test]
fn every_call_for_pages_is_logged_when_one_fails() {
    every_call_is_logged_when_one_fails(remapping);
}

/// A sink that loses three of four records: by an error, by a panic, and by a panic whose payload panics when it is
/// dropped.
#[derive(Default)]
struct Unreliable(AtomicU64);

/// A panic's payload whose drop panics too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a payload's drop panics");
    }
}

impl CallSink for Unreliable {
    fn record(&self, _call: &LoggedCall) -> Result<(), SinkError> {
        match self.0.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Err("told to fail".into()),
            1 => panic!("told to panic"),
            2 => std::panic::panic_any(Bomb),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_sink_that_fails_or_panics_changes_no_result() {
    for make in [fixed as Make, remapping] {
        let (host, source) = stack(Kept::default());
        let (other_host, unreliable) = stack(Unreliable::default());
        let [first, second] =
            [make(source.clone(), tight()), make(unreliable.clone(), tight())].map(|allocator| {
                let results = scenario(&allocator);
                assert!(allocator.faults().is_empty());
                results
            });
        assert_eq!(first, second);
        assert_eq!(host.calls(), other_host.calls());
        let records = unreliable.sink().0.load(Ordering::Relaxed);
        assert_eq!(unreliable.lost(), records - records / 4);
    }
}

#[test]
fn a_csv_log_has_a_header_and_a_line_for_each_call() {
    let source = Arc::new(LoggingSource::new(HostSource::new(CAPACITY), CsvSink::new(Vec::new()).unwrap()));
    let allocator = fixed(source.clone(), tight());
    let attachment = allocator.attach(Arc::new(Quiet), Filter::structural()).unwrap();
    scenario(&allocator);
    drop((attachment, allocator));
    let source = Arc::into_inner(source).expect("nothing else keeps the source");
    let made = source.upstream().calls();
    let log = source.into_parts().1.into_inner();
    let log = String::from_utf8(log).unwrap();
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some(LoggedCall::CSV_HEADER));
    let methods = |name: &str| {
        let field = |line: &&str| line.split(',').nth(3) == Some(name);
        log.lines().filter(field).count() as u64
    };
    assert_eq!((methods("allocate"), methods("release")), (made.allocate, made.release));
    assert_eq!(lines.count() as u64, made.allocate + made.release);
}

/// A tracker that ignores all entries.
struct Quiet;

impl caching_alloc::core::Tracker for Quiet {
    fn name(&self) -> &str {
        "quiet"
    }

    fn observe(
        &self,
        _entries: &[caching_alloc::core::Entry],
    ) -> Result<(), caching_alloc::core::TrackerError> {
        Ok(())
    }
}

#[test]
fn a_writer_that_fails_loses_lines_and_no_memory() {
    /// A writer that fails after the first line, which is the header.
    struct Full(bool);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0 = bytes.ends_with(b"\n");
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let source = LoggingSource::new(HostSource::new(CAPACITY), CsvSink::new(Full(false)).unwrap());
    let segment = source.allocate(2 * MIB).unwrap();
    source.release(&segment).unwrap();
    assert_eq!((source.lost(), source.upstream().calls().live_bytes), (2, 0));
}

#[test]
fn a_line_after_an_incomplete_one_begins_anew() {
    /// A writer whose second line fails after 10 bytes.
    #[derive(Default)]
    struct Short {
        text: Vec<u8>,
        calls: u32,
    }
    impl std::io::Write for Short {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.calls += 1;
            match self.calls {
                3 => self.text.write(&bytes[..10]),
                4 => Err(std::io::ErrorKind::StorageFull.into()),
                _ => self.text.write(bytes),
            }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // `writeln!` writes the header by two calls.
    let source = LoggingSource::new(HostSource::new(CAPACITY), CsvSink::new(Short::default()).unwrap());
    let segment = source.allocate(2 * MIB).unwrap();
    source.release(&segment).unwrap();
    assert_eq!(source.lost(), 1);
    let written = String::from_utf8(source.into_parts().1.into_inner().text).unwrap();
    let columns: Vec<usize> = written.lines().map(|line| line.split(',').count()).collect();
    assert_eq!((columns.len(), columns[0]), (3, columns[2]), "{written}");
}

#[test]
fn threads_log_while_others_log() {
    let source = Arc::new(LoggingSource::new(HostSource::new(1 << 40), Kept::default()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let segment = source.allocate(2 * MIB).unwrap();
                    source.release(&segment).unwrap();
                }
            });
        }
    });
    let calls = source.sink().calls();
    assert_eq!(calls.len(), 1600);
    let mut by_thread: HashMap<_, usize> = HashMap::new();
    calls.iter().for_each(|call| *by_thread.entry(call.thread).or_default() += 1);
    assert!(by_thread.len() == 4 && by_thread.values().all(|count| *count == 400));
}

/// The adapters over sources of the driver: exports and pages pass through, and a source without pages stays one.
#[test]
fn exports_and_pages_of_the_driver_pass_through_the_adapters() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let memory = VirtualMemorySource::new(context, Sharing::by_descriptor()).unwrap();
        let source = LoggingSource::new(LimitingSource::new(memory, 8 * MIB), Kept::default());
        assert!(source.is_exportable());
        assert_eq!(source.granularity(), source.upstream().upstream().granularity());
        let segment = source.allocate(2 * MIB).unwrap();
        source.export(&segment, ShareKind::PosixFd).unwrap();
        let refused = source.export(&segment, ShareKind::Fabric).unwrap_err();
        assert!(matches!(refused, SourceError::NotExportable { .. }));
        source.release(&segment).unwrap();
        let calls = source.sink().calls();
        let exports: Vec<_> = calls.iter().filter(|call| call.method == SourceMethod::Export).collect();
        assert_eq!(exports.len(), 2);
        assert!(exports.iter().all(|call| call.address == Some(segment.address)));
        assert!(exports[0].outcome.is_success() && !exports[1].outcome.is_success());

        let pages = source.as_pages().expect("virtual memory has pages");
        let base = pages.reserve(4 * MIB).unwrap();
        let token = pages.create(2 * MIB).unwrap();
        let page = caching_alloc::core::SegmentMemory { address: base, bytes: 2 * MIB, token };
        pages.map(&page).unwrap();
        pages.enable(base, 2 * MIB).unwrap();
        assert_eq!(source.upstream().allocated(), 2 * MIB);
        pages.unmap(base, 2 * MIB).unwrap();
        pages.discard(token, 2 * MIB).unwrap();
        pages.unreserve(base, 4 * MIB);
        assert_eq!(source.upstream().allocated(), 0);
        replay(&source.sink().calls());

        let plain = LoggingSource::new(LimitingSource::new(DriverSource::new(context), MIB), Kept::default());
        assert!(plain.as_pages().is_none() && !plain.is_exportable());
        assert!(plain.reserve(2 * MIB).is_err());
        plain.unreserve(0, 2 * MIB);
    });
}
