//! Child processes: their time limits, for calls into libraries that may crash or hang, and how they ended.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output;

/// Interval between two checks of a process's end.
const PACE: Duration = Duration::from_millis(10);

/// Runs this program with `arguments`, and reads the value that it prints with [`answer`].
///
/// # Errors
/// The process failed (its own message), was killed by a signal, did not end within `limit`, or printed another type.
pub fn ask<T: DeserializeOwned>(
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    limit: Duration,
) -> Result<T> {
    let program = std::env::current_exe().context("this program's own path")?;
    let output = output_within(Command::new(program).args(arguments), limit)?;
    let told = String::from_utf8_lossy(&output.stderr);
    let told = told.trim();
    if !output.status.success() {
        match told.strip_prefix("error: ").unwrap_or(told) {
            "" => bail!("the process that tried it died of {}", output.status),
            told if output.status.code().is_none() => bail!("{told} (it died of {})", output.status),
            told => bail!("{told}"),
        }
    }
    // A library may print when it is loaded.
    let answer = output.stdout.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(answer).context("reading what the other process printed")
}

/// Prints `value` as one line of JSON, for the process that called [`ask`].
///
/// # Errors
/// Standard output cannot be written.
pub fn answer(value: &impl Serialize) -> Result<()> {
    output::print(&format!("{}\n", serde_json::to_string(value)?))
}

/// Runs the command to its end and returns its output. Kills it, and the processes that it started, after `limit`.
///
/// # Errors
/// The command cannot be started, or took longer than `limit`.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let left = || deadline.saturating_duration_since(Instant::now());
    // The pipes first: processes that it started may hold them open after it has exited.
    if let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(left()), stderr.recv_timeout(left())) {
        loop {
            match child.try_wait()? {
                Some(status) => return Ok(Output { status, stdout, stderr }),
                None if left().is_zero() => break,
                None => thread::sleep(PACE),
            }
        }
    }
    // The process is not reaped yet, so its number is not reused.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()?;
    bail!("no answer within {} s; it was killed", limit.as_secs_f64());
}

/// Reads a pipe to its end, so that the writer never waits for room.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // After an error, the bytes read so far are the output.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver is dropped after the deadline.
        let _ = sender.send(bytes);
    });
    receiver
}

/// A child process that is killed when this is dropped.
pub struct KillOnDrop(pub Child);

impl Deref for KillOnDrop {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Result of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Exit(i32),
    Signal(i32),
    /// The system does not report it.
    Unknown,
}

impl End {
    pub(crate) fn is_success(self) -> bool {
        matches!(self, End::Exit(0))
    }

    /// The exit code that shells give for it; never 0 for a failure.
    pub(crate) fn code(self) -> u8 {
        match self {
            End::Exit(code) => u8::try_from(code).unwrap_or(1),
            End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            End::Unknown => 1,
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        status.code().map(End::Exit).or(status.signal().map(End::Signal)).unwrap_or(End::Unknown)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit status {code}"),
            End::Signal(signal) => {
                let name = Signal::from_named_raw(*signal).and_then(name).unwrap_or("its number");
                write!(f, "ended by signal {signal} ({name})")
            }
            End::Unknown => f.write_str("it is gone, and the system does not say why"),
        }
    }
}

/// Returns the name of a signal that ends programs.
pub(crate) fn name(signal: Signal) -> Option<&'static str> {
    const NAMES: [(Signal, &str); 12] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL, as the system does when memory is out"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
    ];
    NAMES.iter().find(|(known, _)| *known == signal).map(|(_, name)| *name)
}

/// Receives the lines that are written to a pipe, so that a caller can wait for them with a deadline.
pub fn lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        lines.map_while(io::Result::ok).all(|line| sender.send(line).is_ok())
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_killed_with_what_it_started() {
        let mut hanging = Command::new("sh");
        hanging.args(["-c", "sleep 1000 & sleep 1000"]);
        let error = output_within(&mut hanging, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("no answer within 0.05 s"), "{error:#}");
    }

    #[test]
    fn what_ends_and_leaves_a_process_with_its_pipes_is_not_waited_for() {
        let mut leaving = Command::new("sh");
        leaving.args(["-c", "sleep 1000 & exit 0"]);
        let error = output_within(&mut leaving, Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("no answer within 0.2 s"), "{error:#}");
    }

    #[test]
    fn output_longer_than_a_pipe_comes_whole() {
        let mut long = Command::new("sh");
        long.args(["-c", "head -c 300000 /dev/zero; echo end >&2; exit 3"]);
        let output = output_within(&mut long, Duration::from_secs(60)).unwrap();
        assert_eq!((output.stdout.len(), output.status.code()), (300_000, Some(3)));
        assert_eq!(output.stderr, b"end\n");
    }
}
