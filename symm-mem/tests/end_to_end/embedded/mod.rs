//! Pools and commits on the embedded device, with ranks as threads.

mod adopt;
mod agreed;
mod checks;
mod deadline;
mod domains;
mod doubt;
mod ends;
mod explain;
mod graphs;
mod group_end;
pub(crate) mod job;
mod joined;
mod places;
mod plain;
mod processes;
mod recovery;
mod retire;
mod scope;
mod typed;

use cuda_driver::{graph::CaptureMode, sys::CUresult};
use gpu_sim::{Action, Injection, World};
use job::{commit_key, options, run, run_on_one_thread, soon};
use process_group::{comm, store::Store};
use symm_mem::{
    CommitReport, CommunicatorGroup, Error, ErrorKind, Geometry, GroupId, LookupError, NoWindows, Poison,
    Policy, Refusal, RegistrationState, SymmetricError, SymmetricGroup, SymmetricPool, commit_all,
};

const NCCL_2_28_9: i32 = 22809;
const NCCL_2_28_3: i32 = 22803;

fn windows(result: &Result<CommitReport, Error>) -> (usize, usize) {
    let report = result.as_ref().expect("the ranks agree");
    (report.new_windows, report.windows)
}

/// Runs a job with an NCCL that has all features, and with the default devices.
fn on_ranks<T: Send>(size: u32, job: impl Fn(job::Rank) -> T + Sync) -> Vec<T> {
    run(size, NCCL_2_28_9, |_| {}, job)
}

#[test]
fn groups_share_a_pool_and_reduce_from_its_windows() {
    on_ranks(4, |rank| {
        let pool = rank.pool();
        let buckets: Vec<_> = (0..3).map(|_| pool.allocate(1 << 20).expect("there is room")).collect();
        let groups = rank.groups();
        let commits = groups.map(|group| (&pool, group as &dyn SymmetricGroup));
        for result in &commit_all(&commits, options()) {
            assert_eq!(windows(result), (2, 2), "{result:?}");
        }
        for (bucket, group) in buckets.iter().zip(groups) {
            rank.sum(bucket, group);
            let found = pool.lookup(bucket.ptr(), bucket.bytes(), group.id()).expect("in one segment");
            let found = found.expect("in the pool");
            assert_eq!(found.placement, bucket.placement());
            assert!(matches!(found.state, RegistrationState::Window { .. }), "{found:?}");
        }

        // The pool grows: only the new segment is registered. A commit without new segments registers nothing.
        let more = pool.allocate(6 << 20).expect("there is room");
        let pending =
            pool.lookup(more.ptr(), 4, rank.world.id()).expect("in one segment").expect("in the pool");
        assert_eq!(pending.state, RegistrationState::Pending);
        let grown = pool.commit(&rank.world, options());
        assert_eq!(windows(&grown), (1, 3));
        assert_eq!(windows(&pool.commit(&rank.world, options())), (0, 3));
        rank.sum(&more, &rank.world);
        let past = pool.lookup(more.ptr(), 1 << 30, rank.world.id());
        assert!(matches!(past, Err(LookupError::SpansSegments { .. })), "{past:?}");

        // The windows outlive the pool and its blocks, and the memory outlives the windows.
        let at = more.ptr();
        drop((pool, buckets, more));
        rank.all_reduce(at, 6 << 20, &rank.world);
        rank.stream.synchronize().expect("the memory is still there");
        rank.leave();
    });
}

