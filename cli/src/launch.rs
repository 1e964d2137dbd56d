//! `lockstep launch`: starts the ranks of a job on this host, as `torchrun` does, without Python.
//!
//! The launcher hosts the job's store. Its secret is generated for the job unless the environment has one. Each rank
//! gets its position in environment variables, and each line that it prints is prefixed with its number. Each rank
//! leads a process group of its own; processes of that group that remain at the end of the job are killed. The first
//! rank that fails decides the job's result: the others are asked to end, and are killed if they do not.
//!
//! - [`rank`]: a rank's process, its lines, its end
//! - here: all ranks together

mod rank;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use process_group::store::{Deadline, TcpStore};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::rank::{End, Rank};
use crate::exit::explain;
use crate::job_secret::JobSecret;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, from 1 to 4096
    #[arg(short, long, default_value_t = 1, value_parser = values::whole::<usize>("a number of ranks", 1..=4096), allow_negative_numbers = true)]
    n: usize,
    /// Port of the store on the loopback interface, up to 65535; 0 selects a free port
    #[arg(long, default_value_t = 0, value_parser = values::port, allow_negative_numbers = true)]
    port: u16,
    /// Host the store without a secret, which ranks of PyTorch need; any local user can then connect to it
    #[arg(long)]
    no_secret: bool,
    /// Time between SIGTERM and SIGKILL for the remaining ranks when one has failed, in seconds from 0 to 3600
    #[arg(long, default_value = "10", value_parser = values::grace, allow_negative_numbers = true)]
    grace: Duration,
    /// The program of a rank, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Events of the launcher's main loop.
enum Event {
    /// A rank's process has ended.
    Ended(usize, End),
    /// The launcher itself received a signal.
    Signal(Signal),
}

/// Runs the job; the exit code is that of the first rank that failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    launch(options).unwrap_or_else(|error| {
        eprintln!("error: {}", explain(&error));
        ExitCode::FAILURE
    })
}

fn launch(options: &Options) -> Result<ExitCode> {
    let (sender, events) = mpsc::channel();
    let signals = watch_signals(sender.clone())?;
    let mut job = Job::start(options, &sender)?;
    let outcome = job.watch(&events, options.grace);
    signals.close();
    job.end();
    let Some(failure) = outcome else { return Ok(ExitCode::SUCCESS) };
    job.report(&failure);
    Ok(ExitCode::from(failure.end.code()))
}

/// Watches the signals that would end the launcher, to forward them to the ranks.
fn watch_signals(events: Sender<Event>) -> Result<signal_hook::iterator::Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    let handle = signals.handle();
    thread::spawn(move || {
        for number in &mut signals {
            let signal = match number {
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(handle)
}

struct Job {
    ranks: Vec<Rank>,
    running: BTreeSet<usize>,
    /// Ranks that did not end when asked to.
    killed: BTreeSet<usize>,
    started: Instant,
    /// Held while the job runs.
    secret: JobSecret,
    _store: TcpStore,
}

/// The first rank that failed.
struct Failure {
    rank: usize,
    end: End,
    after: Duration,
    /// Ranks that were running then, and how they were asked to end.
    others: BTreeSet<usize>,
    asked: &'static str,
}

impl Job {
    fn start(options: &Options, events: &Sender<Event>) -> Result<Self> {
        let secret = if options.no_secret { JobSecret::none() } else { JobSecret::make()? };
        let store = secret.store().host(options.port, Deadline::after(Duration::from_secs(30)))?;
        let address = store.address();
        let (host, port) = address.rsplit_once(':').context("a store's address has a port")?;
        let (program, arguments) = options.program.split_first().context("no program")?;
        let started = Instant::now();
        let (ranks, running, killed) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        // Dropping the job ends the ranks that are started already if a later one cannot be.
        let mut job = Self { ranks, running, killed, started, secret, _store: store };
        for rank in 0..options.n {
            let mut command = Command::new(program);
            command
                .args(arguments)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", options.n.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("LOCAL_WORLD_SIZE", options.n.to_string())
                .env("MASTER_ADDR", host)
                .env("MASTER_PORT", port)
                // No rank hosts the store: this process does.
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .stdin(Stdio::null());
            job.secret.tell(&mut command);
            let width = (options.n - 1).to_string().len();
            let started = Rank::start(command, format!("[{rank:width$}] "), {
                let events = events.clone();
                move |end| drop(events.send(Event::Ended(rank, end)))
            });
            let started =
                started.with_context(|| format!("cannot start rank {rank}: {}", program.display()))?;
            job.ranks.push(started);
            job.running.insert(rank);
        }
        Ok(job)
    }

    /// Waits until all ranks have ended; returns the first that failed.
    fn watch(&mut self, events: &Receiver<Event>, grace: Duration) -> Option<Failure> {
        let mut failure = None;
        // Time at which the ranks that still run are killed.
        let mut due: Option<Instant> = None;
        while !self.running.is_empty() {
            let event = match due {
                Some(due) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Ended(rank, end)) => {
                    self.running.remove(&rank);
                    if !end.is_success() && failure.is_none() {
                        let (after, others) = (self.started.elapsed(), self.running.clone());
                        // After an interrupt the ranks have been asked to end already, and may end in their own way.
                        let asked =
                            if due.is_some() { "interrupted as well" } else { "sent SIGTERM after that" };
                        failure = Some(Failure { rank, end, after, others, asked });
                        if due.is_none() {
                            self.signal_all(Signal::TERM);
                            due = Some(Instant::now() + grace);
                        }
                    }
                }
                // A second signal kills the ranks at once.
                Ok(Event::Signal(_)) if due.is_some() => due = Some(Instant::now()),
                Ok(Event::Signal(signal)) => {
                    self.signal_all(signal);
                    due = Some(Instant::now() + grace);
                }
                Err(_) => {
                    self.killed.extend(&self.running);
                    self.signal_all(Signal::KILL);
                    due = None;
                }
            }
        }
        failure
    }

    fn signal_all(&self, signal: Signal) {
        for rank in &self.running {
            self.ranks[*rank].signal(signal);
        }
    }

    /// Kills remaining processes of the ranks, and forwards the rest of their output.
    fn end(&mut self) {
        self.ranks.iter_mut().for_each(Rank::end);
    }

    fn report(&self, failure: &Failure) {
        let Failure { rank, end, after, others, asked: how } = failure;
        let mut text =
            format!("error: rank {rank} failed first: {end}, {:.1} s after the start", after.as_secs_f64());
        match &self.ranks[*rank].last_lines()[..] {
            [] => text.push_str("; it had printed nothing\n"),
            lines => {
                text.push_str("; its last lines:\n");
                lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
            }
        }
        let asked: Vec<_> = others.difference(&self.killed).map(ToString::to_string).collect();
        let killed: Vec<_> = self.killed.iter().map(ToString::to_string).collect();
        let killed_how = format!("{how} and, as they did not end, SIGKILL after that");
        for (ranks, how) in [(asked, (*how).to_owned()), (killed, killed_how)] {
            if !ranks.is_empty() {
                text.push_str(&format!("{how}: rank(s) {}\n", ranks.join(", ")));
            }
        }
        // The reader of standard error may be gone.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
