//! Requests of clients, replies and refusals of stores, and the limits on the sizes of requests, replies and contents.

/// The id of a client, assigned by the caller of the state machine. An id must never be used for a second client.
pub type ClientId = u64;

/// The bytes of a key, without the length that precedes them on the wire.
pub(super) type Key = Vec<u8>;

/// A request to a store. Keys are bytes, because the protocol does not guarantee UTF-8.
///
/// A value and a queue can have the same key. A key *exists* if it has a value or a non-empty queue. Only `Wait` and
/// `Barrier` wait. A [`Server`](super::Server) may serve other clients in the middle of a large `Check`, `MultiGet`,
/// `MultiSet` or `ListKeys`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Sets the value of a key. No reply.
    Set {
        /// The key.
        key: Vec<u8>,
        /// The new value.
        value: Vec<u8>,
    },
    /// Sets the value of a key if the key has the expected value. Answered by [`Reply::Bytes`]: the new value if it was
    /// set, otherwise the current value, or `expected` if the key has no value.
    CompareSet {
        /// The key.
        key: Vec<u8>,
        /// The value that the key must have. If it is empty, a key without a value matches too.
        expected: Vec<u8>,
        /// The new value.
        new: Vec<u8>,
    },
    /// Reads a value. Answered by [`Reply::Bytes`], which is empty if the key has no value.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Adds to the decimal number at the start of a value. The sum becomes the value. A key without a value counts as
    /// 0. Answered by [`Reply::Integer`]: the sum. Refused with [`Refusal::NotANumber`] if the value does not begin
    /// with a number or the sum overflows.
    Add {
        /// The key.
        key: Vec<u8>,
        /// The number to add.
        delta: i64,
    },
    /// Checks that all keys exist. Answered by [`Reply::Status`]: 0 if all exist, otherwise 1.
    Check {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Waits until all keys exist. Answered by [`Reply::Status`] 0 at the end of the wait. Refused with
    /// [`Refusal::AlreadyWaiting`] if the client is already in a wait or a barrier.
    ///
    /// With up to 1,024 keys, the wait ends when all keys exist at the same time. With more keys, it ends when each key
    /// has existed at some time during the wait, even if it was deleted later. In both cases, the key whose change has
    /// woken the client is not checked again. So if this key is deleted before the client's next turn in a
    /// [`Server`](super::Server), the wait can end although the key is absent.
    Wait {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Counts the keys that have a value. Answered by [`Reply::Integer`].
    NumKeys,
    /// Removes the value of a key. A queue of the same key stays. Answered by [`Reply::Integer`]: 1 if there was a
    /// value, 0 if not.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Appends to the value of a key, or sets it if the key has none. No reply.
    Append {
        /// The key.
        key: Vec<u8>,
        /// The bytes to append.
        value: Vec<u8>,
    },
    /// Reads several values. Answered by [`Reply::Values`], with an empty value for each key that has none.
    MultiGet {
        /// The keys.
        keys: Vec<Vec<u8>>,
    },
    /// Sets the values of several keys, in order. No reply.
    MultiSet {
        /// Each key with its new value.
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Cancels the client's wait or barrier, if there is one. Answered by [`Reply::Status`] 1 in both cases. The
    /// cancelled request gets no reply.
    CancelWait,
    /// Does nothing. Answered by [`Reply::Nonce`] with the same number, even while the client waits.
    Ping {
        /// The number that the reply repeats.
        nonce: u32,
    },
    /// Appends an element to a queue. No reply.
    QueuePush {
        /// The queue's key.
        key: Vec<u8>,
        /// The new last element.
        value: Vec<u8>,
    },
    /// Takes a queue's first element, without waiting for one. Answered by [`Reply::Popped`].
    QueuePop {
        /// The queue's key.
        key: Vec<u8>,
    },
    /// Reads a queue's length. Answered by [`Reply::Integer`], which is 0 if there is no such queue.
    QueueLen {
        /// The queue's key.
        key: Vec<u8>,
    },
    /// Lists the keys that have a value. Answered by [`Reply::Keys`].
    ListKeys,
    /// Adds 1 to the number under a key, and waits until the number is at least `world`. Answered by
    /// [`Reply::Status`] 0 at the end of the wait. The number stays, so a later barrier with the same key and `world`
    /// ends at once. Refused like `Add` and `Wait`.
    Barrier {
        /// The key.
        key: Vec<u8>,
        /// The number to wait for: usually the number of clients that enter the barrier.
        world: i64,
    },
}

impl Request {
    /// Returns the request's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Set { .. } => "set",
            Request::CompareSet { .. } => "compare_set",
            Request::Get { .. } => "get",
            Request::Add { .. } => "add",
            Request::Check { .. } => "check",
            Request::Wait { .. } => "wait",
            Request::NumKeys => "num_keys",
            Request::Delete { .. } => "delete",
            Request::Append { .. } => "append",
            Request::MultiGet { .. } => "multi_get",
            Request::MultiSet { .. } => "multi_set",
            Request::CancelWait => "cancel_wait",
            Request::Ping { .. } => "ping",
            Request::QueuePush { .. } => "queue_push",
            Request::QueuePop { .. } => "queue_pop",
            Request::QueueLen { .. } => "queue_len",
            Request::ListKeys => "list_keys",
            Request::Barrier { .. } => "barrier",
        }
    }

    /// Applies `change` to every key of the request.
    pub fn for_each_key(&mut self, change: impl FnMut(&mut Vec<u8>)) {
        match self {
            Request::Set { key, .. }
            | Request::CompareSet { key, .. }
            | Request::Get { key }
            | Request::Add { key, .. }
            | Request::Delete { key }
            | Request::Append { key, .. }
            | Request::QueuePush { key, .. }
            | Request::QueuePop { key }
            | Request::QueueLen { key }
            | Request::Barrier { key, .. } => std::iter::once(key).for_each(change),
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                keys.iter_mut().for_each(change);
            }
            Request::MultiSet { entries } => entries.iter_mut().map(|(key, _)| key).for_each(change),
            Request::NumKeys | Request::CancelWait | Request::Ping { .. } | Request::ListKeys => {}
        }
    }
}

