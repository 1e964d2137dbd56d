//! Locks and atomics: those of the standard library, or those of a checker that chooses the order in which threads
//! run (`--cfg loom`: every order of small models, up to a bound; `--cfg shuttle`: many orders of larger models).
//! `cargo xtask interleave` runs the crate's models (its modules named `interleavings`) with each checker.
//!
//! `Arc` and `OnceLock` are always those of the standard library. A checker switches threads only at operations of
//! its own types, so it does not switch there.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use bootstrap::runtime::Event;

/// A condition variable of the checker, with the interface of `bootstrap::runtime::Event`.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) struct Event {
    #[cfg(loom)]
    changed: loom::sync::Condvar,
    #[cfg(shuttle)]
    changed: shuttle::sync::Condvar,
}

#[cfg(all(test, any(loom, shuttle)))]
impl Event {
    pub(crate) fn new(_: &'static str) -> Self {
        #[cfg(loom)]
        let changed = loom::sync::Condvar::new();
        #[cfg(shuttle)]
        let changed = shuttle::sync::Condvar::new();
        Self { changed }
    }

    pub(crate) fn notify_all(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn wait_unlocked<'a, T>(
        &self,
        _: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        limit: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        use std::sync::PoisonError;
        if limit == std::time::Duration::MAX {
            return self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Declares a static that threads share. A checker creates the static anew for each order of threads that it tries.
#[cfg(not(all(test, any(loom, shuttle))))]
macro_rules! global {
    ($(#[$what:meta])* static $name:ident: $of:ty = $value:expr;) => {
        $(#[$what])* static $name: $of = $value;
    };
}
#[cfg(all(test, loom))]
macro_rules! global {
    ($(#[$what:meta])* static $name:ident: $of:ty = $value:expr;) => {
        loom::lazy_static! { $(#[$what])* static ref $name: $of = $value; }
    };
}
#[cfg(all(test, shuttle))]
macro_rules! global {
    ($(#[$what:meta])* static $name:ident: $of:ty = $value:expr;) => {
        shuttle::lazy_static! { $(#[$what])* static ref $name: $of = $value; }
    };
}
pub(crate) use global;

/// Runs models of a few threads in the orders that the checker chooses. Without a checker, runs them on system
/// threads in any order.
#[cfg(test)]
pub(crate) mod model {
    #[cfg(loom)]
    pub(crate) use loom::thread;
    #[cfg(shuttle)]
    pub(crate) use shuttle::thread;
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::thread;

    #[cfg(loom)]
    pub(crate) fn check(program: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.max_branches = 100_000;
        builder.check(program);
    }

    #[cfg(shuttle)]
    pub(crate) fn check(program: impl Fn() + Send + Sync + 'static) {
        let orders =
            std::env::var("SHUTTLE_ORDERS").ok().and_then(|number| number.parse().ok()).unwrap_or(300);
        let program = std::sync::Arc::new(program);
        let again = program.clone();
        shuttle::check_random(move || program(), orders);
        shuttle::check_pct(move || again(), orders, 3);
    }

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn check(program: impl Fn() + Send + Sync + 'static) {
        (0..200).for_each(|_| program());
    }
}
