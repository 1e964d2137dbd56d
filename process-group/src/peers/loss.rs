//! The failures of watched ranks, and the errors of the watch itself.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::store::StoreError;

/// The failure of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The process has ended without leaving the group.
    Died,
    /// The process exists, but has sent no heartbeat for this time: the process was stopped, or its host is
    /// overloaded.
    Silent(Duration),
}
bootstrap::wire_enum!(Loss { 0 => Died {}, 1 => Silent(time) });

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Died => f.write_str("has died"),
            Self::Silent(time) => {
                write!(f, "has not run for {time:.1?} (stopped, or its host is overloaded?)")
            }
        }
    }
}

/// The reason why the processes of a host cannot watch each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The folder for this process's socket cannot be made.
    #[error("no socket {}: {source}; XDG_RUNTIME_DIR or TMPDIR must name a folder that can be written to", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A rank sent an unexpected greeting.
    #[error("rank {rank} of this host: {problem}")]
    Greeting {
        /// The rank.
        rank: usize,
        /// Description of the problem.
        problem: String,
    },
    /// Ranks of this host did not connect in time.
    #[error("ranks {ranks:?} of this host did not greet within {waited:.1?}")]
    Absent {
        /// The ranks that did not connect.
        ranks: Vec<usize>,
        /// Duration of the wait.
        waited: Duration,
    },
    /// A system call failed.
    #[error("watching the ranks of this host: {0}")]
    System(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
