//! The wire format of PyTorch's store protocol. Numbers are little endian. Messages have no frames and no sequence
//! numbers: the server answers a client's requests in order. Only a `Wait` or `Barrier` may be answered after later
//! requests.
//!
//! A key or a value is a *string*: a `u64` length and the bytes. A list is a `u64` count and its strings. The count of
//! a `MultiSet` is the number of pairs. The reply to a `MultiGet` has no count, because the client knows the number of
//! keys. Decoders accept bytes in any fragmentation, and check the length of every string before they allocate the
//! string.

use super::{
    budget::{Budget, copying},
    memory::PART,
    request::{Limits, Part, Refusal, Reply, Request},
};

/// The number in the greeting of a client without a secret. It follows the type byte [`kind::VALIDATE`].
pub(super) const MAGIC: u32 = 0x3C85_F7CE;

/// Returns the first bytes of a client without a secret: [`kind::VALIDATE`] and [`MAGIC`].
pub(in crate::store) fn greeting() -> Vec<u8> {
    [&[kind::VALIDATE], &MAGIC.to_le_bytes()[..]].concat()
}

/// The type bytes: `VALIDATE` begins the greeting, each of the others a request.
pub(super) mod kind {
    pub(in super::super) const VALIDATE: u8 = 0;
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const ADD: u8 = 4;
    pub(super) const CHECK: u8 = 5;
    pub(super) const WAIT: u8 = 6;
    pub(super) const NUM_KEYS: u8 = 7;
    pub(super) const DELETE: u8 = 8;
    pub(super) const APPEND: u8 = 9;
    pub(super) const MULTI_GET: u8 = 10;
    pub(super) const MULTI_SET: u8 = 11;
    pub(super) const CANCEL_WAIT: u8 = 12;
    pub(super) const PING: u8 = 13;
    pub(super) const QUEUE_PUSH: u8 = 14;
    pub(super) const QUEUE_POP: u8 = 15;
    pub(super) const QUEUE_LEN: u8 = 16;
    pub(super) const LIST_KEYS: u8 = 17;
    pub(super) const BARRIER: u8 = 18;
}

impl Request {
    /// Appends the request in wire format to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Request::Set { key, value } => strings(out, kind::SET, [key, value]),
            Request::CompareSet { key, expected, new } => {
                strings(out, kind::COMPARE_SET, [key, expected, new]);
            }
            Request::Get { key } => strings(out, kind::GET, [key]),
            Request::Add { key, delta } => {
                strings(out, kind::ADD, [key]);
                out.extend_from_slice(&delta.to_le_bytes());
            }
            Request::Check { keys } => list(out, kind::CHECK, keys),
            Request::Wait { keys } => list(out, kind::WAIT, keys),
            Request::NumKeys => out.push(kind::NUM_KEYS),
            Request::Delete { key } => strings(out, kind::DELETE, [key]),
            Request::Append { key, value } => strings(out, kind::APPEND, [key, value]),
            Request::MultiGet { keys } => list(out, kind::MULTI_GET, keys),
            Request::MultiSet { entries } => {
                out.push(kind::MULTI_SET);
                out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
                for (key, value) in entries {
                    string(out, key);
                    string(out, value);
                }
            }
            Request::CancelWait => out.push(kind::CANCEL_WAIT),
            Request::Ping { nonce } => {
                out.push(kind::PING);
                out.extend_from_slice(&nonce.to_le_bytes());
            }
            Request::QueuePush { key, value } => strings(out, kind::QUEUE_PUSH, [key, value]),
            Request::QueuePop { key } => strings(out, kind::QUEUE_POP, [key]),
            Request::QueueLen { key } => strings(out, kind::QUEUE_LEN, [key]),
            Request::ListKeys => out.push(kind::LIST_KEYS),
            Request::Barrier { key, world } => {
                strings(out, kind::BARRIER, [key]);
                out.extend_from_slice(&world.to_le_bytes());
            }
        }
    }
}

impl Reply {
    /// Appends the reply in wire format to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Bytes(value) => string(out, value),
            Reply::Integer(number) => out.extend_from_slice(&number.to_le_bytes()),
            Reply::Status(status) => out.push(*status),
            Reply::Values(values) => values.iter().for_each(|value| string(out, value)),
            Reply::Keys(keys) => {
                out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| string(out, key));
            }
            Reply::Nonce(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
            Reply::Popped(None) => out.extend_from_slice(&0i64.to_le_bytes()),
            Reply::Popped(Some((before, value))) => {
                out.extend_from_slice(&before.to_le_bytes());
                string(out, value);
            }
        }
    }
}

