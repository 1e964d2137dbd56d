//! Captured transfers pin the blocks that they use, without a declaration: blocks and slices of a symmetric pool and of
//! caching allocators, as memory of plans and of regions.

use std::sync::Arc;

use caching_alloc::{
    core::{Allocator, PoolKind, PoolSettings, SegmentSource, Settings},
    driver::{DeviceAllocator, DriverEvents, DriverSource, Sharing, VirtualMemorySource},
};
use cuda_driver::{
    DevicePtr,
    graph::{CaptureMode, GraphExec},
};
use process_group::store::{HashStore, Store};
use symm_mem::{
    Domain, Geometry, SymmetricPool,
    exchange::{Descriptor, Direction, Memory, Part},
};

use super::{LONG, Rank, on_ranks, options, pattern};

const MIB: usize = 1 << 20;
/// Length of each block: two pages of a re-mappable pool.
const BYTES: usize = 2 * MIB + 4096;

/// Allocates a block of [`BYTES`] bytes. The memory is the only owner of the block.
type Source<'a> = Box<dyn Fn() -> Memory + 'a>;

/// Blocks of a caching allocator over `source`, of a re-mappable pool if `kind` says so.
fn cached<'a>(
    rank: &'a Rank<'_>,
    source: impl SegmentSource + 'static,
    kind: Option<PoolKind>,
) -> Source<'a> {
    let events = Arc::new(DriverEvents::new(&rank.context));
    let stream = events.register(&rank.stream);
    let allocator = Allocator::new(Arc::new(source), events, Settings::default());
    let pool = kind.map(|kind| allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap());
    Box::new(move || {
        let block = match &pool {
            Some(pool) => pool.allocate(BYTES as u64, stream),
            None => allocator.allocate(BYTES as u64, stream),
        };
        Memory::block(&rank.context, block.unwrap()).unwrap()
    })
}

/// Every kind of block that an allocator or a pool can free while a graph uses it, by name.
fn sources<'a>(rank: &'a Rank<'_>, store: &Arc<dyn Store>) -> Vec<(&'static str, Source<'a>)> {
    let pool = || {
        let domain = Domain::new(store.clone(), 7, rank.rank as u32, 0..2).unwrap();
        let geometry = Geometry { first_segment: 10 << 20, largest_segment: 10 << 20 };
        SymmetricPool::new(&domain, &rank.context, geometry).unwrap()
    };
    let (blocks, slices) = (pool(), pool());
    let allocator =
        DeviceAllocator::new(&rank.context, Sharing::by_descriptor(), Settings::default()).unwrap();
    let pages = || VirtualMemorySource::new(&rank.context, Sharing::by_descriptor()).unwrap();
    vec![
        (
            "blocks of a pool",
            Box::new(move || Memory::from(&blocks.allocate(BYTES as u64).unwrap())) as Source<'_>,
        ),
        (
            "slices of a pool",
            Box::new(move || Memory::of_slice(&slices.alloc::<u8>(BYTES, &rank.stream).unwrap()).unwrap()),
        ),
        ("blocks of cuMemAlloc", cached(rank, DriverSource::new(&rank.context), None)),
        ("blocks of virtual memory", cached(rank, pages(), None)),
        ("blocks of pages", cached(rank, pages(), Some(PoolKind::Remappable))),
        (
            "slices of an allocator",
            Box::new(move || Memory::of_slice(&allocator.alloc::<u8>(BYTES, &rank.stream).unwrap()).unwrap()),
        ),
    ]
}

fn read(rank: &Rank<'_>, at: DevicePtr) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    // SAFETY: the graph keeps the memory, and nobody writes it now.
    unsafe { rank.context.copy_to_host(&mut bytes, at) }.unwrap();
    bytes
}

