//! The CUDA driver's ABI.

/// The functions that are modelled.
pub(crate) fn table() -> cuda_driver_sys::Table {
    cuda_driver_sys::Table::default()
}