/// Appends the length and the bytes of a string.
pub(super) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn strings<const N: usize>(out: &mut Vec<u8>, kind: u8, parts: [&Vec<u8>; N]) {
    out.push(kind);
    parts.into_iter().for_each(|part| string(out, part));
}

fn list(out: &mut Vec<u8>, kind: u8, keys: &[Vec<u8>]) {
    out.push(kind);
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    keys.iter().for_each(|key| string(out, key));
}

/// A byte queue: bytes are removed at its front and added at its end.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// The number of bytes at the start of `bytes` that were removed from the queue.
    start: usize,
}

impl Buffer {
    /// The largest capacity, in bytes, that an empty buffer keeps. It is small because a server has two buffers for
    /// each connection, and most of them are empty.
    const KEPT: usize = 1 << 10;

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.end().extend_from_slice(bytes);
    }

    /// Appends the length and the bytes of a string.
    pub(super) fn string(&mut self, bytes: &[u8]) {
        string(self.end(), bytes);
    }

    /// Returns the vector to append bytes to. The caller must not change the bytes in it.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        // Bytes are moved only if at least as many were removed since the last move, so the average cost of a byte is
        // constant.
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        &mut self.bytes
    }

    /// Returns the bytes that were not removed.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Returns the size of the allocation, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the largest size of the new allocation that appending `bytes` more bytes may need; 0 if they fit. The
    /// old allocation is freed only after its bytes were copied, so the whole new one counts as additional memory.
    pub(super) fn growth(&self, bytes: usize) -> usize {
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        if length + bytes <= capacity { 0 } else { (capacity * 2).max(length + bytes) }
    }

    /// Removes `count` bytes from the front, or all bytes if there are fewer.
    pub(super) fn skip(&mut self, count: usize) {
        self.start = self.bytes.len().min(self.start + count);
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(Self::KEPT);
            self.start = 0;
        }
    }

    /// Removes and returns `N` bytes from the front. Returns `None`, and removes nothing, if there are fewer.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let array = *self.as_slice().first_chunk()?;
        self.skip(N);
        Some(array)
    }
}

/// Decodes strings that arrive one after the other. The bytes of a string are moved from the buffer to an allocation of
/// the string's length as they arrive, so a long string that arrives in fragments is not collected in the buffer first.
#[derive(Default)]
struct Strings {
    /// The complete strings.
    whole: Vec<Vec<u8>>,
    /// The bytes of the incomplete string that have arrived, and its full length.
    begun: Option<(Vec<u8>, usize)>,
    /// The sum of the lengths of all strings, including the full length of the incomplete one.
    bytes: usize,
}

impl Strings {
    /// Takes strings from the buffer until there are `count`, the buffer has too few bytes, or the budget is spent
    /// before the next string. Returns which of these was the case.
    ///
    /// Calls `check` before it allocates memory for a string. The arguments are the earlier strings, the sum of all
    /// lengths including this string's, and this string's length. Returns the error if `check` fails.
    fn fill<E>(
        &mut self,
        buffer: &mut Buffer,
        count: usize,
        budget: &mut Budget,
        check: impl Fn(&[Vec<u8>], usize, usize) -> Result<(), E>,
    ) -> Result<Filled, E> {
        while self.whole.len() < count {
            let (mut string, length) = match self.begun.take() {
                Some(begun) => begun,
                None if budget.is_spent() => return Ok(Filled::Unfinished),
                None => {
                    let Some(length) = buffer.array().map(u64::from_le_bytes) else {
                        return Ok(Filled::Incomplete);
                    };
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let bytes = self.bytes.saturating_add(length);
                    check(&self.whole, bytes, length)?;
                    self.bytes = bytes;
                    (Vec::with_capacity(length), length)
                }
            };
            let there = buffer.as_slice();
            let there = &there[..there.len().min(length - string.len())];
            string.extend_from_slice(there);
            budget.spend(1 + copying(there.len()));
            buffer.skip(there.len());
            if string.len() < length {
                self.begun = Some((string, length));
                return Ok(Filled::Incomplete);
            }
            self.whole.push(string);
        }
        Ok(Filled::Complete)
    }

