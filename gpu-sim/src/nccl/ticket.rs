//! The order of a communicator's work on one rank: the host's launch order, whatever the streams.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::comm::Comm;
use super::error::Interrupted;
use super::shm::Plane;

/// The order of launches on one communicator.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    turn: u64,
    /// Finished out of order: work that was dropped unrun.
    early: BTreeSet<u64>,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if no launched work is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.turn == state.next
    }
}

/// A position in a communicator's queue, held until the work is done or dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    comm: Arc<Comm>,
    number: u64,
    used: bool,
}

impl Ticket {
    /// Takes the next position. Must be called in launch order, on the launching thread.
    pub(crate) fn take(comm: &Arc<Comm>) -> Self {
        let mut state = comm.queue.state();
        let number = state.next;
        state.next += 1;
        Self { comm: comm.clone(), number, used: false }
    }

    /// Waits until everything launched before is done.
    pub(crate) fn wait(&mut self) -> Result<(), Interrupted> {
        self.used = true;
        self.comm.wait(
            Plane::Stream,
            || {
                format!(
                    "work {} of {} to end before work {}",
                    self.comm.queue.state().turn,
                    self.comm,
                    self.number
                )
            },
            || self.comm.queue.state().turn == self.number,
        )
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.used {
            // Dropped unrun, as by a poisoned context: tell the other ranks not to wait for this one.
            self.comm.report_fault();
        }
        let mut state = self.comm.queue.state();
        state.early.insert(self.number);
        loop {
            let turn = state.turn;
            if !state.early.remove(&turn) {
                break;
            }
            state.turn += 1;
        }
        drop(state);
        self.comm.signal().notify();
    }
}
