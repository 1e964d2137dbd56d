//! Retirement of segments, graphs that keep them, and groups that are committed later.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use caching_alloc::{
    core::{MemoryInfo, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError},
    driver::{Sharing, VirtualMemorySource},
};
use gpu_sim::{Action, Injection};
use process_group::store::Store;
use symm_mem::{
    BufferLocation, CommitReport, Error, ErrorKind, Geometry, Poison, Refusal, RegistrationState,
    RetireReport, SymmetricBlock, SymmetricGroup, SymmetricPool,
};

use super::{NCCL_2_28_9, job, on_ranks, options, run, windows};

const LONG: Duration = Duration::from_secs(60);

/// A pool with two segments of one block each, committed for the world and for pairs.
fn pool_of_two(rank: &job::Rank) -> (SymmetricPool, [SymmetricBlock; 2]) {
    let pool = rank.pool();
    let blocks = [0, 1].map(|_| pool.allocate(2 << 20).expect("there is room"));
    assert_eq!(blocks.each_ref().map(|block| block.placement().ordinal), [0, 1]);
    for group in [&rank.world, &rank.tp] {
        assert_eq!(windows(&pool.commit(group, options())), (2, 2));
    }
    (pool, blocks)
}

fn retire(
    pool: &SymmetricPool,
    ordinals: &[u32],
    groups: &[&dyn SymmetricGroup],
) -> Result<RetireReport, Error> {
    pool.retire(ordinals, groups, LONG)
}

