//! Symmetric memory: pools whose segments are window-registered in one agreed order.
//!
//! - [`agreement`]: the commit protocol without I/O: records, decisions, the commit machine.
//! - [`AllocationLog`]: what a pool was asked to do, with a hash over every prefix.

pub mod agreement;
mod log;

pub use log::AllocationLog;
