//! Allocations of a length that the ranks agree on.

use std::time::Duration;

use symm_mem::{Error, ErrorKind, Refusal, SymmetricError};

use super::{NCCL_2_28_9, on_ranks, options, run, windows};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn ragged_lengths_get_the_same_place() {
    on_ranks(3, |rank| {
        let pool = rank.pool();
        let first = pool.allocate_agreed(u64::from(rank.rank) * 1000, LONG).expect("the ranks agree");
        assert_eq!(first.bytes(), 2000);
        let second = pool.allocate_agreed(3 << 20 >> rank.rank, LONG).expect("the ranks agree");
        assert_eq!(second.bytes(), 3 << 20);
        assert_eq!(windows(&pool.commit(&rank.world, options())), (2, 2));
        rank.sum(&second, &rank.world);

        let nothing = pool.allocate_agreed(0, LONG).expect_err("nobody needs anything");
        assert_eq!((nothing.pool(), nothing.group()), (Some(pool.id()), None));
        let ErrorKind::AgreedAllocation { bytes: 0, source: SymmetricError::Size(_) } = nothing.kind() else {
            panic!("{nothing}")
        };
        drop((first, second, pool));
        rank.leave();
    });
}

#[test]
fn a_rank_that_does_not_say_its_length_is_named() {
    let results = run(
        3,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let pool = rank.pool();
            let result = (rank.rank != 2).then(|| pool.allocate_agreed(1, Duration::from_secs(6)));
            let log = pool.log();
            drop(pool);
            rank.leave();
            result.map(|result| match result.map_err(Error::into_kind) {
                Err(ErrorKind::Refused(refusal)) => (refusal, log),
                other => panic!("{other:?}"),
            })
        },
    );
    let Some((Refusal::SyncTimeout { missing, .. }, log)) = &results[0] else { panic!("{results:?}") };
    let absent = (missing.len(), missing[0].rank, missing[0].elsewhere.len());
    assert_eq!((absent, log.length), ((1, 2, 0), 0));
    assert_eq!(results[0], results[1]);
}
