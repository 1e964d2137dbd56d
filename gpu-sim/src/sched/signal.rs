//! An eventcount that waits park on. It works between threads and, in shared memory, between processes.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use rustix::thread::futex;

/// A place to wait at. Code that changes the data of a condition calls [`Signal::notify`] afterwards.
///
/// `repr(C)`, two futex words, and valid when all zero, so it may lie in memory that several processes map. A process
/// that dies during a wait causes at most needless wake-ups later.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Signal {
    generation: AtomicU32,
    waiters: AtomicU32,
}

impl Signal {
    /// Creates a signal without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self { generation: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// Makes every waiter check its condition again. Makes no system call if there are no waiters.
    pub fn notify(&self) {
        self.generation.fetch_add(1, SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            // Waking a futex word that we hold a reference to cannot fail.
            let _ = futex::wake(&self.generation, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Parks the thread until `done` holds; `left` returns the remaining time (`None`: no limit). Returns false if
    /// the time is over and `done` still does not hold.
    pub(crate) fn park(
        &self,
        mut left: impl FnMut() -> Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        self.waiters.fetch_add(1, SeqCst);
        let met = loop {
            let seen = self.generation.load(SeqCst);
            if done() {
                break true;
            }
            let left = left();
            if left == Some(Duration::ZERO) {
                break false;
            }
            let timeout = left.map(|d| rustix::time::Timespec {
                tv_sec: d.as_secs().min(i64::MAX as u64) as i64,
                tv_nsec: d.subsec_nanos().into(),
            });
            // A changed word, a signal and a timeout all mean the same: check again.
            let _ = futex::wait(&self.generation, futex::Flags::empty(), seen, timeout.as_ref());
        };
        self.waiters.fetch_sub(1, SeqCst);
        met
    }
}
