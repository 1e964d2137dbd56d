//! A lock that costs its usual thread no atomic exchange.
//!
//! A lock that one thread takes again and again becomes biased to it: that thread then goes in and out by plain stores.
//! Another thread that wants it revokes the bias first, with a barrier that it makes all threads of the process pass
//! (`membarrier`, some microseconds), and from then on it is an ordinary spin lock, until one thread has it to itself
//! for long enough again. Two exchanges are a good third of what a hit costs.
//!
//! Why it excludes: the owner says that it is inside and then looks whether it is still the owner; who revokes says
//! that it is not and then looks whether it is inside. The barrier keeps each of them from looking before its word is
//! out, so that at least one sees the other's; the owner then gives way.

#[cfg(not(all(test, loom)))]
use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    thread::yield_now,
};

#[cfg(all(test, loom))]
use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    thread::yield_now,
};

/// Times in a row that a thread takes the lock before it is biased to it: at first, and at most. Each revocation
/// doubles it, so that the barriers stay cheap beside the calls between them.
#[cfg(not(all(test, loom)))]
const FIRST_STREAK: u32 = 64;
const LONGEST_STREAK: u32 = 1 << 14;

/// A value that one thread uses mostly. Who waits for it spins, so it is held briefly; a panic does not poison it.
///
/// ```
/// use caching_alloc::biased::BiasedMutex;
///
/// let sum = BiasedMutex::new(0);
/// (1..=1000).for_each(|number| *sum.lock() += number);
/// std::thread::scope(|scope| scope.spawn(|| *sum.lock() += 1).join().unwrap());
/// assert_eq!(*sum.lock(), 500_501);
/// ```
#[cfg(not(all(test, loom)))]
pub type BiasedMutex<T> = lock_api::Mutex<Biased, T>;

/// What is held of a [`BiasedMutex`].
#[cfg(not(all(test, loom)))]
pub type BiasedGuard<'a, T> = lock_api::MutexGuard<'a, Biased, T>;

/// The lock without what it guards.
#[derive(Debug)]
pub struct Biased {
    /// The thread that may go in by saying so, by its token; 0: none.
    owner: AtomicUsize,
    /// The owner is inside, or about to look whether it may be.
    inside: AtomicBool,
    /// Taken by exchange; it may have to wait for the owner still.
    taken: AtomicBool,
    /// Held by who took it by exchange.
    held: AtomicBool,
    /// Who took it by exchange last, how many times in a row, and how many it takes: changed by who holds it so.
    last: AtomicUsize,
    streak: AtomicU32,
    wanted: AtomicU32,
}

/// A constant but for loom, whose atomics are none.
macro_rules! unbiased {
    ($wanted:expr) => {
        Self {
            owner: AtomicUsize::new(0),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            held: AtomicBool::new(false),
            last: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            wanted: AtomicU32::new($wanted),
        }
    };
}

impl Biased {
    #[inline]
    fn enter(&self) {
        let me = token::get();
        if self.owner.load(Ordering::Relaxed) == me {
            self.inside.store(true, Ordering::Relaxed);
            barrier::of_this_thread();
            if self.owner.load(Ordering::Relaxed) == me {
                return;
            }
            self.inside.store(false, Ordering::Release);
        }
        self.take();
    }

