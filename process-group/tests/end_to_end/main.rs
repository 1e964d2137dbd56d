//! End-to-end tests of the crate, through its public interface.

pub(crate) mod embedded;
mod hardware;
#[cfg(feature = "registration")]
mod hardware_hook;
mod hardware_torch;
#[path = "../../../bootstrap/tests/end_to_end/ports.rs"]
mod ports;
#[path = "../../../bootstrap/tests/end_to_end/python.rs"]
mod python;
