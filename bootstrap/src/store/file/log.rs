//! The file of a [`FileStore`](super::FileStore): a sequence of records. Processes append records while they hold a
//! lock of the whole file. A complete record is not changed after its writer has released the lock.
//!
//! A record is a key and a value, each a `u32` length (little endian) and its bytes. The key selects the
//! operation:
//!
//! | key | operation |
//! |---|---|
//! | `/K` | sets K |
//! | `-/K` | removes K |
//! | `refcount/` | sets how many times the store is open now (decimal) |
//! | `cleanup/` | sets how many times it was closed (decimal) |
//! | `push/K` | appends the value to the queue K |
//! | `pop/K` | removes the first value of the queue K |
//!
//! PyTorch's store has no queues. It counts the keys of the queue records as keys, and otherwise ignores them.
//!
//! A writer that is killed while it writes may leave an incomplete record at the end. Only the holder of the lock
//! writes, so the next holder knows that this record will not be completed. Readers stop before it, and the next
//! writer removes it.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
    process::geteuid,
};

use crate::{
    runtime,
    store::{
        Deadline, Result, StoreError, check_kind,
        error::text,
        machine::{Limits, Part, Refusal, Reply, Request, Table},
    },
};

const SET: &[u8] = b"/";
const REMOVE: &[u8] = b"-/";
const PUSH: &[u8] = b"push/";
const POP: &[u8] = b"pop/";
const OPENED: &[u8] = b"refcount/";
const LEFT: &[u8] = b"cleanup/";

/// The mode bits that let the file's group, or all users, write.
const OTHERS_WRITE: u32 = 0o022;

/// The most bytes of the file that one system call reads.
const PIECE: u64 = 1 << 20;

/// The first pause between two attempts to take the lock. Each later pause is twice as long as the one before, up to
/// [`PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(50);
/// The longest pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// The client id of all requests to the table. One id suffices, because no request waits in the table: the waits of a
/// file store read the file repeatedly instead.
const ONLY: u64 = 0;

/// The access to the file that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads records, under a shared lock.
    Read,
    /// Reads and appends records, under an exclusive lock.
    Write,
}

/// The first value in a byte string, and the bytes after that value. `None` if the value is incomplete.
type First<'a, T> = Option<(T, &'a [u8])>;

/// The file, and the state that the records before `end` describe.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Arc<File>,
    limits: Limits,
    /// The end of the records that were read, in bytes from the start of the file.
    end: u64,
    table: Table,
    /// The number of times that the store is open now, in all processes.
    opened: i64,
    /// The number of times that the store was closed, in all processes.
    left: i64,
}

/// The lock of the file. Dropping it releases the lock.
struct Locked(Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // Unlocking fails only for a descriptor that is not open, and this one is open.
        let _ = flock(&*self.0, FlockOperation::Unlock);
    }
}

/// Takes the lock of the file, reads all new records, and runs `body`. While this waits for the lock of the file, other
/// threads can lock the mutex. `operation` names the caller's operation in errors.
///
/// # Errors
/// - [`StoreError::FileLocked`] if another holder still has the lock at `deadline`.
/// - [`StoreError::FileGone`] if the file was removed, [`StoreError::File`] if a system call fails.
/// - [`StoreError::FileCorrupt`] if the file has become shorter, or a record is invalid.
/// - [`StoreError::FileCorrupt`] or [`StoreError::TooLarge`] if a record is above the limits.
/// - The errors of `body`.
pub(super) fn locked<T>(
    log: &Mutex<Log>,
    access: Access,
    operation: &'static str,
    deadline: Deadline,
    body: impl FnOnce(&mut Log) -> Result<T>,
) -> Result<T> {
    runtime::yield_point(operation);
    let mut pause = FIRST_PAUSE;
    loop {
        let mut guard = lock(log);
        if let Some(locked) = guard.try_lock(access)? {
            return guard.under(locked, access, operation, body);
        }
        if deadline.expired() {
            let (path, operation) = (guard.path.clone(), operation.to_owned());
            return Err(StoreError::FileLocked { path, operation, waited: deadline.waited() });
        }
        drop(guard);
        runtime::sleep(pause.min(deadline.remaining()));
        pause = (pause * 2).min(PAUSE);
    }
}

