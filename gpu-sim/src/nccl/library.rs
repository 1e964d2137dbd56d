//! The library's state in a world: the objects behind its handles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nccl_sys::ncclComm_t;

use super::bootstrap::{Root, UniqueId, local::Meetings};
use super::comm::Comm;
use super::error::{Failure, Result};
use super::window::Windows;
use crate::sched::Scheduler;
use crate::world::{Leak, Machine, WorldState};

/// Handles are numbers that look like addresses. None is reused, and none can be dereferenced.
const FIRST_HANDLE: usize = 0x6ecc_1000;
const HANDLE_STEP: usize = 0x40;

/// All state of NCCL in a world.
#[derive(Debug)]
pub(crate) struct Library {
    next: AtomicUsize,
    comms: Mutex<BTreeMap<usize, Arc<Comm>>>,
    roots: Mutex<Vec<Root>>,
    pub(crate) meetings: Meetings,
    /// Addresses that `ncclMemAlloc` returned and that are not freed.
    pub(crate) allocations: Mutex<BTreeSet<u64>>,
}

impl Default for Library {
    fn default() -> Self {
        Self {
            next: AtomicUsize::new(FIRST_HANDLE),
            comms: Mutex::default(),
            roots: Mutex::default(),
            meetings: Meetings::default(),
            allocations: Mutex::default(),
        }
    }
}

impl Library {
    fn comms(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Comm>>> {
        self.comms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new handle.
    pub(crate) fn handle(&self) -> usize {
        self.next.fetch_add(HANDLE_STEP, Ordering::SeqCst)
    }

    /// Returns the communicator of a handle.
    pub(crate) fn comm(&self, handle: ncclComm_t) -> Result<Arc<Comm>> {
        if handle.is_null() {
            return Err(Failure::argument("the communicator is NULL"));
        }
        let found = self.comms().get(&(handle as usize)).cloned();
        found.ok_or_else(|| {
            Failure::argument(format!("{handle:p} is no communicator, or one that was destroyed or aborted"))
        })
    }

    /// Returns the communicator of a window: some calls name only the window.
    pub(crate) fn comm_of_window(&self, window: usize) -> Result<Arc<Comm>> {
        let has = |comm: &&Arc<Comm>| {
            comm.windows.lock().unwrap_or_else(PoisonError::into_inner).base(window).is_some()
        };
        let found = self.comms().values().find(has).cloned();
        found.ok_or_else(|| Failure::argument(format!("{window:#x} is no window")))
    }

    pub(crate) fn insert(&self, comm: &Arc<Comm>) {
        self.comms().insert(comm.handle, comm.clone());
    }

    /// Removes a communicator and releases its memory and its windows' memory, even if references to it remain.
    pub(crate) fn remove(&self, comm: &Comm) {
        self.comms().remove(&comm.handle);
        drop(comm.scratch.lock().unwrap_or_else(PoisonError::into_inner).take());
        // A finished root holds its thread's stack until it is dropped.
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).retain(|root| !root.is_over());
        *comm.windows.lock().unwrap_or_else(PoisonError::into_inner) = Windows::default();
    }

    /// Opens a bootstrap and returns its id.
    pub(crate) fn open_meeting(&self, machine: &Machine) -> Result<UniqueId> {
        if let Scheduler::Seeded(_) = machine.sched {
            return Ok(self.meetings.open());
        }
        let failed = |error| Failure::system(format!("opening the bootstrap's root failed: {error}"));
        let id = UniqueId::random().map_err(failed)?;
        let root = Root::start(id).map_err(failed)?;
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.retain(|root| !root.is_over());
        roots.push(root);
        Ok(id)
    }

    /// Closes a failed bootstrap of a communicator that was made from another. Such bootstraps use no unique id, so
    /// no root listens for the missing ranks.
    pub(crate) fn close_meeting(&self, id: UniqueId) {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        let closed: Vec<_> = roots.extract_if(.., |root| root.id == id).collect();
        drop(roots);
        drop(closed);
    }
}

impl WorldState for Library {
    fn leaks(&self) -> Vec<Leak> {
        self.comms().values().map(|comm| Leak { kind: "communicator", what: comm.to_string() }).collect()
    }

    fn stop(&self) {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for comm in std::mem::take(&mut *self.comms()).into_values() {
            comm.abort();
        }
    }
}
