//! The driver's sources and events on the embedded device. A process can have one [`World`], a simulated machine, at
//! a time, so tests take turns.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use caching_alloc::core::{
    AllocError, Allocator, ExportError, PageSource, SegmentMemory, SegmentSource, Settings, ShareHandle,
    ShareKind, SourceError, StreamEvents, StreamId,
};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use cuda_driver::graph::CaptureMode;
use cuda_driver::sys::Api;
use cuda_driver::vmm::PhysicalMemory;
use cuda_driver::{Context, DevicePtr, Driver, Stream, StreamFlags, set_drop_error_hook};
use gpu_sim::{Action, Injection, World};

pub(super) const CAPACITY: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

static TURN: Mutex<()> = Mutex::new(());

/// Runs `test` in a fresh world, where nothing may leak and no `Drop` may fail.
pub(super) fn on_devices(devices: usize, test: impl FnOnce(&World, Vec<Context>)) {
    in_a_world(devices, test, |(), drops, world| {
        assert_eq!(drops, Vec::<String>::new());
        world.finish().expect("the test leaves nothing behind");
    });
}

/// Runs `test` in a fresh world. Then runs `after` over its result, the failures of drops, and the remaining
/// world.
pub(super) fn in_a_world<T>(
    devices: usize,
    test: impl FnOnce(&World, Vec<Context>) -> T,
    after: impl FnOnce(T, Vec<String>, World),
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    static DROPS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    set_drop_error_hook(|error| DROPS.lock().unwrap().push(error.to_string()));
    DROPS.lock().unwrap().clear();
    let world = World::builder().devices(devices).capacity(CAPACITY).start().unwrap();
    // SAFETY: the embedded device keeps the C contracts, and the world outlives all that is made from it here.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let contexts = driver.devices().unwrap().iter().map(|device| device.retain_primary().unwrap()).collect();
    drop(driver);
    let outcome = test(&world, contexts);
    let drops = std::mem::take(&mut *DROPS.lock().unwrap());
    after(outcome, drops, world);
}

fn sources(context: &Context) -> [Box<dyn SegmentSource>; 2] {
    [
        Box::new(DriverSource::new(context)),
        Box::new(VirtualMemorySource::new(context, Sharing::by_descriptor()).unwrap()),
    ]
}

#[test]
fn what_a_source_gives_it_takes_back_once() {
    on_devices(1, |_, contexts| {
        for source in sources(&contexts[0]) {
            let before = source.memory_info().unwrap();
            assert_eq!((source.device(), before.total), (0, CAPACITY));
            assert!(source.granularity().is_multiple_of(2 * MIB));
            let segments: Vec<SegmentMemory> =
                [2 * MIB, 6 * MIB, 20 * MIB].map(|bytes| source.allocate(bytes).unwrap()).into();
            for (index, segment) in segments.iter().enumerate() {
                assert!(segment.address.is_multiple_of(512));
                let apart =
                    |other: &SegmentMemory| other.end() <= segment.address || segment.end() <= other.address;
                assert!(segments.iter().skip(index + 1).all(apart));
                // SAFETY: the segment is live, and both ends are inside it.
                unsafe {
                    contexts[0].fill_u8(DevicePtr(segment.address), 1, 1).unwrap();
                    contexts[0].fill_u8(DevicePtr(segment.end() - 1), 1, 1).unwrap();
                }
                contexts[0].synchronize().unwrap();
            }
            assert_eq!(source.memory_info().unwrap().free, before.free - 28 * MIB);
            for segment in &segments {
                source.release(segment).unwrap();
                let again = source.release(segment).unwrap_err();
                assert!(matches!(again, SourceError::Failed { .. }), "{again}");
            }
            assert_eq!(source.memory_info().unwrap(), before);
        }
    });
}

#[test]
fn too_much_is_out_of_memory_with_what_was_wanted() {
    on_devices(1, |_, contexts| {
        for source in sources(&contexts[0]) {
            let half = source.allocate(CAPACITY / 2).unwrap();
            match source.allocate(CAPACITY) {
                Err(SourceError::OutOfMemory { wanted: CAPACITY, .. }) => {}
                other => panic!("{other:?}"),
            }
            source.release(&half).unwrap();
        }
    });
}

