//! Blocks of caching allocators as memory of exchanges.

use std::sync::Arc;

use caching_alloc::{
    core::{Allocator, Block, PoolKind, PoolSettings, SegmentSource, Settings},
    driver::{DeviceAllocator, DriverEvents, DriverSource, Sharing, VirtualMemorySource},
};
use cuda_driver::{
    Stream,
    memory::{MemoryPool, StreamMemory},
};
use process_group::store::{HashStore, Store};
use symm_mem::{
    Domain, Geometry, SymmetricPool,
    exchange::{Direction, ExchangeRefusal, Memory, Part, TransferError},
};

use super::{
    super::{LONG, Rank, on_ranks, options, pattern},
    at,
};

const MIB: usize = 1 << 20;

/// An allocator over `source`, and the number of the rank's stream in it.
fn allocator(
    rank: &Rank<'_>,
    source: impl SegmentSource + 'static,
) -> (Allocator, caching_alloc::core::StreamId) {
    let events = Arc::new(DriverEvents::new(&rank.context));
    let stream = events.register(&rank.stream);
    (Allocator::new(Arc::new(source), events, Settings::default()), stream)
}

/// Blocks of each kind of source: of `cuMemAlloc`, of virtual memory, and of pages, several of which a block spans.
pub(super) fn blocks(rank: &Rank<'_>) -> Vec<Block> {
    let (plain, stream) = allocator(rank, DriverSource::new(&rank.context));
    // The second block does not begin where its segment does.
    let mut blocks: Vec<Block> = [5000, 9000].map(|bytes| plain.allocate(bytes, stream).unwrap()).into();
    let source = VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).unwrap();
    let (virtual_memory, stream) = allocator(rank, source);
    blocks.extend([5000, 9000].map(|bytes| virtual_memory.allocate(bytes, stream).unwrap()));
    let remapped = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
    let pool = virtual_memory.pool(remapped).unwrap();
    let scattered = pool.allocate(5 * MIB as u64, stream).unwrap();
    assert!(scattered.segments().len() > 1, "{scattered:?}");
    blocks.push(scattered);
    blocks
}

#[test]
fn blocks_of_every_source_are_regions() {
    on_ranks(2, options(), every_source);
}

/// Rank 0 puts from and to blocks of every source. For GPUs too.
pub(in super::super) fn every_source(rank: &Rank<'_>) {
    let memory: Vec<Memory> =
        blocks(rank).into_iter().map(|block| Memory::block(&rank.context, block).unwrap()).collect();
    let names = ["plain", "plain too", "virtual", "virtual too", "pages"];
    let regions: Vec<_> = names.into_iter().zip(memory.iter().cloned()).collect();
    for (region, (_, memory)) in regions.iter().enumerate() {
        rank.write(memory, &pattern(rank.rank, region, memory.bytes()));
    }
    let shared = rank.exchange.share_regions("blocks", &regions).unwrap();
    // Blocks of one segment are opened once.
    let pages = memory[4].bytes().div_ceil(2 * MIB);
    assert!(rank.exchange.open_handles() <= 2 + pages + 1, "{}", rank.exchange.open_handles());
    (rank.meet)();
    if rank.rank == 0 {
        // The last two cross the pages, at other offsets on either side.
        let list = [
            at((0, 1), (1, 2), 4000),
            at((1, 1), (2, 2), 4000),
            at((2, 1), (3, 2), 4000),
            at((4, 1), (4, 4097), 3 * MIB),
            at((4, 3 * MIB + 1), (4, 3 * MIB + 5000), MIB),
        ];
        // SAFETY: the peer waits for the notification.
        let pending = unsafe { shared.transfer_and_notify(Direction::Put, 1, &list, &rank.stream, LONG) };
        let _ = pending.unwrap();
        rank.stream.synchronize().unwrap();
    } else {
        shared.wait(0, &rank.stream, LONG).unwrap();
        rank.stream.synchronize().unwrap();
        shared.check(0).unwrap();
        for (from, to, (begin, end), bytes) in [
            (0, 1, (1, 2), 4000),
            (1, 2, (1, 2), 4000),
            (2, 3, (1, 2), 4000),
            (4, 4, (1, 4097), 3 * MIB),
            (4, 4, (3 * MIB + 1, 3 * MIB + 5000), MIB),
        ] {
            let sent = pattern(0, from, memory[from].bytes());
            let found = rank.read(&memory[to]);
            assert!(found[end..end + bytes] == sent[begin..begin + bytes], "{from} to {to}");
            assert_eq!(found[end - 1], pattern(1, to, end)[end - 1], "{to}");
        }
    }
    (rank.meet)();
}

