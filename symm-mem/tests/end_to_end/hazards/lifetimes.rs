//! Hazards of objects that are made anew at the addresses of former ones, and of communicators before their first use.

use std::sync::{Arc, Mutex};

use caching_alloc::{
    core::{MemoryInfo, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError},
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::DevicePtr;
use process_group::{
    comm::DataType,
    group::{Buffer, GroupId, Request},
};
use symm_mem::{
    CommunicatorGroup, Domain, Geometry, Refusal, RegistrationState, SymmetricBlock, SymmetricPool,
};

use super::NCCL;
use crate::embedded::job::{self, Rank, options, soon};

const MIB: u64 = 1 << 20;

/// A source that keeps the segments that pools release, and gives them to the next pools in ascending order of their
/// addresses, or in descending order.
#[derive(Debug)]
struct Reusing {
    source: VirtualMemorySource,
    is_descending: bool,
    released: Mutex<Vec<SegmentMemory>>,
}

impl Reusing {
    fn of(rank: &Rank, is_descending: bool) -> Arc<Self> {
        let source =
            VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).expect("virtual memory");
        Arc::new(Self { source, is_descending, released: Mutex::default() })
    }

    /// A pool of two segments with a block each.
    fn pool(self: &Arc<Self>, domain: &Domain) -> (SymmetricPool, [SymmetricBlock; 2]) {
        let geometry = Geometry { first_segment: 2 * MIB, largest_segment: 2 * MIB };
        let pool = SymmetricPool::with_source(domain, self.clone(), geometry).expect("2 MiB are its steps");
        let blocks = [(); 2].map(|()| pool.allocate(2 * MIB).expect("there is room"));
        (pool, blocks)
    }
}

impl SegmentSource for Reusing {
    fn device(&self) -> u32 {
        self.source.device()
    }

    fn granularity(&self) -> u64 {
        self.source.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mut released = self.released.lock().expect("no panic");
        released.sort_by_key(|memory| memory.address);
        match released.len() {
            0 => self.source.allocate(bytes),
            kept if self.is_descending => Ok(released.remove(kept - 1)),
            _ => Ok(released.remove(0)),
        }
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.released.lock().expect("no panic").push(*memory);
        Ok(())
    }

    fn is_exportable(&self) -> bool {
        self.source.is_exportable()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        self.source.export(memory, kind)
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.source.memory_info()
    }
}

impl Drop for Reusing {
    fn drop(&mut self) {
        let released = std::mem::take(self.released.get_mut().expect("no panic"));
        released.iter().for_each(|memory| self.source.release(memory).expect("a segment of the source"));
    }
}

fn addresses(blocks: &[SymmetricBlock; 2]) -> [DevicePtr; 2] {
    blocks.each_ref().map(|block| block.ptr())
}

fn standing(pool: &SymmetricPool, block: &SymmetricBlock, group: GroupId) -> RegistrationState {
    pool.lookup(block.ptr(), 4, group).expect("in one segment").expect("in the pool").state
}

/// The world compares the places of the buffers of its collectives. It outlives a pool whose segments it has used, and
/// the next pool has them in another order on rank 1 only. A former place of an address would differ between the ranks.
#[test]
fn a_new_pool_at_the_addresses_of_a_dropped_one_has_its_own_places() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            // The communicator keeps the memory of pools that it has registered, so nothing is registered.
            let options = options().windows(false).map_peers(false);
            let source = Reusing::of(&rank, rank.rank == 1);
            let (former, blocks) = source.pool(&rank.domain);
            former.commit(&rank.world, options).expect("the ranks agree");
            blocks.iter().for_each(|block| rank.sum(block, &rank.world));
            let mut places = addresses(&blocks);
            places.sort_unstable();
            drop((former, blocks));

            let (pool, blocks) = source.pool(&rank.domain);
            if rank.rank == 1 {
                places.reverse();
            }
            assert_eq!(addresses(&blocks), places, "the dropped pool's memory");
            for block in &blocks {
                assert_eq!(standing(&pool, block, rank.world.id()), RegistrationState::Pending);
            }
            assert_eq!(pool.commit(&rank.world, options).expect("the ranks agree").new_segments, 2);
            blocks.iter().for_each(|block| rank.sum(block, &rank.world));
            rank.world.barrier(soon()).expect("the ranks have used the same places");
            drop((blocks, pool));
            rank.leave();
            drop(source);
        },
    );
}

