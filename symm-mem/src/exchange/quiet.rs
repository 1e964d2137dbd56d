//! When peers' memory is closed and plans' memory is freed, in a process of several ranks.
//!
//! The driver lets neither happen before the device is idle, and while it waits other threads of the process come to a
//! stop in it, those of other ranks too. But what that device waits for may be what one of them was about to enqueue: then
//! nobody goes on (seen on four H200, ranks as threads: three of four runs). So it is done while no rank of the process has a
//! transfer under way, and none begins one meanwhile.
//!
//! Every transfer ends by its deadline, but where others follow it there may never be a moment without one. So who has looked
//! for it in vain for a while holds back what begins: first the rounds that one end has begun are finished by both. That is
//! for a short time, and seldom, since a transfer that is held back may be what another waits for by ways that nobody knows
//! of here. So the moment may not come as long as there is always something under way; nobody who waits for memory to be
//! closed may wait for it without a deadline of his own.
//!
//! Only transfers are counted. Whatever else waits for another rank of the process on a device, as NCCL's kernels and those
//! that wait for signals do, is to be over before a plan is dropped there, or to need nothing that is yet to be enqueued.
//!
//! A process of one rank does not wait: what its device waits for are other processes, which do not stop in this one's
//! driver. A second rank comes only while no memory is closed so, since it may enqueue at once.

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

/// For how long it is looked for a moment before anything is held back.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long what begins is held back at most.
const HOLD: Duration = Duration::from_millis(50);
/// How long nothing is held back after that was in vain.
const REST: Duration = Duration::from_secs(1);
/// How often those look who wait for each other here.
const LOOK: Duration = Duration::from_millis(1);

/// Transfers under way in this process.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// Shared by those who enqueue one and by those who close memory in a process of one rank; held alone by who closes memory
/// beside other ranks, and by a second rank as it comes. Whoever wants it alone tries: those who share it do not wait for
/// them.
static GATE: RwLock<()> = RwLock::new(());
/// The rank of each exchange of this process.
static RANKS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Whether what begins is held back.
static HOLDS: Mutex<Holds> = Mutex::new(Holds { due: None, until: None });
/// Whether [`HOLDS`] has to be asked at all.
static HELD: AtomicBool = AtomicBool::new(false);
/// What [`Rounds`] share.
static ROUNDS: Mutex<Option<HashMap<String, Weak<AtomicU32>>>> = Mutex::new(None);

/// When what begins is held back.
struct Holds {
    /// Not before; `None`: nobody looks for a moment in vain.
    due: Option<Instant>,
    /// It is, until then.
    until: Option<Instant>,
}

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

/// As [`enqueueing`], for what is held back where somebody waits for a moment, unless something under way waits for it.
pub(super) fn beginning(is_awaited: impl Fn() -> bool) -> RwLockReadGuard<'static, ()> {
    while is_held() && !is_awaited() {
        thread::sleep(LOOK);
    }
    enqueueing()
}

fn is_held() -> bool {
    HELD.load(Ordering::Acquire) && holds().until.is_some_and(|until| Instant::now() < until)
}

/// While it lives memory may be closed; it keeps others from enqueueing. `None`: not now. For longer than [`HOLD`] nobody is
/// waited for: who is enqueueing may wait for the device.
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

/// A moment, if there is one now.
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

/// See [`moment`].
pub(super) enum Moment {
    OfOneRank { _gate: RwLockReadGuard<'static, ()> },
    OfSeveral { _gate: RwLockWriteGuard<'static, ()> },
}

/// An exchange of this process, as long as it lives.
#[derive(Debug)]
pub(super) struct Present(u32);

impl Present {
    /// `rank` has an exchange. A second rank waits until the first closes no memory; `None` if it still does at the deadline.
    pub(super) fn new(rank: u32, deadline: Deadline) -> Option<Self> {
        loop {
            // Held until the rank is there: who closes as the only one looks for others under it.
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

/// Whether all exchanges are of one rank.
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

/// How far something is that ranks do in rounds: the last round that one of them has begun, of those in this process.
/// Counted without end, compared as serial numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Rounds(Arc<AtomicU32>);

impl Rounds {
    /// Those of `name`, which ranks have in common.
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
        // It is as far already.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// Whether one of them has begun this round.
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
        /// Its transfers are enqueued without regard to who closes memory as the only rank.
        #[test]
        fn a_second_rank_comes_when_the_first_closes_no_memory() {
            let (soon, far) = (Duration::from_millis(20), Duration::from_secs(60));
            let new = |rank, patience| Present::new(rank, Deadline::after(patience));
            let first = new(0, far).unwrap();
            // The only rank enqueues while it closes: nobody in this process waits for that.
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
        /// Rounds are as far as the end that is farther, also where their numbers begin anew.
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
