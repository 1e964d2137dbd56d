//! Locks, atomics and thread-locals: those of the standard library or, in tests, of a model checker that controls the
//! order in which threads run. With `--cfg loom`, every order of small models is tried, up to a bound. With
//! `--cfg shuttle`, many orders of larger programs are tried. `cargo xtask interleave` runs the models with each.
//!
//! `Arc` and `OnceLock` are always those of the standard library. A checker switches threads only inside its own types,
//! so never in an operation of these two.

#[cfg(all(test, loom))]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(all(test, shuttle))]
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};

pub(super) use statics::{global, per_thread};

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

    pub(in crate::core) use {global, per_thread};
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
            $crate::core::sync::per_thread! { $(#[$what])* static $name: $of = $value; }
        };
        ($(#[$what:meta])* static $name:ident: $of:ty = $value:expr;) => {
            #[cfg(loom)]
            loom::thread_local! { $(#[$what])* static $name: $of = $value; }
            #[cfg(shuttle)]
            shuttle::thread_local! { $(#[$what])* static $name: $of = $value; }
        };
    }

    pub(in crate::core) use {global, per_thread};
}
