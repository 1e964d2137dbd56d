//! Typed blocks in the safe collectives.

use std::sync::{Arc, Mutex};

use cuda_driver::{
    DeviceSlice, Driver, Element, Stream, StreamFlags, WaitCondition,
    graph::CaptureMode,
    graph_memory,
    memory::DeviceMemory,
    sys::{Api, CUresult, CUstream, CUstreamCaptureStatus, Table},
};
use gpu_sim::World;
use half::{bf16, f16};
use process_group::{comm::ReduceOp, group::Scalar, store::HashStore};
use symm_mem::{
    CommitOptions, Domain, Error, ErrorKind, Geometry, RegistrationState, SliceError, SymmetricPool,
    rendezvous::{Buffer, ForeignSlice, Rendezvous, RendezvousOptions, SymmetricMemory},
};

use super::{
    NCCL_2_28_9,
    job::{Rank, options, run_seen, soon},
    on_ranks,
};
use crate::common::turn;

const LENGTH: usize = 1000;

/// Sums `value` over the ranks in a slice of the pool, and returns the elements.
fn sum<T: Scalar + Element>(rank: &Rank, pool: &SymmetricPool, value: T) -> Vec<T> {
    let mut slice = pool.alloc::<T>(LENGTH, &rank.stream).expect("there is room");
    pool.commit(&rank.world, options()).expect("the ranks agree");
    let found =
        pool.lookup(slice.device_ptr(), slice.bytes() as u64, rank.world.id()).expect("in one segment");
    assert!(matches!(found.expect("in the pool").state, RegistrationState::Window { .. }));
    rank.stream.memcpy_htod(&[value; LENGTH], &mut slice).expect("it is copied");
    rank.world.all_reduce(&mut slice, ReduceOp::Sum).expect("it is enqueued");
    rank.stream.clone_dtoh(&slice).expect("it is copied")
}

#[test]
fn slices_of_every_type_are_reduced_from_windows() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let own = f32::from(rank.rank as u8 + 1);
        assert_eq!(sum(&rank, &pool, own), [3.0; LENGTH]);
        assert_eq!(sum(&rank, &pool, f64::from(own)), [3.0; LENGTH]);
        assert_eq!(sum(&rank, &pool, own as i64), [3; LENGTH]);
        assert_eq!(sum(&rank, &pool, f16::from_f32(own)), [f16::from_f32(3.0); LENGTH]);
        assert_eq!(sum(&rank, &pool, bf16::from_f32(own)), [bf16::from_f32(3.0); LENGTH]);
        assert_eq!(pool.segments(), 1, "a dropped slice makes room");
        drop(pool);
        rank.leave();
    });
}

/// The elements of a member of the group that a buffer has on it.
fn elements_of(rank: &Rank, memory: &SymmetricMemory, place: usize) -> Vec<u32> {
    let mut found = vec![0u32; memory.bytes() / 4];
    // SAFETY: the members write the memory only before they meet.
    unsafe { rank.context.copy_to_host(&mut found, memory.buffer_ptr(place).unwrap()) }.unwrap();
    found
}

/// Elements that depend on the rank and the position.
fn elements(place: usize) -> Vec<u32> {
    (0..LENGTH as u32).map(|at| at + 10_000 * place as u32).collect()
}

#[test]
fn a_slice_is_allocated_and_mapped_in_one_call() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let _before = pool.alloc::<u8>(3, &rank.stream).unwrap();
        let (mut slice, memory) =
            pool.alloc_mapped::<u32>(LENGTH, &rank.stream, &rank.world, options()).unwrap();
        assert_eq!(memory.buffer_ptr(memory.rank()).unwrap(), slice.device_ptr());
        rank.stream.memcpy_htod(&elements(memory.rank()), &mut slice).unwrap();
        rank.stream.synchronize().unwrap();
        rank.world.barrier(soon()).unwrap();
        for place in 0..2 {
            assert_eq!(elements_of(&rank, &memory, place), elements(place));
        }
        // A part of the slice is the same part of the peers' slices, also in a rendezvous.
        let part = Buffer::of_slice(slice.slice(100..700).unwrap()).unwrap();
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default()).unwrap();
        let parts = [
            pool.symmetric_memory(&part, rank.world.id()).unwrap(),
            rendezvous.rendezvous(&part).unwrap(),
            rendezvous.get(Buffer::of_slice(slice.slice_mut(100..700).unwrap().as_view()).unwrap()).unwrap(),
        ];
        for memory in &parts {
            assert_eq!(elements_of(&rank, memory, 1 - memory.rank()), elements(1 - memory.rank())[100..700]);
        }
        rank.world.barrier(soon()).unwrap();
        drop((parts, part, rendezvous, memory, slice, _before, pool));
        rank.leave();
    });
}