/// Checks that the graph keeps the block `own` until it is dropped. `launch` launches the graph and checks its effect
/// on the block. It owns the plan or the regions, after whose drop the graph must not be launched.
fn is_kept(
    rank: &Rank<'_>,
    (kind, source): &(&str, Source<'_>),
    own: Memory,
    graph: GraphExec,
    launch: impl Fn(&GraphExec),
) {
    let at = own.ptr();
    drop(own);
    let fresh = || {
        let memory = source();
        rank.write(&memory, &vec![0xff; BYTES]);
        memory
    };
    // The plan or the regions keep the block too.
    let first = fresh();
    assert_ne!(first.ptr(), at, "{kind}");
    for _ in 0..2 {
        (rank.meet)();
        launch(&graph);
        (rank.meet)();
    }
    drop(launch);
    while (rank.exchange.open_handles(), rank.exchange.free_channels()) != (0, 64) {
        std::thread::yield_now();
    }
    (rank.meet)();
    // Now only the graph keeps it.
    let before = read(rank, at);
    let others = [first, fresh(), fresh()];
    assert!(
        others.iter().all(|other| other.ptr() != at),
        "rank {}: the graph has lost its {kind}",
        rank.rank
    );
    assert!(read(rank, at) == before, "{kind}");
    drop(graph);
    // The freed place may be merged with free memory beside it, so other places can come first.
    let after: Vec<Memory> = (0..12).map(|_| source()).collect();
    let is_free = after.iter().any(|memory| memory.ptr() == at);
    assert!(is_free, "rank {}: {kind}: nobody uses it any more", rank.rank);
    drop((others, after));
    (rank.meet)();
}

#[test]
fn the_blocks_of_a_captured_plan_stay_until_the_graph_goes() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, options(), |rank| {
        for source in &sources(rank, &store) {
            for parts in [[Part::PutInitiator, Part::PutTarget], [Part::GetFrom, Part::GetBy]] {
                let (part, own) = (parts[rank.rank], source.1());
                let (at, sends) = (own.ptr(), matches!(part, Part::PutInitiator | Part::GetBy));
                let name = format!("{} {part}", source.0);
                let plan =
                    rank.exchange.exchange("plan", &[rank.transfer(1 - rank.rank, part, &own)]).unwrap();
                rank.write(&own, &pattern(if sends { 5 } else { 6 }, 0, BYTES));
                let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
                rank.enqueue_round(&plan, &[part], LONG);
                let graph = capture.end().unwrap().instantiate().unwrap();
                let launch = move |graph: &GraphExec| {
                    plan.launch(graph, &rank.stream, LONG).unwrap();
                    rank.stream.synchronize().unwrap();
                    plan.check().unwrap();
                    assert!(read(rank, at) == pattern(5, 0, BYTES), "{name}");
                };
                is_kept(rank, source, own, graph, launch);
            }
        }
    });
}

/// Each rank puts the first half of its block into the second half of the peer's block, or gets it from there.
#[test]
fn the_blocks_of_captured_transfers_between_regions_stay_until_the_graph_goes() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, options(), |rank| {
        for source in &sources(rank, &store) {
            for direction in [Direction::Put, Direction::Get] {
                let (own, peer, half) = (source.1(), 1 - rank.rank, BYTES / 2);
                let at = own.ptr();
                rank.write(&own, &pattern(rank.rank, 0, BYTES));
                let regions = rank.exchange.share_regions("regions", &[("only", own.clone())]).unwrap();
                (rank.meet)();
                let (local_offset, remote_offset) = match direction {
                    Direction::Put => (0, half),
                    Direction::Get => (half, 0),
                };
                let (local_region, remote_region) = (0, 0);
                let copy =
                    Descriptor { local_region, local_offset, remote_region, remote_offset, bytes: half };
                let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
                // SAFETY: the regions outlive the launches, and the ranks meet before and after them.
                let _ = unsafe { regions.transfer(direction, peer, &[copy], &rank.stream, LONG) }.unwrap();
                let graph = capture.end().unwrap().instantiate().unwrap();
                let launch = move |graph: &GraphExec| {
                    rank.stream.launch(graph).unwrap();
                    rank.stream.synchronize().unwrap();
                    regions.check(peer).unwrap();
                    (rank.meet)();
                    let found = read(rank, at);
                    assert!(found[..half] == pattern(rank.rank, 0, half), "{} {direction:?}", source.0);
                    assert!(found[half..2 * half] == pattern(peer, 0, half), "{} {direction:?}", source.0);
                };
                is_kept(rank, source, own, graph, launch);
            }
        }
    });
}
