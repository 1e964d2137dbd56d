//! The store's semantics and protocol without threads, sockets, clocks and locks.
//!
//! - [`Table`]: keys, queues and waiting clients; one [`Request`] in, [`Reply`]s out.
//! - [`Server`]: a table behind PyTorch's protocol; bytes of many clients in, bytes out.
//! - [`Client`]: one connection to such a server; a [`Call`] in, its outcome out.
//!
//! The caller passes time as a `Duration` since an arbitrary origin. It never goes backwards.

mod budget;
pub mod client;
mod clients;
mod memory;
mod number;
mod request;
mod secret;
pub mod server;
mod table;
mod waits;
mod wire;

pub use client::{Call, Client, Failure};
pub(super) use client::{GRACE, PAUSE};
pub use clients::ClientId;
pub(super) use clients::Clients;
pub use request::{Limits, Part, Refusal, Reply, Request};
pub use secret::{Distrust, Secret};
pub use server::{Rejection, Server, ServerLimits};
pub use table::Table;
#[cfg(test)]
pub(super) use wire::greeting;
