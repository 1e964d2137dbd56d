//! Waiting clients, and the changes that wake them.
//!
//! A client that waits for keys is in the [`Line`] of one absent key. Setting that key *wakes* all clients in the line.
//! If the key names a queue, each new element of the queue wakes one client: the one that has waited longest. A woken
//! client leaves the line. Its other keys are checked later, by [`Waits::resume`], which a server calls in the turn of
//! that client (see `server`). Setting a key therefore costs little per waiting client.
//!
//! A client that waits for a number (a barrier) is in the line of the number's key until the number is large enough.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    budget::{Budget, WAKE, dropping},
    memory::{ALLOCATION, ENTRY, PART},
    number::Number,
    request::ClientId,
    request::{Key, Refusal},
};

/// A wait for at most this many keys ends only when all of them exist at the same time. Exception: the key whose change
/// woke the client counts as existing when the wait is resumed, even if it was deleted in between. A wait for more keys
/// ends when each key has existed at some time during the wait, as with PyTorch's server.
const EXACT: usize = 1024;

/// All clients that wait.
#[derive(Default)]
pub(super) struct Waits {
    waits: BTreeMap<ClientId, Wait>,
    /// The lines that contain clients.
    lines: BTreeMap<Key, Line>,
    /// Clients that were woken for an element of a queue, with the queue's key. A client stays here until its next
    /// request other than a ping is served, until it must wait for another key, or until it disconnects.
    called: BTreeMap<ClientId, Key>,
    /// For each queue, the number of its clients in `called`.
    calls: BTreeMap<Key, usize>,
    /// The number of waits that have begun.
    begun: u64,
}

/// The wait of one client.
struct Wait {
    /// The number of waits that had begun, including this one. Of two clients that wait for a queue, the one with
    /// the lower number is woken first.
    arrival: u64,
    condition: Condition,
    /// True if the client is in no line, and [`Waits::resume`] must check whether the wait is over.
    is_woken: bool,
    /// The memory of this wait, in bytes.
    memory: usize,
}

/// The condition for the end of a wait.
enum Condition {
    /// All keys must exist. If the client is in a line, this is the line of `keys[next]`. Otherwise the next check
    /// begins at `keys[next]`.
    Keys { keys: Vec<Key>, next: usize },
    /// The number under `key` must be at least `least`.
    Count { key: Key, least: i64 },
}

/// The clients that wait for one key.
#[derive(Default)]
struct Line {
    /// Clients that wait until the key exists, by [`Wait::arrival`].
    keys: BTreeMap<u64, ClientId>,
    /// Clients that wait for the number under the key: pairs of the least number that ends the wait, and the client.
    counts: BTreeSet<(i64, ClientId)>,
    /// The number under the key. It is updated only while `counts` is not empty, and a deletion does not change it.
    number: Number,
}

/// The result of an attempt to continue a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumed {
    /// Nothing was done, because the client does not wait, or was not woken.
    Idle,
    /// The budget does not allow the rest of the work. The client stays woken.
    Unfinished,
    /// A key is absent. The client has joined the line of that key.
    Waits,
    /// The wait has ended and is removed. The caller must answer the client.
    Over,
}

impl Waits {
    pub(super) fn is_waiting(&self, client: ClientId) -> bool {
        self.waits.contains_key(&client)
    }

    /// Returns true if `client` was woken, so that its wait can be continued.
    pub(super) fn is_woken(&self, client: ClientId) -> bool {
        self.waits.get(&client).is_some_and(|wait| wait.is_woken)
    }

    /// Begins a wait for keys, and marks the client as woken. The caller must then call [`resume`](Self::resume), which
    /// checks the keys. Fails with [`Refusal::AlreadyWaiting`] if the client already waits.
    pub(super) fn wait_for_keys(&mut self, client: ClientId, keys: Vec<Key>) -> Result<(), Refusal> {
        let bytes: usize = keys.iter().map(|key| PART + key.len()).sum();
        let longest = keys.iter().map(Vec::len).max().unwrap_or_default();
        self.begin(client, Condition::Keys { keys, next: 0 }, ENTRY + bytes + longest, true)
    }

