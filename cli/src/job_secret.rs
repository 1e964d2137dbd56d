//! The secret of a job's store: generated for the job, unless the environment has one.
//!
//! Ranks read it from a file of mode 0600, which is removed at the end of the job. A process that is killed leaves its
//! file behind; the next job of the user that generates a secret removes it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use process_group::store::{Secret, SecretSetting, TcpOptions, TcpStore};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use tempfile::NamedTempFile;

/// Start of the names of the files.
const PREFIX: &str = "job-secret-";

/// The secret of a job that this process starts.
pub(crate) struct JobSecret {
    secret: Option<Secret>,
    /// Holds a generated secret. Locked while it is in use.
    file: Option<NamedTempFile>,
}

impl JobSecret {
    /// The secret of the environment, or a new one if the environment has no setting.
    pub(crate) fn make() -> Result<Self> {
        match SecretSetting::from_environment()? {
            SecretSetting::Unset => {}
            setting => return Ok(Self { secret: setting.secret().cloned(), file: None }),
        }
        let mut bytes = [0u8; 32];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        remove_abandoned(&folder);
        let mut file = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempfile_in(&folder)
            .with_context(|| format!("cannot make a file for the job's secret in {}", folder.display()))?;
        // Locked before it is written, so that no file in use is both unlocked and not empty. A file system without
        // locks refuses the lock to `remove_abandoned` too, which then leaves the file in place.
        let _ = flock(file.as_file(), FlockOperation::NonBlockingLockExclusive);
        file.write_all(text.as_bytes()).context("cannot write the job's secret")?;
        Ok(Self { secret: Some(Secret::new(text)?), file: Some(file) })
    }

    /// No secret, whatever the environment's setting.
    pub(crate) fn none() -> Self {
        Self { secret: None, file: None }
    }

    /// Options of a store with this secret.
    pub(crate) fn store(&self) -> TcpOptions {
        with_secret(self.secret.as_ref())
    }

    /// Sets the variables by which a rank finds the secret.
    pub(crate) fn tell(&self, rank: &mut Command) {
        match (&self.file, &self.secret) {
            (Some(file), _) => _ = rank.env(Secret::FILE_VARIABLE, file.path()),
            // Ranks inherit the environment's.
            (None, Some(_)) => {}
            (None, None) => _ = rank.env(Secret::VARIABLE, "none").env_remove(Secret::FILE_VARIABLE),
        }
    }
}

/// Removes the files of this user whose processes were killed. The system releases a lock when its process ends, also
/// in another container that shares the folder.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            // A file that cannot be removed does not concern this job.
            let _ = remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(path: &Path) -> io::Result<()> {
    let about = path.symlink_metadata()?;
    if !about.is_file() || about.uid() != geteuid().as_raw() || about.len() == 0 {
        return Ok(());
    }
    // Other users may replace a file in a folder without the sticky bit: do not follow a link or wait for a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::remove_file(path)
}

/// Options of a job's store, with the secret of the environment.
pub(crate) fn store_of_environment() -> Result<TcpOptions> {
    Ok(with_secret(SecretSetting::from_environment()?.secret()))
}

fn with_secret(secret: Option<&Secret>) -> TcpOptions {
    secret.map_or_else(TcpStore::options, |secret| TcpStore::options().secret(secret.clone()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_job_has_a_generated_secret_that_only_its_user_can_read() {
        let secret = JobSecret::make().unwrap();
        let file = secret.file.as_ref().expect("the tests' environment has no secret");
        assert_eq!(file.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Some(Secret::read_file(file.path()).unwrap()), secret.secret);
        let mut command = Command::new("true");
        secret.tell(&mut command);
        let path = file.path().to_owned();
        assert!(command.get_envs().any(|(_, value)| value == Some(path.as_os_str())));
        assert!(command.get_args().next().is_none());
        assert_ne!(JobSecret::make().unwrap().secret, secret.secret);
        drop(secret);
        assert!(!path.exists());
    }

    #[test]
    fn only_files_that_no_process_has_locked_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let abandoned = make("job-secret-abandoned", "0123456789abcdef");
        let kept = [
            make("job-secret-used", "0123456789abcdef"),
            // Its process has not locked it yet.
            make("job-secret-new", ""),
            make("another", "0123456789abcdef"),
        ];
        let link = folder.path().join("job-secret-link");
        std::os::unix::fs::symlink(&kept[2], &link).unwrap();
        let used = fs::File::open(&kept[0]).unwrap();
        flock(&used, FlockOperation::LockExclusive).unwrap();
        remove_abandoned(folder.path());
        assert!(!abandoned.exists());
        assert!(kept.iter().all(|path| path.exists()) && link.is_symlink());
        drop(used);
        remove_abandoned(folder.path());
        assert!(!kept[0].exists() && kept[1].exists());
    }
}
