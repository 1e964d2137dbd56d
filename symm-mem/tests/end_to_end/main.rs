//! End-to-end tests of the crate, through its public interface.

#![allow(clippy::result_large_err, reason = "errors of the crate name ranks and call sites")]

mod commits;
mod common;
mod direct;
mod embedded;
mod exchange;
mod hazards;
mod kernels;
mod orders;
mod processes;
mod random;
mod rendezvous;
