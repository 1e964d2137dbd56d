//! Frees one communicator of the process at a time.
//!
//! Threads that free communicators in parallel corrupt the heap in NCCL 2.28.9: a program that makes only NCCL calls
//! and aborts eight communicators from eight threads crashes in `free` after some rounds. Freeing in turn costs
//! almost nothing. Most of the time NCCL waits for its own threads, which check twice a second whether they should
//! end, and this wait starts for all communicators when the flags are raised (eight in turn: 0.7 s, the same as in
//! parallel).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::store::Deadline;

static TAKEN: Mutex<bool> = Mutex::new(false);
static GIVEN_BACK: Condvar = Condvar::new();

/// The exclusive right to free a communicator.
pub(super) struct Turn {
    /// True if the right was obtained, and is given back on drop.
    held: bool,
}

impl Turn {
    /// Waits for the right until the deadline. After it, returns without the right: a communicator that cannot be
    /// freed must not hold up the others.
    pub(super) fn wait(deadline: Deadline) -> Self {
        let mut taken = lock();
        while *taken {
            if deadline.expired() {
                return Self { held: false };
            }
            let waited = GIVEN_BACK.wait_timeout(taken, deadline.remaining());
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Self { held: true }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held {
            *lock() = false;
            GIVEN_BACK.notify_one();
        }
    }
}

fn lock() -> MutexGuard<'static, bool> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_has_it_at_a_time_and_nobody_waits_beyond_the_deadline() {
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let turn = Turn::wait(Deadline::after(Duration::from_secs(60)));
                        assert!(turn.held);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let held = Turn::wait(Deadline::after(Duration::from_secs(60)));
        let late = Turn::wait(Deadline::after(Duration::from_millis(1)));
        assert!(!late.held);
        drop(late);
        assert!(*lock(), "who had no turn gave none back");
        drop(held);
    }
}
