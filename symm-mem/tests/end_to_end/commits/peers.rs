//! The memory of a committed block on all members, which the commit has mapped.

use std::{sync::Mutex, thread, time::Duration};

use cuda_driver::sys::CUresult;
use gpu_sim::{Action, Injection};
use process_group::group::GroupId;
use symm_mem::{
    ErrorKind, Refusal, SymmetricBlock, SymmetricGroup, SymmetricPool, rendezvous::SymmetricMemory,
};

use crate::{
    common::turn,
    embedded::job::{self, Rank, options, run, run_seen, soon},
};

/// Longer than anything should take.
const LONG: Duration = Duration::from_secs(60);

/// A release with windows, and one without.
const RELEASES: [i32; 2] = [22809, 21805];

fn memory(pool: &SymmetricPool, block: &SymmetricBlock, group: GroupId) -> SymmetricMemory {
    pool.symmetric_memory(block, group).expect("the commit has mapped it")
}

/// Checks that every member finds the others' values in the block.
fn compare(rank: &Rank, memory: &SymmetricMemory, block: &SymmetricBlock) {
    let value = |place: usize| 7 + memory.global_ranks()[place];
    // SAFETY: the word is this rank's until the ranks meet, and read until they meet again.
    unsafe { rank.context.fill_u32(block.ptr(), value(memory.rank()), 1024) }.unwrap();
    rank.context.synchronize().unwrap();
    rank.world.barrier(soon()).unwrap();
    for place in 0..memory.world_size() {
        let mut found = vec![0u32; 1024];
        // SAFETY: as above.
        unsafe { rank.context.copy_to_host(&mut found, memory.buffer_ptr(place).unwrap()) }.unwrap();
        assert_eq!(found, vec![value(place); 1024]);
    }
    rank.world.barrier(soon()).unwrap();
}

/// Commits a pool for the world and for the rank's neighbours, and uses the memory and the pads of both.
fn use_mapped(rank: Rank) {
    let (pool, first) = rank.pool_with_bucket();
    let block = pool.allocate(4096).unwrap();
    let refused = pool.symmetric_memory(&block, rank.world.id()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotMapped { ordinal: 0, reason: None }), "{refused}");
    let report = pool.commit(&rank.world, options()).unwrap();
    assert_eq!(report.unmapped, None);
    let memory = memory(&pool, &block, rank.world.id());
    assert_eq!((memory.bytes(), memory.world_size()), (4096, rank.world.size()));
    compare(&rank, &memory, &block);
    // SAFETY: no graph captures it.
    unsafe { memory.barrier(&rank.stream, 0, LONG) }.unwrap();
    rank.stream.synchronize().unwrap();
    memory.check().unwrap();
    // A later segment gets mapped by its commit, with the same pads.
    let later = pool.allocate(2 << 20).unwrap();
    assert!(pool.symmetric_memory(&later, rank.world.id()).is_err());
    pool.commit(&rank.world, options()).unwrap();
    let other = self::memory(&pool, &later, rank.world.id());
    compare(&rank, &other, &later);
    let pads = |memory: &SymmetricMemory| memory.signal_pads().addresses().to_vec();
    assert_eq!(pads(&memory), pads(&other));
    // Another group has its own pads, and its members in its own order.
    pool.commit(&rank.tp, options()).unwrap();
    let tp = self::memory(&pool, &block, rank.tp.id());
    assert_eq!(tp.global_ranks().len(), rank.tp.size());
    assert_ne!(pads(&tp)[tp.rank()], pads(&memory)[memory.rank()]);
    // The handle keeps the block, and so its segment.
    drop((first, block, tp));
    let groups: [&dyn SymmetricGroup; 2] = [&rank.world, &rank.tp];
    let refused = pool.retire(&[0], &groups, LONG).unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::SegmentInUse { ordinal: 0, .. })), "{refused}");
    drop(memory);
    pool.retire(&[0], &groups, LONG).unwrap();
    drop((other, later, pool));
    rank.leave();
}

#[test]
fn a_commit_gives_the_memory_of_all_members_with_pads() {
    for release in RELEASES {
        run(3, release, symm_mem::kernels::twins::register, use_mapped);
    }
}