/// A block is freed once no rank needs it, and not before.
#[test]
fn a_block_is_kept_until_the_peer_has_closed_it() {
    on_ranks(2, options(), |rank| {
        let source = VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).unwrap();
        let (allocator, stream) = allocator(rank, source);
        let memory = Memory::block(&rank.context, allocator.allocate(5000, stream).unwrap()).unwrap();
        let shared = rank.exchange.share_regions("kept", &[("block", memory)]).unwrap();
        let allocated = || allocator.stats().all.allocated.current;
        (rank.meet)();
        if rank.rank == 0 {
            drop(shared);
            // Longer than it takes to close the regions and to report that.
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(allocated() > 0, "the peer has it open");
            (rank.meet)();
        } else {
            (rank.meet)();
            drop(shared);
        }
        while allocated() > 0 {
            std::thread::yield_now();
        }
        (rank.meet)();
    });
}

/// Both ends of a transfer may cross pages, at other offsets.
#[test]
fn blocks_are_memory_of_plans_too() {
    on_ranks(2, options(), |rank| {
        for block in blocks(rank) {
            let whole = block.bytes() as usize;
            let memory = Memory::block(&rank.context, block).unwrap();
            let bytes = whole - 4097;
            // The first byte of this rank's end of each transfer.
            let begins = [[7, 4097], [4097, 7]][rank.rank];
            for (parts, copier) in
                [([Part::GetFrom, Part::GetBy], 0), ([Part::PutInitiator, Part::PutTarget], 1)]
            {
                let part = parts[rank.rank];
                let own = memory.part(begins[copier], bytes).unwrap();
                let transfer = rank.transfer(1 - rank.rank, part, &own);
                let plan = rank.exchange.exchange("block", &[transfer]).unwrap();
                rank.write(&memory, &pattern(rank.rank, 2, whole));
                (rank.meet)();
                rank.round(&plan, &[part]);
                let receives = matches!(part, Part::GetFrom | Part::PutTarget);
                let sent = [[4097, 7], [7, 4097]][rank.rank][copier];
                let found = rank.read(&memory);
                let mut expected = pattern(rank.rank, 2, whole);
                if receives {
                    let from = &pattern(1 - rank.rank, 2, whole)[sent..sent + bytes];
                    expected[begins[copier]..begins[copier] + bytes].copy_from_slice(from);
                }
                assert!(found == expected, "{part} of {whole} bytes");
                (rank.meet)();
            }
        }
    });
}

/// Slices of a caching allocator and of a symmetric pool, and parts of them.
#[test]
fn slices_are_memory_of_exchanges() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, options(), |rank| {
        let allocator =
            DeviceAllocator::new(&rank.context, Sharing::by_descriptor(), Settings::default()).unwrap();
        let domain = Domain::new(store.clone(), 7, rank.rank as u32, 0..2).unwrap();
        let pool = SymmetricPool::new(&domain, &rank.context, Geometry::default()).unwrap();
        let _before = allocator.alloc::<u8>(3000, &rank.stream).unwrap();
        let cached = allocator.alloc::<u16>(3000, &rank.stream).unwrap();
        let _before = pool.alloc::<u8>(3000, &rank.stream).unwrap();
        let symmetric = pool.alloc::<u16>(3000, &rank.stream).unwrap();
        let memory = [
            Memory::of_slice(&cached).unwrap(),
            Memory::of_slice(cached.slice(1000..2000).unwrap()).unwrap(),
            Memory::of_slice(&symmetric).unwrap(),
            Memory::of_slice(symmetric.slice(1000..2000).unwrap()).unwrap(),
        ];
        for (memory, slice) in memory.chunks(2).zip([&cached, &symmetric]) {
            assert_eq!((memory[0].ptr(), memory[0].bytes()), (slice.device_ptr(), 6000));
            assert_eq!((memory[1].ptr(), memory[1].bytes()), (slice.device_ptr() + 2000usize, 2000));
        }
        // The memory outlives the slices.
        drop((cached, symmetric));
        rank.write(&memory[0], &pattern(rank.rank, 0, 6000));
        rank.write(&memory[2], &pattern(rank.rank, 2, 6000));
        let names = ["cached", "its part", "symmetric", "its part too"];
        let regions: Vec<_> = names.into_iter().zip(memory.iter().cloned()).collect();
        let shared = rank.exchange.share_regions("slices", &regions).unwrap();
        let part = [Part::GetFrom, Part::GetBy][rank.rank];
        let plan = rank.exchange.exchange("part", &[rank.transfer(1 - rank.rank, part, &memory[1])]).unwrap();
        (rank.meet)();
        rank.round(&plan, &[part]);
        let mut expected = pattern(rank.rank, 0, 6000);
        if rank.rank == 0 {
            expected[2000..4000].copy_from_slice(&pattern(1, 0, 6000)[2000..4000]);
            let list = [at((2, 10), (3, 20), 500)];
            // SAFETY: the peer waits for the notification.
            let pending = unsafe { shared.transfer_and_notify(Direction::Put, 1, &list, &rank.stream, LONG) };
            let _ = pending.unwrap();
            rank.stream.synchronize().unwrap();
        } else {
            shared.wait(0, &rank.stream, LONG).unwrap();
            rank.stream.synchronize().unwrap();
            shared.check(0).unwrap();
            assert_eq!(rank.read(&memory[2])[2020..2520], pattern(0, 2, 6000)[10..510]);
        }
        assert!(rank.read(&memory[0]) == expected);
        (rank.meet)();
    });
}

