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
//! - [`rendezvous()`], [`barrier`]: wait for all ranks. If some ranks do not arrive, all ranks that arrived get the
//!   same list of missing ranks.
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

use self::{
    error::into_text,
    machine::{Reply, Request},
};

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

/// Evaluates to `Ok($value)` if the reply matches `$pattern`, otherwise to the error of [`Store::unexpected`] for the
/// operation `$name`. If `$reply` is an error, returns it from the calling function.
macro_rules! expect {
    ($self:ident, $name:literal, $reply:expr, $pattern:pat => $value:expr) => {
        match $reply? {
            $pattern => Ok($value),
            other => Err($self.unexpected($name, other)),
        }
    };
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
/// store has served it. [`FileOptions::patience`] limits its wait for the file's lock. On a [`TcpStore`], it may take
/// about twice [`TcpOptions::patience`]: once to open a connection, once for the answer. Every operation can fail with
/// an error of its store.
///
/// With its default limits, the host of a [`TcpStore`] may serve a request for more than 1,000 keys, or for more than
/// 4 MiB, in pieces. It serves other clients in between.
/// - Other clients may see a part of a [`multi_set`](Store::multi_set). The part stays if the rest fails.
/// - The reply to the large request may contain some of the changes of other clients, and miss others.
/// - A [`wait`](Store::wait) for more than 1,024 keys ends when each key has existed at some time during the wait.
pub trait Store: Send + Sync {
    /// Serves a request, and returns after it has taken effect. Returns its reply, or `None` if this kind of request
    /// has no reply. All other methods except [`unexpected`](Self::unexpected) call this method or
    /// [`call_when_there`](Self::call_when_there). A store that passes its requests on to another store implements
    /// these two, and passes `unexpected` on.
    ///
    /// # Errors
    /// [`StoreError::Argument`] if the request is a `Wait`, `Barrier`, `CancelWait` or `Ping`. Other errors of the store.
    fn call(&self, request: Request) -> Result<Option<Reply>>;

    /// Waits until all `keys` exist, then serves `request`, and returns its reply. If `request` is `None`, returns
    /// `None` after the wait. If `request` pops a queue that is empty after the wait, waits again.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if keys are missing, or the queue is empty, at `deadline`. Other errors of the store.
    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>>;

    /// Returns the error for a `reply` of the wrong kind to the operation named `operation`.
    fn unexpected(&self, operation: &'static str, reply: Option<Reply>) -> StoreError {
        StoreError::Argument(format!("{operation} was answered by {reply:?}; this is a defect of the store"))
    }

    /// Sets `key` to `value`. Replaces an earlier value.
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::Set { key: key.into(), value: value.into() };
        expect!(self, "set", self.call(request), None => ())
    }

    /// Waits until `key` exists, and returns its value. If only a queue has this name, the value is empty.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let reply = self.call_when_there(owned(&[key]), Some(Request::Get { key: key.into() }), deadline);
        expect!(self, "get", reply, Some(Reply::Bytes(value)) => value)
    }

    /// Returns true if all of `keys` exist, without a wait. A key exists if it has a value, or if a queue of its name
    /// is not empty.
    fn check(&self, keys: &[&str]) -> Result<bool> {
        let request = Request::Check { keys: owned(keys) };
        expect!(self, "check", self.call(request), Some(Reply::Status(status @ (0 | 1))) => status == 0)
    }

    /// Waits until all of `keys` exist.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if keys are missing at `deadline`.
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        expect!(self, "wait", self.call_when_there(owned(keys), None, deadline), None => ())
    }

    /// Adds `delta` to the decimal number at the start of the value of `key`, which is 0 if the key is absent. The
    /// sum becomes the value. Returns the sum.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`], or [`StoreError::Refused`] from a [`TcpStore`], if the value does not start with
    /// a number, or if the sum is out of range.
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let request = Request::Add { key: key.into(), delta };
        expect!(self, "add", self.call(request), Some(Reply::Integer(sum)) => sum)
    }

    /// Sets `key` to `new` if it holds `expected`, or if it is absent and `expected` is empty. Returns the
    /// key's value afterwards. For an absent key and a non-empty `expected`, sets nothing and returns
    /// `expected` (PyTorch's rule).
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        let request = Request::CompareSet { key: key.into(), expected: expected.into(), new: new.into() };
        expect!(self, "compare_set", self.call(request), Some(Reply::Bytes(held)) => held)
    }

    /// Appends `value` to the value of `key`, which is empty if the key is absent.
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::Append { key: key.into(), value: value.into() };
        expect!(self, "append", self.call(request), None => ())
    }

    /// Waits until all of `keys` exist, and returns their values in the order of `keys`.
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let request = Request::MultiGet { keys: owned(keys) };
        let reply = self.call_when_there(owned(keys), Some(request), deadline);
        expect!(self, "multi_get", reply, Some(Reply::Values(values)) => values)
    }

    /// Sets several keys atomically. Exceptions: large requests (see above), and a [`FileStore`] whose process is
    /// killed.
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        let entries = entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec())).collect();
        expect!(self, "multi_set", self.call(Request::MultiSet { entries }), None => ())
    }

    /// Removes the value of `key`, and returns true if there was one. Does not affect queues.
    fn delete(&self, key: &str) -> Result<bool> {
        let request = Request::Delete { key: key.into() };
        expect!(self, "delete", self.call(request), Some(Reply::Integer(removed)) => removed > 0)
    }

    /// Returns the number of keys that have a value. Queues do not count.
    fn num_keys(&self) -> Result<u64> {
        expect!(self, "num_keys", self.call(Request::NumKeys), Some(Reply::Integer(count @ 0..)) => count as u64)
    }

    /// Returns the keys that have a value, in ascending order. Queues are not listed.
    fn list_keys(&self) -> Result<Vec<String>> {
        let keys = expect!(self, "list_keys", self.call(Request::ListKeys), Some(Reply::Keys(keys)) => keys)?;
        let mut keys: Vec<_> = keys.into_iter().map(into_text).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Appends `value` to the queue `key`, and wakes the client that has waited longest for the queue. With a
    /// [`FileStore`], or if `key` also has a value, any of the waiting clients may take the element. Queues have their
    /// own namespace: the same name may also be a key.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::QueuePush { key: key.into(), value: value.into() };
        expect!(self, "queue_push", self.call(request), None => ())
    }

    /// Removes and returns the first value of the queue `key`. Waits until there is one.
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let reply =
            self.call_when_there(owned(&[key]), Some(Request::QueuePop { key: key.into() }), deadline);
        expect!(self, "queue_pop", reply, Some(Reply::Popped(Some((_, value)))) => value)
    }

    /// Removes and returns the first value of the queue `key`. Returns `None`, without a wait, if the queue is empty.
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let reply = self.call(Request::QueuePop { key: key.into() });
        expect!(self, "queue_try_pop", reply, Some(Reply::Popped(popped)) => popped.map(|(_, value)| value))
    }

    /// Returns the number of values in the queue `key`. It is 0 if the queue does not exist.
    fn queue_len(&self, key: &str) -> Result<u64> {
        let reply = self.call(Request::QueueLen { key: key.into() });
        expect!(self, "queue_len", reply, Some(Reply::Integer(length @ 0..)) => length as u64)
    }
}

/// Checks that a request is one that [`Store::call`] serves.
fn check_kind(request: &Request) -> Result<()> {
    match request {
        Request::Wait { .. } | Request::Barrier { .. } | Request::CancelWait | Request::Ping { .. } => {
            Err(StoreError::Argument(format!("`Store::call` does not serve {}", request.name())))
        }
        _ => Ok(()),
    }
}

fn owned(keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}
