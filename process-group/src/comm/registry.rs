//! The ranges that one communicator has registered or has still to register.
//!
//! Registration is local, but no other thread may be inside NCCL with the communicator at the same time. Requests for
//! an allocator's segments are therefore recorded first, and executed at once if no other thread is inside. Otherwise
//! the communicator's next call executes the requests before its own work. So a request never waits, and no call uses
//! memory before its registration.
//!
//! A [`SegmentHold`] keeps the memory of a range alive until the range is deregistered, or the communicator is gone.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, PoisonError},
};

use super::{ArgumentError, CommError, Result};
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

pub(super) const REGISTER: &str = "ncclCommRegister";
pub(super) const DEREGISTER: &str = "ncclCommDeregister";

/// Keeps registered memory alive as long as this value lives. The methods are called with the result of each
/// registration and deregistration. The registry's lock is not held during these calls.
pub(crate) trait SegmentHold: Send + Sync {
    fn registered(&self);
    fn deregistered(&self);
    /// The memory could not be registered.
    fn not_registered(&self, reason: &str);
    /// NCCL failed to deregister the memory, which stays registered until the communicator is gone.
    fn not_deregistered(&self);
}

/// The ranges that one communicator has registered.
#[derive(Default)]
pub(crate) struct Registry {
    /// True while requests are pending.
    has_pending: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Ranges by start address. No two ranges overlap.
    pub(super) ranges: BTreeMap<u64, Range>,
    /// Start addresses of the ranges with a pending request. The phase of a range says which request.
    pub(super) todo: VecDeque<u64>,
    /// True once the communicator is about to end, or has ended. New requests to register are then ignored.
    pub(super) ending: bool,
}

pub(super) struct Range {
    pub(super) bytes: usize,
    pub(super) phase: Phase,
    /// True if deregistration was requested while NCCL was registering the range. The range is then deregistered
    /// afterwards.
    pub(super) unwanted: bool,
    pub(super) hold: Option<Arc<dyn SegmentHold>>,
}

/// NCCL's registration handle as an address; 0 if NCCL returned no handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) usize);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Registration was requested, and has not started.
    Coming,
    /// A thread is inside NCCL, registering or deregistering the range.
    Moving,
    Registered(Handle),
    /// Deregistration was requested, and has not started.
    Leaving(Handle),
    /// NCCL failed to deregister the range.
    Stuck,
}

pub(super) enum Job {
    Register(u64, usize),
    Deregister(u64, Handle),
}

