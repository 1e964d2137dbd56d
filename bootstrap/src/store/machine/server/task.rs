//! Requests in service, and their remaining work.

use std::{collections::VecDeque, vec::IntoIter};

use super::super::{
    budget::copying,
    memory::PART,
    request::{Key, Limits, Part, Refusal, Request},
    table::Table,
    wire,
};

/// A request that is being served.
pub(super) struct Task {
    pub(super) work: Work,
    /// The memory of the request, in bytes.
    pub(super) request: usize,
}

/// The remaining work of a request.
pub(super) enum Work {
    /// The whole request, done in one piece.
    One(Request),
    /// The keys of a `Check`.
    Check(IntoIter<Key>),
    /// The keys of a `MultiGet`, and the bytes of the reply so far.
    Values(IntoIter<Key>, usize),
    /// The keys and values of a `MultiSet`, in turn.
    Entries(IntoIter<Vec<u8>>),
    /// The reply to a `ListKeys`.
    Listing(Listing),
}

impl Task {
    /// Makes the task of a request that takes `memory` bytes.
    pub(super) fn of(request: Request, memory: usize) -> Self {
        Self { work: Work::of(request), request: memory }
    }

    /// Makes the task of a `MultiSet`. `strings` contains keys and values in turn, which take `memory` bytes.
    pub(super) fn of_entries(strings: Vec<Vec<u8>>, memory: usize) -> Self {
        Self { work: Work::Entries(strings.into_iter()), request: memory }
    }

    /// Returns the memory of this task, in bytes.
    pub(super) fn memory(&self) -> usize {
        match &self.work {
            Work::Listing(listing) => listing.memory,
            _ => self.request,
        }
    }

    /// Returns the number of strings that this task holds.
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

/// The reply to a `ListKeys`. All of it is built before any of it is sent, because the number of keys comes first.
#[derive(Default)]
pub(super) struct Listing {
    keys: u64,
    last: Option<Key>,
    /// The parts of the reply that were not sent yet, in wire format.
    pieces: VecDeque<Vec<u8>>,
    /// Size of all keys so far in wire format.
    bytes: usize,
    memory: usize,
    is_whole: bool,
}

/// Describes the next keys of a [`Listing`].
pub(super) struct Keys {
    count: usize,
    /// Size in wire format.
    bytes: usize,
    are_last: bool,
}

impl Keys {
    /// Returns the work of collecting these keys, in units of the budget.
    pub(super) fn work(&self) -> usize {
        1 + self.count + copying(self.bytes)
    }

    /// Returns the memory that these keys will take, in bytes.
    pub(super) fn memory(&self) -> usize {
        PIECE + self.bytes
    }
}

/// The memory of a piece in addition to its bytes: its allocation, and an element of a queue that doubles.
const PIECE: usize = PART;

impl Listing {
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the number and the size of the next keys, at most `most`.
    pub(super) fn next(&self, table: &Table, most: usize) -> Keys {
        let (mut count, mut bytes) = (0, 0);
        for key in table.keys_after(self.last.as_ref()).take(most) {
            count += 1;
            bytes += size_of::<u64>() + key.len();
        }
        Keys { count, bytes, are_last: count < most }
    }

    /// Adds the keys that [`next`](Self::next) has returned to the reply.
    pub(super) fn gather(&mut self, table: &Table, next: &Keys, limits: &Limits) -> Result<(), Refusal> {
        self.bytes += next.bytes;
        limits.part(Part::Reply, &[], size_of::<u64>() + self.bytes, limits.request_bytes)?;
        let mut piece = Vec::with_capacity(next.bytes);
        let mut last = None;
        for key in table.keys_after(self.last.as_ref()).take(next.count) {
            wire::string(&mut piece, key);
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

    fn add(&mut self, piece: Vec<u8>, push: fn(&mut VecDeque<Vec<u8>>, Vec<u8>)) {
        self.memory += PIECE + piece.len();
        push(&mut self.pieces, piece);
    }

    /// Returns the next piece to send. The list must be complete.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.pieces.front().map(Vec::as_slice)
    }

    /// Removes the piece that was sent.
    pub(super) fn skip(&mut self) {
        self.memory -= self.pieces.pop_front().map_or(0, |piece| PIECE + piece.len());
    }
}
