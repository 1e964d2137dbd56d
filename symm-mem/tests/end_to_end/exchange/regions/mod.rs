//! Regions, and transfers of lists of descriptors between them.

pub(super) mod blocks;
mod ends;
mod faults;
mod killed;
mod prepared;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use cuda_driver::{Driver, Stream, StreamFlags, graph::CaptureMode, sys::Api};
use gpu_sim::World;
use process_group::store::Store;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use symm_mem::exchange::{Descriptor, Direction, Memory, Regions, TransferError};

use super::{LONG, Rank, on_ranks, on_world, options, pattern, threads_on};
use crate::common::{
    intercept::{Intercept, Intercepted},
    turn,
};

/// Lengths of each rank's regions.
const BYTES: [usize; 3] = [4000, 9001, 70_000];

fn at(local: (usize, usize), remote: (usize, usize), bytes: usize) -> Descriptor {
    let ((local_region, local_offset), (remote_region, remote_offset)) = (local, remote);
    Descriptor { local_region, local_offset, remote_region, remote_offset, bytes }
}

/// This rank's memory for [`BYTES`]: plain, virtual, and a part of an allocation.
fn memory(rank: &Rank<'_>) -> [Memory; 3] {
    let whole = rank.mapped(BYTES[2] + 100);
    let memory = [rank.plain(BYTES[0]), rank.mapped(BYTES[1]), whole.part(77, BYTES[2]).unwrap()];
    for (region, memory) in memory.iter().enumerate() {
        rank.write(memory, &pattern(rank.rank, region, memory.bytes()));
    }
    memory
}

fn share(rank: &Rank<'_>, name: &str, memory: &[Memory]) -> Regions {
    let names = ["first", "second", "third"];
    let regions: Vec<_> = names.into_iter().zip(memory.iter().cloned()).collect();
    rank.exchange.share_regions(name, &regions).unwrap()
}

/// Checks that all that was lent is given back.
fn is_free(rank: &Rank<'_>) {
    while (rank.exchange.open_handles(), rank.exchange.free_channels()) != (0, 64) {
        std::thread::yield_now();
    }
    (rank.meet)();
}

/// Transfers from `rank` to a peer, with a notification.
#[derive(Debug, Clone)]
struct Step {
    rank: usize,
    peer: usize,
    direction: Direction,
    list: Vec<Descriptor>,
}

/// Transfers between three ranks, whose lists may be invalid.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0usize..3, 0usize..90_000);
    let descriptor = (place(), place(), 1usize..3000).prop_map(|(local, remote, bytes)| {
        let fit = |(region, offset): (usize, usize)| (region, offset % (BYTES[region] - bytes.min(1000)));
        at(fit(local), fit(remote), bytes.min(1000))
    });
    let list = prop::collection::vec(descriptor, 0..12);
    let step = (0usize..3, 1usize..3, any::<bool>(), list).prop_map(|(rank, other, puts, list)| Step {
        rank,
        peer: (rank + other) % 3,
        direction: if puts { Direction::Put } else { Direction::Get },
        list,
    });
    prop::collection::vec(step, 1..12)
}

/// The memory of all ranks in a model: transfers copy bytes one after the other, and overlapping lists do nothing.
struct Model(Vec<Vec<Vec<u8>>>);

impl Model {
    fn new() -> Self {
        let of = |rank| (0..3).map(|region| pattern(rank, region, BYTES[region])).collect();
        Self((0..3).map(of).collect())
    }

    /// Returns whether the step is valid.
    fn apply(&mut self, step: &Step) -> bool {
        let destination = |it: &Descriptor| match step.direction {
            Direction::Get => (it.local_region, it.local_offset),
            Direction::Put => (it.remote_region, it.remote_offset),
        };
        let mut written: Vec<(usize, usize, usize)> =
            step.list.iter().map(|it| (destination(it).0, destination(it).1, it.bytes)).collect();
        written.sort_unstable();
        if written.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1) {
            return false;
        }
        for it in &step.list {
            let local = (step.rank, it.local_region, it.local_offset);
            let remote = (step.peer, it.remote_region, it.remote_offset);
            let (from, to) = match step.direction {
                Direction::Get => (remote, local),
                Direction::Put => (local, remote),
            };
            let bytes = self.0[from.0][from.1][from.2..from.2 + it.bytes].to_vec();
            self.0[to.0][to.1][to.2..to.2 + it.bytes].copy_from_slice(&bytes);
        }
        true
    }
}

