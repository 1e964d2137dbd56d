//! Stores: the small shared table through which ranks find each other and agree.
//!
//! A store holds keys with byte values, counters and queues; it is for a few kilobytes at a time (addresses,
//! unique ids, votes), not for tensors, and what it holds dies with its host.
//!
//! - [`Store`]: what every store can do. [`HashStore`] serves the threads of one process, [`TcpStore`] the
//!   processes of a job (and is compatible with PyTorch's store on the wire), [`FileStore`] those that share a disk
//!   (and the file with PyTorch's), [`PrefixStore`] gives a part of a program its own namespace.
//! - [`rendezvous()`], [`barrier`]: all ranks meet at a name, or all that came are told who did not.
//! - [`machine`]: the semantics and the protocol as state machines without I/O. Every store runs on them.
//!
//! Invariants: every wait has a [`Deadline`]; a store whose host has died, or whose file is gone, is an error at once
//! and not a timeout;
//! an operation that has returned is seen by every later operation of every client.

mod deadline;
mod error;
mod file;
mod hash;
pub mod machine;
mod prefix;
mod rendezvous;
mod service;
mod setting;
mod tcp;

pub use deadline::Deadline;
pub use error::{Result, StoreError};
pub use file::{FileOptions, FileStore};
pub use hash::HashStore;
pub use machine::{Distrust, Secret};
pub use prefix::PrefixStore;
pub(crate) use rendezvous::{LOST, give_up};
pub use rendezvous::{barrier, rendezvous};
pub use setting::SecretSetting;
pub use tcp::{HostReport, TcpOptions, TcpStore};

/// Writes `value` under a key that one process writes once, such as where it can be reached.
///
/// # Errors
/// [`StoreError::Taken`]: the key holds another value already, which stays.
pub fn publish(store: &dyn Store, key: &str, value: &[u8]) -> Result<()> {
    let stands = store.compare_set(key, b"", value)?;
    if stands != value {
        return Err(StoreError::Taken { key: key.to_owned(), found: stands.len() });
    }
    Ok(())
}

/// A shared table of keys, counters and queues.
///
/// Keys are UTF-8 and may be empty; values are bytes and may be empty. Sizes are bounded by
/// [`machine::Limits`]; above them an operation fails and changes nothing. All operations of all clients
/// happen in one order, and an operation that has returned lies before every later one.
///
/// The host of a [`TcpStore`] serves a request for more than 1,000 keys, or for more than 4 MiB, in pieces, between which
/// it serves other clients: they may see a part of a [`multi_set`](Store::multi_set), and what changes meanwhile may be
/// in the answer or not. A [`wait`](Store::wait) for more than 1,000 keys ends when each of them has been there.
pub trait Store: Send + Sync {
    /// Sets `key` to `value`, whether or not it was there.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of `key`, waiting until it is there.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;

    /// Whether all of `keys` are there. A queue is there while it is not empty.
    fn check(&self, keys: &[&str]) -> Result<bool>;

    /// Waits until all of `keys` are there.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] with the keys, once `deadline` has passed.
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()>;

    /// Adds `delta` to the decimal number under `key` (0 when absent) and returns the sum.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Sets `key` to `new` if it holds `expected`, or if it is absent and `expected` is empty. Returns what
    /// the key holds afterwards; for an absent key and an `expected` that is not empty, returns `expected` and
    /// sets nothing (PyTorch's rule).
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>>;

    /// Appends `value` to what `key` holds (nothing when absent).
    fn append(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The values of `keys`, waiting until all are there.
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>>;

    /// Sets several keys in one step.
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()>;

    /// Removes `key` and says whether it was there. Does not touch queues.
    fn delete(&self, key: &str) -> Result<bool>;

    /// How many keys there are, queues not counted.
    fn num_keys(&self) -> Result<u64>;

    /// The keys, queues not among them, sorted.
    fn list_keys(&self) -> Result<Vec<String>>;

    /// Puts `value` at the end of the queue `key` and wakes the one that has waited longest for it.
    /// Queues have their own namespace: the same name may also be a key.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Takes the first value of the queue `key`, waiting until there is one.
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;

    /// Takes the first value of the queue `key`, or `None` when it is empty.
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// The length of the queue `key`; 0 when nobody has pushed.
    fn queue_len(&self, key: &str) -> Result<u64>;
}
