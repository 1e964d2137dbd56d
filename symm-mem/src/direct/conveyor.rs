//! The chunks of one lane's part of a call, as they are enqueued.

use cuda_driver::{DevicePtr, MemoryOp, Stream, WaitCondition};
use process_group::group::path::Way;

use super::lane::Chunk;

/// Where a lane's chunks go, and on which streams.
pub(super) struct Conveyor<'a> {
    /// Has the lane's order.
    pub(super) first: &'a Stream,
    /// Takes turns with it.
    pub(super) second: Option<&'a Stream>,
    /// Where the peer's ring, or this rank's, has its slots.
    pub(super) ring: DevicePtr,
    pub(super) slot_bytes: usize,
    pub(super) way: Way,
    /// By slot: what this rank waits for, and what it tells the peer.
    pub(super) words: &'a dyn Fn(usize) -> (DevicePtr, DevicePtr),
}

impl Conveyor<'_> {
    pub(super) fn streams(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// Tells the peer of a chunk that the stream has carried, then waits for the slot of another and moves that through it.
    ///
    /// # Safety
    /// The words, the ring and the chunk's memory are valid until the stream has passed it.
    pub(super) unsafe fn step(
        &self,
        stream: usize,
        tell: Option<Chunk>,
        carry: Option<Chunk>,
    ) -> cuda_driver::Result<()> {
        let stream = if stream == 0 { self.first } else { self.second.unwrap_or(self.first) };
        let told = tell.map(|chunk| (self.words)(chunk.slot).1);
        let Some(chunk) = carry else {
            // SAFETY: the caller's contract.
            return told.map_or(Ok(()), |at| unsafe { stream.write_value32(at, 1) });
        };
        let (wait, _) = (self.words)(chunk.slot);
        let slot = self.ring + chunk.slot * self.slot_bytes;
        let (to, from) = match self.way {
            Way::Send => (slot, chunk.at),
            Way::Receive => (chunk.at, slot),
        };
        let condition = WaitCondition::GreaterOrEqual;
        let wait_and_reset =
            [MemoryOp::Wait32 { at: wait, condition, value: 1 }, MemoryOp::Write32 { at: wait, value: 0 }];
        // SAFETY: the caller's contract. The word is this rank's to reset once it was set: the peer sets it again when it
        // has been told of this chunk, and no other stream waits for it now.
        unsafe {
            match told {
                Some(at) => {
                    let told = MemoryOp::Write32 { at, value: 1 };
                    stream.batch(&[told, wait_and_reset[0], wait_and_reset[1]])?;
                }
                None => stream.batch(&wait_and_reset)?,
            }
            stream.copy(to, from, chunk.bytes)
        }
    }
}
