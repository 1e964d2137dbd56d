//! Pinned host memory on the embedded device: allocator, trackers, copies, and the host's access.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use caching_alloc::core::{
    Action, AllocError, Allocator, Entry, Fault, Filter, MemoryReport, PoolSettings, Reuse, SegmentSource,
    Settings, SourceError, StreamId, Tracker, TrackerError,
};
use caching_alloc::driver::{
    DriverEvents, DriverSource, PinnedAllocator, PinnedError, PinnedHostSource, PinnedSource,
};
use caching_alloc::sources::{LimitingSource, LoggedCall, LoggingSource, SourceMethod};
use cuda_driver::graph::CaptureMode;
use cuda_driver::memory::{DeviceMemory, MemoryKind, PinnedFlags};
use cuda_driver::{Context, DevicePtr, Stream, StreamFlags};
use gpu_sim::{Action as Effect, Injection};

use super::common::{MIB, check_tiling, tight};
use super::driver::{in_a_world, on_devices};

/// Streams of one context.
struct Bench {
    context: Context,
    events: Arc<DriverEvents>,
    streams: Vec<(Stream, StreamId)>,
}

impl Bench {
    fn new(context: &Context) -> Self {
        let events = Arc::new(DriverEvents::new(context));
        let stream = |_| {
            let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
            let id = events.register(&stream);
            (stream, id)
        };
        let streams = (0..2).map(stream).collect();
        Self { context: context.clone(), events, streams }
    }

    fn source(&self) -> Arc<PinnedHostSource> {
        let flags = PinnedFlags::PORTABLE | PinnedFlags::DEVICE_MAPPED;
        Arc::new(PinnedHostSource::new(&self.context, flags))
    }

    fn allocator(&self, source: Arc<dyn PinnedSource>, settings: Settings) -> PinnedAllocator {
        PinnedAllocator::new(source, self.events.clone(), settings)
    }

    /// Makes a stream wait until the returned sender is used or dropped, for at most 60 seconds.
    fn gate(&self, stream: usize) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let wait = move || _ = gate.recv_timeout(Duration::from_secs(60));
        self.streams[stream].0.launch_host_fn(wait).unwrap();
        open
    }
}

/// A tracker that keeps the actions of its entries.
#[derive(Default)]
struct Told(Mutex<Vec<Action>>);

impl Tracker for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        self.0.lock().unwrap().extend(entries.iter().map(|entry| entry.action.clone()));
        Ok(())
    }
}

impl Told {
    fn count(&self, wanted: impl Fn(&Action) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|action| wanted(action)).count()
    }
}

