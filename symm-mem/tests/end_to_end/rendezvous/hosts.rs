//! Ranks on several hosts, with default options: each is a process with its own machine, and declares the host that
//! it is on.

use std::sync::Arc;

use cuda_driver::{Context, sys::CUresult, vmm::HandleTypes};
use gpu_sim::{Action, Injection, World};
use process_group::{link, store::TcpStore};
use symm_mem::{
    Domain, Geometry, SymmetricPool,
    agreement::ValuesByRank,
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions, RendezvousRefusal},
};

use super::each_reads_each;
use crate::processes::{End, Told, meets, on_host, run};

const RANKS: usize = 3;

/// The rank to which the driver refuses fabric handles, in some cases.
const REFUSED: usize = 1;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The body of a rank; the tests below start it. The case gives the handle types that the driver grants, and the
/// number of hosts.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    if told.case == "next" {
        return link::sweep();
    }
    let (granted, hosts) = told.what();
    // With two hosts, one host has two ranks; those share memory by descriptor.
    on_host(if told.rank + 1 == RANKS { hosts as usize - 1 } else { 0 });
    let world = World::builder().devices(RANKS).capacity(256 << 20);
    let world = if granted == "nothing" { world } else { world.fabric() }.start().unwrap();
    let is_refused = (granted, told.rank) == ("most", REFUSED);
    if is_refused {
        // Like a host without an IMEX channel: the first call fails, which is the probe for fabric handles.
        let refusal = Action::Fail(CUresult::CUDA_ERROR_NOT_PERMITTED.0);
        world.faults().inject(Injection::new("cuMemCreate", refusal)).unwrap();
    }
    let context = told.context(&world);
    let store = Arc::new(told.store());
    let info = GroupInfo::new("hosts", told.rank, 0..RANKS as u32, store.clone()).unwrap();
    let rendezvous = Rendezvous::new(info, &context, RendezvousOptions::default());
    match (granted, hosts) {
        ("all", _) | (_, 1) => {
            let rendezvous = rendezvous.unwrap();
            let found = HandleTypes::granted(&context).unwrap();
            assert_eq!(found.contains(HandleTypes::FABRIC), !is_refused);
            of_all_kinds(&rendezvous, &context, &store, told.rank);
        }
        (granted, _) => {
            let refused = rendezvous.unwrap_err();
            check(granted, refused.rendezvous_refusal().unwrap());
        }
    }
    drop(context);
    world.finish().unwrap();
}

/// Checks memory of an allocator and of a pool.
fn of_all_kinds(rendezvous: &Rendezvous, context: &Context, store: &Arc<TcpStore>, rank: usize) {
    let meet = meets(&**store, rank, RANKS);
    let memory = CudaAllocator::new(context).unwrap().allocate(4096).unwrap();
    each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &meet);
    let domain = Domain::new(store.clone(), 7, rank as u32, 0..RANKS as u32).unwrap();
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    let pool = SymmetricPool::new(&domain, context, geometry).unwrap();
    let block = pool.allocate(4096).unwrap();
    each_reads_each(&rendezvous.rendezvous(&block).unwrap(), &meet);
}

/// Checks that the refusal names the rank that cannot share its memory. Every member is given it.
fn check(granted: &str, refusal: &RendezvousRefusal) {
    let ways = (0..).zip([(); RANKS]).map(|(rank, ())| match rank == REFUSED as u32 {
        true => (rank, "file descriptor".to_owned()),
        false => (rank, "file descriptor or fabric handle".to_owned()),
    });
    match refusal {
        RendezvousRefusal::HandleKindMismatch { kinds } => {
            assert_eq!((granted, kinds), ("most", &ValuesByRank::of(ways)));
        }
        RendezvousRefusal::HostsApart { hosts } => {
            assert_eq!((granted, hosts.minority()), ("nothing", vec![RANKS as u32 - 1]));
        }
        other => panic!("{granted}: {other}"),
    }
}

#[test]
fn hosts_of_one_fabric_have_each_others_memory_by_default() {
    assert_eq!(run(BODY, "all 2", RANKS), [End::Well; RANKS]);
}

#[test]
fn who_is_refused_fabric_handles_is_named_on_all_hosts() {
    assert_eq!(run(BODY, "most 2", RANKS), [End::Well; RANKS]);
}

#[test]
fn on_one_host_who_is_refused_fabric_handles_has_descriptors() {
    assert_eq!(run(BODY, "most 1", RANKS), [End::Well; RANKS]);
}

#[test]
fn hosts_without_a_fabric_are_apart() {
    assert_eq!(run(BODY, "nothing 2", RANKS), [End::Well; RANKS]);
}
