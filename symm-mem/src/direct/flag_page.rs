//! Flag pages. A rank's flag page is shared host memory. It holds the words that the rank's streams wait for, and logs
//! of the rank's messages. In this file, *this rank* is the rank to which the page belongs.
//!
//! The page is host memory so that a host thread can end a stream's wait with a plain store. A write by a stream could
//! be behind the wait in the same hardware queue, and would never run.
//!
//! The page has a section for every peer. This rank's memory has a [ring](super#the-ring) of slots for the chunks that
//! the peer sends, and the peer's memory has a ring for the chunks that this rank sends. For every slot number, the
//! section has two words: *full* (the peer has put a chunk into that slot of this rank's ring) and *empty* (the peer
//! has copied the chunk out of that slot of its own ring). [Zero-copy messages](super#zero-copy-messages) have eight
//! more words: *ready* and *done* ([`Phase`]), for both directions, and for captured and for eager (not captured)
//! messages. The peer's stream sets a word, and the stream that waited for the word resets it. So after a message all
//! these words have their initial values, and a graph can run any number of times.
//!
//! Every direction has one more word, which no stream waits for. In this word, this rank's streams record the last
//! message that they have [passed](FlagPage::passed), of the eager zero-copy messages that the sender copies.
//!
//! After the words, the section has two logs of [half messages](super::half) (a half describes one end of a message):
//! this rank's [sends to](Way::Send) and [receives from](Way::Receive) the peer. Only this rank writes these logs. The
//! section ends with the [claim](super::claim) words of the messages from the peer, which both ends write.
//!
//! The page begins with a flag, in front of the sections. After an abort, this rank *gives up*: it sets the flag, and
//! then ends the waits of its streams. Data that the rank sends or receives afterwards is invalid.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use cuda_driver::{Context, DevicePtr, MemoryOp, WaitCondition};
use process_group::group::path::Way;

use crate::sharing::HostMemory;

/// Size of a cache line in bytes. The flag, each [`Word`] and each [`Log::count`] have a line of their own.
const LINE: usize = 64;

/// Offset of the flag by which the rank announces that it has given up.
const GAVE_UP: usize = 0;

/// Number of words for zero-copy messages in a peer's section: one for each direction, [`Phase`], and kind of message
/// (eager or captured).
const SIGNALS: usize = 8;

/// Number of words for [`FlagPage::passed`] in a peer's section: one for each direction.
const PASSED: usize = 2;

/// Capacity of a log in half messages, and number of claim words for the messages from each peer.
const LOG: u64 = 1024;

/// Largest number of messages by which a rank may be ahead of its peer in one direction. With this limit, the rank's
/// log still contains its half of a message when the peer compares the two halves.
pub(super) const AHEAD: u64 = LOG / 2;

/// Offsets within a flag page, the same on all flag pages of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlagPageLayout {
    /// Number of members of the group.
    pub(super) world: usize,
    /// Number of slots of a ring, including those for graphs.
    pub(super) slots: usize,
}

/// Selects a word of a peer's section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Set if a chunk is in this slot of this rank's ring.
    Full(usize),
    /// Set if this slot of the peer's ring is empty.
    Empty(usize),
    /// Set if the peer has sent this signal.
    Signal(Signal),
    /// The word that [`FlagPage::passed`] returns.
    Passed(Way),
}

/// A step of a zero-copy message, which one end signals to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The stream of the [first end](super#zero-copy-messages) has reached the message. So the second end may access
    /// the buffer of the first end.
    Ready,
    /// The stream of the second end has copied the message.
    Done,
}

/// Selects one of the words for zero-copy messages in a peer's section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signal {
    /// The direction, seen from the page's rank.
    pub(super) way: Way,
    pub(super) phase: Phase,
    pub(super) captured: bool,
}

impl FlagPageLayout {
    const LOG_BYTES: usize = LINE + LOG as usize * size_of::<LogEntry>();
    const CLAIM_BYTES: usize = LOG as usize * size_of::<AtomicU64>();

    const fn words(self) -> usize {
        2 * self.slots + SIGNALS + PASSED
    }

    const fn section(self) -> usize {
        self.words() * LINE + 2 * Self::LOG_BYTES + Self::CLAIM_BYTES
    }

    pub(super) const fn bytes(self) -> usize {
        LINE + self.world * self.section()
    }

