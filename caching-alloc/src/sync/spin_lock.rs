//! [`SpinLock`]: a lock that is held for less than a microsecond at a time.
//!
//! When a [`std::sync::Mutex`] is unlocked, it has to find out whether a thread sleeps in it. That takes an atomic
//! read-modify-write operation, about 5 ns. A `SpinLock` is unlocked by a plain store. In exchange, nobody wakes a
//! waiting thread. Such a thread tries again and again: first after short spins, then after it has yielded to other
//! threads, then after it has slept. While it sleeps, a holder of lower priority can run.
//!
//! A thread that holds a `SpinLock` must not wait for anything.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};

/// A value that one thread at a time can use. It is not poisoned by a panic.
pub(crate) struct SpinLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
    /// Accessed together with the value, so that loom finds two accesses that are not ordered.
    #[cfg(all(test, loom))]
    witness: loom::cell::UnsafeCell<()>,
}

// SAFETY: a reference to the value exists only in the guard of the thread that has set `is_held`. So sharing the lock
// gives one thread at a time access to the value, as if the value were sent from thread to thread.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// A held [`SpinLock`]. Dropping it unlocks the lock.
#[must_use]
pub(crate) struct SpinGuard<'a, T>(&'a SpinLock<T>);

// SAFETY: a shared guard gives out only `&T`. Without this impl, the guard would be `Sync` whenever the lock is, so
// also for a `T` that is `Send` but not `Sync`.
unsafe impl<T: Sync> Sync for SpinGuard<'_, T> {}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
            #[cfg(all(test, loom))]
            witness: loom::cell::UnsafeCell::new(()),
        }
    }

    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if !self.take() {
            self.wait();
        }
        self.check_order();
        SpinGuard(self)
    }

    /// Takes the lock if it is free. `Acquire` orders this after all uses of the value by former holders.
    #[inline]
    fn take(&self) -> bool {
        self.is_held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut pause = Pause::default();
        loop {
            pause.make();
            // The load alone does not take the cache line away from the holder.
            if !self.is_held.load(Ordering::Relaxed) && self.take() {
                return;
            }
        }
    }

    #[inline]
    #[cfg_attr(not(all(test, loom)), expect(clippy::unused_self))]
    fn check_order(&self) {
        #[cfg(all(test, loom))]
        self.witness.with_mut(|_| ());
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.check_order();
        // `Release` orders all uses of the value before the next thread takes the lock.
        self.0.is_held.store(false, Ordering::Release);
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard's thread has set `is_held`, and only its guard unsets it. So no other guard exists, and the
        // borrow of `self` excludes a mutable reference made by this one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the mutable borrow of `self` excludes every other reference made by this guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    /// Does not print the value, because it would have to wait for the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

/// The pauses of a waiting thread, each at least as long as the one before.
#[derive(Default)]
struct Pause(u32);

#[cfg(not(all(test, any(loom, shuttle))))]
impl Pause {
    /// The number of pauses in which the thread spins. Together they take about 2 µs.
    const SPINS: u32 = 6;
    /// The number of pauses after those in which the thread yields to other threads.
    const YIELDS: u32 = 64;
    /// The first and the longest sleep, in µs.
    const SLEEPS: [u64; 2] = [20, 1000];

    fn make(&mut self) {
        let made = self.0;
        self.0 = made.saturating_add(1);
        if made < Self::SPINS {
            (0..1 << made).for_each(|_| std::hint::spin_loop());
        } else if made < Self::SPINS + Self::YIELDS {
            std::thread::yield_now();
        } else {
            let [first, longest] = Self::SLEEPS;
            let doublings = (made - Self::SPINS - Self::YIELDS).min(10);
            std::thread::sleep(std::time::Duration::from_micros(longest.min(first << doublings)));
        }
    }
}

/// A checker runs another thread while this one yields.
#[cfg(all(test, any(loom, shuttle)))]
impl Pause {
    fn make(&mut self) {
        self.0 += 1;
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
    }
}

#[cfg(test)]
mod interleavings {
    use std::sync::Arc;

    use super::*;

    #[cfg(loom)]
    use loom::thread;
    #[cfg(shuttle)]
    use shuttle::thread;
    #[cfg(not(any(loom, shuttle)))]
    use std::thread;

    /// Threads add to a number, and each sees what those before it have added.
    fn program(threads: u64, times: u64) {
        let lock = Arc::new(SpinLock::new(0_u64));
        let add = move |lock: &SpinLock<u64>| {
            let mut last = 0;
            for _ in 0..times {
                let mut sum = lock.lock();
                *sum += 1;
                assert!(*sum > last);
                last = *sum;
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || add(&lock))
            })
            .collect();
        add(&lock);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*lock.lock(), threads * times);
    }

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        #[cfg(loom)]
        {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3).min(4));
            // Two threads only: of three, two could wait at the same time and yield to each other without end.
            builder.check(|| program(2, 2));
        }
        #[cfg(shuttle)]
        shuttle::check_random(|| program(3, 2), 300);
        #[cfg(not(any(loom, shuttle)))]
        program(3, 100_000);
    }

    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn a_panic_unlocks_the_lock() {
        let lock = SpinLock::new(1);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("with the lock held");
        }));
        assert!(panics.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
