//! A store whose calls a test can fail, delay or change.

use process_group::store::{
    Deadline, Result, Store,
    machine::{Reply, Request},
};

/// The calls that a meeting makes to agree on something.
pub(crate) const MEETING_CALLS: [&str; 6] = ["set", "get", "check", "add", "compare_set", "multi_get"];

/// Changes to the calls of a store. Each method changes nothing unless it is implemented.
pub(crate) trait Intercept<S>: Send + Sync {
    /// Runs before a call, with its name and its first key. Its error is returned in place of the call.
    fn before(&self, _inner: &S, _call: &'static str, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes to store for `value`.
    fn write(&self, value: &[u8]) -> Vec<u8> {
        value.to_vec()
    }

    /// Returns the value for stored bytes.
    fn read(&self, value: Vec<u8>) -> Vec<u8> {
        value
    }
}

/// The store `inner`, with every call changed by `intercept`.
pub(crate) struct Intercepted<S, I> {
    pub(crate) inner: S,
    pub(crate) intercept: I,
}

impl<S: Store, I: Intercept<S>> Intercepted<S, I> {
    /// Runs the hook `before` of a call with this first key.
    fn enter(&self, call: &'static str, key: &[u8]) -> Result<&S> {
        self.intercept.before(&self.inner, call, &String::from_utf8_lossy(key))?;
        Ok(&self.inner)
    }

    /// Changes the values of a reply.
    fn changed(&self, reply: Option<Reply>) -> Option<Reply> {
        let read = |value| self.intercept.read(value);
        reply.map(|reply| match reply {
            Reply::Bytes(value) => Reply::Bytes(read(value)),
            Reply::Values(values) => Reply::Values(values.into_iter().map(read).collect()),
            other => other,
        })
    }
}

impl<S: Store, I: Intercept<S>> Store for Intercepted<S, I> {
    fn call(&self, mut request: Request) -> Result<Option<Reply>> {
        let mut keys = Vec::new();
        request.for_each_key(|key| keys.push(key.clone()));
        let inner = self.enter(request.name(), keys.first().map_or(&[], |key| key))?;
        if let Request::Set { value, .. } | Request::CompareSet { new: value, .. } = &mut request {
            *value = self.intercept.write(value);
        }
        inner.call(request).map(|reply| self.changed(reply))
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        let call = request.as_ref().map_or("wait", Request::name);
        let inner = self.enter(call, keys.first().map_or(&[], |key| key))?;
        inner.call_when_there(keys, request, deadline).map(|reply| self.changed(reply))
    }
}