    /// Offset of a word in this rank's section for `peer`.
    fn word(self, peer: usize, word: Word) -> usize {
        let slots = 2 * self.slots;
        let number = match word {
            Word::Full(slot) => slot,
            Word::Empty(slot) => self.slots + slot,
            Word::Signal(Signal { way, phase, captured }) => {
                let bits = [way == Way::Receive, phase == Phase::Done, captured];
                slots + bits.into_iter().fold(0, |number, bit| 2 * number + usize::from(bit))
            }
            Word::Passed(way) => slots + SIGNALS + usize::from(way == Way::Receive),
        };
        let is_slot = !matches!(word, Word::Full(slot) | Word::Empty(slot) if slot >= self.slots);
        debug_assert!(peer < self.world && is_slot, "peer {peer}, {word:?} of {self:?}");
        LINE + peer * self.section() + number * LINE
    }

    /// Offset of the log of messages with `peer` in direction `way`. The log begins with [`Log::count`], on a cache
    /// line of its own. The entries follow.
    fn log(self, peer: usize, way: Way) -> usize {
        debug_assert!(peer < self.world, "peer {peer} of {self:?}");
        let first = LINE + peer * self.section() + self.words() * LINE;
        match way {
            Way::Send => first,
            Way::Receive => first + Self::LOG_BYTES,
        }
    }

    /// Offset of the [claim](super::claim) words of the messages from `peer`.
    fn claims(self, peer: usize) -> usize {
        self.log(peer, Way::Receive) + Self::LOG_BYTES
    }
}

/// A rank's flag page, mapped into this process.
#[derive(Debug, Clone)]
pub(super) struct FlagPage {
    layout: FlagPageLayout,
    memory: Arc<HostMemory>,
}

impl FlagPage {
    /// Creates this rank's flag page. All *empty* words are set, and all other words are 0.
    pub(super) fn create(context: &Context, layout: FlagPageLayout) -> Result<Self, String> {
        let page = Self::new(layout, Arc::new(HostMemory::create(context, layout.bytes())?));
        for peer in 0..layout.world {
            for slot in 0..layout.slots {
                page.word(peer, Word::Empty(slot)).store(1, Ordering::Relaxed);
            }
        }
        Ok(page)
    }

    pub(super) fn new(layout: FlagPageLayout, memory: Arc<HostMemory>) -> Self {
        Self { layout, memory }
    }

    pub(super) fn memory(&self) -> &Arc<HostMemory> {
        &self.memory
    }

    /// Device address of a word.
    pub(super) fn at(&self, peer: usize, word: Word) -> DevicePtr {
        self.memory.ptr() + self.layout.word(peer, word)
    }

    /// Returns the lower 32 bits of `n + 1`, where `n` is the number of the last message with `peer` in direction `way`
    /// that a stream of this rank has *passed*: it has executed this rank's operations for the message. Returns 0 if
    /// there is none. Considers only eager [zero-copy messages](super#zero-copy-messages) of which the receiver is the
    /// first end. The sender copies these messages into the receiver's buffer.
    pub(super) fn passed(&self, peer: usize, way: Way) -> u32 {
        self.word(peer, Word::Passed(way)).load(Ordering::Acquire)
    }

    fn word(&self, peer: usize, word: Word) -> &AtomicU32 {
        self.word_at(self.layout.word(peer, word))
    }

    /// The `count` values of type `T` from byte offset `at` on. Panics if they are not aligned, or not inside the page.
    fn words_at<T: AtomicWords>(&self, at: usize, count: usize) -> &[T] {
        assert!(
            at + count * size_of::<T>() <= self.memory.bytes() && at.is_multiple_of(align_of::<T>()),
            "{count} words at {at}, outside of a page of {:?}",
            self.layout
        );
        // SAFETY: the words are aligned and inside the mapping, as checked. The mapping lives as long as `self`.
        // Devices and other processes access them by whole words only.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(at).cast::<T>().as_ptr(), count) }
    }

    fn word_at(&self, at: usize) -> &AtomicU32 {
        &self.words_at(at, 1)[0]
    }

    /// Announces that the page's rank gives up. The caller then ends the waits of this rank's streams.
    pub(super) fn give_up(&self) {
        self.word_at(GAVE_UP).store(1, Ordering::SeqCst);
    }

    /// Returns whether the page's rank has announced that it has given up.
    pub(super) fn has_given_up(&self) -> bool {
        self.word_at(GAVE_UP).load(Ordering::SeqCst) != 0
    }

