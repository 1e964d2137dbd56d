//! Typed slices of the caching allocator on the embedded device.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use caching_alloc::core::{AllocError, PoolKind, PoolSettings, Settings};
use caching_alloc::driver::{DeviceAllocator, Sharing};
use caching_alloc::host::HostSource;
use cuda_driver::graph::CaptureMode;
use cuda_driver::{Context, DevicePtr, DeviceSlice, Stream, StreamFlags};
use proptest::prelude::*;

use super::driver::on_devices;

fn allocator(context: &Context) -> DeviceAllocator {
    DeviceAllocator::new(context, Sharing::none(), Settings::default()).unwrap()
}

fn stream(context: &Context) -> Stream {
    Stream::new(context, StreamFlags::NON_BLOCKING).unwrap()
}

/// Makes a stream wait until the returned sender is used or dropped, for at most 60 seconds.
fn gate(stream: &Stream) -> mpsc::Sender<()> {
    let (open, gate) = mpsc::channel::<()>();
    stream.launch_host_fn(move || _ = gate.recv_timeout(Duration::from_secs(60))).unwrap();
    open
}

#[test]
fn a_dropped_slice_is_reused_after_the_other_streams_that_use_it() {
    on_devices(1, |_, contexts| {
        let memory = allocator(&contexts[0]);
        let [own, other] = [stream(&contexts[0]), stream(&contexts[0])];
        let mut first = memory.alloc::<u32>(4, &own).unwrap();
        own.memcpy_htod(&[1, 2, 3, 4], &mut first).unwrap();
        let mut copy = memory.alloc::<u32>(4, &other).unwrap();
        let open = gate(&other);
        other.memcpy_dtod(&first, &mut copy).unwrap();
        let at = first.device_ptr();
        drop(first);
        let mut second = memory.alloc::<u32>(4, &own).unwrap();
        assert_eq!(second.device_ptr(), at, "the cache of the stream gives the block again");
        own.memset_zeros(&mut second).unwrap();
        drop(open);
        assert_eq!(own.clone_dtoh(&copy).unwrap(), [1, 2, 3, 4], "copied before the memory had a new owner");
        assert_eq!(own.clone_dtoh(&second).unwrap(), [0; 4]);
    });
}

#[test]
fn a_graph_keeps_the_block_of_a_dropped_slice() {
    on_devices(1, |_, contexts| {
        let memory = allocator(&contexts[0]);
        let stream = stream(&contexts[0]);
        let mut captured = memory.alloc::<u32>(4, &stream).unwrap();
        let mut copy = memory.alloc::<u32>(4, &stream).unwrap();
        stream.memcpy_htod(&[5; 4], &mut captured).unwrap();
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        stream.memcpy_dtod(&captured, &mut copy).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        let at = captured.device_ptr();
        drop(captured);
        let mut next = memory.alloc::<u32>(4, &stream).unwrap();
        assert_ne!(next.device_ptr(), at, "the graph reads there");
        stream.memset_zeros(&mut next).unwrap();
        stream.launch(&exec).unwrap();
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), [5; 4]);
        drop(exec);
        stream.synchronize().unwrap();
        assert_eq!(memory.alloc::<u32>(4, &stream).unwrap().device_ptr(), at, "free again with the graph");
    });
}

/// The block of a slice is found from any view of it, and not from memory of another allocator.
#[test]
fn a_view_leads_to_the_block_of_its_slice() {
    on_devices(1, |_, contexts| {
        let memory = allocator(&contexts[0]);
        let stream = stream(&contexts[0]);
        let slice = memory.alloc::<u32>(100, &stream).unwrap();
        for view in [slice.as_view(), slice.slice(50..).unwrap()] {
            let block = DeviceAllocator::block_of(view.memory()).unwrap();
            assert_eq!((block.address(), block.requested()), (slice.device_ptr().0, 400));
        }
        let other = stream.alloc_zeros::<u32>(100).unwrap();
        assert!(DeviceAllocator::block_of(other.as_view().memory()).is_none());
    });
}

