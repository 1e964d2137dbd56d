//! Permission to make those driver calls of an [exchange](super::Exchange) that may wait for the device.
//!
//! Two calls of the driver may block until all work of the device has ended: `cuIpcCloseMemHandle`, which closes memory
//! opened by legacy IPC handle, and `cuMemFree`. In this file, to *close memory* means to make one of these calls.
//! Until the call returns, other threads of the process block inside the driver, including threads of other ranks. If
//! the work of the device waits for work that one of these threads was about to enqueue, the process deadlocks (seen in
//! three of four runs, with four H200 and one thread per rank).
//!
//! So in a process of several ranks, an exchange closes memory only in a *quiet moment*: while no rank of the process
//! has a transfer under way. While the exchange closes memory, no transfer begins. Every transfer ends, at the latest
//! by its deadline. But if new transfers always begin before the earlier ones have ended, there is no quiet moment. So
//! code that waits until memory is closed must use a deadline of its own.
//!
//! A process of one rank needs no quiet moment. Its device may wait for ranks of other processes, but those ranks do
//! not block in this process's driver. While such a process closes memory, a second rank cannot create an exchange in
//! it, because that rank might enqueue transfers at once.
//!
//! Virtual memory needs no quiet moment either: on H200 with driver 580, `cuMemUnmap`, `cuMemRelease` and
//! `cuMemAddressFree` return while streams wait and kernels run.
//!
//! This module considers only transfers. But other work of a device, such as NCCL kernels or kernels that wait for
//! signals, can wait for another rank of the process. When a program drops a [plan](super::Plan) or
//! [regions](super::Regions) in a process of several ranks, this other work must have ended, or must depend only on
//! work that is already enqueued.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use process_group::store::Deadline;

use crate::lock::lock;

/// Interval at which [`Present::new`] checks whether another rank still closes memory.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Number of operations of transfers that are under way in this process (signals, waits, copies and graph launches),
/// plus the number of entries in the lists of failed plans of all [watch threads](super::watch).
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// In a process of several ranks, keeps transfers from beginning while a thread is closing memory. It is locked
///
/// - shared, to enqueue a transfer;
/// - exclusively, to close memory in a process of several ranks;
/// - shared, to close memory in a process of one rank;
/// - exclusively, by [`Present::new`], so that no second rank appears while the only rank closes memory.
///
/// Exclusive locks are taken only with `try_write`, because a thread that waits for one would block later shared locks.
static GATE: RwLock<()> = RwLock::new(());
/// The rank of each exchange of this process; one entry per exchange.
static RANKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Increments [`UNDER_WAY`]. Each call must be followed by one call of [`ended`].
pub(super) fn begun() {
    UNDER_WAY.fetch_add(1, Ordering::AcqRel);
}

pub(super) fn ended() {
    UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
}

/// Locks [`GATE`] shared. The caller takes the lock before it enqueues an operation, and holds it until it has counted
/// the operation with [`begun`].
pub(super) fn enqueueing() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the permission to close memory, or `None` if it cannot be given now. A process of one rank needs no quiet
/// moment. A process of several ranks does, and none of its threads can enqueue a transfer until the permission is
/// dropped.
pub(super) fn try_quiesce() -> Option<Moment> {
    if let Some(shared) = unless_held(GATE.try_read())
        && is_alone(&ranks())
    {
        return Some(Moment::OfOneRank { _gate: shared });
    }
    let gate = unless_held(GATE.try_write())?;
    (UNDER_WAY.load(Ordering::Acquire) == 0).then_some(Moment::OfSeveral { _gate: gate })
}

fn unless_held<T>(tried: Result<T, TryLockError<T>>) -> Option<T> {
    match tried {
        Ok(gate) => Some(gate),
        Err(TryLockError::Poisoned(gate)) => Some(gate.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The permission that [`try_quiesce`] returns.
pub(super) enum Moment {
    OfOneRank { _gate: RwLockReadGuard<'static, ()> },
    OfSeveral { _gate: RwLockWriteGuard<'static, ()> },
}

/// An exchange's entry in [`RANKS`]. Dropping this value removes the entry.
#[derive(Debug)]
pub(super) struct Present(u32);

impl Present {
    /// Registers an exchange of `rank`. If all other exchanges of this process belong to one other rank, first waits
    /// until no thread of that rank closes memory or enqueues a transfer. Returns `None` if a thread still does so at
    /// the deadline.
    pub(super) fn new(rank: u32, deadline: Deadline) -> Option<Self> {
        loop {
            // This lock is held until the rank is registered. `try_quiesce` locks the gate before it reads the list of
            // ranks. So either memory is being closed and this lock fails, or `try_quiesce` sees the new rank.
            let gate = unless_held(GATE.try_write());
            let mut ranks = ranks();
            if gate.is_some() || ranks.contains(&rank) || !is_alone(&ranks) {
                ranks.push(rank);
                return Some(Self(rank));
            }
            drop(ranks);
            if deadline.expired() {
                return None;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns whether all exchanges belong to one rank.
fn is_alone(ranks: &[u32]) -> bool {
    ranks.iter().all(|rank| Some(rank) == ranks.first())
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut ranks = ranks();
        if let Some(at) = ranks.iter().position(|rank| *rank == self.0) {
            ranks.swap_remove(at);
        }
    }
}

fn ranks() -> MutexGuard<'static, Vec<u32>> {
    lock(&RANKS)
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;

    rusty_fork_test! {
        /// In a process of one rank, other threads may enqueue transfers while a thread closes memory. So the first
        /// exchange of a second rank must wait until the memory is closed. In a process of several ranks, a close is
        /// refused while a transfer is under way, and no transfer begins during a close.
        #[test]
        fn a_second_rank_comes_when_the_first_closes_no_memory() {
            let (soon, far) = (Duration::from_millis(20), Duration::from_secs(60));
            let new = |rank, patience| Present::new(rank, Deadline::after(patience));
            let first = new(0, far).unwrap();
            let (closing, enqueueing) = (try_quiesce().unwrap(), enqueueing());
            drop(enqueueing);
            let also_first = new(0, Duration::ZERO).unwrap();
            assert!(new(1, soon).is_none(), "memory is being closed");
            drop(closing);
            let second = new(1, far).unwrap();
            begun();
            assert!(try_quiesce().is_none(), "a transfer is under way");
            ended();
            let closing = try_quiesce().unwrap();
            new(2, Duration::ZERO).unwrap();
            assert!(GATE.try_read().is_err(), "nobody enqueues while memory of several is closed");
            drop((closing, second, first, also_first));
            assert!(ranks().is_empty());
        }
    }
}
