//! Re-mappable pools over the driver's virtual memory, on the simulated device of `gpu_sim`. A process can have one
//! `World`, a simulated machine, at a time, so tests take turns.

use std::collections::VecDeque;
use std::sync::Arc;

use caching_alloc::core::{
    AllocError, Allocator, Block, PageSource, PoolSettings, SegmentMemory, SegmentSource, Settings,
    SourceError, StreamId,
};
use caching_alloc::driver::{DriverEvents, Sharing, VirtualMemorySource};
use cuda_driver::graph::CaptureMode;
use cuda_driver::{Context, DevicePtr, Stream, StreamFlags};
use gpu_sim::{Action, Injection};

use super::common::{MIB, check_tiling};
use super::driver::{CAPACITY, in_a_world, on_devices};

/// The error code of injected failures, which no driver function returns.
const INJECTED: u32 = 99_999;

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// An allocator over pages, with three streams. [`fill`](Self::fill) allocates a block and fills it on its stream.
/// [`check`](Self::check) checks the contents of a block and frees it.
struct Bench {
    context: Context,
    streams: Vec<(Stream, StreamId)>,
    allocator: Allocator,
    next: u8,
}

/// A block, the index of its stream in [`Bench::streams`], and the byte that fills it.
struct Filled {
    block: Block,
    stream: usize,
    byte: u8,
}

impl Bench {
    fn new(context: &Context) -> Result<Self, Box<dyn std::error::Error>> {
        let events = DriverEvents::new(context);
        let streams = (0..3)
            .map(|_| {
                let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
                let id = events.register(&stream);
                Ok((stream, id))
            })
            .collect::<cuda_driver::Result<_>>()?;
        let source = VirtualMemorySource::new(context, Sharing::none())?;
        let settings = Settings { quick_list_bytes: MIB, ..Settings::default() };
        let allocator = Allocator::remapping(Arc::new(source), Arc::new(events), settings)?;
        Ok(Self { context: context.clone(), streams, allocator, next: 0 })
    }

    /// Allocates a block, and enqueues a fill of it on its stream.
    fn fill(&mut self, bytes: u64, stream: usize) -> Result<Filled, Box<dyn std::error::Error>> {
        let (queue, id) = &self.streams[stream];
        let block = self.allocator.allocate(bytes, *id)?;
        self.next = self.next % 250 + 1;
        // SAFETY: the block is freed in the order of the same stream.
        unsafe { queue.fill_u8(DevicePtr(block.address()), self.next, size(block.bytes()))? };
        Ok(Filled { block, stream, byte: self.next })
    }

    /// Waits for a block's stream, checks every byte of the block, and frees the block.
    fn check(&self, filled: Filled) -> cuda_driver::Result<()> {
        let Filled { block, stream, byte } = filled;
        self.streams[stream].0.synchronize()?;
        let mut bytes = vec![0u8; size(block.bytes())];
        // SAFETY: the block is alive, and its work is done.
        unsafe { self.context.copy_to_host(&mut bytes, DevicePtr(block.address()))? };
        // Slices are compared first, which is fast without optimisation too.
        if bytes != vec![byte; bytes.len()] {
            let wrong = bytes.iter().position(|found| *found != byte);
            panic!("byte {wrong:?} of {block:?} is wrong: all should be {byte}");
        }
        Ok(())
    }
}

/// Allocates blocks of rising sizes on three streams. No freed block is long enough for the next one, so idle pages
/// must move.
fn rise(bench: &mut Bench) -> Result<(), Box<dyn std::error::Error>> {
    let mut live = VecDeque::new();
    for step in 0..24u64 {
        let bytes = (2 + step / 2) * MIB - step * 4096;
        live.push_back(bench.fill(bytes, usize::try_from(step % 3)?)?);
        if live.len() > 3 {
            bench.check(live.remove(usize::try_from(step)? % 2).ok_or("there are three")?)?;
        }
    }
    live.into_iter().try_for_each(|filled| bench.check(filled))?;
    Ok(())
}

