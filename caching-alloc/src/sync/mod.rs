//! Locks, atomics and thread-locals: those of the standard library or, in tests, of a model checker that controls the
//! order in which threads run. With `--cfg loom`, every order of small models is tried, up to a bound. With
//! `--cfg shuttle`, many orders of larger programs are tried. `cargo xtask interleave` runs the models with each.
//!
//! A spin lock has a model of its own, in `spin_lock`. In other models a mutex of the checker takes its place, because
//! every attempt of a waiting thread would multiply the orders to try.
//!
//! `Arc` and `OnceLock` are always those of the standard library. A checker switches threads only inside its own types,
//! so never in an operation of these two.

#[cfg_attr(all(test, any(loom, shuttle)), expect(dead_code, reason = "only its own model uses it"))]
mod spin_lock;

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};

#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use mutex::{SpinGuard, SpinLock};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use spin_lock::{SpinGuard, SpinLock};
pub(crate) use statics::{global, per_thread};

#[cfg(all(test, any(loom, shuttle)))]
mod mutex {
    use super::{Mutex, MutexGuard};

    pub(crate) type SpinGuard<'a, T> = MutexGuard<'a, T>;

    #[derive(Debug)]
    pub(crate) struct SpinLock<T>(Mutex<T>);

    impl<T> SpinLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner().unwrap()
        }

        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[cfg(not(all(test, any(loom, shuttle))))]
mod statics {
    /// A static that threads share.
    macro_rules! global {
        (static $name:ident: $of:ty = $value:expr;) => {
            static $name: $of = $value;
        };
    }

    /// A static with one value per thread.
    macro_rules! per_thread {
        ($($statics:tt)*) => {
            std::thread_local! { $($statics)* }
        };
    }

    pub(crate) use {global, per_thread};
}

/// The same macros for model checkers: each order of threads that is tried gets new statics.
#[cfg(all(test, any(loom, shuttle)))]
mod statics {
    macro_rules! global {
        (static $name:ident: $of:ty = $value:expr;) => {
            #[cfg(loom)]
            loom::lazy_static! { static ref $name: $of = $value; }
            #[cfg(shuttle)]
            shuttle::lazy_static! { static ref $name: $of = $value; }
        };
    }

    macro_rules! per_thread {
        ($(#[$what:meta])* static $name:ident: $of:ty = const { $value:expr };) => {
            $crate::sync::per_thread! { $(#[$what])* static $name: $of = $value; }
        };
        ($(#[$what:meta])* static $name:ident: $of:ty = $value:expr;) => {
            #[cfg(loom)]
            loom::thread_local! { $(#[$what])* static $name: $of = $value; }
            #[cfg(shuttle)]
            shuttle::thread_local! { $(#[$what])* static $name: $of = $value; }
        };
    }

    pub(crate) use {global, per_thread};
}