    /// Removes and returns the complete strings. There must be no incomplete one.
    fn take(&mut self) -> Vec<Vec<u8>> {
        self.bytes = 0;
        std::mem::take(&mut self.whole)
    }

    /// Returns the memory of the strings, in bytes.
    fn memory(&self) -> usize {
        self.bytes + self.whole.capacity() * PART
    }
}

/// The reason why [`Strings::fill`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// There are as many strings as requested.
    Complete,
    /// More bytes must arrive.
    Incomplete,
    /// The budget is spent.
    Unfinished,
}

/// The reason why received bytes are not an acceptable request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// The type byte is not that of a request.
    #[error("type byte {0} is no request")]
    Unknown(u8),
    /// The request exceeds a limit.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Decodes requests from a stream of bytes.
#[derive(Default)]
pub(super) struct RequestDecoder {
    /// The received bytes that were not decoded yet.
    pub(super) buffer: Buffer,
    /// The incomplete request, if its type byte was decoded.
    begun: Option<Begun>,
}

/// An incomplete request.
struct Begun {
    /// The type byte.
    kind: u8,
    shape: Shape,
    /// The number of strings in the request; `None` until the count of a list has arrived.
    expected: Option<usize>,
    strings: Strings,
}

/// The parts of a request after its type byte: the count of a list, strings, and a number, as far as the request has
/// them.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// True if a count comes first, and the `strings` are repeated that many times.
    list: bool,
    /// The number of strings: a key and the values that follow it, or 0.
    strings: usize,
    /// The size of the number at the end, in bytes; 0 if there is none.
    number: usize,
}

impl Shape {
    /// Returns the shape of requests with this type byte; `None` if it is not that of a request.
    fn of(request: u8) -> Option<Self> {
        let shape = |list, strings, number| Some(Self { list, strings, number });
        match request {
            kind::NUM_KEYS | kind::CANCEL_WAIT | kind::LIST_KEYS => shape(false, 0, 0),
            kind::PING => shape(false, 0, 4),
            kind::GET | kind::DELETE | kind::QUEUE_POP | kind::QUEUE_LEN => shape(false, 1, 0),
            kind::ADD | kind::BARRIER => shape(false, 1, 8),
            kind::SET | kind::APPEND | kind::QUEUE_PUSH => shape(false, 2, 0),
            kind::COMPARE_SET => shape(false, 3, 0),
            kind::CHECK | kind::WAIT | kind::MULTI_GET => shape(true, 1, 0),
            kind::MULTI_SET => shape(true, 2, 0),
            _ => None,
        }
    }
}

/// The result of decoding the received bytes. A complete request comes with the memory of its strings, in bytes.
pub(super) enum Decoded {
    /// A request other than a `MultiSet`.
    Request(Request, usize),
    /// A `MultiSet`: its first key, its first value, its second key, and so on.
    Entries(Vec<Vec<u8>>, usize),
    /// More bytes must arrive.
    Incomplete,
    /// The budget is spent. Call [`next`](RequestDecoder::next) again with a new budget.
    Unfinished,
}

