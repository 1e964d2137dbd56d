//! Groups without windows: plain registration on all members, or on none.

use std::time::Duration;

use gpu_sim::{Action, Injection, World};
use symm_mem::{AccessPath, NoWindows, PathReason, RegistrationState};

use super::{NCCL_2_28_3, job::soon, options, run};

const MIB: u64 = 1 << 20;

/// The results of two ranks without windows for a block of their pool.
fn explained(prepare: impl FnOnce(&World)) -> Vec<(bool, AccessPath, PathReason)> {
    run(2, NCCL_2_28_3, prepare, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let report = pool.commit(&rank.world, options()).expect("the ranks agree");
        assert_eq!((report.new_segments, report.new_windows), (1, 0));
        rank.sum(&block, &rank.world);
        let found = pool.explain(block.ptr(), 4, &rank.world);
        let state = pool.lookup(block.ptr(), 4, rank.world.id()).expect("in one segment").map(|it| it.state);
        let wanted =
            if report.registered { RegistrationState::Registered } else { RegistrationState::Agreed };
        assert_eq!(state, Some(wanted));
        drop((pool, block));
        rank.leave();
        (report.registered, found.path, found.why)
    })
}

#[test]
fn what_cannot_be_a_window_is_registered_plainly_on_all_members() {
    for (registered, path, why) in explained(|_| {}) {
        assert!(registered && path == AccessPath::Registered, "{path:?}");
        assert!(matches!(why, PathReason::NoWindow(NoWindows::Unsupported { .. })), "{why:?}");
    }
}

#[test]
fn where_one_cannot_register_none_does_and_all_are_told_who() {
    // The second registration of the job fails, on either rank.
    let fail = |world: &World| {
        world.faults().inject(Injection::new("ncclCommRegister", Action::Fail(2)).nth(2)).unwrap();
    };
    let told = explained(fail);
    for (registered, path, why) in &told {
        assert!(!registered && *path == AccessPath::Plain, "{path:?}");
        let PathReason::NotRegistered { window: NoWindows::Unsupported { .. }, registration } = why else {
            panic!("{why:?}")
        };
        assert!(registration.starts_with("rank "), "{registration}");
    }
    assert_eq!(told[0].2, told[1].2);
}

/// NCCL has no windows here, so the segment would be registered with `ncclCommRegister`, but rank 1 wants nothing
/// registered.
#[test]
fn ranks_that_differ_in_whether_to_register_are_all_refused() {
    run(
        2,
        NCCL_2_28_3,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let error = pool.commit(&rank.world, options().windows(rank.rank == 0)).expect_err("they differ");
            assert_eq!(error.name(), "CapabilityMismatch", "{error}");
            assert!(error.to_string().contains("rank 1: CommitOptions::windows is false"), "{error}");
            assert!(pool.commit(&rank.world, options()).expect("they agree").registered);
            drop((pool, block));
            rank.leave();
        },
    );
}

/// Rank 0 has registered part of the second segment itself, so it cannot register that segment, and undoes its
/// registration of the first. Rank 1 undoes both of its own. The first of these deregistrations fails.
#[test]
fn a_rank_that_cannot_undo_its_registration_has_a_dead_group() {
    let fail = |world: &World| {
        world.faults().inject(Injection::new("ncclCommDeregister", Action::Fail(2)).nth(1)).unwrap();
    };
    let names = run(2, NCCL_2_28_3, fail, |rank| {
        let pool = rank.pool();
        let blocks = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
        let communicator = rank.world.communicator();
        // SAFETY: no collective uses the block, which outlives the registration.
        let own = (rank.rank == 0)
            .then(|| unsafe { communicator.register(blocks[1].ptr(), 4096, soon()) }.expect("it is free"));
        let name = pool.commit(&rank.world, options()).map_err(|error| error.name()).err();
        drop(own);
        drop((blocks, pool));
        rank.abandon();
        name
    });
    assert!(names.contains(&Some("RegistrationFailed")), "{names:?}");
}

#[test]
fn a_retired_segment_is_registered_no_more_and_the_others_are() {
    run(
        2,
        NCCL_2_28_3,
        |_| {},
        |rank| {
            let pool = rank.pool();
            let [first, second] = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
            assert!(pool.commit(&rank.world, options()).expect("the ranks agree").registered);
            let communicator = rank.world.communicator();
            assert!(communicator.is_registered(first.ptr(), first.bytes()));
            let at = first.ptr();
            drop(first);
            pool.retire(&[0], &[&rank.world], Duration::from_secs(60)).expect("nothing holds it");
            assert!(!communicator.is_registered(at, 4));
            assert!(communicator.is_registered(second.ptr(), second.bytes()));
            rank.sum(&second, &rank.world);
            // The registration stays until the communicator ends.
            let at = second.ptr();
            drop((second, pool));
            assert!(communicator.is_registered(at, 4));
            rank.leave();
        },
    );
}

#[test]
fn a_group_without_windows_that_is_aborted_leaves_nothing_registered() {
    run(
        2,
        NCCL_2_28_3,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            assert!(pool.commit(&rank.world, options()).expect("the ranks agree").registered);
            drop((pool, block));
            rank.abandon();
        },
    );
}

/// The registration of one rank takes longer than the deadline of the commit leaves, and longer than a vote takes. The
/// other rank waits for it.
#[test]
fn a_plain_registration_has_time_after_a_short_deadline() {
    let slow = |world: &World| {
        let later = Action::Delay(Duration::from_secs(7));
        world.faults().inject(Injection::new("ncclCommRegister", later)).unwrap();
    };
    run(2, NCCL_2_28_3, slow, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let report = loop {
            rank.world.barrier(soon()).expect("all come");
            match pool.commit(&rank.world, options().deadline(Duration::from_secs(1))) {
                Ok(report) => break report,
                // A rank was late, and both are told.
                Err(error) => assert_eq!(error.name(), "SyncTimeout", "{error}"),
            }
        };
        assert!(report.registered, "{report:?}");
        rank.sum(&block, &rank.world);
        drop((pool, block));
        rank.leave();
    });
}
