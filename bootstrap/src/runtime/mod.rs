//! The clock, waits, threads, TCP sockets and random numbers of this crate, behind one small interface.
//!
//! Code that reads the clock, waits, starts a thread, opens a TCP socket or needs a random number uses [`Instant`],
//! [`sleep`], [`wait`], [`spawn`], [`connect`], [`listen`] and [`random`] instead of the standard library. They call the
//! [`Runtime`] of the current thread:
//! - [`Standard`]: the threads, the monotonic clock and the sockets of the operating system. It is the default.
//! - `Seeded`, with the feature `simulation`: the seeded scheduler of `gpu_sim::sched`. All ranks of a program run
//!   on one thread, in an order that a seed decides, the clock is virtual, and connections are queues of bytes in memory.
//!
//! [`enter`] sets the current runtime of a thread.
//!
//! Calls on a client's socket block. A server has all of its sockets in one [`ServerSockets`], which waits until any of
//! them is ready, so the server needs only one thread. [`Standard`] uses epoll for this. Unix sockets, which pass
//! descriptors between processes, are not part of the interface.
//!
//! Invariant: no lock is held during a call that may let another rank run: [`sleep`], [`wait`], [`yield_point`],
//! [`JoinHandle::join`], [`connect`], [`listen`], and the methods of sockets that wait or transfer bytes.
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
#[cfg(feature = "simulation")]
mod seeded_pipe;
#[cfg(feature = "simulation")]
mod seeded_routes;
#[cfg(feature = "simulation")]
mod seeded_sockets;
mod sockets;
mod standard;
mod system_sockets;
mod thread;

pub use current::{Entered, Instant, connect, enter, listen, process, random, sleep, wait, yield_point};
pub use interface::{Event, Runtime};
#[cfg(feature = "simulation")]
pub use seeded::Seeded;
#[cfg(feature = "simulation")]
pub use seeded_routes::Route;
#[cfg(feature = "simulation")]
pub use seeded_sockets::SocketFaults;
pub use sockets::{Accepted, ClientSocket, Interest, LATE, Ready, ServerSockets};
pub use standard::Standard;
pub(crate) use system_sockets::is_local;
pub use thread::{JoinHandle, spawn};
