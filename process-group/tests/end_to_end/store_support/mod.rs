//! Shared code of the store tests.

pub(super) mod ports;
pub(super) mod world;
