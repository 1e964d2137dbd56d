//! Groups that compare the places of their buffers: all groups in their call history, some before each operation.

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::{DevicePtr, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    group::{Buffer, BufferError, Builder, GroupError, GroupErrorKind, Misplaced},
};
use symm_mem::{Domain, Geometry, SymmetricPool};

use super::{
    NCCL_2_28_9,
    job::{run_faithful, soon},
    on_ranks, options,
};

#[test]
fn a_buffer_elsewhere_is_told_to_all_before_anything_is_launched() {
    on_ranks(3, |rank| {
        let group = rank.builder().checked(true).build().expect("all ranks join");
        let domain = Domain::of(&group).expect("a rank of the job");
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
        let blocks = [0, 1].map(|_| pool.allocate(4096).expect("there is room"));
        let outside = DeviceMemory::new(&rank.context, 4096).expect("there is room");
        let sum = |at: DevicePtr| {
            let buffer = Buffer::new(at, 64, DataType::F32);
            // SAFETY: the blocks are alive until the stream has been synchronised.
            unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) }.map(drop)
        };
        let here =
            |odd: u32, elsewhere: DevicePtr| if rank.rank == odd { elsewhere } else { blocks[0].ptr() };
        let mismatch = |result: Result<(), GroupError>| match result.map_err(GroupError::into_kind) {
            Err(GroupErrorKind::SymmetricOffsetMismatch { misplaced, .. }) => {
                let Misplaced { rank, place, other, other_place, .. } = *misplaced;
                (rank, place, other, other_place)
            }
            other => panic!("{other:?}"),
        };
        // Buffers that are not committed may lie anywhere.
        sum(here(1, blocks[1].ptr())).expect("nothing is symmetric yet");
        pool.commit(&group, options()).expect("the ranks agree");
        pool.commit(&group, options()).expect("the ranks agree");
        sum(blocks[0].ptr()).expect("it lies alike");

        let at = |offset: u64| format!("in segment 0 of {:#} at offset {offset}", pool.id());
        assert_eq!(mismatch(sum(here(1, blocks[1].ptr()))), (1, at(4096), 0, at(0)));
        let nowhere = "in no symmetric memory".to_owned();
        assert_eq!(mismatch(sum(here(0, outside.ptr()))), (0, nowhere, 1, at(0)));
        // Nothing was launched, and the group goes on.
        sum(blocks[1].ptr()).expect("it lies alike");
        sum(outside.ptr()).expect("it is nowhere in the pool, on all ranks");
        rank.stream.synchronize().expect("the work is done");
        drop((blocks, pool));
        group.destroy(soon()).expect("all ranks leave");
        drop(outside);
        rank.leave();
    });
}

/// A block outlives its pool. The memory is freed with the block, and the group has used it until then.
#[test]
fn a_buffer_of_a_dropped_pool_is_refused_once_its_memory_is_freed() {
    on_ranks(2, |rank| {
        let group = rank.builder().build().expect("all ranks join");
        let domain = Domain::of(&group).expect("a rank of the job");
        let pool = SymmetricPool::new(&domain, &rank.context, Geometry::default()).expect("virtual memory");
        let block = pool.allocate(4096).expect("there is room");
        let buffer = Buffer::new(block.ptr(), 64, DataType::F32);
        // SAFETY: the block is alive until the work is done, or the call is refused.
        let sum = || unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) };
        sum().expect("the block is alive").wait().expect("all ranks call it");
        drop(pool);
        sum().expect("the block is alive").wait().expect("all ranks call it");
        drop(block);
        let refused = sum().map(drop).map_err(GroupError::into_kind);
        let Err(GroupErrorKind::Buffer { source: BufferError::Unknown { address }, .. }) = refused else {
            panic!("the memory was freed: {refused:?}")
        };
        assert_eq!(address, buffer.ptr.0);
        group.destroy(soon()).expect("all ranks leave");
        rank.leave();
    });
}

