//! Passes file descriptors between the processes of a host: shared memory, locks, or any other kernel object.
//!
//! Each process opens a [`Listener`]: a socket in a folder that only its user can enter. The endpoint of the listener
//! ([`Listener::endpoint`]) contains the socket's path and a random token. The other processes read the endpoint, for
//! example from a store. In one [`exchange()`], every two processes send each other their descriptors, one per message,
//! each with a [`Tag`] for its kind. Every process has a place, a number that the caller assigns. Of two processes, the
//! one with the lower place connects.
//!
//! A process of another user, or one that connects without the token, receives nothing. An exchange does not wait for
//! such a process, whatever it sends. The waits for connections and messages have a deadline. The errors distinguish a
//! process that is gone ([`LinkError::Gone`]) from one that is late ([`LinkError::Absent`]).
//!
//! [`SharedMemory`] is memory through which the processes of a host communicate without system calls.
//!
//! The folder is removed when the [`Listener`] is dropped. The folder of a killed process is removed when another
//! process of this user opens its first [`Listener`], or calls [`sweep`].
//!
//! ```
//! use bootstrap::{link::{self, Listener, Tag}, store::Deadline};
//! use std::{fs::File, os::fd::AsFd, time::Duration};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listeners = [Listener::open()?, Listener::open()?];
//! let endpoints = listeners.each_ref().map(Listener::endpoint);
//! let meet = |listener: &Listener, me: u64, other: u64| {
//!     let file = File::open("/dev/null")?;
//!     let deadline = Deadline::after(Duration::from_secs(10));
//!     let endpoint = |place: u64| Ok(endpoints[place as usize].clone());
//!     link::exchange(listener, me, &[other], endpoint, &[(Tag(*b"null"), file.as_fd())], deadline)
//! };
//! // Normally these are two processes.
//! let met = std::thread::scope(|scope| {
//!     let first = scope.spawn(|| meet(&listeners[0], 0, 1));
//!     meet(&listeners[1], 1, 0).map(|met| (met, first.join()))
//! })?;
//! assert_eq!(met.0[0].descriptors.len(), 1);
//! # Ok(())
//! # }
//! ```

mod connection;
mod exchange;
mod folder;
mod listener;
mod memory;
#[cfg(test)]
mod tests;

use std::{env, fmt, fs, io, path::PathBuf, time::Duration};

use rustix::event::{PollFd, Timespec, poll};

pub use self::{
    connection::Link,
    exchange::{Peer, exchange, exchange_between},
    folder::sweep,
    listener::Listener,
    memory::SharedMemory,
};
use crate::{hash::fnv64, store::StoreError};

/// The kind of a descriptor, chosen by its sender. A descriptor with a tag that the receiver does not expect is closed,
/// and [`LinkError::Unexpected`] is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub [u8; 4]);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.escape_ascii().to_string())
    }
}

/// Errors of passing descriptors between processes. A place is the number of a process, as the caller passed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The folder for this process's socket, or the socket, cannot be made.
    #[error("no socket {}: {source}; XDG_RUNTIME_DIR or TMPDIR must name a folder that can be written to", path.display())]
    Folder {
        /// The path of the folder or of the socket.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A process sent something unexpected, or its endpoint is malformed or cannot be trusted, or connecting to it
    /// failed for a reason that has no variant of its own.
    #[error("place {place}: {problem}")]
    Unexpected {
        /// The place of that process.
        place: u64,
        /// A description of the problem.
        problem: String,
    },
    /// A process has ended, no longer listens, or has closed the connection.
    #[error("place {place} is gone: {problem}")]
    Gone {
        /// The place of that process.
        place: u64,
        /// How this process noticed that: the error of an operation, or an event such as the end of the connection.
        problem: String,
    },
    /// Processes did not connect, send or receive before the deadline.
    #[error("places {places:?} did not come within {waited:.1?}")]
    Absent {
        /// The places of those processes.
        places: Vec<u64>,
        /// The time since the deadline was created.
        waited: Duration,
    },
    /// A system call failed.
    #[error("handing descriptors to the processes of this host: {0}")]
    System(#[from] io::Error),
    /// The function `endpoint` that the caller passed to [`exchange()`] failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LinkError {
    /// Returns the error for a process that does not listen at this path.
    fn nobody(place: u64, path: &str) -> Self {
        Self::Gone { place, problem: format!("nobody listens at {path}") }
    }
}

impl From<rustix::io::Errno> for LinkError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

/// Returns a number that identifies this host: a hash of the kernel's boot id, the network namespace and the host
/// name. A part that cannot be read counts as empty. Processes with the same hash share a kernel, which shared memory
/// needs, and a network namespace, which NCCL needs to pass descriptors over abstract sockets. If the environment
/// variable `NCCL_HOSTID` is set and not empty, the number is a hash of its value instead.
#[must_use]
pub fn host() -> u64 {
    if let Some(name) = env::var_os("NCCL_HOSTID").filter(|name| !name.is_empty()) {
        return fnv64(name.as_encoded_bytes());
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    fnv64(&[&boot[..], network.as_os_str().as_encoded_bytes(), &name].concat())
}

/// The secret in an endpoint. Only processes that can read the endpoint in the store know it.
type Token = [u8; 16];

/// Waits until a descriptor is ready, for at most `patience`, and at most an hour. Returns true if one is ready, and
/// false after a timeout or a signal. Callers repeat the call until their deadline.
fn poll_all(what: &mut [PollFd<'_>], patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience.min(Duration::from_secs(3600))).unwrap_or_default();
    match poll(what, Some(&patience)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
