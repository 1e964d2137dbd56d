//! A command whose output has no reader.

use std::process::{Command, Stdio};

use crate::lab;

#[test]
fn a_command_that_nobody_reads_ends_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut explore = Command::new(lab());
    explore.args(["sim", "explore", "--seeds=0..2"]).stdin(Stdio::null()).stdout(writer);
    let ended = explore.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    // The exit code that a shell reports for a program that `SIGPIPE` has ended.
    assert_eq!((ended.status.code(), said.as_ref()), (Some(128 + 13), ""));
}
