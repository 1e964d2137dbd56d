//! What the tests of the stores share.

pub(super) mod ports;
pub(super) mod world;
