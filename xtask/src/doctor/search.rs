//! Where files of a library lie: every place that a program could take one from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child;

/// How long `ldconfig` and Python may take to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Folders that distributions, toolkits and WSL install to.
const SYSTEM: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/compat",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

/// Every file called `stem` or `stem.` and more, links resolved, with all that leads to it.
pub(super) fn files(variable: &str, stem: &str) -> BTreeMap<PathBuf, Vec<String>> {
    let mut found = BTreeMap::<PathBuf, Vec<String>>::new();
    let mut add = |file: &Path, source: &str| {
        let file = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
        let sources = found.entry(file).or_default();
        if !sources.iter().any(|known| known == source) {
            sources.push(source.to_owned());
        }
    };
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        add(Path::new(&path), variable);
    }
    for folder in split("LD_LIBRARY_PATH") {
        folder_files(&folder, stem).iter().for_each(|file| add(file, "LD_LIBRARY_PATH"));
    }
    for file in loader_cache(stem) {
        add(&file, "the loader's cache");
    }
    for folder in SYSTEM {
        folder_files(Path::new(folder), stem).iter().for_each(|file| add(file, folder));
    }
    for (folder, source) in python_folders() {
        for below in ["nvidia/nccl/lib", "nvidia/cu13/lib", "torch/lib"] {
            folder_files(&folder.join(below), stem).iter().for_each(|file| add(file, &source));
        }
    }
    found
}

fn split(variable: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).filter(|folder| !folder.as_os_str().is_empty()).collect()
}

fn folder_files(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|file| is_called(file.file_name().unwrap_or_default(), stem)).collect()
}

fn is_called(name: &OsStr, stem: &str) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(stem));
    rest.is_some_and(|rest| {
        rest.is_empty()
            || (rest.starts_with('.') && rest[1..].chars().all(|c| c.is_ascii_digit() || c == '.'))
    })
}

fn loader_cache(stem: &str) -> Vec<PathBuf> {
    let ask = |program| child::output_within(Command::new(program).arg("-p"), LIMIT).ok();
    let output = ask("ldconfig").or_else(|| ask("/sbin/ldconfig")).map(|output| output.stdout);
    let text = output.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(" => ").map(|(_, file)| PathBuf::from(file)));
    lines.filter(|file| is_called(file.file_name().unwrap_or_default(), stem)).collect()
}

/// Folders of Python packages: of the interpreter on the path, of active environments, of the system.
fn python_folders() -> Vec<(PathBuf, String)> {
    let mut folders = Vec::new();
    let script = "import sys; print('\\n'.join(sys.path))";
    if let Ok(output) = child::output_within(Command::new("python3").args(["-c", script]), LIMIT) {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        folders
            .extend(text.lines().filter(|line| !line.is_empty()).map(|line| (line.into(), "python3".into())));
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = std::env::var_os(variable).filter(|prefix| !prefix.is_empty()) {
            folders
                .extend(site_packages(Path::new(&prefix)).into_iter().map(|one| (one, variable.to_owned())));
        }
    }
    for prefix in ["/usr", "/usr/local"] {
        let source = format!("Python in {prefix}");
        folders.extend(site_packages(Path::new(prefix)).into_iter().map(|one| (one, source.clone())));
    }
    folders
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let pythons = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    pythons.flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_and_static_libraries_are_told_apart() {
        for name in ["libnccl.so", "libnccl.so.2", "libnccl.so.2.28.3"] {
            assert!(is_called(OsStr::new(name), "libnccl.so"), "{name}");
        }
        for name in ["libnccl-net.so", "libnccl.so.bak", "libnccl_static.a", "libncclras.so", "nccl"] {
            assert!(!is_called(OsStr::new(name), "libnccl.so"), "{name}");
        }
    }
}
