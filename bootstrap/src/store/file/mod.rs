//! A store in a file that all ranks can open, compatible with PyTorch's.
//!
//! - `log`: the file's records, its lock, repairs; [`FileStore`]: operations and waits on it.

mod log;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use self::log::{Access, Log};
use super::{
    Deadline, Result, StoreError,
    error::text,
    machine::{GRACE, Limits, Reply, Request},
    service::{Keys, Service},
};

/// The pauses between a wait's reads of the file: short at the beginning, later like PyTorch's.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// A store in a file: for ranks that share a disk and no network. Clones are the same store.
///
/// Ranks in Python may share the file (`torch.distributed.FileStore`). Its file system must support `flock`;
/// on NFS that requires version 4, or a lock daemon. The file only grows, up to [`Limits::store_bytes`]. A
/// path serves one job, because a job cannot distinguish an earlier one's data from its own. A
/// [`rendezvous`](super::rendezvous()) then fails with [`RankTaken`](StoreError::RankTaken).
///
/// Differences from PyTorch's store:
/// - A record that a killed writer has left half-written is ignored and repaired. PyTorch's store spins on
///   it, holding the lock.
/// - A lock that is not released causes an error after the deadline. A file that is removed causes one at
///   once.
/// - Symbolic links are not followed. The file is accessible for its owner alone. A file of another user, or
///   that others may write, is refused ([`FileUntrusted`](StoreError::FileUntrusted)).
/// - [`append`](super::Store::append) and [`multi_set`](super::Store::multi_set) are atomic,
///   [`delete`](super::Store::delete) returns the correct result, and [`num_keys`](super::Store::num_keys)
///   counts keys only.
/// - Queues exist only here. PyTorch's store ignores them. The first process to look takes an element.
///
/// An operation waits for other holders of the lock at most as long as the [patience](FileOptions::patience).
///
/// ```
/// use bootstrap::store::{Deadline, FileStore, Store};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = std::env::temp_dir().join(format!("store-{}", std::process::id()));
/// let one = FileStore::options().workers(2).open(&path)?;
/// let other = FileStore::options().workers(2).open(&path)?;
/// one.set("leader", b"rank 0")?;
/// assert_eq!(other.get("leader", Deadline::after(Duration::from_secs(30)))?, b"rank 0");
/// drop((one, other));
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: FileOptions,
    log: Mutex<Log>,
}

/// Options to open a [`FileStore`].
#[derive(Debug, Clone)]
pub struct FileOptions {
    limits: Limits,
    patience: Duration,
    workers: Option<u64>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), patience: Duration::from_secs(30), workers: None }
    }
}

impl FileOptions {
    /// Sets the size limits. [`Limits::store_bytes`] limits the file. Other processes' data must be within
    /// them too.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the time for which another process may hold the file's lock (default 30 s). After it, operations
    /// fail with [`StoreError::FileLocked`].
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the number of times that the store is opened in total. The last process to leave removes the
    /// file. Without this setting the file stays.
    #[must_use]
    pub fn workers(self, workers: u64) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// Opens the store in the file at `path`. Creates the file if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::File`], [`StoreError::FileUntrusted`], [`StoreError::FileLocked`], [`StoreError::FileCorrupt`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<FileStore> {
        let deadline = Deadline::after(self.patience);
        let log = loop {
            let mut log = Log::open(path.as_ref(), self.limits)?;
            match log.locked(Access::Write, "open", deadline, Log::join) {
                Ok(()) => break log,
                // The last process of an earlier job removed it between the two steps. The next attempt
                // creates a new file.
                Err(StoreError::FileGone { .. }) if !deadline.expired() => {}
                Err(error) => return Err(error),
            }
        };
        Ok(FileStore { inner: Arc::new(Inner { options: self, log: Mutex::new(log) }) })
    }
}

impl FileStore {
    /// Opens the store in the file at `path`, which stays after all have left; see [`FileOptions::open`].
    ///
    /// # Errors
    /// [`StoreError::File`], [`StoreError::FileUntrusted`], [`StoreError::FileLocked`], [`StoreError::FileCorrupt`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::default().open(path)
    }

    /// Returns options to open a store with other settings.
    pub fn options() -> FileOptions {
        FileOptions::default()
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.inner.log().path().to_owned()
    }
}

impl Inner {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (log, workers) =
            (self.log.get_mut().unwrap_or_else(PoisonError::into_inner), self.options.workers);
        // If the count cannot be updated, this process has still left, and the file stays.
        let _ = log.locked(Access::Write, "close", Deadline::after(GRACE), |log| log.leave(workers));
    }
}

impl Service for FileStore {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        self.inner.options.limits.check(&request)?;
        let deadline = Deadline::after(self.inner.options.patience);
        let (access, name) = (log::access(&request), request.name());
        self.inner.log().locked(access, name, deadline, |log| log.serve(request))
    }

    fn call_when_there(
        &self,
        keys: Keys,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        self.inner.options.limits.check(&Request::Wait { keys: keys.clone() })?;
        let (access, name) =
            request.as_ref().map_or((Access::Read, "wait"), |request| (log::access(request), request.name()));
        let mut pause = FIRST_LOOK;
        loop {
            let patience = deadline.remaining().max(GRACE).min(self.inner.options.patience);
            let outcome = self.inner.log().locked(access, name, Deadline::after(patience), |log| {
                let missing = log.missing(&keys);
                if !missing.is_empty() {
                    return Ok(Err(missing));
                }
                match request.clone().map(|request| log.serve(request)).transpose()? {
                    // A value under the queue's name ends the wait, but the wait is for the queue.
                    Some(Some(Reply::Popped(None))) => Ok(Err(keys.iter().map(|key| text(key)).collect())),
                    reply => Ok(Ok(reply.flatten())),
                }
            })?;
            match outcome {
                Ok(reply) => return Ok(reply),
                Err(keys) if deadline.expired() => {
                    return Err(StoreError::Timeout { keys, waited: deadline.waited() });
                }
                Err(_) => thread::sleep(pause.min(deadline.remaining())),
            }
            // A long wait reads less often, so that its reads take a small part of its time.
            pause = (pause * 2).min((deadline.waited() / 64).clamp(LOOK, LONGEST_LOOK));
        }
    }

    fn unexpected(&self, request: &'static str, reply: Option<Reply>) -> StoreError {
        StoreError::Argument(format!("{request} was answered by {reply:?}; this is a defect of the store"))
    }
}
