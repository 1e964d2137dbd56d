//! The order of a communicator's work on one rank: the order in which the host launched it, whatever the streams.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::comm::Comm;
use super::error::Interrupted;
use super::shm::Plane;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    turn: u64,
    /// Finished before their turn: work that was thrown away unrun.
    early: BTreeSet<u64>,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing that was launched is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.turn == state.next
    }
}

/// A place in a communicator's queue, kept until the work is done or thrown away.
#[derive(Debug)]
pub(crate) struct Ticket {
    comm: Arc<Comm>,
    number: u64,
    used: bool,
}

impl Ticket {
    /// Takes the next place. Called in launch order, on the launching thread.
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
            // Thrown away unrun, as a poisoned context does: the others would wait for us in vain.
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
