//! Graphs of the driver as users of blocks, on the embedded device.

use std::sync::Arc;

use caching_alloc::core::{
    AllocError, Allocator, Block, PoolSettings, SegmentSource, Settings, StreamEvents,
};
use caching_alloc::driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource};
use cuda_driver::graph::{CaptureMode, Graph};
use cuda_driver::sys::{CUresult, CUstreamCaptureMode};
use cuda_driver::{Context, DevicePtr, Stream, StreamFlags, graph_memory};
use gpu_sim::{Action, Injection, World};

use super::common::{MIB, tight};
use super::driver::{in_a_world, on_devices};

/// Calls `begin_and_end` with the stream of an allocator and with work to capture on it: work that uses a block. Returns
/// the address of the block, that of one requested while the result of `begin_and_end` exists, and that of one requested
/// afterwards.
fn addresses_around_a_graph<G>(
    context: &Context,
    begin_and_end: impl FnOnce(&Stream, &dyn Fn()) -> G,
) -> [u64; 3] {
    let events = Arc::new(DriverEvents::new(context));
    let allocator = Allocator::new(Arc::new(DriverSource::new(context)), events.clone(), tight());
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
    let id = events.register(&stream);
    let block = allocator.allocate(3 * MIB, id).unwrap();
    let address = block.address();
    let graph = begin_and_end(&stream, &|| {
        graph_memory::note(&stream, [(DevicePtr(address + 512), 512)]).unwrap();
        graph_memory::note(&stream, [(DevicePtr(address + 512), 512)]).unwrap();
    });
    drop(block);
    let during = allocator.allocate(3 * MIB, id).unwrap();
    drop(graph);
    [address, during.address(), allocator.allocate(3 * MIB, id).unwrap().address()]
}

#[test]
fn captured_work_keeps_its_blocks_until_the_graph_and_its_executables_are_dropped() {
    on_devices(1, |_, contexts| {
        let captured = |stream: &Stream, work: &dyn Fn()| {
            let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
            work();
            capture.end().unwrap()
        };
        let with_graph = addresses_around_a_graph(&contexts[0], captured);
        // The graph itself is dropped before the executable.
        let with_executable = addresses_around_a_graph(&contexts[0], |stream, work| {
            captured(stream, work).instantiate().unwrap()
        });
        for [block, during, after] in [with_graph, with_executable] {
            assert_ne!(during, block, "the graph uses it");
            assert_eq!(after, block, "free again with the graph");
        }
    });
}

#[test]
fn work_captured_by_another_library_keeps_its_blocks_for_ever() {
    let test = |_: &World, contexts: Vec<Context>| {
        let [block, during, after] = addresses_around_a_graph(&contexts[0], |stream, work| {
            let api = contexts[0].driver().api();
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the stream is alive; the graph is written to a local.
            unsafe {
                let begin = api.table().cuStreamBeginCapture_v2.unwrap();
                assert_eq!(begin(stream.raw(), mode), CUresult::CUDA_SUCCESS);
                work();
                let mut graph = std::ptr::null_mut();
                let end = api.table().cuStreamEndCapture.unwrap();
                assert_eq!(end(stream.raw(), &mut graph), CUresult::CUDA_SUCCESS);
                Graph::from_raw(&contexts[0], graph)
            }
        });
        assert!(during != block && after != block, "its graph may be launched at any time");
    };
    // The memory is not released, although the allocator and its source are dropped.
    in_a_world(1, test, |(), drops, world| {
        assert_eq!(drops, Vec::<String>::new());
        assert!(world.calls("cuMemFree_v2") < world.calls("cuMemAlloc_v2"));
    });
}

#[test]
fn memory_of_a_graph_pool_stays_while_a_graph_exists_that_was_captured_from_it() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let events = Arc::new(DriverEvents::new(context));
        let allocator =
            Allocator::new(Arc::new(DriverSource::new(context)), events.clone(), Settings::default());
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let id = events.register(&stream);
        let pool = allocator.graph_pool(PoolSettings::default()).unwrap();
        let route = pool.capture(&[id]);
        let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
        drop(allocator.allocate(512, id).unwrap());
        let graph = capture.end().unwrap();
        // No call keeps the memory for the graph: the allocator has seen the capture.
        drop(route);
        allocator.empty_cache().unwrap();
        assert!(pool.stats().reserved.current > 0, "the graph uses it");
        drop(graph);
        drop(pool);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.stats().reserved.current, 0);
    });
}

/// Drops the allocator, captures work on one of its blocks, and then drops the block.
fn capture_a_block_of_a_dropped_allocator<S: SegmentSource + 'static>(
    context: &Context,
    source: &Arc<S>,
    make: impl FnOnce(Arc<dyn SegmentSource>, Arc<dyn StreamEvents>) -> Allocator,
) {
    let events = Arc::new(DriverEvents::new(context));
    let allocator = make(source.clone(), events.clone());
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
    let free = || source.memory_info().unwrap().free;
    let before = free();
    let block = allocator.allocate(5 * MIB, events.register(&stream)).unwrap();
    let reserved = free();
    drop((allocator, events));
    let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
    graph_memory::note(&stream, [(DevicePtr(block.address()), 5 * MIB)]).unwrap();
    // SAFETY: the graph keeps the block for its launches.
    unsafe { stream.fill_u8(DevicePtr(block.address() + 5 * MIB - 1), 1, 1).unwrap() };
    let graph = capture.end().unwrap().instantiate().unwrap();
    drop(block);
    assert_eq!(free(), reserved, "the graph uses it");
    stream.launch(&graph).unwrap();
    stream.synchronize().unwrap();
    drop(graph);
    assert_eq!(free(), before);
}