fn refusal(result: Result<RetireReport, Error>) -> Refusal {
    match result.map_err(Error::into_kind) {
        Err(ErrorKind::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_is_retired_everywhere_or_nowhere() {
    on_ranks(4, |rank| {
        let (pool, [first, second]) = pool_of_two(&rank);
        let (at, groups): (_, [&dyn SymmetricGroup; 2]) = (first.ptr(), [&rank.world, &rank.tp]);

        // Rank 2 drops the block last.
        let kept = (rank.rank == 2).then(|| first.clone());
        drop(first);
        let Refusal::SegmentInUse { ordinal: 0, blocks } = refusal(retire(&pool, &[0], &groups)) else {
            panic!("rank 2 has a block")
        };
        assert_eq!(
            (blocks.minority(), blocks.entries.iter().map(|it| it.value).collect::<Vec<_>>()),
            (vec![2], vec![0, 1])
        );
        drop(kept);
        let Refusal::SegmentCommitted { rank: 0, ordinal: 0, groups: missing } =
            refusal(retire(&pool, &[0], &groups[..1]))
        else {
            panic!("the pairs have it too")
        };
        assert_eq!(missing.len(), 1);
        let mine: &[u32] = if rank.rank == 1 { &[1] } else { &[0] };
        let Refusal::RetirementMismatch { ordinals } = refusal(retire(&pool, mine, &groups)) else {
            panic!("rank 1 wants another one retired")
        };
        assert_eq!((ordinals.minority(), ordinals.entries[1].value.as_slice()), (vec![1], [1].as_slice()));
        let Refusal::PeerPrepareFailed { rank: 0, ordinal: Some(7), .. } =
            refusal(retire(&pool, &[7], &groups))
        else {
            panic!("there is no such segment")
        };
        let found = pool.lookup(at, 4, rank.world.id()).expect("in one segment");
        assert!(
            matches!(found, Some(BufferLocation { state: RegistrationState::Window { .. }, .. })),
            "{found:?}"
        );

        let report = retire(&pool, &[0], &groups).expect("nothing holds it");
        assert_eq!((report.ordinals, report.bytes, report.windows), (vec![0], 2 << 20, 2));
        assert_eq!((pool.segments(), pool.reserved()), (1, 2 << 20));
        assert_eq!(pool.lookup(at, 4, rank.world.id()), Ok(None));
        rank.sum(&second, &rank.world);

        // Its ordinal stays in use, and a group that is committed later skips it on all members.
        let third = pool.allocate(1 << 20).expect("there is room");
        assert_eq!(third.placement().ordinal, 2);
        assert_eq!(windows(&pool.attach(&rank.dp, options())), (2, 2));
        for group in groups {
            let report: CommitReport = pool.commit(group, options()).expect("the ranks agree");
            assert_eq!((report.new_windows, report.windows, report.segments), (1, 2, 2));
        }
        for group in rank.groups() {
            rank.sum(&third, group);
            rank.sum(&second, group);
        }
        let all = rank.groups().map(|group| group as &dyn SymmetricGroup);
        let again = refusal(retire(&pool, &[0], &all));
        assert!(matches!(again, Refusal::PeerPrepareFailed { rank: 0, ordinal: Some(0), .. }), "{again}");
        drop((second, third));
        let report = retire(&pool, &[2, 1, 2], &all).expect("nothing holds them");
        assert_eq!((report.ordinals, report.windows, pool.reserved()), (vec![1, 2], 6, 0));
        drop(pool);
        rank.leave();
    });
}

#[test]
fn a_graph_keeps_what_it_looked_up() {
    on_ranks(2, |rank| {
        let (pool, [first, second]) = pool_of_two(&rank);
        let groups: [&dyn SymmetricGroup; 2] = [&rank.world, &rank.tp];
        let (at, placement) = (first.ptr(), first.placement());

        // Only rank 1 captures, and drops the block during the capture.
        let pin = (rank.rank == 1).then(|| {
            let capture = pool.begin_capture();
            let found = pool.lookup(at, 1 << 20, rank.world.id()).expect("in one segment");
            assert!(found.is_some());
            drop(first.clone());
            capture.finish()
        });
        assert!(pin.as_ref().is_none_or(|pin| pin.segments().eq([0])));
        drop(first);
        let Refusal::SegmentPinned { ordinal: 0, graphs } = refusal(retire(&pool, &[0], &groups)) else {
            panic!("a graph of rank 1 uses it")
        };
        let entries: Vec<_> = graphs.entries.iter().map(|side| (side.value, side.ranks.as_slice())).collect();
        assert_eq!(entries, [(0, [0].as_slice()), (1, [1].as_slice())]);
        drop(pin);

        // Another block is placed there, now that no graph uses the memory.
        let again = pool.allocate(2 << 20).expect("there is room");
        assert_eq!(again.placement(), placement);
        let capture = pool.begin_capture();
        assert!(pool.lookup(again.ptr(), 4, rank.world.id()).is_ok());
        drop(again);
        let refused = refusal(retire(&pool, &[0], &groups));
        assert_eq!(refused, Refusal::CommitDuringCapture { ranks: vec![0, 1] });
        // A capture that is dropped keeps nothing.
        drop(capture);
        retire(&pool, &[0], &groups).expect("nothing holds it");
        rank.sum(&second, &rank.world);
        drop((second, pool));
        rank.leave();
    });
}

#[test]
fn a_block_that_a_graph_uses_is_not_placed_again() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let (first, second) = (pool.allocate(4096).expect("room"), pool.allocate(4096).expect("room"));
        let capture = pool.begin_capture();
        let both = second.ptr().0 + 4096 - first.ptr().0;
        let found = pool.lookup(first.ptr(), both, rank.world.id()).expect("in one segment");
        assert_eq!(found.map(|it| it.placement), Some(first.placement()));
        let places = [first.placement(), second.placement()];
        drop((first, second));
        let temporary = pool.allocate(4096).expect("room");
        assert!(!places.contains(&temporary.placement()));
        let pin = capture.finish();
        let other = pool.allocate(8192).expect("room");
        assert!(!places.contains(&other.placement()));
        drop(pin);
        let again = pool.allocate(4096).expect("room");
        assert!(places.contains(&again.placement()), "{:?}", again.placement());
        drop((temporary, other, again, pool));
        rank.leave();
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_and_nothing_goes() {
    let results = run(
        3,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let pool = rank.pool();
            let block = pool.allocate(2 << 20).expect("there is room");
            assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
            drop(block);
            let result = (rank.rank != 1).then(|| {
                let result = pool.retire(&[0], &[&rank.world], Duration::from_secs(8));
                assert_eq!(pool.reserved(), 2 << 20);
                refusal(result)
            });
            drop(pool);
            rank.leave();
            result
        },
    );
    let Some(Refusal::SyncTimeout { missing, .. }) = &results[0] else { panic!("{results:?}") };
    assert_eq!(missing.iter().map(|absentee| absentee.rank).collect::<Vec<_>>(), [1]);
    assert!(missing[0].elsewhere.is_empty(), "{missing:?}");
    assert_eq!(results[0], results[2]);
}

#[test]
fn a_failed_deregistration_is_told_to_all_and_the_memory_stays() {
    let fail = Action::Fail(1);
    let results = run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(Injection::new("ncclCommWindowDeregister", fail)).unwrap(),
        |rank| {
            let pool = rank.pool();
            let block = pool.allocate(2 << 20).expect("there is room");
            assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
            drop(block);
            let error = retire(&pool, &[0], &[&rank.world]).expect_err("one deregistration fails");
            let ErrorKind::Poisoned { poison, groups } = error.into_kind() else { panic!("not poisoned") };
            assert_eq!(*groups, [rank.world.id()]);
            assert!(matches!(pool.poison(rank.world.id()), Some(Poison::RetirementFailed { .. })));
            // The segment is out of use on both ranks, so that they still agree on the place of the next one.
            let next = pool.allocate(2 << 20).expect("there is room");
            assert_eq!(next.placement().ordinal, 1);
            let again = pool.commit(&rank.world, options()).expect_err("the group is dead");
            assert_eq!(again.name(), "RetirementFailed");
            drop((next, pool));
            rank.abandon();
            poison
        },
    );
    assert_eq!(results[0], results[1]);
    assert!(matches!(results[0], Poison::RetirementFailed { .. }), "{results:?}");
}

/// A source that releases memory, but says at the first release that it has failed.
#[derive(Debug)]
struct Failing(VirtualMemorySource, AtomicBool);

/// A pool with segments of 2 MiB. On rank 0, its source is [`Failing`].
fn pool_that_fails_to_release(rank: &job::Rank) -> SymmetricPool {
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    let source = VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).expect("virtual memory");
    let source: Arc<dyn SegmentSource> = match rank.rank {
        0 => Arc::new(Failing(source, AtomicBool::new(true))),
        _ => Arc::new(source),
    };
    SymmetricPool::with_source(&rank.domain, source, geometry).expect("its steps are small")
}

