//! Tests drivers that lack some functions. Each call that needs a missing function returns an error that names it,
//! and nothing panics.

use std::collections::BTreeSet;

use cuda_driver::memory::DeviceMemory;
use cuda_driver::sys::{Api, Table};
use cuda_driver::{Driver, Error, Result};
use gpu_sim::World;
use proptest::prelude::*;

use super::exercise::SECTIONS;
use super::{drops, kernels, start, turn};

/// The functions that creating a [`Driver`] needs.
const NEEDED: &[&str] = &["cuInit", "cuDriverGetVersion"];

/// Returns the world's driver without the functions in `removed`.
fn without(world: &World, removed: &BTreeSet<&str>) -> Result<Driver> {
    let mut table = world.cuda();
    for name in removed {
        table.remove(name);
    }
    // SAFETY: the embedded device keeps the C contracts, and the world outlives the driver in every test.
    Driver::new(unsafe { Api::from_parts(table) }?)
}

/// Returns true if the message `text` of an error names one of the functions, alone or among the functions of a
/// feature.
fn names_one(text: &str, removed: &BTreeSet<&str>) -> bool {
    removed.iter().any(|name| text.contains(&format!("`{name}`")))
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Missing(_))
}

/// Runs every section on a driver without the functions in `removed`. Returns a message for each section that panics
/// or fails with an error other than [`Error::Missing`], and all messages of a section if none of them names a
/// removed function.
fn run(removed: &BTreeSet<&str>) -> Vec<String> {
    let world = start(2);
    kernels::register(&world);
    let driver = match without(&world, removed) {
        Ok(driver) => driver,
        Err(error) => return vec![format!("no driver: {error}")],
    };
    let mut wrong = Vec::new();
    for (name, section) in SECTIONS {
        drops().clear();
        let driver = driver.clone();
        let outcome = std::thread::spawn(move || section(&driver)).join();
        let mut said = std::mem::take(&mut *drops());
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_missing(&error) => said.push(error.to_string()),
            Ok(Err(other)) => wrong.push(format!("{name}: {other}")),
            Err(_) => wrong.push(format!("{name}: it panicked")),
        }
        // If a missing function prevented a release, such as the end of a capture, the driver may refuse later
        // releases. So one message that names a removed function is enough.
        if !said.iter().any(|text| names_one(text, removed)) {
            wrong.extend(said);
        }
    }
    wrong
}

/// Returns the names of the driver functions that the exercise calls, without [`NEEDED`].
fn called() -> Vec<String> {
    let world = start(2);
    kernels::register(&world);
    let driver = without(&world, &BTreeSet::new()).unwrap();
    std::thread::spawn(move || super::exercise::all(&driver)).join().unwrap().unwrap();
    world.faults().all_calls().into_keys().filter(|name| !NEEDED.contains(&name.as_str())).collect()
}

#[test]
fn a_table_of_nothing_is_an_error() {
    // SAFETY: the table has no function.
    let error = unsafe { Api::from_parts(Table::default()) }.map_err(Error::from).unwrap_err();
    assert!(error.to_string().contains("driver"), "{error}");
}

#[test]
fn only_what_a_driver_begins_with() {
    let _turn = turn();
    let every = cuda_driver::sys::FUNCTIONS.iter().map(|f| f.name).filter(|name| !NEEDED.contains(name));
    assert_eq!(run(&every.collect()), Vec::<String>::new());
}

#[test]
fn each_function_may_be_missing() {
    let _turn = turn();
    for name in &called() {
        assert_eq!(run(&BTreeSet::from([name.as_str()])), Vec::<String>::new(), "without {name}");
    }
}

#[test]
fn a_capture_begins_only_if_it_can_end() {
    let _turn = turn();
    // Neither an end of the capture nor of its stream or context would close it.
    let removed =
        ["cuDevicePrimaryCtxRelease_v2", "cuStreamDestroy_v2", "cuStreamEndCapture", "cuStreamSynchronize"];
    assert_eq!(run(&BTreeSet::from(removed)), Vec::<String>::new());
}

#[test]
fn any_functions_may_be_missing() {
    let _turn = turn();
    let called = called();
    let some = prop::sample::subsequence(called.clone(), 2..called.len() / 2);
    proptest!(ProptestConfig::with_cases(64), |(removed in some)| {
        prop_assert_eq!(run(&removed.iter().map(String::as_str).collect()), Vec::<String>::new());
    });
}

#[test]
fn a_copy_that_could_not_be_waited_for_does_not_start() {
    let _turn = turn();
    let world = start(1);
    let driver = without(&world, &BTreeSet::from(["cuStreamSynchronize"])).unwrap();
    let context = driver.device(0).unwrap().retain_primary().unwrap();
    let memory = DeviceMemory::new(&context, 4096).unwrap();
    let outcome = memory.copy_from_host(0, &[7u8; 16]);
    assert!(matches!(outcome, Err(Error::Missing(_))), "{outcome:?}");
    assert_eq!(world.faults().calls("cuMemcpyHtoD_v2"), 0);
}
