//! What a store holds, and who waits for it.
//!
//! Rules that clients of PyTorch's store rely on: a key is there when it has a value or a queue of its name is
//! not empty; a value wakes everybody who waits for its key; an element of a queue wakes one, the one that has
//! waited longest. That one may not take it (its process may die): then the next is woken.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{
    memory::{ALLOCATION, ENTRY, PART, is_sparse},
    request::{Limits, Part, Refusal, Reply, Request},
};

/// A client, as the caller numbers them. A number is not used again.
pub type ClientId = u64;

type Key = Vec<u8>;

/// The longest decimal number.
const DIGITS: usize = "-9223372036854775808".len();

/// Keys, queues and waiting clients.
#[derive(Debug, Default)]
pub struct Table {
    limits: Limits,
    values: HashMap<Key, Vec<u8>>,
    queues: HashMap<Key, VecDeque<Vec<u8>>>,
    /// What keys, values and queues take, in bytes.
    memory: usize,
    waits: BTreeMap<ClientId, Wait>,
    /// The waiting clients by the one key at which each stands, in order of arrival.
    lines: HashMap<Key, VecDeque<ClientId>>,
    /// Clients that a queue's element has woken and that have asked for nothing since.
    called: BTreeMap<ClientId, Key>,
}

/// What a client waits for.
#[derive(Debug)]
enum Wait {
    /// All keys; it stands at the one with this index, which is absent.
    Keys(Vec<Key>, usize),
    /// The number under a key.
    Count(Key, i64),
}

impl Wait {
    /// The memory of its keys, and of the one in whose line it stands.
    fn memory(&self) -> usize {
        let (all, longest) = match self {
            Wait::Keys(keys, _) => (
                keys.iter().map(|key| PART + key.len()).sum(),
                keys.iter().map(Vec::len).max().unwrap_or_default(),
            ),
            Wait::Count(key, _) => (PART + key.len(), key.len()),
        };
        ENTRY + all + longest
    }
}

/// The memory of a key and its value.
fn entry(key: &[u8], value: usize) -> usize {
    ENTRY + key.len() + value
}

/// The memory of a queue's element, but for its place.
fn element(value: &[u8]) -> usize {
    ALLOCATION + value.len()
}

/// The memory of an empty queue of a name, with room for elements.
fn queue(key: &[u8], room: usize) -> usize {
    ENTRY + key.len() + room * size_of::<Vec<u8>>()
}

impl Table {
    /// An empty table with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The limits that requests are held to.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether `client` waits.
    pub fn is_waiting(&self, client: ClientId) -> bool {
        self.waits.contains_key(&client)
    }

    /// Serves one request. Appends to `replies` what is now answered, to `client` and to clients that waited.
    ///
    /// # Errors
    /// A [`Refusal`]; then nothing has changed.
    pub fn apply(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Vec<(ClientId, Reply)>,
    ) -> Result<(), Refusal> {
        self.limits.check(&request)?;
        let growth = self.growth(&request);
        if growth > 0 {
            self.limits.part(Part::Store, &[], self.memory + growth, self.limits.store_bytes)?;
        }
        if matches!(request, Request::MultiGet { .. } | Request::ListKeys) {
            let (_, bytes) = self.reply_size(&request);
            self.limits.part(Part::Reply, &[], bytes, self.limits.request_bytes)?;
        }
        let called = match request {
            Request::Ping { .. } => None,
            _ => self.called.remove(&client),
        };
        let outcome = self.serve(client, request, replies);
        if let Some(queue) = called {
            self.call_next(&queue, replies);
        }
        outcome
    }

