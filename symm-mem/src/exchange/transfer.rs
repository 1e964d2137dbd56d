//! Transfers: the elements of a plan.

use super::{Memory, TransferError, protocol::Part};

/// One end of a transfer: this rank's role, its peer and its buffer. Made by
/// [`Exchange::transfer`](super::Exchange::transfer), which rejects invalid values.
#[derive(Debug, Clone)]
pub struct Transfer {
    pub(super) peer: usize,
    pub(super) part: Part,
    pub(super) memory: Memory,
}

impl Transfer {
    pub(super) fn new(
        peer: usize,
        part: Part,
        memory: Memory,
        (own, world): (usize, usize),
    ) -> Result<Self, TransferError> {
        if peer >= world {
            return Err(TransferError::NoSuchRank { rank: peer, world });
        }
        if peer == own {
            return Err(TransferError::ToSelf { rank: own });
        }
        if memory.bytes() == 0 {
            return Err(TransferError::Empty);
        }
        memory.check_kind()?;
        Ok(Self { peer, part, memory })
    }

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

    /// This rank's buffer.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
