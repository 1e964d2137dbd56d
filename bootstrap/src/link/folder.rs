//! The folder of a listening socket, and the removal of folders that killed processes left.
//!
//! The process that makes a folder holds a lock on it, which the kernel releases when the process ends. The process
//! makes its socket only after it has the lock. So if a folder has a socket and no lock, its process has ended.
//!
//! A process that connects opens the folder once, checks it, and then uses it only through the descriptor. So a
//! folder that another user moves to the same path after the check is never used.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Once,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, Stat, flock, fstat, open, statat, unlinkat},
    io::Errno,
    net::SocketAddrUnix,
    process::geteuid,
};

use super::LinkError;
use crate::random::random;

/// The names of all folders begin with this.
const PREFIX: &str = "lockstep-link-";

/// The name of the socket in its folder.
const SOCKET: &str = "socket";

/// An unlocked folder without a socket counts as left by a killed process once it is older than this. Before that, its
/// process may still be about to take the lock and to make the socket.
const BIRTH: Duration = Duration::from_secs(60);

/// A folder that only this user can enter. It is removed when this value is dropped.
pub(super) struct Folder {
    path: PathBuf,
    /// The folder's descriptor, which holds the lock.
    folder: OwnedFd,
}

impl Folder {
    /// Makes a folder with a random name in [`home`], and takes its lock. The first call in a process also removes the
    /// folders of killed processes.
    ///
    /// # Errors
    /// [`LinkError::Folder`] if the folder cannot be made, locked or protected from other users;
    /// [`LinkError::System`] if the system has no random numbers.
    pub(super) fn create() -> Result<Self, LinkError> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let home = home();
        let name: String = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = home.join(format!("{PREFIX}{name}"));
        let no_folder = |source| LinkError::Folder { path: path.clone(), source };
        check_home(&home).map_err(no_folder)?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(no_folder)?;
        // This waits without a deadline. Only a call of `sweep` in another process or thread may hold the lock, and
        // only briefly.
        let locked = locked(&path, FlockOperation::LockExclusive).map_err(io::Error::from);
        let locked = locked.and_then(|folder| check_own(&folder).map_err(io::Error::other).map(|()| folder));
        match locked {
            Ok(folder) => Ok(Self { path, folder }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(no_folder(error))
            }
        }
    }

    /// Returns the path of the socket, for the endpoint.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Returns the address to bind the socket to.
    pub(super) fn address(&self) -> rustix::io::Result<SocketAddrUnix> {
        address(self.folder.as_fd(), SOCKET)
    }
}

/// The folder of another process's socket. It has been checked: only this user can enter it.
pub(super) struct PeerFolder {
    folder: OwnedFd,
    /// The name of the socket in the folder.
    socket: String,
}

impl PeerFolder {
    /// Opens and checks the folder that contains the socket with the path `socket`. `place` is the number of the
    /// process that listens there, for the errors.
    ///
    /// # Errors
    /// [`LinkError::Gone`] if the folder does not exist. [`LinkError::Unexpected`] if the path is invalid, the folder
    /// cannot be opened, it belongs to another user, or other users can enter it.
    pub(super) fn open(place: u64, socket: &str) -> Result<Self, LinkError> {
        let refused = |problem: String| LinkError::Unexpected {
            place,
            problem: format!("its path {socket}: {problem}"),
        };
        let path = Path::new(socket);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Err(refused("it names no socket in a folder".into()));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(folder, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => LinkError::nobody(place, socket),
            error => refused(format!("opening its folder: {error}")),
        })?;
        check_own(&folder).map_err(refused)?;
        Ok(Self { folder, socket: name.to_owned() })
    }

    /// Returns the address to connect to.
    pub(super) fn address(&self) -> rustix::io::Result<SocketAddrUnix> {
        address(self.folder.as_fd(), &self.socket)
    }
}

/// Returns the address of a socket in an open folder. The address contains the number of the descriptor instead of the
/// folder's path. So the path is not resolved again, and it may be longer than the limit on socket addresses.
fn address(folder: BorrowedFd<'_>, socket: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{socket}", folder.as_raw_fd()))
}

/// Checks that a folder belongs to this user and that no other user can enter it.
fn check_own(folder: &OwnedFd) -> Result<(), String> {
    let Stat { st_uid: user, st_mode: mode, .. } = fstat(folder).map_err(|error| error.to_string())?;
    let (own, mode) = (geteuid().as_raw(), mode & 0o7777);
    if user != own || mode & 0o077 != 0 {
        return Err(format!(
            "its folder is of user {user} with mode {mode:03o}; expected user {own} and 700"
        ));
    }
    Ok(())
}

/// Checks that other users cannot rename this user's entries in the folder `home`: only the owner of `home`, who is
/// trusted, can write to it, or it has the sticky bit.
pub(super) fn check_home(home: &Path) -> io::Result<()> {
    let mode = fs::metadata(home)?.mode() & 0o7777;
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        let home = home.display();
        return Err(io::Error::other(format!(
            "others can rename what is in {home}: its mode is {mode:o}, expected the sticky bit or no write by others"
        )));
    }
    Ok(())
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path, &self.folder);
    }
}

/// Removes a folder and its socket. Ignores errors. A folder with other entries stays, without its socket.
fn remove(path: &Path, folder: &OwnedFd) {
    let _ = unlinkat(folder, SOCKET, AtFlags::empty());
    let _ = fs::remove_dir(path);
}

/// Returns the folder in which listeners make their folders: `XDG_RUNTIME_DIR` if that is a folder, otherwise the
/// folder for temporary files (`TMPDIR` or `/tmp`).
fn home() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    folder.unwrap_or_else(std::env::temp_dir)
}

/// Opens the folder and takes its lock, which the returned descriptor holds. `how` says whether to wait for the lock.
/// Does not follow a symbolic link at `path`.
fn locked(path: &Path, how: FlockOperation) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    flock(&folder, how)?;
    Ok(folder)
}

/// Returns whether the process that listened at the path `socket` has ended, or no longer listens: its folder is gone,
/// or nobody holds the folder's lock.
pub(super) fn is_abandoned(socket: &str) -> bool {
    let Some(folder) = Path::new(socket).parent() else { return false };
    match locked(folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(_) | Err(Errno::NOENT) => true,
        Err(_) => false,
    }
}

/// Removes the folders that killed processes of this user have left. Waits for no lock, and ignores all errors.
///
/// The first [`Listener::open`](super::Listener::open) in a process calls this. A process may also call it after the
/// death of another process, to remove that process's folder at once. A folder without a socket is removed only when
/// it is older than a minute.
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
        let Ok(folder) = locked(&path, FlockOperation::NonBlockingLockExclusive) else { continue };
        let Ok(about) = fstat(&folder) else { continue };
        if about.st_uid != geteuid().as_raw() {
            continue;
        }
        let modified = UNIX_EPOCH + Duration::from_secs(about.st_mtime.try_into().unwrap_or_default());
        let age = SystemTime::now().duration_since(modified).unwrap_or_default();
        if statat(&folder, SOCKET, AtFlags::SYMLINK_NOFOLLOW).is_ok() || age > BIRTH {
            remove(&path, &folder);
        }
    }
}
