//! End-to-end tests of the crate, through its public interface.

mod description;
mod fake;
mod features;
mod files;
mod loading;
mod sample;
