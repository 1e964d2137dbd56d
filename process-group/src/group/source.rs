//! The origin of a group's communicator.

use std::sync::Arc;

use nccl_sys::Feature;

use super::{KindResult, ProcessGroup, health::GroupHealth};
use crate::comm::{CommError, Communicator, Nccl};

/// The origin of a group's communicator.
pub(super) enum Source<'a> {
    /// All ranks make the communicator.
    Made,
    Given(Box<Communicator>),
    /// All ranks grow the communicator of this group. `None` on the new ranks.
    Grown(Option<&'a ProcessGroup>),
}

impl Source<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Given(_) => "given",
            Self::Grown(_) => "grown",
        }
    }

    /// Returns the health of the group that grows, if this rank is a member.
    pub(super) fn health(&self) -> Option<&Arc<GroupHealth>> {
        match self {
            Self::Grown(Some(old)) => Some(&old.counter.health),
            _ => None,
        }
    }

    /// Checks that the library can make the communicator.
    pub(super) fn check(&self, nccl: &Nccl) -> KindResult<()> {
        if matches!(self, Self::Grown(_)) {
            nccl.api().require(Feature::GROW).map_err(CommError::from)?;
        }
        Ok(())
    }
}
