//! Locks, counters and what a thread has for itself: the standard library's, or those of a checker, which chooses the
//! order in which threads run (`--cfg loom`: every order of small models, up to a bound; `--cfg shuttle`: many orders
//! of whole flows). `cargo xtask interleave` runs the crate's models with each.
//!
//! References are counted by the standard library's `Arc` always, and what is set once stays its `OnceLock`: a checker
//! runs its threads in turns, and takes no turn inside of these.

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

    /// A static that each thread has for itself.
    macro_rules! per_thread {
        ($($statics:tt)*) => {
            std::thread_local! { $($statics)* }
        };
    }

    pub(in crate::core) use {global, per_thread};
}

/// The same of a checker's threads: made anew for each order that is tried.
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
