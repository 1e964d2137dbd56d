//! The clock, waits and threads of this crate, behind one small interface.
//!
//! Except for socket I/O, code that reads the clock, waits or starts a thread uses [`Instant`], [`sleep`], [`wait`] and
//! [`spawn`] instead of the standard library. They call the [`Runtime`] of the current thread:
//! - [`Standard`]: the threads and the monotonic clock of the operating system. It is the default.
//! - `Seeded`, with the feature `simulation`: the seeded scheduler of `gpu_sim::sched`. All ranks of a program run
//!   on one thread, in an order that a seed decides, and the clock is virtual.
//!
//! [`enter`] sets the current runtime of a thread.
//!
//! Sockets are not part of the interface. The host of a [`TcpStore`](crate::store::TcpStore) waits in epoll for up to
//! thousands of descriptors, so the interface would have to copy epoll. The protocol of the store already consists of
//! state machines without I/O ([`store::machine`](crate::store::machine)), which seeded tests run directly. Programs in
//! a seeded world use [`HashStore`](crate::store::HashStore) or [`FileStore`](crate::store::FileStore).
//!
//! Invariant: no lock is held during a call of [`sleep`], [`wait`], [`yield_point`] or [`JoinHandle::join`].
//! All ranks of a seeded world share one thread. A rank that tried to take a lock which another rank holds would block
//! this thread for ever.
//!
//! ```
//! use bootstrap::runtime::{self, Event, Instant};
//! use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
//! use std::time::Duration;
//!
//! let ready = Arc::new((AtomicBool::new(false), Event::new("the service to start")));
//! let service = runtime::spawn("service", {
//!     let ready = ready.clone();
//!     move || {
//!         ready.0.store(true, Ordering::SeqCst);
//!         ready.1.notify_all();
//!     }
//! })?;
//! let (begun, limit) = (Instant::now(), Duration::from_secs(30));
//! loop {
//!     // The count is read before the condition, so that no notification after the check is missed.
//!     let seen = ready.1.count();
//!     if ready.0.load(Ordering::SeqCst) || begun.elapsed() >= limit {
//!         break;
//!     }
//!     runtime::wait(&ready.1, seen, limit.saturating_sub(begun.elapsed()));
//! }
//! assert!(service.join().is_ok());
//! # Ok::<(), std::io::Error>(())
//! ```

mod current;
mod interface;
#[cfg(feature = "simulation")]
mod seeded;
mod standard;
mod thread;

pub use current::{Entered, Instant, enter, process, sleep, wait, yield_point};
pub use interface::{Event, Runtime};
#[cfg(feature = "simulation")]
pub use seeded::Seeded;
pub use standard::Standard;
pub use thread::{JoinHandle, spawn};
