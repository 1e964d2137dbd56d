//! Each driver call of loading and launching fails once: an error reports it, and nothing is left behind.

use std::sync::{Arc, Mutex, PoisonError};

use cuda_driver::{Driver, Error, set_drop_error_hook};
use gpu_sim::{Action, Injection, World};
use process_group::comm::{DataType, ReduceOp};
use symm_mem::kernels::{Algorithm, AllGather, AllReduce, AllToAll, KernelError, ReduceScatter, Target};

use super::rig::{self, Rank};
use super::{LONG, driver, start};
use crate::common::turn;

/// Error code of an injected failure: a code that no driver uses.
const INJECTED: u32 = 99_999;

/// Launches every kernel once. A failed launch is tried once more, so that all ranks arrive; the first error is kept.
fn flow(driver: &Driver) -> Result<(), KernelError> {
    let ranks = rig::ranks(driver, 2, 2, 4096, LONG)?;
    let mut outcome = Ok(());
    for rank in &ranks {
        for launch in LAUNCHES {
            if let Err(error) = launch(rank) {
                outcome = outcome.and(Err(error));
                launch(rank)?;
            }
        }
    }
    outcome.and(rig::done(&ranks).into_iter().collect())
}

type Launch = fn(&Rank) -> Result<(), KernelError>;

const INPUT: u64 = 0;
const ELEMENTS: u64 = 100;
const BYTES: u64 = 400;
const TARGET: Target = Target::Offset(2048);
const DTYPE: DataType = DataType::F32;
const OP: ReduceOp = ReduceOp::Sum;

macro_rules! launches {
    ($($method:ident($rank:ident $(, $argument:expr)*);)*) => {
        const LAUNCHES: &[Launch] = &[$(|$rank| {
            // SAFETY: the rig keeps the kernels' contract; everything lives until all is done.
            unsafe { $rank.kernels.$method(&$rank.stream, &$rank.ranks $(, $argument)*) }
        }),*];
    };
}

launches! {
    barrier(rank, 0);
    put_signal(rank, 1 - rank.ranks.rank, 1);
    wait_signal(rank, 1 - rank.ranks.rank, 1);
    all_reduce(rank, &AllReduce {
        input: INPUT,
        target: TARGET,
        elements: ELEMENTS,
        dtype: DTYPE,
        op: OP,
        algorithm: Algorithm::TwoShot,
    });
    reduce_scatter(rank, &ReduceScatter { input: INPUT, target: TARGET, elements: ELEMENTS, dtype: DTYPE, op: OP });
    all_gather(rank, &AllGather { input: INPUT, target: TARGET, bytes: BYTES });
    all_to_all(rank, &AllToAll { input: INPUT, target: TARGET, bytes: BYTES });
}

fn run(fault: Option<(&str, u64)>) -> (Result<(), KernelError>, World) {
    let world = start(2);
    let driver = driver(world.cuda());
    if let Some((function, nth)) = fault {
        world.faults().inject(Injection::new(function, Action::Fail(INJECTED)).nth(nth)).unwrap();
    }
    // The current context and the capture mode are the thread's: a failed restore must not reach the next run.
    let outcome = std::thread::spawn(move || flow(&driver)).join().expect("nothing panics");
    (outcome, world)
}

/// The message of an error, with the driver call that failed.
fn told(error: &KernelError) -> String {
    match error {
        KernelError::Driver(Error::Module(module)) => {
            format!("{module}: {:?}", std::error::Error::source(module).map(ToString::to_string))
        }
        other => other.to_string(),
    }
}

/// The number of tests that share the calls.
const PARTS: usize = 4;

/// Lets every call of this part fail: each [`PARTS`]-th call of each function.
fn every_call_may_fail(part: usize) {
    let _turn = turn();
    let said = Arc::new(Mutex::new(String::new()));
    let drops = said.clone();
    set_drop_error_hook(move |error| {
        *drops.lock().unwrap_or_else(PoisonError::into_inner) += &error.to_string();
    });
    let said = || std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
    let (outcome, world) = run(None);
    outcome.unwrap();
    let calls = world.faults().all_calls();
    world.finish().unwrap();
    assert!(calls.contains_key("cuLaunchKernel") && calls.contains_key("cuModuleLoadDataEx"), "{calls:?}");
    for (function, count) in calls {
        // Making the driver itself calls these.
        if ["cuInit", "cuDriverGetVersion"].contains(&function.as_str()) {
            continue;
        }
        let gives_back = ["Destroy", "Free", "Unload", "Release", "Pop", "Push", "Current", "CaptureMode"];
        for nth in (1..=count).filter(|nth| *nth as usize % PARTS == part) {
            let (outcome, world) = run(Some((&function, nth)));
            let (place, said) = (format!("call {nth} of {count} of {function}"), said());
            assert_eq!(world.faults().hits(), 1, "{place} was reached");
            match &outcome {
                Err(error) => assert!(told(error).contains(&function), "{place}: {}", told(error)),
                // These calls cannot fail the operation: an error without its name is still that error, and the
                // capture mode only matters in a capture.
                Ok(()) => assert!(
                    said.contains(&function)
                        || ["cuGetErrorName", "cuGetErrorString", "cuThreadExchangeStreamCaptureMode"]
                            .contains(&function.as_str()),
                    "{place}: nobody heard of it; {said}"
                ),
            }
            // `finish` would wait for what a failed release leaves behind.
            if !gives_back.iter().any(|word| function.contains(word)) {
                world.finish().unwrap_or_else(|left| panic!("{place}: {left}"));
            }
        }
    }
}

#[test]
fn every_call_may_fail_0() {
    every_call_may_fail(0);
}

#[test]
fn every_call_may_fail_1() {
    every_call_may_fail(1);
}

#[test]
fn every_call_may_fail_2() {
    every_call_may_fail(2);
}

#[test]
fn every_call_may_fail_3() {
    every_call_may_fail(3);
}
