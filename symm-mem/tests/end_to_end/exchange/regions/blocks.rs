//! Blocks of caching allocators as memory of exchanges.

use std::sync::Arc;

use caching_alloc::{
    core::{Allocator, Block, PoolKind, PoolSettings, SegmentSource, Settings},
    driver::{DriverEvents, DriverSource, Sharing, VirtualMemorySource},
};
use cuda_driver::{
    Stream,
    memory::{MemoryPool, StreamMemory},
};
use symm_mem::exchange::{Direction, ExchangeRefusal, Memory, Part, TransferError};

use super::{
    super::{LONG, Rank, on_ranks, on_world, options, pattern},
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
fn blocks(rank: &Rank<'_>) -> Vec<Block> {
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

#[test]
fn blocks_are_memory_of_plans_too() {
    on_ranks(2, options(), |rank| {
        for block in blocks(rank) {
            let parts = [Part::GetFrom, Part::GetBy];
            let pages = block.segments().len();
            let memory = Memory::block(&rank.context, block).unwrap();
            rank.write(&memory, &pattern(rank.rank, 2, memory.bytes()));
            let exchange = |memory: &Memory| {
                let transfer = rank.transfer(1 - rank.rank, parts[rank.rank], memory);
                rank.exchange.exchange("block", &[transfer])
            };
            let one_page = memory.part(7, 4000).unwrap();
            if pages > 1 {
                let refused = exchange(&memory).unwrap_err();
                let Some(ExchangeRefusal::PeerPrepareFailed { rank: 1, cause }) = refused.exchange_refusal()
                else {
                    panic!("{refused}")
                };
                assert!(cause.contains("pages") && cause.contains("share it as a region"), "{cause}");
            }
            let plan = exchange(&one_page).unwrap();
            (rank.meet)();
            rank.round(&plan, &parts[rank.rank..=rank.rank]);
            assert!(rank.read(&one_page) == pattern(1, 2, memory.bytes())[7..4007]);
            (rank.meet)();
        }
    });
}

/// Virtual memory of another owner, such as a slice of a [`caching_alloc::driver::DeviceAllocator`].
#[test]
fn foreign_memory_may_be_virtual() {
    on_world(2, options(), |_, rank| {
        let allocator = caching_alloc::driver::DeviceAllocator::new(
            &rank.context,
            Sharing::by_descriptor(),
            Settings::default(),
        )
        .unwrap();
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
