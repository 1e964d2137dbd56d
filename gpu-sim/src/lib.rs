//! An embedded machine with GPUs: the C ABIs of the CUDA driver and of NCCL over host memory.
//!
//! For: running everything that stands on these ABIs without a GPU, in one process or many, with calls that can be
//! told to fail and with runs that a seed repeats. Not for: speed, and not for kernels in PTX: kernels are host
//! functions registered by name.
//!
//! | module | subject |
//! |---|---|
//! | [`World`], `world` | the machine, its settings, its report |
//! | [`sched`] | the one door of everything that blocks; threads or a seeded scheduler behind it |
//! | [`memory`] | device addresses, physical memory, rights, the checked view |
//! | [`stream`] | queues and executors, events, capture, graphs |
//! | `device` | devices, contexts, the current context, what a fault leaves behind |
//! | [`kernel`] | host functions in the place of kernels |
//! | [`fault`] | what goes wrong, what is made to go wrong, counters |
//! | `abi` | the frame of every ABI function |
//! | `driver` | the CUDA driver's ABI |
//! | `nccl` | NCCL's ABI |
//!
//! Invariants: one world is alive in a process at a time; a device address is never accessible to the host; what is
//! not modelled is absent from the table or answers not-supported, and never succeeds in silence; no panic leaves
//! an ABI function.

mod abi;
mod device;
mod driver;
pub mod fault;
pub mod kernel;
pub mod memory;
mod nccl;
pub mod sched;
pub mod stream;
mod world;

pub use fault::{Action, Faults, Injection, UnknownFunction};
pub use sched::Step;
pub use world::{Builder, Leak, Report, RunError, World, WorldError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate self as gpu_sim;
#[cfg(test)]
#[path = "../tests/main.rs"]
mod end_to_end;
