//! The structure lock, and the order of changes and deliveries that run without it.
//!
//! A *change* is one step of an operation that adds, moves or removes segments. It holds the structure lock, and
//! releases it only while trackers are called. Other threads can then make changes of their own. They do not find the
//! memory that the first change has taken out of a cache, or has not yet put into one. A thread whose result depends on
//! all memory therefore [waits](StructureLock::wait_for_changes) for the changes that are under way.
//!
//! Structural entries are all trace entries except those about blocks. They are numbered, and trackers get them in the
//! order of these numbers. For this, each delivery has a *turn*. Turns are numbered under the structure lock, and a
//! delivery waits for all earlier turns.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::{Registry, locked};
use crate::core::entry::Entry;
use crate::core::lock::RankedGuard;
use crate::core::segment::{PoolId, Segment, SegmentId};
use crate::core::tracker::{self, Slots};
use crate::sync::{Condvar, Mutex};

/// The state that the structure lock guards.
#[derive(Debug)]
pub(in crate::core) struct Structure {
    pub(in crate::core) trackers: Slots,
    /// The newest structural entries, oldest first.
    pub(in crate::core) ring: VecDeque<Entry>,
    /// The time of the newest structural entry, in nanoseconds since the allocator was created. Each entry has a
    /// later time than the one before it.
    pub(super) last_time: u64,
    /// Segments that should have been released, but are held.
    pub(in crate::core) quarantine: Vec<Segment>,
    next_segment: u64,
    next_pool: u32,
    next_turn: u64,
    /// The number of changes that have released the lock so far.
    changes: u64,
    /// The number of bytes that all threads have released to sources so far.
    pub(in crate::core) released: u64,
}

impl Default for Structure {
    fn default() -> Self {
        Self {
            trackers: Slots::from([]),
            ring: VecDeque::new(),
            last_time: 0,
            quarantine: Vec::new(),
            next_segment: 0,
            next_pool: 0,
            next_turn: 0,
            changes: 0,
            released: 0,
        }
    }
}

impl Structure {
    /// Returns the number for a new pool.
    pub(in crate::core) fn pool_id(&mut self) -> PoolId {
        let id = PoolId(self.next_pool);
        self.next_pool += 1;
        id
    }

    /// Returns the number for a new segment.
    pub(in crate::core) fn segment_id(&mut self) -> SegmentId {
        let id = SegmentId(self.next_segment);
        self.next_segment += 1;
        id
    }

    /// Takes the next turn. The caller must use it with [`Registry::in_turn`], since all later turns wait for it.
    pub(in crate::core) fn turn(&mut self) -> Turn {
        self.next_turn += 1;
        Turn(self.next_turn - 1)
    }
}

/// The place of a delivery in the order of deliveries.
#[derive(Debug)]
#[must_use = "later deliveries wait for it"]
pub(in crate::core) struct Turn(u64);

/// The turns and changes that are under way.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<ProgressState>,
    /// Notified when a turn or a change ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// The turn whose delivery may run.
    turn: u64,
    /// The numbers of the changes that have released the structure lock and have not ended.
    changes: BTreeSet<u64>,
}

impl Progress {
    /// Waits until `is_reached` returns true.
    fn wait_until(&self, is_reached: impl Fn(&ProgressState) -> bool) {
        let mut state = locked(&self.state);
        while !is_reached(&state) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, end: impl FnOnce(&mut ProgressState)) {
        end(&mut locked(&self.state));
        self.ended.notify_all();
    }
}

/// The structure lock, held by this thread.
pub(in crate::core) struct StructureLock<'a> {
    registry: &'a Registry,
    /// `None` only while the lock is released.
    guard: Option<RankedGuard<'a, Structure>>,
    /// The number that identifies this thread's current change. `None` if the change has not released the lock.
    change: Option<u64>,
    /// The number of changes made through this value that have released the lock.
    own_changes: u64,
    /// The number of bytes that this thread has released to sources since it took the lock.
    own_released: u64,
}

impl<'a> StructureLock<'a> {
    fn new(registry: &'a Registry, guard: RankedGuard<'a, Structure>) -> Self {
        Self { registry, guard: Some(guard), change: None, own_changes: 0, own_released: 0 }
    }