/// A communicator and a pool are made anew after the former ones have ended.
#[test]
fn a_new_communicator_has_no_registration_of_the_former_at_the_same_addresses() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let source = Reusing::of(&rank, false);
            let mut former: Option<(GroupId, [DevicePtr; 2])> = None;
            for _ in 0..3 {
                let request = Request::Color { color: Some(0), key: rank.rank.into() };
                let group =
                    rank.world.split("again", &request).expect("all ranks split").expect("both are in it");
                let (pool, blocks) = source.pool(&rank.domain);
                for id in former.iter().map(|(id, _)| *id).chain([group.id()]) {
                    for block in &blocks {
                        assert_eq!(standing(&pool, block, id), RegistrationState::Pending);
                        assert!(pool.window(block.ptr(), 4, id).expect("in one segment").is_none());
                    }
                }
                let found = addresses(&blocks);
                if let Some((id, addresses)) = former {
                    assert_eq!(found, addresses, "the dropped pool's memory");
                    assert_ne!(id, group.id());
                }
                assert!(!group.communicator().is_registered(found[0], 4));
                let report = pool.commit(&group, options()).expect("the ranks agree");
                assert_eq!(report.new_segments, 2);
                for block in &blocks {
                    assert!(pool.window(block.ptr(), 4, group.id()).expect("in one segment").is_some());
                    rank.sum(block, &group);
                }
                former = Some((group.id(), found));
                drop((blocks, pool));
                group.destroy(soon()).expect("all ranks leave");
            }
            rank.leave();
            drop(source);
        },
    );
}

/// Rank 1's communicator is not created yet, and that of rank 0 is.
#[test]
fn a_communicator_that_one_rank_has_not_created_is_refused_on_all() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let lazy = rank.builder().lazy().build().expect("all ranks join");
            let (pool, block) = rank.pool_with_bucket();
            let created = if rank.rank == 0 { rank.tp.communicator() } else { lazy.communicator() };
            let of = |communicator| CommunicatorGroup { id: lazy.id(), ranks: vec![0, 1], communicator };
            let error = pool.commit(&of(created), options()).expect_err("rank 1 has no communicator");
            assert!(
                matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { rank: 1, ordinal: None, .. })),
                "{error}"
            );
            assert_eq!(standing(&pool, &block, lazy.id()), RegistrationState::Pending);
            assert!(pool.poison(lazy.id()).is_none());
            let report = pool.commit(&of(rank.tp.communicator()), options()).expect("both have it now");
            assert_eq!(report.new_windows, 1);
            rank.sum(&block, &rank.tp);
            lazy.abort(soon()).expect("there is nothing to wait for");
            drop((block, pool));
            rank.leave();
        },
    );
}

/// Ranks 0 and 1 have exchanged a message. Rank 2's communicator has run nothing when its first registration comes.
#[test]
fn a_communicator_that_has_run_nothing_on_one_rank_gets_its_windows() {
    job::run(
        3,
        NCCL,
        |_| {},
        |rank| {
            let group = rank.builder().build().expect("all ranks join");
            let (pool, block) = rank.pool_with_bucket();
            let buffer = Buffer::new(block.ptr(), 16, DataType::F32);
            rank.fill(&block);
            // SAFETY: the block is alive until the stream has been synchronised.
            unsafe {
                match rank.rank {
                    0 => group.raw().send(buffer, 1, &rank.stream).map(drop),
                    1 => group.raw().recv(buffer, 0, &rank.stream).map(drop),
                    _ => Ok(()),
                }
            }
            .expect("the message is enqueued");
            rank.stream.synchronize().expect("the work is done");
            assert_eq!(pool.commit(&group, options()).expect("the ranks agree").new_windows, 1);
            rank.sum(&block, &group);
            drop((block, pool));
            group.destroy(soon()).expect("all ranks leave");
            rank.leave();
        },
    );
}
