//! A rank's board: host memory in which its streams wait for the others, and in which it says what it has called.
//!
//! Host memory, because who has to end a wait can then do so by a store. A stream that would write the word may share a
//! hardware queue with the very wait that it is to end.
//!
//! For every peer there are, one for each slot of a ring, the words *full* (the peer has put a chunk into this rank's
//! memory) and *empty* (the peer has taken one out of its own). Each is set by the peer's stream and reset by the stream
//! that has waited for it, so after a message all are as they were: a graph can run any number of times. And there are the
//! halves of messages that this rank has called for, [to](Way::Send) and [from](Way::Receive) the peer, written by it
//! alone. Before all that is a word of the rank's own: whether it has ended its waits, after which nothing that it
//! has sent or taken is what it seems.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use cuda_driver::{
    Context, DevicePtr,
    memory::{RegisterFlags, RegisteredMemory},
};
use process_group::{group::path::Way, local::SharedMemory};

/// Apart from each other, so that no two devices write to one line.
const LINE: usize = 64;

/// Where a board says that its rank has ended its waits.
const GAVE_UP: usize = 0;

/// How many halves are kept of each direction.
const LOG: u64 = 1024;

/// How many more messages than its peer a rank may have called for: what the peer still has to compare must be there.
pub(super) const AHEAD: u64 = LOG / 2;

/// Where things lie on a board: the same on all of a group's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Members of the group.
    pub(super) world: usize,
    /// Slots of a ring.
    pub(super) slots: usize,
}

/// A word that a stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// A chunk is here.
    Full,
    /// There is room over there.
    Empty,
}

impl Layout {
    const LOG_BYTES: usize = LINE + LOG as usize * size_of::<u64>();

    const fn section(self) -> usize {
        2 * self.slots * LINE + 2 * Self::LOG_BYTES
    }

    pub(super) const fn bytes(self) -> usize {
        LINE + self.world * self.section()
    }

    /// Of the words about `peer`.
    pub(super) fn word(self, peer: usize, word: Word, slot: usize) -> usize {
        debug_assert!(peer < self.world && slot < self.slots, "peer {peer}, slot {slot} of {self:?}");
        let of_kind = match word {
            Word::Full => 0,
            Word::Empty => self.slots,
        };
        LINE + peer * self.section() + (of_kind + slot) * LINE
    }

    /// Of the count of halves with `peer`, before the halves themselves.
    fn log(self, peer: usize, way: Way) -> usize {
        debug_assert!(peer < self.world, "peer {peer} of {self:?}");
        let first = LINE + peer * self.section() + 2 * self.slots * LINE;
        match way {
            Way::Send => first,
            Way::Receive => first + Self::LOG_BYTES,
        }
    }
}

/// A rank's board, as this process has it.
#[derive(Debug)]
pub(super) struct Board {
    layout: Layout,
    device: DevicePtr,
    /// Ends before the memory goes.
    _registration: RegisteredMemory<'static>,
    memory: SharedMemory,
}

impl Board {
    /// A new board, with all rings empty; with what other processes open it by.
    pub(super) fn create(context: &Context, layout: Layout) -> Result<(OwnedFd, Self), BoardError> {
        let (descriptor, memory) = SharedMemory::create(layout.bytes())?;
        let board = Self::register(context, layout, memory)?;
        for peer in 0..layout.world {
            for slot in 0..layout.slots {
                board.word(peer, Word::Empty, slot).store(1, Ordering::Relaxed);
            }
        }
        Ok((descriptor, board))
    }

    /// Another process's.
    pub(super) fn open(
        context: &Context,
        layout: Layout,
        memory: BorrowedFd<'_>,
    ) -> Result<Self, BoardError> {
        let memory = SharedMemory::open(memory, layout.bytes()).map_err(BoardError::Foreign)?;
        Self::register(context, layout, memory)
    }