#[test]
fn a_member_that_cannot_allocate_is_an_error_for_all() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let length = if rank.rank == 1 { usize::MAX } else { LENGTH };
        let refused = pool.alloc_mapped::<u32>(length, &rank.stream, &rank.world, options()).unwrap_err();
        match rank.rank {
            1 => assert!(matches!(refused.kind(), ErrorKind::Slice(SliceError::Pool(_))), "{refused}"),
            _ => assert!(refused.refusal().is_some(), "{refused}"),
        }
        drop(pool);
        rank.leave();
    });
}

/// Commits a pool with room for more blocks, so that later commits with the default options have nothing new. Then
/// allocates `extra` bytes on rank 0 alone, if given, and maps slices of `length` elements. Returns the error.
fn mapped_after(rank: &Rank, extra: Option<u64>, length: usize) -> Error {
    let pool = rank.pool();
    pool.reserve(1 << 20).unwrap();
    pool.commit(&rank.world, CommitOptions::default()).unwrap();
    let _extra = extra.filter(|_| rank.rank == 0).map(|bytes| pool.allocate(bytes).unwrap());
    pool.alloc_mapped::<u32>(length, &rank.stream, &rank.world, CommitOptions::default()).unwrap_err()
}

#[test]
fn slices_at_different_offsets_are_never_mapped() {
    on_ranks(2, |rank| {
        let refused = mapped_after(&rank, Some(512), LENGTH);
        assert!(refused.refusal().is_some(), "{refused}");
        rank.leave();
    });
}

/// The failed call is not in the log of requests, so the member has nothing new to commit.
#[test]
fn a_member_that_allocates_nothing_later_is_an_error_for_all() {
    on_ranks(2, |rank| {
        let refused = mapped_after(&rank, None, if rank.rank == 1 { usize::MAX } else { LENGTH });
        match rank.rank {
            1 => assert!(matches!(refused.kind(), ErrorKind::Slice(SliceError::Pool(_))), "{refused}"),
            _ => assert!(refused.refusal().is_some(), "{refused}"),
        }
        rank.leave();
    });
}

#[test]
fn blocks_are_mapped_after_a_commit_that_has_compared_them() {
    on_ranks(2, |rank| {
        let (pool, world) = (rank.pool(), rank.world.id());
        let first = pool.allocate(512).unwrap();
        pool.commit(&rank.world, CommitOptions::default()).unwrap();
        let second = pool.allocate(512).unwrap();
        pool.commit(&rank.world, CommitOptions::default()).unwrap();
        assert!(pool.symmetric_memory(&first, world).is_ok());
        let refused = pool.symmetric_memory(&second, world).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NotCompared { request: 1, compared: 1 }), "{refused}");
        pool.commit(&rank.world, CommitOptions::default().verify(true)).unwrap();
        assert!(pool.symmetric_memory(&second, world).is_ok());
        drop((first, second, pool));
        rank.leave();
    });
}

#[test]
fn a_slice_of_another_allocator_is_an_error() {
    on_ranks(1, |rank| {
        let slice = rank.stream.alloc_zeros::<u32>(10).unwrap();
        let address = slice.device_ptr();
        let refused = Buffer::of_slice(&slice).unwrap_err();
        assert_eq!(refused, ForeignSlice { address });
        assert!(refused.to_string().contains("not memory of a symmetric pool"), "{refused}");
        drop(slice);
        rank.leave();
    });
}

