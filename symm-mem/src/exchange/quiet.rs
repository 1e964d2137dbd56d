//! Permission to make those driver calls of an [exchange](super::Exchange) that may wait for the device.
//!
//! Two calls of the driver may block until all work of the device has ended: `cuIpcCloseMemHandle`, which closes memory
//! opened by legacy IPC handle, and `cuMemFree`. In this file, to *close memory* means to make one of these calls.
//! Until the call returns, other threads of the process block inside the driver, for example in a copy or when they
//! record an event (measured on H200). If the work of the device waits for work that one of these threads was about to
//! enqueue, the process deadlocks. Two processes can also deadlock each other: both close memory, and the device of
//! each waits for work that a blocked thread of the other process was about to enqueue.
//!
//! So an exchange closes memory only in a *quiet moment*: while no rank of the process has a transfer under way. While
//! the exchange closes memory, no transfer begins. Every transfer ends, at the latest by its deadline. But if new
//! transfers always begin before the earlier ones have ended, there is no quiet moment. So code that waits until memory
//! is closed must use a deadline of its own.
//!
//! Virtual memory needs no quiet moment: on H200 with driver 580, `cuMemUnmap`, `cuMemRelease` and
//! `cuMemAddressFree` return while streams wait and kernels run.
//!
//! This module considers only transfers. But other work of a device, such as NCCL kernels or kernels that wait for
//! signals, can wait for another rank. Before a program drops a [plan](super::Plan) or [regions](super::Regions), this
//! other work must have ended, or all ranks must have enqueued everything that it waits for. The same applies to such
//! work that is enqueued later, until the memory of the plan or regions is closed and freed
//! ([`Exchange::close`](super::Exchange::close) waits for that).

use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
    atomic::{AtomicUsize, Ordering},
};

/// Number of operations of transfers that are under way in this process (signals, waits, copies and graph launches),
/// plus the number of entries in the lists of failed plans of all [watch threads](super::watch).
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// Keeps transfers from beginning while a thread closes memory. It is locked shared to enqueue a transfer, and
/// exclusively to close memory. Exclusive locks are taken only with `try_write`, because a thread that waits for one
/// would block later shared locks.
static GATE: RwLock<()> = RwLock::new(());

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

/// Returns the permission to close memory, or `None` if a transfer is under way, or if another thread is enqueueing one
/// or closing memory. No thread can enqueue a transfer until the permission is dropped.
pub(super) fn try_quiesce() -> Option<RwLockWriteGuard<'static, ()>> {
    let gate = match GATE.try_write() {
        Ok(gate) => gate,
        Err(TryLockError::Poisoned(gate)) => gate.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    (UNDER_WAY.load(Ordering::Acquire) == 0).then_some(gate)
}

/// Drops `owner` and the memory that it owns, in a quiet moment if freeing the memory `may_wait` for the device. Returns
/// `owner` if there is no quiet moment now, or if another reference to it exists: its holder must not be the one that
/// frees the memory. One operation both checks for other references and removes this one.
pub(super) fn free<T>(owner: Arc<T>, may_wait: bool) -> Option<Arc<T>> {
    let moment = may_wait.then(try_quiesce);
    if matches!(moment, Some(None)) { Some(owner) } else { Arc::try_unwrap(owner).err() }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::*;

    rusty_fork_test! {
        #[test]
        fn memory_is_closed_while_no_transfer_is_under_way_and_none_begins() {
            drop(enqueueing());
            begun();
            assert!(try_quiesce().is_none(), "a transfer is under way");
            ended();
            let closing = try_quiesce().unwrap();
            assert!(try_quiesce().is_none(), "another thread closes memory");
            assert!(GATE.try_read().is_err(), "nobody enqueues while memory is closed");
            drop(closing);
            assert!(try_quiesce().is_some());
        }
    }

    #[test]
    fn memory_of_a_plan_that_another_thread_uses_is_freed_later() {
        let (plan, watched) = (Arc::new(()), Arc::new(()));
        let used = watched.clone();
        assert!(free(plan, false).is_none(), "no other thread uses it");
        let kept = free(watched, false).expect("another thread uses it");
        drop(used);
        assert!(free(kept, false).is_none());
    }
}