#[test]
fn fixed_segments_are_aligned_shared_and_reachable_by_peers() {
    on_devices(2, |_, contexts| {
        let sharing =
            Sharing::by_descriptor().with_peers([contexts[0].device().clone(), contexts[1].device().clone()]);
        let source = VirtualMemorySource::new(&contexts[0], sharing).unwrap();
        let segment = source.allocate(4 * MIB).unwrap();
        assert!(segment.address.is_multiple_of(2 * MIB));
        let word = DevicePtr(segment.address);
        let mut read = [0u32];
        // SAFETY: the segment is live, and both devices may reach it.
        unsafe {
            contexts[0].copy_from_host(word, &[17u32]).unwrap();
            contexts[1].copy_to_host(&mut read, word).unwrap();
        }
        assert_eq!(read, [17]);
        let descriptor = source.physical(segment.address).unwrap().export_fd().unwrap();
        let size = usize::try_from(segment.bytes).unwrap();
        let imported = PhysicalMemory::import_fd(&contexts[1], descriptor.as_fd(), size).unwrap();
        assert_eq!(imported.device_ordinal().unwrap(), 0);
        source.release(&segment).unwrap();
        assert!(source.physical(segment.address).is_none());
    });
}

#[test]
fn a_failure_on_the_way_to_a_segment_leaves_nothing_behind() {
    on_devices(1, |world, contexts| {
        let source = VirtualMemorySource::new(&contexts[0], Sharing::none()).unwrap();
        let before = source.memory_info().unwrap();
        for (function, code) in [
            ("cuMemCreate", 2),
            ("cuMemCreate", 999),
            ("cuMemAddressReserve", 2),
            ("cuMemMap", 999),
            ("cuMemSetAccess", 2),
        ] {
            world.faults().inject(Injection::new(function, Action::Fail(code))).unwrap();
            let error = source.allocate(4 * MIB).unwrap_err();
            // A lack of addresses is not a lack of memory: the allocator could not make room by releasing segments.
            let out_of_memory = code == 2 && function != "cuMemAddressReserve";
            assert_eq!(
                matches!(error, SourceError::OutOfMemory { .. }),
                out_of_memory,
                "{function}: {error}"
            );
            assert_eq!(source.memory_info().unwrap(), before);
        }
        let calls = |function| world.calls(function);
        assert_eq!(calls("cuMemCreate") - 2, calls("cuMemRelease"));
        assert_eq!(calls("cuMemAddressReserve") - 1, calls("cuMemAddressFree"));
        assert_eq!(calls("cuMemMap") - 1, calls("cuMemUnmap"));
    });
}

#[test]
fn segments_come_and_go_and_events_are_queried_while_a_stream_captures() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let [captured, side] = [(); 2].map(|()| Stream::new(context, StreamFlags::NON_BLOCKING).unwrap());
        let events = DriverEvents::new(context);
        let [captured_id, side_id] = [&captured, &side].map(|stream| events.register(stream));
        let capture = captured.begin_capture(CaptureMode::Global).unwrap();
        assert!(events.is_capturing(captured_id).unwrap());
        assert!(!events.is_capturing(side_id).unwrap());
        for source in sources(context) {
            let segment = source.allocate(2 * MIB).unwrap();
            source.release(&segment).unwrap();
        }
        let event = events.record(side_id).unwrap();
        events.synchronize(event).unwrap();
        assert!(events.query(event).unwrap());
        events.recycle(event);
        capture.end().expect("the capture is whole");
    });
}

#[test]
fn pages_of_a_forgotten_stream_are_released() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let source = Arc::new(VirtualMemorySource::new(context, Sharing::none()).unwrap());
        let events = Arc::new(DriverEvents::new(context));
        let allocator = Allocator::remapping(source, events.clone(), Settings::default()).unwrap();
        let stream = events.register(&Stream::new(context, StreamFlags::NON_BLOCKING).unwrap());
        drop(allocator.allocate(3 * MIB, stream).unwrap());
        events.forget(stream);
        assert!(allocator.empty_cache().unwrap() >= 3 * MIB);
        assert_eq!(allocator.stats().reserved.current, 0);
    });
}

