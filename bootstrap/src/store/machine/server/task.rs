//! Requests that are being served, and their remaining work.

use std::{collections::VecDeque, vec::IntoIter};

use super::super::{
    budget::copying,
    buffer,
    memory::PART,
    request::{Key, Limits, Part, Refusal, Request},
    table::Table,
};

/// A request that is being served.
pub(super) struct Task {
    pub(super) work: Work,
    /// The memory of the request's strings when it had arrived, in bytes.
    pub(super) request: usize,
}

/// The remaining work of a request.
pub(super) enum Work {
    /// A request that is served in one piece.
    One(Request),
    /// The keys of a `Check` that were not checked yet.
    Check(IntoIter<Key>),
    /// The keys of a `MultiGet` that were not read yet, and the size of the reply so far, in bytes.
    Values(IntoIter<Key>, usize),
    /// The rest of a `MultiSet`: each key, followed by its value.
    Entries(IntoIter<Vec<u8>>),
    /// The reply to a `ListKeys`, as far as it is built and not sent.
    Listing(Listing),
}

impl Task {
    /// Makes the task of a request other than a `MultiSet`. Its strings take `memory` bytes.
    pub(super) fn of(request: Request, memory: usize) -> Self {
        Self { work: Work::of(request), request: memory }
    }

    /// Makes the task of a `MultiSet`. `strings` contains each key, followed by its value. They take `memory` bytes.
    pub(super) fn of_entries(strings: Vec<Vec<u8>>, memory: usize) -> Self {
        Self { work: Work::Entries(strings.into_iter()), request: memory }
    }

    /// Returns the memory of this task, in bytes. For a [`Listing`], counts the pieces that are left. For any other
    /// request, counts all strings of the request, including those already used.
    pub(super) fn memory(&self) -> usize {
        match &self.work {
            Work::Listing(listing) => listing.memory,
            _ => self.request,
        }
    }

    /// Returns the number of strings to free if this task is dropped. Ignores requests without a list, which have at
    /// most three strings.
    pub(super) fn strings(&self) -> usize {
        match &self.work {
            Work::One(Request::Wait { keys }) => keys.len(),
            Work::One(_) => 0,
            Work::Check(strings) | Work::Values(strings, _) | Work::Entries(strings) => strings.len(),
            Work::Listing(listing) => listing.pieces.len(),
        }
    }
}

impl Work {
    fn of(request: Request) -> Self {
        match request {
            Request::Check { keys } => Self::Check(keys.into_iter()),
            Request::MultiGet { keys } => Self::Values(keys.into_iter(), 0),
            Request::ListKeys => Self::Listing(Listing::default()),
            request => Self::One(request),
        }
    }
}

/// The reply to a `ListKeys`. All of it is built before any of it is sent, because it begins with the number of keys.
#[derive(Default)]
pub(super) struct Listing {
    /// The number of keys so far.
    keys: u64,
    /// The last of these keys. The next ones are greater. `None` before the first piece.
    last: Option<Key>,
    /// The parts of the reply that were not added to the client's unsent bytes yet, in wire format.
    pieces: VecDeque<Vec<u8>>,
    /// The size of all keys so far in wire format, in bytes.
    bytes: usize,
    /// The memory of `pieces`, in bytes.
    memory: usize,
    /// True if the reply is complete and can be sent.
    is_whole: bool,
}

/// Describes the next keys of a [`Listing`].
pub(super) struct Keys {
    count: usize,
    /// Their size in wire format, in bytes.
    bytes: usize,
    /// True if [`Listing::next`] found fewer keys than its argument `most`, so the table has no keys after these.
    are_last: bool,
}

impl Keys {
    /// Returns the work of collecting these keys, in units of the budget.
    pub(super) fn work(&self) -> usize {
        1 + self.count + copying(self.bytes)
    }

    /// Returns the memory of the piece that these keys will be, in bytes.
    pub(super) fn memory(&self) -> usize {
        PIECE + self.bytes
    }
}

/// The memory of a piece in addition to its bytes: the overhead of its allocation, and its element in `pieces`.
const PIECE: usize = PART;

impl Listing {
    /// Returns true if the reply is complete and can be sent.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Finds the next keys, at most `most`, and returns their number and size.
    pub(super) fn next(&self, table: &Table, most: usize) -> Keys {
        let (mut count, mut bytes) = (0, 0);
        for key in table.keys_after(self.last.as_ref()).take(most) {
            count += 1;
            bytes += size_of::<u64>() + key.len();
        }
        Keys { count, bytes, are_last: count < most }
    }

    /// Adds the keys that [`next`](Self::next) has found to the reply. The table must not have changed since.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the reply exceeds `request_bytes` of `limits`.
    pub(super) fn gather(&mut self, table: &Table, next: &Keys, limits: &Limits) -> Result<(), Refusal> {
        self.bytes += next.bytes;
        limits.part(Part::Reply, &[], size_of::<u64>() + self.bytes, limits.request_bytes)?;
        let mut piece = Vec::with_capacity(next.bytes);
        let mut last = None;
        for key in table.keys_after(self.last.as_ref()).take(next.count) {
            buffer::string(&mut piece, key);
            last = Some(key);
        }
        self.last = last.cloned();
        self.keys += next.count as u64;
        self.add(piece, VecDeque::push_back);
        if next.are_last {
            self.is_whole = true;
            self.add(self.keys.to_le_bytes().to_vec(), VecDeque::push_front);
        }
        Ok(())
    }

    /// Adds a piece of the reply to `pieces` with `push`, which adds it at the front or at the back.
    fn add(&mut self, piece: Vec<u8>, push: fn(&mut VecDeque<Vec<u8>>, Vec<u8>)) {
        self.memory += PIECE + piece.len();
        push(&mut self.pieces, piece);
    }

    /// Returns the next piece to send; `None` if all were sent. The reply must be complete.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.pieces.front().map(Vec::as_slice)
    }

    /// Removes the [first](Self::first) piece, after it was added to the client's unsent bytes.
    pub(super) fn skip(&mut self) {
        self.memory -= self.pieces.pop_front().map_or(0, |piece| PIECE + piece.len());
    }
}
