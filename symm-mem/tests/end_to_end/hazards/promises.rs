//! Hazards of ranks that rely on their own memory of commits, or on allocations that other ranks have not promised.

use std::time::Duration;

use cuda_driver::{DevicePtr, Stream, StreamFlags};
use gpu_sim::World;
use process_group::{
    comm::{DataType, ReduceOp},
    group::{Buffer, BufferError, GroupErrorKind},
    store::Store as _,
};
use symm_mem::{
    BufferLocation, Domain, Geometry, GroupId, LookupError, Poison, Policy, Refusal, RegistrationState,
    SymmetricBlock, SymmetricGroup, SymmetricPool,
};

use super::NCCL;
use crate::embedded::job::{self, Rank, options, soon};

const MIB: u64 = 1 << 20;

/// Runs `job` on ranks as threads; it also gets the world.
fn seen(size: u32, job: impl Fn(&World, Rank) + Sync) {
    job::run_seen(
        size,
        NCCL,
        |_| {},
        |world, ranks| {
            std::thread::scope(|scope| {
                let job = &job;
                ranks.into_iter().for_each(|rank| _ = scope.spawn(move || job(world, rank)));
            });
        },
    );
}

fn state(pool: &SymmetricPool, block: &SymmetricBlock, group: GroupId) -> RegistrationState {
    let found = pool.lookup(block.ptr(), 4, group).expect("in one segment");
    let BufferLocation { state, .. } = found.expect("in the pool");
    state
}

/// Rank 0 makes a commit that rank 1 makes later only. Both are told, and neither commit is taken for a later one.
#[test]
fn a_commit_that_one_rank_makes_alone_pairs_with_no_later_call() {
    seen(2, |world, rank| {
        let (pool, first) = rank.pool_with_bucket();
        assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
        let second = pool.allocate(2 * MIB).expect("there is room");
        let alone = |deadline| pool.commit(&rank.world, options().deadline(deadline));
        let early = (rank.rank == 0).then(|| alone(Duration::from_secs(2)));
        rank.world.barrier(soon()).expect("all come");
        let error = early.unwrap_or_else(|| alone(Duration::from_secs(60))).expect_err("rank 0 was alone");
        let Some(Refusal::SyncTimeout { missing, .. }) = error.refusal() else { panic!("{error}") };
        assert_eq!(missing.iter().map(|it| it.rank).collect::<Vec<_>>(), [1], "{error}");
        assert_eq!(state(&pool, &second, rank.world.id()), RegistrationState::Pending);
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclCommWindowRegister"), 2);
        assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
        [&first, &second].into_iter().for_each(|block| rank.sum(block, &rank.world));
        drop((first, second, pool));
        rank.leave();
    });
}

/// Ranks 0 and 1 have committed a segment as a pair. That does not make it old for the world: each group has its own
/// log.
#[test]
fn a_segment_that_is_old_for_one_group_is_new_for_another() {
    seen(4, |world, rank| {
        let (pool, block) = rank.pool_with_bucket();
        // Ranks 0 and 1 remember two commits of the segment, ranks 2 and 3 none.
        if rank.rank < 2 {
            for new in [1, 0] {
                assert_eq!(pool.commit(&rank.tp, options()).expect("both agree").new_windows, new);
            }
        }
        let report = pool.commit(&rank.world, options()).expect("all agree");
        assert_eq!((report.new_windows, report.windows), (1, 1), "rank {}", rank.rank);
        rank.sum(&block, &rank.world);
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclCommWindowRegister"), 6, "two for the pair, and four for the world");
        drop((block, pool));
        rank.leave();
    });
}

/// One rank has forgotten the commits of a group: for it the segment is new, and for the others nothing is.
#[test]
fn a_rank_that_has_forgotten_earlier_commits_registers_nothing_alone() {
    seen(3, |world, rank| {
        let (pool, block) = rank.pool_with_bucket();
        assert_eq!(pool.commit(&rank.world, options()).expect("all agree").new_windows, 1);
        rank.world.barrier(soon()).expect("all come");
        if rank.rank == 1 {
            pool.forget(rank.world.id());
        }
        let error = pool.commit(&rank.world, options()).expect_err("rank 1 knows of no window");
        assert_eq!(error.name(), "CommittedLogDiverged", "{error}");
        let Some(Poison::CommittedLogDiverged { logs }) = pool.poison(rank.world.id()) else {
            panic!("{error}")
        };
        let entries: Vec<_> = logs.entries.iter().map(|it| (it.value.length, it.ranks.clone())).collect();
        assert_eq!(entries, [(1, vec![0, 2]), (0, vec![1])], "{error}");
        assert_eq!(world.calls("ncclCommWindowRegister"), 3, "no rank has registered it again");
        drop((block, pool));
        rank.abandon();
    });
}

