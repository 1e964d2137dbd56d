//! Typed blocks in the safe collectives.

use cuda_driver::{Element, Stream, StreamFlags, graph::CaptureMode};
use half::{bf16, f16};
use process_group::{comm::ReduceOp, group::Scalar};
use symm_mem::{SliceError, Standing, SymmetricPool};

use super::{
    NCCL_2_28_9,
    job::{Rank, options, run_seen},
    on_ranks,
};

const LENGTH: usize = 1000;

/// Sums `value` over the ranks in a slice of the pool, and returns the elements.
fn sum<T: Scalar + Element>(rank: &Rank, pool: &SymmetricPool, value: T) -> Vec<T> {
    let mut slice = pool.alloc::<T>(LENGTH, &rank.stream).expect("there is room");
    pool.commit(&rank.world, options()).expect("the ranks agree");
    let found =
        pool.lookup(slice.device_ptr(), slice.bytes() as u64, rank.world.id()).expect("in one segment");
    assert!(matches!(found.expect("in the pool").standing, Standing::Window { .. }));
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

#[test]
fn a_block_is_reused_on_another_stream_after_its_uses() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).expect("a stream");
        let first = pool.alloc::<u32>(LENGTH, &rank.stream).expect("there is room");
        let at = first.device_ptr();
        // Work that holds back the stream of the first slice, until the flag is set.
        let flag = cuda_driver::memory::DeviceMemory::new(&rank.context, 4).expect("there is room");
        flag.copy_from_host(0, &[0_u32]).expect("it is copied");
        // SAFETY: the flag lives until the streams are done.
        unsafe {
            let condition = cuda_driver::WaitCondition::GreaterOrEqual;
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
                let (waits, unmapped) = (world.calls("cuStreamSynchronize"), world.calls("cuMemUnmap"));
                drop(pool);
                assert_eq!(world.calls("cuStreamSynchronize"), waits + 1);
                assert!(world.calls("cuMemUnmap") > unmapped);
                rank.leave();
            }
        },
    );
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
