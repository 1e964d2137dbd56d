//! Ranks as processes: each has its own machine, and a store joins them. Checks also the remains when one of them is
//! killed.

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::{Context, Stream, StreamFlags, vmm::HandleTypes};
use gpu_sim::World;
use process_group::{
    link,
    store::{Deadline, HashStore, Store},
};
use symm_mem::{
    Error, ErrorKind,
    exchange::{
        Exchange, ExchangeOptions, ExchangeRefusal, Fault, Memory, Part, Plan, Transfer, TransferError,
    },
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions},
};

use super::{LONG, Rank, enqueue, flows::all_pairs, options, pattern};
use crate::processes::{
    End, Fatal, Told, descriptors, far, kill_each, kill_until_it_survives, meets, on_host, run, run_disturbed,
};

const RANKS: usize = 3;

/// The rank that is killed in some cases.
const VICTIM: usize = 1;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// Limit of a wait for the killed rank.
const SOON: Duration = Duration::from_secs(3);

/// The body of a rank; the tests below start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    if told.case == "next" {
        return link::sweep();
    }
    let world = World::builder().devices(RANKS).capacity(512 << 20);
    let has_fabric = ["fabric", "hosts"].contains(&told.what().0);
    let world = if has_fabric { world.fabric() } else { world }.start().unwrap();
    let context = told.context(&world);
    let store = Arc::new(Fatal::new(told.store()));
    let meet = meets(&store.inner, told.rank, RANKS);
    match told.what() {
        (what @ ("fabric" | "hosts"), _) => {
            // With default options, also if every rank is on another host.
            let allocator = if what == "hosts" {
                on_host(told.rank);
                CudaAllocator::new(&context).unwrap()
            } else {
                CudaAllocator::with_handles(&context, HandleTypes::FABRIC)
            };
            let rank = Rank::join(context, store.clone(), (told.rank, RANKS), options(), &meet);
            by_fabric(&rank, &allocator);
            rank.leave();
            meet();
        }
        ("legacy", _) => {
            let rank = Rank::join(context, store.clone(), (told.rank, RANKS), options(), &meet);
            legacy(&rank);
            rank.leave();
            meet();
        }
        ("well", nth) => {
            let rank = Rank::join(context, store.clone(), (told.rank, RANKS), options(), &meet);
            for _ in 0..nth {
                all_pairs(&rank, &[(1, 0), (4099, 13), (100_000, 4096)]);
            }
            rank.leave();
            meet();
        }
        (what, nth) => killed(&told, &world, context, &store, &meet, (what, nth)),
    }
    world.finish().unwrap_or_else(|left| panic!("{}: {left}", told.case));
}

/// Each rank gets from the next one, whose memory can be shared by fabric handle only.
fn by_fabric(rank: &Rank<'_>, allocator: &CudaAllocator) {
    let [own, got] = [0, 1].map(|_| Memory::from(&allocator.allocate(70_000).unwrap()));
    let (next, last) = ((rank.rank + 1) % RANKS, (rank.rank + RANKS - 1) % RANKS);
    let transfers = [rank.transfer(next, Part::GetFrom, &got), rank.transfer(last, Part::GetBy, &own)];
    let plan = rank.exchange.exchange("fabric", &transfers).unwrap();
    rank.write(&own, &pattern(rank.rank, 0, 70_000));
    (rank.meet)();
    rank.round(&plan, &[Part::GetFrom, Part::GetBy]);
    assert!(rank.read(&got) == pattern(next, 0, 70_000));
}