    fn serve(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Vec<(ClientId, Reply)>,
    ) -> Result<(), Refusal> {
        let reply = match request {
            Request::Set { key, value } => {
                self.put(key, value, replies);
                return Ok(());
            }
            Request::MultiSet { entries } => {
                for (key, value) in entries {
                    self.put(key, value, replies);
                }
                return Ok(());
            }
            Request::Append { key, value } => {
                let held = self.values.get_mut(&key);
                let length = held.as_ref().map_or(0, |held| held.len()) + value.len();
                self.limits.value(&key, length)?;
                let Some(held) = held else {
                    self.put(key, value, replies);
                    return Ok(());
                };
                held.reserve_exact(value.len());
                held.extend_from_slice(&value);
                self.memory += value.len();
                self.wake(&key, replies);
                return Ok(());
            }
            Request::CompareSet { key, expected, new } => match self.values.get(&key) {
                Some(held) if *held != expected => Reply::Bytes(held.clone()),
                None if !expected.is_empty() => Reply::Bytes(expected),
                _ => {
                    self.put(key, new.clone(), replies);
                    Reply::Bytes(new)
                }
            },
            Request::Get { key } => Reply::Bytes(self.values.get(&key).cloned().unwrap_or_default()),
            Request::Add { key, delta } => Reply::Integer(self.add(key, delta, replies)?),
            Request::Check { keys } => Reply::Status(keys.iter().any(|key| !self.is_there(key)).into()),
            Request::Wait { keys } => return self.wait(client, Wait::Keys(keys, 0), replies),
            Request::Barrier { key, world } => {
                if self.waits.contains_key(&client) {
                    return Err(Refusal::AlreadyWaiting);
                }
                self.add(key.clone(), 1, replies)?;
                return self.wait(client, Wait::Count(key, world), replies);
            }
            Request::CancelWait => {
                self.stop_waiting(client);
                Reply::Status(1)
            }
            Request::NumKeys => Reply::Integer(self.values.len() as i64),
            Request::Delete { key } => {
                let removed = self.values.remove(&key);
                self.memory -= removed.as_ref().map_or(0, |value| entry(&key, value.len()));
                if is_sparse(self.values.capacity(), self.values.len()) {
                    self.values.shrink_to(self.values.len() * 2);
                }
                Reply::Integer(removed.is_some().into())
            }
            Request::MultiGet { keys } => Reply::Values(
                keys.iter().map(|key| self.values.get(key).cloned().unwrap_or_default()).collect(),
            ),
            Request::Ping { nonce } => Reply::Nonce(nonce),
            Request::QueuePush { key, value } => {
                let there = self.queues.get(&key).map_or(0, |elements| queue(&key, elements.capacity()));
                let elements = self.queues.entry(key.clone()).or_default();
                self.memory += element(&value);
                elements.push_back(value);
                self.memory += queue(&key, elements.capacity()) - there;
                self.call_next(&key, replies);
                return Ok(());
            }
            Request::QueuePop { key } => Reply::Popped(self.pop(&key)),
            Request::QueueLen { key } => Reply::Integer(self.queue_len(&key) as i64),
            Request::ListKeys => {
                let mut keys: Vec<_> = self.values.keys().cloned().collect();
                // The order of the map differs from run to run.
                keys.sort_unstable();
                Reply::Keys(keys)
            }
        };
        replies.push((client, reply));
        Ok(())
    }

    /// Forgets a client that has gone: its wait, and a queue's element that it was woken for.
    pub fn leave(&mut self, client: ClientId, replies: &mut Vec<(ClientId, Reply)>) {
        self.stop_waiting(client);
        if let Some(queue) = self.called.remove(&client) {
            self.call_next(&queue, replies);
        }
    }

    /// The memory that keys, values and queues take, in bytes: their own, and what keeping them costs. It is what
    /// [`Limits::store_bytes`] bounds.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The memory that the wait of `client` takes, in bytes: it is no part of [`memory`](Self::memory).
    pub(super) fn wait_memory(&self, client: ClientId) -> usize {
        let called = self.called.get(&client).map_or(0, |key| ALLOCATION + key.len());
        called + self.waits.get(&client).map_or(0, Wait::memory)
    }

