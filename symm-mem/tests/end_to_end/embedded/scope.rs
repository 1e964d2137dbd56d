//! Scopes: what is new in a region becomes windows at its end, and a commit without anything new uses no store.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use caching_alloc::{
    core::{Allocator, PoolSettings, SegmentSource, Settings, SourceError, symmetric::SymmetricError},
    driver::{DriverEvents, DriverSource},
};
use cuda_driver::{DevicePtr, graph::CaptureMode, memory::DeviceMemory};
use process_group::store::{HashStore, Result, Store};
use symm_mem::{
    CommitOptions, Domain, Error, ErrorKind, Geometry, PoolSource, Refusal, RegistrationState,
    SymmetricBlock, SymmetricGroup, SymmetricPool, commit_all,
};

use super::{
    NCCL_2_28_9,
    job::{self, Rank, soon},
    on_ranks,
};
use crate::common::intercept::{Intercept, Intercepted};

const MIB: u64 = 1 << 20;

/// Options of commits that members without anything new skip.
fn options() -> CommitOptions {
    job::options().verify(false)
}

/// Counts the calls of a store, without those of the thread that watches a commit's registration: it may run a moment
/// longer than the commit.
#[derive(Default)]
struct Count(Arc<AtomicU64>);

impl<S: Store> Intercept<S> for Count {
    fn before(&self, _: &S, _: &'static str, _: &str) -> Result<()> {
        if thread::current().name() != Some("symm-mem-watch") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs two ranks with a pool whose store counts the calls of the rank.
fn on_pools(job: impl Fn(&Rank, &SymmetricPool, &AtomicU64) + Sync) {
    let store = HashStore::new();
    on_ranks(2, |rank| {
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Intercepted { inner: store.clone(), intercept: Count(calls.clone()) };
        let domain = Domain::new(Arc::new(counted), 77, rank.rank, [0, 1]).expect("a member");
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
        job(&rank, &pool, &calls);
        drop((pool, domain));
        rank.leave();
    });
}

/// Allocates in a scope, and returns the blocks and the number of new windows for each group.
fn scoped(
    rank: &Rank,
    pool: &SymmetricPool,
    sizes: &[u64],
) -> (Vec<SymmetricBlock>, Vec<std::result::Result<usize, Error>>) {
    let scope = pool.scope(&[&rank.tp, &rank.world]).options(options());
    let blocks = sizes.iter().map(|bytes| pool.allocate(*bytes).expect("there is room")).collect();
    let reports = scope.finish().into_iter().map(|result| result.map(|report| report.new_windows));
    (blocks, reports.collect())
}

fn is_window(pool: &SymmetricPool, at: DevicePtr, group: &dyn SymmetricGroup) -> bool {
    let found = pool.lookup(at, 1, group.id()).expect("in one segment").expect("in the pool");
    matches!(found.state, RegistrationState::Window { .. })
}

#[test]
fn a_scope_commits_what_is_new_and_asks_no_store_otherwise() {
    on_pools(|rank, pool, calls| {
        let (blocks, new) = scoped(rank, pool, &[MIB, 2 * MIB]);
        assert!(new.iter().all(|new| matches!(new, Ok(2))), "{new:?}");
        assert!(is_window(pool, blocks[1].ptr(), &rank.tp) && is_window(pool, blocks[1].ptr(), &rank.world));
        let before = calls.load(Ordering::Relaxed);
        for _ in 0..3 {
            let (more, new) = scoped(rank, pool, &[MIB / 2]);
            assert!(new.iter().all(|new| matches!(new, Ok(0))), "{new:?}");
            rank.sum(&more[0], &rank.world);
        }
        assert_eq!(calls.load(Ordering::Relaxed), before, "nothing is new");

        for group in [&rank.tp, &rank.world] {
            assert_eq!(pool.commit(group, options()).expect("nothing is new").segments, 2);
        }
        drop(pool.scope(&[&rank.tp, &rank.world]));
        assert_eq!(calls.load(Ordering::Relaxed), before, "nothing is new");
        for group in [&rank.tp, &rank.world] {
            pool.commit(group, options().verify(true)).expect("the members compare equal requests");
        }
        assert!(calls.load(Ordering::Relaxed) > before, "the members have voted");

        // A scope that is dropped commits too.
        let scope = pool.scope(&[&rank.tp, &rank.world]).options(options());
        let late = pool.allocate(2 * MIB).expect("there is room");
        drop(scope);
        assert!(is_window(pool, late.ptr(), &rank.tp) && is_window(pool, late.ptr(), &rank.world));
        rank.sum(&late, &rank.tp);
    });
}

/// On rank 1, takes the memory of the device except 1 MiB.
fn take_memory(rank: &Rank) -> Option<DeviceMemory> {
    (rank.rank == 1).then(|| {
        let (free, _) = rank.context.memory_info().expect("the device is well");
        DeviceMemory::new(&rank.context, free - MIB as usize).expect("there is as much")
    })
}

#[test]
fn a_rank_that_leaves_a_scope_for_lack_of_memory_tells_the_others_at_once() {
    on_pools(|rank, pool, _| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let taken = take_memory(rank);
        let region = || -> std::result::Result<_, SymmetricError> {
            let scope = pool.scope(&[&rank.world]).options(options());
            let block = pool.allocate(2 * MIB)?;
            Ok((block, scope.finish().remove(0)))
        };
        let block = match region() {
            Ok((block, result)) => {
                assert_eq!(rank.rank, 0);
                let refused = result.expect_err("rank 1 has no segment");
                let text = refused.to_string();
                assert!(matches!(refused.refusal(), Some(Refusal::SegmentCountMismatch { .. })), "{text}");
                assert!(text.contains("was refused"), "{text}");
                block
            }
            Err(error) => {
                assert!(rank.rank == 1 && matches!(error, SymmetricError::OutOfMemory { .. }), "{error}");
                drop(taken);
                pool.allocate(2 * MIB).expect("there is room now")
            }
        };
        let report = pool.commit(&rank.world, options()).expect("the ranks agree again");
        assert_eq!(report.new_windows, 1);
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_panic_in_a_scope_commits_nothing() {
    on_pools(|rank, pool, calls| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let before = calls.load(Ordering::Relaxed);
        let mut block = None;
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            let _scope = pool.scope(&[&rank.world]).options(options());
            block = pool.allocate(2 * MIB).ok();
            panic::resume_unwind(Box::new("the region fails"));
        }));
        assert!(panicked.is_err());
        let block = block.expect("there is room");
        assert_eq!(calls.load(Ordering::Relaxed), before);
        assert!(!is_window(pool, block.ptr(), &rank.world));
        assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").new_windows, 1);
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_commit_for_which_no_time_is_left_is_refused_on_all_and_poisons_nothing() {
    on_pools(|rank, pool, _| {
        let block = pool.allocate(MIB).expect("there is room");
        let commits: [(&SymmetricPool, &dyn SymmetricGroup); 2] = [(pool, &rank.tp), (pool, &rank.world)];
        let hurried = if rank.rank == 0 { options().deadline(Duration::ZERO) } else { options() };
        for result in commit_all(&commits, hurried) {
            let error = result.expect_err("rank 0 has no time");
            assert!(
                matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { rank: 0, ordinal: None, .. })),
                "{error}"
            );
        }
        assert!(commits.iter().all(|(_, group)| pool.poison(group.id()).is_none()));
        for result in commit_all(&commits, options()) {
            assert_eq!(result.expect("there is time now").new_windows, 1);
        }
        // A commit of nothing new needs no time.
        for result in commit_all(&commits, options().deadline(Duration::ZERO)) {
            assert_eq!(result.expect("nothing is new").new_windows, 0);
        }
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_routed_allocator_without_memory_has_the_figures_of_the_symmetric_pool() {
    on_ranks(2, |rank| {
        let pool = Arc::new(rank.pool());
        let kept = pool.allocate(MIB).expect("there is room");
        let events = Arc::new(DriverEvents::new(&rank.context));
        let stream = events.register(&rank.stream);
        let allocator =
            Allocator::new(Arc::new(DriverSource::new(&rank.context)), events.clone(), Settings::default());
        let source = Arc::new(PoolSource::new(pool.clone()));
        let settings = PoolSettings { source: Some(source), ..PoolSettings::default() };
        let routed = allocator.pool(settings).expect("the settings fit");
        let taken = take_memory(&rank);
        let _route = routed.use_on_this_thread();
        let result = allocator.allocate(64 * MIB, stream);
        if rank.rank == 1 {
            let error = result.expect_err("there is no memory");
            let cause = std::error::Error::source(&error).and_then(|it| it.downcast_ref::<SymmetricError>());
            let Some(SymmetricError::OutOfMemory { reserved, in_use, info: Some(info), .. }) = cause else {
                panic!("{error}: {cause:?}");
            };
            assert_eq!((*reserved, *in_use), (2 * MIB, MIB));
            assert!(info.free <= MIB, "{info:?}");
        }
        drop((taken, _route, kept, routed, allocator, events));
        drop(pool);
        rank.leave();
    });
}

/// All members take part in the first commit of a group, also one without a segment.
#[test]
fn members_with_different_numbers_of_segments_learn_it_at_the_first_scope() {
    on_pools(|rank, pool, _| {
        let sizes = if rank.rank == 0 { &[MIB][..] } else { &[] };
        let (_blocks, results) = scoped(rank, pool, sizes);
        for result in results {
            let Some(refusal) = result.as_ref().err().and_then(Error::refusal) else { panic!("{result:?}") };
            assert_eq!(refusal.name(), "SegmentCountMismatch", "{refusal}");
        }
    });
}

#[test]
fn a_member_without_anything_new_is_named_and_then_compared() {
    on_pools(|rank, pool, _| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let short = options().deadline(Duration::from_secs(2));
        let scope = pool.scope(&[&rank.world]).options(short);
        let extra = (rank.rank == 0).then(|| pool.allocate(2 * MIB).expect("there is room"));
        let mut results = scope.finish();
        let result = results.remove(0);
        if rank.rank == 0 {
            let error = result.expect_err("rank 1 has nothing new");
            let Some(Refusal::SyncTimeout { missing, .. }) = error.refusal() else { panic!("{error}") };
            assert_eq!(missing[0].rank, 1);
        } else {
            assert_eq!(result.expect("it has nothing new").new_segments, 0);
        }
        rank.world.barrier(soon()).expect("both come");
        // The skipped commit counts, so the next ones meet and compare all requests.
        let refused = pool.commit(&rank.world, options().verify(true)).expect_err("rank 1 lacks a request");
        assert!(matches!(refused.refusal(), Some(Refusal::SegmentCountMismatch { .. })), "{refused}");
        let block = extra.unwrap_or_else(|| pool.allocate(2 * MIB).expect("there is room"));
        let report = pool.commit(&rank.world, options()).expect("the ranks agree again");
        assert_eq!(report.segments, 2);
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_member_that_made_a_request_late_is_met_by_the_others_at_once() {
    on_pools(|rank, pool, _| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let short = options().deadline(Duration::from_secs(2));
        let scope = pool.scope(&[&rank.world]).options(short);
        let block = (rank.rank == 0).then(|| pool.allocate(2 * MIB).expect("there is room"));
        assert_eq!(scope.finish().remove(0).is_ok(), rank.rank == 1, "rank 1 has nothing new");
        rank.world.barrier(soon()).expect("both come");
        let scope = pool.scope(&[&rank.world]).options(options());
        let block = block.unwrap_or_else(|| pool.allocate(2 * MIB).expect("there is room"));
        let report = scope.finish().remove(0).expect("the members' requests are equal now");
        assert_eq!((report.new_windows, report.segments), (1, 2));
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_refusal_counts_as_new_although_other_requests_follow() {
    on_pools(|rank, pool, _| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let taken = take_memory(rank);
        let scope = pool.scope(&[&rank.world]).options(options());
        let block = pool.allocate(2 * MIB);
        assert_eq!(block.is_err(), rank.rank == 1);
        let small = pool.allocate(MIB / 4).expect("there is room in the first segment");
        let result = scope.finish().remove(0);
        assert_eq!(result.expect_err("rank 1 has no segment").name(), "SegmentCountMismatch");
        drop((taken, small, block));
    });
}

#[test]
fn a_scope_of_an_ended_group_is_an_error_without_anything_new() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        pool.commit(&rank.tp, options()).expect("the ranks agree");
        let finish = || pool.scope(&[&rank.tp]).options(options()).finish().remove(0);
        assert_eq!(finish().expect("nothing is new").segments, 1);
        rank.world.barrier(soon()).expect("both ranks have finished the scope");
        rank.tp.communicator().abort_handle().abort(soon()).expect("it can be aborted");
        let over = finish().expect_err("the group is over");
        assert!(matches!(over.kind(), ErrorKind::GroupOver { .. }), "{over}");
        drop((bucket, pool));
        rank.abandon();
    });
}

#[test]
fn a_lack_of_memory_in_a_scope_is_told_to_all_at_once() {
    on_pools(|rank, pool, _| {
        let (_blocks, _) = scoped(rank, pool, &[MIB]);
        let taken = take_memory(rank);
        let scope = pool.scope(&[&rank.world]).options(options());
        let block = pool.allocate(2 * MIB);
        assert_eq!(block.is_err(), rank.rank == 1);
        let result = scope.finish().remove(0);
        assert_eq!(result.expect_err("rank 1 has no segment").name(), "SegmentCountMismatch");
        drop(taken);
        let scope = pool.scope(&[&rank.world]).options(options());
        let block = block.unwrap_or_else(|_| pool.allocate(2 * MIB).expect("there is room"));
        assert_eq!(scope.finish().remove(0).expect("the ranks agree again").new_windows, 1);
        rank.sum(&block, &rank.world);
    });
}

#[test]
fn a_source_waits_for_the_streams_of_dropped_slices() {
    job::run_seen(
        1,
        NCCL_2_28_9,
        |_| {},
        |world, ranks| {
            for rank in ranks {
                let pool = Arc::new(rank.pool());
                let source = PoolSource::new(pool.clone());
                let slice = pool.alloc::<u32>(1000, &rank.stream).expect("there is room");
                let at = slice.device_ptr();
                drop(slice);
                let waits = world.calls("cuEventSynchronize");
                let segment = source.allocate(MIB).expect("there is room");
                assert_eq!(DevicePtr(segment.address), at);
                assert_eq!(world.calls("cuEventSynchronize"), waits + 1);
                source.release(&segment).expect("it is a segment of the source");

                let slice = pool.alloc::<u32>(1000, &rank.stream).expect("there is room");
                let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("a capture");
                drop(slice);
                let refused = source.allocate(MIB).expect_err("the stream captures");
                assert!(matches!(refused, SourceError::Failed { .. }), "{refused}");
                capture.end().expect("the capture is valid");
                let segment = source.allocate(MIB).expect("the stream no longer captures");
                assert_eq!(DevicePtr(segment.address), at, "the refused request has no block");
                source.release(&segment).expect("it is a segment of the source");
                drop((source, pool));
                rank.leave();
            }
        },
    );
}

#[test]
fn a_routed_allocator_gets_memory_of_the_pool_on_this_thread_until_the_end() {
    on_ranks(2, |rank| {
        let pool = Arc::new(rank.pool());
        let events = Arc::new(DriverEvents::new(&rank.context));
        let stream = events.register(&rank.stream);
        let allocator =
            Allocator::new(Arc::new(DriverSource::new(&rank.context)), events.clone(), Settings::default());
        let source = Arc::new(PoolSource::new(pool.clone()));
        let settings =
            PoolSettings { name: "symmetric".into(), source: Some(source), ..PoolSettings::default() };
        let routed = allocator.pool(settings).expect("the settings fit");
        let scope = pool.scope(&[&rank.tp, &rank.world]).options(options()).route(&routed);
        let inside = allocator.allocate(MIB, stream).expect("there is room");
        let of_thread = thread::scope(|threads| {
            let allocate = || allocator.allocate(MIB, stream).map(|block| block.pool());
            threads.spawn(allocate).join().expect("no panic").expect("there is room")
        });
        assert_ne!(of_thread, routed.id(), "another thread is not routed");
        for result in scope.finish() {
            assert!(result.expect("the ranks agree").new_windows > 0);
        }
        assert_eq!(inside.pool(), routed.id());
        for group in [&rank.tp, &rank.world] {
            assert!(is_window(&pool, DevicePtr(inside.address()), group));
        }
        let outside = allocator.allocate(MIB, stream).expect("there is room");
        assert_ne!(outside.pool(), routed.id());
        drop((inside, outside, routed, allocator, events));
        drop(pool);
        rank.leave();
    });
}
