//! The folder of a door, and those of processes that were killed.
//!
//! A folder's owner holds a lock on it, which the kernel lets go of when the process ends; it makes its socket only then.
//! So a folder with a socket and without a lock is nobody's.

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Once,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    process::geteuid,
};

use super::{LocalError, fresh_word};

const PREFIX: &str = "process-group-";

/// The socket in a folder.
const SOCKET: &str = "door";

/// A folder without a socket may be one that is being made, unless it is that old.
const BIRTH: Duration = Duration::from_secs(60);

/// A folder that only this user can enter: gone with this value.
pub(super) struct Folder {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Folder {
    pub(super) fn create() -> Result<Self, LocalError> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let name: String = fresh_word()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = home().join(format!("{PREFIX}{name}"));
        let no_folder = |source| LocalError::Folder { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(no_folder)?;
        // Who looks whether it is nobody's has the lock for a moment.
        match locked(&path, FlockOperation::LockExclusive) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(no_folder(error.into()))
            }
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn home() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    folder.unwrap_or_else(std::env::temp_dir)
}

/// The folder with its lock.
fn locked(path: &Path, how: FlockOperation) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    flock(&folder, how)?;
    Ok(folder)
}

/// Removes what doors of this user have left whose processes were killed. The first door of a process does so by itself;
/// who has just lost a peer may do it at once.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(home()) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let path = entry.path();
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.uid() != geteuid().as_raw() || !about.is_dir() {
            continue;
        }
        let Ok(_lock) = locked(&path, FlockOperation::NonBlockingLockExclusive) else { continue };
        let age = about.modified().ok().and_then(|then| then.elapsed().ok()).unwrap_or_default();
        if path.join(SOCKET).exists() || age > BIRTH {
            let _ = fs::remove_dir_all(&path);
        }
    }
}
