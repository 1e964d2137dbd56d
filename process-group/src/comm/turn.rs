//! Admits one thread at a time.

use std::sync::{Mutex, PoisonError};

use bootstrap::runtime::Event;

use crate::store::Deadline;

/// Frees one communicator of the process at a time.
///
/// Threads that free communicators in parallel corrupt the heap in NCCL 2.28.9: a program that makes only NCCL calls
/// and aborts eight communicators from eight threads crashes in `free` after some rounds. Freeing one communicator at
/// a time costs almost nothing. Each free mostly waits for NCCL's own threads, which check their abort flag twice a
/// second. All flags are raised before the first free, so the waits overlap (eight communicators one at a time: 0.7
/// s, the same as in parallel).
///
/// A thread whose deadline passes goes on without its turn: a communicator that cannot be freed must not hold up the
/// others.
pub(super) static FREEING: Turn = Turn::new();

/// Admits one thread at a time. The others wait until a deadline.
#[derive(Debug)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    free: Event,
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self { taken: Mutex::new(false), free: Event::new("another thread to leave") }
    }

    /// Waits until no other thread has the turn. Returns `None` after the deadline.
    pub(crate) fn take(&self, deadline: Deadline) -> Option<Taken<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken && !deadline.expired() {
            taken = self.free.wait_unlocked(&self.taken, taken, deadline.remaining());
        }
        // Not `then_some`, which makes the `Taken` even if another thread has the turn. Dropping that value would
        // deadlock on the lock.
        (!std::mem::replace(&mut *taken, true)).then(|| Taken(self))
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

/// The turn of a thread. Dropping this value admits the next thread.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_nobody_waits_beyond_the_deadline() {
        let (turn, inside) = (Turn::new(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let taken = turn.take(Deadline::after(Duration::from_secs(60)));
                        assert!(taken.is_some());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let _held = turn.take(Deadline::after(Duration::from_secs(60)));
        assert!(turn.take(Deadline::after(Duration::from_millis(1))).is_none());
        assert!(*turn.taken.lock().unwrap(), "who had no turn gave none back");
    }
}