    /// Calls `call` without the lock, as part of a change that lasts until [`end_change`](Self::end_change), or until
    /// the lock is dropped.
    pub(in crate::core) fn unlocked<R>(&mut self, call: impl FnOnce() -> R) -> R {
        if self.change.is_none() {
            self.changes += 1;
            self.own_changes += 1;
            let number = self.changes;
            self.change = Some(number);
            locked(&self.registry.progress.state).changes.insert(number);
        }
        self.guard = None;
        let result = call();
        self.guard = Some(self.registry.structure.lock());
        result
    }

    /// Ends this thread's change. Before this call, all memory of the change must be in a cache or released.
    pub(in crate::core) fn end_change(&mut self) {
        if let Some(number) = self.change.take() {
            self.registry.progress.end(|state| _ = state.changes.remove(&number));
        }
    }

    /// Ends this thread's change, and waits for the changes that are under way now. The lock is released meanwhile.
    pub(in crate::core) fn wait_for_changes(&mut self) {
        self.end_change();
        let newest = self.changes;
        let is_over = |state: &ProgressState| state.changes.first().is_none_or(|first| *first > newest);
        if is_over(&locked(&self.registry.progress.state)) {
            return;
        }
        self.guard = None;
        self.registry.progress.wait_until(is_over);
        self.guard = Some(self.registry.structure.lock());
    }

    /// Like [`wait_for_changes`](Self::wait_for_changes), but also waits for changes that begin meanwhile. As long as
    /// the caller then holds the lock, no change is under way, so no segment is outside of its cache.
    pub(in crate::core) fn wait_for_all_changes(&mut self) {
        self.wait_for_changes();
        while !locked(&self.registry.progress.state).changes.is_empty() {
            self.wait_for_changes();
        }
    }

    /// Counts bytes that this thread has released to a source.
    pub(in crate::core) fn count_released(&mut self, bytes: u64) {
        self.released += bytes;
        self.own_released += bytes;
    }

    /// Returns the number of bytes that this thread has released to sources since it took the lock.
    pub(in crate::core) fn own_released(&self) -> u64 {
        self.own_released
    }

    /// Returns the number of changes by other threads that have released the lock. Changes of this thread from before
    /// it took the lock count too, so only the difference of two results has a meaning.
    pub(in crate::core) fn changes_of_others(&self) -> u64 {
        self.changes - self.own_changes
    }
}

impl Deref for StructureLock<'_> {
    type Target = Structure;
    fn deref(&self) -> &Structure {
        self.guard.as_ref().expect("the lock is released only inside its own methods")
    }
}

impl DerefMut for StructureLock<'_> {
    fn deref_mut(&mut self) -> &mut Structure {
        self.guard.as_mut().expect("the lock is released only inside its own methods")
    }
}

impl Drop for StructureLock<'_> {
    fn drop(&mut self) {
        self.end_change();
    }
}

impl Registry {
    /// Takes the structure lock. Must not be called inside a tracker.
    pub(in crate::core) fn structure(&self) -> StructureLock<'_> {
        StructureLock::new(self, self.structure.lock())
    }

    /// Takes the structure lock. Returns `None` inside a tracker: a change made there would wait for the delivery that
    /// called the tracker, and deadlock.
    pub(in crate::core) fn lock_structure(&self) -> Option<StructureLock<'_>> {
        (!tracker::inside()).then(|| self.structure())
    }

    /// Takes the structure lock if it is free.
    pub(in crate::core) fn try_structure(&self) -> Option<StructureLock<'_>> {
        self.structure.try_lock().map(|guard| StructureLock::new(self, guard))
    }

    /// Calls `deliver` after all earlier turns have ended. The caller must hold neither the structure lock nor a lock
    /// that a hit takes. A *hit* is a request that the free memory of its stream's cache serves.
    pub(in crate::core) fn in_turn<R>(&self, turn: Turn, deliver: impl FnOnce() -> R) -> R {
        /// Ends the turn even if `deliver` panics.
        struct End<'a>(&'a Progress);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end(|state| state.turn += 1);
            }
        }
        self.progress.wait_until(|state| state.turn == turn.0);
        let _end = End(&self.progress);
        deliver()
    }
}