impl Registry {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if requests are pending that the next call has to execute. One atomic load.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::Relaxed)
    }

    /// Returns the number of ranges that are registered with NCCL.
    pub(crate) fn len(&self) -> usize {
        let known = |range: &&Range| !matches!(range.phase, Phase::Coming | Phase::Moving);
        self.lock().ranges.values().filter(known).count()
    }

    /// Returns true if the `bytes` at `address` lie in one range that is registered with NCCL, or will be before the
    /// next call.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let state = self.lock();
        let known = state.ranges.range(..=address).next_back();
        known.is_some_and(|(begin, range)| {
            let effective = match range.phase {
                Phase::Coming | Phase::Moving => !range.unwanted,
                Phase::Registered(handle) => handle != Handle(0),
                Phase::Leaving(_) | Phase::Stuck => false,
            };
            effective && address.saturating_add(bytes) <= begin.saturating_add(range.bytes as u64)
        })
    }

    /// Records a range to register. Fails if the range overlaps a recorded one. Does nothing if the communicator is
    /// about to end, or has ended.
    pub(super) fn note(&self, address: u64, bytes: usize, hold: Arc<dyn SegmentHold>) -> Result<()> {
        let range = Range { bytes, phase: Phase::Coming, unwanted: false, hold: Some(hold) };
        self.insert(REGISTER, address, range)
    }

    pub(super) fn insert(&self, call: &'static str, address: u64, range: Range) -> Result<()> {
        let mut state = self.lock();
        if state.ending && range.phase == Phase::Coming {
            return Ok(());
        }
        let end = address.saturating_add(range.bytes as u64);
        let before = state.ranges.range(..end).next_back();
        if let Some((at, known)) = before.filter(|(at, known)| **at + known.bytes as u64 > address) {
            let (known, known_bytes) = (*at, known.bytes);
            let bytes = range.bytes;
            return Err(ArgumentError::RegisteredTwice { call, address, bytes, known, known_bytes }.into());
        }
        if range.phase == Phase::Coming {
            state.todo.push_back(address);
            self.has_pending.store(true, Ordering::Release);
        }
        state.ranges.insert(address, range);
        Ok(())
    }

    /// Stops accepting new ranges.
    pub(super) fn retire(&self) {
        self.lock().ending = true;
    }

    /// Returns the next request to execute.
    pub(super) fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        while let Some(address) = state.todo.pop_front() {
            let ending = state.ending;
            let Some(range) = state.ranges.get_mut(&address) else { continue };
            match range.phase {
                // The communicator is about to end: cancel the registration.
                Phase::Coming if ending => drop(state.ranges.remove(&address)),
                Phase::Coming => {
                    range.phase = Phase::Moving;
                    return Some(Job::Register(address, range.bytes));
                }
                Phase::Leaving(handle) => {
                    range.phase = Phase::Moving;
                    return Some(Job::Deregister(address, handle));
                }
                Phase::Moving | Phase::Registered(_) | Phase::Stuck => {}
            }
        }
        self.has_pending.store(false, Ordering::Relaxed);
        None
    }

    /// Records the result of a registration.
    pub(super) fn came(&self, address: u64, result: &Result<Handle>) {
        let mut state = self.lock();
        let hold = state.ranges.get(&address).and_then(|range| range.hold.clone());
        match result {
            Ok(handle) => {
                if let Some(range) = state.ranges.get_mut(&address) {
                    let unwanted = range.unwanted;
                    range.phase = if unwanted { Phase::Leaving(*handle) } else { Phase::Registered(*handle) };
                    if unwanted {
                        state.todo.push_back(address);
                        self.has_pending.store(true, Ordering::Release);
                    }
                }
            }
            Err(_) => drop(state.ranges.remove(&address)),
        }
        drop(state);
        match (hold, result) {
            (Some(hold), Ok(_)) => hold.registered(),
            (Some(hold), Err(error)) => hold.not_registered(&reason(address, error)),
            (None, _) => {}
        }
    }

    /// Records the result of a deregistration.
    pub(super) fn went(&self, address: u64, result: &Result<()>) {
        let mut state = self.lock();
        let hold = match result {
            Ok(()) => state.ranges.remove(&address).and_then(|range| range.hold),
            Err(_) => state.ranges.get_mut(&address).and_then(|range| {
                range.phase = Phase::Stuck;
                range.hold.clone()
            }),
        };
        drop(state);
        if let Some(hold) = hold {
            if result.is_ok() { hold.deregistered() } else { hold.not_deregistered() }
        }
    }

    /// Requests the deregistration of a range. A registration that has not started is cancelled instead.
    pub(super) fn leave(&self, call: &'static str, address: u64) -> Result<()> {
        let mut state = self.lock();
        let Some(range) = state.ranges.get_mut(&address) else {
            return Err(ArgumentError::NotRegistered { call, address }.into());
        };
        match range.phase {
            Phase::Coming => drop(state.ranges.remove(&address)),
            Phase::Moving => range.unwanted = true,
            Phase::Registered(handle) => {
                range.phase = Phase::Leaving(handle);
                state.todo.push_back(address);
                self.has_pending.store(true, Ordering::Release);
            }
            Phase::Leaving(_) | Phase::Stuck => {}
        }
        Ok(())
    }

    /// Removes all ranges. Called once the communicator is gone, or released to its owner.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.ending = true;
        let ranges = std::mem::take(&mut state.ranges);
        state.todo.clear();
        drop(state);
        let known = ranges.values().filter(|range| range.phase != Phase::Coming);
        known.filter_map(|range| range.hold.as_ref()).for_each(|hold| hold.deregistered());
        // Dropping the holds may free the memory, so no lock is held here.
        drop(ranges);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} ranges)", self.len())
    }
}

/// A range that could not be registered or deregistered. `bytes` is 0 for a deregistration. `address` and `bytes` are 0
/// for a failure that concerns no single range.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) is_registration: bool,
    pub(crate) source: Box<CommError>,
}

/// Returns the reason why the range at an address is not registered, in words.
pub(super) fn reason(address: u64, error: &CommError) -> String {
    format!("the range at {address:#x} could not be registered: {}", crate::error_text(error))
}

#[cfg(test)]
mod interleavings {
    use super::*;
    use crate::sync::model::{check, thread};

    struct Memory;

    impl SegmentHold for Memory {
        fn registered(&self) {}
        fn deregistered(&self) {}
        fn not_registered(&self, _: &str) {}
        fn not_deregistered(&self) {}
    }

    /// Another thread adds segments while a communicator is destroyed or aborted.
    #[test]
    fn what_comes_while_a_communicator_ends_is_not_kept() {
        for is_destroyed in [true, false] {
            check(move || {
                let (registry, memory) = (Arc::new(Registry::default()), Arc::new(Memory));
                let coming = {
                    let (registry, memory) = (registry.clone(), memory.clone());
                    thread::spawn(move || {
                        for address in [1, 2] {
                            registry.note(address, 1, memory.clone()).unwrap();
                        }
                    })
                };
                if is_destroyed {
                    registry.retire();
                    assert!(registry.next().is_none(), "nothing is begun towards the end");
                }
                registry.clear();
                coming.join().unwrap();
                assert_eq!(Arc::strong_count(&memory), 1, "memory is kept by what has ended");
            });
        }
    }
}