    fn register(context: &Context, layout: Layout, memory: SharedMemory) -> Result<Self, BoardError> {
        let flags = RegisterFlags::PORTABLE | RegisterFlags::DEVICE_MAPPED;
        // SAFETY: mapped, and full of zeros or of what another process writes, until the memory is dropped, which is after
        // the registration; nobody else unmaps it.
        let registration =
            unsafe { RegisteredMemory::from_raw(context, memory.start(), memory.bytes(), flags) }?;
        Ok(Self { layout, device: registration.device_ptr()?, _registration: registration, memory })
    }

    /// A word, for streams.
    pub(super) fn at(&self, peer: usize, word: Word, slot: usize) -> DevicePtr {
        self.device + self.layout.word(peer, word, slot)
    }

    fn word(&self, peer: usize, word: Word, slot: usize) -> &AtomicU32 {
        self.word_at(self.layout.word(peer, word, slot))
    }

    fn word_at(&self, at: usize) -> &AtomicU32 {
        // SAFETY: aligned, and inside the mapping, as the layout says, which lives as long as `self`; whoever races for
        // it, device or process, does so by whole words.
        unsafe { self.memory.start().add(at).cast::<AtomicU32>().as_ref() }
    }

    /// Says that this rank ends its waits.
    pub(super) fn give_up(&self) {
        self.word_at(GAVE_UP).store(1, Ordering::SeqCst);
    }

    /// Whether the board's rank has said so.
    pub(super) fn has_given_up(&self) -> bool {
        self.word_at(GAVE_UP).load(Ordering::SeqCst) != 0
    }

    /// Ends the waits for this rank's words that streams are in now; whether any word was not set, so that a stream has
    /// come through since the last time.
    pub(super) fn release(&self) -> bool {
        let mut moved = false;
        for peer in 0..self.layout.world {
            for slot in 0..self.layout.slots {
                for word in [Word::Full, Word::Empty] {
                    moved |= self.word(peer, word, slot).swap(1, Ordering::AcqRel) != 1;
                }
            }
        }
        moved
    }

    /// The halves that this rank has called for with `peer`.
    pub(super) fn log(&self, peer: usize, way: Way) -> Log<'_> {
        let at = self.layout.log(peer, way);
        // SAFETY: aligned and inside the mapping, as the layout says, for so many words; whoever races for them, in another
        // process, does so by whole words.
        unsafe {
            let start = self.memory.start().add(at);
            let halves = start.add(LINE).cast::<AtomicU64>();
            Log {
                count: start.cast::<AtomicU64>().as_ref(),
                halves: std::slice::from_raw_parts(halves.as_ptr(), LOG as usize),
            }
        }
    }
}

/// The last halves of one direction. One thread writes at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log<'a> {
    count: &'a AtomicU64,
    halves: &'a [AtomicU64],
}

impl Log<'_> {
    /// How many there were.
    pub(super) fn count(self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One of the last.
    pub(super) fn get(self, number: u64) -> u64 {
        self.halves[(number % LOG) as usize].load(Ordering::Relaxed)
    }

    /// The next.
    pub(super) fn put(self, half: u64) {
        let number = self.count.load(Ordering::Relaxed);
        self.halves[(number % LOG) as usize].store(half, Ordering::Relaxed);
        self.count.store(number + 1, Ordering::SeqCst);
    }
}

/// Why there is no board.
#[derive(Debug, thiserror::Error)]
pub(super) enum BoardError {
    #[error("shared host memory: {0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Foreign(String),
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn nothing_lies_over_anything_else() {
        let layout = Layout { world: 3, slots: 5 };
        let mut lines = HashSet::new();
        let mut take = |at: usize, bytes: usize| {
            assert_eq!(at % LINE, 0);
            for line in at / LINE..(at + bytes).div_ceil(LINE) {
                assert!(lines.insert(line), "line {line} twice");
                assert!((line + 1) * LINE <= layout.bytes());
            }
        };
        take(GAVE_UP, LINE);
        for peer in 0..layout.world {
            for slot in 0..layout.slots {
                for word in [Word::Full, Word::Empty] {
                    take(layout.word(peer, word, slot), LINE);
                }
            }
            for way in [Way::Send, Way::Receive] {
                take(layout.log(peer, way), Layout::LOG_BYTES);
            }
        }
        assert_eq!(lines.len() * LINE, layout.bytes());
    }
}
