//! A rank that has made other allocations than the others recovers by the advice in the error.

use cuda_driver::memory::DeviceMemory;
use symm_mem::{Error, Refusal, SymmetricBlock, SymmetricError, SymmetricPool};

use super::{
    job::{Rank, options},
    on_ranks,
};

const MIB: u64 = 1 << 20;

/// Does what the error tells this rank to do, word for word. Returns the block of an allocation.
fn follow(error: &Error, rank: u32, pool: &SymmetricPool, blocks: &mut Vec<SymmetricBlock>) {
    let text = error.to_string();
    let (_, advice) = text.split_once("; to recover, let ").unwrap_or_else(|| panic!("no advice in {text}"));
    let (advice, _) = advice.split_once(", as ").expect("the rank that did it");
    assert!(text.ends_with("did, then commit again"), "{text}");
    assert!(!text.contains("pool/memory.rs"), "a free has no line of the program: {text}");
    let words: Vec<&str> = advice.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let verb = words.iter().position(|word| ["allocate", "drop"].contains(word)).expect("an action");
    if !words[1..verb].contains(&rank.to_string().as_str()) {
        return;
    }
    match words[verb..] {
        ["allocate", bytes, "bytes", "next"] => {
            blocks.push(pool.allocate(bytes.parse().expect("a number")).expect("there is room"));
        }
        ["drop", "the", "block", "at", "segment", ordinal, "offset", offset] => {
            let place = |block: &SymmetricBlock| {
                let placement = block.placement();
                (placement.ordinal.to_string(), placement.offset.to_string())
            };
            let before = blocks.len();
            blocks.retain(|block| place(block) != (ordinal.to_owned(), offset.to_owned()));
            assert_eq!(blocks.len(), before - 1, "{text}");
        }
        _ => panic!("{text}"),
    }
}

/// Commits and follows the advice, until the commit succeeds. Returns the number of refused commits.
fn recover(rank: &Rank, pool: &SymmetricPool, blocks: &mut Vec<SymmetricBlock>) -> usize {
    for refused in 0..10 {
        match pool.commit(&rank.world, options()) {
            Ok(_) => return refused,
            Err(error) => follow(&error, rank.rank, pool, blocks),
        }
    }
    panic!("the advice does not help");
}

#[test]
fn after_a_failed_allocation_on_one_rank_the_pool_commits_again() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        pool.commit(&rank.world, options()).expect("the ranks agree");
        let taken = (rank.rank == 1).then(|| {
            let (free, _) = rank.context.memory_info().expect("the device is well");
            DeviceMemory::new(&rank.context, free - 4 * MIB as usize).expect("there is as much")
        });
        let wanted = 10 * MIB;
        let block = pool.allocate(wanted);
        if rank.rank == 1 {
            let full = block.as_ref().expect_err("the memory is taken");
            let SymmetricError::OutOfMemory {
                wanted: 10_485_760, ordinal: 1, segment, reserved, info, ..
            } = full
            else {
                panic!("{full}");
            };
            assert_eq!((*segment, *reserved, info.map(|info| info.free)), (wanted, 2 * MIB, Some(4 * MIB)));
            let again = pool.allocate(wanted).expect_err("the memory is still taken");
            assert_eq!(again.to_string(), full.to_string());
        }
        let error = pool.commit(&rank.world, options()).expect_err("rank 1 has no second segment");
        let refusal = error.refusal();
        assert!(matches!(refusal, Some(Refusal::SegmentCountMismatch { ordinal: 1, .. })), "{error}");
        assert!(error.to_string().contains("rank 1: was refused 10485760 bytes"), "{error}");
        drop(taken);
        let mut blocks: Vec<_> = block.into_iter().collect();
        follow(&error, rank.rank, &pool, &mut blocks);
        let report = pool.commit(&rank.world, options()).expect("the ranks agree again");
        assert_eq!(report.segments, 2);
        rank.sum(&blocks[0], &rank.world);
        drop((blocks, bucket, pool));
        rank.leave();
    });
}

#[test]
fn ranks_that_are_behind_catch_up_by_the_advice() {
    on_ranks(3, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let mut blocks = vec![bucket];
        // Rank 1 is ahead by two segments, of which it has dropped a block again.
        if rank.rank == 1 {
            let first = pool.allocate(3 * MIB).expect("there is room");
            blocks.push(pool.allocate(5 * MIB).expect("there is room"));
            drop(first);
        }
        assert_eq!(recover(&rank, &pool, &mut blocks), 3);
        assert_eq!(blocks.len(), 2);
        blocks.iter().for_each(|block| rank.sum(block, &rank.world));
        drop((blocks, pool));
        rank.leave();
    });
}

#[test]
fn pools_that_cannot_be_made_equal_are_made_anew() {
    on_ranks(2, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let odd = pool.allocate((3 + u64::from(rank.rank)) * MIB).expect("there is room");
        let error = pool.commit(&rank.world, options()).expect_err("the segments differ").to_string();
        assert!(error.ends_with("drop the pool on all ranks, and make a new one"), "{error}");
        drop((odd, bucket, pool));
        let (pool, bucket) = rank.pool_with_bucket();
        pool.commit(&rank.world, options()).expect("the ranks agree");
        rank.sum(&bucket, &rank.world);
        drop((bucket, pool));
        rank.leave();
    });
}

#[test]
fn a_reserved_segment_becomes_a_window_and_serves_a_capture() {
    on_ranks(2, |rank| {
        let pool = rank.pool();
        pool.reserve(8 * MIB).expect("there is room");
        assert_eq!((pool.segments(), pool.reserved()), (1, 8 * MIB));
        assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").windows, 1);
        let capture = pool.begin_capture();
        let blocks: Vec<_> = (0..8).map(|_| pool.allocate(MIB).expect("it is reserved")).collect();
        let full = pool.reserve(1).expect_err("the pool is frozen");
        assert!(matches!(full, SymmetricError::PoolWouldGrowDuringCapture { .. }), "{full}");
        drop(capture);
        assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").new_segments, 0);
        rank.sum(&blocks[7], &rank.world);
        drop((blocks, pool));
        rank.leave();
    });
}
