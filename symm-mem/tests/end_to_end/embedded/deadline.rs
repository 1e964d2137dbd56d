//! Deadlines: one for all groups of a call; and short ones, which lead to a refusal.

use std::{sync::Barrier, thread, time::Duration};

use gpu_sim::{Action, Injection};
use symm_mem::{Error, ErrorKind, Refusal, SymmetricGroup, commit_all};

use super::{
    NCCL_2_28_3, NCCL_2_28_9,
    job::{self, options, run},
};

/// Milliseconds that each group of a call waited for the missing rank.
fn waits(rank: &job::Rank) -> Vec<u64> {
    let (pool, bucket) = rank.pool_with_bucket();
    let commits = [&rank.world, &rank.tp].map(|group| (&pool, group as &dyn SymmetricGroup));
    let results = commit_all(&commits, options().deadline(Duration::from_secs(4)));
    drop(bucket);
    let waited = results.iter().map(|result| match result.as_ref().map_err(|error| error.refusal()) {
        Err(Some(Refusal::SyncTimeout { waited_ms, .. })) => *waited_ms,
        other => panic!("{other:?}"),
    });
    waited.collect()
}

#[test]
fn a_call_for_several_groups_has_one_deadline() {
    let results = run(
        2,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let waited = (rank.rank == 0).then(|| waits(&rank));
            rank.leave();
            waited
        },
    );
    let Some([first, second]) = results[0].as_deref() else { panic!("{results:?}") };
    // Half of the deadline is reserved for late ranks; the time that the first group used is not available to the
    // second.
    assert!(second < first, "{first} ms and {second} ms");
}

/// Makes a registration take a while.
fn slow(function: &str) -> Injection {
    Injection::new(function, Action::Delay(Duration::from_millis(60))).forever()
}

#[test]
fn a_short_deadline_refuses_a_commit_and_leaves_the_group_as_it_was() {
    // The ranks' deadlines in milliseconds, and the delay of rank 1 in milliseconds.
    let cases = [([60_000, 0], 300), ([0, 60_000], 300), ([100, 100], 0), ([0, 0], 0), ([60_000, 10], 300)];
    for release in [NCCL_2_28_9, NCCL_2_28_3] {
        for (deadlines, late) in cases {
            let prepare = |world: &gpu_sim::World| {
                world.faults().inject(slow("ncclCommWindowRegister")).unwrap();
                world.faults().inject(slow("ncclCommRegister")).unwrap();
            };
            let job = |rank: job::Rank| {
                let (pool, bucket) = rank.pool_with_bucket();
                if rank.rank == 1 {
                    thread::sleep(Duration::from_millis(late));
                }
                let deadline = Duration::from_millis(deadlines[rank.rank as usize]);
                let result = pool.commit(&rank.world, options().deadline(deadline));
                // A rank without any time declines.
                let names = ["SyncTimeout", "PeerPrepareFailed"];
                let refused = matches!(&result, Err(error) if names.contains(&error.name()));
                assert!(result.is_ok() || refused, "{deadlines:?} ms: {result:?}");
                assert_eq!(pool.poison(rank.world.id()), None);
                // The group is still usable.
                let again = pool.commit(&rank.world, options()).expect("the ranks agree");
                assert_eq!(again.segments, 1);
                rank.sum(&bucket, &rank.world);
                drop((bucket, pool));
                rank.leave();
                refused
            };
            let refused = run(2, release, prepare, job);
            assert_eq!(refused[0], refused[1], "{deadlines:?} ms");
        }
    }
}

#[test]
fn a_rank_that_is_missing_in_one_group_does_not_cost_the_next_one_of_the_call() {
    let prepare = |world: &gpu_sim::World| world.faults().inject(slow("ncclCommWindowRegister")).unwrap();
    run(4, NCCL_2_28_9, prepare, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let both = [&rank.world, &rank.tp].map(|group| (&pool, group as &dyn SymmetricGroup));
        if rank.rank != 3 {
            for result in commit_all(&both, options().deadline(Duration::from_millis(600))) {
                // A rank without any time declines.
                let names = ["SyncTimeout", "PeerPrepareFailed"];
                let refused = matches!(&result, Err(error) if names.contains(&error.name()));
                assert!(result.is_ok() || refused, "{result:?}");
            }
            for group in [&rank.world, &rank.tp] {
                assert_eq!(pool.poison(group.id()), None);
            }
        }
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_short_deadline_refuses_a_retirement_and_leaves_the_groups_as_they_were() {
    let barrier = Barrier::new(2);
    // Rank 1 comes last, and its deadline is shorter than what deregistering takes.
    run(
        2,
        NCCL_2_28_9,
        |world| world.faults().inject(slow("ncclCommWindowDeregister")).unwrap(),
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            pool.commit(&rank.world, options()).expect("the ranks agree");
            drop(bucket);
            barrier.wait();
            let (late, deadline) = [(0, 60_000), (300, 40)][rank.rank as usize];
            thread::sleep(Duration::from_millis(late));
            let deadline = Duration::from_millis(deadline);
            let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
            match pool.retire(&[0], &groups, deadline).map_err(Error::into_kind) {
                Ok(report) => assert_eq!(report.windows, 1),
                Err(ErrorKind::Refused(Refusal::SyncTimeout { .. })) => {
                    pool.retire(&[0], &groups, Duration::from_secs(60)).expect("nothing holds it");
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(pool.poison(rank.world.id()), None);
            drop(pool);
            rank.leave();
        },
    );
}