#[test]
fn blocks_keep_what_was_put_there_while_pages_move() {
    on_devices(1, |world, contexts| {
        let mut bench = Bench::new(&contexts[0]).unwrap();
        for _ in 0..3 {
            rise(&mut bench).unwrap();
        }
        check_tiling(&bench.allocator.snapshot().unwrap());
        let stats = bench.allocator.stats();
        assert!(stats.remapped > 0, "something moved: {stats:?}");
        assert!(stats.reserved.peak <= CAPACITY && stats.all.allocated.current == 0, "{stats:?}");
        // Several neighbouring pages are enabled, and unmapped, by one call.
        let calls = ["cuMemMap", "cuMemSetAccess", "cuMemUnmap"].map(|function| world.calls(function));
        assert!(calls[1] < calls[0] && calls[2] < calls[0], "{calls:?}");
        assert_eq!(bench.allocator.empty_cache().unwrap(), stats.reserved.current);
        let faults = bench.allocator.faults();
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(contexts[0].memory_info().unwrap().0 as u64, CAPACITY);
    });
}

/// Makes `count` pages of 2 MiB, maps them next to each other from `base` on, and enables them. Returns their memory.
fn map_pages(source: &dyn PageSource, base: u64, count: u64) -> Vec<SegmentMemory> {
    let pages = (0..count).map(|at| SegmentMemory {
        address: base + at * 2 * MIB,
        bytes: 2 * MIB,
        token: source.create(2 * MIB).unwrap(),
    });
    let pages: Vec<SegmentMemory> = pages.collect();
    pages.iter().for_each(|page| source.map(page).unwrap());
    source.enable(base, count * 2 * MIB).unwrap();
    pages
}

#[test]
fn a_page_is_the_same_at_its_old_addresses_and_its_new_ones() {
    on_devices(1, |world, contexts| {
        let source = VirtualMemorySource::new(&contexts[0], Sharing::none()).unwrap();
        let pages = source.as_pages().unwrap();
        let base = pages.reserve(256 << 30).unwrap();
        let old = map_pages(pages, base, 3);
        // Maps the pages once more, in reverse order, behind the old addresses.
        let moved = old
            .iter()
            .rev()
            .zip(3..)
            .map(|(page, at)| SegmentMemory { address: base + at * 2 * MIB, ..*page });
        let moved: Vec<SegmentMemory> = moved.collect();
        moved.iter().for_each(|page| pages.map(page).unwrap());
        pages.enable(base + 6 * MIB, 6 * MIB).unwrap();
        let words: Vec<u32> = (0..3 * 2 * MIB as u32 / 4).collect();
        let mut found = vec![0u32; words.len()];
        // SAFETY: three pages are mapped at each of the two places, and nothing else uses them.
        unsafe {
            contexts[0].copy_from_host(DevicePtr(base), &words).unwrap();
            contexts[0].copy_to_host(&mut found, DevicePtr(base + 6 * MIB)).unwrap();
        }
        let turned: Vec<u32> = words.rchunks(words.len() / 3).flatten().copied().collect();
        assert!(found == turned);

        pages.unmap(base, 6 * MIB).unwrap();
        assert_eq!(["cuMemSetAccess", "cuMemUnmap"].map(|function| world.calls(function)), [2, 1]);
        assert!(source.physical(base).is_none());
        assert_eq!(source.physical(base + 6 * MIB).unwrap().raw(), moved[0].token);
        // The addresses are released with the last page.
        pages.unreserve(base, 256 << 30);
        for page in moved {
            assert_eq!(world.calls("cuMemAddressFree"), 0);
            source.release(&page).unwrap();
        }
        assert_eq!(["cuMemRelease", "cuMemAddressFree"].map(|function| world.calls(function)), [3, 1]);
    });
}

#[test]
fn what_is_no_page_of_the_source_is_a_typed_error() {
    on_devices(2, |_, contexts| {
        let source = VirtualMemorySource::new(&contexts[0], Sharing::none()).unwrap();
        let pages = source.as_pages().unwrap();
        let base = pages.reserve(16 * MIB).unwrap();
        let page = map_pages(pages, base, 1)[0];
        let refused: [(&str, Result<(), SourceError>); 9] = [
            ("a page that is not there", pages.map(&SegmentMemory { token: 0xbad, ..page })),
            ("another length", pages.map(&SegmentMemory { bytes: 4 * MIB, ..page })),
            ("addresses of nobody", pages.map(&SegmentMemory { address: 2 * MIB, ..page })),
            ("past the end", pages.enable(base + 14 * MIB, 4 * MIB)),
            ("wrapping around", pages.enable(base, u64::MAX)),
            ("what is mapped", pages.map(&page)),
            ("what is not mapped", pages.unmap(base + 2 * MIB, 2 * MIB)),
            ("more than is mapped", pages.unmap(base, 4 * MIB)),
            ("a segment that never was", source.release(&SegmentMemory { token: 0xbad, ..page })),
        ];
        for (what, outcome) in refused {
            assert!(matches!(outcome, Err(SourceError::Failed { .. })), "{what}: {outcome:?}");
        }
        match pages.create(2 * CAPACITY) {
            Err(SourceError::OutOfMemory { wanted, .. }) => assert_eq!(wanted, 2 * CAPACITY),
            other => panic!("{other:?}"),
        }
        source.release(&page).unwrap();
        source.release(&page).expect_err("it was taken back");
        pages.unreserve(base, 16 * MIB);
        pages.enable(base, 2 * MIB).expect_err("the addresses are gone");

        // Memory that peers access cannot move.
        let shared = Sharing::none().with_peers([contexts[1].device().clone()]);
        let shared = Arc::new(VirtualMemorySource::new(&contexts[0], shared).unwrap());
        let events = Arc::new(DriverEvents::new(&contexts[0]));
        let refused = Allocator::remapping(shared, events, Settings::default()).unwrap_err();
        assert!(matches!(refused, AllocError::NoPages), "{refused}");
    });
}

