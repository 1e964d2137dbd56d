//! The command `lockstep`: tools for users of the crates. `lockstep help` lists them.
//!
//! The library has only the pieces that other programs of this workspace share with the command:
//!
//! - [`main`]: the command itself
//! - [`backend`]: the GPUs or embedded devices that the ranks of a job use
//! - [`child`]: child processes with a time limit
//! - [`exit_code`]: the exit code of a command
//! - [`percentiles`]: durations of repeated operations
//! - [`probe`]: the functions and features of an NCCL or CUDA library

mod bench;
pub mod child;
mod command;
mod demo;
mod doctor;
mod exit;
mod fr;
mod help_page;
mod job_secret;
mod json;
mod kill_test;
mod launch;
mod notes;
mod output;
pub mod percentiles;
mod plain;
pub mod probe;
mod progress;
mod replay;
mod suggestions;
mod trace;
mod values;
mod viz;

pub use command::main;
pub use demo::backend;
pub use exit::{exit_code, explain};

/// Serializes tests that start embedded devices: a process has at most one world at a time.
#[cfg(test)]
fn world_lock() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