#[test]
fn captured_work_keeps_a_block_of_a_dropped_allocator() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let settings = Settings::default;
        let fixed = Arc::new(DriverSource::new(context));
        capture_a_block_of_a_dropped_allocator(context, &fixed, |source, events| {
            Allocator::new(source, events, settings())
        });
        // The block has several pages.
        let mapped = Arc::new(VirtualMemorySource::new(context, Sharing::none()).unwrap());
        capture_a_block_of_a_dropped_allocator(context, &mapped, |source, events| {
            Allocator::remapping(source, events, settings()).unwrap()
        });
    });
}

/// Requests a block of a frozen pool for `stream`, and drops it again, while `captured` captures. `before` is called
/// first. Returns the number of reserved bytes of the allocator after the end of the capture and of its graph.
fn reserved_after_a_request_beside_a_capture(
    context: &Context,
    stream: &Stream,
    captured: &Stream,
    before: impl FnOnce(),
) -> u64 {
    let events = Arc::new(DriverEvents::new(context));
    let allocator = Allocator::new(Arc::new(DriverSource::new(context)), events.clone(), tight());
    let id = events.register(stream);
    let pool = allocator.pool(PoolSettings::default()).unwrap();
    drop(pool.allocate(512, id).unwrap());
    let freeze = pool.freeze();
    let capture = captured.begin_capture(CaptureMode::Relaxed).unwrap();
    before();
    drop(pool.allocate(512, id).unwrap());
    drop((capture.end().unwrap(), freeze, pool));
    allocator.empty_cache().unwrap();
    allocator.stats().reserved.current
}

#[test]
fn a_block_of_the_default_stream_is_not_kept_for_a_capture_of_another_stream() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        // The driver refuses to tell the capture status of the default stream while a blocking stream captures.
        let captured = Stream::new(context, StreamFlags::empty()).unwrap();
        let stream = Stream::legacy_default(context);
        assert_eq!(reserved_after_a_request_beside_a_capture(context, &stream, &captured, || {}), 0);
    });
}

#[test]
fn a_block_is_kept_for_ever_only_if_a_graph_is_known_to_use_it() {
    let reserved = |world: &World, contexts: Vec<Context>, failing: u64| {
        let stream = Stream::new(&contexts[0], StreamFlags::NON_BLOCKING).unwrap();
        reserved_after_a_request_beside_a_capture(&contexts[0], &stream, &stream, || {
            let failure = Injection::new("cuStreamGetCaptureInfo_v2", Action::Fail(999)).nth(failing);
            world.faults().inject(failure).unwrap();
        })
    };
    // The first query of the request tells whether the stream captures.
    on_devices(1, |world, contexts| assert_eq!(reserved(world, contexts, 1), 0));
    // The second one tells whether the graph can own the use.
    in_a_world(1, |world, contexts| reserved(world, contexts, 2), |reserved, _, _| assert!(reserved > 0));
}

#[test]
fn a_captured_loop_needs_the_memory_of_all_its_blocks_in_a_frozen_pool_and_of_one_in_a_graph_pool() {
    on_devices(1, |_, contexts| {
        let context = &contexts[0];
        let events = Arc::new(DriverEvents::new(context));
        let allocator = Allocator::new(Arc::new(DriverSource::new(context)), events.clone(), tight());
        let stream = Stream::new(context, StreamFlags::NON_BLOCKING).unwrap();
        let id = events.register(&stream);
        let captured_loop = |allocate: &dyn Fn() -> Result<Block, AllocError>| {
            drop(allocate().unwrap());
            let capture = stream.begin_capture(CaptureMode::Relaxed).unwrap();
            let outcome = (0..3).try_for_each(|_| allocate().map(drop));
            drop(capture.end().unwrap());
            outcome
        };
        let frozen = allocator.pool(PoolSettings::default()).unwrap();
        drop(frozen.allocate(6 * MIB, id).unwrap());
        let freeze = frozen.freeze();
        let refused = captured_loop(&|| frozen.allocate(6 * MIB, id));
        assert!(matches!(refused, Err(AllocError::PoolWouldGrowDuringCapture { .. })), "{refused:?}");
        drop(freeze);
        let graphs = allocator.graph_pool(PoolSettings::default()).unwrap();
        let route = graphs.capture(&[id]);
        captured_loop(&|| allocator.allocate(6 * MIB, id)).unwrap();
        assert_eq!(allocator.stats().reserved.current, 12 * MIB, "one block in each pool");
        drop(route);
    });
}
