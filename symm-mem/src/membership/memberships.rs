//! The state of a [pool](crate::SymmetricPool) in all groups for which it was
//! [committed](crate::SymmetricPool::commit).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use caching_alloc::core::symmetric::{SymmetricArena, SymmetricSegment};
use process_group::group::places_changed;

use super::{
    group_state::GroupState, index::Published, lookup::Table, meetings::Meetings, places::Places,
    registration_guard::PoolUses,
};
use crate::{
    agreement::{GroupId, GroupLog, PoolId},
    domain::Domain,
    lock::lock,
    pool::PoolMemory,
};

/// The state of one pool in all groups that it is committed for.
pub struct Memberships {
    domain: Domain,
    memory: Arc<PoolMemory>,
    table: Arc<Published>,
    group_states: Mutex<BTreeMap<GroupId, Arc<Mutex<GroupState>>>>,
    /// The ordinals (numbers in the pool) of the [retired](crate::SymmetricPool::retire) segments, in the order of
    /// retirement.
    retired: Mutex<Vec<u32>>,
    meetings: Mutex<Meetings>,
    pub(super) uses: PoolUses,
}

impl Memberships {
    pub(crate) fn new(domain: Domain, memory: Arc<PoolMemory>) -> Self {
        Self {
            domain,
            memory,
            table: Arc::default(),
            group_states: Mutex::default(),
            retired: Mutex::default(),
            meetings: Mutex::default(),
            uses: PoolUses::default(),
        }
    }

    pub(crate) fn id(&self) -> PoolId {
        self.memory.id()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// The current table of the segments and of their states in the groups, with its index. All threads share it.
    pub(crate) fn published(&self) -> &Arc<Published> {
        &self.table
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Replaces the table with the result of `change`, which runs under the lock of the pool's arena (the list of its
    /// segments and blocks).
    pub(super) fn update_table(&self, change: impl FnOnce(&Table) -> Table) {
        // The lock prevents lost updates: every change of the table, here or in `publish_last`, runs under it.
        let _alone = self.memory.arena();
        self.table.store(change(&self.table.load()));
        places_changed();
    }

    /// Adds the last segment of `arena` to the published table. `arena` is this pool's arena, which the caller has
    /// locked.
    #[cold]
    pub(crate) fn publish_last(&self, arena: &SymmetricArena) {
        if let Some(SymmetricSegment { ordinal, bytes, memory, .. }) = arena.segments().last() {
            self.table.store(self.table.load().with_segment(*ordinal, memory.address, *bytes));
        }
    }

    /// Publishes the group's [poison](crate::Poison) in the table, if the group is poisoned.
    pub(super) fn publish_poison(&self, group_state: &GroupState) {
        if let Some(poison) = group_state.log.poison() {
            self.update_table(|table| table.with_poison(group_state.log.group(), poison.clone()));
        }
    }

    /// Returns the state of group `id` on this rank. The first call creates the state, for the members `ranks`.
    pub fn group_state(&self, id: GroupId, ranks: Vec<u32>) -> Arc<Mutex<GroupState>> {
        let create = || {
            let mut log = GroupLog::new(self.id(), id, self.domain.rank(), ranks);
            self.retired().iter().for_each(|ordinal| log.retire(*ordinal));
            let places = Places { pool: self.id(), group: id, table: Arc::downgrade(&self.table) };
            GroupState::new(log, Arc::new(places))
        };
        lock(&self.group_states).entry(id).or_insert_with(|| Arc::new(Mutex::new(create()))).clone()
    }

    pub(crate) fn known_state(&self, id: GroupId) -> Option<Arc<Mutex<GroupState>>> {
        lock(&self.group_states).get(&id).cloned()
    }

    /// Resets the state of a group whose communicator has ended. Also removes the group's [poison](crate::Poison).
    pub(crate) fn forget(&self, group: GroupId) {
        // Drop `_peers` at the end of this function, outside of the locks. It owns the signal pads (memory through
        // which kernels signal each other), and the drop of its last reference waits for kernels that use the pads.
        let _peers = self.known_state(group).and_then(|group_state| {
            let mut group_state = lock(&group_state);
            let peers = group_state.peers.take();
            group_state.mapped.leave(&self.memory);
            group_state.forget(&self.retired());
            peers
        });
        self.update_table(|table| table.without_group(group).with_pending(group, None));
    }

    /// Removes retired segments from the table, and records their retirement in the logs of all groups. Returns true if
    /// one of the groups is [poisoned](crate::Poison).
    pub(super) fn remove_segments(&self, ordinals: &[u32]) -> bool {
        self.update_table(|table| table.without_segments(ordinals));
        lock(&self.retired).extend(ordinals);
        let group_states: Vec<Arc<Mutex<GroupState>>> = lock(&self.group_states).values().cloned().collect();
        let mut is_poisoned = false;
        for group_state in group_states {
            let mut group_state = lock(&group_state);
            is_poisoned |= group_state.log.poison().is_some();
            ordinals.iter().for_each(|ordinal| group_state.log.retire(*ordinal));
        }
        is_poisoned
    }

    fn retired(&self) -> Vec<u32> {
        lock(&self.retired).clone()
    }

    /// This rank's counters of the pool's [meetings](Meetings): agreements in which all ranks of the domain take part.
    pub fn meetings(&self) -> MutexGuard<'_, Meetings> {
        lock(&self.meetings)
    }
}

impl Drop for Memberships {
    fn drop(&mut self) {
        self.memory.orphan();
        // Remove this pool's entries from each group's list of mapped segments, unless messages of the group's direct
        // path (`crate::direct`) may still use them. The list may outlive this pool, and the entries keep the pool's
        // memory allocated.
        for group_state in lock(&self.group_states).values() {
            lock(group_state).mapped.leave(&self.memory);
        }
    }
}
