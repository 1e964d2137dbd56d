//! The file: records that are appended and never changed, under a lock of the whole file.
//!
//! A record is a key and a value, each a `u32` length (little endian) and its bytes. The key selects the
//! operation:
//!
//! | key | operation |
//! |---|---|
//! | `/K` | sets K |
//! | `-/K` | removes K |
//! | `refcount/`, `cleanup/` | sets the number of processes that have the store open, or have left it (decimal) |
//! | `push/K`, `pop/K` | adds a value to the queue K, takes one from it; PyTorch's store counts these keys, and does nothing else with them |
//!
//! A writer that is killed while it writes leaves an incomplete record at the end. Only the holder of the lock
//! writes, so the next holder knows that this record will not be completed. Readers stop before it, and the next
//! writer truncates it.

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
        Deadline, Result, StoreError,
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

/// The most bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// The first and the longest pause between attempts to take a lock that another process holds. Each pause is twice
/// as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_millis(10);

/// The id of the table's only client.
const ONLY: u64 = 0;

/// The access to the file that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A value at the start of some bytes, and the bytes after it; `None` if the value is incomplete.
type First<'a, T> = Option<(T, &'a [u8])>;

/// The file, and the state that its records describe, as far as they were read.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Arc<File>,
    limits: Limits,
    /// The position of the first record that was not read.
    end: u64,
    table: Table,
    opened: i64,
    left: i64,
}

/// Releases the lock when dropped.
struct Locked(Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // Unlocking fails only for a descriptor that is not open, and this one is open.
        let _ = flock(&*self.0, FlockOperation::Unlock);
    }
}

/// Runs `body` under the lock of the file, after all records were read. While another process has that lock, the
/// mutex is free.
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

pub(super) fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Opens the file, or creates it with access for its owner alone. Fails if other users may write the file.
    /// Reads nothing yet.
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
        // If the file's group id equals its owner's user id, the group is taken to be the owner's private group, without
        // other members. Where users have such groups, the umask is often 002, so that files have mode 0664.
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

    /// Reads all records, and then runs `body`. `_locked` is the lock of the file, which is released afterwards.
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

    /// Takes the lock of the file. Returns `None` if another process has it.
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

    /// Reads the complete records up to `size`.
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

    /// Returns the key and the value at the start of `bytes`, and the bytes after them; `None` if they are
    /// incomplete.
    fn first_record<'a>(&self, bytes: &'a [u8]) -> Result<First<'a, [&'a [u8]; 2]>> {
        let Some((key, rest)) = self.first_part(bytes, "key", self.limits.key_bytes + OPENED.len())? else {
            return Ok(None);
        };
        let value = self.first_part(rest, "value", self.limits.value_bytes)?;
        Ok(value.map(|(value, rest)| ([key, value], rest)))
    }

    fn first_part<'a>(&self, bytes: &'a [u8], what: &str, limit: usize) -> Result<First<'a, &'a [u8]>> {
        let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > limit {
            let found = format!("a {what} of {length} bytes (limit {limit})");
            return Err(self.corrupt(self.end, found));
        }
        Ok(rest.split_at_checked(length))
    }

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

    /// Serves a request and appends its changes. Call this under the lock that [`access`] requires.
    pub(super) fn serve(&mut self, request: Request) -> Result<Option<Reply>> {
        if matches!(request, Request::Wait { .. } | Request::Barrier { .. } | Request::CancelWait) {
            return Err(StoreError::Argument(format!("a file does not serve {}", request.name())));
        }
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

    /// Counts this process as one that has the store open.
    pub(super) fn join(&mut self) -> Result<()> {
        self.opened = self.opened.saturating_add(1);
        let mut records = Vec::new();
        record(&mut records, &[OPENED], self.opened.to_string().as_bytes());
        self.append(&records)
    }

    /// Counts this process as one that has left. Removes the file if no process has it open and `workers`
    /// processes have left.
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

    /// Removes the file, unless its name now belongs to another file.
    fn remove(&self) -> Result<()> {
        let failed = |error| failed(&self.path, "remove", error);
        let (ours, there) =
            (self.file.metadata().map_err(failed)?, std::fs::symlink_metadata(&self.path).map_err(failed)?);
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            std::fs::remove_file(&self.path).map_err(failed)?;
        }
        Ok(())
    }

    /// Appends changes that the table already has. After an error, cuts the file back to its old contents
    /// if possible. The next operation reads the whole file again.
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
                // If this fails too, a part of the records is left, as after a writer that was killed.
                let _ = self.file.set_len(self.end);
                // The next operation reads the file again.
                (self.end, self.table, self.opened, self.left) = (0, table(self.limits), 0, 0);
            }
        }
        written
    }
}

/// Makes a table for the file's contents. It has no limit on its total size, because `append` limits the size of the
/// file instead.
fn table(limits: Limits) -> Table {
    Table::new(Limits { store_bytes: usize::MAX, ..limits })
}

/// Returns the access that a request needs.
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

/// Writes a record. Its key is given in parts.
fn record(out: &mut Vec<u8>, key: &[&[u8]], value: &[u8]) {
    let key = key.concat();
    for part in [&key[..], value] {
        // Key and value are within the limits, which were checked before, so their lengths fit.
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(part);
    }
}

fn failed(path: &Path, operation: &str, source: io::Error) -> StoreError {
    StoreError::File { path: path.to_owned(), operation: operation.to_owned(), source: Arc::new(source) }
}
