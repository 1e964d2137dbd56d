//! Whole flows on the embedded device: ranks as threads, each test in a process of its own.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one promise for all: buffers are as long as said, and each test waits before it frees them"
)]

#[path = "embedded/common.rs"]
mod common;

#[path = "embedded/abort.rs"]
mod abort;
#[path = "embedded/communicator.rs"]
mod communicator;
#[path = "embedded/faults.rs"]
mod faults;
#[path = "embedded/group.rs"]
mod group;
#[path = "embedded/processes.rs"]
mod processes;
#[cfg(feature = "registration")]
#[path = "embedded/registration.rs"]
mod registration;
#[path = "embedded/window.rs"]
mod window;