    /// Begins a wait until the number under `key` is at least `least`. `value` is the current value of `key`. The
    /// number at its start must be less than `least`. Fails with [`Refusal::AlreadyWaiting`] if the client already
    /// waits.
    pub(super) fn wait_for_count(
        &mut self,
        client: ClientId,
        key: &[u8],
        value: &[u8],
        least: i64,
    ) -> Result<(), Refusal> {
        let condition = Condition::Count { key: key.to_vec(), least };
        self.begin(client, condition, ENTRY + PART + 2 * key.len(), false)?;
        let line = self.lines.entry(key.to_vec()).or_default();
        if line.counts.is_empty() {
            line.number = Number::default();
            line.number.take(value);
        }
        line.counts.insert((least, client));
        Ok(())
    }

    /// Adds a wait. Fails with [`Refusal::AlreadyWaiting`] if the client already waits.
    fn begin(
        &mut self,
        client: ClientId,
        condition: Condition,
        memory: usize,
        is_woken: bool,
    ) -> Result<(), Refusal> {
        if self.is_waiting(client) {
            return Err(Refusal::AlreadyWaiting);
        }
        self.begun += 1;
        self.waits.insert(client, Wait { arrival: self.begun, condition, is_woken, memory });
        Ok(())
    }

    /// Continues the wait of a woken client. A wait for a number ends, because its client is woken only when the number
    /// is large enough. A wait for keys ends if all keys exist according to `is_there` and [`EXACT`]. If one is absent,
    /// the client joins the line of that key. If the budget does not allow this work, the client stays woken.
    pub(super) fn resume(
        &mut self,
        client: ClientId,
        is_there: impl Fn(&[u8]) -> bool,
        budget: &mut Budget,
    ) -> Resumed {
        let Some(wait) = self.waits.get_mut(&client).filter(|wait| wait.is_woken) else {
            return Resumed::Idle;
        };
        let end = match &mut wait.condition {
            Condition::Keys { keys, next } => match absent(keys, next, is_there, budget) {
                Err(Unfinished) => return Resumed::Unfinished,
                Ok(Some(key)) => {
                    self.lines.entry(key).or_default().keys.insert(wait.arrival, client);
                    wait.is_woken = false;
                    return Resumed::Waits;
                }
                Ok(None) => end_of(keys),
            },
            Condition::Count { .. } if !budget.allows(WAKE) => return Resumed::Unfinished,
            Condition::Count { .. } => WAKE,
        };
        budget.spend(end);
        self.waits.remove(&client);
        Resumed::Over
    }

    /// Removes the wait of a client, if it has one.
    pub(super) fn stop(&mut self, client: ClientId) {
        let Some(Wait { arrival, condition, is_woken: false, .. }) = self.waits.remove(&client) else {
            return;
        };
        let key = match &condition {
            Condition::Keys { keys, next } => keys.get(*next),
            Condition::Count { key, .. } => Some(key),
        };
        let Some((key, line)) = key.and_then(|key| Some((key, self.lines.get_mut(key)?))) else { return };
        match &condition {
            Condition::Keys { .. } => drop(line.keys.remove(&arrival)),
            Condition::Count { least, .. } => drop(line.counts.remove(&(*least, client))),
        }
        self.clear(key);
    }

    /// Updates the line of `key` when its value changes. The new value is `value` or, if `appended` is true, the old
    /// value followed by `value`. Appends the clients that this wakes to `woken`.
    pub(super) fn changed(&mut self, key: &[u8], value: &[u8], appended: bool, woken: &mut Vec<ClientId>) {
        // Fast path: usually no client waits for the key.
        let Some(line) = self.lines.get_mut(key) else { return };
        std::mem::take(&mut line.keys).into_values().for_each(|client| wake(&mut self.waits, client, woken));
        if !line.counts.is_empty() {
            if !appended {
                line.number = Number::default();
            }
            line.number.take(value);
            let number = line.number.value();
            while line.counts.first().is_some_and(|(least, _)| Some(*least) <= number) {
                let first = line.counts.pop_first();
                first.into_iter().for_each(|(_, client)| wake(&mut self.waits, client, woken));
            }
        }
        self.clear(key);
    }