/// Rank 0 drops a plan with memory that it has opened by legacy handle. Its process has another rank too, so it closes
/// the memory only when no transfer is under way.
fn legacy(rank: &Rank<'_>) {
    let alone = GroupInfo::new("alone", 0, [RANKS as u32], Arc::new(HashStore::new())).unwrap();
    let alone = Rendezvous::new(alone, &rank.context, RendezvousOptions::default()).unwrap();
    let alone = Exchange::new(&alone, options()).unwrap();
    let exchange = |name| {
        let transfer = |peer, part| rank.transfer(peer, part, &rank.plain(4096));
        let transfers = match rank.rank {
            0 => vec![transfer(1, Part::PutInitiator)],
            1 => vec![transfer(0, Part::PutTarget)],
            _ => Vec::new(),
        };
        rank.exchange.exchange(name, &transfers).unwrap()
    };
    let (gone, kept) = (exchange("gone"), exchange("kept"));
    if rank.rank == 0 {
        rank.enqueue_round(&kept, &[Part::PutInitiator], LONG);
        drop(gone);
        // Long enough for many polls of the closing thread.
        thread::sleep(Duration::from_millis(100));
        assert_eq!(rank.exchange.open_handles(), 2, "a transfer is under way");
    }
    (rank.meet)();
    if rank.rank == 1 {
        rank.enqueue_round(&kept, &[Part::PutTarget], LONG);
    }
    rank.stream.synchronize().unwrap();
    kept.check().unwrap();
    let late = far();
    while rank.rank == 0 && rank.exchange.open_handles() > 1 {
        assert!(!late.expired(), "the memory is closed once nothing is under way");
        thread::sleep(Duration::from_millis(1));
    }
    (rank.meet)();
    assert!(alone.close(Deadline::after(LONG)).is_empty());
}

/// This rank's transfers with each other rank, of both kinds of memory.
fn transfers(rank: &Rank<'_>) -> Vec<Transfer> {
    let peers = (0..RANKS).filter(|peer| *peer != rank.rank);
    let with = |peer: usize| {
        let parts = [Part::PutInitiator, Part::PutTarget, Part::GetFrom, Part::GetBy];
        let parts = parts.map(|part| if rank.rank < peer { part } else { part.counterpart() });
        parts.map(|part| match part {
            Part::PutInitiator | Part::PutTarget => rank.transfer(peer, part, &rank.plain(4096)),
            _ => rank.transfer(peer, part, &rank.mapped(4096)),
        })
    };
    peers.flat_map(with).collect()
}

/// The victim dies at the given step; the others are told, and leave nothing behind.
fn killed(
    told: &Told,
    world: &World,
    context: Context,
    store: &Arc<Fatal>,
    meet: &(dyn Fn() + Sync),
    (what, nth): (&str, u64),
) {
    let case = &told.case;
    let short = ExchangeOptions { deadline: 6 * SOON, lease: SOON, ..options() };
    let place = (told.rank, RANKS);
    let first = Rank::join(context.clone(), store.clone(), place, options(), meet);
    let free = || context.memory_info().unwrap().0;
    let at_first = free();
    all_pairs(&first, &[(100, 1)]);
    // If a rank dies before it has closed its plans, only the lease ends its borrows.
    let late = far();
    while free() < at_first && !late.expired() {
        thread::sleep(Duration::from_millis(1));
    }
    let rank = Rank::join(context.clone(), store.clone(), place, short, meet);
    let all = transfers(&rank);
    // Descriptors that existed before stay.
    let before = descriptors();
    meet();
    if rank.rank == VICTIM {
        store.doom(what, nth, RANKS, world);
    }
    let result = rank.exchange.exchange("plan", &all);
    let said = match result.as_ref().map_err(Error::kind) {
        Ok(plan) => {
            let outcome = round(&rank, plan, &all);
            if rank.rank == VICTIM {
                store.survived(case, outcome.is_ok());
            }
            match outcome {
                Ok(()) => {}
                // Late is the victim; a rank that gave up because of it is reported as abandoned.
                Err(TransferError::Fault(Fault::Late { peer, .. })) => assert_eq!(peer, VICTIM as u32),
                Err(TransferError::Fault(Fault::Abandoned { .. })) => {}
                Err(other) => panic!("{case}: {other}"),
            }
            "well".to_owned()
        }
        Err(ErrorKind::ExchangeRefused(refusal)) => {
            match refusal {
                ExchangeRefusal::ExchangeTimeout { missing, .. }
                | ExchangeRefusal::MembersLost { missing, .. } => {
                    assert_eq!(*missing, [VICTIM as u32], "{case}: {refusal}");
                }
                // A legacy handle ends with its process; the error names the owner.
                ExchangeRefusal::OpeningFailed { cause, .. } => {
                    assert!(cause.contains("of rank 1: cuIpcOpenMemHandle_v2"), "{case}: {refusal}");
                }
                other => panic!("{case}: {other}"),
            }
            refusal.name().to_owned()
        }
        Err(other) => panic!("{case}: {other}"),
    };
    assert!(rank.rank != VICTIM || result.is_ok(), "it was to be killed at {case}, and was told {said}");
    // The survivors were told the same.
    store.inner.set(&format!("said/{}", rank.rank), said.as_bytes()).unwrap();
    let other = RANKS - rank.rank - VICTIM;
    assert_eq!(store.inner.get(&format!("said/{other}"), far()).unwrap(), said.as_bytes(), "{case}");
    let is_plan = result.is_ok();
    drop((result, all));
    for (rank, had_plan) in [(rank, is_plan), (first, false)] {
        // The leases of the first exchange are over: its plans were dropped before.
        let overdue = rank.exchange.close(Deadline::after(LONG));
        for kept in overdue {
            assert!(had_plan, "{case}: {kept:?}");
            assert_eq!(kept.peers(), [VICTIM as u32], "{case}: {kept:?}");
            // SAFETY: its process has ended.
            unsafe { kept.release() };
        }
    }
    assert!(descriptors() <= before, "{case}: descriptors are left");
}

