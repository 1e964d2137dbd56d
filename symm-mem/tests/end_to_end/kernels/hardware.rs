//! The PTX on the machine's own GPUs: the same flows as for the twins. Needs one GPU; with more, the ranks are spread
//! over all of them.

use std::sync::MutexGuard;

use cuda_driver::Driver;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::{collectives, rig, signals};
use crate::common::turn;

/// Number of random collectives for each number of ranks.
const RANDOM: u32 = 36;

/// Returns the machine's driver and the number of devices in use, or reports the reason to skip. Only one test runs
/// at a time: the kernels of all ranks must run concurrently, so they need all of the device.
fn gpus() -> Option<(MutexGuard<'static, ()>, Driver, u32)> {
    let turn = turn();
    let found = Driver::load().and_then(|driver| {
        let devices = driver.devices()?;
        let used = if rig::peers(&devices)? { devices.len() } else { devices.len().min(1) };
        Ok((driver, u32::try_from(used).unwrap_or(1).min(8)))
    });
    match found {
        Ok((_, 0)) => println!("skipped: the driver has no device"),
        Ok((driver, devices)) => return Some((turn, driver, devices)),
        Err(error) => println!("skipped: {error}"),
    }
    None
}

#[test]
fn hardware_signals() {
    let Some((_turn, driver, devices)) = gpus() else { return };
    for world in 1..=8 {
        signals::a_signal_brings_what_was_written_before(&driver, devices, world);
    }
    signals::an_absent_rank_is_named_and_the_context_lives(&driver, devices);
    signals::a_signal_that_is_not_taken_stops_the_next(&driver, devices);
    signals::graphs_meet_as_often_as_they_are_launched(&driver, devices);
}

#[test]
fn hardware_collectives() {
    let Some((_turn, driver, devices)) = gpus() else { return };
    for world in 1..=8_u8 {
        let ranks = |bytes| collectives::ranks(&driver, devices, world.into(), bytes);
        let cases = collectives::everything(&ranks(1 << 17), &collectives::SHORT_LENGTHS);
        let long = collectives::some_long(&ranks(4 << 20));
        // A fixed seed: the same cases in each run.
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[world; 32]);
        collectives::random(&ranks(1 << 20), TestRunner::new_with_rng(collectives::config(RANDOM), rng));
        println!(
            "{world} ranks on {devices} devices: {cases} short, {long} long and {RANDOM} random collectives were right"
        );
    }
    collectives::graphs(&driver, devices, 2);
    collectives::graphs(&driver, devices, 4);
    collectives::absent(&driver, devices);
}
