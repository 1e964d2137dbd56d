//! The folder of a door, and those of processes that were killed.
//!
//! A folder's owner holds a lock on it, which the kernel lets go of when the process ends; it makes its socket only then.
//! So a folder with a socket and without a lock is nobody's.
//!
//! A folder is opened once, checked, and from then on used by its descriptor, so that a rename cannot put another folder
//! in its place.

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

use super::{LocalError, fresh_word};

const PREFIX: &str = "process-group-";

/// The socket in a folder.
const SOCKET: &str = "door";

/// A folder without a socket may be one that is being made, unless it is that old.
const BIRTH: Duration = Duration::from_secs(60);

/// A folder that only this user can enter: gone with this value.
pub(super) struct Folder {
    path: PathBuf,
    /// With the lock.
    folder: OwnedFd,
}

impl Folder {
    pub(super) fn create() -> Result<Self, LocalError> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let home = home();
        let name: String = fresh_word()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = home.join(format!("{PREFIX}{name}"));
        let no_folder = |source| LocalError::Folder { path: path.clone(), source };
        check_home(&home).map_err(no_folder)?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(no_folder)?;
        // Who looks whether it is nobody's has the lock for a moment.
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

    /// The path of the socket, for the card.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Where the socket is bound.
    pub(super) fn address(&self) -> rustix::io::Result<SocketAddrUnix> {
        address(self.folder.as_fd(), SOCKET)
    }
}

/// The folder of a peer's socket, after the check that only this user can enter it.
pub(super) struct PeerFolder {
    folder: OwnedFd,
    socket: String,
}

/// Why a peer's folder cannot be used.
pub(super) enum Unfit {
    Absent,
    Refused(String),
}

impl PeerFolder {
    pub(super) fn open(socket: &str) -> Result<Self, Unfit> {
        let refused = |problem: &str| Unfit::Refused(problem.to_owned());
        let path = Path::new(socket);
        let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
        else {
            return Err(refused("it names no socket in a folder"));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(folder, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => Unfit::Absent,
            error => refused(&format!("opening its folder: {error}")),
        })?;
        check_own(&folder).map_err(Unfit::Refused)?;
        Ok(Self { folder, socket: name.to_owned() })
    }

    pub(super) fn address(&self) -> rustix::io::Result<SocketAddrUnix> {
        address(self.folder.as_fd(), &self.socket)
    }
}

/// The address of a socket in an open folder. Does not walk the folder's path again, which may have any length.
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

/// Checks that no other user can rename this user's entries of a folder.
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

/// Removes a folder and its socket, as far as they are there.
fn remove(path: &Path, folder: &OwnedFd) {
    let _ = unlinkat(folder, SOCKET, AtFlags::empty());
    let _ = fs::remove_dir(path);
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