/// One round of all transfers. Each peer has its own stream, so that no transfer is queued behind one that waits for
/// the victim.
fn round(rank: &Rank<'_>, plan: &Plan, all: &[Transfer]) -> Result<(), TransferError> {
    let mut streams = Vec::new();
    for peer in (0..RANKS).filter(|peer| *peer != rank.rank) {
        let stream = Stream::new(&rank.context, StreamFlags::NON_BLOCKING)?;
        let with = all.iter().enumerate().filter(|(_, transfer)| transfer.peer() == peer);
        let with: Vec<(usize, Part)> = with.map(|(at, transfer)| (at, transfer.part())).collect();
        enqueue(plan, &with, &stream, SOON);
        streams.push(stream);
    }
    streams.iter().try_for_each(Stream::synchronize)?;
    plan.check()
}

#[test]
fn processes_put_to_and_get_from_each_other() {
    assert_eq!(run(BODY, "well 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn memory_of_a_legacy_handle_is_not_closed_while_a_transfer_is_under_way() {
    assert_eq!(run(BODY, "legacy 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn processes_get_from_each_other_by_fabric_handle() {
    assert_eq!(run(BODY, "fabric 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn hosts_of_one_fabric_get_from_each_other_by_default() {
    assert_eq!(run(BODY, "hosts 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn a_rank_that_is_killed_at_any_call_of_the_driver_is_named_and_leaves_nothing() {
    let calls = [
        "cuIpcGetMemHandle",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuIpcOpenMemHandle_v2",
        "cuMemGetAddressRange_v2",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuStreamWriteValue32_v2",
        "cuStreamWaitValue32_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuEventRecord",
    ];
    let cases: Vec<String> = ["cuMemsetD32Async 1".to_owned()]
        .into_iter()
        .chain(calls.iter().flat_map(|call| [format!("{call} 1"), format!("{call} 2")]))
        .collect();
    kill_each(BODY, &cases, RANKS, VICTIM);
}

#[test]
fn a_rank_that_is_killed_at_any_call_of_the_store_is_named_and_leaves_nothing() {
    let cases: Vec<String> = (1..=6).map(|nth| format!("store {nth}")).collect();
    kill_each(BODY, &cases, RANKS, VICTIM);
}

#[test]
fn a_rank_that_is_killed_after_it_was_counted_is_named_and_leaves_nothing() {
    kill_until_it_survives(BODY, "", RANKS, VICTIM);
}

#[test]
fn a_stranger_disturbs_nobody() {
    run_disturbed(BODY, "well 3", RANKS);
}
