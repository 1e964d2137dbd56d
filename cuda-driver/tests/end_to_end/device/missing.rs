//! Drivers without some functions: each call that needs one returns an error with its name, and nothing
//! panics.

use std::collections::BTreeSet;

use cuda_driver::sys::{Api, Table};
use cuda_driver::{Driver, Error, Result};
use gpu_sim::World;
use proptest::prelude::*;

use super::exercise::SECTIONS;
use super::{drops, kernels, start, turn};

/// Without these there is no driver to begin with.
const NEEDED: &[&str] = &["cuInit", "cuDriverGetVersion"];

/// The world's driver without some functions.
fn without(world: &World, removed: &BTreeSet<&str>) -> Result<Driver> {
    let mut table = world.cuda();
    for name in removed {
        table.remove(name);
    }
    // SAFETY: the embedded device keeps the C contracts, and the world outlives the driver in every test.
    Driver::new(unsafe { Api::from_parts(table) }?)
}

/// Returns true if an error names one of the functions, itself or as part of a feature.
fn names_one(text: &str, removed: &BTreeSet<&str>) -> bool {
    removed.iter().any(|name| text.contains(&format!("`{name}`")))
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Missing(_))
}

/// Runs every section on a driver without some functions. Returns the messages that break the rule.
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
        // Once something could not be given back (a capture not ended), what is dropped later may fail by the driver.
        if !said.iter().any(|text| names_one(text, removed)) {
            wrong.extend(said);
        }
    }
    wrong
}

/// The functions that the exercise calls.
fn called() -> Vec<String> {
    let world = start(2);
    kernels::register(&world);
    let driver = without(&world, &BTreeSet::new()).unwrap();
    std::thread::spawn(move || super::exercise::all(&driver)).join().unwrap().unwrap();
    world.faults().all_calls().into_keys().filter(|name| !NEEDED.contains(&name.as_str())).collect()
}

#[test]
fn a_table_of_nothing_is_an_error() {
    // SAFETY: there is no function in it.
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
fn any_functions_may_be_missing() {
    let _turn = turn();
    let called = called();
    let some = prop::sample::subsequence(called.clone(), 2..called.len() / 2);
    proptest!(ProptestConfig::with_cases(64), |(removed in some)| {
        prop_assert_eq!(run(&removed.iter().map(String::as_str).collect()), Vec::<String>::new());
    });
}
