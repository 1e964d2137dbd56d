//! Locks, atomics and thread-locals: those of the standard library, or of a checker that chooses the order of
//! threads. `--cfg loom` tries every order of small models, up to a bound; `--cfg shuttle` tries many orders
//! of whole flows. `cargo xtask interleave` runs the crate's models with each.
//!
//! Reference counts are always the standard library's `Arc`, and values set once its `OnceLock`. A checker
//! switches threads only inside its own types, so never inside of these.

#[cfg(all(test, loom))]
pub(super) use loom::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(all(test, shuttle))]
pub(super) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(super) use std::sync::{Mutex, MutexGuard, RwLock, atomic};

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

/// The same for a checker's threads: made anew for each order that is tried.
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
