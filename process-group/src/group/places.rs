//! Where a group's buffers lie in windows that its members have in common.
//!
//! NCCL wants a collective's buffers at the same offset of the same window on every rank, and computes with whatever lies
//! there. So where they lie is a part of what members compare: of every call in the hash of what was called, and before the
//! launch in [checked mode](super::Builder::checked).

use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicBool, Ordering},
};

use super::ProcessGroup;
use crate::{
    comm::{Communicator, Task},
    memory::{self, CommonPlace},
};

/// Names memory that ranks hold at the same places of a common plan, such as that of a symmetric pool.
pub trait SymmetricPlaces: Send + Sync {
    /// Where the `bytes` at `address` lie, in one line of words that is the same on every rank for the same place; `None`
    /// if they are no part of the plan.
    fn locate(&self, address: u64, bytes: u64) -> Option<String>;

    /// The segment of the plan that `address` lies in, if it is in a window of the group.
    fn window(&self, address: u64) -> Option<SymmetricSegment> {
        let _ = address;
        None
    }
}

/// A segment of a plan that is in a window of a group on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymmetricSegment {
    /// The plan's number, equal on all ranks.
    pub plan: u64,
    /// The segment's number in the plan, equal on all ranks.
    pub segment: u32,
    /// Its first address on this rank.
    pub start: u64,
    /// One past its last.
    pub end: u64,
}

impl SymmetricSegment {
    pub(super) fn place(&self, address: u64) -> CommonPlace {
        CommonPlace::new(self.plan, self.segment, address - self.start)
    }
}

/// The plans that a group knows.
#[derive(Default)]
pub(super) struct Places {
    known: RwLock<Vec<Arc<dyn SymmetricPlaces>>>,
    /// Whether there are any.
    any: AtomicBool,
}

impl Places {
    fn known(&self) -> RwLockReadGuard<'_, Vec<Arc<dyn SymmetricPlaces>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// See [`SymmetricPlaces::locate`].
    pub(super) fn locate(&self, address: u64, bytes: u64) -> Option<String> {
        self.known().iter().find_map(|places| places.locate(address, bytes))
    }

    /// See [`SymmetricPlaces::window`].
    pub(super) fn window(&self, address: u64) -> Option<SymmetricSegment> {
        if self.are_none() {
            return None;
        }
        let inside = |segment: &SymmetricSegment| (segment.start..segment.end).contains(&address);
        self.known().iter().find_map(|places| places.window(address)).filter(inside)
    }

    /// Notes where the buffers of a task lie, which nobody looks at otherwise.
    pub(super) fn note(&self, communicator: &Communicator, task: &mut Task) {
        if self.are_none() {
            return;
        }
        let mut places = [CommonPlace::default(); 2];
        for (buffer, address, bytes) in task.symmetric_buffers(communicator.place()) {
            let window = self.window(address).filter(|window| address.saturating_add(bytes) <= window.end);
            let place =
                window.filter(|_| bytes > 0).map_or(CommonPlace::default(), |window| window.place(address));
            places[usize::from(buffer == "receive")] = place;
        }
        task.places = places;
    }
}

/// Has the groups of this process look up anew where buffers lie: to be called after windows of a plan, or memory that lies in
/// one, have come or gone.
pub fn places_changed() {
    memory::renew();
}

impl ProcessGroup {
    /// Has the members compare where the buffers of their collectives lie in `places`: those buffers that NCCL wants at the
    /// same offset of the same window on every rank. What lies in [windows](SymmetricPlaces::window) is a part of the hash of
    /// what was called, so that a difference is a [`CollectiveDiverged`](super::GroupError::CollectiveDiverged); in
    /// [checked mode](super::Builder::checked) all [places](SymmetricPlaces::locate) are compared before each launch. Every
    /// member does so at the same point of the program; done once for each value.
    pub fn compare_places(&self, places: Arc<dyn SymmetricPlaces>) {
        let own = &self.sight.places;
        let mut known = own.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|other| Arc::ptr_eq(other, &places)) {
            known.push(places);
            own.any.store(true, Ordering::Release);
            places_changed();
        }
    }
}
