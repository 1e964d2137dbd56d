//! Programs that measure in turns: a round of one, then a round of the other. The speed of a shared machine changes
//! within seconds, and turns make it the same for both.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::child::{self, KillOnDrop};
use crate::progress::Progress;

/// Longer than any round takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A program that waits for a line before each round, and prints an empty one after it.
pub(super) struct Player {
    child: KillOnDrop,
    turns: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Runs the rounds of a program with `round`, until it has no further ones. `count` is their number, for the progress.
pub(super) fn rounds(
    progress: &Progress,
    count: usize,
    mut round: impl FnMut() -> Result<bool>,
) -> Result<()> {
    for number in 1_usize.. {
        // The program ends after the last round.
        progress.show(format!("round {} of {count}", number.min(count)));
        if !round()? {
            break;
        }
    }
    Ok(())
}

impl Player {
    /// Starts the program; it inherits our standard error.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .arg("in-turn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut child = KillOnDrop(child);
        let (turns, lines) = (child.stdin.take(), child::lines(child.stdout.take()));
        Ok(Self { child, turns, lines })
    }

    /// Lets the program run a round and appends its output to `told`. Returns `false` if it has no further rounds.
    ///
    /// # Errors
    /// The program failed, or does not answer.
    pub(super) fn round(&mut self, told: &mut String) -> Result<bool> {
        // Writing fails if the program has ended; its earlier output is still in the pipe.
        let asked = self.turns.as_mut().is_some_and(|turns| writeln!(turns).is_ok());
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line.is_empty() => return Ok(true),
                Ok(line) => {
                    told.push_str(&line);
                    told.push('\n');
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("no answer within {} s of a round's beginning", LIMIT.as_secs())
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        drop(self.turns.take());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("it ended with {status}{}", if asked { "" } else { " between two rounds" });
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(program: &str) -> Player {
        Player::start(Command::new("sh").args(["-c", program])).unwrap()
    }

    #[test]
    fn each_round_waits_for_its_turn() {
        let mut player = shell("for i in 1 2; do read turn; echo a $i; echo b $i; echo; done");
        let mut told = String::new();
        assert!(player.round(&mut told).unwrap());
        assert_eq!(told, "a 1\nb 1\n");
        assert!(player.round(&mut told).unwrap());
        assert!(!player.round(&mut told).unwrap());
        assert_eq!(told, "a 1\nb 1\na 2\nb 2\n");
    }

    #[test]
    fn who_fails_is_an_error_after_what_it_said() {
        let mut player = shell("read turn; echo a; exit 3");
        let mut told = String::new();
        let error = player.round(&mut told).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert_eq!(told, "a\n");
    }
}
