//! Errors of stores.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use super::machine::{Distrust, Part, Refusal};
use crate::Ranks;

/// The outcome of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The reason why a store operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// At the deadline, some keys did not exist, or the queue was empty. The store stays usable.
    #[error("waited {waited:.1?} for {} that nobody has set; either the rank that sets it is late, or it never will", list(.keys))]
    Timeout {
        /// The missing keys of the wait. If it is not known which keys are missing: all keys of the wait. For a queue,
        /// its name.
        keys: Vec<String>,
        /// The time since the deadline was created.
        waited: Duration,
    },
    /// The store's host answered earlier. Then its connection broke, or a new connection failed, and one more attempt
    /// to connect failed too. Usually the host's process has ended, and the contents of the store are lost with it, or
    /// the host's machine cannot be reached.
    #[error(
        "the store's host at {address} died during {operation}: its process ended or its machine is cut off"
    )]
    HostDied {
        /// The host's address.
        address: String,
        /// The operation in progress.
        operation: String,
        /// The error of the connection that broke or failed first.
        source: Arc<io::Error>,
    },
    /// The host holds the connection open, but did not answer or accept bytes in time: within the patience, or, for an
    /// operation with a deadline, soon after the deadline. See
    /// [`TcpOptions::patience`](super::TcpOptions::patience).
    #[error(
        "the store's host at {address} did not answer {operation} within {waited:.1?}; it is stopped or overloaded"
    )]
    Unresponsive {
        /// The host's address.
        address: String,
        /// The operation in progress.
        operation: String,
        /// The time since the deadline was created. For an operation without a deadline, the time since its start.
        waited: Duration,
    },
    /// No connection to the store was possible before the deadline. At the attempt that `source` describes, no process
    /// listened at the address, the address did not answer, or a system call failed.
    #[error(
        "no store at {address} after {waited:.1?} and {attempts} attempts; check that its host (rank 0) runs and that the address is right"
    )]
    Unreachable {
        /// The expected address.
        address: String,
        /// The number of attempts. Each tries all addresses that the host's name resolves to.
        attempts: u32,
        /// The time since the deadline was created.
        waited: Duration,
        /// The error of the last attempt. But if the deadline has interrupted that attempt during the greeting, the
        /// error of the attempt before it, which says more about the cause.
        source: Arc<io::Error>,
    },
    /// No connection to the store was possible before the deadline. At the attempt that `source` describes, a process
    /// accepted the connection, but closed it, or the connection broke, before the greeting was complete. The greeting
    /// is the first messages, which show that both sides speak the store's protocol and know the secret.
    #[error(
        "the store at {address} has turned this process away {attempts} times within {waited:.1?}; it has as many clients \
         as it may have (its limit, or `ulimit -n`), or it is no store"
    )]
    TurnedAway {
        /// The store's address.
        address: String,
        /// The number of attempts. Each tries all addresses that the host's name resolves to.
        attempts: u32,
        /// The time since the deadline was created.
        waited: Duration,
        /// The error of the last attempt. But if the deadline has interrupted that attempt during the greeting, the
        /// error of the attempt before it, which says more about the cause.
        source: Arc<io::Error>,
    },
    /// The greeting failed because of the secret. Usually this process and the host do not have the same one.
    #[error("the store at {address} and this process do not trust each other: {source}")]
    Distrusted {
        /// The store's address.
        address: String,
        /// The reason.
        source: Distrust,
    },
    /// [`publish`](super::publish) found another value under its key.
    #[error(
        "{key} holds {found} bytes that this process has not written; another process has taken its place"
    )]
    Taken {
        /// The key.
        key: String,
        /// The length of that value, in bytes.
        found: usize,
    },
    /// The job's secret cannot be used: [`Secret::VARIABLE`](super::Secret::VARIABLE) or the file that
    /// [`Secret::FILE_VARIABLE`](super::Secret::FILE_VARIABLE) names contains no valid secret, the file does not meet
    /// the conditions of [`Secret::read_file`](super::Secret::read_file), or both variables are set.
    #[error("the store's secret: {origin} {problem}")]
    Secret {
        /// The name of the variable, or the path of the file.
        origin: String,
        /// A description of the problem, without the secret.
        problem: String,
    },
    /// The process at the address accepts connections, but does not behave as a store: its answer to the greeting is
    /// invalid, or it did not answer before the deadline.
    #[error("what listens at {address} is not a store: {found}; check the port")]
    NotAStore {
        /// The address.
        address: String,
        /// A description of the invalid answer, or of the time without an answer.
        found: String,
    },
    /// The connection broke during an operation, or a new connection for the operation could not be opened. Another
    /// connection could be opened afterwards, so the host still serves. If the connection broke, the host has probably
    /// closed it because of the request.
    #[error("the store's host at {address} refused {operation}: {limits}")]
    Refused {
        /// The host's address.
        address: String,
        /// The refused operation.
        operation: String,
        /// A description of the possible reasons.
        limits: &'static str,
    },
    /// The host cannot listen at the address because its port is already in use.
    #[error(
        "cannot host a store at {address}: the port is in use; choose another, or port 0 for any that is free"
    )]
    PortInUse {
        /// The address.
        address: String,
    },
    /// The host cannot listen at the address for another reason, or cannot begin to serve.
    #[error("cannot host a store at {address}")]
    Bind {
        /// The address.
        address: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The address is invalid, or its name does not resolve.
    #[error("{address:?} is no address of a store (host:port)")]
    Address {
        /// The address given.
        address: String,
        /// The error of the parser or of the name look-up.
        source: Arc<io::Error>,
    },
    /// The host answered with bytes that the protocol does not allow.
    #[error("the store's host at {address} broke the protocol during {operation}: {detail}")]
    Protocol {
        /// The host's address.
        address: String,
        /// The operation in progress.
        operation: String,
        /// A description of the data received.
        detail: String,
    },
    /// A key, a value or a request exceeds a limit of the store. Or the request is small enough, but its reply or the
    /// contents of the store after it would exceed a limit. Nothing was changed.
    #[error("{what} of {size} {unit} exceeds the store's limit of {limit}")]
    TooLarge {
        /// The part that is too large, with its key if that is known.
        what: String,
        /// The unit of `size` and `limit`: `bytes` or `keys`.
        unit: &'static str,
        /// The size of the part.
        size: usize,
        /// The largest size that is accepted.
        limit: usize,
    },
    /// The value to add to does not begin with a number, or the sum is out of range.
    #[error("cannot add to {key:?}: it holds {value:?}, and the sum is no 64-bit integer")]
    NotANumber {
        /// The key.
        key: String,
        /// The start of its value, at most 64 bytes.
        value: String,
    },
    /// Some ranks did not arrive at a meeting ([`rendezvous`](super::rendezvous()) or [`barrier`](super::barrier)). All
    /// ranks that get this error get the same list, unless they expect different numbers of ranks.
    #[error("{} of {world} never arrived at {at:?} (waited {:.1} s)", Ranks(.ranks), .waited.as_secs_f64())]
    Absent {
        /// The ranks that are missing, ascending.
        ranks: Vec<usize>,
        /// The number of ranks expected.
        world: usize,
        /// The name of the meeting.
        at: String,
        /// The time since the deadline was created.
        waited: Duration,
    },
    /// The store's host waited for its workers until the deadline, and not all have connected. See
    /// [`TcpOptions::workers`](super::TcpOptions::workers).
    #[error(
        "only {arrived} of {expected} workers have connected to the store at {address} after {waited:.1?}"
    )]
    Workers {
        /// The store's address.
        address: String,
        /// The number of workers that have connected, including the host; 0 if it could not be read.
        arrived: i64,
        /// The number of workers expected.
        expected: i64,
        /// The time since the deadline was created.
        waited: Duration,
    },
    /// A rank will not arrive at a meeting. The rank itself or another rank has reported that. The operations of this
    /// module never return this error. Protocols that use a store do.
    #[error("rank {rank} has left the meeting at {at:?}: {cause}")]
    GivenUp {
        /// The rank.
        rank: usize,
        /// The name of the meeting.
        at: String,
        /// The reason.
        cause: String,
    },
    /// A rank arrived at a meeting twice: two processes use this rank, or the meeting's name was used before.
    #[error(
        "rank {rank} has come to {at:?} twice; do two processes run with this rank, is the name used twice, or has an earlier \
         job left its keys in this store? Give each job a store of its own, or new names (a process group: the next epoch)"
    )]
    RankTaken {
        /// The rank.
        rank: usize,
        /// The name of the meeting.
        at: String,
    },
    /// This process cannot open or use a connection, for lack of descriptors, memory or ports.
    #[error("cannot connect to the store's host at {address} for {operation}; this process lacks a resource")]
    Local {
        /// The host's address.
        address: String,
        /// The operation in progress.
        operation: String,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// A system call on a store's file failed, or the path does not name a regular file.
    #[error("cannot {operation} the store's file {}", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The operation in progress.
        operation: String,
        /// The error of the system call, or a description of the problem with the path.
        source: Arc<io::Error>,
    },
    /// A store's file belongs to another user, or other users may write it. See [`FileStore`](super::FileStore).
    #[error(
        "the store's file {} belongs to user {owner} and has mode {mode:04o}; expected user {user}, and that neither its \
         group nor others may write it: remove it, or `chmod go-w`",
        .path.display()
    )]
    FileUntrusted {
        /// The path of the file.
        path: PathBuf,
        /// The user id of the file's owner.
        owner: u32,
        /// The mode of the file: its permission bits, including set-user-ID, set-group-ID and sticky.
        mode: u32,
        /// The effective user id of this process.
        user: u32,
    },
    /// Another process, or another store of this process in the same file, did not release the file's lock within the
    /// time that [`FileOptions::patience`](super::FileOptions::patience) describes.
    #[error(
        "{operation} waited {waited:.1?} for the lock of the store's file {}; the process that has it is stopped or \
         hangs (`lslocks` names it)",
        .path.display()
    )]
    FileLocked {
        /// The path of the file.
        path: PathBuf,
        /// The operation in progress.
        operation: String,
        /// The time that the operation has waited for the lock.
        waited: Duration,
    },
    /// A store's file was removed while this process used it.
    #[error("the store's file {} was removed; what it held is lost", .path.display())]
    FileGone {
        /// The path of the file.
        path: PathBuf,
    },
    /// A store's file contains bytes that are no record, it contains a record whose key or value exceeds this process's
    /// limits, or it has become shorter.
    #[error(
        "invalid store's file {}: at byte {offset}, expected a record, found {found}; another program has written the \
         file, or a writer was killed and PyTorch's store appended to its incomplete record: remove the file and start \
         again",
        .path.display()
    )]
    FileCorrupt {
        /// The path of the file.
        path: PathBuf,
        /// The position of the invalid record, in bytes. If the file has become shorter, its length.
        offset: u64,
        /// A description of the data found there.
        found: String,
    },
    /// An argument is invalid, or an error has no variant of its own. The message describes it.
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

/// Formats a key or a value for a message. Replaces bytes that are not UTF-8.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Like [`text`], but without a copy if the bytes are UTF-8.
pub(super) fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| text(error.as_bytes()))
}

/// Formats the first eight keys, and the number of the others.
fn list(keys: &[String]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = keys.iter().take(SHOWN).map(|key| format!("{key:?}")).collect();
    match keys.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_keys_are_cut() {
        let keys: Vec<_> = (0..10).map(|i| i.to_string()).collect();
        assert!(list(&keys).ends_with("\"7\" and 2 more"));
    }
}