#[test]
fn pages_come_and_go_while_a_stream_captures() {
    on_devices(1, |_, contexts| {
        let mut bench = Bench::new(&contexts[0]).unwrap();
        let captured = Stream::new(&contexts[0], StreamFlags::NON_BLOCKING).unwrap();
        let capture = captured.begin_capture(CaptureMode::Global).unwrap();
        let first = bench.fill(6 * MIB, 0).unwrap();
        bench.allocator.empty_cache().unwrap();
        drop(first);
        let moved = bench.fill(8 * MIB, 1).unwrap();
        bench.allocator.trim_to(8 * MIB).unwrap();
        capture.end().expect("the capture is whole");
        bench.check(moved).unwrap();
    });
}

#[test]
fn a_page_whose_unmapping_failed_goes_with_its_addresses() {
    on_devices(1, |world, contexts| {
        let source = VirtualMemorySource::new(&contexts[0], Sharing::none()).unwrap();
        let pages = source.as_pages().unwrap();
        let base = pages.reserve(16 * MIB).unwrap();
        let [first, second] = map_pages(pages, base, 2)[..] else { panic!("two were made") };
        world.faults().inject(Injection::new("cuMemUnmap", Action::Fail(INJECTED))).unwrap();
        source.release(&first).unwrap_err();
        assert_eq!(world.calls("cuMemRelease"), 0);
        source.release(&second).unwrap();
        assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (1, 0));
        pages.unreserve(base, 16 * MIB);
        assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (2, 1));
    });
}

/// Retries a failed call once, which must succeed. The errors are kept.
fn insist<T>(
    wrong: &mut Vec<Box<dyn std::error::Error>>,
    mut attempt: impl FnMut() -> Result<T, Box<dyn std::error::Error>>,
) -> T {
    match attempt() {
        Ok(value) => value,
        Err(error) => {
            wrong.push(error);
            attempt().expect("it works the second time")
        }
    }
}

/// Runs a mix of operations: requests for which a free block fits and others for which none does, uses by other
/// streams, releases of memory, and a request to a pool of fixed segments of the same allocator. Checks the contents
/// of blocks. Returns the errors, and the allocator's faults.
fn mixed(context: &Context) -> Vec<Box<dyn std::error::Error>> {
    let mut wrong = Vec::new();
    let mut bench = insist(&mut wrong, || Bench::new(context));
    // The free memory on both sides of a block must be combined.
    bench.allocator.set_memory_limit(Some(16 * MIB));
    let [before, between, behind] = [6, 2, 6].map(|mib| insist(&mut wrong, || bench.fill(mib * MIB, 0)));
    for filled in [before, behind] {
        bench.check(filled).unwrap_or_else(|error| wrong.push(error.into()));
    }
    let together = insist(&mut wrong, || bench.fill(10 * MIB, 1));
    for filled in [between, together] {
        bench.check(filled).unwrap_or_else(|error| wrong.push(error.into()));
    }
    bench.allocator.set_memory_limit(Some(24 * MIB));
    let fixed = insist(&mut wrong, || {
        let settings = PoolSettings { name: "fixed".into(), ..PoolSettings::default() };
        Ok(bench.allocator.pool(settings)?)
    });
    let mut live: VecDeque<Filled> = VecDeque::new();
    for (step, mib) in (0..).zip([1, 3, 2, 5, 4, 12]) {
        let stream = step % 3;
        if mib > 7 {
            // The live blocks are freed to make room for this one.
            live.drain(..)
                .for_each(|filled| bench.check(filled).unwrap_or_else(|error| wrong.push(error.into())));
        }
        live.push_back(insist(&mut wrong, || bench.fill(mib * MIB, stream)));
        if step == 3 {
            let other = bench.streams[2].1;
            let last = live.pop_back().expect("it was just put there");
            insist(&mut wrong, || Ok(last.block.record_stream(other)?));
            drop(last);
        }
        if step == 4 {
            let stream = bench.streams[0].1;
            drop(insist(&mut wrong, || Ok(fixed.allocate(MIB, stream)?)));
        }
        if live.len() > 2 {
            let filled = live.pop_front().expect("there are three");
            bench.check(filled).unwrap_or_else(|error| wrong.push(error.into()));
        }
    }
    live.drain(..).for_each(|filled| bench.check(filled).unwrap_or_else(|error| wrong.push(error.into())));
    insist(&mut wrong, || Ok(bench.allocator.empty_cache()?));
    let told = bench.allocator.faults().into_iter().map(|fault| format!("{fault:?}").into());
    wrong.extend(told);
    wrong
}

