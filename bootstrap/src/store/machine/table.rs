//! The contents of a store, and the effect of requests on them.
//!
//! Clients of PyTorch's store rely on these rules:
//!
//! - A key exists if it has a value or a non-empty queue.
//! - Setting a value wakes all clients that wait until its key exists. A client that waits for the number in the value
//!   (a barrier) is woken once the number is large enough.
//! - Adding an element to a queue wakes the client that has waited for it longest. If that client does not take the
//!   element (its process may die), the next client is woken.
//!
//! All maps are trees, and queues are linked lists, so that adding or removing one entry never takes long, however many
//! there are. A hash table or a vector would move all of its contents at once when it grows.

use std::collections::{BTreeMap, LinkedList};

use super::{
    budget::{Budget, copying},
    memory::{ELEMENT, ENTRY},
    number::Number,
    request::ClientId,
    request::{Key, Limits, Part, Refusal, Reply, Request},
    waits::{Resumed, Waits},
};

/// The length of the longest decimal `i64`, in bytes.
const DIGITS: usize = "-9223372036854775808".len();

/// Keys, queues and waiting clients.
#[derive(Default)]
pub struct Table {
    limits: Limits,
    values: BTreeMap<Key, Vec<u8>>,
    /// The queues. None of them is empty.
    queues: BTreeMap<Key, LinkedList<Vec<u8>>>,
    /// See [`memory`](Table::memory).
    memory: usize,
    waits: Waits,
}

/// Omits keys and values, because ranks store secret tokens in them.
impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("keys", &self.values.len())
            .field("queues", &self.queues.len())
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// Returns the memory of a key and a value of this capacity, in bytes.
fn entry(key: &[u8], capacity: usize) -> usize {
    ENTRY + key.len() + capacity
}

/// Returns the memory of a queue's element, in bytes.
fn element(value: &[u8]) -> usize {
    ELEMENT + value.len()
}

/// Returns the memory of a queue without its elements, in bytes.
fn queue(key: &[u8]) -> usize {
    ENTRY + key.len()
}

/// Returns the capacity that a value has after `more` bytes are appended. If the value must be moved, the capacity is a
/// quarter more than needed, so that repeated appends do not move it each time.
fn capacity_with(held: &Vec<u8>, more: usize) -> usize {
    let needed = held.len() + more;
    if needed <= held.capacity() { held.capacity() } else { needed + needed / 4 }
}

impl Table {
    /// Makes an empty table with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Returns the limits on requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns true if `client` is in a `Wait` or a `Barrier`.
    pub fn is_waiting(&self, client: ClientId) -> bool {
        self.waits.is_waiting(client)
    }

    /// Serves one request completely. Appends to `replies` the replies to clients whose waits have ended, and the
    /// reply to `client`, if the request has one and does not wait.
    ///
    /// # Errors
    /// A [`Refusal`] if the request exceeds a limit or cannot be executed. No key or queue has changed then. Replies to other clients may be appended even then, because a refused request ends the client's claim to an element.
    pub fn apply(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Vec<(ClientId, Reply)>,
    ) -> Result<(), Refusal> {
        self.limits.check(&request)?;
        let mut woken = Vec::new();
        let reply = self.serve(client, request, &mut woken);
        self.resume_all(woken, replies);
        replies.extend(reply?.map(|reply| (client, reply)));
        Ok(())
    }

    /// Removes a client that has disconnected. Its wait ends without a reply. If it was woken for an element of a
    /// queue, the next client is woken. Appends to `replies` the replies to clients whose waits have ended.
    pub fn leave(&mut self, client: ClientId, replies: &mut Vec<(ClientId, Reply)>) {
        let mut woken = Vec::new();
        self.remove(client, &mut woken);
        self.resume_all(woken, replies);
    }

    /// Continues the waits of all woken clients, and of those that are woken by that.
    fn resume_all(&mut self, mut woken: Vec<ClientId>, replies: &mut Vec<(ClientId, Reply)>) {
        let mut next = 0;
        while let Some(client) = woken.get(next).copied() {
            next += 1;
            if self.resume(client, &mut Budget::unlimited(), &mut woken) == Resumed::Over {
                replies.push((client, Reply::Status(0)));
            }
        }
    }

