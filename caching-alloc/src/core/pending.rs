//! Blocks that their owners freed while other streams still use them.
//!
//! Freeing such a block records an event on each of those streams. The events are queried only when a request
//! would otherwise miss.

use super::block_meta::NO_USES;
use super::heap::BlockId;
use super::stream::{EventId, StreamId};

/// A block in use by other streams.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: BlockId,
    pub(super) waits: Vec<Wait>,
}

/// A stream's last use of a block. It has no event while none can be recorded, because the stream is being
/// captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) event: Option<EventId>,
}

/// The streams that use blocks besides the blocks' own streams: short lists in one table.
#[derive(Debug, Default)]
pub(super) struct Uses {
    nodes: Vec<(StreamId, u32)>,
    spare: Vec<u32>,
}

impl Uses {
    /// Adds `stream` to the list that begins at `head`, once; returns the new head.
    pub(super) fn add(&mut self, head: u32, stream: StreamId) -> u32 {
        let mut at = head;
        while at != NO_USES {
            let (other, next) = self.nodes[at as usize];
            if other == stream {
                return head;
            }
            at = next;
        }
        if let Some(at) = self.spare.pop() {
            self.nodes[at as usize] = (stream, head);
            return at;
        }
        self.nodes.push((stream, head));
        u32::try_from(self.nodes.len() - 1).unwrap_or(NO_USES)
    }

    /// Empties the list that begins at `head`.
    pub(super) fn take(&mut self, mut head: u32) -> Vec<StreamId> {
        let mut streams = Vec::new();
        while head != NO_USES {
            let (stream, next) = self.nodes[head as usize];
            streams.push(stream);
            self.spare.push(head);
            head = next;
        }
        streams
    }
}