/// Runs the steps in their order, and compares the memory with the model.
fn run(rank: &Rank<'_>, steps: &[Step]) {
    let memory = memory(rank);
    let regions = share(rank, "random", &memory);
    (rank.meet)();
    let (mut model, mut notified) = (Model::new(), [0; 3]);
    for step in steps {
        let is_valid = model.apply(step);
        if step.rank == rank.rank {
            // SAFETY: the other ranks wait until this step has ended.
            let enqueued = unsafe {
                regions.transfer_and_notify(step.direction, step.peer, &step.list, &rank.stream, LONG)
            };
            match enqueued {
                Ok(pending) => {
                    assert!(is_valid, "{step:?}");
                    rank.stream.synchronize().unwrap();
                    assert!(pending.is_done().unwrap());
                }
                Err(TransferError::Descriptor { .. }) => assert!(!is_valid, "{step:?}"),
                Err(error) => panic!("{error}: {step:?}"),
            }
        }
        if is_valid && step.peer == rank.rank {
            regions.wait(step.rank, &rank.stream, LONG).unwrap();
            rank.stream.synchronize().unwrap();
            notified[step.rank] += 1;
            regions.check(step.rank).unwrap();
        }
        (rank.meet)();
    }
    for peer in (0..3).filter(|peer| *peer != rank.rank) {
        assert_eq!(regions.notifications(peer).unwrap(), notified[peer]);
    }
    for (memory, expected) in memory.iter().zip(&model.0[rank.rank]) {
        assert!(rank.read(memory) == *expected, "rank {}", rank.rank);
    }
    (rank.meet)();
}

#[test]
fn lists_of_descriptors_move_what_a_model_moves() {
    let mut cases = TestRunner::deterministic();
    for _ in 0..12 {
        let steps = steps().new_tree(&mut cases).unwrap().current();
        on_ranks(3, options(), |rank| run(rank, &steps));
    }
}

