//! The PTX on the machine's own GPUs: the same flows as the twins. Needs one GPU; with more, ranks are on all of them.

use std::sync::MutexGuard;

use cuda_driver::Driver;

use super::{collectives, rig, signals};
use crate::end_to_end::turn;

/// The machine's driver and how many of its devices are used, or why there are none. One test at a time: the kernels of
/// all ranks have to run at once, so nobody else's may take their room.
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
    for world in [1, 2, 3, 4, 8] {
        signals::a_signal_brings_what_was_written_before(&driver, devices, world);
    }
    signals::an_absent_rank_is_named_and_the_context_lives(&driver, devices);
    signals::a_signal_that_is_not_taken_stops_the_next(&driver, devices);
    signals::graphs_meet_as_often_as_they_are_launched(&driver, devices);
}

#[test]
fn hardware_collectives() {
    let Some((_turn, driver, devices)) = gpus() else { return };
    for world in [1, 2, 3, 4, 8] {
        let ranks = collectives::ranks(&driver, devices, world, 1 << 18);
        let cases = collectives::everything(&ranks, &collectives::SHORT_LENGTHS);
        let ranks = collectives::ranks(&driver, devices, world, 4 << 20);
        let long = collectives::some_long(&ranks);
        println!("{world} ranks on {devices} devices: {cases} short and {long} long collectives were right");
    }
    collectives::graphs(&driver, devices, 2);
    collectives::graphs(&driver, devices, 4);
    collectives::absent(&driver, devices);
}
