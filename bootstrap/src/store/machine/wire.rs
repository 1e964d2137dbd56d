//! The wire format of PyTorch's store protocol. Numbers are little endian. Messages have no frames and no sequence
//! numbers: the server answers a client's requests in order. Only the reply to a `Wait` or a `Barrier` may come after
//! the replies to later requests.
//!
//! A key or a value is a *string*: a `u64` length and the bytes. A list is a `u64` count and its strings. The count of
//! a `MultiSet` is the number of pairs. The reply to a `MultiGet` has no count, because the client knows the number of
//! keys. Decoders accept bytes in any fragmentation, and check the length of every string before they allocate the
//! string.

use super::{
    budget::Budget,
    buffer::{Buffer, Filled, Strings, string},
    memory::PART,
    rejection::Rejection,
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
    /// Returns the type byte, the strings in wire order, and the number at the end, or 0.
    pub(super) fn parts(&self) -> (u8, Vec<&Vec<u8>>, i64) {
        match self {
            Request::Set { key, value } => (kind::SET, vec![key, value], 0),
            Request::CompareSet { key, expected, new } => (kind::COMPARE_SET, vec![key, expected, new], 0),
            Request::Get { key } => (kind::GET, vec![key], 0),
            Request::Add { key, delta } => (kind::ADD, vec![key], *delta),
            Request::Check { keys } => (kind::CHECK, keys.iter().collect(), 0),
            Request::Wait { keys } => (kind::WAIT, keys.iter().collect(), 0),
            Request::NumKeys => (kind::NUM_KEYS, Vec::new(), 0),
            Request::Delete { key } => (kind::DELETE, vec![key], 0),
            Request::Append { key, value } => (kind::APPEND, vec![key, value], 0),
            Request::MultiGet { keys } => (kind::MULTI_GET, keys.iter().collect(), 0),
            Request::MultiSet { entries } => {
                (kind::MULTI_SET, entries.iter().flat_map(|(key, value)| [key, value]).collect(), 0)
            }
            Request::CancelWait => (kind::CANCEL_WAIT, Vec::new(), 0),
            Request::Ping { nonce } => (kind::PING, Vec::new(), (*nonce).into()),
            Request::QueuePush { key, value } => (kind::QUEUE_PUSH, vec![key, value], 0),
            Request::QueuePop { key } => (kind::QUEUE_POP, vec![key], 0),
            Request::QueueLen { key } => (kind::QUEUE_LEN, vec![key], 0),
            Request::ListKeys => (kind::LIST_KEYS, Vec::new(), 0),
            Request::Barrier { key, world } => (kind::BARRIER, vec![key], *world),
        }
    }

    /// Appends the request in wire format to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, strings, number) = self.parts();
        let shape = Shape::of(kind);
        out.push(kind);
        if shape.is_list {
            out.extend_from_slice(&((strings.len() / shape.strings) as u64).to_le_bytes());
        }
        strings.into_iter().for_each(|part| string(out, part));
        out.extend_from_slice(&number.to_le_bytes()[..shape.number]);
    }
}

impl Limits {
    /// Checks the sizes of a request. Call this before a request is passed to a [`Client`](super::Client).
    /// [`Table::apply`](super::Table::apply) calls it itself. A [`Server`](super::Server) does not need it, because it
    /// checks the sizes while the bytes arrive.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if a key, a value, the number of keys, or all keys and values together exceed a limit.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (kind, strings, _) = request.parts();
        let shape = Shape::of(kind);
        if shape.is_list {
            self.part(Part::Keys, &[], strings.len() / shape.strings, self.keys_per_request)?;
        }
        for entry in strings.chunks(shape.strings.max(1)) {
            self.part(Part::Key, &entry[0][..entry[0].len().min(64)], entry[0].len(), self.key_bytes)?;
            entry[1..].iter().try_for_each(|value| self.value(entry[0], value.len()))?;
        }
        let total = strings.iter().map(|string| string.len()).sum();
        self.part(Part::Request, &[], total, self.request_bytes)
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
    is_list: bool,
    /// The number of strings: a key and the values that follow it, or 0.
    strings: usize,
    /// The size of the number at the end, in bytes; 0 if there is none.
    number: usize,
}

impl Shape {
    /// Returns the shape of requests with this type byte, which must be that of a request.
    fn of(request: u8) -> Self {
        let shape = |is_list, strings, number| Self { is_list, strings, number };
        match request {
            kind::PING => shape(false, 0, 4),
            kind::GET | kind::DELETE | kind::QUEUE_POP | kind::QUEUE_LEN => shape(false, 1, 0),
            kind::ADD | kind::BARRIER => shape(false, 1, 8),
            kind::SET | kind::APPEND | kind::QUEUE_PUSH => shape(false, 2, 0),
            kind::COMPARE_SET => shape(false, 3, 0),
            kind::CHECK | kind::WAIT | kind::MULTI_GET => shape(true, 1, 0),
            kind::MULTI_SET => shape(true, 2, 0),
            // `NUM_KEYS`, `CANCEL_WAIT` and `LIST_KEYS`.
            _ => shape(false, 0, 0),
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
    /// [`Rejection::UnknownRequest`] or, as soon as a count or a length exceeds `limits`,
    /// [`Rejection::Refused`]. The decoder must not be used afterwards.
    pub(super) fn next(&mut self, limits: &Limits, budget: &mut Budget) -> Result<Decoded, Rejection> {
        let begun = match &mut self.begun {
            Some(begun) => begun,
            _ if budget.is_spent() => return Ok(Decoded::Unfinished),
            none => {
                let Some([kind]) = self.buffer.array() else { return Ok(Decoded::Incomplete) };
                budget.spend(1);
                if !(kind::SET..=kind::BARRIER).contains(&kind) {
                    return Err(Rejection::UnknownRequest(kind));
                }
                let shape = Shape::of(kind);
                let expected = (!shape.is_list).then_some(shape.strings);
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
        // `build` returns `None` only for `MULTI_SET`, which was handled above. So no request is lost here.
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
        // The number is the queue's length before the pop. A value follows only if that is greater than 0.
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
