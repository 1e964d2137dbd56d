//! The end of a command: its exit code, and its error on standard error.

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::plain;

/// The exit code that a shell reports for a program that `SIGPIPE` has ended.
const BROKEN_PIPE: u8 = 128 + 13;

/// Runs a command and returns its exit code. Prints its error, if it fails, to standard error.
pub fn exit_code(command: impl FnOnce() -> Result<ExitCode> + UnwindSafe) -> ExitCode {
    run(command, false)
}

/// Like [`exit_code`]. With `json`, prints the error to standard output too, as the object `{"error": TEXT}`.
///
/// A command whose output nobody reads any more (`| head -1`) ends silently. Not by the signal `SIGPIPE`, which a
/// child's pipe can also raise, and which would leave the command's own children behind. Instead the panic that
/// `println` makes of a broken pipe unwinds.
pub(crate) fn run(command: impl FnOnce() -> Result<ExitCode> + UnwindSafe, json: bool) -> ExitCode {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if unwritten(panic.payload()).is_none() {
            default_hook(panic);
        }
    }));
    match panic::catch_unwind(command) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) if is_broken_pipe(&error) && has_no_reader() => ExitCode::from(BROKEN_PIPE),
        Ok(Err(error)) => {
            let text = plain::lines(&explain(&error));
            eprintln!("error: {text}");
            if error.is::<UsageError>() {
                // As the parser of the command line ends its errors.
                eprintln!("\nFor more information, try '--help'.");
            }
            if json {
                // The error may be that of standard output itself.
                let _ = writeln!(io::stdout(), "{}", serde_json::json!({ "error": text }));
            }
            failure(&error)
        }
        Err(panic) => match unwritten(&*panic) {
            Some(cause) if cause == io::Error::from(Errno::PIPE).to_string() => ExitCode::from(BROKEN_PIPE),
            Some(cause) => {
                eprintln!("error: standard output cannot be written: {cause}");
                ExitCode::FAILURE
            }
            None => panic::resume_unwind(panic),
        },
    }
}

/// An error in the arguments that the parser of the command line cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Returns the exit code for an error: 2, as the parser of the command line does, if the arguments are wrong.
fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// Joins an error and its causes to one text. Leaves out a cause that the text before it repeats.
pub fn explain(error: &anyhow::Error) -> String {
    process_group::error_text(error.as_ref())
}

/// Shortens an error to one line. From a list of files that were tried, keeps those that exist but cannot be used.
pub(crate) fn brief(error: &str) -> String {
    let mut lines = error.lines().map(str::trim);
    let mut text = lines.next().unwrap_or_default().trim_end_matches(" Tried:").to_owned();
    for line in lines.filter(|line| !line.is_empty()) {
        // The loader repeats the file's name; a missing dependency has another name.
        let (name, mut said) = line.split_once(": ").unwrap_or(("", line));
        said = said.strip_prefix(name).and_then(|said| said.strip_prefix(": ")).unwrap_or(said);
        if said != "cannot open shared object file: No such file or directory" {
            text = format!("{}; {line}", text.trim_end_matches('.'));
        }
    }
    text
}

/// Returns the cause if the panic is that of a `println` that could not write.
fn unwritten(panic: &dyn Any) -> Option<&str> {
    panic.downcast_ref::<String>()?.strip_prefix("failed printing to stdout: ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Returns true if standard output is a pipe without a reader.
fn has_no_reader() -> bool {
    let stdout = io::stdout();
    let mut pipe = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut pipe, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && pipe[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::brief;

    #[test]
    fn of_what_was_tried_only_what_is_there_is_told() {
        let absent = "cannot open shared object file: No such file or directory";
        for known in [format!("x.so: {absent}"), format!("x.so: x.so: {absent}")] {
            let error = format!("no X found. Tried:\n  {known}");
            assert_eq!(brief(&error), "no X found.");
            let broken = format!("{error}\n  x.so.2: /lib/x.so.2: file too short");
            assert_eq!(brief(&broken), "no X found; x.so.2: /lib/x.so.2: file too short");
            let incomplete = format!("no X found. Tried:\n  x.so: y.so: {absent}");
            assert_eq!(brief(&incomplete), format!("no X found; x.so: y.so: {absent}"));
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let error =
            anyhow::anyhow!("no such file").context("cannot read x: no such file").context("the demo");
        assert_eq!(super::explain(&error), "the demo: cannot read x: no such file");
    }

    #[test]
    fn only_a_closed_pipe_ends_a_command_without_a_word() {
        let cause = |said: &str| super::unwritten(&said.to_owned()).map(str::to_owned);
        let pipe = std::io::Error::from(rustix::io::Errno::PIPE).to_string();
        assert_eq!(cause(&format!("failed printing to stdout: {pipe}")), Some(pipe));
        assert_eq!(cause("failed printing to stdout: disk full").as_deref(), Some("disk full"));
        assert_eq!(cause("called `Option::unwrap()` on a `None` value"), None);
        let error = |errno: rustix::io::Errno| {
            super::is_broken_pipe(&anyhow::Error::from(std::io::Error::from(errno)).context("printing"))
        };
        assert!(error(rustix::io::Errno::PIPE) && !error(rustix::io::Errno::NOSPC));
    }
}
