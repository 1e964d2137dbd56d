//! The ranges that one communicator has registered or has still to register.
//!
//! Registration is local, but no other thread may be inside the communicator meanwhile. Requests that follow an
//! allocator's segments are therefore recorded first, and executed at once if the communicator is free. Otherwise the
//! next call that enters executes them before it enqueues anything. So a request never waits, and no call uses memory
//! before its registration.
//!
//! Memory is kept alive, by its [`SegmentHold`], until NCCL no longer knows it: until it is deregistered, or the
//! communicator is gone.

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

/// Keeps registered memory alive as long as the value lives, and is notified of the outcome. Called without a lock
/// held, on the thread that is inside the communicator.
pub(crate) trait SegmentHold: Send + Sync {
    fn registered(&self);
    fn deregistered(&self);
    /// It could not be registered.
    fn not_registered(&self, reason: &str);
    /// NCCL failed to deregister it.
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
    /// By address, without overlaps.
    pub(super) ranges: BTreeMap<u64, Range>,
    /// Addresses with a pending request. The range holds the request itself.
    pub(super) todo: VecDeque<u64>,
    /// Set when the communicator is about to end, or has ended. No range is added any more.
    pub(super) ending: bool,
}

pub(super) struct Range {
    pub(super) bytes: usize,
    pub(super) phase: Phase,
    /// The range is to be deregistered as soon as it is registered.
    pub(super) unwanted: bool,
    pub(super) hold: Option<Arc<dyn SegmentHold>>,
}

/// NCCL's handle as a number; 0 if NCCL gave none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) usize);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Coming,
    /// A thread is in NCCL with the range.
    Moving,
    Registered(Handle),
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

    /// Returns the number of ranges that NCCL knows.
    pub(crate) fn len(&self) -> usize {
        let known = |range: &&Range| !matches!(range.phase, Phase::Coming | Phase::Moving);
        self.lock().ranges.values().filter(known).count()
    }

    /// Returns true if the `bytes` at `address` lie in one range that NCCL knows, or will know before the next call.
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

    /// Records a range to register. It must not overlap another. Does nothing if the communicator is about to end.
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
                // Before the end, no registration is started.
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

    /// Forgets all ranges once the communicator is gone.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.ending = true;
        let ranges = std::mem::take(&mut state.ranges);
        state.todo.clear();
        drop(state);
        let known = ranges.values().filter(|range| range.phase != Phase::Coming);
        known.filter_map(|range| range.hold.as_ref()).for_each(|hold| hold.deregistered());
        // Memory is freed here, with no lock held.
        drop(ranges);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} ranges)", self.len())
    }
}

/// A range that could not be registered or deregistered.
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
