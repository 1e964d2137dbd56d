//! Child processes.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// A child process that is killed when this is dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

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

/// Receives the lines that are written to a pipe, so that a caller can wait for them with a deadline.
pub(crate) fn lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = pipe.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        lines.map_while(io::Result::ok).all(|line| sender.send(line).is_ok())
    });
    receiver
}

/// Kills the process group that `leader` leads. The leader must not be reaped yet, so that its number is not reused.
pub(crate) fn kill_group(leader: &mut Child) {
    let mut kill = Command::new("sh");
    // An error means that the group has ended.
    let _ =
        kill.args(["-c", "kill -s KILL -- \"-$0\"", &leader.id().to_string()]).stderr(Stdio::null()).status();
    let _ = leader.kill();
}
