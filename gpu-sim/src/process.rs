//! Processes for tests that need several worlds. A process has one world at a time, so such a test starts its own binary
//! again for each further world.

use std::{
    collections::BTreeSet,
    env, io,
    process::Command,
    sync::{Mutex, PoisonError},
};

/// Returns a command that runs the ignored test `test` of the current test binary in a new process, with its output
/// passed on. `test` is the full path with the crate, as in `concat!(module_path!(), "::a_rank")`.
///
/// The test harness reports success if it finds no test of that name. The first call for a test therefore asks the
/// binary for its list of tests, and blocks until that has ended.
///
/// # Errors
/// `NotFound` if the binary has no ignored test of that name. Otherwise, errors of starting the binary.
pub fn test_command(test: &str) -> io::Result<Command> {
    static FOUND: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // The harness names tests without the crate.
    let test = test.split_once("::").map_or(test, |(_, path)| path);
    let binary = env::current_exe()?;
    if !FOUND.lock().unwrap_or_else(PoisonError::into_inner).contains(test) {
        let output = Command::new(&binary).args(["--list", "--ignored", "--exact", test]).output()?;
        let list = String::from_utf8_lossy(&output.stdout);
        let expected = format!("{test}: test");
        if !list.lines().any(|line| line == expected) {
            let text = format!("no ignored test {test} in {}: found {list:?}", binary.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(test.to_owned());
    }
    let mut command = Command::new(binary);
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    Ok(command)
}
