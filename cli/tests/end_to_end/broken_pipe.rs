//! Commands whose output has no reader.

use std::process::{Command, Stdio};

use crate::lockstep;

/// The exit code that a shell reports for a program that `SIGPIPE` has ended.
const BROKEN_PIPE: i32 = 128 + 13;

#[test]
fn a_command_that_nobody_reads_ends_without_a_word() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "a 7f00 512 0\nr 7f00 512 0\nf 7f00 512 0\n").unwrap();
    let page = trace.path().with_extension("html");
    let viz = ["viz", trace.path().to_str().unwrap(), "-o", page.to_str().unwrap()];
    // One prints by `println`; the other writes to the pipe and gets the error.
    for task in [&viz[..], &["bench", "store", "--serve"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(lockstep());
        let ended = command.args(task).stdin(Stdio::null()).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said
            .trim_start_matches("note: this is a debug build; for meaningful times use a release build\n");
        assert_eq!((ended.status.code(), said), (Some(BROKEN_PIPE), ""), "{task:?}");
    }
    let _ = std::fs::remove_file(page);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for task in [&["help-page"][..], &["doctor"], &["doctor", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = Command::new(lockstep()).args(task).stdout(full).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        let expected = "error: standard output cannot be written: No space left on device";
        assert!(said.contains(expected), "{task:?}: {said}");
        assert!(!said.contains("panicked") && ended.status.code() == Some(1), "{task:?}: {said}");
    }
}
