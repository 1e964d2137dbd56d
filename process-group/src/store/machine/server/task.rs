//! Requests that are served in pieces.

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

/// What is left of a request.
pub(super) enum Work {
    /// All: it is done in one piece.
    One(Request),
    /// Keys of a `Check`.
    Check(IntoIter<Key>),
    /// Keys of a `MultiGet`, and the bytes of the reply so far.
    Values(IntoIter<Key>, usize),
    /// Keys and values of a `MultiSet` in turn.
    Entries(IntoIter<Vec<u8>>),
    /// The reply to a `ListKeys`.
    Listing(Listing),
}

impl Task {
    /// The task of a request that takes so many bytes.
    pub(super) fn of(request: Request, memory: usize) -> Self {
        Self { work: Work::of(request), request: memory }
    }

    /// The task of setting several keys; keys and values in turn, which take so many bytes.
    pub(super) fn of_entries(strings: Vec<Vec<u8>>, memory: usize) -> Self {
        Self { work: Work::Entries(strings.into_iter()), request: memory }
    }

    /// The memory that it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        match &self.work {
            Work::Listing(listing) => listing.memory,
            _ => self.request,
        }
    }

    /// How many strings it holds.
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

/// A list of the keys. It is gathered before any of it is sent: its length comes first.
#[derive(Default)]
pub(super) struct Listing {
    keys: u64,
    last: Option<Key>,
    /// As they are sent.
    pieces: VecDeque<Vec<u8>>,
    /// Of all keys so far, as they are sent.
    bytes: usize,
    memory: usize,
    is_whole: bool,
}

/// Keys that come next in a [`Listing`].
pub(super) struct Keys {
    count: usize,
    /// As they are sent.
    bytes: usize,
    are_last: bool,
}

impl Keys {
    /// How much work it is to gather them, in units.
    pub(super) fn work(&self) -> usize {
        1 + self.count + copying(self.bytes)
    }

    /// The memory that they will take, in bytes.
    pub(super) fn memory(&self) -> usize {
        PIECE + self.bytes
    }
}

/// The memory of a piece beside its bytes: its allocation, and its place in a queue that doubles.
const PIECE: usize = PART;

impl Listing {
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The next keys, up to so many.
    pub(super) fn next(&self, table: &Table, most: usize) -> Keys {
        let (mut count, mut bytes) = (0, 0);
        for key in table.keys_after(self.last.as_ref()).take(most) {
            count += 1;
            bytes += size_of::<u64>() + key.len();
        }
        Keys { count, bytes, are_last: count < most }
    }

    /// Gathers keys.
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

    /// The piece that is sent next, of a whole list.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.pieces.front().map(Vec::as_slice)
    }

    /// It was sent.
    pub(super) fn skip(&mut self) {
        self.memory -= self.pieces.pop_front().map_or(0, |piece| PIECE + piece.len());
    }
}
