//! Finds NCCL in the folders of Python's package managers, which the system's loader does not search.
//!
//! `Api::load` does not search these folders. [`Api::load_with_python`](crate::Api::load_with_python) does.
//! [`libraries`] returns the paths of NCCL in these folders, for [`Api::load_from`](crate::Api::load_from).
//! [`candidates`](crate::candidates) lists them too. A program that runs in one process with PyTorch needs the same
//! copy as PyTorch, since two copies in a process do not share state.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The name of NCCL's file in these folders.
const FILE: &str = "libnccl.so.2";

/// The folder in which the wheels `nvidia-nccl-cu12` and `nvidia-nccl-cu13` install NCCL, relative to a folder of
/// Python packages.
const WHEEL: &str = "nvidia/nccl/lib";

/// Time limit for an interpreter to print its search path and exit. An interpreter usually takes tens of milliseconds,
/// and more from a slow disk.
const INTERPRETER_LIMIT: Duration = Duration::from_secs(5);

/// Interval between checks for the exit of an interpreter that has closed its output.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Returns NCCL's files in Python environments, with symbolic links resolved: first those of wheels in the
/// [`package_folders`], then that of conda's package.
pub fn libraries() -> Vec<PathBuf> {
    let wheels = package_folders().into_iter().map(|folder| folder.join(WHEEL));
    let conda = prefix("CONDA_PREFIX").map(|prefix| prefix.join("lib"));
    let mut found = Vec::new();
    for file in wheels.chain(conda).map(|folder| folder.join(FILE)) {
        if let Ok(file) = file.canonicalize()
            && !found.contains(&file)
        {
            found.push(file);
        }
    }
    found
}

/// Returns the folders in which Python finds packages. First come those of the environments that
/// `VIRTUAL_ENV` and `CONDA_PREFIX` name, then the search path of the interpreter on the `PATH` (`python3`,
/// else `python`). Running the interpreter takes tens of milliseconds. An interpreter that has not ended after five
/// seconds is killed and left out.
pub fn package_folders() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(prefix);
    let mut folders = Vec::new();
    for folder in environments.flat_map(|prefix| folders_of(&prefix)).chain(search_path()) {
        if folder.is_dir() && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Returns the folder of the Python environment that this environment variable names; `None` if the variable is not
/// set, or empty.
fn prefix(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the package folders of an environment: one for each version of Python, in each of `lib` and `lib64`. Both
/// may name the same folder. A folder need not exist.
fn folders_of(prefix: &Path) -> Vec<PathBuf> {
    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
    let versions = libraries.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let mut folders: Vec<_> = versions
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"python"))
        .map(|entry| entry.path().join("site-packages"))
        .collect();
    folders.sort();
    folders
}

/// Returns the absolute folders in the interpreter's search path; none if no interpreter answers.
fn search_path() -> Vec<PathBuf> {
    const ASK: &str = r#"import os, sys; sys.stdout.buffer.write(b"\0".join(map(os.fsencode, sys.path)))"#;
    let ask = |interpreter| output_of(Command::new(interpreter).args(["-c", ASK]), INTERPRETER_LIMIT);
    let answer = ["python3", "python"].into_iter().find_map(ask).unwrap_or_default();
    let folders = answer.split(|byte| *byte == 0).map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
    // The search path lists the current folder as an empty name, which is left out.
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// Returns the standard output of a program; `None` if the program cannot be started or fails. Kills a program that
/// has not ended within `limit`, and returns `None` for it. Also returns `None` if the program ended in time, but a
/// child of the program keeps the output open until `limit` has passed.
fn output_of(program: &mut Command, limit: Duration) -> Option<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let mut child = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (send, receive) = mpsc::channel();
    let read = move || {
        let mut text = Vec::new();
        let whole = stdout.read_to_end(&mut text).is_ok();
        let _ = send.send(whole.then_some(text));
    };
    // The thread that reads and the thread that waits for a killed program are never joined. The first may block for
    // ever, because a child of the program can hold the pipe open. The second may block for long, because the kernel
    // can take long to end a process that hangs in a file system.
    let reader = thread::Builder::new().spawn(read);
    if let Some(text) = reader.ok().and_then(|_| receive.recv_timeout(limit).ok()).flatten() {
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().ok()? {
                return status.success().then_some(text);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    let _ = child.kill();
    let _ = thread::Builder::new().spawn(move || child.wait());
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        // A program that closed its output, or whose child holds the pipe open, is not waited for either.
        for script in ["exec sleep 1000", "exec sleep 1000 >&-", "sleep 3 & sleep 3"] {
            assert_eq!(output_of(&mut shell(script), Duration::from_millis(50)), None, "{script}");
        }
    }

    #[test]
    fn what_a_program_prints_comes_whole_if_it_succeeds() {
        let long = output_of(&mut shell("head -c 300000 /dev/zero"), Duration::from_secs(60));
        assert_eq!(long.map(|text| text.len()), Some(300_000));
        assert_eq!(output_of(&mut shell("echo no; exit 3"), Duration::from_secs(60)), None);
        assert_eq!(output_of(&mut Command::new("/nowhere/python3"), Duration::from_secs(60)), None);
    }
}
