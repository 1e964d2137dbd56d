//! Windows over several segments, if the library supports them.

use std::{sync::Arc, time::Duration};

use caching_alloc::driver::{Sharing, VirtualMemorySource};
use symm_mem::{
    AccessPath, CommitOptions, Geometry, PathReason, Refusal, SymmetricBlock, SymmetricPool,
    rendezvous::PeerBuffers,
};

use super::{job, options, run, soon, windows};

const MIB: u64 = 1 << 20;

/// The first release with windows over several segments, and the first that maps each registration anew.
const NCCL_2_30: [i32; 2] = [23003, 23007];

/// Two blocks, each in a segment of its own.
fn two(pool: &SymmetricPool) -> [SymmetricBlock; 2] {
    let blocks = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
    assert_eq!(blocks.each_ref().map(|block| block.placement().ordinal), [0, 1]);
    blocks
}

/// Number of windows that two new segments need with this release and these options.
fn windows_of_two(release: i32, options: CommitOptions) -> Vec<usize> {
    run(
        2,
        release,
        |_| {},
        |rank| {
            let pool = rank.pool();
            let blocks = two(&pool);
            let report = pool.commit(&rank.world, options).expect("the ranks agree");
            assert_eq!(report.new_segments, 2);
            for block in &blocks {
                rank.sum(block, &rank.world);
            }
            drop((blocks, pool));
            rank.leave();
            report.new_windows
        },
    )
}

#[test]
fn adjacent_segments_share_a_window_from_2_30_3_on() {
    for release in [22809, 22907] {
        assert_eq!(windows_of_two(release, options()), [2, 2], "{release}");
    }
    for release in NCCL_2_30 {
        assert_eq!(windows_of_two(release, options()), [1, 1], "{release}");
        assert_eq!(windows_of_two(release, options().joined(false)), [2, 2], "{release}");
    }
}

#[test]
fn a_block_of_a_later_segment_lies_behind_the_first_in_the_window() {
    for release in NCCL_2_30 {
        run(
            2,
            release,
            |_| {},
            |rank| {
                let pool = rank.pool();
                let [_first, second] = two(&pool);
                assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
                let found = pool.explain(second.ptr(), 4, &rank.world);
                assert_eq!(
                    (found.path, &found.why),
                    (AccessPath::Window { serial: 0, offset: 2 * MIB }, &PathReason::Agreed)
                );
                let window =
                    pool.window(second.ptr(), second.bytes(), rank.world.id()).expect("in one segment");
                let (window, offset) = window.expect("it is a window");
                assert_eq!((window.bytes() as u64, offset), (4 * MIB, 2 * MIB));

                // The peers' memory behind the window is valid over both segments.
                // SAFETY: the addresses are used before the group ends.
                let peers = unsafe { PeerBuffers::of_window(rank.world.communicator(), &window, soon()) };
                let peers = peers.expect("they are reached");
                rank.fill(&second);
                rank.stream.synchronize().expect("it is filled");
                rank.world.barrier(soon()).expect("both come");
                let other = 1 - rank.rank;
                let mut value = [0f32];
                let at = peers.addresses()[other as usize] + offset as usize;
                // SAFETY: nobody writes before the ranks have met again.
                unsafe { rank.context.copy_to_host(&mut value, at) }.expect("the peer's memory can be read");
                assert_eq!(value, [(other + 1) as f32]);
                rank.world.barrier(soon()).expect("both come");
                rank.sum(&second, &rank.world);

                // A later segment gets a window of its own.
                let third = pool.allocate(2 * MIB).expect("there is room");
                assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 2));
                rank.sum(&third, &rank.world);
                drop((peers, _first, second, third, pool));
                rank.leave();
            },
        );
    }
}

#[test]
fn segments_of_one_window_are_retired_together() {
    run(
        2,
        NCCL_2_30[0],
        |_| {},
        |rank| {
            let (pool, deadline) = (rank.pool(), Duration::from_secs(60));
            drop(two(&pool));
            pool.commit(&rank.world, options()).expect("the ranks agree");
            let refused = pool.retire(&[1], &[&rank.world], deadline).expect_err("the other one stays");
            let Some(Refusal::PeerPrepareFailed { ordinal: Some(1), cause, .. }) = refused.refusal() else {
                panic!("{refused}")
            };
            assert!(cause.contains("segments [0]"), "{cause}");
            let report = pool.retire(&[0, 1], &[&rank.world], deadline).expect("nothing holds them");
            assert_eq!((report.windows, report.bytes), (1, 4 * MIB));
            drop(two_more(&pool));
            assert_eq!(windows(&pool.commit(&rank.world, options())), (1, 1));
            drop(pool);
            rank.leave();
        },
    );
}

fn two_more(pool: &SymmetricPool) -> [SymmetricBlock; 2] {
    let blocks = [0, 1].map(|_| pool.allocate(2 * MIB).expect("there is room"));
    assert_eq!(blocks.each_ref().map(|block| block.placement().ordinal), [2, 3]);
    blocks
}

#[test]
fn segments_that_do_not_follow_each_other_on_one_rank_have_windows_of_their_own_on_all() {
    let results = run(
        2,
        NCCL_2_30[1],
        |_| {},
        |rank: job::Rank| {
            let apart = || {
                let source =
                    VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).expect("it is there");
                let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
                SymmetricPool::with_source(&rank.domain, Arc::new(source), geometry)
                    .expect("its steps are small")
            };
            let pool = if rank.rank == 1 { apart() } else { rank.pool() };
            // On rank 1, memory in between keeps the segments from being adjacent by chance.
            let first = pool.allocate(2 * MIB).expect("there is room");
            let between = (rank.rank == 1).then(apart).map(|other| (other.allocate(2 * MIB), other));
            let second = pool.allocate(2 * MIB).expect("there is room");
            let report = pool.commit(&rank.world, options()).expect("the ranks agree");
            rank.sum(&first, &rank.world);
            rank.sum(&second, &rank.world);
            drop((first, second, between, pool));
            rank.leave();
            report.new_windows
        },
    );
    assert_eq!(results, [2, 2]);
}
