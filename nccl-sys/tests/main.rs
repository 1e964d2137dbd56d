//! End-to-end tests of the crate. They are a part of its unit-test binary, so that a crate has one.

mod config;
mod missing;
mod python;
