//! Processes that a test starts and talks to by lines.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

/// A process that a test has started. Its lines for the test contain a mark, and the message after it. Dropping
/// this kills the process.
pub(crate) struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
    mark: &'static str,
}

impl Other {
    pub(crate) fn start(command: &mut Command, mark: &'static str) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, mark }
    }

    /// Sends a line, and returns its answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.said()
    }

    /// Returns the words of the next message.
    pub(crate) fn words(&mut self) -> Vec<String> {
        self.said().split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the next message. Skips lines without the mark, which are those of the test harness.
    pub(crate) fn said(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the {} process has failed", self.mark);
            if let Some((_, said)) = line.split_once(self.mark) {
                return said.trim().to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
