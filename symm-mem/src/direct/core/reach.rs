//! Finds buffers in pool segments that all members have mapped: the [places](MappedPlace) (segment and offset) of this
//! rank's buffers, and the addresses of the peers' buffers. A segment has the same number on all members.

use std::{thread, time::Duration};

use cuda_driver::{DevicePtr, Stream};
use process_group::{
    group::path::{Message, PathError},
    store::Deadline,
};

use super::DirectCore;
use crate::{direct::place::MappedPlace, membership::MappedSegment, rendezvous::PeerMapping};

impl DirectCore {
    /// Returns the place of the message's buffer if the buffer lies in a segment that all members have mapped, and
    /// [`MappedPlace::NONE`] otherwise.
    pub(super) fn place(&self, message: &Message) -> MappedPlace {
        let bytes = message.buffer.bytes() as u64;
        let place = (bytes > 0).then(|| self.mapped.place(message.buffer.ptr.0, bytes)).flatten();
        place.and_then(|(segment, offset)| MappedPlace::new(segment, offset)).unwrap_or(MappedPlace::NONE)
    }

    /// Finds a segment by its number. If the [commit](crate::SymmetricPool::commit) of the segment has not returned on
    /// this rank yet, waits until it has. Returns `None` if this rank has [retired](crate::SymmetricPool::retire) the
    /// segment, if the segment's pool has [forgotten](crate::SymmetricPool::forget) the group, or if the commit has not
    /// returned by the deadline.
    fn mapped_segment(&self, number: u64, deadline: Deadline) -> Result<Option<MappedSegment>, PathError> {
        loop {
            let was_added = number < self.mapped.next();
            let segment = self.mapped.find(number);
            if segment.is_some() || was_added || deadline.expired() {
                return Ok(segment);
            }
            self.check()?;
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns the address at which this rank's device reaches a buffer of `peer`. `number` is the number of the
    /// buffer's segment, and `offset` the buffer's offset in that segment in bytes. If `capturing` is a stream, pins
    /// this rank's own segment of that number while the graph that the stream captures exists. The members free their
    /// segments of one number together, and only if none of them is pinned. So the peer's segment stays mapped too.
    pub(super) fn reach(
        &self,
        peer: usize,
        (number, offset): (u64, u64),
        bytes: usize,
        (capturing, deadline): (Option<&Stream>, Deadline),
    ) -> Result<DevicePtr, PathError> {
        let unreachable = |problem: String| PathError::Unreachable { peer, problem };
        let gone = || {
            unreachable(format!(
                "its buffer lies in mapped segment {number}, which this rank does not have; forget or retire on all ranks alike"
            ))
        };
        let segment = self.mapped_segment(number, deadline)?.ok_or_else(gone)?;
        let (buffer, PeerMapping { buffers: peers, .. }) = segment.mapping().ok_or_else(gone)?;
        if let Some(stream) = capturing {
            buffer.segment_used_by_graph(stream)?;
        }
        let fits = offset.checked_add(bytes as u64).is_some_and(|end| end <= peers.bytes() as u64);
        match peers.addresses().get(peer) {
            Some(base) if fits => Ok(*base + offset as usize),
            _ => Err(unreachable(format!(
                "its buffer of {bytes} bytes at {offset} exceeds the segment of {} bytes",
                peers.bytes()
            ))),
        }
    }
}
