//! Enqueues the chunks of one call that go through one [ring](super#the-ring). A chunk is a part of a message, at most
//! one slot long. Each [lane](super::lane) (one direction between this rank and a peer) has a ring: slots in the
//! receiver's memory.

use cuda_driver::{DevicePtr, MemoryOp, Stream};
use process_group::group::path::Way;

use super::{flag_page::wait_and_reset, lane::Chunk};

/// Streams, slots and [flag words](super::flag_page) of a lane, for one call.
pub(super) struct ChunkPipeline<'a> {
    /// The lane's first stream in this call. It waits for the lane's work of earlier calls. The lane's work of later
    /// calls waits for it.
    pub(super) first: &'a Stream,
    /// If present, chunks alternate between this stream and the first one.
    pub(super) second: Option<&'a Stream>,
    /// Address of the first slot of the lane's ring: in the peer's memory if this rank sends, and in this rank's memory
    /// if it receives.
    pub(super) ring: DevicePtr,
    pub(super) slot_bytes: usize,
    pub(super) way: Way,
    /// A function from the index of a slot to the addresses of two of its words: the word that this rank's streams wait
    /// for, and the word that they write to signal the peer.
    pub(super) words: &'a dyn Fn(usize) -> (DevicePtr, DevicePtr),
}

impl ChunkPipeline<'_> {
    pub(super) fn streams(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    fn stream(&self, number: usize) -> &Stream {
        if number == 0 { self.first } else { self.second.unwrap_or(self.first) }
    }

    /// Makes stream number `stream` (0 or 1) signal to the peer that the stream has moved `chunk`: copied it into its
    /// slot (if this rank sends) or out of it (if it receives).
    ///
    /// # Safety
    /// The words are valid until the stream has executed the signal.
    pub(super) unsafe fn signal(&self, stream: usize, chunk: Chunk) -> cuda_driver::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.stream(stream).write_value32((self.words)(chunk.slot).1, 1) }
    }

    /// Makes stream number `stream` (0 or 1) signal to the peer that the stream has moved chunk `earlier`, if there is
    /// one. Then makes the stream wait until the slot of `chunk` is empty (if this rank sends) or full (if it
    /// receives), and move `chunk`.
    ///
    /// # Safety
    /// The words, the ring and the chunk's memory are valid until the stream has executed these operations.
    pub(super) unsafe fn move_chunk(
        &self,
        stream: usize,
        earlier: Option<Chunk>,
        chunk: Chunk,
    ) -> cuda_driver::Result<()> {
        let stream = self.stream(stream);
        let signal = earlier.map(|chunk| MemoryOp::Write32 { at: (self.words)(chunk.slot).1, value: 1 });
        let (awaited, _) = (self.words)(chunk.slot);
        let [wait, reset] = wait_and_reset(awaited);
        let slot = self.ring + chunk.slot * self.slot_bytes;
        let (to, from) = match self.way {
            Way::Send => (slot, chunk.at),
            Way::Receive => (chunk.at, slot),
        };
        // SAFETY: the caller's contract. The stream may reset the word after its wait: the peer sets the word again
        // only after this rank has signalled this chunk, and until then no other stream waits for the word.
        unsafe {
            match signal {
                Some(signal) => stream.batch(&[signal, wait, reset])?,
                None => stream.batch(&[wait, reset])?,
            }
            stream.copy(to, from, chunk.bytes)
        }
    }
}
