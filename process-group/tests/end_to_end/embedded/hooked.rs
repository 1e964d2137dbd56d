//! A store that calls a test's hook.

use std::sync::Arc;

use process_group::store::{
    self, Deadline, HashStore, Store,
    machine::{Reply, Request},
};

/// A rank's store that calls a test's hook before each operation, with the operation's name and its first
/// key.
pub(crate) struct Hooked<F, S = HashStore> {
    store: Arc<S>,
    before: F,
}

impl<F: Fn(&'static str, &str) -> store::Result<()>, S: Store> Hooked<F, S> {
    pub(crate) fn new(store: &Arc<S>, before: F) -> Self {
        Self { store: store.clone(), before }
    }
}

impl<F: Fn(&'static str, &str) -> store::Result<()> + Send + Sync, S: Store> Store for Hooked<F, S> {
    fn call(&self, request: Request) -> store::Result<Option<Reply>> {
        let mut keys = Vec::new();
        request.clone().for_each_key(|key| keys.push(String::from_utf8_lossy(key).into_owned()));
        (self.before)(request.name(), keys.first().map_or("", String::as_str))?;
        self.store.call(request)
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> store::Result<Option<Reply>> {
        let key = keys.first().map_or("".into(), |key| String::from_utf8_lossy(key));
        (self.before)(request.as_ref().map_or("wait", Request::name), &key)?;
        self.store.call_when_there(keys, request, deadline)
    }
}
