//! Pending blocks: their owners have freed them, but other streams or graphs may still use them.
//!
//! The free records an event on each of those streams. A request queries the events only if it finds no free block.

use super::block_meta::NO_USES;
use super::graph_use::GraphRef;
use super::heap::BlockId;
use super::stream::{EventId, StreamId};

/// A user of a block beside the block's own stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum User {
    Stream(StreamId),
    Graph(GraphRef),
}

/// A freed block that other streams or graphs may still use.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: BlockId,
    pub(super) waits: Vec<Wait>,
    /// The graphs that use the block. No stream can wait for a graph, because it may be launched again at any time.
    graphs: Vec<GraphRef>,
}

impl Pending {
    /// `mark` returns the event that marks the end of a stream's use, if one can be recorded.
    pub(super) fn new(id: BlockId, users: Vec<User>, mark: impl Fn(StreamId) -> Option<EventId>) -> Self {
        let mut pending = Self { id, waits: Vec::new(), graphs: Vec::new() };
        for user in users {
            match user {
                User::Stream(stream) => pending.waits.push(Wait { stream, event: mark(stream) }),
                User::Graph(graph) => pending.graphs.push(graph),
            }
        }
        pending
    }

    /// Returns true while a graph that uses the block exists.
    pub(super) fn is_in_graph(&self) -> bool {
        self.graphs.iter().any(GraphRef::exists)
    }
}

/// A stream's last use of a block, or of the old addresses of a page that has moved. The event marks the end of the
/// use. It is `None` while no event can be recorded, for example because the stream is being captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) event: Option<EventId>,
}

/// For each block, a list of its users beside its own stream. All lists are linked lists in one table, because
/// most are empty or short. `BlockMeta::uses` has the head of a block's list: the index of its first node, or
/// [`NO_USES`] if the list is empty.
#[derive(Debug, Default)]
pub(super) struct Uses {
    nodes: Vec<(User, u32)>,
    spare: Vec<u32>,
}

impl Uses {
    /// Adds `user` to the list that begins at `head`, if it is not there yet. Returns the new head.
    pub(super) fn add(&mut self, head: u32, user: User) -> u32 {
        let mut at = head;
        while at != NO_USES {
            let (other, next) = &self.nodes[at as usize];
            if *other == user {
                return head;
            }
            at = *next;
        }
        if let Some(at) = self.spare.pop() {
            self.nodes[at as usize] = (user, head);
            return at;
        }
        self.nodes.push((user, head));
        u32::try_from(self.nodes.len() - 1).unwrap_or(NO_USES)
    }

    /// Removes the list that begins at `head`, and returns its users.
    pub(super) fn take(&mut self, mut head: u32) -> Vec<User> {
        let mut users = Vec::new();
        while head != NO_USES {
            let (user, next) = &self.nodes[head as usize];
            users.push(user.clone());
            self.spare.push(head);
            head = *next;
        }
        users
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::graph_use::GraphUse;

    proptest! {
        #[test]
        fn each_list_has_the_users_that_were_added_to_it(
            steps in prop::collection::vec((0..4usize, prop::option::weighted(0.8, 0..8usize)), 0..100),
        ) {
            let graphs: [GraphUse; 4] = Default::default();
            let streams = (0..4).map(|stream| User::Stream(StreamId(stream)));
            let users: Vec<User> =
                streams.chain(graphs.iter().map(|graph| User::Graph(graph.reference()))).collect();
            let mut uses = Uses::default();
            let mut heads = [NO_USES; 4];
            let mut model: [Vec<User>; 4] = Default::default();
            // Each step adds a user to a list, or empties a list.
            for (list, user) in steps {
                match user.map(|user| users[user].clone()) {
                    Some(user) => {
                        heads[list] = uses.add(heads[list], user.clone());
                        if !model[list].contains(&user) {
                            model[list].insert(0, user);
                        }
                    }
                    None => {
                        let taken = uses.take(std::mem::replace(&mut heads[list], NO_USES));
                        prop_assert_eq!(taken, std::mem::take(&mut model[list]));
                    }
                }
            }
            prop_assert!(uses.nodes.len() <= 4 * 8, "nodes are used again");
        }
    }
}