/// Waits until the group has ended, and returns the cause.
fn over(group: &ProcessGroup) -> GroupError {
    let until = soon();
    while !until.expired() {
        if let Err(error) = group.check() {
            return error;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing has ended the group")
}

/// A rank that uses the wrong block of a window is named to all, with both places, without a comparison before the
/// call.
#[test]
fn a_buffer_elsewhere_in_a_window_is_a_divergence() {
    let alike: fn(Builder) -> Builder = |builder| builder;
    // A group without buffer checks knows the places of buffers too.
    let unlooked: fn(Builder) -> Builder = |builder| builder.check_buffers(false);
    for odd in [alike, unlooked] {
        run_faithful(3, NCCL_2_28_9, |rank| {
            let builder = rank.builder().heartbeat(Duration::from_millis(200));
            let group = if rank.rank == 1 { odd(builder) } else { builder }.build().expect("all ranks join");
            let domain = Domain::of(&group).expect("a rank of the job");
            let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
            let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
            let blocks = [0, 1].map(|_| pool.allocate(4096).expect("there is room"));
            let outside = [0, 1].map(|_| DeviceMemory::new(&rank.context, 4096).expect("there is room"));
            let sum = |send: DevicePtr, receive: DevicePtr| {
                let [send, receive] = [send, receive].map(|at| Buffer::new(at, 64, DataType::F32));
                // SAFETY: the blocks are alive until the stream has been synchronised.
                unsafe { group.raw().all_reduce(send, receive, ReduceOp::Sum, &rank.stream) }.map(drop)
            };
            let [first, second] = [0, 1].map(|at: usize| blocks[at].ptr());
            let other = |here, elsewhere| if rank.rank == 1 { elsewhere } else { here };
            // A buffer outside of windows may lie anywhere: it is not committed, or not in the pool.
            sum(other(first, second), first).expect("nothing is symmetric yet");
            pool.commit(&group, options()).expect("the ranks agree");
            for _ in 0..3 {
                sum(other(outside[0].ptr(), outside[1].ptr()), outside[0].ptr()).expect("it is launched");
                sum(first + 256usize, second).expect("it lies alike");
                // Allocated, retired and allocated again, at any address.
                let passing = pool.allocate(8 << 20).expect("there is room");
                pool.commit(&group, options()).expect("the ranks agree");
                sum(passing.ptr(), passing.ptr()).expect("it lies alike");
                rank.stream.synchronize().expect("the work is done");
                let segment = passing.placement().ordinal;
                drop(passing);
                pool.retire(&[segment], &[&group], Duration::from_secs(60)).expect("the ranks agree");
            }
            // Longer than the comparison of the earlier calls takes.
            thread::sleep(Duration::from_millis(600));
            group.check().expect("all have called the same");

            let number = 11;
            let _ = sum(first, other(second, second + 512usize));
            let error = over(&group);
            let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else {
                panic!("{error}")
            };
            assert_eq!((&divergence.ranks[..], divergence.by), (&[1][..], number), "{error}");
            let call = |offset| {
                let lies = format!("send buffer at offset 0 and receive buffer at offset {offset}");
                format!("all_reduce of 64 f32 by sum, {lies} in segment 0 of {}", pool.id())
            };
            let calls: Vec<_> = divergence.calls.iter().map(|it| (it.rank, it.call.clone())).collect();
            assert_eq!(calls, [(1, call(4096 + 512)), (0, call(4096))]);
            group.abort(soon()).expect("it is over");
            rank.stream.synchronize().expect("the work is done");
            drop((blocks, pool, outside));
            rank.leave();
        });
    }
}

/// The second pool of a domain, and the first pool of the domain with the next number: the same place in another
/// pool.
#[test]
fn a_buffer_of_another_pool_is_a_divergence() {
    run_faithful(3, NCCL_2_28_9, |rank| {
        let builder = rank.builder().heartbeat(Duration::from_millis(200));
        let group = builder.build().expect("all ranks join");
        let store = Arc::new(rank.world.store());
        let [domain, next] = [20, 21].map(|uid| Domain::new(store.clone(), uid, rank.rank, 0..3));
        let domain = domain.expect("a member");
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pools = [&domain, &domain, &next.expect("a member")]
            .map(|domain| SymmetricPool::new(domain, &rank.context, geometry).expect("virtual memory"));
        let blocks = pools.each_ref().map(|pool| pool.allocate(4096).expect("there is room"));
        for pool in &pools {
            pool.commit(&group, options()).expect("the ranks agree");
        }
        let odd = usize::from(rank.rank == 1);
        let buffer = Buffer::new(blocks[1 + odd].ptr(), 64, DataType::F32);
        // SAFETY: the blocks are alive until the stream has been synchronised.
        let _ = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) };
        let error = over(&group);
        let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((&divergence.ranks[..], divergence.by), (&[1][..], 1), "{error}");
        let call = |pool: &str| {
            let lies = format!("at offset 0 in segment 0 of {pool}");
            format!("all_reduce of 64 f32 by sum, send and receive buffers {lies}")
        };
        let calls: Vec<_> = divergence.calls.iter().map(|it| (it.rank, it.call.clone())).collect();
        let named = ["pool 0 of domain 0x15 (generation 1)", "pool 1 of domain 0x14 (generation 1)"];
        assert_eq!(calls, [(1, call(named[0])), (0, call(named[1]))]);
        group.abort(soon()).expect("it is over");
        rank.stream.synchronize().expect("the work is done");
        drop((blocks, pools));
        rank.leave();
    });
}
