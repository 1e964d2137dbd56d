//! The error of a failed call to the driver.

use cuda_driver_sys::CUresult;

/// A call to the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {name} ({code}): {text}", code = .code.0)]
pub struct DriverError {
    /// The symbol of the function that was called.
    pub function: &'static str,
    /// The code that the function returned.
    pub code: CUresult,
    /// The code's name; `unknown code` if the driver has none.
    pub name: String,
    /// The driver's description of the code; `no description` if the driver has none.
    pub text: String,
}
