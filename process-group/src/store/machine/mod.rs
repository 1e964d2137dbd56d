//! The store's semantics and protocol without threads, sockets, clocks and locks.
//!
//! - [`Table`]: keys, queues and who waits for them; one [`Request`] in, [`Reply`]s out.
//!
//! Time is handed in as a `Duration` since an origin of the caller's choice that never goes backwards.

mod request;
mod table;

pub use request::{Limits, Part, Refusal, Reply, Request};
pub use table::{ClientId, Table};
