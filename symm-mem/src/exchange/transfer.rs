//! One rank's end of a transfer.

use super::{Memory, protocol::Part};

/// One end of a transfer: this rank's role, its peer and its buffer. Made by
/// [`Exchange::transfer`](super::Exchange::transfer), which rejects invalid values.
#[derive(Debug, Clone)]
pub struct Transfer {
    pub(super) peer: usize,
    pub(super) part: Part,
    pub(super) memory: Memory,
}

impl Transfer {
    /// The peer's rank in the group.
    #[must_use]
    pub fn peer(&self) -> usize {
        self.peer
    }

    /// Role of this rank.
    #[must_use]
    pub fn part(&self) -> Part {
        self.part
    }
}
