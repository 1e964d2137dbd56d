//! Positions of a group's buffers in windows that all members have in common.
//!
//! If a collective's buffers lie in windows, NCCL requires the same offset in the same window on every rank.
//! NCCL does not check this, and computes with wrong memory if the offsets differ. Members therefore compare
//! the positions: in the hash of every call, and before the launch in [checked
//! mode](super::Builder::checked).

use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicBool, Ordering},
};

use bootstrap::hash::fnv64;

use crate::{
    comm::{Communicator, Op},
    memory::{self, PlanKey, PlanNames, WindowOffset},
};

/// Finds the positions of addresses in a plan. A plan is a layout of memory that is the same on all ranks,
/// such as that of a symmetric pool. [`ProcessGroup::compare_places`](super::ProcessGroup::compare_places) adds a plan
/// to a group.
pub trait SymmetricPlaces: Send + Sync {
    /// Returns the plan.
    fn plan(&self) -> SymmetricPlan;

    /// Describes in one line of text the position of the range of `bytes` bytes at `address`. The text is the
    /// same on every rank for the same position. Returns `None` if the range is not part of the plan.
    fn locate(&self, address: u64, bytes: u64) -> Option<String>;

    /// Returns the segment of the plan that contains `address`, if that segment is in a window of the group.
    /// The default implementation returns `None`.
    fn window(&self, address: u64) -> Option<SymmetricSegment> {
        let _ = address;
        None
    }
}

/// Identifies a plan; see [`SymmetricPlaces`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymmetricPlan {
    /// Equal on all ranks for one plan, and different for different plans. Members compare a hash of all bytes.
    pub identity: Vec<u8>,
    /// The plan's name in descriptions of calls.
    pub name: String,
}

/// A segment of a plan. On every rank the segment is in a window of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymmetricSegment {
    /// The segment's number in the plan, equal on all ranks.
    pub segment: u32,
    /// The segment's first address on this rank.
    pub start: u64,
    /// One past the segment's last address on this rank.
    pub end: u64,
}

/// A segment, with the key of its plan.
pub(super) struct PlannedSegment {
    plan: PlanKey,
    pub(super) segment: SymmetricSegment,
}

impl PlannedSegment {
    pub(super) fn place(&self, address: u64) -> WindowOffset {
        WindowOffset::new(self.plan, self.segment.segment, address - self.segment.start)
    }
}

/// The plans known to a group.
#[derive(Default)]
pub(super) struct Places {
    known: RwLock<Vec<(PlanKey, Arc<dyn SymmetricPlaces>)>>,
    /// True if `known` is not empty. Saves taking the lock.
    any: AtomicBool,
    names: Arc<PlanNames>,
}

impl Places {
    /// Makes an empty list of plans. `names` collects the names of plans for descriptions of the group's
    /// calls.
    pub(super) fn new(names: Arc<PlanNames>) -> Self {
        Self { names, ..Self::default() }
    }

    fn known(&self) -> RwLockReadGuard<'_, Vec<(PlanKey, Arc<dyn SymmetricPlaces>)>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the plan of `places`, unless the same `Arc` was added before. Returns true if the plan was added.
    pub(super) fn add(&self, places: Arc<dyn SymmetricPlaces>) -> bool {
        let SymmetricPlan { identity, name } = places.plan();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|(_, other)| Arc::ptr_eq(other, &places)) {
            return false;
        }
        let plan = PlanKey { digest: fnv64(&identity), number: self.names.add(&name) };
        known.push((plan, places));
        self.any.store(true, Ordering::Release);
        true
    }

    pub(super) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// See [`SymmetricPlaces::locate`].
    pub(super) fn locate(&self, address: u64, bytes: u64) -> Option<String> {
        self.known().iter().find_map(|(_, places)| places.locate(address, bytes))
    }

    /// See [`SymmetricPlaces::window`].
    pub(super) fn window(&self, address: u64) -> Option<PlannedSegment> {
        if self.are_none() {
            return None;
        }
        let inside = |it: &PlannedSegment| (it.segment.start..it.segment.end).contains(&address);
        let of_plan = |(plan, places): &(PlanKey, Arc<dyn SymmetricPlaces>)| {
            Some(PlannedSegment { plan: *plan, segment: places.window(address)? })
        };
        self.known().iter().find_map(of_plan).filter(inside)
    }

    /// Sets the window offsets in an op. Used when buffers are not checked, because then no other code looks
    /// the buffers up.
    pub(super) fn note(&self, communicator: &Communicator, op: &mut Op) {
        if self.are_none() {
            return;
        }
        let mut places = [WindowOffset::default(); 2];
        for (buffer, address, bytes) in op.symmetric_buffers(communicator.place()) {
            let window = self.window(address).filter(|it| address.saturating_add(bytes) <= it.segment.end);
            let place =
                window.filter(|_| bytes > 0).map_or(WindowOffset::default(), |window| window.place(address));
            places[usize::from(buffer == "receive")] = place;
        }
        op.places = places;
    }
}

/// Makes all groups of this process look buffers up again: whether the memory exists, and its position. Call
/// this function after windows of a plan, or memory in such a window, were added or removed. Call it also
/// after memory of a plan was freed, even if that memory was in no window.
pub fn places_changed() {
    memory::renew();
}