/// A source may return addresses without memory, so its blocks must not become slices, which safe code reads.
#[test]
fn memory_of_other_sources_is_no_slice() {
    on_devices(1, |_, contexts| {
        let stream = stream(&contexts[0]);
        let settings = |lends| PoolSettings {
            source: Some(Arc::new(HostSource::new(64 << 20))),
            lends,
            ..PoolSettings::default()
        };
        let is_refused = |memory: &DeviceAllocator| {
            let refused = memory.alloc::<u32>(4, &stream);
            assert!(matches!(refused, Err(AllocError::ForeignMemory { .. })), "{refused:?}");
            assert_eq!(memory.allocator().stats().all.allocated.current, 0);
        };
        let memory = allocator(&contexts[0]);
        let pool = memory.allocator().pool(settings(false)).unwrap();
        let route = pool.use_on_this_thread();
        is_refused(&memory);
        drop(route);
        let mut slice = memory.alloc::<u32>(4, &stream).unwrap();
        stream.memset_zeros(&mut slice).unwrap();

        let memory = allocator(&contexts[0]);
        let pool = memory.allocator().pool(settings(true)).unwrap();
        drop(pool.allocate(512, memory.register(&stream)).unwrap());
        memory.allocator().set_memory_limit(Some(0));
        is_refused(&memory);
    });
}

#[test]
fn slices_may_be_memory_of_several_pages() {
    on_devices(1, |_, contexts| {
        let (memory, stream) = (allocator(&contexts[0]), stream(&contexts[0]));
        let settings = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
        let pool = memory.allocator().pool(settings).unwrap();
        let route = pool.use_on_this_thread();
        let long = (24 << 20) / size_of::<u32>();
        let small: Vec<_> = (0..4).map(|_| memory.alloc::<u32>(long / 4, &stream).unwrap()).collect();
        drop(small);
        let mut slice = memory.alloc::<u32>(long, &stream).unwrap();
        stream.memset_zeros(&mut slice).unwrap();
        drop(route);
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), vec![0; long]);
        assert!(pool.stats().all.allocated.current >= 24 << 20);
    });
}

/// The default stream of each context has the same handle.
#[test]
fn default_streams_of_two_contexts_are_two_streams() {
    on_devices(2, |_, contexts| {
        let memory = allocator(&contexts[0]);
        let [own, foreign] = [0, 1].map(|at| Stream::legacy_default(&contexts[at]));
        let foreign = memory.register(&foreign);
        drop(memory.alloc::<u32>(4, &own).unwrap());
        assert_ne!(memory.register(&own), foreign);
        memory.forget(foreign);
        memory.alloc::<u32>(4, &own).unwrap();
    });
}

#[test]
fn lengths_and_streams_are_checked() {
    on_devices(2, |_, contexts| {
        let memory = allocator(&contexts[0]);
        let (own, foreign) = (stream(&contexts[0]), stream(&contexts[1]));
        let refused = memory.alloc::<u8>(1, &foreign);
        assert!(matches!(refused, Err(AllocError::ForeignStream)), "{refused:?}");
        // SAFETY: the handle is `CU_STREAM_PER_THREAD`, which always exists.
        let of_thread = unsafe { Stream::borrowed(&contexts[0], std::ptr::without_provenance_mut(2)) };
        let refused = memory.alloc::<u8>(1, &of_thread);
        assert!(matches!(refused, Err(AllocError::PerThreadStream)), "{refused:?}");
        let none = memory.alloc::<u64>(0, &own).unwrap();
        assert_eq!((none.len(), none.device_ptr()), (0, DevicePtr::NULL));
        let too_much = memory.alloc::<u64>(usize::MAX, &own);
        assert!(too_much.is_err(), "{too_much:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    /// Slices hold what was written to them, whatever was allocated, dropped and copied on two streams in between.
    #[test]
    fn no_two_slices_share_memory(steps in prop::collection::vec((0..8usize, 1..600usize, any::<bool>()), 1..60)) {
        on_devices(1, |_, contexts| {
            let memory = allocator(&contexts[0]);
            let streams = [stream(&contexts[0]), stream(&contexts[0])];
            let mut held: [Option<(DeviceSlice<u32>, Vec<u32>)>; 8] = Default::default();
            for (number, (at, len, second)) in steps.iter().enumerate() {
                let (used, written) = (&streams[usize::from(*second)], vec![number as u32; *len]);
                if let Some((slice, expected)) = held[*at].take() {
                    assert_eq!(used.clone_dtoh(&slice).unwrap(), expected);
                }
                let mut slice = memory.alloc(*len, &streams[0]).unwrap();
                used.memcpy_htod(&written, &mut slice).unwrap();
                held[*at] = Some((slice, written));
            }
            for (slice, expected) in held.into_iter().flatten() {
                assert_eq!(streams[1].clone_dtoh(&slice).unwrap(), expected);
            }
        });
    }
}
