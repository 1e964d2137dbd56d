//! Routes: the peer's side of a rank's transfers in an agreed plan.

use std::collections::HashMap;

use super::{decide::Agreement, record::AllocationId};

/// A transfer of a rank, completed by the peer's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The memory that this end accesses, if it copies: the peer's allocation, and the first byte in it.
    pub remote: Option<(AllocationId, u64)>,
    /// The peer's slot for this rank's signals.
    pub slot: u32,
}

impl Agreement {
    /// Returns the routes of the transfers of `rank`, in their order. `None` if the rank is not in the plan, or if
    /// its transfers do not match their counterparts, which [`decide`](super::decide()) refuses.
    #[must_use]
    pub fn routes(&self, rank: u32) -> Option<Vec<Route>> {
        let record = |of: u32| self.records.iter().find(|record| record.rank == of);
        let mut met: HashMap<u32, usize> = HashMap::new();
        let route = |end: &super::End| {
            let peer = record(end.peer)?;
            let nth = met.entry(end.peer).or_default();
            let other = peer.with(rank).nth(*nth)?;
            *nth += 1;
            let remote = match end.part.copies() {
                false => None,
                true => Some((peer.export_of(other)?.id, other.offset)),
            };
            Some(Route { peer: end.peer, remote, slot: other.slot })
        };
        record(rank)?.ends.iter().map(route).collect()
    }
}
