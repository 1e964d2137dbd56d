//! `cargo xtask torch-env`: a Python environment with PyTorch, for tests and benchmarks that use it.
//!
//! Its packages are pinned by version and hash in `torch_env.txt`. It lies in `target/xtask`, takes 4 GB, and needs no
//! GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::pins::TORCH;
use crate::shell;

const REQUIREMENTS: &str = include_str!("torch_env.txt");

/// The Python versions that the requirements support.
const PYTHONS: [&str; 3] = ["python3", "python3.12", "python3.11"];

/// The file that marks an environment as complete: the requirements that it was made from.
const WHOLE: &str = "requirements.txt";

/// Makes the environment unless it is there, and prints the path of its Python.
pub(crate) fn run() -> Result<()> {
    let place = place()?;
    if here(&place).is_none() {
        make(&place)?;
    }
    let python = here(&place).context("the environment was removed while it was made")?;
    println!("{}", python.display());
    Ok(())
}

/// Returns the environment's Python, if the environment exists.
pub(crate) fn python() -> Result<Option<PathBuf>> {
    Ok(here(&place()?))
}

fn place() -> Result<PathBuf> {
    Ok(shell::workspace()?.join("target/xtask").join(format!("torch-{}", TORCH.version)))
}

fn here(place: &Path) -> Option<PathBuf> {
    let whole = fs::read_to_string(place.join(WHOLE)).is_ok_and(|made_from| made_from == REQUIREMENTS);
    whole.then(|| place.join("bin/python"))
}

fn make(place: &Path) -> Result<()> {
    let python = suitable()?;
    eprintln!("making {} (4 GB, some minutes)", place.display());
    shell::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(place))?;
    let wanted = place.join("wanted.txt");
    fs::write(&wanted, REQUIREMENTS).with_context(|| format!("cannot write {}", wanted.display()))?;
    let mut pip = Command::new(place.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-deps",
    ]);
    pip.args(["--require-hashes", "--only-binary=:all:", "--requirement"]).arg(&wanted);
    shell::run(&mut pip)?;
    shell::run(Command::new(place.join("bin/python")).args(["-c", "import torch.distributed"]))?;
    // Renamed last, so that the file exists only in a complete environment.
    fs::rename(&wanted, place.join(WHOLE)).context("marking the environment as whole")?;
    Ok(())
}

/// Returns a Python that the requirements support: that of the variable `PYTHON`, or one of the usual names.
fn suitable() -> Result<String> {
    let named = std::env::var("PYTHON").ok();
    let candidates: Vec<_> = named.map_or_else(|| PYTHONS.map(str::to_owned).to_vec(), |named| vec![named]);
    for python in &candidates {
        let version =
            Command::new(python).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output();
        let is =
            |output: &std::process::Output, wanted: &str| output.stdout.trim_ascii() == wanted.as_bytes();
        if version.is_ok_and(|output| is(&output, "3.11") || is(&output, "3.12")) {
            return Ok(python.clone());
        }
    }
    bail!("none of {} is Python 3.11 or 3.12; name one with the variable PYTHON", candidates.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned_by_version_and_hash() {
        let lines = REQUIREMENTS.replace("\\\n", " ");
        let mut names = Vec::new();
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            let (name, _) = line.split_once("==").unwrap();
            let hashes: Vec<_> =
                line.split_whitespace().filter_map(|word| word.strip_prefix("--hash=sha256:")).collect();
            assert!(!hashes.is_empty() && hashes.iter().all(|hash| hash.len() == 64), "{line}");
            names.push(name);
        }
        assert!(names.is_sorted() && names.len() > 20, "{names:?}");
        assert!(lines.contains(&format!("\ntorch=={} ", TORCH.version)));
    }

    #[test]
    fn what_is_half_made_is_not_here() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(here(place.path()), None);
        fs::write(place.path().join(WHOLE), "torch==1.0").unwrap();
        assert_eq!(here(place.path()), None);
        fs::write(place.path().join(WHOLE), REQUIREMENTS).unwrap();
        assert_eq!(here(place.path()), Some(place.path().join("bin/python")));
    }
}
