//! Successful transfers.

use std::sync::Arc;

use cuda_driver::{graph::CaptureMode, memory::DeviceMemory};
use process_group::store::{HashStore, Store};
use symm_mem::{
    Domain, Geometry, SymmetricPool,
    exchange::{Exchange, Memory, Part, Plan, Quarantined, TransferError},
};

use super::{LONG, Rank, on_ranks, on_world, options, pattern};

const PARTS: [Part; 4] = [Part::PutInitiator, Part::PutTarget, Part::GetFrom, Part::GetBy];

/// A rank's transfers with each other rank: all four roles, each with `bytes` bytes at `offset` of an allocation.
struct Mesh {
    plan: Plan,
    parts: Vec<Part>,
    peers: Vec<usize>,
    memory: Vec<Memory>,
}

/// All four roles between all ranks, in the order of the lower rank.
fn everyone(rank: &Rank<'_>) -> Vec<(usize, Part)> {
    let peers = (0..rank.world).filter(|peer| *peer != rank.rank);
    let with =
        |peer: usize| PARTS.map(|part| (peer, if rank.rank < peer { part } else { part.counterpart() }));
    peers.flat_map(with).collect()
}

/// A put and a get from each rank to the next one. Both ends list them in the order of the rank that begins them.
fn ring(rank: &Rank<'_>) -> Vec<(usize, Part)> {
    let (next, last) = ((rank.rank + 1) % rank.world, (rank.rank + rank.world - 1) % rank.world);
    let begun = [(next, Part::PutInitiator), (next, Part::GetFrom)];
    let taken = begun.map(|(_, part)| (last, part.counterpart()));
    if rank.rank < last { [begun, taken].concat() } else { [taken, begun].concat() }
}

/// Exchanges these transfers; their buffers lie in plain and in virtual memory.
fn mesh(
    rank: &Rank<'_>,
    name: &str,
    transfers: impl IntoIterator<Item = (usize, Part)>,
    (bytes, offset): (usize, usize),
) -> Mesh {
    let (peers, parts): (Vec<usize>, Vec<Part>) = transfers.into_iter().unzip();
    let memory = |part: &Part| {
        let whole = match part {
            Part::PutInitiator | Part::PutTarget => rank.plain(bytes + offset + 3),
            _ => rank.mapped(bytes + offset),
        };
        whole.part(offset, bytes).unwrap()
    };
    let memory: Vec<Memory> = parts.iter().map(memory).collect();
    let transfers: Vec<_> = peers
        .iter()
        .zip(&parts)
        .zip(&memory)
        .map(|((peer, part), memory)| rank.transfer(*peer, *part, memory))
        .collect();
    let plan = rank.exchange.exchange(name, &transfers).unwrap();
    Mesh { plan, parts, peers, memory }
}

impl Mesh {
    /// Fills outgoing buffers with this rank's pattern, and clears incoming ones.
    fn fill(&self, rank: &Rank<'_>, round: usize) {
        for (part, memory) in self.parts.iter().zip(&self.memory) {
            match part {
                Part::PutInitiator | Part::GetBy => {
                    rank.write(memory, &pattern(rank.rank, round, memory.bytes()));
                }
                _ => rank.write(memory, &vec![0; memory.bytes()]),
            }
        }
    }

    fn check(&self, rank: &Rank<'_>, round: usize) {
        for ((part, memory), peer) in self.parts.iter().zip(&self.memory).zip(&self.peers) {
            let from = if matches!(part, Part::PutInitiator | Part::GetBy) { rank.rank } else { *peer };
            assert!(
                rank.read(memory) == pattern(from, round, memory.bytes()),
                "rank {} {part} {peer} in round {round}",
                rank.rank
            );
        }
    }
}

/// Transfers of these sizes at these offsets between all ranks, a few rounds each, eager and captured.
pub(super) fn all_pairs(rank: &Rank<'_>, cases: &[(usize, usize)]) {
    for case in cases {
        let mesh = mesh(rank, "mesh", everyone(rank), *case);
        (0..3).for_each(|round| eager(rank, &mesh, round));
        graphs(rank, &mesh, 2, 3..6);
        eager(rank, &mesh, 6);
    }
}

/// Transfers of these sizes at these offsets around a ring.
pub(super) fn around(rank: &Rank<'_>, cases: &[(usize, usize)]) {
    for case in cases {
        let mesh = mesh(rank, "ring", ring(rank), *case);
        eager(rank, &mesh, 0);
        graphs(rank, &mesh, 1, 1..2);
    }
}

fn eager(rank: &Rank<'_>, mesh: &Mesh, round: usize) {
    mesh.fill(rank, round);
    (rank.meet)();
    rank.round(&mesh.plan, &mesh.parts);
    mesh.check(rank, round);
    (rank.meet)();
}