    /// Wakes clients that wait for `queue`, the longest waiting first, and enters each in `called` as having a claim to
    /// one element. Stops when as many clients have a claim as the queue has elements, or when no client waits any
    /// more. Adds the woken clients to `woken`.
    pub(super) fn call(&mut self, queue: &[u8], elements: usize, woken: &mut Vec<ClientId>) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        let called = self.calls.get(queue).copied().unwrap_or_default();
        for _ in called..elements {
            let Some((_, client)) = line.keys.pop_first() else { break };
            wake(&mut self.waits, client, woken);
            self.called.insert(client, queue.to_vec());
            *self.calls.entry(queue.to_vec()).or_default() += 1;
        }
        self.clear(queue);
    }

    /// Ends the claim of `client` to an element of a queue. Returns `None` if it had no claim. Otherwise returns the
    /// queue's key, and the caller must then [call](Self::call) the next client.
    pub(super) fn release(&mut self, client: ClientId) -> Option<Key> {
        let queue = self.called.remove(&client)?;
        if let Some(calls) = self.calls.get_mut(&queue) {
            *calls -= 1;
            if *calls == 0 {
                self.calls.remove(&queue);
            }
        }
        Some(queue)
    }

    /// Returns the absent keys among those that `client` waits for, or the key of the number that it waits for.
    /// Returns no keys if it does not wait.
    pub(super) fn missing(&self, client: ClientId, is_there: impl Fn(&[u8]) -> bool) -> Vec<Key> {
        match self.waits.get(&client).map(|wait| &wait.condition) {
            Some(Condition::Keys { keys, .. }) => keys.iter().filter(|key| !is_there(key)).cloned().collect(),
            Some(Condition::Count { key, .. }) => vec![key.clone()],
            None => Vec::new(),
        }
    }

    /// Returns the memory of `client`'s wait, and of its entry in `called`, in bytes.
    pub(super) fn memory(&self, client: ClientId) -> usize {
        let called = self.called.get(&client).map_or(0, |key| ENTRY + ALLOCATION + 2 * key.len());
        called + self.waits.get(&client).map_or(0, |wait| wait.memory)
    }

    /// Returns the number of keys of `client`'s wait; 0 for a wait for a number, or if it does not wait.
    pub(super) fn strings(&self, client: ClientId) -> usize {
        match self.waits.get(&client).map(|wait| &wait.condition) {
            Some(Condition::Keys { keys, .. }) => keys.len(),
            Some(Condition::Count { .. }) | None => 0,
        }
    }

    /// Removes the line of `key` if it is empty.
    fn clear(&mut self, key: &[u8]) {
        if self.lines.get(key).is_some_and(|line| line.keys.is_empty() && line.counts.is_empty()) {
            self.lines.remove(key);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.lines.is_empty() && self.called.is_empty() && self.calls.is_empty()
    }
}

/// Marks a client as woken, and adds it to `woken`. The caller has removed it from its line.
fn wake(waits: &mut BTreeMap<ClientId, Wait>, client: ClientId, woken: &mut Vec<ClientId>) {
    if let Some(wait) = waits.get_mut(&client) {
        wait.is_woken = true;
        if let Condition::Keys { next, .. } = &mut wait.condition {
            // The key exists now. It is not checked again when the client is resumed, even if it is deleted before.
            *next += 1;
        }
        woken.push(client);
    }
}

/// Returns the work of ending a wait for these keys, in units of a [`Budget`].
fn end_of(keys: &[Key]) -> usize {
    WAKE + dropping(keys.len())
}

/// The error of [`absent`] if the budget does not allow the rest of the work.
struct Unfinished;

/// Looks for an absent key, from `keys[next]` on. If there are at most [`EXACT`] keys, also looks among the earlier
/// keys, except the one whose change woke the client. Returns the first absent key found, and stores its index in
/// `next`. Returns `None` if no key is absent. The budget then allows ending the wait.
fn absent(
    keys: &[Key],
    next: &mut usize,
    is_there: impl Fn(&[u8]) -> bool,
    budget: &mut Budget,
) -> Result<Option<Key>, Unfinished> {
    let absent = if keys.len() <= EXACT {
        if !budget.allows(keys.len() + end_of(keys)) {
            return Err(Unfinished);
        }
        budget.spend(keys.len());
        // The key before `next` is the one whose change woke this client. It is not checked again.
        let mut order = (*next..keys.len()).chain(0..next.saturating_sub(1));
        order.find(|at| !is_there(&keys[*at]))
    } else {
        while keys.get(*next).is_some_and(|key| is_there(key)) {
            if budget.is_spent() {
                return Err(Unfinished);
            }
            budget.spend(1);
            *next += 1;
        }
        if *next == keys.len() && !budget.allows(end_of(keys)) {
            return Err(Unfinished);
        }
        Some(*next).filter(|at| *at < keys.len())
    };
    Ok(absent.map(|at| {
        *next = at;
        keys[at].clone()
    }))
}