#[test]
fn pinned_blocks_are_cached_tracked_and_copied() {
    on_devices(1, |world, contexts| {
        let bench = Bench::new(&contexts[0]);
        let (stream, id) = &bench.streams[0];
        let calls = Arc::new(Mutex::new(Vec::new()));
        let log = {
            let calls = calls.clone();
            move |call: &LoggedCall| calls.lock().unwrap().push((call.method, call.bytes))
        };
        let limited = Arc::new(LimitingSource::new(bench.source(), 16 * MIB));
        let pinned = bench.allocator(Arc::new(LoggingSource::new(limited.clone(), log)), tight());
        let told = Arc::new(Told::default());
        let attachment = pinned.allocator().attach(told.clone(), Filter::all()).unwrap();

        let memory = DeviceMemory::new(&bench.context, 5000).unwrap();
        let mut addresses = Vec::new();
        for round in 0..4u8 {
            let mut from = pinned.allocate(5000, *id).unwrap();
            let mut to = pinned.allocate(5000, *id).unwrap();
            addresses.push((from.as_ptr().addr(), to.as_ptr().addr()));
            assert!(from.as_ptr().addr().is_multiple_of(512) && from.len() == 5000);
            for (at, byte) in from.wait_ready().unwrap().iter_mut().enumerate() {
                *byte = (at as u8).wrapping_mul(7) ^ round;
            }
            to.wait_ready().unwrap().fill(0xff);
            // SAFETY: all on the blocks' stream; no slice of them is alive.
            unsafe {
                stream.copy_from_host(memory.ptr(), from.as_ptr().cast(), from.len()).unwrap();
                stream.copy_to_host(to.as_ptr().cast(), memory.ptr(), to.len()).unwrap();
            }
            let bytes = to.wait_ready().unwrap();
            assert!((0..5000).all(|at| bytes[at] == (at as u8).wrapping_mul(7) ^ round));
        }
        addresses.iter().for_each(|both| assert_eq!(both, &addresses[0], "blocks are reused"));
        assert_eq!(world.calls("cuMemHostAlloc"), 1);
        assert_eq!(limited.allocated(), 2 * MIB);

        let snapshot = pinned.allocator().snapshot().unwrap();
        check_tiling(&snapshot);
        assert_eq!(snapshot.segments.len(), 1);
        let stats = pinned.allocator().stats();
        assert_eq!((stats.reserved.current, stats.all.active.current), (2 * MIB, 0));
        let report = pinned.allocator().memory_report().unwrap();
        assert_eq!((report.total, report.reserved, report.foreign), (16 * MIB, 2 * MIB, 0));
        assert_eq!(pinned.allocator().empty_cache().unwrap(), 2 * MIB);
        assert_eq!(world.calls("cuMemFreeHost"), 1);
        assert_eq!(told.count(|action| matches!(action, Action::SegmentAlloc(_))), 1);
        assert_eq!(told.count(|action| matches!(action, Action::SegmentFree(_))), 1);
        assert_eq!(told.count(|action| matches!(action, Action::Alloc(_))), 8);
        assert_eq!(
            *calls.lock().unwrap(),
            [(SourceMethod::Allocate, 2 * MIB), (SourceMethod::Release, 2 * MIB)]
        );
        drop(attachment);
        assert!(pinned.allocator().faults().is_empty());
    });
}

#[test]
fn the_host_gets_a_block_after_earlier_work_of_its_stream() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let (stream, id) = &bench.streams[0];
        let pinned = bench.allocator(bench.source(), tight());
        let memory = DeviceMemory::new(&bench.context, 1000).unwrap();
        memory.copy_from_host(0, &[7u8; 1000]).unwrap();

        let first = pinned.allocate(1000, *id).unwrap();
        let address = first.as_ptr();
        let open = bench.gate(0);
        // SAFETY: on the block's stream, before the block is dropped.
        unsafe { stream.copy_to_host(address.cast(), memory.ptr(), 1000).unwrap() };
        drop(first);

        let mut second = pinned.allocate(1000, *id).unwrap();
        assert_eq!(second.as_ptr(), address, "the memory is reused in stream order");
        assert!(!stream.query().unwrap(), "the copy into it has not run");
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            open.send(()).expect("the stream waits at the gate");
        });
        let bytes = second.wait_ready().unwrap();
        assert_eq!(bytes, [7; 1000], "the copy has ended");
        bytes.fill(1);
        opener.join().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(second.wait_ready().unwrap(), [1; 1000]);
    });
}

#[test]
fn the_host_waits_for_recorded_streams_too() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let ((_, own), (other, other_id)) = (&bench.streams[0], &bench.streams[1]);
        let pinned = bench.allocator(bench.source(), tight());
        let memory = DeviceMemory::new(&bench.context, 1000).unwrap();
        memory.copy_from_host(0, &[9u8; 1000]).unwrap();
        let mut block = pinned.allocate(1000, *own).unwrap();
        block.record_stream(*other_id).unwrap();
        let open = bench.gate(1);
        // SAFETY: on a recorded stream, before the block is dropped.
        unsafe { other.copy_to_host(block.as_ptr().cast(), memory.ptr(), 1000).unwrap() };
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            open.send(()).expect("the stream waits at the gate");
        });
        assert_eq!(block.wait_ready().unwrap(), [9; 1000]);
        opener.join().unwrap();
        let unknown = block.record_stream(StreamId(4711)).unwrap_err();
        assert!(matches!(unknown, AllocError::UnknownStream { .. }));
        block.wait_ready().expect("a stream that was refused is not waited for");
    });
}

