//! Lets the processes of a job find each other, share memory and file descriptors, and agree on decisions. This crate
//! needs no GPU.
//!
//! | module | subject |
//! |---|---|
//! | [`store`] | key-value stores through which ranks find each other: over TCP, in a file, in memory |
//! | [`link`] | sockets that pass file descriptors between the processes of a host, and memory that they share |
//! | [`agreement`] | one protocol for every decision that ranks make together |
//! | [`runtime`] | clock, waits, threads and TCP sockets; tests can replace them by a seeded scheduler (feature `simulation`) |
//! | [`wire`] | the binary form of the messages that ranks exchange through a store |
//! | [`hash`] | a hash function for digests that ranks compare |
//!
//! Invariants: every wait for another rank has a time limit. If a wait for keys of a store or for processes of a link
//! times out, the error names the missing keys or processes. A process of another user receives no descriptor. A store
//! with a secret serves only processes that know the secret.

pub mod agreement;
mod error_text;
pub mod hash;
pub mod link;
mod random;
mod ranks;
pub mod runtime;
pub mod store;
pub mod wire;

pub use error_text::error_text;
pub use ranks::{Ranges, Ranks};

#[cfg(not(target_os = "linux"))]
compile_error!("lockstep-bootstrap needs Linux: it passes descriptors over sockets with peer credentials");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