#[test]
fn a_rank_that_differs_is_named_to_every_member_of_its_groups_and_the_others_go_on() {
    let results = run(
        4,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            let commit = |policy| {
                let commits = rank.groups().map(|group| (&pool, group as &dyn SymmetricGroup));
                commit_all(&commits, options().policy(policy))
            };
            assert!(commit(Policy::Strict).iter().all(|result| windows(result) == (1, 1)));
            let extra = (rank.rank == 2).then(|| pool.allocate(20 << 20).expect("there is room"));

            let results = commit(Policy::Strict);
            for (group, result) in rank.groups().iter().zip(&results) {
                assert_eq!(result.is_err(), group.global_ranks().contains(&2), "{result:?}");
            }
            // Earlier commits still work in all groups; and the prefix, which has nothing new, can be committed.
            for group in rank.groups() {
                rank.sum(&bucket, group);
            }
            for (group, result) in rank.groups().iter().zip(commit(Policy::Prefix)) {
                let report = result.expect("a prefix can always be committed");
                assert_eq!(
                    (report.windows, report.pending.is_some()),
                    (1, group.global_ranks().contains(&2))
                );
            }
            // Once the others have made the same allocation, all agree again.
            let extra = extra.unwrap_or_else(|| pool.allocate(20 << 20).expect("there is room"));
            assert!(commit(Policy::Strict).iter().all(|result| windows(result) == (1, 2)));
            rank.sum(&extra, &rank.world);
            drop((extra, bucket, pool));
            rank.leave();
            results
        },
    );
    // Results of world, TP and DP.
    let of_world: Vec<_> =
        results.iter().map(|results| results[0].as_ref().expect_err("rank 2 is in it")).collect();
    for error in &of_world {
        assert_eq!(error.refusal(), of_world[0].refusal());
        assert_eq!(error.name(), "SegmentCountMismatch");
    }
    let text = of_world[0].to_string();
    for part in [
        "ordinal 1",
        "rank 2: 1",
        "ranks 0, 1, 3: 0",
        "20971520 bytes",
        "no segment",
        "number 1",
        "embedded/mod.rs:",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(results[2][1].is_err() && results[3][1].is_err() && results[0][2].is_err());
    assert!(results[0][1].is_ok() && results[1][1].is_ok() && results[1][2].is_ok() && results[3][2].is_ok());
}

#[test]
fn a_release_without_windows_is_a_uniform_fallback() {
    let results = run(
        4,
        NCCL_2_28_3,
        |_| {},
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            let report = pool.commit(&rank.world, options()).expect("the ranks agree");
            assert_eq!((report.new_segments, report.windows), (1, 0));
            let found =
                pool.lookup(bucket.ptr(), 4, rank.world.id()).expect("in one segment").expect("in the pool");
            assert_eq!(found.state, RegistrationState::Registered);
            rank.sum(&bucket, &rank.world);
            // A difference is still found.
            let extra = (rank.rank == 2).then(|| pool.allocate(20 << 20).expect("there is room"));
            let error = pool.commit(&rank.world, options()).expect_err("rank 2 differs");
            assert_eq!(error.name(), "SegmentCountMismatch");
            drop((extra, bucket, pool));
            rank.leave();
            report.without
        },
    );
    let Some(NoWindows::Unsupported { reason }) = &results[0] else { panic!("{results:?}") };
    assert!(reason.contains("2.28.3"), "{reason}");
    assert!(results.iter().all(|without| *without == results[0]), "{results:?}");
}

#[test]
fn different_geometries_are_named() {
    on_ranks(2, |rank| {
        let geometry =
            Geometry { first_segment: (2 + 2 * u64::from(rank.rank)) << 20, largest_segment: 8 << 20 };
        let pool = SymmetricPool::new(&rank.domain, &rank.context, geometry).expect("there is memory");
        let block = pool.allocate(1 << 20).expect("there is room");
        let error = pool.commit(&rank.world, options()).expect_err("the segments differ");
        assert_eq!(error.name(), "SegmentShapeMismatch");
        let text = error.to_string();
        let hint = "make a new one with the same Geometry (first_segment, largest_segment) on all";
        assert!(text.ends_with(hint) && !text.contains("number 0"), "{text}");
        drop((block, pool));
        rank.leave();
    });
}

