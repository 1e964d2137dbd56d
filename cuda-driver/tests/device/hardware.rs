//! The crate on the machine's own driver: needs a GPU, and says so where there is none.

use cuda_driver::Driver;

use super::{drops, flow, kernels, turn};

#[test]
fn the_flow_runs_on_the_real_driver() {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let _turn = turn();
    // Twice: the second time nothing is new to the driver. A thread of its own: no context is current there.
    for _ in 0..2 {
        let driver = driver.clone();
        std::thread::spawn(move || flow::flow(&driver)).join().unwrap().unwrap();
    }
    assert_eq!(*drops(), Vec::<String>::new());
}

#[test]
fn the_real_driver_says_why_it_refuses_a_module() {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let _turn = turn();
    kernels::refusals(&super::context(&driver, 0));
    assert_eq!(*drops(), Vec::<String>::new());
}
