//! The position of a group's buffers in windows that its members have in common.
//!
//! NCCL requires a collective's buffers at the same offset of the same window on every rank. It does not
//! check that, and computes with other memory if they differ. Members therefore compare the positions: in the
//! hash of every call, and before the launch in [checked mode](super::Builder::checked).

use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicBool, Ordering},
};

use bootstrap::hash::fnv64;

use crate::{
    comm::{Communicator, Task},
    memory::{self, PlanKey, PlanNames, WindowOffset},
};

/// Names memory that ranks hold at the same positions of a common plan, such as that of a symmetric pool.
pub trait SymmetricPlaces: Send + Sync {
    /// Returns the plan.
    fn plan(&self) -> SymmetricPlan;

    /// Describes the position of the `bytes` at `address` in one line of text, which is the same on every
    /// rank for the same position. Returns `None` if they are not part of the plan.
    fn locate(&self, address: u64, bytes: u64) -> Option<String>;

    /// Returns the segment of the plan that contains `address`, if it is in a window of the group.
    fn window(&self, address: u64) -> Option<SymmetricSegment> {
        let _ = address;
        None
    }
}

/// Identifies the plan by which ranks hold memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymmetricPlan {
    /// Equal on all ranks for one plan, and different for different plans. All of it is compared.
    pub identity: Vec<u8>,
    /// The plan's name in descriptions of calls.
    pub name: String,
}

/// A segment of a plan that is in a window of a group on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymmetricSegment {
    /// The segment's number in the plan, equal on all ranks.
    pub segment: u32,
    /// Its first address on this rank.
    pub start: u64,
    /// One past its last.
    pub end: u64,
}

/// A segment and its plan.
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
    /// True if there are any.
    any: AtomicBool,
    names: Arc<PlanNames>,
}

impl Places {
    /// Makes the plans of a group whose calls are described with `names`.
    pub(super) fn new(names: Arc<PlanNames>) -> Self {
        Self { names, ..Self::default() }
    }

    fn known(&self) -> RwLockReadGuard<'_, Vec<(PlanKey, Arc<dyn SymmetricPlaces>)>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the plan of `places`, unless this same value is known. Returns true if it was added.
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

    /// Records the position of a task's buffers that no other check looks up.
    pub(super) fn note(&self, communicator: &Communicator, task: &mut Task) {
        if self.are_none() {
            return;
        }
        let mut places = [WindowOffset::default(); 2];
        for (buffer, address, bytes) in task.symmetric_buffers(communicator.place()) {
            let window = self.window(address).filter(|it| address.saturating_add(bytes) <= it.segment.end);
            let place =
                window.filter(|_| bytes > 0).map_or(WindowOffset::default(), |window| window.place(address));
            places[usize::from(buffer == "receive")] = place;
        }
        task.places = places;
    }
}

/// Makes the groups of this process look up the position of buffers anew. Call it after windows of a plan, or
/// memory in one, were added or removed.
pub fn places_changed() {
    memory::renew();
}
