//! End-to-end tests of the crate, through its public interface.

mod capture;
mod common;
mod conformance;
mod inject;
mod kernel;
mod memory;
mod model;
mod process;
mod raw;
mod sched;
mod stream;

// Its macros are for the modules that follow.
#[macro_use]
mod rig;

mod nccl_capture;
mod nccl_collectives;
mod nccl_conformance;
mod nccl_divergence;
mod nccl_groups;
mod nccl_lifecycle;
mod nccl_one_sided;
mod nccl_processes;
mod nccl_seeded;
mod nccl_windows;