    /// By exchange.
    #[cold]
    fn take(&self) {
        let me = token::make();
        while self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            yield_now();
        }
        self.expel();
        self.held.store(true, Ordering::Relaxed);
        let same = self.last.load(Ordering::Relaxed) == me;
        self.last.store(me, Ordering::Relaxed);
        self.streak.store(if same { self.streak.load(Ordering::Relaxed) + 1 } else { 0 }, Ordering::Relaxed);
    }

    #[inline]
    fn try_enter(&self) -> bool {
        let free = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if free {
            self.expel();
            self.held.store(true, Ordering::Relaxed);
        }
        free
    }

    /// Ends the bias, if there is one. The caller has taken the lock by exchange.
    fn expel(&self) {
        if self.owner.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.owner.store(0, Ordering::Relaxed);
        barrier::of_all();
        while self.inside.load(Ordering::Acquire) {
            yield_now();
        }
        let wanted = self.wanted.load(Ordering::Relaxed);
        self.wanted.store((wanted * 2).min(LONGEST_STREAK), Ordering::Relaxed);
    }

    #[inline]
    fn leave(&self) {
        if self.held.load(Ordering::Relaxed) {
            self.release();
        } else {
            self.inside.store(false, Ordering::Release);
        }
    }

    /// After [`take`](Self::take).
    #[cold]
    fn release(&self) {
        if self.streak.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed) && barrier::is_there() {
            self.streak.store(0, Ordering::Relaxed);
            self.owner.store(self.last.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.held.store(false, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(not(all(test, loom)))]
// SAFETY: one thread at a time is between `enter` and `leave`. Those that take the lock by exchange exclude each other
// by `taken`. The owner and such a thread exclude each other as told above: the latter goes on only after it has unset
// `owner`, passed the barrier and found `inside` unset; the owner only if, having set `inside`, it finds itself the
// owner still. Only who has taken it makes an owner, itself, before it lets go.
unsafe impl lock_api::RawMutex for Biased {
    // The initial value of a lock, which the trait wants as a constant; nothing is shared by it.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = unbiased!(FIRST_STREAK);

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.enter();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_enter()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.leave();
    }
}

/// Threads' names: never 0, and never used again, so that who inherits a thread's place does not inherit its locks.
mod token {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Of a thread that has none yet: no owner's.
    const NONE: usize = usize::MAX;

    static NEXT: AtomicUsize = AtomicUsize::new(1);

    #[cfg(not(all(test, loom)))]
    std::thread_local! {
        static HERE: Cell<usize> = const { Cell::new(NONE) };
    }

    #[cfg(all(test, loom))]
    loom::thread_local! {
        static HERE: Cell<usize> = Cell::new(NONE);
    }

    /// This thread's, if it has one.
    #[inline]
    pub(super) fn get() -> usize {
        HERE.with(Cell::get)
    }

    pub(super) fn make() -> usize {
        HERE.with(|here| {
            if here.get() == NONE {
                here.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            here.get()
        })
    }
}

/// The two halves of a barrier: of two threads that pass one each, one sees what the other stored before.
#[cfg(not(all(test, loom)))]
mod barrier {
    use std::sync::LazyLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    static IS_THERE: LazyLock<bool> =
        LazyLock::new(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());

    /// Whether the kernel has it: else no lock is ever biased.
    pub(super) fn is_there() -> bool {
        *IS_THERE
    }

    /// The half that costs nothing: the other does its work.
    #[inline]
    pub(super) fn of_this_thread() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn of_all() {
        // It was registered before the first lock was biased, after which it cannot fail.
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }
}

/// Fences, which are as much to the two threads that meet.
#[cfg(all(test, loom))]
mod barrier {
    use loom::sync::atomic::{Ordering, fence};

    pub(super) fn is_there() -> bool {
        true
    }

    pub(super) fn of_this_thread() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn of_all() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Guarded {
        lock: Biased,
        value: UnsafeCell<u32>,
    }

    // SAFETY: the value is touched with the lock held only; that this is enough is what the models check.
    unsafe impl Sync for Guarded {}
    // SAFETY: a number and atomics.
    unsafe impl Send for Guarded {}

    impl Biased {
        fn biased_after(wanted: u32) -> Self {
            unbiased!(wanted)
        }
    }

    impl Guarded {
        fn add(&self) {
            self.lock.enter();
            // SAFETY: loom panics if another thread is here.
            self.value.with_mut(|value| unsafe { *value += 1 });
            self.lock.leave();
        }

        fn try_add(&self) -> u32 {
            let free = self.lock.try_enter();
            if free {
                // SAFETY: as above.
                self.value.with_mut(|value| unsafe { *value += 1 });
                self.lock.leave();
            }
            free.into()
        }
    }

    /// The first thread is the owner after `before` turns; then each thread takes `turns`.
    fn check(before: u32, turns: [u32; 2], trying: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.check(move || {
            let guarded = Arc::new(Guarded { lock: Biased::biased_after(1), value: UnsafeCell::new(0) });
            (0..before).for_each(|_| guarded.add());
            let other = {
                let guarded = guarded.clone();
                thread::spawn(move || {
                    (0..turns[1]).for_each(|_| guarded.add());
                    if trying { guarded.try_add() } else { 0 }
                })
            };
            (0..turns[0]).for_each(|_| guarded.add());
            let tried = other.join().unwrap();
            guarded.add();
            let sum = before + turns[0] + turns[1] + tried + 1;
            // SAFETY: the other thread has ended.
            assert_eq!(guarded.value.with(|value| unsafe { *value }), sum);
        });
    }

    #[test]
    fn the_owner_gives_way_to_who_expels_it() {
        check(3, [2, 1], false);
    }

    #[test]
    fn who_has_it_to_itself_next_owns_it_next() {
        check(2, [1, 3], false);
    }

    #[test]
    fn who_tries_expels_too() {
        check(3, [1, 0], true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;

    use proptest::prelude::*;

    use super::*;

    type Lock = lock_api::Mutex<Biased, u64>;

    /// Takes the lock `times` times, each adding to what it guards.
    fn add(lock: &Lock, times: u32) {
        for _ in 0..times {
            let mut value = lock.lock();
            let now = *value;
            std::hint::black_box(&lock);
            *value = now + 1;
        }
    }

    fn is_biased(lock: &Lock) -> bool {
        // SAFETY: nothing is taken or released by way of the raw lock.
        unsafe { lock.raw() }.owner.load(Ordering::Relaxed) != 0
    }

    #[test]
    fn it_is_biased_to_who_has_it_to_itself_and_to_others_after_them() {
        if !barrier::is_there() {
            println!("skipped: this kernel has no membarrier");
            return;
        }
        let lock = Lock::new(0);
        let streak = |wanted| {
            add(&lock, wanted);
            assert!(!is_biased(&lock));
            add(&lock, 1);
            assert!(is_biased(&lock));
        };
        streak(FIRST_STREAK);
        std::thread::scope(|scope| {
            scope.spawn(|| streak(2 * FIRST_STREAK));
        });
        // A thread that tries ends the bias too, and does not count.
        assert!(lock.try_lock().is_some());
        assert!(!is_biased(&lock));
        add(&lock, 4 * FIRST_STREAK + 1);
        assert!(is_biased(&lock));
        let held = lock.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock());
            while is_biased(&lock) {
                yield_now();
            }
            let value = *held;
            drop(held);
            assert_eq!(other.join().unwrap(), value, "it waited for the owner");
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn no_two_are_inside_at_once(
            turns in prop::collection::vec(prop::collection::vec(1..400u32, 1..20), 2..5),
            trying in any::<bool>(),
        ) {
            let lock = Lock::new(0);
            let start = Barrier::new(turns.len());
            let tried: u64 = std::thread::scope(|scope| {
                let run = |turns: &[u32]| {
                    start.wait();
                    let mut tried = 0;
                    for times in turns {
                        add(&lock, *times);
                        if trying && let Some(mut value) = lock.try_lock() {
                            *value += 1;
                            tried += 1;
                        }
                        yield_now();
                    }
                    tried
                };
                let threads: Vec<_> = turns.iter().map(|turns| scope.spawn(move || run(turns))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            let added: u32 = turns.iter().flatten().sum();
            prop_assert_eq!(*lock.lock(), u64::from(added) + tried);
        }
    }
}