/// Driver functions whose failure leaks a resource, because they release it, or because a release calls them.
const RELEASES: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuStreamDestroy_v2",
];

/// Driver functions whose failure need not be reported, because there is a fallback, such as a wait for the whole
/// device.
const SILENT: &[&str] = &[
    "cuDeviceGetAttribute",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// The number of tests among which the failing driver calls, or the failing driver functions, are divided.
const PARTS: u64 = 4;

/// Runs `mixed` once for each [`PARTS`]-th call of each driver function, and lets that call fail.
fn every_driver_call_may_fail(part: u64) {
    let mut calls = std::collections::BTreeMap::new();
    in_a_world(
        1,
        |world, contexts| {
            let before = world.faults().all_calls();
            let wrong = mixed(&contexts[0]);
            assert!(wrong.is_empty(), "{wrong:?}");
            calls = world.faults().all_calls();
            calls.iter_mut().for_each(|(function, count)| *count -= before.get(function).unwrap_or(&0));
            calls.retain(|_, count| *count > 0);
        },
        |(), _, world| drop(world.finish().unwrap()),
    );
    assert!(calls["cuMemMap"] > calls["cuMemCreate"], "something moved: {calls:?}");
    for (function, count) in &calls {
        for nth in (1..=*count).filter(|nth| nth % PARTS == part) {
            let place = format!("call {nth} of {count} of {function}");
            in_a_world(
                1,
                |world, contexts| {
                    world.faults().inject(Injection::new(function, Action::Fail(INJECTED)).nth(nth)).unwrap();
                    // The current context and the capture mode belong to the thread, so a failed restore affects only
                    // this thread.
                    let context = contexts[0].clone();
                    let run = move || mixed(&context).iter().map(|error| chain(&**error)).collect::<Vec<_>>();
                    std::thread::spawn(run).join().unwrap_or_else(|_| panic!("{place}: it panicked"))
                },
                |mut told, drops, world| {
                    // The timing of the device decides whether a few of the calls happen.
                    if world.faults().hits() == 0 {
                        return;
                    }
                    told.extend(drops);
                    let heard = told.iter().any(|text| text.contains(function.as_str()));
                    assert!(heard || SILENT.contains(&function.as_str()), "{place}: nobody heard; {told:?}");
                    // A page is unmapped once more when its range is released. A fixed segment stays mapped.
                    let is_segment = function == "cuMemUnmap" && told[0].contains("ReleaseFailed");
                    // `finish` would wait for resources that a failed release has leaked.
                    if !RELEASES.contains(&function.as_str()) && !is_segment {
                        world.finish().unwrap_or_else(|left| panic!("{place}: {left}; {told:?}"));
                    }
                },
            );
        }
    }
}

#[test]
fn every_driver_call_may_fail_0() {
    every_driver_call_may_fail(0);
}

#[test]
fn every_driver_call_may_fail_1() {
    every_driver_call_may_fail(1);
}

#[test]
fn every_driver_call_may_fail_2() {
    every_driver_call_may_fail(2);
}

#[test]
fn every_driver_call_may_fail_3() {
    every_driver_call_may_fail(3);
}

/// Makes requests for which a free block fits and others for which none does, on three streams with little memory.
/// Continues after errors. Returns the errors, and the allocator's faults.
fn stumble(bench: &mut Bench) -> Vec<Box<dyn std::error::Error>> {
    let mut wrong: Vec<Box<dyn std::error::Error>> = Vec::new();
    let mut live: VecDeque<Filled> = VecDeque::new();
    bench.allocator.set_memory_limit(Some(16 * MIB));
    for (step, mib) in (0..).zip([6, 2, 6, 3, 5, 1, 4, 9]) {
        match bench.fill(mib * MIB, step % 3) {
            Ok(filled) => live.push_back(filled),
            Err(error) => wrong.push(error),
        }
        if let Some(filled) = live.pop_front().filter(|_| step % 4 > 0) {
            let other = bench.streams[(step + 1) % 3].1;
            filled.block.record_stream(other).unwrap_or_else(|error| wrong.push(error.into()));
            bench.check(filled).unwrap_or_else(|error| wrong.push(error.into()));
        }
        if step == 5 {
            bench.allocator.trim_to(8 * MIB).map(drop).unwrap_or_else(|error| wrong.push(error.into()));
        }
    }
    live.into_iter().for_each(|filled| bench.check(filled).unwrap_or_else(|error| wrong.push(error.into())));
    bench.allocator.empty_cache().map(drop).unwrap_or_else(|error| wrong.push(error.into()));
    let told = bench.allocator.faults().into_iter().map(|fault| format!("{fault:?}").into());
    wrong.extend(told);
    wrong
}

/// Runs `stumble` while a driver function fails from one of its calls on. Each part tests each [`PARTS`]-th function.
fn every_driver_call_may_fail_for_ever(part: usize) {
    let mut calls = std::collections::BTreeMap::new();
    on_devices(1, |world, contexts| {
        let before = world.faults().all_calls();
        let wrong = stumble(&mut Bench::new(&contexts[0]).unwrap());
        assert!(wrong.is_empty(), "{wrong:?}");
        calls = world.faults().all_calls();
        calls.iter_mut().for_each(|(function, count)| *count -= before.get(function).unwrap_or(&0));
        calls.retain(|_, count| *count > 0);
    });
    for (function, count) in calls.iter().skip(part).step_by(PARTS as usize) {
        // From the first call on, from the last one on, and from some between.
        for nth in (1..=*count).step_by(usize::try_from(count.div_ceil(8)).unwrap()).chain([*count]) {
            let place = format!("from call {nth} of {count} of {function} on");
            in_a_world(
                1,
                |world, contexts| {
                    let run = || {
                        let failing = Injection::new(function, Action::Fail(INJECTED)).nth(nth).forever();
                        world.faults().inject(failing).unwrap();
                        let mut told = Vec::new();
                        let mut bench = Bench::new(&contexts[0]).map_err(|error| told.push(chain(&*error)));
                        if let Ok(bench) = &mut bench {
                            told.extend(stumble(bench).iter().map(|error| chain(&**error)));
                        }
                        world.faults().clear();
                        // The failures have ended, so the allocator must work as before.
                        let mut bench = bench.or_else(|()| Bench::new(&contexts[0])).unwrap();
                        let kept = bench.allocator.faults().len();
                        let wrong = stumble(&mut bench);
                        assert!(wrong.len() <= kept, "{place}: {wrong:?} after {told:?}");
                        told
                    };
                    // The current context and the capture mode belong to the thread, so a failed restore affects only
                    // this thread.
                    let told = std::thread::scope(|scope| scope.spawn(run).join());
                    told.unwrap_or_else(|_| panic!("{place}: it panicked"))
                },
                |mut told, drops, world| {
                    let was_hit = world.faults().hits() > 0;
                    told.extend(drops);
                    let heard = told.iter().any(|text| text.contains(function.as_str()));
                    let silent = SILENT.contains(&function.as_str()) || !was_hit;
                    assert!(heard || silent, "{place}: nobody heard; {told:?}");
                    // `finish` would wait for resources that a failed release has leaked.
                    if !RELEASES.contains(&function.as_str()) {
                        world.finish().unwrap_or_else(|left| panic!("{place}: {left}; {told:?}"));
                    }
                },
            );
        }
    }
}

#[test]
fn every_driver_call_may_fail_for_ever_0() {
    every_driver_call_may_fail_for_ever(0);
}

#[test]
fn every_driver_call_may_fail_for_ever_1() {
    every_driver_call_may_fail_for_ever(1);
}

#[test]
fn every_driver_call_may_fail_for_ever_2() {
    every_driver_call_may_fail_for_ever(2);
}

#[test]
fn every_driver_call_may_fail_for_ever_3() {
    every_driver_call_may_fail_for_ever(3);
}

/// Returns an error's message, followed by those of its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
