//! What can go wrong between a rank and its store.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::machine::{Distrust, Part, Refusal};

/// The outcome of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The deadline passed before the keys were there. The store stays usable.
    #[error("waited {waited:?} for {} that nobody has set; either the rank that sets it is late, or it never will", list(.keys))]
    Timeout {
        /// The keys that were waited for, as far as they were still missing when that is known.
        keys: Vec<String>,
        /// How long.
        waited: Duration,
    },
    /// The store's host answered earlier and is gone now. What it held is lost.
    #[error(
        "the store's host at {address} died during {operation}: its process ended or its machine is cut off"
    )]
    HostDied {
        /// Where the host was.
        address: String,
        /// What was being done.
        operation: String,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The host holds the connection open but does not answer.
    #[error(
        "the store's host at {address} did not answer {operation} within {waited:?}; it is stopped or overloaded"
    )]
    Unresponsive {
        /// Where the host is.
        address: String,
        /// What was being done.
        operation: String,
        /// How long.
        waited: Duration,
    },
    /// Nobody accepted a connection before the deadline.
    #[error(
        "no store at {address} after {waited:?} and {attempts} attempts; is its host (rank 0) running, and the address right?"
    )]
    Unreachable {
        /// Where it should be.
        address: String,
        /// How often a connection was tried.
        attempts: u32,
        /// How long.
        waited: Duration,
        /// What the last attempt got.
        source: Arc<io::Error>,
    },
    /// Connections are accepted and closed before a greeting, until the deadline.
    #[error(
        "the store at {address} has turned this process away {attempts} times within {waited:?}; it has as many clients \
         as it may have (its limit, or `ulimit -n`), or it is no store"
    )]
    TurnedAway {
        /// Where the store is.
        address: String,
        /// How often a connection was tried.
        attempts: u32,
        /// How long.
        waited: Duration,
        /// How the last connection ended.
        source: Arc<io::Error>,
    },
    /// This process and the host do not share a secret.
    #[error("the store at {address} and this process do not trust each other: {source}")]
    Distrusted {
        /// Where the store is.
        address: String,
        /// Why not.
        source: Distrust,
    },
    /// Something else is under a key that one process writes once.
    #[error(
        "{key} holds {found} bytes that this process has not written; another process has taken its place"
    )]
    Taken {
        /// The key.
        key: String,
        /// How many bytes are there.
        found: usize,
    },
    /// A variable or a file that is to hold the job's secret does not.
    #[error("the store's secret: {origin} {problem}")]
    Secret {
        /// The variable or the file.
        origin: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// What answers at the address is not a store.
    #[error("what listens at {address} is not a store: {found}; is the port right?")]
    NotAStore {
        /// Where it was looked for.
        address: String,
        /// What was found instead.
        found: String,
    },
    /// The host keeps running but closed the connection in answer to a request.
    #[error("the store's host at {address} refused {operation}: {limits}")]
    Refused {
        /// Where the host is.
        address: String,
        /// What was refused.
        operation: String,
        /// What a host refuses.
        limits: &'static str,
    },
    /// Another process listens at the address.
    #[error(
        "cannot host a store at {address}: the port is in use; choose another, or port 0 for any that is free"
    )]
    PortInUse {
        /// The address that is taken.
        address: String,
    },
    /// The address cannot be listened at for another reason.
    #[error("cannot host a store at {address}")]
    Bind {
        /// The address.
        address: String,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The address is not one, or its name has no address.
    #[error("{address:?} is no address of a store (host:port)")]
    Address {
        /// What was given.
        address: String,
        /// What the look-up said.
        source: Arc<io::Error>,
    },
    /// The host answered with bytes that the protocol does not allow.
    #[error("the store's host at {address} broke the protocol during {operation}: {detail}")]
    Protocol {
        /// Where the host is.
        address: String,
        /// What was being done.
        operation: String,
        /// What was received and what was expected.
        detail: String,
    },
    /// A key, a value or a request exceeds the store's limits. Nothing was changed.
    #[error("{what} of {size} {unit} exceeds the store's limit of {limit}")]
    TooLarge {
        /// What is too large, with its key.
        what: String,
        /// Whether `size` and `limit` are `bytes` or `keys`.
        unit: &'static str,
        /// Its size.
        size: usize,
        /// The largest that is accepted.
        limit: usize,
    },
    /// A number was to be added to a value that is none.
    #[error("cannot add to {key:?}: it holds {value:?}, and the sum is no 64-bit integer")]
    NotANumber {
        /// The key.
        key: String,
        /// The start of its value.
        value: String,
    },
    /// Some ranks did not arrive. Every rank that did arrive gets the same list.
    #[error(
        "{} {} of {world} never arrived at {at:?} (waited {:.1} s)",
        if .ranks.len() == 1 { "rank" } else { "ranks" }, ranges(.ranks), .waited.as_secs_f64()
    )]
    Absent {
        /// The ranks that are missing, ascending.
        ranks: Vec<usize>,
        /// How many ranks were expected.
        world: usize,
        /// The name of the meeting.
        at: String,
        /// How long this rank waited.
        waited: Duration,
    },
    /// Fewer workers connected than the store's host waited for.
    #[error("only {arrived} of {expected} workers have connected to the store at {address} after {waited:?}")]
    Workers {
        /// Where the store is.
        address: String,
        /// How many have connected, the host among them.
        arrived: i64,
        /// How many were expected.
        expected: i64,
        /// How long.
        waited: Duration,
    },
    /// A rank will not come any more: another of a meeting knows that.
    #[error("rank {rank} is gone, and with it the meeting at {at:?}")]
    GivenUp {
        /// The rank.
        rank: usize,
        /// The name of the meeting.
        at: String,
    },
    /// Two processes have come under one rank, or a name was used for a second meeting.
    #[error(
        "rank {rank} has come to {at:?} twice; do two processes run with this rank, or is the name used twice?"
    )]
    RankTaken {
        /// The rank.
        rank: usize,
        /// The name of the meeting.
        at: String,
    },
    /// This process cannot open another connection.
    #[error("cannot connect to the store's host at {address} for {operation}; this process lacks a resource")]
    Local {
        /// Where the host is.
        address: String,
        /// What was being done.
        operation: String,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The system refuses something with a store's file.
    #[error("cannot {operation} the store's file {}", .path.display())]
    File {
        /// Where the file is.
        path: PathBuf,
        /// What was being done.
        operation: String,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// A store's file belongs to another user, or others may write it.
    #[error(
        "the store's file {} belongs to user {owner} and has mode {mode:04o}; expected user {user}, and that neither its \
         group nor others may write it: remove it, or `chmod go-w`",
        .path.display()
    )]
    FileUntrusted {
        /// Where the file is.
        path: PathBuf,
        /// The number of the user whose file it is.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// The number of this process's user.
        user: u32,
    },
    /// Another process does not give back the lock of a store's file.
    #[error(
        "{operation} waited {waited:?} for the lock of the store's file {}; the process that has it is stopped or \
         hangs (`lslocks` names it)",
        .path.display()
    )]
    FileLocked {
        /// Where the file is.
        path: PathBuf,
        /// What was being done.
        operation: String,
        /// How long.
        waited: Duration,
    },
    /// A store's file was removed while this process used it.
    #[error("the store's file {} was removed; what it held is lost", .path.display())]
    FileGone {
        /// Where the file was.
        path: PathBuf,
    },
    /// A store's file holds something else than records.
    #[error(
        "the store's file {} holds no record at byte {offset} but {found}; it is another program's, or a writer was \
         killed and another went on behind what that one had begun: remove it and start again",
        .path.display()
    )]
    FileCorrupt {
        /// Where the file is.
        path: PathBuf,
        /// The place of what is no record.
        offset: u64,
        /// What lies there.
        found: String,
    },
    /// A request that no store serves.
    #[error("{0}")]
    Argument(String),
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLarge { part, key, size, limit } => {
                let unit = if part == Part::Keys { "keys" } else { "bytes" };
                let of = if key.is_empty() { String::new() } else { format!(" ({:?})", text(&key)) };
                StoreError::TooLarge { what: format!("{part}{of}"), unit, size, limit }
            }
            Refusal::NotANumber { key, value } => {
                StoreError::NotANumber { key: text(&key), value: text(&value) }
            }
            other => StoreError::Argument(other.to_string()),
        }
    }
}

/// A key or a value as a person reads it.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The same without a copy where it is text.
pub(super) fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| text(error.as_bytes()))
}

/// Names the first few keys.
fn list(keys: &[String]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = keys.iter().take(SHOWN).map(|key| format!("{key:?}")).collect();
    match keys.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Writes ascending ranks as `0, 2-5, 9`.
fn ranges(ranks: &[usize]) -> String {
    let mut parts = Vec::new();
    let mut rest = ranks;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(rank, expected)| **rank == *expected).count();
        parts.push(match run {
            1 => first.to_string(),
            _ => format!("{first}-{}", rest[run - 1]),
        });
        rest = &rest[run..];
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_written_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 2, 3, 4, 9]), "0, 2-4, 9");
    }

    #[test]
    fn long_lists_of_keys_are_cut() {
        let keys: Vec<_> = (0..10).map(|i| i.to_string()).collect();
        assert!(list(&keys).ends_with("\"7\" and 2 more"));
    }
}
