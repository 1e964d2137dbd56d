//! NCCL process groups: stores, communicators, collectives, registration of cached memory.
//!
//! For: the ranks of a job that find each other, agree, and communicate. Not for: memory that all ranks place alike
//! (symm-mem builds it on this crate), or kernels.
//!
//! | module | subject |
//! |---|---|
//! | [`store`] | the small shared table through which ranks find each other |
//! | [`comm`] | the safe NCCL layer: communicators, groups, windows, registration, abort |
//! | [`group`] | process groups: ranks that agreed, subgroups, collectives, work |
//! | [`local`] | descriptors from one process of a host to another |
//! | [`peers`] | which processes of this host are still there |
//! | [`graph_memory`] | memory that captured graphs keep in place |
//! | [`record`] | the flight recorder: what each rank called, and which rank did not join |
//! | `registration` | registers an allocator's segments with communicators (feature `registration`) |
//! | [`Path`] | ways beside NCCL, which crates above this one implement |
//! | `profile` | what profilers are told (features `nvtx`, `tracing`) |
//!
//! Each may be used without the next.
//!
//! Invariants: every wait has a deadline, and its error names what was waited for; what decides how ranks call NCCL
//! follows from records that all of them have; no memory that NCCL may still write to is freed; `Drop` calls no
//! collective and does not panic.

mod chain;
pub mod comm;
pub mod graph_memory;
pub mod group;
mod hash;
pub mod local;
mod memory;
pub mod peers;
mod profile;
mod rare;
pub mod record;
#[cfg(feature = "registration")]
pub mod registration;
pub mod store;
mod sync;
mod watch;

use chain::chain;
pub use group::{Path, ProcessGroup};
use rare::{Slim, rare};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(test, not(any(loom, shuttle))))]
extern crate self as process_group;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "../tests/main.rs"]
mod end_to_end;
