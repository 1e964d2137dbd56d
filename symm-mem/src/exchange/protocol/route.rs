//! Where a rank's transfers of an agreed plan lead.

use std::collections::HashMap;

use super::{decide::Agreement, record::AllocationId};

/// A transfer of a rank, as the peer's end completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// What this end reaches into, if it copies: the peer's allocation, and the byte in it.
    pub remote: Option<(AllocationId, u64)>,
    /// The peer's slot for this rank's signals.
    pub slot: u32,
}

impl Agreement {
    /// Where the transfers of `rank` lead, in their order; `None` if it has no part in the plan, or one that nobody would
    /// have agreed on.
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