/// Counts the requests of one rank to its store.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl<S: Store> Intercept<S> for Counted {
    fn before(&self, _: &S, _: &'static str, _: &str) -> process_group::store::Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// The ranks do not even meet: notifications order the transfers.
#[test]
fn peers_change_from_call_to_call_without_a_request_to_the_store() {
    let _turn = turn();
    let world = World::builder().devices(3).capacity(512 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    // One counter for each rank, in their order.
    let counters = Mutex::new(Vec::new());
    let store_of = |inner| {
        let intercept = Counted::default();
        counters.lock().unwrap().push(intercept.0.clone());
        Arc::new(Intercepted { inner, intercept }) as Arc<dyn Store>
    };
    threads_on(store_of, &driver, 3, 3, options(), |rank| {
        let requests = || counters.lock().unwrap()[rank.rank].load(Ordering::SeqCst);
        let memory = memory(rank);
        let regions = share(rank, "kv", &memory);
        (rank.meet)();
        let before = requests();
        for round in 0..6 {
            for other in 1..3 {
                let (to, from) = ((rank.rank + other) % 3, (rank.rank + 3 - other) % 3);
                let list = [at((0, 16 * round), (1, 1000 * rank.rank + 16 * round), 16)];
                // SAFETY: each rank writes other bytes, and reads those that nobody writes.
                let pending =
                    unsafe { regions.transfer_and_notify(Direction::Put, to, &list, &rank.stream, LONG) };
                regions.wait(from, &rank.stream, LONG).unwrap();
                rank.stream.synchronize().unwrap();
                assert!(pending.unwrap().is_done().unwrap());
                regions.check(from).unwrap();
                let bytes = rank.read(&memory[1].part(1000 * from + 16 * round, 16).unwrap());
                assert_eq!(bytes, pattern(from, 0, BYTES[0])[16 * round..16 * (round + 1)]);
            }
        }
        assert_eq!(requests() - before, 0);
        (rank.meet)();
    });
    drop(driver);
    world.finish().expect("nothing is left behind");
}

/// A notification comes after the bytes of its transfer, and of all transfers that were notified before.
#[test]
fn notifications_come_in_the_order_of_their_calls_on_any_stream() {
    on_ranks(2, options(), |rank| {
        const TIMES: usize = 40;
        let memory = memory(rank);
        let regions = share(rank, "order", &memory);
        (rank.meet)();
        let other = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
        if rank.rank == 0 {
            for time in 0..TIMES {
                let list = [at((0, 8 * time), (1, 8 * time), 4), at((0, 8 * time + 4), (1, 8 * time + 4), 3)];
                let stream = [&rank.stream, &other][time % 2];
                // SAFETY: the peer reads the bytes after the notification.
                let pending = unsafe { regions.transfer_and_notify(Direction::Put, 1, &list, stream, LONG) };
                let _ = pending.unwrap();
            }
            for stream in [&rank.stream, &other] {
                stream.synchronize().unwrap();
            }
        } else {
            // Behind notification n lie the bytes of all transfers up to n; they are copied elsewhere at that time.
            for time in 0..TIMES {
                regions.wait(0, &rank.stream, LONG).unwrap();
                let (from, to) = (memory[1].ptr(), memory[2].ptr() + time * TIMES * 8);
                // SAFETY: both regions are that long, and the peer writes other bytes meanwhile.
                unsafe { rank.stream.copy(to, from, 8 * (time + 1)) }.unwrap();
            }
            rank.stream.synchronize().unwrap();
            regions.check(0).unwrap();
            assert_eq!(regions.notifications(0).unwrap(), TIMES as u32);
            let (sent, kept) = (pattern(0, 0, BYTES[0]), pattern(1, 1, BYTES[1]));
            let expected = |at: usize| if at % 8 == 7 { kept[at] } else { sent[at] };
            let snapshots = rank.read(&memory[2]);
            for time in 0..TIMES {
                let seen = &snapshots[time * TIMES * 8..][..8 * (time + 1)];
                assert!(
                    seen.iter().enumerate().all(|(at, byte)| *byte == expected(at)),
                    "notification {time}"
                );
            }
        }
        (rank.meet)();
    });
}

#[test]
fn adjacent_ranges_are_one_copy() {
    on_world(2, options(), |world, rank| {
        let memory = memory(rank);
        let regions = share(rank, "calls", &memory);
        (rank.meet)();
        if rank.rank == 0 {
            let calls = || world.calls("cuMemcpyDtoDAsync_v2");
            let put = |list: &[Descriptor]| {
                let before = calls();
                // SAFETY: nobody else uses the regions.
                let pending = unsafe { regions.transfer(Direction::Put, 1, list, &rank.stream, LONG) };
                let _ = pending.unwrap();
                calls() - before
            };
            assert_eq!(put(&[at((0, 0), (0, 0), 8), at((0, 16), (0, 16), 8), at((1, 0), (2, 0), 9)]), 3);
            // Adjacent on both sides, in any order of the list.
            assert_eq!(put(&[at((0, 8), (0, 16), 8), at((0, 0), (0, 8), 8), at((0, 16), (0, 24), 1)]), 1);
            assert_eq!(put(&[]), 0);
            rank.stream.synchronize().unwrap();
        }
        (rank.meet)();
    });
}

/// A graph of transfers in both directions, launched several times, between notifications.
#[test]
fn transfers_are_captured_and_notifications_are_not() {
    on_ranks(2, options(), |rank| {
        let memory = memory(rank);
        let regions = share(rank, "graph", &memory);
        (rank.meet)();
        if rank.rank == 0 {
            let list = [at((0, 0), (1, 100), 50), at((0, 60), (1, 200), 5)];
            // SAFETY: nothing is copied.
            let earlier = unsafe { regions.transfer(Direction::Put, 1, &[], &rank.stream, LONG) }.unwrap();
            rank.stream.synchronize().unwrap();
            let capture = rank.stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            // The query does not invalidate the capture.
            assert!(earlier.is_done().unwrap());
            // SAFETY: the peer reads after the notifications, and the regions outlive the launches.
            let (put, got, notified) = unsafe {
                (
                    regions.transfer(Direction::Put, 1, &list, &rank.stream, LONG).unwrap(),
                    regions.transfer(Direction::Get, 1, &[at((1, 7), (2, 9), 13)], &rank.stream, LONG),
                    regions.transfer_and_notify(Direction::Put, 1, &list, &rank.stream, LONG),
                )
            };
            let refused = put.is_done().unwrap_err();
            assert!(matches!(refused, TransferError::Captured { asked: "is_done" }), "{refused}");
            let _ = got.unwrap();
            let refused = notified.unwrap_err();
            assert!(matches!(refused, TransferError::Captured { asked: "transfer_and_notify" }), "{refused}");
            let refused = regions.wait(1, &rank.stream, LONG).unwrap_err();
            assert!(matches!(refused, TransferError::Captured { asked: "wait" }), "{refused}");
            let graph = capture.end().unwrap().instantiate().unwrap();
            for round in 0..3 {
                rank.write(&memory[0], &pattern(5, round, BYTES[0]));
                rank.stream.launch(&graph).unwrap();
                // SAFETY: as above.
                let told = unsafe { regions.transfer_and_notify(Direction::Put, 1, &[], &rank.stream, LONG) };
                let _ = told.unwrap();
                rank.stream.synchronize().unwrap();
                assert_eq!(rank.read(&memory[1])[7..20], pattern(1, 2, BYTES[2])[9..22]);
                // The peer has read what the next launch overwrites.
                regions.wait(1, &rank.stream, LONG).unwrap();
                rank.stream.synchronize().unwrap();
                regions.check(1).unwrap();
            }
        } else {
            for round in 0..3 {
                regions.wait(0, &rank.stream, LONG).unwrap();
                rank.stream.synchronize().unwrap();
                regions.check(0).unwrap();
                let (found, sent) = (rank.read(&memory[1]), pattern(5, round, BYTES[0]));
                assert_eq!((&found[100..150], &found[200..205]), (&sent[..50], &sent[60..65]));
                // SAFETY: nothing is copied.
                let told = unsafe { regions.transfer_and_notify(Direction::Put, 0, &[], &rank.stream, LONG) };
                let _ = told.unwrap();
            }
            rank.stream.synchronize().unwrap();
        }
        (rank.meet)();
    });
}

#[test]
fn regions_are_found_by_their_names() {
    on_ranks(3, options(), |rank| {
        let memory = memory(rank);
        // Each rank shares another number of regions, one of them none.
        let names = ["keys", "values"];
        let own: Vec<_> = names.into_iter().zip(memory.iter().cloned()).take(rank.rank).collect();
        let regions = rank.exchange.share_regions("named", &own).unwrap();
        assert_eq!((regions.name(), regions.generation()), ("named", 1));
        for peer in 0..3 {
            let found: Vec<_> =
                regions.of(peer).unwrap().iter().map(|region| (region.name(), region.bytes())).collect();
            let expected: Vec<_> = names.into_iter().zip(BYTES).take(peer).collect();
            assert_eq!(found, expected);
            assert_eq!(regions.find(peer, "values").unwrap(), (peer == 2).then_some(1));
        }
        drop(regions);
        (rank.meet)();
        is_free(rank);
    });
}

/// Transfers of many sizes with every peer, for GPUs too.
pub(super) fn everyone(rank: &Rank<'_>) {
    let bytes = 1 << 20;
    let memory = [rank.plain(bytes), rank.mapped(bytes * rank.world)];
    rank.write(&memory[0], &pattern(rank.rank, 3, bytes));
    let regions = share(rank, "everyone", &memory);
    (rank.meet)();
    let parts = [(0, 1), (1, 4095), (4096, 65_536), (70_000, 7), (70_007, 300_001), (400_000, 600_000)];
    for direction in [Direction::Put, Direction::Get] {
        rank.write(&memory[1], &vec![0; bytes * rank.world]);
        (rank.meet)();
        for peer in (0..rank.world).filter(|peer| *peer != rank.rank) {
            let list: Vec<_> = parts
                .iter()
                .map(|(offset, length)| match direction {
                    Direction::Put => at((0, *offset), (1, bytes * rank.rank + offset), *length),
                    Direction::Get => at((1, bytes * peer + offset), (0, *offset), *length),
                })
                .collect();
            // SAFETY: each rank has its own part of every second region, and nobody writes the first ones.
            let pending = unsafe { regions.transfer_and_notify(direction, peer, &list, &rank.stream, LONG) };
            let _ = pending.unwrap();
        }
        for peer in (0..rank.world).filter(|peer| *peer != rank.rank) {
            regions.wait(peer, &rank.stream, LONG).unwrap();
        }
        rank.stream.synchronize().unwrap();
        for peer in (0..rank.world).filter(|peer| *peer != rank.rank) {
            regions.check(peer).unwrap();
            let (sent, found) =
                (pattern(peer, 3, bytes), rank.read(&memory[1].part(bytes * peer, bytes).unwrap()));
            for (offset, length) in parts {
                assert!(
                    sent[offset..offset + length] == found[offset..offset + length],
                    "{direction:?} {peer}"
                );
            }
            assert_eq!(found[399_999], 0, "a byte between the parts");
        }
        (rank.meet)();
    }
}

#[test]
fn everyone_transfers_with_everyone() {
    on_ranks(3, options(), everyone);
}
