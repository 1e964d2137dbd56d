//! One deadline for all groups of a call.

use std::time::Duration;

use symm_mem::{Refusal, SymmetricGroup, commit_all};

use super::{NCCL_2_28_9, job, options, run};

/// How long each group of a call waited for the rank that is not there.
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
    // Half of the deadline is for who comes late; what the first group took is gone for the second.
    assert!(second < first, "{first} ms and {second} ms");
}