#[test]
fn a_group_of_one_needs_no_window() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let report = pool.commit(&rank.dp, options()).expect("it agrees with itself");
        assert_eq!((report.segments, report.windows), (1, 0));
        assert_eq!(report.without, Some(NoWindows::SingleMember {}));
        rank.sum(&bucket, &rank.dp);
        assert_eq!(windows(&pool.commit(&rank.tp, options())), (1, 1));
        rank.sum(&bucket, &rank.tp);
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_captured_graph_reduces_from_windows_and_keeps_its_blocks() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));

        let mut capture = pool.begin_capture();
        capture.uses(&bucket);
        let recording = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
        rank.fill(&bucket);
        rank.all_reduce(bucket.ptr(), bucket.bytes(), &rank.world);
        let grown = pool.allocate(64 << 20).expect_err("the pool is frozen");
        assert!(matches!(grown, SymmetricError::PoolWouldGrowDuringCapture { .. }), "{grown}");
        let refused = pool.commit(&rank.world, options()).expect_err("both ranks capture");
        let ranks = vec![0, 1];
        assert_eq!(refused.refusal(), Some(&Refusal::CommitDuringCapture { ranks }));
        let graph = recording.end().and_then(|graph| graph.instantiate()).expect("the capture is valid");
        let pin = capture.finish();

        let placement = bucket.placement();
        drop(bucket);
        let other = pool.allocate(1 << 20).expect("there is room");
        assert_ne!(other.placement(), placement, "the graph keeps its block");
        for _ in 0..3 {
            rank.stream.launch(&graph).expect("the graph can be launched");
        }
        rank.stream.synchronize().expect("the work is done");
        rank.check(&pin.blocks()[0], &rank.world);
        drop((graph, pin));
        let again = pool.allocate(1 << 20).expect("there is room");
        assert_eq!(again.placement(), placement);
        drop((again, other, pool));
        rank.leave();
    });
}

#[test]
fn one_rank_in_an_open_group_or_outside_the_domain_is_an_error_for_all() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let open = (rank.rank == 1).then(|| comm::Group::begin(rank.world.nccl()).expect("none is open"));
        let error = pool.commit(&rank.world, options()).expect_err("rank 1 is inside a group");
        assert_eq!(error.refusal(), Some(&Refusal::CommitInsideGroup { ranks: vec![1] }));
        if let Some(open) = open {
            open.finish().expect("it is empty");
        }

        let communicator = rank.world.communicator();
        let id = GroupId { uid: 77, epoch: 0 };
        let wide = CommunicatorGroup { id, ranks: vec![0, 5], communicator };
        let error = pool.commit(&wide, options()).expect_err("rank 5 has promised nothing");
        assert!(
            matches!(error.kind(), ErrorKind::GroupOutsideDomain { outside, .. } if outside == &[5]),
            "{error}"
        );
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_failed_registration_poisons_the_group_on_all_members() {
    let fail = Action::Fail(1);
    let errors = run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(Injection::new("ncclCommWindowRegister", fail)).unwrap(),
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            let error = pool.commit(&rank.world, options()).expect_err("a registration fails");
            let poison = pool.poison(rank.world.id());
            assert!(matches!(poison, Some(Poison::RegistrationFailed { .. })), "{poison:?}");
            // All members are told again at once when they retry together.
            let again = pool.commit(&rank.world, options()).expect_err("the group is dead");
            assert_eq!(again.name(), "RegistrationFailed");
            let unmapped = pool.symmetric_memory(&bucket, rank.world.id()).expect_err("the group is dead");
            assert_eq!(unmapped.name(), "RegistrationFailed");
            // The other groups stay usable.
            let report = pool.commit(&rank.dp, options());
            assert!(report.is_ok(), "{report:?}");
            rank.sum(&bucket, &rank.dp);
            let job::Rank { world, tp, dp, .. } = rank;
            for group in [tp, dp] {
                group.destroy(soon()).expect("all ranks leave");
            }
            let _ = world.abort(soon());
            error.to_string()
        },
    );
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("RegistrationFailed"), "{}", errors[0]);
}