#[test]
fn a_range_that_was_unreserved_first_goes_even_if_its_last_page_is_unmapped_at_the_second_try() {
    on_devices(1, |world, contexts| {
        let source = VirtualMemorySource::new(&contexts[0], Sharing::none()).unwrap();
        let before = source.memory_info().unwrap();
        let address = source.reserve(8 * MIB).unwrap();
        let token = source.create(2 * MIB).unwrap();
        let page = SegmentMemory { address, bytes: 2 * MIB, token };
        source.map(&page).unwrap();
        source.unreserve(address, 8 * MIB);
        world.faults().inject(Injection::new("cuMemUnmap", Action::Fail(999))).unwrap();
        let error = source.release(&page).unwrap_err();
        assert!(matches!(error, SourceError::Failed { call: "cuMemUnmap", .. }), "{error}");
        assert_eq!(world.calls("cuMemAddressFree"), 1, "the addresses are free");
        assert_eq!(source.memory_info().unwrap(), before, "and so is the memory");
    });
}

#[test]
fn a_capture_through_another_handle_of_the_driver_is_noticed() {
    on_devices(1, |world, contexts| {
        let context = &contexts[0];
        // SAFETY: as in `in_a_world`.
        let again = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
        let theirs = again.device(0).unwrap().retain_primary().unwrap();
        let events = Arc::new(DriverEvents::new(context));
        let allocator =
            Allocator::new(Arc::new(DriverSource::new(context)), events.clone(), Settings::default());
        let stream = Stream::new(&theirs, StreamFlags::NON_BLOCKING).unwrap();
        let id = events.register(&stream);
        drop(allocator.allocate(512, id).unwrap());
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        let refused = allocator.allocate(512, id);
        assert!(matches!(refused, Err(AllocError::CaptureOutsideGraphPool { .. })), "{refused:?}");
        capture.end().unwrap();
        drop(allocator.allocate(512, id).unwrap());
    });
}

#[test]
fn events_order_streams_and_are_used_again() {
    on_devices(1, |world, contexts| {
        let context = &contexts[0];
        let [first, second] = [(); 2].map(|()| Stream::new(context, StreamFlags::NON_BLOCKING).unwrap());
        let events = DriverEvents::new(context);
        let [first_id, second_id] = [&first, &second].map(|stream| events.register(stream));
        assert_ne!(first_id, second_id);
        for _ in 0..3 {
            let (go, gate) = mpsc::channel::<()>();
            first
                .launch_host_fn(move || gate.recv_timeout(Duration::from_secs(60)).expect("opened"))
                .unwrap();
            let event = events.record(first_id).unwrap();
            assert!(!events.query(event).unwrap());
            events.wait(second_id, event).unwrap();
            assert!(!second.query().unwrap());
            go.send(()).unwrap();
            second.synchronize().unwrap();
            assert!(events.query(event).unwrap());
            events.recycle(event);
            events.query(event).expect_err("it was given back");
        }
        assert_eq!(world.calls("cuEventCreate"), 1);
        events.forget(first_id);
        let unknown = events.record(first_id).unwrap_err();
        assert!(unknown.source.to_string().contains("register"), "{}", unknown.source);
        events.record(StreamId(0xdead)).expect_err("nobody registered it");
        assert_eq!(events.register(&second), second_id);
        assert_ne!(events.register(&first), first_id, "what was freed under a number is no later stream's");
    });
}

