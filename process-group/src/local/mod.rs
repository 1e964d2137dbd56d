//! Descriptors between the processes of a host: memory, locks, whatever the kernel names by one.
//!
//! Who is to be visited opens a [`Door`]: a socket in a folder that only this user can enter. Its [card](Door::card),
//! which the members find in their store, says where it is, and a random word. [`exchange()`] is one meeting: every pair of
//! processes hands each other what they brought, one descriptor a message, each with a [`Tag`] that says what it is.
//! Of two, the one with the lower place connects.
//!
//! Who is another user, or does not know the word, gets nothing; who says something else, too much or nothing keeps
//! nobody waiting. Every wait has a deadline. A process that is gone is told from one that is late.
//!
//! [`SharedMemory`] is what they hand each other to speak without a system call.
//!
//! The folder goes with the door. That of a process that was killed goes with the next door of the same user, or with
//! [`sweep`].
//!
//! ```
//! use process_group::{local::{self, Door, Tag}, store::Deadline};
//! use std::{fs::File, os::fd::AsFd, time::Duration};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let doors = [Door::open()?, Door::open()?];
//! let cards = doors.each_ref().map(Door::card);
//! let meet = |door: &Door, me: u64, other: u64| {
//!     let file = File::open("/dev/null")?;
//!     let deadline = Deadline::after(Duration::from_secs(10));
//!     let card = |place: u64| Ok(cards[place as usize].clone());
//!     local::exchange(door, me, &[other], card, &[(Tag(*b"null"), file.as_fd())], deadline)
//! };
//! // As a rule the two are processes.
//! let met = std::thread::scope(|scope| {
//!     let first = scope.spawn(|| meet(&doors[0], 0, 1));
//!     meet(&doors[1], 1, 0).map(|met| (met, first.join()))
//! })?;
//! assert_eq!(met.0[0].descriptors.len(), 1);
//! # Ok(())
//! # }
//! ```

mod door;
mod exchange;
mod folder;
mod link;
mod memory;
#[cfg(test)]
mod tests;

use std::{env, fmt, fs, io, path::PathBuf, time::Duration};

use rustix::{
    event::{PollFd, Timespec, poll},
    rand::{GetRandomFlags, getrandom},
};

pub use self::{
    door::Door,
    exchange::{Met, exchange},
    folder::sweep,
    link::Link,
    memory::SharedMemory,
};
use crate::store::StoreError;

/// What a descriptor is, in the words of who sends it. One that is not expected is refused unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub [u8; 4]);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.escape_ascii().to_string())
    }
}

/// Why descriptors did not get from one process to another. Places are those that the caller gave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The folder for this process's socket cannot be made.
    #[error("no socket {}: {source}; XDG_RUNTIME_DIR or TMPDIR must name a folder that can be written to", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What a process said is not what it should be.
    #[error("place {place}: {problem}")]
    Unexpected {
        /// The process.
        place: u64,
        /// What was expected and what was found.
        problem: String,
    },
    /// Processes that have ended, or have closed their doors.
    #[error("place {place} is gone: {problem}")]
    Gone {
        /// The process.
        place: u64,
        /// How that showed.
        problem: String,
    },
    /// Processes that did not come.
    #[error("places {places:?} did not come within {waited:.1?}")]
    Absent {
        /// The processes.
        places: Vec<u64>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The system refused something.
    #[error("handing descriptors to the processes of this host: {0}")]
    System(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rustix::io::Errno> for LocalError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

/// A number for this host: for two processes to share memory they must run under one kernel, and NCCL passes file
/// descriptors over abstract sockets, which belong to the network namespace. `NCCL_HOSTID`, if it is set, names the host
/// instead, as it does to NCCL.
#[must_use]
pub fn host() -> u64 {
    if let Some(name) = env::var_os("NCCL_HOSTID").filter(|name| !name.is_empty()) {
        return crate::hash::fnv64(name.as_encoded_bytes());
    }
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    crate::hash::fnv64(&[&boot[..], network.as_os_str().as_encoded_bytes(), &name].concat())
}

/// A word that only those know who can read the store.
type Word = [u8; 16];

fn fresh_word() -> io::Result<Word> {
    let mut word = Word::default();
    getrandom(&mut word, GetRandomFlags::empty())?;
    Ok(word)
}

/// Polls; whether there is anything.
pub(crate) fn poll_all(what: &mut [PollFd<'_>], patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience.min(Duration::from_secs(3600))).unwrap_or_default();
    match poll(what, Some(&patience)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
