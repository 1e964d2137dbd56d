//! Tests of the crate on the machine's own driver. They need a GPU, and print `skipped` on a machine without one.

use cuda_driver::Driver;

use super::{drops, exercise, kernels, turn};

/// Returns the machine's driver. If there is none, or it shows no device, prints the reason and returns `None`.
pub(super) fn driver() -> Option<Driver> {
    match Driver::load().and_then(|driver| driver.device(0).map(|_| driver)) {
        Ok(driver) => Some(driver),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn hardware_runs_every_function() {
    let Some(driver) = driver() else { return };
    let _turn = turn();
    let mut failed = Vec::new();
    // Each section runs twice, because the driver is initialised and may have cached state in the second round. Each
    // run has a fresh thread, on which no context is current.
    for round in 1..=2 {
        for (name, section) in exercise::SECTIONS {
            let driver = driver.clone();
            let run = move || section(&driver).map(|()| exercise::notes());
            match std::thread::spawn(run).join() {
                Ok(Ok(notes)) if round == 1 => notes.iter().for_each(|note| println!("{note}")),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => failed.push(format!("{name}, round {round}: {error}")),
                Err(_) => failed.push(format!("{name}, round {round}: it panicked (see above)")),
            }
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    assert_eq!(*drops(), Vec::<String>::new());
}

#[test]
fn hardware_says_why_it_refuses_a_module() {
    let Some(driver) = driver() else { return };
    let _turn = turn();
    kernels::refusals(&super::context(&driver, 0));
    assert_eq!(*drops(), Vec::<String>::new());
}

#[test]
fn hardware_loads_a_cubin() {
    let Some(driver) = driver() else { return };
    let _turn = turn();
    kernels::cubin(&super::context(&driver, 0)).unwrap();
    assert_eq!(*drops(), Vec::<String>::new());
}
