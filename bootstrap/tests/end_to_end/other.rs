//! Processes that a test starts, and with which it exchanges lines over standard input and output.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

/// A process that a test has started. Each of its lines for the test consists of any text, the mark, and a message.
/// Dropping this kills the process.
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

    /// Sends a line, and returns the next message.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.said()
    }

    /// Returns the words of the next message.
    pub(crate) fn words(&mut self) -> Vec<String> {
        self.said().split_whitespace().map(str::to_owned).collect()
    }

    /// Waits for the next message, and returns it. Skips lines without the mark, which are those of the test harness.
    /// Panics if the process closes its output.
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
