//! Locks with a rank. A thread takes them in ascending order of rank. Debug builds check that.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{Mutex, MutexGuard, SpinGuard, SpinLock};

/// The rank of a lock. Locks are taken in the order of the variants.
///
/// A *hit* is a request that is served from free memory of its stream's cache. A thread that calls a tracker may hold
/// locks of the ranks `Attachments` and `Delivery`, but of no other rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Held while a tracker is attached or detached.
    Attachments = 1,
    /// Held while a cache's block entries are delivered to trackers.
    Delivery,
    /// Guards the segments, the trackers and the order of structural trace entries. No hit takes it, and it is released
    /// while trackers are called.
    Structure,
    /// Guards a cache's pending blocks, and is held while their events are queried or waited for. No hit and no free
    /// takes it.
    Pending,
    /// Guards a cache's state. Every hit takes it. A thread that holds it calls no code outside the crate.
    StreamCache,
    /// Guards the blocks and pages that the streams of a re-mappable pool share. A hit may take it, and a thread that
    /// holds it calls no code outside the crate.
    Arena,
}

/// A mutex with a rank.
#[derive(Debug)]
pub(super) struct Ranked<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// A spin lock with a rank. Hits take such locks, so they are held only for a short time.
#[derive(Debug)]
pub(super) struct RankedSpin<T> {
    rank: Rank,
    lock: SpinLock<T>,
}

/// A held [`Ranked`] lock.
pub(super) type RankedGuard<'a, T> = Guard<MutexGuard<'a, T>>;
/// A held [`RankedSpin`] lock.
pub(super) type RankedSpinGuard<'a, T> = Guard<SpinGuard<'a, T>>;

/// A held lock.
pub(super) struct Guard<G> {
    inner: G,
    _held: held::Held,
}

impl<T> RankedSpin<T> {
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: SpinLock::new(value) }
    }

    pub(super) fn into_inner(self) -> T {
        self.lock.into_inner()
    }

    #[inline]
    pub(super) fn lock(&self) -> RankedSpinGuard<'_, T> {
        let _held = held::Held::take(self.rank);
        Guard { inner: self.lock.lock(), _held }
    }
}

impl<T> Ranked<T> {
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> RankedGuard<'_, T> {
        let _held = held::Held::take(self.rank);
        // A panic under one of these locks is a bug of this crate, or of a source or of the streams, which are called
        // under some of the locks. The data stays usable.
        Guard { inner: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _held }
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let inner = match self.mutex.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { inner, _held: held::Held::take(self.rank) })
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

/// Panics if this thread holds a lock that hits take. Does nothing without debug assertions. The source and the
/// streams may not be called under such a lock.
#[cfg(test)]
pub(super) fn assert_may_call_out() {
    #[cfg(debug_assertions)]
    held::assert_none_from(Rank::StreamCache);
}

/// Panics if this thread holds the structure lock or a lock of a later rank. Does nothing without debug assertions.
/// Trackers may not be called under such a lock.
#[cfg(test)]
pub(super) fn assert_may_call_trackers() {
    #[cfg(debug_assertions)]
    held::assert_none_from(Rank::Structure);
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use super::Rank;
    use crate::sync::per_thread;

    per_thread! {
        /// The number of locks of each rank that this thread holds.
        static HELD: Cell<[u32; 7]> = const { Cell::new([0; 7]) };
    }

    pub(super) struct Held(Rank);

    /// Panics if this thread holds a lock of this rank or of a later one.
    #[cfg(test)]
    pub(super) fn assert_none_from(rank: Rank) {
        let counts = HELD.with(Cell::get);
        assert!(counts[rank as usize..].iter().all(|count| *count == 0), "a call under {counts:?}");
    }

    impl Held {
        pub(super) fn take(rank: Rank) -> Self {
            HELD.with(|held| {
                let mut counts = held.get();
                // Under the structure lock, a thread may hold several locks of the same later rank: those of several
                // caches. Under the lock on attachments, it may hold several delivery locks.
                let together = match rank {
                    Rank::Attachments | Rank::Structure => false,
                    Rank::Delivery => counts[Rank::Attachments as usize] > 0,
                    _ => counts[Rank::Structure as usize] > 0,
                };
                let from = rank as usize + usize::from(together);
                debug_assert!(
                    counts[from..].iter().all(|count| *count == 0),
                    "{rank:?} is taken under {counts:?}"
                );
                counts[rank as usize] += 1;
                held.set(counts);
            });
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with(|held| {
                let mut counts = held.get();
                counts[self.0 as usize] -= 1;
                held.set(counts);
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::Rank;

    pub(super) struct Held;

    impl Held {
        #[inline]
        pub(super) fn take(_rank: Rank) -> Self {
            Self
        }
    }
}
