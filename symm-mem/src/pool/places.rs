//! Where buffers lie, for groups that compare it before each operation.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use caching_alloc::core::symmetric::Placement;
use process_group::group::{SymmetricPlaces, SymmetricPlan, SymmetricSegment, places_changed};

use super::{Residence, Standing, SymmetricPool, Table};
use crate::agreement::{GroupId, PoolId, wire::Wire};

/// The places of one pool, as one group sees them; none once the pool is gone.
struct Places {
    pool: PoolId,
    group: GroupId,
    table: Weak<ArcSwap<Table>>,
}

impl SymmetricPlaces for Places {
    fn plan(&self) -> SymmetricPlan {
        let mut identity = Vec::new();
        self.pool.write(&mut identity);
        SymmetricPlan { identity, name: self.pool.to_string() }
    }

    /// A place in a segment that the group has committed, with a window or without: what works without windows is to
    /// work with them.
    fn locate(&self, address: u64, bytes: u64) -> Option<String> {
        let found = self.table.upgrade()?.load().lookup(address, bytes, self.group);
        match found {
            Ok(Some(Residence { placement: Placement { ordinal, offset }, standing }))
                if standing != Standing::Pending =>
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

/// Groups look up anew where buffers lie when a pool goes.
pub(super) struct Farewell;

impl Drop for Farewell {
    fn drop(&mut self) {
        places_changed();
    }
}

impl SymmetricPool {
    pub(crate) fn places_for(&self, group: GroupId) -> Arc<dyn SymmetricPlaces> {
        Arc::new(Places { pool: self.id(), group, table: Arc::downgrade(&self.table) })
    }
}
