//! Finds the times at which a process of several ranks may close peers' memory and free the memory of plans.
//!
//! The driver closes or frees memory only once the device is idle. While the driver waits for that, other threads of
//! the process block inside the driver, including threads of other ranks. But the device may wait for work that one of
//! these threads was about to enqueue. Then the process deadlocks (seen in three of four runs, with four H200 and one
//! thread per rank). So memory is closed only in a *quiet moment*: when no rank of the process has a transfer under
//! way. Until the memory is closed, no transfer may begin.
//!
//! Every transfer ends by its deadline, but with a steady flow of transfers a quiet moment may never come. So after
//! [`PATIENCE`] without a quiet moment, new rounds are held back for at most [`HOLD`]. A *round* is one execution of a
//! transfer or one notification, with the calls of both ends, or one launch of a graph on each rank. A call that begins
//! a round blocks while rounds are held back. If one end has already begun the round, the call of the other end does
//! not block. If no quiet moment comes within [`HOLD`], rounds are not held back again for [`REST`], because a transfer
//! under way may depend on a held-back round in a way that this module cannot detect. So it is possible that no quiet
//! moment ever comes. Code that waits for memory to be closed must use a deadline of its own.
//!
//! This module considers only transfers. Other work on a device may also wait for another rank of the process: NCCL
//! kernels, or kernels that wait for signals. When a program drops a plan in a process of several ranks, this other
//! work must have ended, or must depend only on work that is already enqueued.
//!
//! A process of one rank closes memory without a quiet moment. Its device may wait for ranks of other processes, but
//! those ranks do not block in this process's driver. While such a process closes memory, a second rank cannot create
//! an exchange in it, because that rank might enqueue transfers at once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use process_group::store::Deadline;

/// Time without a quiet moment before new rounds are held back.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest time for which new rounds are held back.
const HOLD: Duration = Duration::from_millis(50);
/// After rounds were held back and no quiet moment came: the time until rounds may be held back again.
const REST: Duration = Duration::from_secs(1);
/// Polling interval of threads that wait in this module.
const LOOK: Duration = Duration::from_millis(1);

/// Number of operations under way in this process (signals, waits, copies and graph launches of transfers), plus the
/// number of failures that watch threads have not handled yet.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// In a process of several ranks, keeps transfers from beginning while a thread is closing memory. A thread that
/// enqueues a transfer locks it shared. A thread that closes memory locks it exclusively, or shared if the process has
/// only one rank. [`Present::new`] locks it exclusively, so that a second rank cannot appear during a shared close.
/// Exclusive locks are taken only with `try_write`, because a thread that waits for one would block later shared locks.
static GATE: RwLock<()> = RwLock::new(());
/// The rank of each exchange of this process; one entry per exchange.
static RANKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Times at which new rounds are held back.
static HOLDS: Mutex<Holds> = Mutex::new(Holds { due: None, until: None });
/// True while [`HOLDS`] may hold new rounds back. Callers read it first, so that they lock [`HOLDS`] only if it is
/// true.
static HELD: AtomicBool = AtomicBool::new(false);
/// The counters of [`Rounds`], by name.
static ROUNDS: Mutex<Option<HashMap<String, Weak<AtomicU32>>>> = Mutex::new(None);

/// Times at which new rounds are held back.
struct Holds {
    /// Earliest time from which new rounds may be held back. `None` if no thread waits for a quiet moment.
    due: Option<Instant>,
    /// Time until which new rounds are held back. `None` if they are not held back.
    until: Option<Instant>,
}

/// Increments the number of operations under way. [`ended`] must be called once for each call.
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

/// Like [`enqueueing`], but first blocks while new rounds are held back and `is_awaited` returns false. `is_awaited`
/// returns whether an operation under way waits for the operation of the caller.
pub(super) fn beginning(is_awaited: impl Fn() -> bool) -> RwLockReadGuard<'static, ()> {
    while is_held() && !is_awaited() {
        thread::sleep(LOOK);
    }
    enqueueing()
}

fn is_held() -> bool {
    HELD.load(Ordering::Acquire) && holds().until.is_some_and(|until| Instant::now() < until)
}

/// Returns the permission to close memory, or `None` if memory cannot be closed now. In a process of several ranks, no
/// thread can enqueue a transfer until the permission is dropped. May hold new rounds back. In that case, waits until
/// no operation is under way, for at most [`HOLD`].
pub(super) fn moment() -> Option<Moment> {
    if let Some(shared) = unless_held(GATE.try_read())
        && is_alone(&ranks())
    {
        return Some(Moment::OfOneRank { _gate: shared });
    }
    if let Some(moment) = now() {
        holds().due = None;
        return Some(moment);
    }
    let until = {
        let (mut holds, now) = (holds(), Instant::now());
        if now < *holds.due.get_or_insert(now + PATIENCE) || holds.until.is_some() {
            return None;
        }
        *holds.until.insert(now + HOLD)
    };
    HELD.store(true, Ordering::Release);
    let mut found = now();
    while found.is_none() && Instant::now() < until {
        thread::sleep(LOOK);
        found = now();
    }
    HELD.store(false, Ordering::Release);
    let due = found.is_none().then(|| Instant::now() + REST);
    *holds() = Holds { due, until: None };
    found
}

