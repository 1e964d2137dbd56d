//! End-to-end tests of the crate, through its public interface.

mod bad_input;
mod captures;
mod checkpoints;
mod common;
mod contention;
#[cfg(feature = "cudarc")]
mod cudarc;
mod device_allocator;
mod driver;
mod driver_graphs;
mod failing;
mod growth;
mod hits;
mod limits;
mod logs;
mod model;
mod modelled;
mod pinned;
mod pools;
mod programs;
mod remapping;
mod routing;
mod scarcity;
mod settings;
#[cfg(feature = "json")]
mod snapshot;
mod stress;
mod stressed;
mod trackers;
mod watch;
