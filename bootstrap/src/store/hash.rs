//! A store for the threads of one process.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    Deadline, Result, Store, StoreError, check_kind,
    error::text,
    machine::{ClientId, Limits, PAUSE, Reply, Request, Table},
};
use crate::runtime::{self, Event};

/// A store in this process's memory. Clones are the same store.
///
/// ```
/// use bootstrap::store::{Deadline, HashStore, Store};
/// use std::{thread, time::Duration};
///
/// # fn main() -> Result<(), bootstrap::store::StoreError> {
/// let store = HashStore::new();
/// let other = store.clone();
/// thread::spawn(move || other.set("leader", b"rank 0"));
/// assert_eq!(store.get("leader", Deadline::after(Duration::from_secs(30)))?, b"rank 0");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct HashStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when clients were added to `State::woken`.
    woken: Event,
}

impl Default for Shared {
    fn default() -> Self {
        Self { state: Mutex::default(), woken: Event::new("keys of a store") }
    }
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    /// The client id that was used last. Each request to the table uses a new id.
    last_client: ClientId,
    /// Clients with a wait that has ended in the table, if their threads have not noticed that yet.
    woken: HashSet<ClientId>,
}

impl HashStore {
    /// Returns an empty store with the default [`Limits`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty store with other limits.
    pub fn with_limits(limits: Limits) -> Self {
        let state = State { table: Table::new(limits), ..State::default() };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, waits for the next notification of `Shared::woken`, for at most `limit`, and takes the lock
    /// again.
    fn unlocked<'a>(&'a self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        // The count is read under the lock, so a notification after the release of the lock ends the wait.
        let seen = self.shared.woken.count();
        drop(state);
        runtime::wait(&self.shared.woken, seen, limit);
        self.lock()
    }
}

impl State {
    /// Serves a request under a new client id. Returns its reply, and adds the other clients that it woke to
    /// `woken`.
    fn serve(&mut self, request: Request) -> Result<Option<Reply>> {
        check_kind(&request)?;
        let (client, reply) = self.join(request)?;
        self.leave(client);
        Ok(reply)
    }

    /// Serves the first request of a new client. Returns the client's id and the reply. The reply is `None` if the
    /// request has none, or if the client now waits.
    fn join(&mut self, request: Request) -> Result<(ClientId, Option<Reply>)> {
        self.last_client += 1;
        let client = self.last_client;
        let mut replies = Vec::new();
        self.table.apply(client, request, &mut replies)?;
        Ok((client, self.note(client, replies)))
    }

    /// Removes a client from the table, and ends its wait. Adds the clients that this wakes to `woken`.
    fn leave(&mut self, client: ClientId) {
        let mut replies = Vec::new();
        self.table.leave(client, &mut replies);
        self.note(client, replies);
    }

    /// Returns the reply to `client`, if there is one, and adds the other clients in `replies` to `woken`.
    fn note(&mut self, client: ClientId, replies: Vec<(ClientId, Reply)>) -> Option<Reply> {
        let mut own = None;
        for (to, reply) in replies {
            if to == client {
                own = Some(reply);
            } else {
                self.woken.insert(to);
            }
        }
        own
    }
}

impl Store for HashStore {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        runtime::yield_point(request.name());
        let mut state = self.lock();
        let reply = state.serve(request);
        if !state.woken.is_empty() {
            self.shared.woken.notify_all();
        }
        reply
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        runtime::yield_point(request.as_ref().map_or("wait", Request::name));
        let mut state = self.lock();
        loop {
            let (client, reply) = state.join(Request::Wait { keys: keys.clone() })?;
            let mut there = reply.is_some();
            while !there {
                let left = deadline.remaining();
                if left.is_zero() {
                    let missing = state.table.missing(client);
                    state.leave(client);
                    let keys = missing.iter().map(|key| text(key)).collect();
                    return Err(StoreError::Timeout { keys, waited: deadline.waited() });
                }
                state = self.unlocked(state, left);
                there = state.woken.remove(&client);
            }
            // Other threads may have changed the keys after this client was woken and before it took the lock, so the
            // keys are checked again.
            let still_there = state.serve(Request::Check { keys: keys.clone() });
            let reply = match (still_there, &request) {
                (Ok(Some(Reply::Status(0))), Some(request)) => state.serve(request.clone()).map(Some),
                (Ok(_), None) => Ok(Some(None)),
                (Ok(_), Some(_)) => Ok(None),
                (Err(refused), _) => Err(refused),
            };
            state.leave(client);
            if !state.woken.is_empty() {
                self.shared.woken.notify_all();
            }
            match reply? {
                None => {}
                // The queue is empty, but a key with its name exists. A new wait would end at once. So wait for
                // at most `PAUSE`, and then look again.
                Some(Some(Reply::Popped(None))) => {
                    let left = deadline.remaining();
                    if left.is_zero() {
                        let keys = keys.iter().map(|key| text(key)).collect();
                        return Err(StoreError::Timeout { keys, waited: deadline.waited() });
                    }
                    state = self.unlocked(state, left.min(PAUSE));
                }
                Some(reply) => return Ok(reply),
            }
        }
    }
}