/// The block of a dropped slice is freed once no rank needs it, and not before.
#[test]
fn the_block_of_a_slice_is_kept_by_its_memory() {
    on_ranks(1, options(), |rank| {
        let allocator = DeviceAllocator::new(&rank.context, Sharing::none(), Settings::default()).unwrap();
        let allocated = || allocator.allocator().stats().all.allocated.current;
        let slice = allocator.alloc::<u64>(100, &rank.stream).unwrap();
        let memory = Memory::of_slice(slice.slice(50..).unwrap()).unwrap();
        drop(slice);
        assert!(allocated() > 0);
        drop(memory);
        assert_eq!(allocated(), 0);
        let empty = allocator.alloc::<u64>(0, &rank.stream).unwrap();
        assert_eq!(Memory::of_slice(&empty).unwrap().bytes(), 0);
        let foreign = rank.stream.alloc_zeros::<u8>(10).unwrap();
        let refused = Memory::of_slice(&foreign).unwrap_err();
        let TransferError::ForeignSlice { address } = &refused else { panic!("{refused}") };
        assert_eq!(*address, foreign.device_ptr().0);
    });
}

/// Virtual memory of another owner, such as a slice of a [`DeviceAllocator`].
#[test]
fn foreign_memory_may_be_virtual() {
    on_ranks(2, options(), |rank| {
        let allocator =
            DeviceAllocator::new(&rank.context, Sharing::by_descriptor(), Settings::default()).unwrap();
        let _before = allocator.alloc::<u8>(3000, &rank.stream).unwrap();
        let slice = allocator.alloc::<u8>(6000, &rank.stream).unwrap();
        let (ptr, bytes) = (slice.device_ptr(), slice.bytes());
        // SAFETY: the slice owns the memory, and its source maps all of a segment's physical memory.
        let memory = unsafe { Memory::foreign(&rank.context, ptr, bytes, slice) }.unwrap();
        let part = [Part::GetFrom, Part::GetBy][rank.rank];
        let transfer = rank.transfer(1 - rank.rank, part, &memory);
        let plan = rank.exchange.exchange("slice", &[transfer]).unwrap();
        rank.write(&memory, &pattern(rank.rank, 0, 6000));
        (rank.meet)();
        rank.round(&plan, &[part]);
        assert!(rank.read(&memory) == pattern(1, 0, 6000));
        (rank.meet)();
    });
}

/// Stream-ordered memory has no handle of its own.
#[test]
fn memory_that_no_peer_can_open_is_an_error_that_says_so() {
    on_ranks(2, options(), |rank| {
        let stream: &Stream = &rank.stream;
        let pool = MemoryPool::default_of(&rank.context).unwrap();
        let owner = StreamMemory::from_pool(&pool, stream, 4096).unwrap();
        stream.synchronize().unwrap();
        let (ptr, bytes) = (owner.ptr(), owner.bytes());
        // SAFETY: the owner keeps the memory.
        let memory = unsafe { Memory::foreign(&rank.context, ptr, bytes, owner) }.unwrap();
        let refused = rank.exchange.share_regions("ordered", &[("one", memory)]).unwrap_err();
        let Some(ExchangeRefusal::PeerPrepareFailed { rank: 0, cause }) = refused.exchange_refusal() else {
            panic!("{refused}")
        };
        assert!(cause.contains("neither memory of cuMemAlloc nor virtual memory with handles"), "{cause}");
        (rank.meet)();
    });
}

#[test]
fn a_block_of_another_device_is_an_error() {
    on_ranks(2, options(), |rank| {
        let (plain, stream) = allocator(rank, DriverSource::new(&rank.context));
        let block = plain.allocate(100, stream).unwrap();
        let device = rank.context.driver().device(1 - rank.rank as u32).unwrap();
        let error = Memory::block(&device.retain_primary().unwrap(), block).unwrap_err();
        let TransferError::Driver(error) = &error else { panic!("{error}") };
        assert!(error.to_string().contains("the block"), "{error}");
        (rank.meet)();
    });
}