/// A buffer of a slice keeps the block. Then the next slice there waits for the stream of the dropped slice.
#[test]
fn a_buffer_keeps_the_block_of_a_dropped_slice() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
        let slice = pool.alloc::<u32>(LENGTH, &rank.stream).unwrap();
        let at = slice.device_ptr();
        let buffer = Buffer::of_slice(slice.slice(7..).unwrap()).unwrap();
        assert_eq!((buffer.ptr(), buffer.bytes()), (at + 28usize, 4 * (LENGTH - 7)));
        drop(slice);
        let elsewhere = pool.alloc::<u32>(LENGTH, &other).unwrap();
        assert_ne!(elsewhere.device_ptr(), at, "the buffer keeps the block");
        // Work that holds back the stream of the first slice, until the flag is set.
        let flag = DeviceMemory::new(&rank.context, 4).unwrap();
        flag.copy_from_host(0, &[0_u32]).unwrap();
        // SAFETY: the flag lives until the streams are done.
        unsafe { rank.stream.wait_value32(flag.ptr(), WaitCondition::GreaterOrEqual, 1) }.unwrap();
        drop(buffer);
        let again = pool.alloc::<u32>(LENGTH, &other).unwrap();
        assert_eq!(again.device_ptr(), at);
        assert!(!other.query().unwrap(), "it waits for the first slice's stream");
        flag.copy_from_host(0, &[1_u32]).unwrap();
        other.synchronize().unwrap();
        drop((again, elsewhere, flag, other, pool));
        rank.leave();
    });
}

/// Work that uses a slice's block may be enqueued on the slice's stream as long as a pin keeps the block.
#[test]
fn a_pinned_block_of_a_dropped_slice_is_reused_after_the_work_before_its_unpin() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
        // The pool does not grow during the capture.
        drop(pool.alloc::<u32>(LENGTH, &rank.stream).unwrap());
        let capture = pool.begin_capture();
        let slice = pool.alloc::<u32>(LENGTH, &rank.stream).unwrap();
        let at = slice.device_ptr();
        let pin = capture.finish();
        drop(slice);
        let flag = DeviceMemory::new(&rank.context, 4).unwrap();
        flag.copy_from_host(0, &[0_u32]).unwrap();
        // SAFETY: the flag lives until the streams are done.
        unsafe { rank.stream.wait_value32(flag.ptr(), WaitCondition::GreaterOrEqual, 1) }.unwrap();
        drop(pin);
        let again = pool.alloc::<u32>(LENGTH, &other).unwrap();
        assert_eq!(again.device_ptr(), at);
        assert!(!other.query().unwrap(), "it waits for the first slice's stream");
        flag.copy_from_host(0, &[1_u32]).unwrap();
        other.synchronize().unwrap();
        drop((again, flag, other, pool));
        rank.leave();
    });
}

#[test]
fn a_block_is_reused_on_another_stream_after_its_uses() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).expect("a stream");
        let first = pool.alloc::<u32>(LENGTH, &rank.stream).expect("there is room");
        let at = first.device_ptr();
        // Work that holds back the stream of the first slice, until the flag is set.
        let flag = DeviceMemory::new(&rank.context, 4).expect("there is room");
        flag.copy_from_host(0, &[0_u32]).expect("it is copied");
        // SAFETY: the flag lives until the streams are done.
        unsafe {
            let condition = WaitCondition::GreaterOrEqual;
            rank.stream.wait_value32(flag.ptr(), condition, 1).expect("it is enqueued");
        }
        drop(first);
        let second = pool.alloc::<u32>(LENGTH, &other).expect("there is room");
        assert_eq!(second.device_ptr(), at);
        assert!(!other.query().expect("the device is well"), "it waits for the first slice's stream");
        flag.copy_from_host(0, &[1_u32]).expect("it is copied");
        other.synchronize().expect("it ends");

        // In a capture, streams cannot be ordered.
        drop(second);
        let capture = other.begin_capture(CaptureMode::ThreadLocal).expect("a capture");
        let refused = pool.alloc::<u32>(LENGTH, &other).expect_err("the other stream had a slice");
        assert!(matches!(refused, SliceError::WhileCapturing), "{refused}");
        drop(capture);
        drop((flag, other, pool));
        rank.leave();
    });
}

#[test]
fn a_pool_waits_for_the_streams_of_dropped_slices_before_it_unmaps_them() {
    run_seen(
        1,
        NCCL_2_28_9,
        |_| {},
        |world, ranks| {
            for rank in ranks {
                let pool = rank.pool();
                let mut slice = pool.alloc::<u32>(LENGTH, &rank.stream).expect("there is room");
                rank.stream.memset_zeros(&mut slice).expect("it is enqueued");
                drop(slice);
                let (waits, unmapped) = (world.calls("cuEventSynchronize"), world.calls("cuMemUnmap"));
                drop(pool);
                assert_eq!(world.calls("cuEventSynchronize"), waits + 1);
                assert!(world.calls("cuMemUnmap") > unmapped);
                rank.leave();
            }
        },
    );
}