#[test]
fn unequal_numbers_of_collectives_are_refused_before_anything_waits() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        rank.fill(&bucket);
        if rank.rank == 0 {
            rank.all_reduce(bucket.ptr(), bucket.bytes(), &rank.tp);
        }
        let error = pool.commit(&rank.world, options()).expect_err("rank 1 has not enqueued its part");
        let Some(Refusal::CollectivesOutstanding { group, collectives }) = error.refusal() else {
            panic!("{error}")
        };
        assert_eq!((*group, collectives.entries.len()), (rank.tp.id(), 2));
        if rank.rank == 1 {
            rank.all_reduce(bucket.ptr(), bucket.bytes(), &rank.tp);
        }
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        rank.stream.synchronize().expect("the work is done");
        rank.check(&bucket, &rank.tp);
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_rank_without_memory_is_named_to_all() {
    let out_of_memory = Action::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY.0);
    let results = run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(Injection::new("cuMemCreate", out_of_memory)).unwrap(),
        |rank| {
            let pool = rank.pool();
            let bucket = pool.allocate_tagged(1 << 20, "first bucket");
            let error = pool.commit(&rank.world, options()).expect_err("one rank has no segment");
            let failed = bucket.is_err();
            drop((bucket, pool));
            rank.leave();
            (failed, error.to_string())
        },
    );
    assert!(results[0].0 != results[1].0, "one of them had no memory: {results:?}");
    assert_eq!(results[0].1, results[1].1);
    let failed = u32::from(results[1].0);
    let refused = format!("rank {failed}: was refused 1048576 bytes");
    for part in ["SegmentCountMismatch", "tagged first bucket", &refused] {
        assert!(results[0].1.contains(part), "{part:?} is not in {}", results[0].1);
    }
}

#[test]
fn one_thread_commits_for_all_ranks() {
    run_on_one_thread(
        4,
        NCCL_2_28_9,
        |_| {},
        |ranks| {
            let pools: Vec<_> = ranks.iter().map(job::Rank::pool).collect();
            let blocks: Vec<_> = pools.iter().map(|pool| pool.allocate(1 << 20)).collect();
            let groups =
                |(rank, pool)| job::Rank::groups(rank).map(|group| (pool, group as &dyn SymmetricGroup));
            // An order that would hang if it were used as given.
            let commits: Vec<_> = ranks.iter().zip(&pools).flat_map(groups).rev().collect();
            let open = comm::Group::begin(ranks[0].world.nccl()).expect("none is open");
            for result in commit_all(&commits, options()) {
                let error = result.expect_err("this thread is inside a group");
                assert_eq!(error.name(), "CommitInsideGroup");
            }
            open.finish().expect("it is empty");
            for result in &commit_all(&commits, options()) {
                assert_eq!(windows(result), (1, 1));
            }
            drop((blocks, pools));
            std::thread::scope(|scope| ranks.into_iter().for_each(|rank| drop(scope.spawn(|| rank.leave()))));
        },
    );
}

#[test]
fn a_commit_of_nothing_new_does_not_call_the_library() {
    job::run_seen(
        2,
        NCCL_2_28_9,
        |_| {},
        |world, ranks| {
            let pools: Vec<_> = ranks.iter().map(job::Rank::pool_with_bucket).collect();
            let commits: Vec<_> = ranks
                .iter()
                .zip(&pools)
                .map(|(rank, (pool, _))| (pool, &rank.world as &dyn SymmetricGroup))
                .collect();
            let calls = || {
                let mut calls = world.faults().all_calls();
                // The watchdog polls this in the background at any time.
                calls.retain(|name, _| name.starts_with("nccl") && name != "ncclCommGetAsyncError");
                calls
            };
            assert!(commit_all(&commits, options()).iter().all(|result| windows(result) == (1, 1)));
            let before = calls();
            for _ in 0..3 {
                assert!(commit_all(&commits, options()).iter().all(|result| windows(result) == (0, 1)));
            }
            assert_eq!(calls(), before);
            assert!(before.contains_key("ncclCommWindowRegister"), "{before:?}");
            drop(pools);
            std::thread::scope(|scope| ranks.into_iter().for_each(|rank| drop(scope.spawn(|| rank.leave()))));
        },
    );
}

