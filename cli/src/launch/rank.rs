//! A rank's process, which leads a process group: its lines, its end, and the end of all processes that it started.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};

use crate::child::End;

type Lines = Arc<Mutex<VecDeque<String>>>;

pub(super) struct Rank {
    child: Child,
    lines: Lines,
    readers: Vec<JoinHandle<()>>,
    ended: bool,
}

impl Rank {
    /// Lines kept for the report of a failure.
    const KEPT: usize = 20;

    /// Starts the process. `prefix` comes before each of its lines; `ended` is called once when the process has
    /// ended.
    pub(super) fn start(
        mut command: Command,
        prefix: String,
        ended: impl FnOnce(End) + Send + 'static,
    ) -> io::Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let mut child = command.spawn()?;
        let lines = Lines::default();
        let out = child.stdout.take().map(|pipe| pass_on(pipe, io::stdout(), &prefix, &lines));
        let err = child.stderr.take().map(|pipe| pass_on(pipe, io::stderr(), &prefix, &lines));
        let pid = Pid::from_child(&child);
        thread::spawn(move || ended(wait(pid)));
        Ok(Self { child, lines, readers: out.into_iter().chain(err).collect(), ended: false })
    }

    /// Signals the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        // The leader has not been reaped yet, so its number is still valid; an empty group is no error.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Kills the rest of the group, and waits for the last line.
    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.signal(Signal::KILL);
        // Fails only if there is no process any more.
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            // A panicked reader has no more lines.
            let _ = reader.join();
        }
    }

    /// Returns the last lines that it printed.
    pub(super) fn last_lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the end of a process without reaping it, so its number and its group's stay valid.
fn wait(pid: Pid) -> End {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                let exit = status.exit_status().map(End::Exit);
                return exit.or(status.terminating_signal().map(End::Signal)).unwrap_or(End::Unknown);
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return End::Unknown,
        }
    }
}

/// Copies a pipe's lines to `to`, each in one write with the prefix, and keeps the last ones.
fn pass_on(
    pipe: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    prefix: &str,
    lines: &Lines,
) -> JoinHandle<()> {
    /// A longer line is split.
    const LONGEST: u64 = 64 << 10;
    let (prefix, lines) = (prefix.to_owned(), lines.clone());
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match pipe.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            // A closed output must not block or end the rank.
            let _ = to.write_all(&[prefix.as_bytes(), text, b"\n"].concat()).and_then(|()| to.flush());
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == Rank::KEPT {
                lines.pop_front();
            }
            lines.push_back(String::from_utf8_lossy(text).into_owned());
        }
    })
}
