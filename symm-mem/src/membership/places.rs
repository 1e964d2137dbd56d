//! Places of buffers. A place is a segment of a pool and an offset in it. For every collective, the members of a group
//! compare the places of the buffers that lie in windows. In [checked mode](process_group::group::Builder::checked),
//! they compare the places of all buffers.

use std::sync::Weak;

use caching_alloc::core::symmetric::Placement;
use process_group::group::{SymmetricPlaces, SymmetricPlan, SymmetricSegment};

use super::{
    index::Published,
    lookup::{BufferLocation, RegistrationState},
};
use crate::agreement::{GroupId, PoolId, wire::Wire};

/// Looks up places in one pool for one group. ([`SymmetricPlaces`] calls such a pool a *plan*. A [`SymmetricPlan`] has
/// its identity and name.) Finds nothing once the pool's [table](Published) is dropped.
pub(super) struct Places {
    pub(super) pool: PoolId,
    pub(super) group: GroupId,
    pub(super) table: Weak<Published>,
}

impl SymmetricPlaces for Places {
    fn plan(&self) -> SymmetricPlan {
        let mut identity = Vec::new();
        self.pool.write(&mut identity);
        SymmetricPlan { identity, name: self.pool.to_string() }
    }

    /// Returns a text about a range, which the ranks compare and report:
    /// - The place of the range, if it lies in a segment that the group has
    ///   [committed](crate::SymmetricPool::commit), with or without a window.
    /// - The text of [`LookupError::SpansSegments`](crate::LookupError::SpansSegments), if the range begins in a
    ///   segment (committed or not) and extends beyond it. This text contains this rank's address, so it can differ
    ///   between ranks.
    /// - `None` in all other cases.
    fn locate(&self, address: u64, bytes: u64) -> Option<String> {
        let location = self.table.upgrade()?.read(|index| index.lookup(address, bytes, self.group));
        match location {
            Ok(Some(BufferLocation { placement: Placement { ordinal, offset }, state }))
                if state != RegistrationState::Pending =>
            {
                Some(format!("in segment {ordinal} of {:#} at offset {offset}", self.pool))
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    fn window(&self, address: u64) -> Option<SymmetricSegment> {
        let (segment, start, end) = self.table.upgrade()?.load().windowed(address, self.group)?;
        Some(SymmetricSegment { segment, start, end })
    }
}
