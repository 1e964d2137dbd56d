//! A store in a file that all ranks can open, compatible with PyTorch's `FileStore`.
//!
//! The module `log` contains the format of the file, its lock, the removal of an incomplete record, and the execution of
//! requests. [`FileStore`] adds the waits for keys.

mod log;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use self::log::{Access, Log};
use super::{
    Deadline, Result, Store, StoreError,
    error::text,
    machine::{GRACE, Limits, Reply, Request},
};
use crate::runtime;

/// A wait reads the file repeatedly. This is the first pause between two reads. The pause doubles after each read, up
/// to a limit that grows from [`LOOK`] to [`LONGEST_LOOK`] with the time since the deadline was created.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The limit of the pause while the deadline is new.
const LOOK: Duration = Duration::from_millis(10);
/// The largest limit of the pause, from 6.4 s after the deadline was created.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// A store in a file, for ranks that share a file system. It needs no network. Clones are the same store.
///
/// Ranks in Python may share the file (`torch.distributed.FileStore`). The file system must support `flock`; NFS does
/// so with version 4, or with a lock daemon. Complete records stay in the file, which grows up to
/// [`Limits::store_bytes`]. Use a path for one job only, because a job cannot distinguish the data of an earlier job
/// from its own. If the file of an earlier job is still there, a [`rendezvous`](super::rendezvous()) under a name that
/// the earlier job used fails with [`RankTaken`](StoreError::RankTaken) on every rank that took part in the earlier
/// rendezvous. A rank that did not take part in it reads the earlier rendezvous's result from the file, and may get
/// values that ranks of the earlier job published.
///
/// Differences from PyTorch's store:
/// - If a process is killed while it writes, the other processes ignore its incomplete record, and the next writer
///   removes it. PyTorch's store waits in a loop for the record's end, while it holds the lock.
/// - If another process does not release the lock, an operation fails with [`FileLocked`](StoreError::FileLocked), at
///   the latest after the [patience](FileOptions::patience).
///   If the file is removed, operations fail without waiting for their deadlines.
/// - A symbolic link at the path is refused. A new file is accessible to its owner alone. A file of another user,
///   or one that other users may write, is refused ([`FileUntrusted`](StoreError::FileUntrusted)). The file's group
///   may write it only if the group's id is the owner's user id.
/// - [`append`](super::Store::append) and [`multi_set`](super::Store::multi_set) are atomic, except that a process
///   that is killed during `multi_set` may leave some of the keys set. [`delete`](super::Store::delete) returns true
///   only if the key had a value. [`num_keys`](super::Store::num_keys) counts only keys that have a value.
/// - PyTorch's store has no queues. Here, an element of a queue goes to the first process that pops it, which may
///   not be the one that has waited longest.
///
/// Dropping the last clone closes the store. This waits for the lock, for at most 5 s. It removes the file if
/// [`FileOptions::workers`] says so.
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
    /// Sets the size limits. [`Limits::store_bytes`] limits the size of the file. If another process has written a key
    /// or value above the limits, operations fail with [`StoreError::FileCorrupt`] or [`StoreError::TooLarge`].
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Sets how long an operation waits for the file's lock (default 30 s). After that, the operation fails with
    /// [`StoreError::FileLocked`]. An operation with a deadline reads the file repeatedly. Each time, it waits for the
    /// lock until the deadline, or for 5 s if that is later, but never longer than the patience.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets how many times the store will be opened in total, for example once by each process of the job. When the
    /// store was closed that many times and is not open any more, the last close removes the file. Without this
    /// setting, the file stays.
    #[must_use]
    pub fn workers(self, workers: u64) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// Opens the store in the file at `path`. Creates the file if it does not exist. Waits for the lock, for at most
    /// the [patience](Self::patience).
    ///
    /// # Errors
    /// - [`StoreError::File`], [`StoreError::FileUntrusted`], [`StoreError::FileLocked`], [`StoreError::FileCorrupt`].
    /// - [`StoreError::FileGone`] if other processes keep removing the file until the patience has ended.
    /// - [`StoreError::TooLarge`] if the file would exceed the [limits](Self::limits), or contains a record above them.
    pub fn open(self, path: impl AsRef<Path>) -> Result<FileStore> {
        let deadline = Deadline::after(self.patience);
        let log = loop {
            let log = Mutex::new(Log::open(path.as_ref(), self.limits)?);
            match log::locked(&log, Access::Write, "open", deadline, Log::join) {
                Ok(()) => break log,
                // Another process, which closed the store, has removed the file after this process opened it and before
                // this process locked it. The next attempt opens or creates a new file.
                Err(StoreError::FileGone { .. }) if !deadline.expired() => {}
                Err(error) => return Err(error),
            }
        };
        Ok(FileStore { inner: Arc::new(Inner { options: self, log }) })
    }
}

impl FileStore {
    /// Opens the store in the file at `path` with the default options. Closing this store does not remove the file.
    ///
    /// # Errors
    /// Those of [`FileOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileOptions::default().open(path)
    }

    /// Returns the default options, to open a store with other settings.
    pub fn options() -> FileOptions {
        FileOptions::default()
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        log::lock(&self.inner.log).path().to_owned()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (deadline, workers) = (Deadline::after(GRACE), self.options.workers);
        // If this fails, the file still counts this store as open, so no process removes the file.
        let _ = log::locked(&self.log, Access::Write, "close", deadline, |log| log.leave(workers));
    }
}

impl Store for FileStore {
    fn call(&self, request: Request) -> Result<Option<Reply>> {
        self.inner.options.limits.check(&request)?;
        let deadline = Deadline::after(self.inner.options.patience);
        let (access, name) = (log::access(&request), request.name());
        log::locked(&self.inner.log, access, name, deadline, |log| log.serve(request))
    }

    fn call_when_there(
        &self,
        keys: Vec<Vec<u8>>,
        request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        self.inner.options.limits.check(&Request::Wait { keys: keys.clone() })?;
        let (access, name) =
            request.as_ref().map_or((Access::Read, "wait"), |request| (log::access(request), request.name()));
        let mut pause = FIRST_LOOK;
        loop {
            let patience = deadline.remaining().max(GRACE).min(self.inner.options.patience);
            let outcome = log::locked(&self.inner.log, access, name, Deadline::after(patience), |log| {
                let missing = log.missing(&keys);
                if !missing.is_empty() {
                    return Ok(Err(missing));
                }
                match request.clone().map(|request| log.serve(request)).transpose()? {
                    // The queue is empty, but a key with its name exists. The wait is for an element, so it continues.
                    Some(Some(Reply::Popped(None))) => Ok(Err(keys.iter().map(|key| text(key)).collect())),
                    reply => Ok(Ok(reply.flatten())),
                }
            })?;
            match outcome {
                Ok(reply) => return Ok(reply),
                Err(keys) if deadline.expired() => {
                    return Err(StoreError::Timeout { keys, waited: deadline.waited() });
                }
                Err(_) => runtime::sleep(pause.min(deadline.remaining())),
            }
            // The longer a wait lasts, the less often it reads the file.
            pause = (pause * 2).min((deadline.waited() / 64).clamp(LOOK, LONGEST_LOOK));
        }
    }
}
