//! Implements [`Store`] for every [`Service`]: converts operations to requests, and replies to results. All stores of
//! this crate except [`PrefixStore`](super::PrefixStore) use this.

use super::{
    Deadline, Result, Store, StoreError,
    error::into_text,
    machine::{Reply, Request},
};

/// Serves requests to a store.
pub trait Service: Send + Sync {
    /// Serves a request that does not wait. Returns after the request has taken effect, with its reply, or with `None`
    /// if this kind of request has no reply.
    fn call(&self, request: Request) -> Result<Option<Reply>>;

    /// Waits until all `keys` exist, then serves `request`, and returns its reply. If `request` is `None`, returns
    /// `None` after the wait. If `request` pops a queue that is empty after the wait, waits again.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if keys are missing, or the queue is empty, at `deadline`. Other errors of the store.
    fn call_when_there(
        &self,
        keys: Keys,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>>;

    /// Returns the error for a `reply` of the wrong kind to the operation named `request`.
    fn unexpected(&self, request: &'static str, reply: Option<Reply>) -> StoreError;
}

/// The keys of a request, as bytes.
pub(super) type Keys = Vec<Vec<u8>>;

/// Evaluates to `Ok($value)` if the reply matches `$pattern`, otherwise to the error of [`Service::unexpected`] for the
/// operation `$name`. If `$reply` is an error, returns it from the calling function.
macro_rules! expect {
    ($self:ident, $name:literal, $reply:expr, $pattern:pat => $value:expr) => {
        match $reply? {
            $pattern => Ok($value),
            other => Err($self.unexpected($name, other)),
        }
    };
}

fn owned(keys: &[&str]) -> Keys {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

impl<S: Service> Store for S {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::Set { key: key.into(), value: value.into() };
        expect!(self, "set", self.call(request), None => ())
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let reply = self.call_when_there(owned(&[key]), Some(Request::Get { key: key.into() }), deadline);
        expect!(self, "get", reply, Some(Reply::Bytes(value)) => value)
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let request = Request::Check { keys: owned(keys) };
        expect!(self, "check", self.call(request), Some(Reply::Status(status @ (0 | 1))) => status == 0)
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        expect!(self, "wait", self.call_when_there(owned(keys), None, deadline), None => ())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let request = Request::Add { key: key.into(), delta };
        expect!(self, "add", self.call(request), Some(Reply::Integer(sum)) => sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        let request = Request::CompareSet { key: key.into(), expected: expected.into(), new: new.into() };
        expect!(self, "compare_set", self.call(request), Some(Reply::Bytes(held)) => held)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::Append { key: key.into(), value: value.into() };
        expect!(self, "append", self.call(request), None => ())
    }

    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let request = Request::MultiGet { keys: owned(keys) };
        let reply = self.call_when_there(owned(keys), Some(request), deadline);
        expect!(self, "multi_get", reply, Some(Reply::Values(values)) => values)
    }

    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        let entries = entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec())).collect();
        expect!(self, "multi_set", self.call(Request::MultiSet { entries }), None => ())
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let request = Request::Delete { key: key.into() };
        expect!(self, "delete", self.call(request), Some(Reply::Integer(removed)) => removed > 0)
    }

    fn num_keys(&self) -> Result<u64> {
        expect!(self, "num_keys", self.call(Request::NumKeys), Some(Reply::Integer(count @ 0..)) => count as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        let keys = expect!(self, "list_keys", self.call(Request::ListKeys), Some(Reply::Keys(keys)) => keys)?;
        let mut keys: Vec<_> = keys.into_iter().map(into_text).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let request = Request::QueuePush { key: key.into(), value: value.into() };
        expect!(self, "queue_push", self.call(request), None => ())
    }

    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let reply =
            self.call_when_there(owned(&[key]), Some(Request::QueuePop { key: key.into() }), deadline);
        expect!(self, "queue_pop", reply, Some(Reply::Popped(Some((_, value)))) => value)
    }

    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let reply = self.call(Request::QueuePop { key: key.into() });
        expect!(self, "queue_try_pop", reply, Some(Reply::Popped(popped)) => popped.map(|(_, value)| value))
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        let reply = self.call(Request::QueueLen { key: key.into() });
        expect!(self, "queue_len", reply, Some(Reply::Integer(length @ 0..)) => length as u64)
    }
}
