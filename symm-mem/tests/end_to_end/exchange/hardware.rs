//! Put and get on the machine's own GPUs: ranks as threads and as processes. Needs one GPU; with more, the ranks are
//! spread over all of them. If there are more ranks than GPUs, their streams share hardware queues, unless
//! `CUDA_DEVICE_MAX_CONNECTIONS=32` gives enough of them.

use std::sync::Arc;

use cuda_driver::Driver;
use process_group::store::Store;

use super::{Rank, flows, options, regions, threads, waits};
use crate::{
    common::turn,
    kernels::rig::peers,
    processes::{End, Told, meets, run},
};

/// Length in bytes, and offset of the first byte.
const CASES: [(usize, usize); 6] = [(1, 0), (1, 7), (3, 1), (4096, 0), (65_537, 13), ((1 << 20) + 5, 4093)];

/// Sizes for one direction of each kind.
const LARGE: [(usize, usize); 2] = [(16 << 20, 3), (64 << 20, 0)];

/// Returns the driver and the number of devices in use, or reports the reason to skip.
fn gpus() -> Option<(Driver, usize)> {
    let found = Driver::load().and_then(|driver| {
        let devices = driver.devices()?;
        let used = if peers(&devices)? { devices.len() } else { devices.len().min(1) };
        Ok((driver, used.min(4)))
    });
    match found {
        Ok((_, 0)) => println!("skipped: the driver has no device"),
        Ok(found) => return Some(found),
        Err(error) => println!("skipped: {error}"),
    }
    None
}

fn everything(rank: &Rank<'_>) {
    flows::all_pairs(rank, &CASES);
    flows::around(rank, &LARGE);
    regions::everyone(rank);
}

#[test]
fn hardware_exchange_threads() {
    let _turn = turn();
    let Some((driver, devices)) = gpus() else { return };
    for size in [2, 3, 4] {
        threads(&driver, devices, size, options(), everything);
        println!("{size} ranks as threads on {} devices: all transfers were right", devices.min(size));
    }
}

#[test]
fn hardware_exchange_waits() {
    let _turn = turn();
    let Some((driver, devices)) = gpus() else { return };
    threads(&driver, devices, 2, options(), waits::late);
    threads(&driver, devices, 2, options(), waits::graph_is_bounded);
    println!("2 ranks on {} devices: late peers were named, and all went on", devices.min(2));
}

#[test]
fn hardware_exchange_blocks() {
    let _turn = turn();
    let Some((driver, devices)) = gpus() else { return };
    threads(&driver, devices, 2, options(), regions::blocks::every_source);
    println!("2 ranks on {} devices: blocks of every source were right", devices.min(2));
}

/// The body of a rank of the test below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn hardware_rank() {
    let told = Told::hear();
    if told.case == "next" {
        return process_group::link::sweep();
    }
    let (_, size) = told.what();
    let (driver, devices) = gpus().expect("the test below has seen them");
    let store: Arc<dyn Store> = Arc::new(told.store());
    let meet = meets(&*store, told.rank, size as usize);
    let context = driver.device((told.rank % devices) as u32).unwrap().retain_primary().unwrap();
    let rank = Rank::join(context, store.clone(), (told.rank, size as usize), options(), &meet);
    everything(&rank);
    rank.leave();
    meet();
}

#[test]
fn hardware_exchange_processes() {
    let _turn = turn();
    let Some((_driver, devices)) = gpus() else { return };
    for size in [2, 3, 4] {
        let body = concat!(module_path!(), "::hardware_rank");
        assert_eq!(run(body, &format!("ranks {size}"), size), vec![End::Well; size]);
        println!("{size} ranks as processes on {} devices: all transfers were right", devices.min(size));
    }
}