#[test]
fn a_group_that_was_forgotten_does_not_find_its_former_decisions() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        assert_eq!(windows(&pool.commit(&rank.dp, options())), (0, 0));
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        // Another communicator of the same name, which the caller has promised not to make: decisions for the first
        // one must not be taken for an agreement about the second.
        pool.forget(rank.world.id());
        let again = CommunicatorGroup {
            id: rank.world.id(),
            ranks: vec![0, 1],
            communicator: rank.tp.communicator(),
        };
        let extra = (rank.rank == 1).then(|| pool.allocate(20 << 20).expect("there is room"));
        let error = pool.commit(&again, options()).expect_err("rank 1 differs");
        assert_eq!(error.name(), "SegmentCountMismatch");
        drop((extra, bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_pool_is_frozen_until_the_last_capture_ends() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let (first, second) = (pool.begin_capture(), pool.begin_capture());
        drop(first.finish());
        let grown = pool.allocate(1 << 20).expect_err("the second capture goes on");
        assert!(matches!(grown, SymmetricError::PoolWouldGrowDuringCapture { .. }), "{grown}");
        drop(second);
        drop((pool.allocate(1 << 20).expect("there is room"), pool));
        rank.leave();
    });
}

#[test]
fn two_pools_are_committed_for_a_group_one_after_the_other() {
    on_ranks(2, |rank| {
        let pools = [rank.pool(), rank.pool()];
        let blocks = pools.each_ref().map(|pool| pool.allocate(1 << 20).expect("there is room"));
        let commit = |pool: usize| pools[pool].commit(&rank.world, options());
        let refused = |result: Result<CommitReport, Error>| {
            let error = result.expect_err("rank 0 is at the other pool");
            assert!(matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { rank: 0, .. })), "{error}");
        };
        if rank.rank == 0 {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| commit(0));
                let begun = commit_key(&pools[0], rank.world.id(), "records/0");
                rank.world.job_store().wait(&[&begun], soon()).expect("the first commit begins");
                refused(commit(1));
                assert_eq!(windows(&first.join().expect("no panic")), (1, 1));
            });
        } else {
            refused(commit(1));
            assert_eq!(windows(&commit(0)), (1, 1));
        }
        assert_eq!(windows(&commit(1)), (1, 1));
        blocks.iter().for_each(|block| rank.sum(block, &rank.world));
        drop((blocks, pools));
        rank.leave();
    });
}

#[test]
fn a_commit_ends_with_its_group() {
    // Rank 1 never comes, and the library reports an asynchronous error, for which the watchdog polls ten times a
    // second. Then all groups end on all ranks.
    let prepare = |world: &World| {
        let remote_error = Action::Fail(6);
        world
            .faults()
            .inject(Injection::new("ncclCommGetAsyncError", remote_error).nth(100).forever())
            .unwrap();
    };
    let over = std::sync::Barrier::new(2);
    let results = run(2, NCCL_2_28_9, prepare, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let result = (rank.rank == 0).then(|| pool.commit(&rank.world, options()));
        over.wait();
        drop((pool, bucket));
        rank.abandon();
        result
    });
    let error =
        results.into_iter().flatten().next().expect("rank 0 has committed").expect_err("rank 1 is not there");
    assert!(matches!(error.kind(), ErrorKind::GroupOver { .. }), "{error}");
    // The text alone names the group and the cause.
    let text = error.to_string();
    assert!(text.starts_with("commit of group world ("), "{text}");
    assert!(text.contains(".1.0): the group ended: rank "), "{text}");
    assert!(text.contains("ncclCommGetAsyncError"), "{text}");
    assert!(std::error::Error::source(&error).is_none(), "{text}");
}