#[test]
fn hardware_committed_blocks_are_mapped_with_pads() {
    let _turn = turn();
    let (driver, nccl, devices) = match super::gpus() {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    for size in [2, 4].into_iter().filter(|size| *size <= devices) {
        super::on_ranks(job::ranks(&driver, &nccl, size), use_mapped);
        println!("{size} ranks, NCCL {}: committed blocks are mapped", nccl.release());
    }
}

/// The driver calls by which a rank offers its segment and its pad, and opens those of its peer.
const CALLS: [&str; 9] = [
    "cuMemCreate",
    "cuMemsetD8Async",
    "cuMemHostAlloc",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemAlloc_v2",
];

/// Each call fails once, on one of the ranks. The commit stands, and both ranks are told the same reason.
#[test]
fn members_that_cannot_map_commit_without_it_and_name_the_reason() {
    for (call, nth) in CALLS.into_iter().flat_map(|call| [(call, 1), (call, 2)]) {
        run_seen(
            2,
            22809,
            |_| {},
            |world, ranks| {
                let pools: Vec<_> = ranks.iter().map(Rank::pool_with_bucket).collect();
                let fail = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
                world.faults().inject(Injection::new(call, fail).nth(nth)).unwrap();
                let reasons = Mutex::new(Vec::new());
                thread::scope(|scope| {
                    for (rank, (pool, block)) in ranks.into_iter().zip(pools) {
                        let reasons = &reasons;
                        scope.spawn(move || {
                            let report = pool.commit(&rank.world, options()).unwrap();
                            assert_eq!(report.new_windows, 1, "{call} {nth}");
                            let reason = report.unmapped.expect("a member cannot map");
                            let refused = pool.symmetric_memory(&block, rank.world.id()).unwrap_err();
                            assert!(refused.to_string().contains(call), "{call} {nth}: {refused}");
                            reasons.lock().unwrap().push(reason);
                            rank.sum(&block, &rank.world);
                            // The next commit maps its segment, and the pads.
                            let later = pool.allocate(2 << 20).unwrap();
                            assert_eq!(pool.commit(&rank.world, options()).unwrap().unmapped, None);
                            compare(&rank, &memory(&pool, &later, rank.world.id()), &later);
                            drop((block, later, pool));
                            rank.leave();
                        });
                    }
                });
                let reasons = reasons.into_inner().unwrap();
                assert_eq!(reasons[0], reasons[1], "{call} {nth}");
            },
        );
    }
}

#[test]
fn one_member_that_declines_is_named_to_all() {
    run(
        2,
        22809,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let report = pool.commit(&rank.world, options().map_peers(rank.rank != 1)).unwrap();
            let text = report.unmapped.expect("rank 1 shares nothing").to_string();
            assert_eq!(text, "rank 1 shares too little memory: CommitOptions::map_peers is false");
            let (other, foreign) = rank.pool_with_bucket();
            let refused = |block| pool.symmetric_memory(block, rank.world.id()).unwrap_err();
            assert!(matches!(refused(&block).kind(), ErrorKind::NotMapped { ordinal: 0, reason: Some(_) }));
            assert!(
                matches!(refused(&foreign).kind(), ErrorKind::OtherPool { address } if *address == foreign.ptr().0)
            );
            drop((foreign, other));
            drop((block, pool));
            rank.leave();
        },
    );
}

#[test]
fn the_memory_outlives_the_group() {
    run(
        2,
        22809,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            pool.commit(&rank.world, options()).unwrap();
            let memory = memory(&pool, &block, rank.world.id());
            compare(&rank, &memory, &block);
            rank.world.communicator().abort_handle().abort(soon()).unwrap();
            pool.forget(rank.world.id());
            assert!(pool.symmetric_memory(&block, rank.world.id()).is_err());
            let mut found = [0u32];
            let peer = 1 - memory.rank();
            // SAFETY: nobody writes the word any more.
            unsafe { rank.context.copy_to_host(&mut found, memory.buffer_ptr(peer).unwrap()) }.unwrap();
            assert_eq!(found, [7 + peer as u32]);
            drop((memory, block, pool));
            rank.abandon();
        },
    );
}

/// Another pool of the group does not keep the memory of a dropped one.
#[test]
fn a_dropped_pool_returns_its_memory() {
    run(
        2,
        22809,
        |_| {},
        |rank| {
            let commit = |pool: &SymmetricPool| {
                let report = pool.commit(&rank.world, options().windows(false)).unwrap();
                assert_eq!((report.new_segments, report.new_windows, report.unmapped), (1, 0, None));
            };
            let (kept, block) = rank.pool_with_bucket();
            commit(&kept);
            let before = rank.context.memory_info().unwrap();
            let (pool, other) = rank.pool_with_bucket();
            commit(&pool);
            rank.world.barrier(soon()).unwrap();
            drop((other, pool));
            // Each rank's memory is returned once the other one has unmapped it.
            rank.world.barrier(soon()).unwrap();
            assert_eq!(rank.context.memory_info().unwrap(), before);
            compare(&rank, &memory(&kept, &block, rank.world.id()), &block);
            drop((block, kept));
            rank.leave();
        },
    );
}
