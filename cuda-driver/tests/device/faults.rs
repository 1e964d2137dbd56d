//! Every call that the crate makes, made to fail once: the failure comes back as an error that names the function, or
//! reaches the hook for drops; nothing panics, and nothing is lost but what the failed call should have given back.

use std::collections::BTreeMap;

use cuda_driver::vmm::{HandleTypes, PageTable, PhysicalMemory, Reservation};
use cuda_driver::{Event, EventFlags, Result};
use gpu_sim::{Action, Injection, World};

use super::exercise;
use super::{INJECTED, driver, drops, failed, kernels, start, turn};

/// Functions whose failure leaves behind what they, or the release that needed them, should have given back.
const RELEASES: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuMemPoolDestroy",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
];

/// Runs the exercise in a fresh world and thread, with one call failing. Gives its outcome, what drops said, and the world.
fn run(fault: Option<(&str, u64)>) -> (Result<()>, Vec<String>, World) {
    let world = start(2);
    kernels::register(&world);
    drops().clear();
    // `cuInit` and the version are asked by the driver's own making.
    let driver = driver(world.cuda());
    if let Some((function, nth)) = fault {
        world.faults().inject(Injection::new(function, Action::Fail(INJECTED)).nth(nth)).unwrap();
    }
    // The current context and the capture mode are the thread's: a failed restore must not reach the next run.
    let outcome = std::thread::spawn(move || exercise::all(&driver)).join().expect("nothing panics");
    let said = std::mem::take(&mut *drops());
    (outcome, said, world)
}

#[test]
fn every_call_may_fail() {
    let _turn = turn();
    let (outcome, said, world) = run(None);
    outcome.unwrap();
    assert_eq!(said, Vec::<String>::new());
    let calls: BTreeMap<String, u64> = world.faults().all_calls();
    world.finish().unwrap();
    assert!(calls.len() > 110, "the exercise reaches {} functions", calls.len());

    for (function, count) in &calls {
        if ["cuInit", "cuDriverGetVersion"].contains(&function.as_str()) {
            continue;
        }
        for nth in 1..=*count {
            let (outcome, said, world) = run(Some((function, nth)));
            let place = format!("call {nth} of {count} of {function}");
            assert_eq!(world.faults().hits(), 1, "{place} was reached");
            let heard = said.iter().any(|text| text.contains(function.as_str()));
            match &outcome {
                Err(error) => assert_eq!(failed(error), (function.as_str(), INJECTED), "{place}: {error}"),
                // None can fail the call that asks: memory without RDMA is memory, a mode that cannot be relaxed only
                // matters if a capture is open, which then fails the call after it, and an error without its name is
                // that error.
                Ok(()) => assert!(
                    heard
                        || [
                            "cuDeviceGetAttribute",
                            "cuGetErrorName",
                            "cuGetErrorString",
                            "cuThreadExchangeStreamCaptureMode",
                        ]
                        .contains(&function.as_str()),
                    "{place}: nobody heard of it; {said:?}"
                ),
            }
            let ended = world.finish();
            if !RELEASES.contains(&function.as_str()) {
                ended.unwrap_or_else(|left| panic!("{place}: {left}"));
            }
        }
    }
}

#[test]
fn a_code_while_dropping_after_the_drivers_end_is_no_news() {
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = super::context(&driver, 0);
    /// `CUDA_ERROR_DEINITIALIZED`.
    const GONE: u32 = 4;
    world.faults().inject(Injection::new("cuEventDestroy_v2", Action::Fail(GONE))).unwrap();
    drop(Event::new(&context, EventFlags::empty()).unwrap());
    assert_eq!(*drops(), Vec::<String>::new());
    world.faults().inject(Injection::new("cuEventDestroy_v2", Action::Fail(INJECTED))).unwrap();
    drop(Event::new(&context, EventFlags::empty()).unwrap());
    assert!(drops()[0].contains("cuEventDestroy_v2"));
}

#[test]
fn a_mapping_that_cannot_be_unmapped_keeps_its_parents() {
    let _turn = turn();
    let world = start(1);
    {
        let driver = driver(world.cuda());
        let context = super::context(&driver, 0);
        let bytes = 2 << 20;
        let physical = PhysicalMemory::create(&context, bytes, HandleTypes::empty()).unwrap();
        let mapping = Reservation::new(&driver, bytes, 0).unwrap().map(0, &physical, 0, bytes).unwrap();
        world.faults().inject(Injection::new("cuMemUnmap", Action::Fail(INJECTED))).unwrap();
        assert_eq!(failed(&mapping.unmap().unwrap_err()), ("cuMemUnmap", INJECTED));
    }
    assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (0, 0));
    world.finish().expect_err("what the failed call held is left behind");
}

#[test]
fn a_table_unmaps_once_more_what_it_could_not_and_keeps_what_it_cannot() {
    const PAGE: usize = 2 << 20;
    let _turn = turn();
    let world = start(1);
    let driver = driver(world.cuda());
    let context = super::context(&driver, 0);
    let reservation = || Reservation::new(&driver, 4 * PAGE, 0).unwrap();
    let [mut once, mut for_ever] = [(); 2].map(|()| PageTable::new(reservation()));
    for table in [&mut once, &mut for_ever] {
        for at in 0..3 {
            let page = PhysicalMemory::create(&context, PAGE, HandleTypes::empty()).unwrap();
            table.map(at * PAGE, &page).unwrap();
        }
    }
    world.faults().inject(Injection::new("cuMemUnmap", Action::Fail(INJECTED))).unwrap();
    assert_eq!(failed(&once.unmap(0, 2 * PAGE).unwrap_err()), ("cuMemUnmap", INJECTED));
    assert_eq!(once.pages().len(), 1);
    once.unmap(0, 2 * PAGE).expect_err("they are no pages of the table any more");
    assert_eq!((world.calls("cuMemUnmap"), world.calls("cuMemRelease")), (1, 0));
    drop(once);
    assert_eq!(*drops(), Vec::<String>::new());
    assert_eq!(
        ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"].map(|function| world.calls(function)),
        [3, 3, 1]
    );

    world.faults().inject(Injection::new("cuMemUnmap", Action::Fail(INJECTED)).forever()).unwrap();
    for_ever.unmap(0, PAGE).unwrap_err();
    drop(for_ever);
    assert_eq!(drops().len(), 2, "two ranges were left");
    assert_eq!((world.calls("cuMemRelease"), world.calls("cuMemAddressFree")), (3, 1));
    drop((context, driver));
    world.finish().expect_err("what is mapped is left behind");
}