/// The ranks of each pair promise each other equal allocations, and no more. Groups across the pairs are refused on all
/// of their members, before the library is called.
#[test]
fn a_group_across_two_domains_is_refused_on_all_members() {
    seen(4, |world, rank| {
        let domain = Domain::of(&rank.tp).expect("a rank of the job");
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
        // Equal sizes after unequal requests, which only the other pair can see.
        let early = (rank.rank >= 2).then(|| pool.allocate(2 * MIB).expect("there is room"));
        let block = pool.allocate(2 * MIB).expect("there is room");
        let segments = pool.segments();
        assert_eq!(pool.commit(&rank.tp, options()).expect("the pair agrees").windows, segments);
        rank.world.barrier(soon()).expect("all come");
        let calls = world.calls("ncclCommWindowRegister");
        assert_eq!(calls, 2 + 2 * 2);
        let groups: [&dyn SymmetricGroup; 2] = [&rank.world, &rank.dp];
        for group in groups {
            let error = pool.commit(group, options()).expect_err("the other pair has promised nothing");
            assert_eq!(error.name(), "GroupOutsideDomain", "{error}");
            let others: Vec<u32> = group.ranks().into_iter().filter(|it| it / 2 != rank.rank / 2).collect();
            assert!(error.to_string().contains(&format!("{others:?}")), "{error}");
            assert_eq!(state(&pool, &block, group.id()), RegistrationState::Pending);
        }
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclCommWindowRegister"), calls);
        rank.sum(&block, &rank.tp);
        drop((early, block, pool));
        rank.leave();
    });
}

/// The ranks of each pair make equal requests, although all four have promised that: the pairs commit, and groups
/// across them are refused on all of their members.
#[test]
fn a_promise_that_only_pairs_keep_serves_the_pairs_alone() {
    seen(4, |world, rank| {
        let pool = rank.pool();
        let early = (rank.rank >= 2).then(|| pool.allocate(2 * MIB).expect("there is room"));
        let block = pool.allocate(2 * MIB).expect("there is room");
        let windows = pool.commit(&rank.tp, options()).expect("the pair agrees").windows;
        assert_eq!(windows, pool.segments());
        rank.world.barrier(soon()).expect("all come");
        let calls = world.calls("ncclCommWindowRegister");
        for group in [&rank.world, &rank.dp] {
            let error = pool.commit(group, options()).expect_err("the pairs differ");
            let refusal = error.refusal().expect("all are told the same");
            assert!(matches!(refusal, Refusal::SegmentCountMismatch { .. }), "{error}");
            let odd = group.global_ranks().iter().filter(|rank| **rank >= 2).count();
            let text = error.to_string();
            assert!(text.contains(if odd == 2 { "ranks 2, 3: 2" } else { ": 2" }), "{text}");
            assert_eq!(state(&pool, &block, group.id()), RegistrationState::Pending);
        }
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclCommWindowRegister"), calls);
        rank.sum(&block, &rank.tp);
        drop((early, block, pool));
        rank.leave();
    });
}

