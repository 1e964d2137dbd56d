//! The store's semantics and protocol as state machines. They use no threads, sockets, clocks or locks.
//!
//! - [`Table`]: keys, queues and waiting clients. Takes one [`Request`] and returns [`Reply`]s or a [`Refusal`].
//!   `HashStore` and `FileStore` use it directly.
//! - [`Server`]: a table behind the protocol of PyTorch's TCPStore. Takes the bytes that clients have sent, and makes
//!   the bytes to send to them.
//! - [`Client`]: one connection to such a server. Takes a [`Call`] and the server's bytes, and returns the bytes to
//!   send and the call's outcome.
//!
//! The caller passes the current time to `Server` and `Client` as a `Duration` since an arbitrary origin. The origin
//! must stay the same, and the time must never go backwards.

mod budget;
mod buffer;
pub mod client;
mod memory;
mod number;
mod rejection;
mod request;
mod secret;
pub mod server;
mod table;
mod waits;
mod wire;

pub use client::{Call, Client, Failure};
pub(super) use client::{GRACE, PAUSE};
pub use rejection::Rejection;
pub use request::{ClientId, Limits, Part, Refusal, Reply, Request};
pub use secret::{Distrust, Secret};
pub use server::{Server, ServerLimits};
pub use table::Table;
#[cfg(test)]
pub(super) use wire::greeting;
