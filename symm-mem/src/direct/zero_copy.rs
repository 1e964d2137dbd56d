//! Enqueues the [zero-copy messages](super#zero-copy-messages) of one lane (one direction between this rank and a
//! peer).
//!
//! The end that [claims](super::claim) the message first, the *first end*, offers its buffer. Its stream signals
//! *ready*: from now on the other end, the *second end*, may access this buffer. The stream of the second end waits for
//! *ready*, copies the message, and signals *done*. The stream of the first end waits for *done*.
//!
//! Each signal sets a word, and the stream that waits for the word resets it. A word is always reset before it is set
//! again, because the messages of a lane run one after the other on both ends. The stream of the second end resets
//! *ready* before it signals *done*. The stream of the first end resets *done* before its next message.

use cuda_driver::{DevicePtr, MemoryOp, Stream};
use process_group::group::path::Way;

use super::flag_page::{FlagPage, Phase, Signal, Word, wait_and_reset};

/// A zero-copy message of which this rank is the first end. The peer copies the message from or into this rank's
/// buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZeroCopyOffer {
    /// The number of the message, if the peer copies into this rank's buffer.
    pub(super) pushed: Option<u64>,
}

/// A zero-copy message of which this rank is the second end. This rank copies `bytes` bytes between its own buffer and
/// the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZeroCopyTake {
    pub(super) to: DevicePtr,
    pub(super) from: DevicePtr,
    pub(super) bytes: usize,
    /// The number of the message, if this rank copies into the peer's buffer.
    pub(super) pushed: Option<u64>,
}

/// The [flag pages](super::flag_page), ranks and direction that determine the words of a zero-copy message.
#[derive(Debug)]
pub(super) struct ZeroCopy<'a> {
    /// This rank's page. It contains the words that this rank's streams wait for.
    pub(super) own: &'a FlagPage,
    /// The peer's page. It contains the words that the peer's streams wait for.
    pub(super) other: &'a FlagPage,
    pub(super) rank: usize,
    pub(super) peer: usize,
    pub(super) way: Way,
    pub(super) captured: bool,
}

impl ZeroCopy<'_> {
    /// The address of the word by which this rank signals `phase` to the peer's stream.
    fn peer_word(&self, phase: Phase) -> DevicePtr {
        let signal = Signal { way: self.way.opposite(), phase, captured: self.captured };
        self.other.at(self.rank, Word::Signal(signal))
    }

    /// The operation that signals `phase` to the peer.
    fn set(&self, phase: Phase) -> MemoryOp {
        MemoryOp::Write32 { at: self.peer_word(phase), value: 1 }
    }

    /// The operations that wait for the peer's signal of `phase`, and reset its word.
    fn wait(&self, phase: Phase) -> [MemoryOp; 2] {
        let Self { way, captured, .. } = *self;
        wait_and_reset(self.own.at(self.peer, Word::Signal(Signal { way, phase, captured })))
    }

    /// The operation that reports to the host that the stream has [passed](FlagPage::passed) message `pushed`, which
    /// the sender copies into the receiver's buffer. `None` if `pushed` is `None`, and for a captured message, because
    /// a graph may run it many times under one number.
    fn report_passed(&self, pushed: Option<u64>) -> Option<MemoryOp> {
        let number = pushed.filter(|_| !self.captured)?;
        let at = self.own.at(self.peer, Word::Passed(self.way));
        Some(MemoryOp::Write32 { at, value: (number as u32).wrapping_add(1) })
    }

    /// Enqueues the signal that this rank's buffer is ready.
    ///
    /// # Safety
    /// The flag pages and the message's buffers stay valid until the stream has executed the enqueued operations.
    pub(super) unsafe fn ready(&self, stream: &Stream) -> cuda_driver::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { stream.write_value32(self.peer_word(Phase::Ready), 1) }
    }

    /// Makes the stream wait until the peer has copied the message. After the wait, the stream
    /// [reports](Self::report_passed) to the host that it has passed the message, if the peer copies into this rank's
    /// buffer and the message is not captured.
    ///
    /// # Safety
    /// As [`ready`](Self::ready).
    pub(super) unsafe fn done(&self, stream: &Stream, offer: ZeroCopyOffer) -> cuda_driver::Result<()> {
        let ops: Vec<_> =
            self.wait(Phase::Done).into_iter().chain(self.report_passed(offer.pushed)).collect();
        // SAFETY: the caller's contract. No other stream waits for the word of *done*, so this stream may reset it.
        unsafe { stream.batch(&ops) }
    }

    /// [`ready`](Self::ready) and [`done`](Self::done) in one driver call.
    ///
    /// # Safety
    /// As [`ready`](Self::ready).
    pub(super) unsafe fn offer(&self, stream: &Stream, offer: ZeroCopyOffer) -> cuda_driver::Result<()> {
        let ops = [self.set(Phase::Ready)].into_iter().chain(self.wait(Phase::Done));
        let ops: Vec<_> = ops.chain(self.report_passed(offer.pushed)).collect();
        // SAFETY: as above.
        unsafe { stream.batch(&ops) }
    }

    /// Makes the stream wait until the peer's buffer is ready, copy the message, and signal *done*.
    ///
    /// # Safety
    /// As [`ready`](Self::ready).
    pub(super) unsafe fn take(&self, stream: &Stream, take: ZeroCopyTake) -> cuda_driver::Result<()> {
        let ZeroCopyTake { to, from, bytes, pushed } = take;
        let done: Vec<_> = [self.set(Phase::Done)].into_iter().chain(self.report_passed(pushed)).collect();
        // SAFETY: as above. The peer's buffer is valid until the peer's stream has passed the wait for *done*, which
        // this stream signals after the copy.
        unsafe {
            stream.batch(&self.wait(Phase::Ready))?;
            stream.copy(to, from, bytes)?;
            stream.batch(&done)
        }
    }
}
