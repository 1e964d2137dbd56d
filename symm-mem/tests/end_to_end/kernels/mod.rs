//! The kernels: their twins on the embedded device, and their PTX on GPUs if there are any.

mod code;
mod collectives;
mod faults;
mod hardware;
mod reference;
pub(crate) mod rig;
mod signals;

use std::time::Duration;

use cuda_driver::Driver;
use cuda_driver::sys::{Api, Table};
use gpu_sim::World;

use crate::common::turn;

/// Deadline of a kernel whose peers do arrive.
const LONG: Duration = Duration::from_secs(60);
/// Deadline of a kernel that waits for an absent rank.
const SHORT: Duration = Duration::from_millis(30);

fn start(devices: usize) -> World {
    let world = World::builder().devices(devices).capacity(256 << 20).start().unwrap();
    symm_mem::kernels::twins::register(&world);
    world
}

fn driver(table: Table) -> Driver {
    // SAFETY: the embedded device keeps the C contracts, and the world outlives the driver in every test.
    Driver::new(unsafe { Api::from_parts(table) }.unwrap()).unwrap()
}

/// Runs `test` in a fresh world that reports leaks.
fn on_devices(devices: usize, test: impl FnOnce(&World, &Driver)) {
    let _turn = turn();
    let world = start(devices);
    let driver = driver(world.cuda());
    test(&world, &driver);
    drop(driver);
    world.finish().expect("the test leaves nothing behind");
}