#[test]
fn a_pool_is_released_although_the_stream_of_a_dropped_slice_captures() {
    run_seen(
        1,
        NCCL_2_28_9,
        |_| {},
        |world, ranks| {
            for rank in ranks {
                let pool = rank.pool();
                let mut slice = pool.alloc::<u32>(LENGTH, &rank.stream).expect("there is room");
                rank.stream.memset_zeros(&mut slice).expect("it is enqueued");
                drop(slice);
                let capture = rank.stream.begin_capture(CaptureMode::Global).expect("a capture");
                let unmapped = world.calls("cuMemUnmap");
                drop(pool);
                assert!(world.calls("cuMemUnmap") > unmapped);
                capture.end().expect("the capture is valid");
                rank.leave();
            }
        },
    );
}

#[test]
fn a_pool_keeps_only_streams_whose_work_may_use_its_memory() {
    run_seen(
        1,
        NCCL_2_28_9,
        |_| {},
        |world, ranks| {
            for rank in ranks {
                let pool = rank.pool();
                let destroyed = world.calls("cuStreamDestroy_v2");
                for _ in 0..1000 {
                    let stream = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).expect("a stream");
                    let mut slice = pool.alloc::<u32>(LENGTH, &stream).expect("there is room");
                    stream.memset_zeros(&mut slice).expect("it is enqueued");
                    drop(slice);
                    stream.synchronize().expect("it ends");
                }
                let kept = 1000 - (world.calls("cuStreamDestroy_v2") - destroyed);
                assert!(kept <= 3, "{kept} streams are kept");
                // The answer does not depend on whether the work has ended.
                let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("a capture");
                let refused = pool.alloc::<u32>(LENGTH, &rank.stream).expect_err("other streams had slices");
                assert!(matches!(refused, SliceError::WhileCapturing), "{refused}");
                drop((capture, pool));
                rank.leave();
            }
        },
    );
}

/// Calls `job` with a pool on a world of one device, whose functions `replace` may replace.
fn on_device(
    replace: impl FnOnce(&mut Table),
    job: impl FnOnce(&World, SymmetricPool, [Stream; 3]),
) -> World {
    let world = World::builder().devices(1).start().expect("no other world is alive");
    let mut table = world.cuda();
    replace(&mut table);
    // SAFETY: the functions are those of the living world, or call them, and nothing of it outlives the world.
    let api = unsafe { Api::from_parts(table) }.expect("the table has what it must have");
    let driver = Driver::new(api).expect("there is a device");
    let context = driver.device(0).and_then(|device| device.retain_primary()).expect("a device");
    let domain = Domain::new(Arc::new(HashStore::new()), 77, 0, [0]).expect("a member");
    let pool = SymmetricPool::new(&domain, &context, Geometry::default()).expect("virtual memory");
    let streams = [(); 3]
        .map(|()| Stream::new(&context, StreamFlags::NON_BLOCKING).expect("there is room for a stream"));
    job(&world, pool, streams);
    world
}

/// The slice that another thread drops during the next query of a capture status.
static DROPPED: Mutex<Option<DeviceSlice<u32>>> = Mutex::new(None);
static IS_CAPTURING: Mutex<Option<Table>> = Mutex::new(None);

