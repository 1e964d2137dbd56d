//! Regions of ranks that are processes, one of which is killed at a given step.

use std::{sync::Arc, time::Duration};

use caching_alloc::{
    core::{Allocator, Settings},
    driver::{DriverEvents, Sharing, VirtualMemorySource},
};
use cuda_driver::{Context, Stream, StreamFlags};
use gpu_sim::World;
use process_group::{
    link,
    store::{Deadline, Store},
};
use symm_mem::exchange::{
    Awaited, Direction, ExchangeOptions, ExchangeRefusal, Fault, Memory, Regions, TransferError,
};

use super::{
    super::{LONG, Rank, options},
    at, memory,
};
use crate::processes::{End, Fatal, Told, far, kill_each, kill_until_it_survives, meets, run};

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
    let world = World::builder().devices(RANKS).capacity(512 << 20).start().unwrap();
    let context = told.context(&world);
    let store = Arc::new(Fatal::new(told.store()));
    let meet = meets(&store.inner, told.rank, RANKS);
    match told.what() {
        ("well", _) => {
            let rank = Rank::join(context, store.clone(), (told.rank, RANKS), options(), &meet);
            super::everyone(&rank);
            rank.leave();
            meet();
        }
        ("private", _) => {
            let rank = Rank::join(context, store.clone(), (told.rank, RANKS), options(), &meet);
            private(&rank);
            rank.leave();
            meet();
        }
        (what, nth) => killed(&told, &world, context, &store, &meet, (what, nth)),
    }
    world.finish().unwrap_or_else(|left| panic!("{}: {left}", told.case));
}

/// A rank shares a block without handles. The refusal names the rank, and says what to do.
fn private(rank: &Rank<'_>) {
    let events = Arc::new(DriverEvents::new(&rank.context));
    let stream = events.register(&rank.stream);
    let sharing = if rank.rank == VICTIM { Sharing::none() } else { Sharing::by_descriptor() };
    let source = Arc::new(VirtualMemorySource::new(&rank.context, sharing).unwrap());
    let allocator = Allocator::new(source, events, Settings::default());
    let memory = Memory::block(&rank.context, allocator.allocate(4096, stream).unwrap()).unwrap();
    let refused = rank.exchange.share_regions("private", &[("block", memory)]).unwrap_err();
    let refusal = refused.exchange_refusal().unwrap();
    assert!(
        matches!(refusal, ExchangeRefusal::OutOfReach { rank: 1, peer: 0, other_host: false, .. }),
        "{refusal}"
    );
    assert!(refusal.to_string().contains("allocate with handles that can be exported"), "{refusal}");
}

/// The victim dies at the given step; the others are told, and their transfers with each other succeed.
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
    let rank = Rank::join(context, store.clone(), (told.rank, RANKS), short, meet);
    let own = memory(&rank);
    meet();
    if rank.rank == VICTIM {
        store.doom(what, nth, RANKS, world);
    }
    let names = ["first", "second", "third"];
    let all: Vec<_> = names.into_iter().zip(own.iter().cloned()).collect();
    let result = rank.exchange.share_regions("regions", &all);
    let said = match &result {
        Ok(regions) => {
            transfers(&rank, regions, case);
            if rank.rank == VICTIM {
                store.survived(case, true);
            }
            "well".to_owned()
        }
        Err(error) => {
            let refusal = error.exchange_refusal().unwrap_or_else(|| panic!("{case}: {error}"));
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
    };
    assert!(rank.rank != VICTIM || result.is_ok(), "it was to be killed at {case}, and was told {said}");
    // The survivors were told the same.
    store.inner.set(&format!("said/{}", rank.rank), said.as_bytes()).unwrap();
    let other = RANKS - rank.rank - VICTIM;
    assert_eq!(store.inner.get(&format!("said/{other}"), far()).unwrap(), said.as_bytes(), "{case}");
    let is_shared = result.is_ok();
    drop((result, all, own));
    for kept in rank.exchange.close(Deadline::after(LONG)) {
        assert!(is_shared, "{case}: {kept:?}");
        assert_eq!(kept.peers(), [VICTIM as u32], "{case}: {kept:?}");
        // SAFETY: its process has ended.
        unsafe { kept.release() };
    }
}

/// Two copies to each peer, with notifications; each peer has its own stream.
fn transfers(rank: &Rank<'_>, regions: &Regions, case: &str) {
    let mut streams = Vec::new();
    for peer in (0..RANKS).filter(|peer| *peer != rank.rank) {
        let stream = Stream::new(&rank.context, StreamFlags::NON_BLOCKING).unwrap();
        let list = [at((0, 0), (2, 100 * rank.rank), 60), at((0, 70), (2, 100 * rank.rank + 70), 20)];
        // SAFETY: each rank writes other bytes.
        let pending = unsafe { regions.transfer_and_notify(Direction::Put, peer, &list, &stream, SOON) };
        pending.map(drop).unwrap_or_else(|error| panic!("{case}: {error}"));
        regions.wait(peer, &stream, SOON).unwrap();
        streams.push((peer, stream));
    }
    for (peer, stream) in streams {
        stream.synchronize().unwrap();
        match regions.check(peer) {
            Ok(()) => {}
            Err(TransferError::Fault(Fault::Late { peer: late, awaited: Awaited::Notification, .. })) => {
                assert_eq!((late, peer), (VICTIM as u32, VICTIM), "{case}");
            }
            Err(other) => panic!("{case}: {other}"),
        }
    }
}

#[test]
fn processes_transfer_between_their_regions() {
    assert_eq!(run(BODY, "well 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn a_block_without_handles_is_named_on_all_processes() {
    assert_eq!(run(BODY, "private 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn a_rank_that_is_killed_at_any_call_of_the_driver_is_named_and_leaves_nothing() {
    let calls = [
        "cuIpcGetMemHandle",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuIpcOpenMemHandle_v2",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuStreamWriteValue32_v2",
        "cuStreamWaitValue32_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuEventRecord",
    ];
    let cases: Vec<String> = calls.iter().map(|call| format!("{call} 1")).collect();
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