impl RequestDecoder {
    /// Decodes received bytes as far as the budget allows, and returns the next request if it is complete.
    ///
    /// # Errors
    /// [`Malformed`] if the type byte is unknown, or as soon as a count or a length exceeds `limits`. The decoder must
    /// not be used afterwards.
    pub(super) fn next(&mut self, limits: &Limits, budget: &mut Budget) -> Result<Decoded, Malformed> {
        let begun = match &mut self.begun {
            Some(begun) => begun,
            _ if budget.is_spent() => return Ok(Decoded::Unfinished),
            none => {
                let Some([kind]) = self.buffer.array() else { return Ok(Decoded::Incomplete) };
                budget.spend(1);
                let shape = Shape::of(kind).ok_or(Malformed::Unknown(kind))?;
                let expected = (!shape.list).then_some(shape.strings);
                none.insert(Begun { kind, shape, expected, strings: Strings::default() })
            }
        };
        let expected = match begun.expected {
            Some(expected) => expected,
            None => {
                let Some(count) = self.buffer.array().map(u64::from_le_bytes) else {
                    return Ok(Decoded::Incomplete);
                };
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                limits.part(Part::Keys, &[], count, limits.keys_per_request)?;
                *begun.expected.insert(count * begun.shape.strings)
            }
        };
        let stride = begun.shape.strings;
        let filled = begun.strings.fill(&mut self.buffer, expected, budget, |before, bytes, length| {
            match before.get(before.len() - before.len() % stride) {
                None => limits.part(Part::Key, &[], length, limits.key_bytes)?,
                Some(key) => limits.value(key, length)?,
            }
            limits.part(Part::Request, &[], bytes, limits.request_bytes)
        })?;
        match filled {
            Filled::Complete => {}
            Filled::Incomplete => return Ok(Decoded::Incomplete),
            Filled::Unfinished => return Ok(Decoded::Unfinished),
        }
        let number = match begun.shape.number {
            0 => Some(0),
            4 => self.buffer.array().map(|bytes| u32::from_le_bytes(bytes).into()),
            _ => self.buffer.array().map(i64::from_le_bytes),
        };
        let (Some(number), Some(mut whole)) = (number, self.begun.take_if(|_| number.is_some())) else {
            return Ok(Decoded::Incomplete);
        };
        let memory = whole.strings.memory();
        let strings = whole.strings.take();
        if whole.kind == kind::MULTI_SET {
            return Ok(Decoded::Entries(strings, memory));
        }
        let request = build(whole.kind, strings, number);
        // `build` returns a request for every kind that has a shape, except `MULTI_SET`, so this never loses one.
        Ok(request.map_or(Decoded::Incomplete, |request| Decoded::Request(request, memory)))
    }

    /// Returns the number of complete strings of the incomplete request.
    pub(super) fn strings(&self) -> usize {
        self.begun.as_ref().map_or(0, |begun| begun.strings.whole.len())
    }

    /// Returns the memory of the buffer and of the incomplete request, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.buffer.memory() + self.begun.as_ref().map_or(0, |begun| begun.strings.memory())
    }
}

/// Builds a request other than a `MultiSet`. `kind` is its type byte, `strings` its strings in wire order, and `number`
/// the number at its end, or 0. Returns `None` if `kind` is not that of such a request.
fn build(kind: u8, strings: Vec<Vec<u8>>, number: i64) -> Option<Request> {
    if matches!(kind, kind::CHECK | kind::WAIT | kind::MULTI_GET) {
        return Some(match kind {
            kind::CHECK => Request::Check { keys: strings },
            kind::WAIT => Request::Wait { keys: strings },
            _ => Request::MultiGet { keys: strings },
        });
    }
    let mut strings = strings.into_iter();
    let mut next = || strings.next().unwrap_or_default();
    Some(match kind {
        kind::SET => Request::Set { key: next(), value: next() },
        kind::COMPARE_SET => Request::CompareSet { key: next(), expected: next(), new: next() },
        kind::GET => Request::Get { key: next() },
        kind::ADD => Request::Add { key: next(), delta: number },
        kind::NUM_KEYS => Request::NumKeys,
        kind::DELETE => Request::Delete { key: next() },
        kind::APPEND => Request::Append { key: next(), value: next() },
        kind::CANCEL_WAIT => Request::CancelWait,
        kind::PING => Request::Ping { nonce: number as u32 },
        kind::QUEUE_PUSH => Request::QueuePush { key: next(), value: next() },
        kind::QUEUE_POP => Request::QueuePop { key: next() },
        kind::QUEUE_LEN => Request::QueueLen { key: next() },
        kind::LIST_KEYS => Request::ListKeys,
        kind::BARRIER => Request::Barrier { key: next(), world: number },
        _ => return None,
    })
}

/// The kind of the next reply: a variant of [`Reply`]. The client needs it to decode a reply, because the bytes of a
/// reply do not say its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Bytes,
    Integer,
    Status,
    /// This many values.
    Values(usize),
    Keys,
    Nonce,
    Popped,
}

impl Expect {
    /// Returns the kind of the reply to a request; `None` if the request has no reply.
    pub(super) fn of(request: &Request) -> Option<Self> {
        Some(match request {
            Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. } => return None,
            Request::CompareSet { .. } | Request::Get { .. } => Self::Bytes,
            Request::Add { .. } | Request::NumKeys | Request::Delete { .. } | Request::QueueLen { .. } => {
                Self::Integer
            }
            Request::Check { .. } | Request::Wait { .. } | Request::CancelWait | Request::Barrier { .. } => {
                Self::Status
            }
            Request::MultiGet { keys } => Self::Values(keys.len()),
            Request::Ping { .. } => Self::Nonce,
            Request::QueuePop { .. } => Self::Popped,
            Request::ListKeys => Self::Keys,
        })
    }
}