#[test]
fn staging_on_an_idle_stream_needs_no_wait() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let ((_, staging), (copies, copies_id)) = (&bench.streams[0], &bench.streams[1]);
        let settings = Settings { reuse: Reuse::HostSeen, ..tight() };
        let pinned = bench.allocator(bench.source(), settings);
        let memory = DeviceMemory::new(&bench.context, 8 * 1000).unwrap();
        let open = bench.gate(1);
        let mut addresses = Vec::new();
        // The copies wait at the gate; the buffers are ready nevertheless.
        for round in 0..8u8 {
            let mut buffer = pinned.allocate(1000, *staging).unwrap();
            buffer.wait_ready().unwrap().fill(round);
            buffer.record_stream(*copies_id).unwrap();
            let address = buffer.as_ptr();
            assert!(!addresses.contains(&address), "a buffer that is being copied is not reused");
            addresses.push(address);
            let to = memory.ptr() + usize::from(round) * 1000;
            // SAFETY: on a recorded stream, before the block is dropped; no slice of it is alive.
            unsafe { copies.copy_from_host(to, address.cast(), 1000).unwrap() };
        }
        open.send(()).unwrap();
        copies.synchronize().unwrap();
        let mut found = vec![0u8; 8000];
        memory.copy_to_host(0, &mut found).unwrap();
        assert!(found.chunks(1000).zip(0u8..).all(|(chunk, round)| chunk == [round; 1000]));
        // Once the rest of the segment is full, the buffers are reused.
        let _rest = [MIB, MIB - 8 * 1024].map(|bytes| pinned.allocate(bytes, *staging).unwrap());
        let blocks: Vec<_> = (0..8).map(|_| pinned.allocate(1000, *staging).unwrap()).collect();
        assert!(blocks.iter().all(|block| addresses.contains(&block.as_ptr())));
        assert_eq!(pinned.allocator().stats().segments.current, 1);
    });
}

#[test]
fn flags_decide_what_the_device_can_reach() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let (stream, id) = &bench.streams[0];
        let plain = Arc::new(PinnedHostSource::new(&bench.context, PinnedFlags::PORTABLE));
        assert_eq!(bench.allocator(plain, tight()).allocate(100, *id).unwrap().device_ptr(), None);

        let flags = PinnedFlags::DEVICE_MAPPED | PinnedFlags::WRITE_COMBINED;
        let source = Arc::new(PinnedHostSource::new(&bench.context, flags));
        assert_eq!((source.flags(), source.is_exportable()), (flags, false));
        let pinned = bench.allocator(source.clone(), tight());
        let _before = pinned.allocate(100, *id).unwrap();
        let mut block = pinned.allocate(100, *id).unwrap();
        let device = block.device_ptr().expect("it is mapped");
        // SAFETY: on the block's stream; no slice of it is alive.
        unsafe { stream.fill_u8(device, 5, 100).unwrap() };
        assert_eq!(block.wait_ready().unwrap(), [5; 100]);
        let info = bench.context.driver().pointer_info(DevicePtr(block.as_ptr().addr() as u64));
        assert_eq!(info.unwrap().unwrap().kind, MemoryKind::Host);

        // The source finds the same address for the underlying block.
        let block = block.into_block();
        assert_eq!(source.device_ptr(&block), Some(device));
        let other = Allocator::new(bench.source(), bench.events.clone(), tight());
        let foreign = other.allocate(100, *id).unwrap();
        assert_eq!(source.device_ptr(&foreign), None);
    });
}

#[test]
fn pinned_memory_is_the_source_of_a_plain_allocator_or_pool() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let id = bench.streams[0].1;
        let allocator =
            Allocator::new(Arc::new(DriverSource::new(&bench.context)), bench.events.clone(), tight());
        let settings = PoolSettings { source: Some(bench.source()), ..PoolSettings::default() };
        let pool = allocator.pool(settings).unwrap();
        let (device, host) = (allocator.allocate(1000, id).unwrap(), pool.allocate(1000, id).unwrap());
        let kind = |address| bench.context.driver().pointer_info(DevicePtr(address)).unwrap().unwrap().kind;
        assert_eq!((kind(device.address()), kind(host.address())), (MemoryKind::Device, MemoryKind::Host));
        let MemoryReport { total, free, .. } = Allocator::new(bench.source(), bench.events.clone(), tight())
            .memory_report()
            .expect("the kernel reports the host's memory");
        assert!(0 < free && free <= total);
    });
}

