//! Pending blocks: their owners have freed them, but other streams may still use them.
//!
//! The free records an event on each of those streams. A request queries the events only if it finds no free block.

use super::block_meta::NO_USES;
use super::heap::BlockId;
use super::stream::{EventId, StreamId};

/// A freed block that other streams may still use.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: BlockId,
    pub(super) waits: Vec<Wait>,
}

/// A stream's last use of a block, or of the old addresses of a page that has moved. The event marks the end of the
/// use. It is `None` while no event can be recorded, for example because the stream is being captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) event: Option<EventId>,
}

/// For each block, a list of the streams that use it beside its own. All lists are linked lists in one table, because
/// most are empty or short. `BlockMeta::uses` has the head of a block's list: the index of its first node, or
/// [`NO_USES`] if the list is empty.
#[derive(Debug, Default)]
pub(super) struct Uses {
    nodes: Vec<(StreamId, u32)>,
    spare: Vec<u32>,
}

impl Uses {
    /// Adds `stream` to the list that begins at `head`, if it is not there yet. Returns the new head.
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

    /// Removes the list that begins at `head`, and returns its streams.
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_list_has_the_streams_that_were_added_to_it(
            steps in prop::collection::vec((0..4usize, prop::option::weighted(0.8, 0..5u64)), 0..100),
        ) {
            let mut uses = Uses::default();
            let mut heads = [NO_USES; 4];
            let mut model: [HashSet<StreamId>; 4] = Default::default();
            // Each step adds a stream to a list, or empties a list.
            for (list, stream) in steps {
                match stream.map(StreamId) {
                    Some(stream) => {
                        heads[list] = uses.add(heads[list], stream);
                        model[list].insert(stream);
                    }
                    None => {
                        let streams = uses.take(std::mem::replace(&mut heads[list], NO_USES));
                        prop_assert_eq!(streams.len(), model[list].len(), "no stream twice");
                        prop_assert_eq!(HashSet::from_iter(streams), std::mem::take(&mut model[list]));
                    }
                }
            }
            prop_assert!(uses.nodes.len() <= 4 * 5, "nodes are used again");
        }
    }
}