/// Locks the mutex, even if another thread has panicked while it held the mutex.
pub(super) fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Opens the file, or creates it with access for its owner alone. Fails if it is not a regular file, belongs to
    /// another user, or may be written by other users. Does not read the file.
    pub(super) fn open(path: &Path, limits: Limits) -> Result<Self> {
        let failed = |source| failed(path, "open", source);
        // Links are not followed, because other users can guess names in shared folders and place links there.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|no| failed(no.into()))?;
        let file = File::from(file);
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
        }
        let (owner, mode, user) = (found.uid(), found.mode() & 0o7777, geteuid().as_raw());
        // If the file's group id equals its owner's user id, the group is taken to be the owner's private group,
        // without other members. Where users have such groups, the umask is often 002, so that files have mode 0664.
        let writable = if found.gid() == owner { mode & 0o002 } else { mode & OTHERS_WRITE };
        if owner != user || writable != 0 {
            return Err(StoreError::FileUntrusted { path: path.to_owned(), owner, mode, user });
        }
        let (path, file) = (path.to_owned(), Arc::new(file));
        Ok(Self { path, file, limits, end: 0, table: table(limits), opened: 0, left: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all new records. With [`Access::Write`], then removes an incomplete record at the end. Finally runs
    /// `body`. Fails if the file was removed. `_locked` is the lock of the file, which is released afterwards.
    fn under<T>(
        &mut self,
        _locked: Locked,
        access: Access,
        operation: &str,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let found = self.file.metadata().map_err(|error| failed(&self.path, operation, error))?;
        if found.nlink() == 0 {
            return Err(StoreError::FileGone { path: self.path.clone() });
        }
        self.read(found.len())?;
        if access == Access::Write && self.end < found.len() {
            self.file.set_len(self.end).map_err(|error| failed(&self.path, "mend the end of", error))?;
        }
        body(self)
    }

    /// Takes the lock of the file that `access` requires, without a wait. Returns `None` if another process, or another
    /// [`Log`] of this process, holds a conflicting lock.
    fn try_lock(&self, access: Access) -> Result<Option<Locked>> {
        let wanted = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match flock(&*self.file, wanted) {
                Ok(()) => return Ok(Some(Locked(self.file.clone()))),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(failed(&self.path, "lock", error.into())),
            }
        }
    }

    /// Reads and applies the complete records after `end`. `size` is the file's size in bytes. An incomplete record at
    /// the end of the file is not applied, and `end` stays before it.
    fn read(&mut self, size: u64) -> Result<()> {
        if size < self.end {
            let found = format!("the file ends here, and {} bytes of it were read before", self.end);
            return Err(self.corrupt(size, found));
        }
        let mut bytes = Vec::new();
        loop {
            let mut rest = &bytes[..];
            while let Some(([key, value], after)) = self.first_record(rest)? {
                self.take_in(key, value)?;
                self.end += (rest.len() - after.len()) as u64;
                rest = after;
            }
            let (torn, whole) = (rest.len(), bytes.len() - rest.len());
            bytes.drain(..whole);
            let from = self.end + torn as u64;
            if from >= size {
                return Ok(());
            }
            bytes.resize(torn + (size - from).min(PIECE) as usize, 0);
            let read = self.file.read_exact_at(&mut bytes[torn..], from);
            read.map_err(|error| failed(&self.path, "read", error))?;
        }
    }

    /// Returns the key and the value at the start of `bytes`, and the bytes after them. Returns `None` if the record is
    /// incomplete, and an error if its key or value is above the limits.
    fn first_record<'a>(&self, bytes: &'a [u8]) -> Result<First<'a, [&'a [u8]; 2]>> {
        let Some((key, rest)) = self.first_part(bytes, "key", self.limits.key_bytes + OPENED.len())? else {
            return Ok(None);
        };
        let value = self.first_part(rest, "value", self.limits.value_bytes)?;
        Ok(value.map(|(value, rest)| ([key, value], rest)))
    }

    /// Returns the key or the value at the start of `bytes`, and the bytes after it. `what` names it in the error if it
    /// is longer than `limit` bytes.
    fn first_part<'a>(&self, bytes: &'a [u8], what: &str, limit: usize) -> Result<First<'a, &'a [u8]>> {
        let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > limit {
            let found = format!("a {what} of {length} bytes (limit {limit})");
            return Err(self.corrupt(self.end, found));
        }
        Ok(rest.split_at_checked(length))
    }

    /// Applies a record of the file to the table, or to `opened` or `left`.
    fn take_in(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let starts = |prefix: &[u8]| key.strip_prefix(prefix).map(<[u8]>::to_vec);
        let request = if key == OPENED || key == LEFT {
            let number = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            let Some(number) = number else {
                let found = format!("{:?} of {:?}", text(key), text(value));
                return Err(self.corrupt(self.end, found));
            };
            *(if key == OPENED { &mut self.opened } else { &mut self.left }) = number;
            return Ok(());
        } else if let Some(key) = starts(SET) {
            Request::Set { key, value: value.to_vec() }
        } else if let Some(key) = starts(REMOVE) {
            Request::Delete { key }
        } else if let Some(key) = starts(PUSH) {
            Request::QueuePush { key, value: value.to_vec() }
        } else if let Some(key) = starts(POP) {
            Request::QueuePop { key }
        } else {
            return Err(self.corrupt(self.end, format!("a record of {:?}", text(key))));
        };
        Ok(self.table.apply(ONLY, request, &mut Vec::new())?)
    }

    fn corrupt(&self, offset: u64, found: String) -> StoreError {
        StoreError::FileCorrupt { path: self.path.clone(), offset, found }
    }

    /// Returns those of `keys` that do not exist. Call this under the lock.
    pub(super) fn missing(&self, keys: &[Vec<u8>]) -> Vec<String> {
        keys.iter().filter(|key| !self.table.is_there(key)).map(|key| text(key)).collect()
    }

    /// Serves a request, and appends records of its changes to the file. Call this under the lock that [`access`]
    /// requires. Returns `None` if the request has no reply, and an error for a request that
    /// [`Store::call`](crate::store::Store::call) does not serve.
    pub(super) fn serve(&mut self, request: Request) -> Result<Option<Reply>> {
        check_kind(&request)?;
        let mut keys = Vec::new();
        if access(&request) == Access::Write {
            request.clone().for_each_key(|key| keys.push(std::mem::take(key)));
        }
        let before: Vec<_> = keys.iter().map(|key| self.table.value(key).map(<[u8]>::to_vec)).collect();
        let mut records = Vec::new();
        if let Request::QueuePush { key, value } = &request {
            record(&mut records, &[PUSH, key], value);
        }
        let mut replies = Vec::new();
        self.table.apply(ONLY, request, &mut replies)?;
        let reply = replies.pop().map(|(_, reply)| reply);
        for (key, before) in keys.iter().zip(before) {
            match self.table.value(key) {
                Some(value) if before.as_deref() != Some(value) => record(&mut records, &[SET, key], value),
                None if before.is_some() => record(&mut records, &[REMOVE, key], b""),
                _ => {}
            }
            if matches!(reply, Some(Reply::Popped(Some(_)))) {
                record(&mut records, &[POP, key], b"");
            }
        }
        self.append(&records)?;
        Ok(reply)
    }

    /// Adds 1 to the number of times that the store is open now.
    pub(super) fn join(&mut self) -> Result<()> {
        self.opened = self.opened.saturating_add(1);
        let mut records = Vec::new();
        record(&mut records, &[OPENED], self.opened.to_string().as_bytes());
        self.append(&records)
    }

    /// Adds 1 to the number of times that the store was closed, and subtracts 1 from the number of times that it is
    /// open now. Removes the file if that number is then 0 or less, and the store was closed at least `workers` times.
    /// If `workers` is `None`, the file stays.
    pub(super) fn leave(&mut self, workers: Option<u64>) -> Result<()> {
        self.left = self.left.saturating_add(1);
        self.opened = self.opened.saturating_sub(1);
        if self.opened <= 0
            && workers.is_some_and(|workers| i64::try_from(workers).is_ok_and(|all| self.left >= all))
        {
            return self.remove();
        }
        let mut records = Vec::new();
        record(&mut records, &[LEFT], self.left.to_string().as_bytes());
        record(&mut records, &[OPENED], self.opened.to_string().as_bytes());
        self.append(&records)
    }

    /// Removes the file, unless its path now names another file.
    fn remove(&self) -> Result<()> {
        let failed = |error| failed(&self.path, "remove", error);
        let (ours, there) =
            (self.file.metadata().map_err(failed)?, std::fs::symlink_metadata(&self.path).map_err(failed)?);
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            std::fs::remove_file(&self.path).map_err(failed)?;
        }
        Ok(())
    }

    /// Appends `records` to the file. The table and the counts contain their changes already. After an error, truncates
    /// the file to its old length if possible, and clears the table and the counts. The next operation then reads the
    /// whole file again.
    fn append(&mut self, records: &[u8]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let size = usize::try_from(self.end).unwrap_or(usize::MAX).saturating_add(records.len());
        let fits = match size <= self.limits.store_bytes {
            true => Ok(()),
            false => {
                let limit = self.limits.store_bytes;
                Err(Refusal::TooLarge { part: Part::Store, key: Vec::new(), size, limit }.into())
            }
        };
        let written = fits.and_then(|()| {
            self.file.write_all_at(records, self.end).map_err(|error| failed(&self.path, "write to", error))
        });
        match written {
            Ok(()) => self.end += records.len() as u64,
            Err(_) => {
                // If `set_len` fails too, a part of the records may stay in the file, as if this writer had been
                // killed.
                let _ = self.file.set_len(self.end);
                (self.end, self.table, self.opened, self.left) = (0, table(self.limits), 0, 0);
            }
        }
        written
    }
}

/// Makes an empty table for the file's contents. It has no limit on its total size, because `append` limits the size of
/// the file instead.
fn table(limits: Limits) -> Table {
    Table::new(Limits { store_bytes: usize::MAX, ..limits })
}

/// Returns the access that a request needs. It is `Read` only if the request never changes the table.
pub(super) fn access(request: &Request) -> Access {
    match request {
        Request::Get { .. }
        | Request::Check { .. }
        | Request::NumKeys
        | Request::MultiGet { .. }
        | Request::Ping { .. }
        | Request::QueueLen { .. }
        | Request::ListKeys => Access::Read,
        _ => Access::Write,
    }
}

/// Appends a record to `out`. Its key is the concatenation of the parts in `key`.
fn record(out: &mut Vec<u8>, key: &[&[u8]], value: &[u8]) {
    let key = key.concat();
    for part in [&key[..], value] {
        // Each length fits in a `u32`, unless the caller has set limits above 4 GiB.
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(part);
    }
}

fn failed(path: &Path, operation: &str, source: io::Error) -> StoreError {
    StoreError::File { path: path.to_owned(), operation: operation.to_owned(), source: Arc::new(source) }
}