/// A store's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// A value.
    Bytes(Vec<u8>),
    /// A count or a sum.
    Integer(i64),
    /// 0 or 1. Each [`Request`] that has this reply says what it means.
    Status(u8),
    /// Values, in the order of the requested keys.
    Values(Vec<Vec<u8>>),
    /// Keys. A [`Table`](super::Table) returns them in ascending order, PyTorch's servers in any order.
    Keys(Vec<Vec<u8>>),
    /// The number of the [`Request::Ping`].
    Nonce(u32),
    /// The queue's length before the pop, and the element that was its first. `None` if the queue was empty.
    Popped(Option<(u64, Vec<u8>)>),
}

/// The largest sizes that a store accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a key.
    pub key_bytes: usize,
    /// The most bytes of a value, including appended bytes.
    pub value_bytes: usize,
    /// The most keys of one request.
    pub keys_per_request: usize,
    /// The most bytes of all keys and values of one request together. This is also the limit for one reply.
    pub request_bytes: usize,
    /// The most memory for a store's contents, in bytes: keys, the capacity of values, and queues. The overhead counts
    /// too: 384 bytes for each value and each queue, and 104 bytes for each element of a queue. For a
    /// [`FileStore`](crate::store::FileStore), the most bytes of the file instead.
    pub store_bytes: usize,
}

impl Default for Limits {
    /// The limits of PyTorch's server: 8 KiB per key, 8 MiB per value, and 131,072 keys per request. The other limits
    /// are 256 MiB per request and 1 GiB per store.
    fn default() -> Self {
        Self {
            key_bytes: 8 << 10,
            value_bytes: 8 << 20,
            keys_per_request: 128 << 10,
            request_bytes: 256 << 20,
            store_bytes: 1 << 30,
        }
    }
}

/// The reason why a request is refused. A refused request has not changed the store, with one exception: a
/// [`Server`](super::Server) may have set a part of the keys of a large `MultiSet`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A limit would be exceeded by the request, by its reply, or by a value or the store's contents after the request.
    /// For the contents, an upper bound of their growth is checked.
    #[error("{part} of {size} exceeds the limit of {limit}")]
    TooLarge {
        /// The quantity that is too large.
        part: Part,
        /// If a value is too large, its key. If a key is too large, the key's first 64 bytes. Empty if another quantity
        /// is too large, or if a [`Server`](super::Server) has refused a key by its length, before it read the key.
        key: Vec<u8>,
        /// The size found, in the unit of `part`.
        size: usize,
        /// The largest size that is accepted.
        limit: usize,
    },
    /// The value to add to does not begin with a 64-bit integer, or the sum does not fit in one.
    #[error(
        "{:?} holds {:?}, and the sum is no 64-bit integer",
        String::from_utf8_lossy(key),
        String::from_utf8_lossy(value)
    )]
    NotANumber {
        /// The key.
        key: Vec<u8>,
        /// The first bytes of its value, at most 64.
        value: Vec<u8>,
    },
    /// The client has sent a `Wait` or a `Barrier` while an earlier one has not ended.
    #[error("a second wait on a connection that waits already")]
    AlreadyWaiting,
}

/// A quantity that [`Limits`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A key, in bytes.
    Key,
    /// A value, in bytes.
    Value,
    /// The number of keys.
    Keys,
    /// The keys and values of a request together, in bytes.
    Request,
    /// The keys or values of a reply together, in bytes of the wire format.
    Reply,
    /// The store's contents, in bytes of memory. For a [`FileStore`](crate::store::FileStore), the bytes of the file.
    Store,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Key => "a key",
            Part::Value => "a value",
            Part::Keys => "the number of keys",
            Part::Request => "a request",
            Part::Reply => "a reply",
            Part::Store => "a store",
        })
    }
}

impl Limits {
    /// Checks the length of a value of `size` bytes. `key` is its key, for the error.
    pub(super) fn value(&self, key: &[u8], size: usize) -> Result<(), Refusal> {
        self.part(Part::Value, key, size, self.value_bytes)
    }

    /// Returns [`Refusal::TooLarge`] if `size` exceeds `limit`. `part` and `key` describe the quantity in the error.
    pub(super) fn part(&self, part: Part, key: &[u8], size: usize, limit: usize) -> Result<(), Refusal> {
        if size <= limit { Ok(()) } else { Err(Refusal::TooLarge { part, key: key.to_vec(), size, limit }) }
    }
}