unsafe extern "C" fn drop_and_query(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult {
    // The drop of the slice queries the capture status too, so it must come after the lock.
    let dropped = DROPPED.lock().unwrap().take();
    drop(dropped);
    let query = IS_CAPTURING.lock().unwrap().as_ref().and_then(|table| table.cuStreamIsCapturing);
    // SAFETY: the caller's arguments.
    unsafe { query.unwrap()(stream, status) }
}

#[test]
fn a_slice_that_is_dropped_during_an_allocation_is_waited_for() {
    let _turn = turn();
    let replace = |table: &mut Table| {
        *IS_CAPTURING.lock().unwrap() = Some(table.clone());
        table.cuStreamIsCapturing = Some(drop_and_query);
    };
    let world = on_device(replace, |_, pool, [first, second, third]| {
        let alloc = |stream: &Stream| pool.alloc::<u32>(LENGTH, stream).expect("there is room");
        drop(alloc(&first));
        let (kept, dropped) = (alloc(&first), alloc(&second));
        let at = dropped.device_ptr();
        let flag = DeviceMemory::new(first.context(), 4).expect("there is room");
        flag.copy_from_host(0, &[0_u32]).expect("it is copied");
        // SAFETY: the flag lives until the streams are done.
        unsafe { second.wait_value32(flag.ptr(), WaitCondition::GreaterOrEqual, 1) }.expect("it is enqueued");
        *DROPPED.lock().unwrap() = Some(dropped);
        let slice = alloc(&third);
        assert_eq!(slice.device_ptr(), at, "the slice was dropped before the block was placed");
        assert!(!third.query().expect("the device is well"), "it waits for the dropped slice's stream");
        flag.copy_from_host(0, &[1_u32]).expect("it is copied");
        third.synchronize().expect("it ends");
        drop((kept, slice));
    });
    *IS_CAPTURING.lock().unwrap() = None;
    world.finish().expect("nothing is left behind");
}

/// Addresses and ids of captures mean nothing to another driver.
#[test]
fn captures_of_another_driver_pin_nothing() {
    unsafe extern "C" fn init(_: u32) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    let _turn = turn();
    let world = on_device(
        |_| {},
        |world, pool, _| {
            let mut table = world.cuda();
            table.cuInit = Some(init);
            // SAFETY: the functions are those of the living world, or without effect.
            let api = unsafe { Api::from_parts(table) }.expect("the table has what it must have");
            let other = Driver::new(api).expect("there is a device");
            let context = other.device(0).and_then(|device| device.retain_primary()).expect("a device");
            let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).expect("there is room");
            let block = pool.allocate(512).expect("there is room");
            let at = block.ptr();
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).expect("it begins");
            graph_memory::note(&stream, [(at, 512)]).expect("nothing is refused");
            let graph = capture.end().expect("it ends");
            drop(block);
            assert_eq!(pool.allocate(512).expect("there is room").ptr(), at);
            drop(graph);
        },
    );
    world.finish().expect("nothing is left behind");
}

/// The pool waits for the work in the background after 10 s.
#[test]
fn the_drop_of_a_pool_ends_although_the_work_on_a_dropped_slice_does_not() {
    let _turn = turn();
    let world = on_device(
        |_| {},
        |world, pool, [stream, ..]| {
            let slice = pool.alloc::<u32>(LENGTH, &stream).expect("there is room");
            let flag = DeviceMemory::new(stream.context(), 4).expect("there is room");
            flag.copy_from_host(0, &[0_u32]).expect("it is copied");
            // SAFETY: the flag lives until the stream is done.
            unsafe { stream.wait_value32(flag.ptr(), WaitCondition::GreaterOrEqual, 1) }
                .expect("it is enqueued");
            let unmapped = world.calls("cuMemUnmap");
            drop((slice, pool));
            assert_eq!(world.calls("cuMemUnmap"), unmapped, "the work still runs");
            flag.copy_from_host(0, &[1_u32]).expect("it is copied");
            stream.synchronize().expect("it ends");
        },
    );
    world.finish().expect("the memory is freed after the work");
}

#[test]
fn a_pool_whose_slice_is_dropped_during_a_capture_leaves_it_valid() {
    let _turn = turn();
    let world = on_device(
        |_| {},
        |world, pool, [stream, ..]| {
            let mut slice = pool.alloc::<u32>(LENGTH, &stream).expect("there is room");
            stream.memset_zeros(&mut slice).expect("it is enqueued");
            let unmapped = world.calls("cuMemUnmap");
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).expect("a capture");
            drop((slice, pool));
            assert_eq!(world.calls("cuMemUnmap"), unmapped, "the work may still run");
            capture.end().expect("the capture is valid");
        },
    );
    world.finish().expect("the memory is freed after the capture");
}

#[test]
fn a_stream_of_another_context_is_refused() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let length = pool.log().length;
        let device = rank.context.driver().device(1 - rank.rank).expect("two devices");
        let context = device.retain_primary().expect("a context");
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).expect("a stream");
        let refused = pool.alloc::<u32>(1, &stream).expect_err("it is of the other rank's device");
        assert!(matches!(refused, SliceError::ForeignStream), "{refused}");
        assert_eq!(pool.log().length, length);
        drop((stream, context, pool));
        rank.leave();
    });
}