impl SegmentSource for Failing {
    fn device(&self) -> u32 {
        self.0.device()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.0.allocate(bytes)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.0.release(memory)?;
        if self.1.swap(false, Ordering::Relaxed) {
            return Err(SourceError::Failed { call: "cuMemUnmap", source: "it is the first release".into() });
        }
        Ok(())
    }

    fn is_exportable(&self) -> bool {
        self.0.is_exportable()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        self.0.export(memory, kind)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.0.memory_info()
    }
}

#[test]
fn memory_that_the_source_does_not_release_is_not_counted() {
    on_ranks(2, |rank| {
        let pool = pool_that_fails_to_release(&rank);
        drop(pool.allocate(2 << 20).expect("there is room"));
        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        let report = retire(&pool, &[0], &[&rank.world]).expect("nothing holds it");
        assert_eq!(report.bytes, [0, 2 << 20][rank.rank as usize]);
        drop(pool);
        rank.leave();
    });
}

#[test]
fn memory_of_an_earlier_retirement_is_not_subtracted() {
    let fail = Action::Fail(1);
    run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(Injection::new("ncclCommWindowRegister", fail)).unwrap(),
        |rank| {
            let pool = pool_that_fails_to_release(&rank);
            drop(pool.allocate(2 << 20).expect("there is room"));
            pool.commit(&rank.world, options()).expect_err("a registration fails");
            // The poisoned group keeps the memory.
            let report = retire(&pool, &[0], &[&rank.tp]).expect("nothing holds it");
            assert_eq!(report.bytes, 0);
            pool.forget(rank.world.id());
            drop(pool.allocate(2 << 20).expect("there is room"));
            let report = retire(&pool, &[1], &[&rank.tp]).expect("nothing holds it");
            assert_eq!(report.bytes, 2 << 20, "rank 0 fails to release the first segment, not this one");
            drop(pool);
            rank.abandon();
        },
    );
}

#[test]
fn half_enqueued_collectives_stop_a_retirement() {
    on_ranks(2, |rank| {
        let (pool, [first, second]) = pool_of_two(&rank);
        let groups: [&dyn SymmetricGroup; 2] = [&rank.world, &rank.tp];
        drop(first);
        rank.fill(&second);
        if rank.rank == 0 {
            rank.all_reduce(second.ptr(), second.bytes(), &rank.world);
        }
        let refused = refusal(retire(&pool, &[0], &groups));
        assert!(matches!(refused, Refusal::CollectivesOutstanding { .. }), "{refused}");
        if rank.rank == 1 {
            rank.all_reduce(second.ptr(), second.bytes(), &rank.world);
        }
        // Running work is waited for.
        retire(&pool, &[0], &groups).expect("nothing holds it");
        rank.check(&second, &rank.world);
        drop((second, pool));
        rank.leave();
    });
}

/// On rank 0, another thread commits the pool for the world, in which rank 1 takes part only after the retirement.
/// Without the refusal, the memory of a segment could be freed while the commit registers it.
#[test]
fn a_retirement_during_a_commit_of_another_thread_is_refused_on_all_ranks() {
    on_ranks(2, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        drop(block);
        let commit = || assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        let is_refused = || {
            let refused = refusal(retire(&pool, &[0], &[]));
            assert!(
                matches!(&refused, Refusal::PeerPrepareFailed { rank: 0, cause, .. }
                if cause.contains("another thread commits this pool")),
                "{refused}"
            );
        };
        if rank.rank == 0 {
            thread::scope(|scope| {
                let other = scope.spawn(commit);
                let record = job::commit_key(&pool, rank.world.id(), "records/0");
                rank.world.job_store().get(&record, job::soon()).expect("the other thread has begun");
                is_refused();
                other.join().expect("no panic");
            });
        } else {
            is_refused();
            commit();
        }
        assert_eq!(retire(&pool, &[0], &[&rank.world]).expect("no commit is in progress").windows, 1);
        drop(pool);
        rank.leave();
    });
}