#[test]
fn memory_that_another_stream_still_uses_is_reused_after_it() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let [first, second] = [(); 2].map(|()| Stream::new(context, StreamFlags::NON_BLOCKING).unwrap());
        let events = DriverEvents::new(context);
        let [first_id, second_id] = [&first, &second].map(|stream| events.register(stream));
        let source = VirtualMemorySource::new(context, Sharing::none()).unwrap();
        let allocator = Allocator::new(Arc::new(source), Arc::new(events), Settings::default());
        // Two blocks of this size do not fit on the device.
        let bytes = 40 * MIB;
        let size = usize::try_from(bytes).unwrap();

        let (go, gate) = mpsc::channel::<()>();
        let block = allocator.allocate(bytes, first_id).unwrap();
        let address = block.address();
        first.launch_host_fn(move || gate.recv_timeout(Duration::from_secs(60)).expect("opened")).unwrap();
        // SAFETY: the block is freed in the order of the same stream.
        unsafe { first.fill_u8(DevicePtr(address), 1, size).unwrap() };
        drop(block);

        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            go.send(()).expect("the stream waits at the gate");
        });
        let block = allocator.allocate(bytes, second_id).unwrap();
        assert_eq!(block.address(), address);
        // SAFETY: the block is alive until the work has been waited for.
        unsafe { second.fill_u8(DevicePtr(address), 2, size).unwrap() };
        opener.join().unwrap();
        second.synchronize().unwrap();
        first.synchronize().unwrap();
        let mut end = [0u8; 16];
        // SAFETY: the block is alive, and its work is done.
        unsafe { context.copy_to_host(&mut end, DevicePtr(address + bytes - 16)).unwrap() };
        assert_eq!(end, [2; 16], "the second stream's write came last");
    });
}

#[test]
fn out_of_memory_says_what_the_device_has() {
    on_devices(1, |_, contexts| {
        let stream = Stream::new(&contexts[0], StreamFlags::NON_BLOCKING).unwrap();
        let events = DriverEvents::new(&contexts[0]);
        let id = events.register(&stream);
        let source = DriverSource::new(&contexts[0]);
        let allocator = Allocator::new(Arc::new(source), Arc::new(events), Settings::default());
        let _kept = allocator.allocate(40 * MIB, id).unwrap();
        match allocator.allocate(40 * MIB, id) {
            Err(AllocError::OutOfMemory(figures)) => {
                assert_eq!((figures.wanted, figures.allocated), (40 * MIB, 40 * MIB));
                assert_eq!(figures.info.unwrap().total, CAPACITY);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_block_is_exported_with_its_place_and_a_hold() {
    on_devices(1, |_, contexts| {
        let source = Arc::new(VirtualMemorySource::new(&contexts[0], Sharing::by_descriptor()).unwrap());
        let events = Arc::new(DriverEvents::new(&contexts[0]));
        let stream = Stream::new(&contexts[0], StreamFlags::NON_BLOCKING).unwrap();
        let id = events.register(&stream);
        let allocator =
            Allocator::new(source, events, Settings { large_segment: 8 * MIB, ..Settings::default() });
        let before = allocator.allocate(3 * MIB, id).unwrap();
        let block = allocator.allocate(2 * MIB, id).unwrap();
        let [part] = &block.export(ShareKind::PosixFd, "peer 1").unwrap()[..] else { panic!("one segment") };
        assert_eq!((part.offset, part.bytes), (3 * MIB, 2 * MIB));
        assert_eq!(&*part.hold.segment().holders()[0], "peer 1");
        let ShareHandle::PosixFd(descriptor) = &part.handle else { panic!("a descriptor was asked for") };
        let bytes = part.hold.segment().bytes() as usize;
        let imported = PhysicalMemory::import_fd(&contexts[0], descriptor.as_fd(), bytes).unwrap();
        assert_eq!(imported.bytes(), bytes);
        let fabric = block.export(ShareKind::Fabric, "peer 1").unwrap_err();
        assert!(
            matches!(fabric, ExportError::Source { source: SourceError::NotExportable { .. }, .. }),
            "{fabric}"
        );
        drop(before);
    });
}

#[test]
fn a_stream_that_nobody_knows_is_refused() {
    on_devices(1, |_, contexts| {
        let events = Arc::new(DriverEvents::new(&contexts[0]));
        let stream = Stream::new(&contexts[0], StreamFlags::NON_BLOCKING).unwrap();
        let id = events.register(&stream);
        let source = Arc::new(DriverSource::new(&contexts[0]));
        let allocator = Allocator::new(source, events, Settings::default());
        let unknown = StreamId(4711);
        let refused = |error| matches!(error, AllocError::UnknownStream { stream } if stream == unknown);
        assert!(refused(allocator.allocate(MIB, unknown).unwrap_err()));
        let block = allocator.allocate(MIB, id).unwrap();
        assert!(refused(block.record_stream(unknown).unwrap_err()));
        drop(block);
        assert!(allocator.faults().is_empty());
    });
}