    /// Serves one request, whose sizes the caller has checked. Appends to `woken` the clients that the caller must
    /// [resume](Self::resume), also if the request is refused. `client` may be one of them. Returns the reply; `None`
    /// if the request has none, or waits.
    ///
    /// # Errors
    /// As for [`apply`](Self::apply).
    pub(super) fn serve(
        &mut self,
        client: ClientId,
        request: Request,
        woken: &mut Vec<ClientId>,
    ) -> Result<Option<Reply>, Refusal> {
        let is_ping = matches!(request, Request::Ping { .. });
        let outcome = self.check_growth(self.growth(&request));
        let outcome = outcome.and_then(|()| self.perform(client, request, woken));
        if !is_ping {
            self.release(client, woken);
        }
        outcome
    }

    /// Checks that the table may grow by this many bytes. A growth of 0 is always allowed.
    pub(super) fn check_growth(&self, growth: usize) -> Result<(), Refusal> {
        match growth {
            0 => Ok(()),
            _ => self.limits.part(Part::Store, &[], self.memory + growth, self.limits.store_bytes),
        }
    }

    /// Executes a request. Unlike [`serve`](Self::serve), does not check the growth, and does not
    /// [end the claim](Self::release) of a client that was woken for an element of a queue.
    fn perform(
        &mut self,
        client: ClientId,
        request: Request,
        woken: &mut Vec<ClientId>,
    ) -> Result<Option<Reply>, Refusal> {
        Ok(Some(match request {
            Request::Set { key, value } => {
                self.put(key, value, woken);
                return Ok(None);
            }
            Request::MultiSet { entries } => {
                entries.into_iter().for_each(|(key, value)| self.put(key, value, woken));
                return Ok(None);
            }
            Request::Append { key, value } => {
                self.append(key, value, woken)?;
                return Ok(None);
            }
            Request::CompareSet { key, expected, new } => match self.values.get(&key) {
                Some(held) if *held != expected => Reply::Bytes(held.clone()),
                None if !expected.is_empty() => Reply::Bytes(expected),
                _ => {
                    self.put(key, new.clone(), woken);
                    Reply::Bytes(new)
                }
            },
            Request::Get { key } => Reply::Bytes(self.value(&key).unwrap_or_default().to_vec()),
            Request::Add { key, delta } => Reply::Integer(self.add(key, delta, woken)?),
            Request::Check { keys } => Reply::Status(keys.iter().any(|key| !self.is_there(key)).into()),
            Request::Wait { keys } => {
                self.waits.wait_for_keys(client, keys)?;
                woken.push(client);
                return Ok(None);
            }
            Request::Barrier { key, world } => return self.barrier(client, key, world, woken),
            Request::CancelWait => {
                self.waits.stop(client);
                Reply::Status(1)
            }
            Request::NumKeys => Reply::Integer(self.values.len() as i64),
            Request::Delete { key } => {
                let removed = self.values.remove(&key);
                self.memory -= removed.as_ref().map_or(0, |value| entry(&key, value.capacity()));
                Reply::Integer(removed.is_some().into())
            }
            Request::MultiGet { keys } => {
                let bytes = keys.iter().map(|key| self.value_size(key)).sum();
                self.limits.part(Part::Reply, &[], bytes, self.limits.request_bytes)?;
                Reply::Values(keys.iter().map(|key| self.value(key).unwrap_or_default().to_vec()).collect())
            }
            Request::Ping { nonce } => Reply::Nonce(nonce),
            Request::QueuePush { key, value } => {
                self.push(key, value, woken);
                return Ok(None);
            }
            Request::QueuePop { key } => Reply::Popped(self.pop(&key)),
            Request::QueueLen { key } => Reply::Integer(self.queue_len(&key) as i64),
            Request::ListKeys => {
                let bytes = self.values.keys().map(|key| size_of::<u64>() + key.len()).sum::<usize>();
                self.limits.part(Part::Reply, &[], bytes + size_of::<u64>(), self.limits.request_bytes)?;
                Reply::Keys(self.values.keys().cloned().collect())
            }
        }))
    }

    /// Continues the wait of a client that was woken. If the wait is [over](Resumed::Over), the caller must answer the
    /// client. If the client must wait for another key, it gives up the element of a queue for which it may have been
    /// woken: wakes the next client that waits for that queue, and appends it to `woken`.
    pub(super) fn resume(
        &mut self,
        client: ClientId,
        budget: &mut Budget,
        woken: &mut Vec<ClientId>,
    ) -> Resumed {
        let Self { values, queues, waits, .. } = self;
        let is_there = |key: &[u8]| values.contains_key(key) || queues.contains_key(key);
        let resumed = waits.resume(client, is_there, budget);
        if resumed == Resumed::Waits {
            // The client still waits for another key. If it was woken for an element of a queue, the next client is
            // woken for that element.
            self.release(client, woken);
        }
        resumed
    }