/// Decodes replies from a stream of bytes.
#[derive(Default)]
pub(super) struct ReplyDecoder {
    /// The received bytes that were not decoded yet.
    pub(super) buffer: Buffer,
    /// The number at the start of an incomplete list or `Popped`, if it was decoded.
    number: Option<u64>,
    /// The strings of the incomplete reply.
    strings: Strings,
}

impl ReplyDecoder {
    /// Decodes the next reply, of the kind `expect`. Returns `None` if more bytes must arrive.
    ///
    /// # Errors
    /// A description of the reply if it exceeds `limits` or is invalid. The decoder must not be used afterwards.
    pub(super) fn next(&mut self, expect: Expect, limits: &Limits) -> Result<Option<Reply>, String> {
        Ok(match expect {
            Expect::Integer => self.buffer.array().map(|bytes| Reply::Integer(i64::from_le_bytes(bytes))),
            Expect::Status => self.buffer.array().map(|[status]| Reply::Status(status)),
            Expect::Nonce => self.buffer.array().map(|bytes| Reply::Nonce(u32::from_le_bytes(bytes))),
            Expect::Bytes => {
                self.strings(1, limits.request_bytes, limits)?.map(|mut value| Reply::Bytes(value.remove(0)))
            }
            Expect::Values(count) => self.strings(count, limits.request_bytes, limits)?.map(Reply::Values),
            Expect::Keys => self.keys(limits)?.map(Reply::Keys),
            Expect::Popped => self.popped(limits)?,
        })
    }

    /// Returns the number at the start of the reply, and keeps it until the reply is complete. `None` if more bytes
    /// must arrive.
    fn number(&mut self) -> Option<u64> {
        self.number = self.number.or_else(|| self.buffer.array().map(u64::from_le_bytes));
        self.number
    }

    /// Returns the next `count` strings; `None` if more bytes must arrive. Fails if they have more than `most` bytes
    /// together, or if one is longer than both the limit on keys and the limit on values.
    fn strings(
        &mut self,
        count: usize,
        most: usize,
        limits: &Limits,
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        let each = limits.value_bytes.max(limits.key_bytes);
        let unlimited = &mut Budget::unlimited();
        let filled = self.strings.fill(&mut self.buffer, count, unlimited, |_, bytes, length| match length {
            _ if length > each => Err(format!("a string of {length} bytes (limit {each})")),
            _ if bytes > most => Err(format!(
                "{bytes} bytes in one reply, of which {most} are allowed (`request_bytes` of `TcpOptions::limits`)"
            )),
            _ => Ok(()),
        })?;
        if filled != Filled::Complete {
            return Ok(None);
        }
        self.number = None;
        Ok(Some(self.strings.take()))
    }

    /// Returns a list of keys; `None` if more bytes must arrive. Fails if the list exceeds `request_bytes`. The
    /// memory overhead of each key counts towards that limit, because the server could otherwise send any number of
    /// short keys.
    fn keys(&mut self, limits: &Limits) -> Result<Option<Vec<Vec<u8>>>, String> {
        let Some(count) = self.number() else { return Ok(None) };
        let (limit, memory) = (limits.request_bytes, count.saturating_mul(PART as u64));
        let Some(most) = usize::try_from(memory).ok().and_then(|memory| limit.checked_sub(memory)) else {
            return Err(format!(
                "a list of {count} keys takes more than {memory} bytes of memory, of which {limit} are allowed \
                 (`request_bytes` of `TcpOptions::limits`)"
            ));
        };
        self.strings(count as usize, most, limits)
    }

    /// Returns the reply to a pop; `None` if more bytes must arrive. Fails if the queue's length is negative, or if the
    /// value exceeds a limit.
    fn popped(&mut self, limits: &Limits) -> Result<Option<Reply>, String> {
        // A value follows only if the queue's length before the pop was greater than 0.
        let Some(before) = self.number() else { return Ok(None) };
        if i64::try_from(before).is_err() {
            return Err(format!("a queue of {} elements", before as i64));
        }
        if before == 0 {
            self.number = None;
            return Ok(Some(Reply::Popped(None)));
        }
        let value = self.strings(1, limits.request_bytes, limits)?;
        Ok(value.map(|mut value| Reply::Popped(Some((before, value.remove(0))))))
    }
}
