//! When peers' memory is closed and plans' memory is freed, in a process of several ranks.
//!
//! The driver lets neither happen before the device is idle, and while it waits other threads of the process come to a
//! stop in it, those of other ranks too. But what that device waits for may be what one of them was about to enqueue: then
//! nobody goes on (seen on four H200, ranks as threads: three of four runs). So it is done while no rank of the process has a
//! transfer under way, and none begins one meanwhile. Every transfer has a deadline, so the moment comes.
//!
//! A process of one rank does not wait: what its device waits for are other processes, which do not stop in this one's
//! driver.

use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
    atomic::{AtomicUsize, Ordering},
};

/// Transfers under way in this process.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// Held by those who enqueue one, together, and by who closes memory, alone.
static GATE: RwLock<()> = RwLock::new(());
/// The rank of each exchange of this process.
static RANKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Something is under way, until [`ended`].
pub(super) fn begun() {
    UNDER_WAY.fetch_add(1, Ordering::AcqRel);
}

pub(super) fn ended() {
    UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
}

/// To be held from before something is enqueued until it [has begun](begun).
pub(super) fn enqueueing() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives memory may be closed; it keeps others from enqueueing. `None`: not now. Nobody is waited for: who is
/// enqueueing may wait for the device.
pub(super) fn moment() -> Option<Moment> {
    let ranks = ranks();
    let is_alone = ranks.iter().all(|rank| Some(rank) == ranks.first());
    drop(ranks);
    if is_alone {
        return Some(Moment { _gate: None });
    }
    let gate = match GATE.try_write() {
        Ok(gate) => gate,
        Err(TryLockError::Poisoned(gate)) => gate.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    (UNDER_WAY.load(Ordering::Acquire) == 0).then_some(Moment { _gate: Some(gate) })
}

/// See [`moment`].
pub(super) struct Moment {
    _gate: Option<RwLockWriteGuard<'static, ()>>,
}

/// An exchange of this process, as long as it lives.
pub(super) struct Present(u32);

impl Present {
    pub(super) fn new(rank: u32) -> Self {
        ranks().push(rank);
        Self(rank)
    }
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
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}
