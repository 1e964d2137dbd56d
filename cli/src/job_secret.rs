//! The secret of a job's store: generated for the job, unless the environment has one.
//!
//! Ranks read it from a file of mode 0600, which is removed at the end of the job.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use process_group::store::{Secret, SecretSetting, TcpOptions, TcpStore};
use tempfile::NamedTempFile;

/// The secret of a job that this process starts.
pub(crate) struct JobSecret {
    secret: Option<Secret>,
    /// Holds a generated secret.
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
        let mut file = tempfile::Builder::new()
            .prefix("job-secret-")
            .tempfile_in(&folder)
            .with_context(|| format!("cannot make a file for the job's secret in {}", folder.display()))?;
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
}