/// Returns a [`Moment::OfSeveral`] if no operation is under way, and no thread holds the gate.
fn now() -> Option<Moment> {
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

/// Permission to close memory, as returned by [`moment`].
pub(super) enum Moment {
    OfOneRank { _gate: RwLockReadGuard<'static, ()> },
    OfSeveral { _gate: RwLockWriteGuard<'static, ()> },
}

/// Entry of an exchange in [`RANKS`]. Dropping this value removes the entry.
#[derive(Debug)]
pub(super) struct Present(u32);

impl Present {
    /// Registers an exchange of `rank`. If all other exchanges of this process belong to one other rank, first waits
    /// until no thread of that rank closes memory or enqueues a transfer. Returns `None` if a thread still does so at
    /// the deadline.
    pub(super) fn new(rank: u32, deadline: Deadline) -> Option<Self> {
        loop {
            // If the lock succeeds, the gate stays locked until the rank is registered. In a process of one rank,
            // `moment` locks the gate and then checks for other ranks. So a close that is under way makes this lock
            // fail, and a later call of `moment` sees the new rank.
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
            thread::sleep(LOOK);
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

/// Counts the rounds of one sequence: the rounds of one transfer of a plan, one rank's notifications to a peer, or the
/// graph launches of a plan. Its value is the number of the latest round that any rank of this process has begun. The
/// ranks of the process share the counter. It wraps around, so round `a` is earlier than round `b` if the wrapping
/// difference `a - b` is negative as an `i32`.
#[derive(Debug, Clone, Default)]
pub(super) struct Rounds(Arc<AtomicU32>);

impl Rounds {
    /// Returns the counter called `name`. All ranks of this process that use the name share the counter.
    pub(super) fn of(name: String) -> Self {
        let mut rounds = ROUNDS.lock().unwrap_or_else(PoisonError::into_inner);
        let rounds = rounds.get_or_insert_default();
        rounds.retain(|_, rounds| rounds.strong_count() > 0);
        let known = rounds.get(&name).and_then(Weak::upgrade);
        let found = known.unwrap_or_default();
        rounds.insert(name, Arc::downgrade(&found));
        Self(found)
    }

    pub(super) fn begun(&self, round: u32) {
        let later = |last| is_before(last, round).then_some(round);
        // An error means that the counter is already at this round or a later one.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Returns whether any rank of this process has begun this round or a later one.
    pub(super) fn reach(&self, round: u32) -> bool {
        !is_before(self.0.load(Ordering::Acquire), round)
    }
}

fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

fn holds() -> MutexGuard<'static, Holds> {
    HOLDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ranks() -> MutexGuard<'static, Vec<u32>> {
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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
            // While the process has only one rank, other threads may enqueue transfers during a close.
            let (closing, enqueueing) = (moment().unwrap(), enqueueing());
            drop(enqueueing);
            let also_first = new(0, Duration::ZERO).unwrap();
            assert!(new(1, soon).is_none(), "memory is being closed");
            drop(closing);
            let second = new(1, far).unwrap();
            begun();
            assert!(moment().is_none(), "a transfer is under way");
            ended();
            let closing = moment().unwrap();
            new(2, Duration::ZERO).unwrap();
            assert!(GATE.try_read().is_err(), "nobody enqueues while memory of several is closed");
            drop((closing, second, first, also_first));
            assert!(ranks().is_empty());
        }
    }

    proptest! {
        /// Two ends of a transfer begin rounds in any order. Whenever an end has begun a round, both ends see the
        /// latest round as begun, and the next round as not begun, even when the numbers wrap around.
        #[test]
        fn either_end_begins_a_round_for_both(steps in prop::collection::vec((0usize..2, 1u32..1 << 22), 1..20)) {
            let ends = [(); 2].map(|()| Rounds::of("either end".to_owned()));
            let start = u32::MAX - (1 << 20);
            ends[0].0.store(start, Ordering::Release);
            let mut last = start;
            for (end, steps) in steps {
                let round = start.wrapping_add(steps);
                ends[end].begun(round);
                last = if last.wrapping_sub(start) < steps { round } else { last };
                for end in &ends {
                    prop_assert!(end.reach(last) && end.reach(start));
                    prop_assert!(!end.reach(last.wrapping_add(1)));
                }
            }
        }
    }
}