    /// By how much the table may grow when it serves a request, in bytes; never less than it does.
    pub(super) fn growth(&self, request: &Request) -> usize {
        let put = |key: &Key, value: usize| {
            let held = self.values.get(key).map_or(0, |held| entry(key, held.len()));
            entry(key, value).saturating_sub(held)
        };
        match request {
            Request::Set { key, value } | Request::CompareSet { key, new: value, .. } => {
                put(key, value.len())
            }
            Request::MultiSet { entries } => entries.iter().map(|(key, value)| put(key, value.len())).sum(),
            Request::Append { key, value } => match self.values.contains_key(key) {
                true => value.len(),
                false => entry(key, value.len()),
            },
            Request::Add { key, .. } | Request::Barrier { key, .. } => put(key, DIGITS),
            Request::QueuePush { key, value } => {
                // A queue that is full doubles, and has four places at least.
                let room = |elements: &VecDeque<_>| match elements.capacity() - elements.len() {
                    0 => elements.len().max(4) * size_of::<Vec<u8>>(),
                    _ => 0,
                };
                element(value) + self.queues.get(key).map_or_else(|| queue(key, 4), room)
            }
            _ => 0,
        }
    }

    /// How many strings a reply has, and their bytes with the lengths before them; of one that is always small, nothing.
    pub(super) fn reply_size(&self, request: &Request) -> (usize, usize) {
        const LENGTH: usize = size_of::<u64>();
        let value = |key: &Key| LENGTH + self.values.get(key).map_or(0, Vec::len);
        match request {
            Request::Get { key } => (1, value(key)),
            Request::CompareSet { key, expected, new } => {
                (1, value(key).max(LENGTH + expected.len().max(new.len())))
            }
            Request::MultiGet { keys } => (keys.len(), keys.iter().map(value).sum()),
            Request::ListKeys => {
                (self.values.len(), self.values.keys().map(|key| LENGTH + key.len()).sum::<usize>() + LENGTH)
            }
            Request::QueuePop { key } => {
                let first = self.queues.get(key).and_then(VecDeque::front);
                (1, LENGTH + LENGTH + first.map_or(0, Vec::len))
            }
            _ => (0, 0),
        }
    }

    /// Of the keys that `client` waits for, those that are absent.
    pub fn missing(&self, client: ClientId) -> Vec<Vec<u8>> {
        match self.waits.get(&client) {
            Some(Wait::Keys(keys, _)) => keys.iter().filter(|key| !self.is_there(key)).cloned().collect(),
            Some(Wait::Count(key, _)) => vec![key.clone()],
            None => Vec::new(),
        }
    }

