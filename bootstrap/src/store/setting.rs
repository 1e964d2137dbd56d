//! Reads the secret of the job's store from environment variables, or from the file that one of them names.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use super::{Result, Secret, StoreError};

/// The setting of the secret of the job's store in the environment variables [`Secret::VARIABLE`] and
/// [`Secret::FILE_VARIABLE`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SecretSetting {
    /// Neither variable is set.
    #[default]
    Unset,
    /// The user has chosen a store without a secret: `PROCESS_GROUP_STORE_SECRET=none`.
    None,
    /// The secret, from [`Secret::VARIABLE`], or from the file that [`Secret::FILE_VARIABLE`] names.
    Secret(Secret),
}

/// The largest size of a secret's file, in bytes.
const MOST: u64 = 4096;

impl SecretSetting {
    /// Reads the variables in this process's environment.
    ///
    /// # Errors
    /// - [`StoreError::Secret`] if both variables are set, or if the value of [`Secret::VARIABLE`] is empty, is not
    ///   UTF-8, or is shorter than [`Secret::LEAST`] bytes and not `none`.
    /// - The errors of [`Secret::read_file`].
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(env::var_os)
    }

    /// Like [`from_environment`](Self::from_environment), but calls `variable` with a variable's name to get its value,
    /// or `None` if the variable is not set.
    ///
    /// # Errors
    /// As for [`from_environment`](Self::from_environment).
    pub fn from_variables(variable: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let wrong = |problem: &str| {
            Err(StoreError::Secret { origin: Secret::VARIABLE.into(), problem: problem.into() })
        };
        match (variable(Secret::VARIABLE), variable(Secret::FILE_VARIABLE)) {
            (None, None) => Ok(Self::Unset),
            (Some(_), Some(_)) => {
                wrong("is set, and PROCESS_GROUP_STORE_SECRET_FILE too; expected one of them")
            }
            (None, Some(path)) => Secret::read_file(PathBuf::from(path)).map(Self::Secret),
            (Some(text), None) => match text.to_str() {
                None => wrong("is not UTF-8"),
                Some("") => wrong("is empty; unset it, or set it to none to use a store without a secret"),
                Some("none") => Ok(Self::None),
                Some(text) if text.len() < Secret::LEAST => wrong(&too_short(text.as_bytes())),
                Some(text) => Secret::new(text).map(Self::Secret),
            },
        }
    }

    /// Returns the secret, or `None` for [`Unset`](Self::Unset) and [`None`](Self::None).
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Secret(secret) => Some(secret),
            Self::Unset | Self::None => None,
        }
    }
}

impl Secret {
    /// Makes a secret of at least [`LEAST`](Self::LEAST) bytes. Use random bytes (`openssl rand -hex 16`).
    ///
    /// # Errors
    /// [`StoreError::Argument`] if `bytes` is shorter than that.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        match bytes.len() < Self::LEAST {
            true => Err(StoreError::Argument(format!("the argument {}", too_short(bytes)))),
            false => Ok(Self::of(bytes)),
        }
    }

    /// The name of the environment variable that contains the secret, or `none` for a job without one.
    /// [`SecretSetting::from_environment`] reads it.
    pub const VARIABLE: &'static str = "PROCESS_GROUP_STORE_SECRET";

    /// The name of the environment variable that contains the path of a file with the secret. Set this variable or
    /// [`VARIABLE`](Self::VARIABLE), not both.
    pub const FILE_VARIABLE: &'static str = "PROCESS_GROUP_STORE_SECRET_FILE";

    /// Reads the secret from a regular file, which contains at most 4,096 bytes of UTF-8. The file must belong to the
    /// effective user of this process or to root. Its group must not be able to write it, and other users must have no
    /// access. Line ends (`\n`, `\r`) at the end of the file are not part of the secret.
    ///
    /// # Errors
    /// [`StoreError::Secret`] if the file cannot be read or does not meet these conditions, or if the secret is shorter
    /// than [`LEAST`](Self::LEAST).
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |problem: String| StoreError::Secret { origin: path.display().to_string(), problem };
        let file = File::open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let about = file.metadata().map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let (user, mode, own) = (about.uid(), about.mode() & 0o777, geteuid().as_raw());
        if !about.is_file() || (user != own && user != 0) || mode & 0o027 != 0 {
            let owners = if own == 0 { "0".into() } else { format!("{own} or 0") };
            return Err(wrong(format!(
                "is of user {user} with mode {mode:03o}; expected a file of user {owners} that others can neither read nor \
                 write (chmod 600)"
            )));
        }
        let mut text = Vec::new();
        let read = file.take(MOST + 1).read_to_end(&mut text);
        read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if text.len() as u64 > MOST {
            return Err(wrong(format!("has more than {MOST} bytes")));
        }
        let text = std::str::from_utf8(&text).map_err(|_| wrong("is not UTF-8".into()))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(wrong("is empty".into())),
            text if text.len() < Self::LEAST => Err(wrong(too_short(text.as_bytes()))),
            text => Self::new(text),
        }
    }
}

/// Describes the problem of an argument, a variable or a file with a secret that is too short.
fn too_short(secret: &[u8]) -> String {
    let (found, least) = (secret.len(), Secret::LEAST);
    format!("holds a secret of {found} bytes; expected at least {least} (`openssl rand -hex 16` makes one)")
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    };

    use super::*;

    const TEXT: &str = "0123456789abcdef";

    fn setting(text: Option<&[u8]>, file: Option<&Path>) -> Result<SecretSetting> {
        SecretSetting::from_variables(|name| match name {
            Secret::VARIABLE => text.map(|text| OsString::from_vec(text.to_vec())),
            _ => file.map(Into::into),
        })
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_an_error_and_never_none() {
        let secret = SecretSetting::Secret(Secret::new(TEXT).unwrap());
        assert_eq!(setting(None, None).unwrap(), SecretSetting::Unset);
        assert_eq!(setting(Some(b"none"), None).unwrap(), SecretSetting::None);
        assert_eq!(setting(Some(TEXT.as_bytes()), None).unwrap(), secret);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, format!("{TEXT}\n")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(setting(None, Some(&file)).unwrap(), secret);
        let said = |wrong: Result<SecretSetting>| wrong.unwrap_err().to_string();
        assert!(said(setting(Some(TEXT.as_bytes()), Some(&file))).contains("expected one of them"));
        assert!(said(setting(Some(b""), None)).contains("is empty"));
        assert!(said(setting(Some(&[0xff; 20]), None)).contains("is not UTF-8"));
        let short = "the store's secret: PROCESS_GROUP_STORE_SECRET holds a secret of 5 bytes";
        assert!(said(setting(Some(b"short"), None)).starts_with(short));
        for (mode, bytes, problem) in [
            (0o604, TEXT.as_bytes(), "mode 604"),
            (0o620, TEXT.as_bytes(), "mode 620"),
            (0o600, b"\n", "is empty"),
            (0o600, &[0xff; 20], "is not UTF-8"),
            (0o600, b"short", "holds a secret of 5 bytes"),
            (0o600, &[b'a'; 5000], "more than 4096 bytes"),
        ] {
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let said = said(setting(None, Some(&file)));
            assert!(said.contains(problem) && said.contains("secret"), "{said}");
        }
        assert!(said(setting(None, Some(folder.path()))).contains("expected a file"));
        assert!(said(setting(None, Some(&folder.path().join("none")))).contains("cannot be read"));
    }
}
