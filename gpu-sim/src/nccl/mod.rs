//! NCCL's ABI.

/// The functions that are modelled.
pub(crate) fn table() -> nccl_sys::Table {
    nccl_sys::Table::default()
}