    /// Whether `key` has a value, or a queue of its name is not empty.
    pub fn is_there(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    /// The value of `key`.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Sets a value and wakes those who waited for nothing else.
    fn put(&mut self, key: Key, value: Vec<u8>, replies: &mut Vec<(ClientId, Reply)>) {
        self.memory += entry(&key, value.len());
        match self.values.get_mut(&key) {
            Some(held) => {
                self.memory -= entry(&key, held.len());
                *held = value;
                self.wake(&key, replies);
            }
            None => {
                let line = self.lines.remove(&key);
                self.values.insert(key, value);
                self.advance_all(line, replies);
            }
        }
    }

    /// Lets those in a key's line see that it has changed.
    fn wake(&mut self, key: &[u8], replies: &mut Vec<(ClientId, Reply)>) {
        if !self.lines.is_empty() {
            let line = self.lines.remove(key);
            self.advance_all(line, replies);
        }
    }

    fn advance_all(&mut self, line: Option<VecDeque<ClientId>>, replies: &mut Vec<(ClientId, Reply)>) {
        for client in line.into_iter().flatten() {
            if self.advance(client) {
                replies.push((client, Reply::Status(0)));
            }
        }
    }

    fn add(&mut self, key: Key, delta: i64, replies: &mut Vec<(ClientId, Reply)>) -> Result<i64, Refusal> {
        let held = self.values.get(&key).map(Vec::as_slice);
        let sum = held.map_or(Some(0), leading_integer).and_then(|number| number.checked_add(delta));
        let Some(sum) = sum else {
            let value = held.unwrap_or_default();
            return Err(Refusal::NotANumber { value: value[..value.len().min(64)].to_vec(), key });
        };
        self.put(key, sum.to_string().into_bytes(), replies);
        Ok(sum)
    }

    /// An empty queue is no queue: `is_there` and the memory of the table rely on it.
    fn pop(&mut self, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let elements = self.queues.get_mut(key)?;
        let before = elements.len() as u64;
        self.memory -= queue(key, elements.capacity());
        let value = elements.pop_front();
        if is_sparse(elements.capacity(), elements.len()) {
            elements.shrink_to(elements.len() * 2);
        }
        if elements.is_empty() {
            self.queues.remove(key);
            if is_sparse(self.queues.capacity(), self.queues.len()) {
                self.queues.shrink_to(self.queues.len() * 2);
            }
        } else {
            self.memory += queue(key, elements.capacity());
        }
        let value = value?;
        self.memory -= element(&value);
        Some((before, value))
    }

    fn wait(
        &mut self,
        client: ClientId,
        wait: Wait,
        replies: &mut Vec<(ClientId, Reply)>,
    ) -> Result<(), Refusal> {
        if self.waits.contains_key(&client) {
            return Err(Refusal::AlreadyWaiting);
        }
        self.waits.insert(client, wait);
        if self.advance(client) {
            replies.push((client, Reply::Status(0)));
        }
        Ok(())
    }

    /// Ends the wait of a client that stands in no line if all is there, else stands it in the next line.
    fn advance(&mut self, client: ClientId) -> bool {
        let stand_at = match self.waits.get(&client) {
            None => return false,
            Some(Wait::Keys(keys, from)) => {
                // Keys come in any order and may be deleted meanwhile: all are looked at again, those not seen yet first.
                let order = (*from..keys.len()).chain(0..*from);
                order.into_iter().find(|&i| !self.is_there(&keys[i])).map(|i| (keys[i].clone(), i))
            }
            Some(Wait::Count(key, at_least)) => {
                let count = self.values.get(key).and_then(|value| leading_integer(value));
                (count < Some(*at_least)).then(|| (key.clone(), 0))
            }
        };
        match stand_at {
            None => {
                self.waits.remove(&client);
                true
            }
            Some((key, index)) => {
                if let Some(Wait::Keys(_, from)) = self.waits.get_mut(&client) {
                    *from = index;
                }
                self.lines.entry(key).or_default().push_back(client);
                false
            }
        }
    }

    fn stop_waiting(&mut self, client: ClientId) {
        let key = match self.waits.remove(&client) {
            Some(Wait::Keys(mut keys, at)) => keys.swap_remove(at),
            Some(Wait::Count(key, _)) => key,
            None => return,
        };
        if let Some(line) = self.lines.get_mut(&key) {
            line.retain(|other| *other != client);
            if is_sparse(line.capacity(), line.len()) {
                line.shrink_to(line.len() * 2);
            }
            if line.is_empty() {
                self.lines.remove(&key);
            }
        }
    }

    /// Wakes as many of those who stand at a queue as it has elements for which nobody was woken.
    fn call_next(&mut self, key: &[u8], replies: &mut Vec<(ClientId, Reply)>) {
        let called = self.called.values().filter(|queue| *queue == key).count();
        let mut elements = self.queue_len(key).saturating_sub(called);
        let line = if elements > 0 { self.lines.remove(key) } else { None };
        let mut staying = VecDeque::new();
        for client in line.into_iter().flatten() {
            if elements == 0 || matches!(self.waits.get(&client), Some(Wait::Count(..))) {
                staying.push_back(client);
            } else if self.advance(client) {
                self.called.insert(client, key.to_vec());
                replies.push((client, Reply::Status(0)));
                elements -= 1;
            }
        }
        if !staying.is_empty() {
            // Nobody has joined this line meanwhile: with elements in the queue its key is there.
            self.lines.insert(key.to_vec(), staying);
        }
    }
}

/// The integer at the start of a value, read as C's `strtoll` does.
fn leading_integer(value: &[u8]) -> Option<i64> {
    let blanks = value.iter().take_while(|byte| matches!(byte, b' ' | 9..=13)).count();
    let text = &value[blanks..];
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
