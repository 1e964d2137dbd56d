//! The driver's answer to a call that failed.

use cuda_driver_sys::CUresult;

/// A call of the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {name} ({code}): {text}", code = .code.0)]
pub struct DriverError {
    /// The function that was called, by its symbol.
    pub function: &'static str,
    /// The code it returned.
    pub code: CUresult,
    /// The code's name.
    pub name: String,
    /// The driver's description of the code.
    pub text: String,
}
