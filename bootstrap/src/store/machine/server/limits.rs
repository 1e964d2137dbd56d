//! Limits of a server.

use std::time::Duration;

use super::super::request::Limits;

/// Limits of a [`Server`](super::Server).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// The limits on keys, values and requests, and on the memory of the table ([`Limits::store_bytes`]). The limit on
    /// the table is never more than half of `memory`.
    pub sizes: Limits,
    /// The most bytes of memory for everything, including overhead: the table, incomplete requests, waits, unsent
    /// replies, and 4 KiB for every connection.
    pub memory: usize,
    /// The most connections at a time. A quarter of them, but at least 32, may be without a complete greeting. A new
    /// connection above one of these limits replaces the one that has been without a complete greeting for longest.
    /// If all have greeted, the new connection is closed.
    pub clients: usize,
    /// The longest time from the start of a connection to the end of its greeting.
    pub greeting: Duration,
    /// The most work in one [`Input::Tick`](super::Input::Tick), in units. One unit is about the work of looking up a
    /// key, receiving a string, or copying 1 KiB. A single indivisible piece of work may exceed the limit. The limit
    /// bounds the time for which a tick delays a small request of another client.
    pub tick: usize,
    /// The approximate limit on the work in one [`Input::Received`](super::Input::Received), in the units of `tick`.
    /// Further work is done in later ticks.
    pub at_once: usize,
}

impl Default for ServerLimits {
    /// The default sizes, 2 GiB of memory, 65,536 connections, 1 s for the greeting, ticks of about 1 ms, and at
    /// most about 50 µs of work when bytes arrive.
    fn default() -> Self {
        Self {
            sizes: Limits::default(),
            memory: 2 << 30,
            clients: 1 << 16,
            greeting: Duration::from_secs(1),
            // The work of copying a value of the largest size.
            tick: 8 << 10,
            // If 1,000 clients send requests at the same time, they delay another client by at most about 50 ms.
            at_once: 256,
        }
    }
}

impl ServerLimits {
    /// Returns the most connections that may be without a complete greeting.
    pub(super) fn ungreeted(&self) -> usize {
        (self.clients / 4).max(32)
    }
}
