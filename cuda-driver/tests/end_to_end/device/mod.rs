//! Tests of the crate on the embedded device: the simulated CUDA driver of `gpu-sim`. A process can have one
//! [`World`], a simulated machine with devices, at a time. The tests therefore take turns.

mod capture;
mod complete;
mod drivers;
mod exercise;
mod faults;
mod graph_memory;
mod hardware;
mod kept;
mod kernels;
mod lifecycle;
mod memory;
mod missing;
mod modules;
mod multicast;
mod page_tables;
mod processes;
mod slices;
mod streams;
mod virtual_memory;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_driver::module::ModuleError;
use cuda_driver::sys::{Api, Table};
use cuda_driver::{Context, Driver, DriverError, Error, Stream, StreamFlags, set_drop_error_hook};
use gpu_sim::World;

/// Bytes of memory of each device.
const CAPACITY: u64 = 256 << 20;

/// The code that injected failures return. No driver uses it.
const INJECTED: u32 = 99_999;

static TURN: Mutex<()> = Mutex::new(());

/// The messages of failures in `Drop` since the test's turn began.
static DROPS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn drops() -> MutexGuard<'static, Vec<String>> {
    DROPS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    set_drop_error_hook(|error| drops().push(error.to_string()));
    drops().clear();
    turn
}

/// Runs `test` in a fresh world with `devices` devices. Fails if something leaks or a `Drop` fails.
fn on_devices(devices: usize, test: impl FnOnce(&World, &Driver)) {
    let _turn = turn();
    let world = start(devices);
    let driver = driver(world.cuda());
    test(&world, &driver);
    drop(driver);
    assert_eq!(*drops(), Vec::<String>::new());
    world.finish().expect("the test leaves nothing behind");
}

/// Like [`on_devices`], with one device, its context, and a stream.
fn on_stream(test: impl FnOnce(&World, &Context, &Stream)) {
    on_devices(1, |world, driver| {
        let context = context(driver, 0);
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        test(world, &context, &stream);
    });
}

fn start(devices: usize) -> World {
    World::builder().devices(devices).capacity(CAPACITY).start().unwrap()
}

fn driver(table: Table) -> Driver {
    // SAFETY: the embedded device keeps the C contracts, and the world outlives the driver in every test.
    Driver::new(unsafe { Api::from_parts(table) }.unwrap()).unwrap()
}

fn context(driver: &Driver, ordinal: u32) -> Context {
    driver.device(ordinal).unwrap().retain_primary().unwrap()
}

/// Returns the name of the driver's function that failed, and the number of its code.
#[track_caller]
fn failed(error: &Error) -> (&'static str, u32) {
    match error {
        Error::Driver(DriverError { function, code, .. }) => (function, code.0),
        Error::Module(ModuleError::Refused { cause, .. }) => (cause.function, cause.code.0),
        other => panic!("not the driver's error: {other}"),
    }
}
