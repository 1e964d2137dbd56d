//! Explanations of a pool about a group's path to a buffer.

use std::thread;

use cuda_driver::DevicePtr;
use gpu_sim::{Action, Injection};
use process_group::store::Store;
use symm_mem::{
    AccessPath, CommunicatorGroup, GroupId, LookupError, NoWindows, PathReason, Poison, Policy, Refusal,
    SymmetricGroup,
};

use super::{
    NCCL_2_28_3, NCCL_2_28_9,
    job::{commit_key, soon},
    on_ranks, options, run, windows,
};

#[test]
fn a_buffer_is_explained_for_each_group() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        let (first, block) = (pool.allocate(4096).expect("room"), pool.allocate(4096).expect("room"));
        let explain = |group: &dyn SymmetricGroup| pool.explain(block.ptr(), block.bytes(), group);
        let found = explain(&rank.world);
        assert_eq!((found.path, &found.why), (AccessPath::Plain, &PathReason::NotCommitted(None)));
        assert_eq!(found.placement, Some(block.placement()));

        assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        assert_eq!(windows(&pool.commit(&rank.dp, options())), (0, 0));
        let found = explain(&rank.world);
        assert_eq!(
            (found.path, found.why),
            (AccessPath::Window { serial: 0, offset: 4096 }, PathReason::Agreed)
        );
        let found = explain(&rank.dp);
        assert_eq!(
            (found.path, found.why),
            (AccessPath::Plain, PathReason::NoWindow(NoWindows::SingleMember {}))
        );
        assert_eq!(explain(&rank.tp).why, PathReason::NotCommitted(None));

        // The window that device code names, and the first byte of the buffer in it.
        let window = |group: GroupId| pool.window(block.ptr(), 4096, group).expect("in one segment");
        let (handle, offset) = window(rank.world.id()).expect("it is one");
        assert_eq!((offset, handle.ptr().0 + offset), (4096, block.ptr().0));
        assert!(!handle.raw().is_null());
        assert!(window(rank.dp.id()).is_none() && window(rank.tp.id()).is_none());

        let past = pool.explain(block.ptr(), 4 << 20, &rank.world);
        assert!(
            matches!(past.why, PathReason::SpansSegments(LookupError::SpansSegments { ordinal: 0, .. })),
            "{past}"
        );
        let elsewhere = pool.explain(DevicePtr(8), 1, &rank.world);
        assert_eq!((elsewhere.placement, elsewhere.why), (None, PathReason::Elsewhere));
        let communicator = rank.world.communicator();
        let wide = CommunicatorGroup { id: GroupId { uid: 77, epoch: 0 }, ranks: vec![0, 5], communicator };
        assert_eq!(explain(&wide).why, PathReason::OutsideDomain(vec![5]));

        // Explains a segment that the last commit left out, and a buffer that is registered with the communicator
        // alone.
        let extra = pool.allocate((2 << 20) + u64::from(rank.rank) * (2 << 20)).expect("room");
        let report =
            pool.commit(&rank.world, options().policy(Policy::Prefix)).expect("nothing is in common");
        let found = pool.explain(extra.ptr(), 4, &rank.world);
        let PathReason::NotCommitted(Some(refusal @ Refusal::SegmentShapeMismatch { .. })) = found.why else {
            panic!("{}", found)
        };
        assert_eq!(Some(refusal), report.pending);
        // SAFETY: it is deregistered before the block goes.
        let registration = unsafe { communicator.register(extra.ptr(), 4096, soon()) }.expect("it can be");
        assert_eq!(pool.explain(extra.ptr(), 4096, &rank.world).path, AccessPath::Registered);
        assert_eq!(pool.explain(extra.ptr(), 4097, &rank.world).path, AccessPath::Plain);
        registration.deregister(soon()).expect("it is registered");
        assert_eq!(pool.explain(extra.ptr(), 4096, &rank.world).path, AccessPath::Plain);

        // The segment of a freed block keeps its window.
        let at = block.ptr();
        assert!(explain(&rank.world).is_allocated);
        drop(block);
        let found = pool.explain(at, 4096, &rank.world);
        assert_eq!((found.path, found.is_allocated), (AccessPath::Window { serial: 0, offset: 4096 }, false));
        let text = found.to_string();
        assert!(
            text.starts_with("segment 0, offset 4096 (no block is there; it may have been freed): "),
            "{text}"
        );

        drop((first, extra, pool));
        rank.leave();
    });
}

#[test]
fn the_fallback_of_an_old_release_is_explained_alike_on_all() {
    let texts = run(
        2,
        NCCL_2_28_3,
        |_| {},
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            pool.commit(&rank.world, options()).expect("the ranks agree");
            let found = pool.explain(bucket.ptr(), 4, &rank.world);
            assert!(matches!(found.why, PathReason::NoWindow(NoWindows::Unsupported { .. })), "{found}");
            drop((bucket, pool));
            rank.leave();
            found.to_string()
        },
    );
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].contains("2.28.3") && texts[0].contains("segment 0, offset 0"), "{}", texts[0]);
}

#[test]
fn a_dead_group_is_explained_by_what_killed_it() {
    run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(Injection::new("ncclCommWindowRegister", Action::Fail(1))).unwrap(),
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            pool.commit(&rank.world, options()).expect_err("a registration fails");
            let found = pool.explain(bucket.ptr(), 4, &rank.world);
            assert!(matches!(found.why, PathReason::Poisoned(Poison::RegistrationFailed { .. })), "{found}");
            drop((bucket, pool));
            rank.abandon();
        },
    );
}

/// Rank 1 joins the commit of rank 0 only after rank 0 has explained a buffer.
#[test]
fn a_buffer_is_explained_while_another_thread_waits_in_a_commit() {
    on_ranks(2, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let store = rank.world.job_store();
        if rank.rank == 1 {
            store.get("explained", soon()).expect("rank 0 explains");
            assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
        } else {
            thread::scope(|scope| {
                let commit = scope.spawn(|| pool.commit(&rank.world, options()));
                let record = commit_key(&pool, rank.world.id(), "records/0");
                store.get(&record, soon()).expect("the other thread has begun");
                let found = pool.explain(block.ptr(), 4, &rank.world);
                assert_eq!(found.why, PathReason::NotCommitted(None));
                store.set("explained", b"yes").expect("it answers");
                assert_eq!(windows(&commit.join().expect("no panic")), (1, 1));
            });
        }
        drop((pool, block));
        rank.leave();
    });
}
