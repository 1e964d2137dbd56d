//! The identity of a group.

use std::fmt;

/// The identity of a group: equal on all its members, and never given to another group of the store.
///
/// Groups of one store have ascending uids in the order in which they are made. A program that uses its
/// groups in the order of their ids therefore uses them in the same order on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The group's number in the store.
    pub uid: u64,
    /// The generation of the job that made the group; see [`Builder::epoch`](super::Builder::epoch).
    pub epoch: u64,
}
bootstrap::wire_struct!(GroupId { uid, epoch });

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.uid, self.epoch)
    }
}