#[test]
fn a_block_that_is_not_of_the_source_is_refused() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let id = bench.streams[0].1;
        let pinned = bench.allocator(Arc::new(LimitingSource::new(bench.source(), 2 * MIB)), tight());
        // Borrowed from a pool with memory of the device.
        let settings = PoolSettings {
            source: Some(Arc::new(DriverSource::new(&bench.context))),
            lends: true,
            ..PoolSettings::default()
        };
        let lender = pinned.allocator().pool(settings).unwrap();
        drop(lender.allocate(4 * MIB, id).unwrap());
        let refused = pinned.allocate(3 * MIB, id).unwrap_err();
        assert!(matches!(refused, PinnedError::NotPinned { .. }), "{refused}");
        assert_eq!(pinned.allocator().stats().all.active.current, 0, "it was freed");

        // The block is borrowed from a pool with another source, which returns memory that `source` has allocated.
        let source = bench.source();
        let pinned = bench.allocator(source.clone(), tight());
        let block = pinned.allocate(MIB, id).unwrap();
        let copy = Arc::new(Again(source.allocate(4 * MIB).unwrap(), source.clone()));
        let other = bench.allocator(source.clone(), Settings { memory_limit: Some(4 * MIB), ..tight() });
        let settings = PoolSettings { source: Some(copy.clone()), lends: true, ..PoolSettings::default() };
        let lender = other.allocator().pool(settings).unwrap();
        drop(lender.allocate(4 * MIB, id).unwrap());
        let refused = other.allocate(3 * MIB, id).unwrap_err();
        assert!(matches!(refused, PinnedError::NotPinned { .. }), "{refused}");
        drop((lender, other, block));
    });
}

/// A source that returns one segment of another source.
#[derive(Debug)]
struct Again(caching_alloc::core::SegmentMemory, Arc<PinnedHostSource>);

impl SegmentSource for Again {
    fn device(&self) -> u32 {
        0
    }
    fn allocate(&self, bytes: u64) -> Result<caching_alloc::core::SegmentMemory, SourceError> {
        if bytes == self.0.bytes { Ok(self.0) } else { Err(SourceError::out_of_memory(bytes)) }
    }
    fn release(&self, memory: &caching_alloc::core::SegmentMemory) -> Result<(), SourceError> {
        self.1.release(memory)
    }
    fn memory_info(&self) -> Result<caching_alloc::core::MemoryInfo, SourceError> {
        self.1.memory_info()
    }
}

#[test]
fn memory_lent_to_the_host_outlives_a_release_behind_the_allocator() {
    on_devices(1, |world, contexts| {
        let bench = Bench::new(&contexts[0]);
        let id = bench.streams[0].1;
        let source = bench.source();
        let pinned = bench.allocator(source.clone(), tight());
        let mut block = pinned.allocate(1000, id).unwrap();
        let segment = pinned.allocator().snapshot().unwrap().segments[0].segment.memory();
        let bytes = block.wait_ready().unwrap();
        let other = caching_alloc::core::SegmentMemory { token: segment.token + 1, ..segment };
        source.release(&other).expect_err("no segment of this source");
        source.release(&segment).unwrap();
        assert_eq!(world.calls("cuMemFreeHost"), 0);
        bytes.fill(3);
        let refused = pinned.allocate(1000, id).unwrap_err();
        assert!(matches!(refused, PinnedError::NotPinned { .. }), "{refused}");
        assert_eq!(block.wait_ready().unwrap(), [3; 1000]);
        drop(block);
        assert_eq!(world.calls("cuMemFreeHost"), 1);
        pinned.allocator().empty_cache().unwrap();
        assert!(matches!(pinned.allocator().faults()[..], [Fault::ReleaseFailed { .. }]));
        assert_eq!(world.calls("cuMemFreeHost"), 1, "it is freed once");
    });
}

