//! NCCL process groups: stores, communicators, collectives, registration of cached memory.
//!
//! Use this crate to let the ranks of a job find each other, agree, and communicate. It does not allocate symmetric
//! memory, for which there is symm-mem on top of this crate. It has no kernels.
//!
//! | module | subject |
//! |---|---|
//! | [`store`], [`link`], [`agreement`] | of the crate `bootstrap`: the small shared key-value table through which ranks find each other, the sockets that pass file descriptors between the processes of a host, and the protocol by which ranks agree |
//! | [`comm`] | the safe NCCL layer: communicators, groups, windows, registration, abort |
//! | [`group`] | process groups: ranks that agreed, subgroups, collectives, work |
//! | [`peers`] | detects processes of this host that have died or stopped |
//! | [`record`] | the flight recorder: the calls of each rank, and the ranks that did not join |
//! | `registration` | registers an allocator's segments with communicators (feature `registration`) |
//! | [`Path`] | alternatives to NCCL for an operation, implemented by crates above this one |
//! | `profile` | ranges for profilers (features `nvtx`, `tracing`) |
//!
//! Each module can be used without the modules listed after it.
//!
//! Invariants: every wait has a deadline, and the error of a wait names the awaited event. Ranks decide from data
//! that all of them have which NCCL calls they make. No memory that NCCL may still write to is freed. `Drop` calls no
//! collective and does not panic.

mod boxed_result;
pub mod comm;
pub mod group;
mod memory;
mod messages;
mod operation;
pub mod peers;
mod profile;
pub mod record;
#[cfg(feature = "registration")]
pub mod registration;
mod sync;
mod watch;

pub use bootstrap::{agreement, error_text, link, store};
use boxed_result::{BoxedResult, cold_err};
pub use group::{Job, Path, ProcessGroup};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(test, not(any(loom, shuttle))))]
extern crate self as process_group;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "../tests/end_to_end/embedded/common.rs"]
#[allow(dead_code, reason = "the end-to-end tests use more of it than the unit tests")]
mod embedded_machine;
