//! Stores: small shared tables through which ranks find each other and make common decisions.
//!
//! A store holds keys with byte values, counters and queues. It is meant for a few kilobytes at a time (addresses,
//! unique ids, votes), not for tensors. The contents of a [`TcpStore`] are lost when its host ends, those of a
//! [`HashStore`] when its last clone is dropped. The contents of a [`FileStore`] last as long as the file.
//!
//! - [`Store`]: the operations of every store. [`HashStore`] serves the threads of one process. [`TcpStore`]
//!   serves the processes of a job, and is compatible with PyTorch's store on the wire. [`FileStore`] serves
//!   processes that share a disk, and is compatible with PyTorch's file. [`PrefixStore`] is a namespace in
//!   another store.
//! - [`rendezvous()`], [`barrier`]: wait for all ranks. If some ranks do not come, the ranks that came agree on the
//!   list of the missing ones.
//! - [`machine`]: the semantics and the protocol as state machines without I/O. [`HashStore`], [`TcpStore`] and
//!   [`FileStore`] use them.
//!
//! Invariants: every wait for keys, queues or ranks has a [`Deadline`]. If the process that hosts a store has ended, or
//! the file of a store is removed, operations fail without waiting for a timeout. If the host's machine cannot be
//! reached, they fail within about half a minute, with the default [patience](TcpOptions::patience). The effect of an
//! operation that has succeeded is visible to every later operation of every client.

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
pub use rendezvous::{barrier, rendezvous};
pub use setting::SecretSetting;
pub use tcp::{HostReport, TcpOptions, TcpStore};

/// Sets `key` to `value`, unless `key` already holds a non-empty value. Use it for a key that one process writes once,
/// such as the key of its address. A second call with the same value succeeds and changes nothing.
///
/// # Errors
/// - [`StoreError::Taken`] if the key already holds another value that is not empty. The key keeps that value.
/// - The errors of [`Store::compare_set`].
pub fn publish(store: &dyn Store, key: &str, value: &[u8]) -> Result<()> {
    let stands = store.compare_set(key, b"", value)?;
    if stands != value {
        return Err(StoreError::Taken { key: key.to_owned(), found: stands.len() });
    }
    Ok(())
}

/// A shared table of keys, counters and queues.
///
/// Keys are UTF-8 and may be empty. Values are bytes and may be empty. [`machine::Limits`] limits their sizes. An
/// operation above the limits fails and changes nothing. Operations are linearizable: those of all clients take effect
/// in one order, and an operation that has returned precedes every later one. [`TcpStore`], [`FileStore`] and the last
/// paragraph below describe the exceptions.
///
/// An operation with a deadline waits until its keys exist, or its queue is not empty. It fails with
/// [`StoreError::Timeout`] if that is not so at the deadline. An operation without a deadline blocks only until the
/// store has served it. [`TcpOptions::patience`] and [`FileOptions::patience`] limit that time. Every operation can
/// fail with an error of its store.
///
/// With its default limits, the host of a [`TcpStore`] may serve a request for more than 1,000 keys, or for more than
/// 4 MiB, in pieces. It serves other clients in between.
/// - Other clients may see a part of a [`multi_set`](Store::multi_set). The part stays if the rest fails.
/// - The reply to the large request may contain some of the changes of other clients, and miss others.
/// - A [`wait`](Store::wait) for more than 1,024 keys ends when each key has existed at some time during the wait.
pub trait Store: Send + Sync {
    /// Sets `key` to `value`. Replaces an earlier value.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until `key` exists, and returns its value. If only a queue has this name, the value is empty.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;

    /// Returns true if all of `keys` exist, without a wait. A key exists if it has a value, or if a queue of its name
    /// is not empty.
    fn check(&self, keys: &[&str]) -> Result<bool>;

    /// Waits until all of `keys` exist.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if keys are missing at `deadline`.
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()>;

    /// Adds `delta` to the decimal number at the start of the value of `key`, which is 0 if the key is absent. The
    /// sum becomes the value. Returns the sum.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`], or [`StoreError::Refused`] from a [`TcpStore`], if the value does not start with
    /// a number, or if the sum is out of range.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Sets `key` to `new` if it holds `expected`, or if it is absent and `expected` is empty. Returns the
    /// key's value afterwards. For an absent key and a non-empty `expected`, sets nothing and returns
    /// `expected` (PyTorch's rule).
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>>;

    /// Appends `value` to the value of `key`, which is empty if the key is absent.
    fn append(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until all of `keys` exist, and returns their values in the order of `keys`.
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>>;

    /// Sets several keys atomically, with the exception above for large requests, and that of a [`FileStore`] whose
    /// process is killed.
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()>;

    /// Removes the value of `key`, and returns true if there was one. Does not affect queues.
    fn delete(&self, key: &str) -> Result<bool>;

    /// Returns the number of keys that have a value. Queues do not count.
    fn num_keys(&self) -> Result<u64>;

    /// Returns the keys that have a value, in ascending order. Queues are not listed.
    fn list_keys(&self) -> Result<Vec<String>>;

    /// Appends `value` to the queue `key`, and wakes the client that has waited longest for it. With a [`FileStore`],
    /// or if `key` also has a value, any of the waiting clients may take the element. Queues have their own namespace:
    /// the same name may also be a key.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Removes and returns the first value of the queue `key`. Waits until there is one.
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;

    /// Removes and returns the first value of the queue `key`. Returns `None`, without a wait, if the queue is empty.
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Returns the number of values in the queue `key`. It is 0 if the queue does not exist.
    fn queue_len(&self, key: &str) -> Result<u64>;
}