#[test]
fn captures_get_no_host_access_and_are_not_disturbed() {
    on_devices(1, |_, contexts| {
        let bench = Bench::new(&contexts[0]);
        let ((captured, captured_id), (_, other)) = (&bench.streams[0], &bench.streams[1]);
        let pinned = bench.allocator(bench.source(), tight());
        let mut before = pinned.allocate(1000, *captured_id).unwrap();
        let capture = captured.begin_capture(CaptureMode::Global).unwrap();
        let refused = before.wait_ready().unwrap_err();
        assert!(matches!(refused, PinnedError::Capturing { stream } if stream == *captured_id), "{refused}");
        let refused = pinned.allocate(3 * MIB, *captured_id).unwrap_err();
        assert!(
            matches!(refused, PinnedError::Alloc(AllocError::CaptureOutsideGraphPool { .. })),
            "{refused}"
        );
        // Other streams get new segments, host access and releases meanwhile.
        let mut block = pinned.allocate(3 * MIB, *other).unwrap();
        block.wait_ready().unwrap().fill(1);
        drop(block);
        capture.end().expect("the capture is whole");
        pinned.allocator().empty_cache().unwrap();
        before.wait_ready().unwrap();
    });
}

#[test]
fn every_failure_of_the_driver_is_told_and_leaks_nothing() {
    on_devices(1, |world, contexts| {
        let bench = Bench::new(&contexts[0]);
        let id = bench.streams[0].1;
        let limited = Arc::new(LimitingSource::new(bench.source(), 64 * MIB));
        let pinned = bench.allocator(limited.clone(), tight());
        let fail = |function: &str, code| {
            world.faults().inject(Injection::new(function, Effect::Fail(code))).unwrap();
        };
        for (function, code) in [
            ("cuMemHostAlloc", 999),
            ("cuMemHostGetDevicePointer_v2", 2),
            ("cuThreadExchangeStreamCaptureMode", 999),
        ] {
            fail(function, code);
            let refused = pinned.allocate(1000, id).unwrap_err();
            let PinnedError::Alloc(AllocError::Source { source, .. }) = refused else { panic!("{refused}") };
            assert!(matches!(source, SourceError::Failed { call, .. } if call == function), "{source}");
            assert_eq!(limited.allocated(), 0);
        }
        fail("cuMemHostAlloc", 2);
        let refused = pinned.allocate(3 * MIB, id).unwrap_err();
        assert!(matches!(refused, PinnedError::Alloc(AllocError::OutOfMemory(_))), "{refused}");
        let mut block = pinned.allocate(3 * MIB, id).unwrap();
        for function in ["cuEventRecord", "cuEventSynchronize", "cuStreamIsCapturing"] {
            fail(function, 999);
            let refused = block.wait_ready().unwrap_err();
            assert!(matches!(refused, PinnedError::Event(_)), "{function}: {refused}");
        }
        block.wait_ready().unwrap().fill(1);
        drop(block);
        // The event that could not be recorded was replaced; the others were reused.
        assert_eq!(world.calls("cuEventCreate"), 2);
        pinned.allocator().empty_cache().unwrap();
        assert_eq!(limited.allocated(), 0);
        assert!(pinned.allocator().faults().is_empty());
    });
}

#[test]
fn memory_that_cannot_be_freed_is_a_fault_and_stays_counted() {
    let test = |world: &gpu_sim::World, contexts: Vec<Context>| {
        let bench = Bench::new(&contexts[0]);
        let limited = Arc::new(LimitingSource::new(bench.source(), 64 * MIB));
        let pinned = bench.allocator(limited.clone(), tight());
        drop(pinned.allocate(1000, bench.streams[0].1).unwrap());
        world.faults().inject(Injection::new("cuMemFreeHost", Effect::Fail(999))).unwrap();
        pinned.allocator().empty_cache().unwrap();
        assert_eq!(limited.allocated(), 2 * MIB);
        pinned.allocator().faults()
    };
    in_a_world(1, test, |faults, drops, _world| {
        let [Fault::ReleaseFailed { message, .. }] = &faults[..] else { panic!("{faults:?}") };
        assert!(message.contains("cuMemFreeHost"), "{message}");
        assert_eq!(drops, Vec::<String>::new());
    });
}