/// The second segments of both ranks have the same ordinal and size by accident: rank 1 has made another request
/// before. So later blocks lie at other offsets, and the segments are not paired.
#[test]
fn segments_that_are_equal_by_accident_are_not_paired() {
    seen(2, |world, rank| {
        let pool = rank.pool();
        let first = pool.allocate(MIB).expect("there is room");
        let extra = (rank.rank == 1).then(|| pool.allocate(MIB).expect("there is room"));
        let late = pool.allocate(2 * MIB).expect("there is room");
        assert_eq!((late.placement().ordinal, late.placement().offset), (1, 0));
        let error = pool.commit(&rank.world, options()).expect_err("rank 1 has made another request");
        assert_eq!(error.name(), "AllocationDiverged", "{error}");
        let parts =
            ["segment 1 is equal", "rank 0: allocated 2097152 bytes", "rank 1: allocated 1048576 bytes"];
        for part in parts {
            assert!(error.to_string().contains(part), "{part:?} is not in {error}");
        }
        // The segment before that request is the same.
        let prefix = options().policy(Policy::Prefix);
        let report = pool.commit(&rank.world, prefix).expect("it can always be committed");
        assert_eq!((report.new_windows, report.pending.map(|it| it.name())), (1, Some("AllocationDiverged")));
        assert_eq!(state(&pool, &late, rank.world.id()), RegistrationState::Pending);
        rank.sum(&first, &rank.world);
        rank.sum(&late, &rank.world);
        // The same request, at another offset.
        let next = pool.allocate(MIB).expect("there is room");
        assert_eq!(next.placement().ordinal, 2 * rank.rank);
        let refused = pool.commit(&rank.world, options()).expect_err("they stay different");
        assert!(refused.refusal().is_some(), "{refused}");
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclCommWindowRegister"), 2);
        drop((first, extra, late, next, pool));
        rank.leave();
    });
}

/// Each rank drops a slice while its stream is busy or idle, and allocates again: the place does not depend on that.
#[test]
fn a_block_is_placed_alike_whether_or_not_its_former_work_is_done() {
    seen(2, |_, rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let stream = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).expect("a stream");
        let busy = || rank.all_reduce(bucket.ptr(), bucket.bytes(), &rank.tp);
        let slice = |stream| pool.alloc::<f32>(1000, stream).expect("there is room");
        rank.fill(&bucket);
        let mut places = Vec::new();
        for odd in [0, 1] {
            let first = slice(&rank.stream);
            rank.stream.synchronize().expect("the work is done");
            if rank.rank == odd {
                // Waits for the other rank, which comes when both have allocated again.
                busy();
            }
            assert_eq!(rank.stream.query().expect("the device is well"), rank.rank != odd);
            drop(first);
            let (again, other) = (slice(&stream), slice(&rank.stream));
            places.extend([&again, &other].map(|slice| slice.device_ptr().0 - bucket.ptr().0));
            rank.world.barrier(soon()).expect("all come");
            if rank.rank != odd {
                busy();
            }
            stream.synchronize().expect("the work is done");
        }
        let store = rank.world.job_store();
        store
            .set(&format!("test/places/{}", rank.rank), format!("{places:?}").as_bytes())
            .expect("it is there");
        let others =
            store.get(&format!("test/places/{}", 1 - rank.rank), soon()).expect("the other rank is well");
        assert_eq!(String::from_utf8_lossy(&others), format!("{places:?}"));
        assert_eq!(places[0], MIB, "the place of the slice that was dropped");
        assert_eq!(pool.commit(&rank.world, options()).expect("both have the same history").new_windows, 1);
        drop((bucket, pool, stream));
        rank.leave();
    });
}

/// A collective on a buffer that begins in one window and ends in the next one. The library would accept it, and read
/// the peers' memory past the end of the first window.
#[test]
fn a_buffer_over_the_end_of_a_window_is_refused() {
    seen(2, |world, rank| {
        let (pool, first) = rank.pool_with_bucket();
        let second = pool.allocate(2 * MIB).expect("there is room");
        assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 2);
        let end_of = |block: &SymmetricBlock| match pool.lookup(block.ptr(), u64::MAX, rank.world.id()) {
            Err(LookupError::SpansSegments { end, .. }) => end,
            other => panic!("{other:?}"),
        };
        let at = DevicePtr(end_of(&first).min(end_of(&second)) - 4);
        let buffer = Buffer::new(at, 2, DataType::F32);
        let stream = Stream::new(rank.world.context(), StreamFlags::NON_BLOCKING).expect("a stream");
        // SAFETY: both blocks live, and the call is refused.
        let reduced = unsafe { rank.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
        let error = reduced.expect_err("it spans two windows");
        let GroupErrorKind::Buffer { source: BufferError::SpansWindow { bytes: 8, found: 4, .. }, .. } =
            error.kind()
        else {
            panic!("{error}")
        };
        rank.world.barrier(soon()).expect("all come");
        assert_eq!(world.calls("ncclAllReduce"), 0);
        rank.world.barrier(soon()).expect("all come");
        [&first, &second].into_iter().for_each(|block| rank.sum(block, &rank.world));
        drop((first, second, pool));
        rank.leave();
    });
}
