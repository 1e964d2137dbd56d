//! Every driver call of a rendezvous fails in turn.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use cuda_driver::{
    Driver,
    sys::{Api, CUresult},
};
use gpu_sim::{Action, Injection, World};
use process_group::store::{HashStore, Store};
use symm_mem::{
    Domain, Error, Geometry, SymmetricPool,
    rendezvous::{CudaAllocator, GroupInfo, PeerAllocator, Rendezvous, RendezvousOptions},
};

use super::each_reads_each;
use crate::common::turn;

/// Driver calls of a rendezvous.
const CALLS: [&str; 8] = [
    "cuMemRetainAllocationHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemExportToShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemAlloc_v2",
    "cuMemcpyHtoD_v2",
];

#[test]
fn a_call_that_fails_is_an_error_on_every_member_and_leaves_nothing() {
    for call in CALLS {
        for nth in 1..=2 {
            fails(call, nth);
        }
    }
}

/// Driver calls by which a rank identifies its device.
const KNOWING: [&str; 3] = ["cuDeviceGetCount", "cuDeviceCanAccessPeer", "cuDeviceGetUuid_v2"];

#[test]
fn who_does_not_know_its_device_says_so_and_the_next_rendezvous_is_made() {
    let _turn = turn();
    let world = World::builder().devices(2).capacity(256 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let barrier = Barrier::new(2);
    let meet = || {
        barrier.wait();
    };
    let rank = |rank: u32| {
        let context = driver.device(rank).unwrap().retain_primary().unwrap();
        let info = GroupInfo::new("unknown", rank as usize, 0..2, store.clone()).unwrap();
        let make = || Rendezvous::new(info.clone(), &context, RendezvousOptions::default());
        for call in KNOWING {
            meet();
            if rank == 0 {
                let action = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
                world.faults().inject(Injection::new(call, action).nth(1)).unwrap();
            }
            meet();
            let error = make().unwrap_err();
            let text = error
                .rendezvous_refusal()
                .map_or_else(|| format!("no refusal: {error}"), ToString::to_string);
            assert!(text.contains("PeerPrepareFailed") && text.contains(call), "{text}");
            meet();
            make().unwrap();
        }
    };
    thread::scope(|scope| {
        let rank = &rank;
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
    drop(driver);
    world.finish().expect("nothing is left behind");
}

/// Makes the `nth` call of a function fail, counted over both ranks' rendezvous.
fn fails(call: &str, nth: u64) {
    let _turn = turn();
    let world = World::builder().devices(2).capacity(256 << 20).start().unwrap();
    // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
    let driver = Driver::new(unsafe { Api::from_parts(world.cuda()) }.unwrap()).unwrap();
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let barrier = Barrier::new(2);
    let meet = || {
        barrier.wait();
    };
    let rank = |rank: u32| {
        let context = driver.device(rank).unwrap().retain_primary().unwrap();
        let options = RendezvousOptions::default().deadline(Duration::from_secs(20));
        let info = GroupInfo::new("faults", rank as usize, 0..2, store.clone()).unwrap();
        let rendezvous = Rendezvous::new(info, &context, options).unwrap();
        let domain = Domain::new(store.clone(), 1, rank, 0..2).unwrap();
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 8 << 20 };
        let pool = SymmetricPool::new(&domain, &context, geometry).unwrap();
        let block = pool.allocate(1 << 20).unwrap();
        let memory = CudaAllocator::new(&context).unwrap().allocate(4096).unwrap();
        meet();
        if rank == 0 {
            let action = Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0);
            world.faults().inject(Injection::new(call, action).nth(nth)).unwrap();
        }
        meet();
        let result = rendezvous.rendezvous(&block);
        let refusal = result.as_ref().err().and_then(Error::rendezvous_refusal).map(ToString::to_string);
        assert_eq!(result.is_err(), refusal.is_some(), "{result:?}");
        drop(result);
        meet();
        // The next rendezvous succeeds.
        each_reads_each(&rendezvous.rendezvous(&memory).unwrap(), &meet);
        each_reads_each(&rendezvous.rendezvous(&block).unwrap(), &meet);
        refusal
    };
    let told = thread::scope(|scope| {
        let rank = &rank;
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.map(|rank| rank.join().unwrap())
    });
    assert_eq!(told[0], told[1], "{call}");
    let text = told[0].as_deref().unwrap_or_else(|| panic!("call {nth} of {call} is not made"));
    assert!(text.contains(call), "{call} is not in {text}");
    drop(driver);
    world.finish().expect("nothing is left behind");
}