    /// Returns true if the wait of `client` can be resumed.
    pub(super) fn is_woken(&self, client: ClientId) -> bool {
        self.waits.is_woken(client)
    }

    /// Removes a client. If it was woken for an element of a queue, wakes the next client that waits for the queue, and
    /// appends it to `woken`.
    pub(super) fn remove(&mut self, client: ClientId, woken: &mut Vec<ClientId>) {
        self.waits.stop(client);
        self.release(client, woken);
    }

    /// If `client` was woken for an element of a queue, ends its claim to the element, and wakes the next client if an
    /// element is left. Appends that client to `woken`.
    pub(super) fn release(&mut self, client: ClientId, woken: &mut Vec<ClientId>) {
        if let Some(queue) = self.waits.release(client) {
            self.waits.call(&queue, self.queue_len(&queue), woken);
        }
    }

    /// Returns the memory of keys, values and queues with their overhead, in bytes. [`Limits::store_bytes`]
    /// limits it.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the memory of `client`'s wait, and of its claim to an element of a queue, in bytes. It is not part of
    /// [`memory`](Self::memory).
    pub(super) fn wait_memory(&self, client: ClientId) -> usize {
        self.waits.memory(client)
    }

    /// Returns the number of keys that `client` waits for; 0 if it does not wait for keys.
    pub(super) fn wait_strings(&self, client: ClientId) -> usize {
        self.waits.strings(client)
    }

    /// Returns an upper bound on the growth of [`memory`](Self::memory) by a request, in bytes.
    pub(super) fn growth(&self, request: &Request) -> usize {
        match request {
            Request::Set { key, value } | Request::CompareSet { key, new: value, .. } => {
                self.put_growth(key, value.len())
            }
            Request::MultiSet { entries } => {
                entries.iter().map(|(key, value)| self.put_growth(key, value.len())).sum()
            }
            Request::Append { key, value } => match self.values.get(key) {
                Some(held) => capacity_with(held, value.len()) - held.capacity(),
                None => entry(key, value.len()),
            },
            Request::Add { key, .. } | Request::Barrier { key, .. } => self.put_growth(key, DIGITS),
            Request::QueuePush { key, value } => {
                element(value) + if self.queues.contains_key(key) { 0 } else { queue(key) }
            }
            _ => 0,
        }
    }

    /// Returns the growth of [`memory`](Self::memory) if `key` is set to a value of `value` bytes; 0 if it shrinks.
    pub(super) fn put_growth(&self, key: &[u8], value: usize) -> usize {
        let held = self.values.get(key).map_or(0, |held| entry(key, held.capacity()));
        entry(key, value).saturating_sub(held)
    }

    /// Returns the work of a request, in units of a [`Budget`]. Not for `Check`, `MultiGet`, `MultiSet` and `ListKeys`,
    /// which a server serves in pieces.
    pub(super) fn work(&self, request: &Request) -> usize {
        let held = |key: &Key| self.values.get(key).map_or(0, Vec::len);
        let bytes = match request {
            Request::Set { value, .. } | Request::QueuePush { value, .. } => value.len(),
            Request::CompareSet { key, expected, new } => expected.len() + new.len() + held(key),
            // `Add` and `Barrier` parse the held value.
            Request::Get { key } | Request::Add { key, .. } | Request::Barrier { key, .. } => held(key),
            Request::Append { key, value } => {
                let moved = self.values.get(key).filter(|held| held.len() + value.len() > held.capacity());
                value.len() + moved.map_or(0, Vec::len)
            }
            Request::QueuePop { key } => self.first(key).map_or(0, Vec::len),
            _ => 0,
        };
        1 + copying(bytes)
    }

    /// Returns an upper bound on the size of a request's reply in wire format, in bytes; 0 for a kind of request whose
    /// reply never has strings. Not for `MultiGet` and `ListKeys`, which a server serves in pieces.
    pub(super) fn reply_size(&self, request: &Request) -> usize {
        const LENGTH: usize = size_of::<u64>();
        match request {
            Request::Get { key } => self.value_size(key),
            Request::CompareSet { key, expected, new } => {
                self.value_size(key).max(LENGTH + expected.len().max(new.len()))
            }
            Request::QueuePop { key } => LENGTH + LENGTH + self.first(key).map_or(0, Vec::len),
            _ => 0,
        }
    }

    /// Returns the size of the value of `key` in wire format, in bytes. A key without a value counts as an empty value.
    pub(super) fn value_size(&self, key: &[u8]) -> usize {
        size_of::<u64>() + self.values.get(key).map_or(0, Vec::len)
    }

