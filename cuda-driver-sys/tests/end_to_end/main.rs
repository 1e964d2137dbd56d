//! End-to-end tests of the crate, through its public interface.

mod real;
mod resolution;
