//! Ranks as processes: each has its own machine, and a store joins them. Checks also the remains when one of them is
//! killed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cuda_driver::vmm::HandleTypes;
use gpu_sim::World;
use process_group::{
    link,
    store::{Store, barrier},
};
use symm_mem::{
    Error, ErrorKind,
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions, RendezvousRefusal},
};

use super::each_reads_each;
use crate::processes::{
    End, Fatal, Told, descriptors, far, kill_each, kill_until_it_survives, run, run_disturbed,
};

const RANKS: usize = 3;

/// The rank that is killed in some cases.
const VICTIM: usize = 1;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The body of a rank; the tests below start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    if told.case == "next" {
        return link::sweep();
    }
    let (case, rank) = (&told.case, told.rank);
    let world = World::builder().devices(RANKS).capacity(256 << 20);
    let by_fabric = case.starts_with("fabric");
    let world = if by_fabric { world.fabric() } else { world }.start().unwrap();
    let context = told.context(&world);
    let store = Arc::new(Fatal::new(told.store()));
    let meet = |name: &str, ranks| barrier(&store.inner, name, rank, ranks, far()).unwrap();
    let info = GroupInfo::new("processes", rank, 0..RANKS as u32, store.clone()).unwrap();
    let long = RendezvousOptions::default().deadline(Duration::from_secs(100));
    let (allocator, long) = match by_fabric {
        // No descriptor is passed between processes.
        true => {
            (CudaAllocator::with_handles(&context, HandleTypes::FABRIC), long.handles(HandleTypes::FABRIC))
        }
        false => (CudaAllocator::new(&context).unwrap(), long),
    };
    let first = Rendezvous::new(info.clone(), &context, long).unwrap();
    let memory = allocator.allocate(4096).unwrap();
    let symmetric = first.rendezvous(&memory).unwrap();
    let round = AtomicU64::new(0);
    let meet_next = || meet(&format!("met/{}", round.fetch_add(1, Ordering::Relaxed)), RANKS);
    each_reads_each(&symmetric, &meet_next);
    drop((symmetric, memory));
    let (what, nth) = told.what();
    if what == "well" || by_fabric {
        for _ in 0..nth {
            let memory = allocator.allocate(4096).unwrap();
            each_reads_each(&first.rendezvous(&memory).unwrap(), &meet_next);
        }
        meet("end", RANKS);
        drop((first, allocator, info));
        drop(context);
        world.finish().unwrap();
        return;
    }

    // All ranks that are to come are ready before the deadline starts.
    let short = RendezvousOptions::default().deadline(Duration::from_secs(16));
    let second = Rendezvous::new(info.clone(), &context, short).unwrap();
    let before = descriptors();
    let memory = allocator.allocate(4096).unwrap();
    meet("ready", RANKS);
    if rank == VICTIM {
        store.doom(what, nth, RANKS, &world);
    }
    let result = second.rendezvous(&memory);
    if rank == VICTIM {
        store.survived(case, result.is_ok());
    }
    let said = match result.as_ref().map_err(Error::kind) {
        // It died after it had read the verdict, or before its peers could notice.
        Ok(_) => "well".to_owned(),
        Err(ErrorKind::RendezvousRefused(refusal)) => {
            let missing = match refusal {
                RendezvousRefusal::RendezvousTimeout { missing, .. }
                | RendezvousRefusal::MembersLost { missing, .. } => missing,
                other => panic!("{case}: {other}"),
            };
            assert_eq!(*missing, [VICTIM as u32], "{case}: {refusal}");
            refusal.name().to_owned()
        }
        Err(other) => panic!("{case}: {other}"),
    };
    // The survivors were told the same.
    store.inner.set(&format!("said/{rank}"), said.as_bytes()).unwrap();
    let other = RANKS - rank - VICTIM;
    assert_eq!(store.inner.get(&format!("said/{other}"), far()).unwrap(), said.as_bytes(), "{case}");
    // Mappings end with the memory.
    drop((result, memory));
    assert_eq!(descriptors(), before, "{case}: descriptors are left");
    drop((first, second, allocator, info));
    drop(context);
    world.finish().unwrap_or_else(|left| panic!("{case}: {left}"));
}

#[test]
fn processes_have_the_memory_of_each_other() {
    assert_eq!(run(BODY, "well 3", RANKS), [End::Well; RANKS]);
}

#[test]
fn processes_have_the_memory_of_each_other_by_fabric_handle() {
    assert_eq!(run(BODY, "fabric 3", RANKS), [End::Well; RANKS]);
}

#[test]
fn a_rank_that_is_killed_at_any_call_is_named_and_leaves_nothing() {
    let calls = ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"];
    let calls =
        calls.into_iter().chain(["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2"]);
    let cases: Vec<String> =
        (1..=6).map(|nth| format!("store {nth}")).chain(calls.map(|call| format!("{call} 1"))).collect();
    kill_each(BODY, &cases, RANKS, VICTIM);
}

#[test]
fn a_rank_that_is_killed_after_it_was_counted_is_named_and_leaves_nothing() {
    kill_until_it_survives(BODY, "", RANKS, VICTIM);
}

#[test]
fn a_stranger_disturbs_nobody() {
    run_disturbed(BODY, "well 10", RANKS);
}
