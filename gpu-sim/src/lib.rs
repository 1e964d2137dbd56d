//! An embedded machine with GPUs: the C ABIs of the CUDA driver and of NCCL over host memory.
//!
//! Use it to run software above these ABIs without a GPU, in one process or many, with injected faults and with runs
//! that a seed reproduces. It is not fast, and it does not execute PTX: kernels are host functions registered by
//! name.
//!
//! | module | subject |
//! |---|---|
//! | [`World`], `world` | the machine, its settings, its report |
//! | [`sched`] | the only place where threads block; operating-system threads or a seeded scheduler behind it |
//! | [`memory`] | device addresses, physical memory, rights, the checked view |
//! | [`stream`] | queues and executors, events, capture, graphs |
//! | `device` | devices, contexts, the current context, the state after a fault |
//! | [`kernel`] | host functions that replace kernels |
//! | [`fault`] | faults, fault injection, call counters |
//! | `abi` | the wrapper around every ABI function |
//! | `driver` | the CUDA driver's ABI |
//! | `nccl` | NCCL's ABI |
//! | [`process`] | processes for tests of several worlds |
//!
//! Invariants: a thread sees one world at a time, that of the process or its own. A device address is never accessible
//! to the host. A function that is not modelled is absent from the table or returns not-supported, and never succeeds
//! silently. No panic leaves an ABI function.

#[cfg(not(target_os = "linux"))]
compile_error!("lockstep-gpu-sim supports Linux only: it shares memory between processes as Linux does");

mod abi;
mod device;
mod driver;
pub mod fault;
pub mod kernel;
pub mod memory;
mod nccl;
pub mod process;
pub mod sched;
pub mod stream;
mod world;

pub use fault::{Action, Faults, Injection, UnknownFunction};
pub use sched::Step;
pub use world::{Builder, Leak, Report, RunError, World, WorldError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