    /// Returns the absent keys among those that `client` waits for, or the key of its barrier. Returns no keys if the
    /// client does not wait.
    pub fn missing(&self, client: ClientId) -> Vec<Vec<u8>> {
        self.waits.missing(client, |key| self.is_there(key))
    }

    /// Returns true if `key` has a value, or a non-empty queue.
    pub fn is_there(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    /// Returns the value of `key`; `None` if it has none.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// Returns the keys that have a value, in ascending order: those greater than `after`, or all if it is `None`.
    pub(super) fn keys_after(&self, after: Option<&Key>) -> impl Iterator<Item = &Key> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.values.range::<Key, _>((from, Unbounded)).map(|(key, _)| key)
    }

    fn first(&self, queue: &[u8]) -> Option<&Vec<u8>> {
        self.queues.get(queue).and_then(LinkedList::front)
    }

    fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, LinkedList::len)
    }

    /// Sets the value of a key. The caller has checked the growth. Appends to `woken` the clients that this wakes.
    pub(super) fn put(&mut self, key: Key, mut value: Vec<u8>, woken: &mut Vec<ClientId>) {
        // `put_growth` assumes that the capacity equals the length.
        value.shrink_to_fit();
        self.waits.changed(&key, &value, false, woken);
        self.memory += entry(&key, value.capacity());
        match self.values.get_mut(&key) {
            Some(held) => {
                self.memory -= entry(&key, held.capacity());
                *held = value;
            }
            None => drop(self.values.insert(key, value)),
        }
    }

    /// Appends to the value of a key, or sets it if the key has none. Fails with [`Refusal::TooLarge`] if the new value
    /// exceeds the limit.
    fn append(&mut self, key: Key, value: Vec<u8>, woken: &mut Vec<ClientId>) -> Result<(), Refusal> {
        let Some(held) = self.values.get_mut(&key) else {
            self.put(key, value, woken);
            return Ok(());
        };
        self.limits.value(&key, held.len() + value.len())?;
        let before = held.capacity();
        held.reserve_exact(capacity_with(held, value.len()) - held.len());
        held.extend_from_slice(&value);
        self.memory += held.capacity() - before;
        self.waits.changed(&key, &value, true, woken);
        Ok(())
    }

    /// Adds to the number under a key, and returns the sum. Fails with [`Refusal::NotANumber`] if the value does not
    /// begin with a number or the sum overflows.
    fn add(&mut self, key: Key, delta: i64, woken: &mut Vec<ClientId>) -> Result<i64, Refusal> {
        let held = self.values.get(&key).map(Vec::as_slice);
        let sum = held.map_or(Some(0), Number::of).and_then(|number| number.checked_add(delta));
        let Some(sum) = sum else {
            let value = held.unwrap_or_default();
            return Err(Refusal::NotANumber { value: value[..value.len().min(64)].to_vec(), key });
        };
        self.put(key, sum.to_string().into_bytes(), woken);
        Ok(sum)
    }

    /// Adds 1 to the number under a key, and begins a wait if it is still less than `world`. Returns `None` then.
    fn barrier(
        &mut self,
        client: ClientId,
        key: Key,
        world: i64,
        woken: &mut Vec<ClientId>,
    ) -> Result<Option<Reply>, Refusal> {
        if self.waits.is_waiting(client) {
            return Err(Refusal::AlreadyWaiting);
        }
        if self.add(key.clone(), 1, woken)? >= world {
            return Ok(Some(Reply::Status(0)));
        }
        let value = self.values.get(&key).map(Vec::as_slice).unwrap_or_default();
        self.waits.wait_for_count(client, &key, value, world)?;
        Ok(None)
    }

    /// Adds an element to the end of a queue. Appends to `woken` the client that this wakes, if there is one.
    fn push(&mut self, key: Key, value: Vec<u8>, woken: &mut Vec<ClientId>) {
        if !self.queues.contains_key(&key) {
            self.memory += queue(&key);
        }
        self.memory += element(&value);
        let elements = self.queues.entry(key.clone()).or_default();
        elements.push_back(value);
        self.waits.call(&key, elements.len(), woken);
    }

    /// Takes the first element of a queue. Returns the queue's length before that, and the element; `None` if there
    /// is no such queue. Removes the queue if it becomes empty: `is_there` and the count of memory rely on that.
    fn pop(&mut self, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let elements = self.queues.get_mut(key)?;
        let before = elements.len() as u64;
        let value = elements.pop_front();
        if elements.is_empty() {
            self.queues.remove(key);
            self.memory -= queue(key);
        }
        let value = value?;
        self.memory -= element(&value);
        Some((before, value))
    }
}

#[cfg(test)]
mod tests;
