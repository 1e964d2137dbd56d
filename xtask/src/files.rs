//! Generated files: writing them, and the comparison of `--check`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Path below the repository's root, and contents.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Writes the files below `root`, or with `check` fails if one differs from what is there.
pub fn write(root: &Path, files: &Files, check: bool) -> Result<()> {
    let mut differing = Vec::new();
    for (path, contents) in files {
        let place = root.join(path);
        if fs::read(&place).is_ok_and(|found| found == *contents) {
            continue;
        }
        if check {
            differing.push(path.display().to_string());
        } else {
            fs::create_dir_all(place.parent().context("a file lies in a folder")?)?;
            fs::write(&place, contents).with_context(|| format!("writing {}", place.display()))?;
            eprintln!("wrote {}", path.display());
        }
    }
    if !differing.is_empty() {
        bail!(
            "what is committed is not what comes of its sources: `cargo xtask codegen` would change {}; run it, \
             and commit what it writes",
            differing.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_fails_when_one_line_is_altered_and_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let names = ["one/functions.rs", "two/functions.rs"];
        let files = Files::from(names.map(|name| (PathBuf::from(name), b"first\nsecond\n".to_vec())));
        let check = || write(root.path(), &files, true).map_err(|error| error.to_string());
        assert!(
            check().unwrap_err().contains("one/functions.rs, two/functions.rs"),
            "nothing is written yet"
        );

        write(root.path(), &files, false).unwrap();
        assert_eq!(check(), Ok(()));

        let altered = root.path().join(names[1]);
        fs::write(&altered, "first\nsecond \n").unwrap();
        assert!(check().unwrap_err().contains("would change two/functions.rs; run it"));
        assert_eq!(fs::read_to_string(&altered).unwrap(), "first\nsecond \n");
    }
}
