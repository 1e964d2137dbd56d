//! Outputs: checks of a file before the work whose result it gets, and standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::exit::UsageError;

/// Fails if the output file is one of the inputs, by any name. `option` names the output in the error.
pub(crate) fn check_differs<'a>(
    option: &str,
    output: &Path,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), UsageError> {
    // Files that cannot be examined are left to their readers and writers.
    let file = |path: &Path| {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.dev(), found.ino()))
    };
    let Some(written) = file(output) else { return Ok(()) };
    if inputs.into_iter().any(|input| file(input) == Some(written)) {
        let text = format!("{option} {} is the input; give another file", output.display());
        return Err(UsageError(text));
    }
    Ok(())
}

/// Fails if a file cannot be written. Leaves its content as it is, and creates no file.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // A reader of a pipe would take this for the end of the output.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => OpenOptions::new().write(true).open(path).map(drop),
        Err(_) => match File::create_new(path) {
            Ok(_) => fs::remove_file(path),
            // A link to a file that does not exist.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        },
    }
}

/// Writes to standard output. Unlike `print`, it returns the error of a reader that has exited.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.context("standard output cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_changes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, "content").unwrap();
        check_writable(&old).unwrap();
        check_writable(&new).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "content");
        assert!(!new.exists());
        assert!(check_writable(folder.path()).is_err());
        assert!(check_writable(&new.join("below")).is_err());
    }

    #[test]
    fn an_input_is_recognized_by_each_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let [input, other, hard, soft] =
            ["input", "other", "hard", "soft"].map(|name| folder.path().join(name));
        fs::write(&input, "").unwrap();
        fs::write(&other, "").unwrap();
        fs::hard_link(&input, &hard).unwrap();
        std::os::unix::fs::symlink(&input, &soft).unwrap();
        for output in [&input, &hard, &soft, &folder.path().join(".").join("input")] {
            let error = check_differs("-o", output, [&*other, &*input]).unwrap_err().to_string();
            assert_eq!(error, format!("-o {} is the input; give another file", output.display()));
        }
        check_differs("-o", &other, [&*input]).unwrap();
        check_differs("-o", &folder.path().join("new"), [&*input]).unwrap();
    }
}
