//! The crate on the machine's own driver: needs a GPU, and says so where there is none.

#[path = "device/flow.rs"]
mod flow;

use std::sync::Mutex;

use cuda_driver::{Driver, set_drop_error_hook};

#[test]
fn the_flow_runs_on_the_real_driver() {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    static DROPS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    set_drop_error_hook(|error| DROPS.lock().unwrap().push(error.to_string()));
    // Twice: the second time nothing is new to the driver. A thread of its own: no context is current there.
    for _ in 0..2 {
        let driver = driver.clone();
        std::thread::spawn(move || flow::flow(&driver)).join().unwrap().unwrap();
    }
    assert_eq!(*DROPS.lock().unwrap(), Vec::<String>::new());
}