/// A graph of `times` rounds, which use the same toggles one after the other, launched for each of `rounds`.
fn graphs(rank: &Rank<'_>, mesh: &Mesh, times: usize, rounds: std::ops::Range<usize>) {
    let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
    (0..times).for_each(|_| rank.enqueue_round(&mesh.plan, &mesh.parts, LONG));
    let graph = capture.end().unwrap().instantiate().unwrap();
    for round in rounds {
        mesh.fill(rank, round);
        (rank.meet)();
        mesh.plan.launch(&graph, &rank.stream, LONG).unwrap();
        rank.stream.synchronize().unwrap();
        mesh.plan.check().unwrap();
        mesh.check(rank, round);
        (rank.meet)();
    }
}

#[test]
fn what_is_put_and_got_is_what_was_there() {
    for size in [2, 3] {
        on_ranks(size, options(), |rank| {
            all_pairs(rank, &[(1, 0), (4099, 13), (1 << 20, 4096)]);
            around(rank, &[(300_001, 1)]);
        });
    }
}

#[test]
fn ranks_of_one_device_reach_each_other() {
    let _turn = crate::common::turn();
    let world = gpu_sim::World::builder().devices(1).capacity(512 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let api = unsafe { cuda_driver::sys::Api::from_parts(world.cuda()) }.unwrap();
    let driver = cuda_driver::Driver::new(api).unwrap();
    super::threads(&driver, 1, 2, options(), |rank| all_pairs(rank, &[(777, 1)]));
    drop(driver);
    world.finish().expect("nothing is left behind");
}

#[test]
fn a_block_of_a_pool_is_reached_in_its_segment() {
    let stores: Arc<dyn Store> = Arc::new(HashStore::new());
    on_ranks(2, options(), |rank| {
        let domain = Domain::new(stores.clone(), 7, rank.rank as u32, 0..2).unwrap();
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
        let pool = SymmetricPool::new(&domain, &rank.context, geometry).unwrap();
        let blocks = [pool.allocate(5000).unwrap(), pool.allocate(70_000).unwrap()];
        let memory = Memory::from(&blocks[1]).part(3, 60_001).unwrap();
        let part = [Part::GetFrom, Part::GetBy][rank.rank];
        let transfer = rank.transfer(1 - rank.rank, part, &memory);
        let plan = rank.exchange.exchange("pool", &[transfer]).unwrap();
        rank.write(&memory, &pattern(rank.rank, 0, memory.bytes()));
        (rank.meet)();
        rank.round(&plan, &[part]);
        assert!(rank.read(&memory) == pattern(1, 0, memory.bytes()));
        (rank.meet)();
    });
}

/// Stores count alike, so their pools have the same numbers.
#[test]
fn blocks_of_two_stores_are_told_apart() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(HashStore::new()), Arc::new(HashStore::new())];
    on_ranks(2, options(), |rank| {
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let memory = stores.each_ref().map(|store| {
            let domain = Domain::new(store.clone(), 7, rank.rank as u32, 0..2).unwrap();
            let pool = SymmetricPool::new(&domain, &rank.context, geometry).unwrap();
            Memory::from(&pool.allocate(4096).unwrap())
        });
        let part = [Part::GetFrom, Part::GetBy][rank.rank];
        let transfers = memory.each_ref().map(|memory| rank.transfer(1 - rank.rank, part, memory));
        let plan = rank.exchange.exchange("stores", &transfers).unwrap();
        for (at, memory) in memory.iter().enumerate() {
            rank.write(memory, &pattern(rank.rank, at, memory.bytes()));
        }
        (rank.meet)();
        rank.round(&plan, &[part; 2]);
        for (at, memory) in memory.iter().enumerate() {
            assert!(rank.read(memory) == pattern(1, at, memory.bytes()), "the block of store {at}");
        }
        (rank.meet)();
    });
}