    /// Ends the current waits of this rank's streams: sets all words that streams wait for, except the [`Signal`] words
    /// for which `is_held` returns true. Returns true if at least one of the words that it sets was not set before.
    ///
    /// Only a stream resets a word, after its wait for the word. So if two calls find the same word not set, a stream
    /// has completed a wait for the word between them.
    pub(super) fn release(&self, is_held: impl Fn(usize, Signal) -> bool) -> bool {
        let mut has_set = false;
        let mut set = |word: &AtomicU32| has_set |= word.swap(1, Ordering::AcqRel) != 1;
        for peer in 0..self.layout.world {
            for slot in 0..self.layout.slots {
                [Word::Full(slot), Word::Empty(slot)].into_iter().for_each(|word| set(self.word(peer, word)));
            }
            for signal in Signal::all().filter(|signal| !is_held(peer, *signal)) {
                set(self.word(peer, Word::Signal(signal)));
            }
        }
        has_set
    }

    /// The log in which the page's rank writes its halves of the messages to or from `peer`.
    pub(super) fn log(&self, peer: usize, way: Way) -> Log<'_> {
        let at = self.layout.log(peer, way);
        Log { count: &self.words_at(at, 1)[0], entries: self.words_at(at + LINE, LOG as usize) }
    }

    /// The word in which both ends [claim](super::claim) message `number` from `peer` to the page's rank.
    pub(super) fn claim(&self, peer: usize, number: u64) -> &AtomicU64 {
        &self.words_at(self.layout.claims(peer), LOG as usize)[(number % LOG) as usize]
    }
}

/// The operations of a stream that wait until the word at `at` is set, and reset it.
pub(super) fn wait_and_reset(at: DevicePtr) -> [MemoryOp; 2] {
    let condition = WaitCondition::GreaterOrEqual;
    [MemoryOp::Wait32 { at, condition, value: 1 }, MemoryOp::Write32 { at, value: 0 }]
}

impl Signal {
    fn all() -> impl Iterator<Item = Self> {
        let ways = [Way::Send, Way::Receive].into_iter();
        let signals = ways.flat_map(|way| [Phase::Ready, Phase::Done].map(|phase| (way, phase)));
        signals.flat_map(|(way, phase)| [false, true].map(|captured| Self { way, phase, captured }))
    }
}

/// # Safety
/// The type consists of atomic words, without padding, for which any content is valid.
unsafe trait AtomicWords {}

// SAFETY: an atomic word.
unsafe impl AtomicWords for AtomicU32 {}
// SAFETY: an atomic word.
unsafe impl AtomicWords for AtomicU64 {}
// SAFETY: two atomic words of the same size.
unsafe impl AtomicWords for LogEntry {}

/// An end's [half](super::half) of a message, and the [place](super::place::MappedPlace) of its buffer.
#[derive(Debug)]
#[repr(C)]
struct LogEntry {
    half: AtomicU64,
    place: AtomicU64,
}

/// A log in a flag page: the rank's last [`LOG`] halves of messages with one peer in one direction. Only one thread at
/// a time may write to a log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log<'a> {
    count: &'a AtomicU64,
    entries: &'a [LogEntry],
}

impl Log<'_> {
    /// Number of halves written so far.
    pub(super) fn count(self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the half of message `number`, which must be among the last [`LOG`] messages, and the place of its
    /// buffer.
    pub(super) fn get(self, number: u64) -> (u64, u64) {
        let LogEntry { half, place } = &self.entries[(number % LOG) as usize];
        (half.load(Ordering::Relaxed), place.load(Ordering::Relaxed))
    }

    /// Appends a half with the place of its buffer. Returns the number of the message.
    pub(super) fn put(self, half: u64, place: u64) -> u64 {
        let number = self.count.load(Ordering::Relaxed);
        let entry = &self.entries[(number % LOG) as usize];
        entry.half.store(half, Ordering::Relaxed);
        entry.place.store(place, Ordering::Relaxed);
        self.count.store(number + 1, Ordering::SeqCst);
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_parts_of_a_page_do_not_overlap() {
        let layout = FlagPageLayout { world: 3, slots: 5 };
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
                for word in [Word::Full(slot), Word::Empty(slot)] {
                    take(layout.word(peer, word), LINE);
                }
            }
            Signal::all().for_each(|signal| take(layout.word(peer, Word::Signal(signal)), LINE));
            for way in [Way::Send, Way::Receive] {
                take(layout.word(peer, Word::Passed(way)), LINE);
                take(layout.log(peer, way), FlagPageLayout::LOG_BYTES);
            }
            take(layout.claims(peer), FlagPageLayout::CLAIM_BYTES);
        }
        assert_eq!(lines.len() * LINE, layout.bytes());
    }
}