/// Many rounds without a host wait in between, on alternating streams.
#[test]
fn rounds_follow_each_other_on_any_stream() {
    on_ranks(2, options(), |rank| {
        let memory = rank.mapped(4096);
        let part = [Part::PutInitiator, Part::PutTarget][rank.rank];
        let plan = rank.exchange.exchange("rounds", &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap();
        let other = cuda_driver::Stream::new(&rank.context, cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
        let sums = rank.plain(4 * 50);
        for round in 0..50u32 {
            let stream = [&rank.stream, &other][round as usize % 2];
            // SAFETY: each end uses its buffer when it is its turn, which the plan orders.
            unsafe {
                if rank.rank == 0 {
                    stream.fill_u32(memory.ptr(), round + 1, 1024).unwrap();
                    plan.put(0, stream, LONG).unwrap();
                    // The next fill runs on the other stream.
                    stream.synchronize().unwrap();
                } else {
                    plan.ready(0, stream).unwrap();
                    plan.wait(0, stream, LONG).unwrap();
                    stream.copy(sums.ptr() + 4 * u64::from(round), memory.ptr() + 4092usize, 4).unwrap();
                    // The next round overwrites the source of this copy.
                    stream.synchronize().unwrap();
                }
            }
        }
        plan.check().unwrap();
        if rank.rank == 1 {
            let expected: Vec<u8> = (1..=50u32).flat_map(u32::to_le_bytes).collect();
            assert_eq!(rank.read(&sums), expected);
        }
        (rank.meet)();
    });
}

#[test]
fn an_allocation_is_opened_once_and_closed_with_its_last_plan() {
    on_world(2, options(), |world, rank| {
        let whole = rank.mapped(1 << 16);
        let part = [Part::GetFrom, Part::GetBy][rank.rank];
        let exchange = |name: &str, offset: usize| {
            let memory = whole.part(offset, 100).unwrap();
            rank.exchange.exchange(name, &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap()
        };
        let opened = [1, 0][rank.rank];
        let first = exchange("first", 0);
        assert_eq!(rank.exchange.open_handles(), opened);
        (rank.meet)();
        let mapped = world.faults().calls("cuMemMap");
        (rank.meet)();
        // Another plan with another part of the memory: the same allocation.
        let second = exchange("second", 300);
        assert_eq!((rank.exchange.open_handles(), first.generation(), second.generation()), (opened, 1, 1));
        assert_eq!(world.faults().calls("cuMemMap"), mapped, "something was mapped again");
        drop(first);
        (rank.meet)();
        rank.round(&second, &[part]);
        assert_eq!(rank.exchange.open_handles(), opened);
        (rank.meet)();
        // An exchange runs an agreement even if everything is already open.
        let third = exchange("second", 600);
        assert_eq!(third.generation(), 2);
        drop((second, third));
        (rank.meet)();
        let slots = || rank.exchange.free_channels();
        while (rank.exchange.open_handles(), slots()) != (0, 64) {
            std::thread::yield_now();
        }
    });
}

/// Memory of another owner, somewhere inside its allocation. It lives until no rank needs it.
#[test]
fn foreign_memory_is_reached_where_it_is() {
    on_ranks(2, options(), |rank| {
        let whole = Arc::new(DeviceMemory::new(&rank.context, 10_000).unwrap());
        // SAFETY: the owner is the allocation.
        let foreign = |offset: usize, bytes: usize| unsafe {
            Memory::foreign(&rank.context, whole.ptr() + offset, bytes, whole.clone())
        };
        let leaves = foreign(9000, 1001).unwrap_err();
        assert!(matches!(leaves, TransferError::OutOfBounds { whole: 10_000, .. }), "{leaves}");
        let memory = foreign(1001, 7000).unwrap();
        let part = [Part::GetBy, Part::GetFrom][rank.rank];
        let plan = rank.exchange.exchange("foreign", &[rank.transfer(1 - rank.rank, part, &memory)]).unwrap();
        rank.write(&memory, &pattern(rank.rank, 0, 7000));
        (rank.meet)();
        rank.round(&plan, &[part]);
        assert!(rank.read(&memory) == pattern(0, 0, 7000));
        drop((plan, memory));
        // The peer's plan is the last one that needs it.
        while Arc::strong_count(&whole) > 1 {
            std::thread::yield_now();
        }
        (rank.meet)();
    });
}

/// Pairs out of three ranks exchange plans, in a circle.
#[test]
fn pairs_exchange_by_themselves() {
    on_ranks(3, options(), |rank| {
        let memory = rank.plain(64);
        for pair in [[0, 1], [1, 2], [0, 2]].iter().filter(|pair| pair.contains(&rank.rank)) {
            let peer = pair[0] + pair[1] - rank.rank;
            let part = if rank.rank < peer { Part::PutInitiator } else { Part::PutTarget };
            let transfer = rank.transfer(peer, part, &memory);
            let plan = rank.exchange.exchange_among(pair, "pair", &[transfer]).unwrap();
            rank.write(&memory, &pattern(rank.rank, peer, 64));
            rank.round(&plan, &[part]);
            assert_eq!(rank.read(&memory), pattern(pair[0], pair[1], 64));
        }
        let plan = rank.exchange.exchange("nothing", &[]).unwrap();
        assert_eq!(plan.transfers(), 0);
        plan.check().unwrap();
        (rank.meet)();
    });
}

#[test]
fn handles_and_plans_go_from_thread_to_thread() {
    fn both<T: Send + Sync>() {}
    both::<Exchange>();
    both::<Plan>();
    both::<Memory>();
    both::<Quarantined>();
    both::<TransferError>();
}
