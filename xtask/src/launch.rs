//! `cargo xtask launch`: the ranks of a job on this host, as `torchrun` starts them, without Python.
//!
//! The launcher hosts the job's store, with a secret that it makes for the job unless the environment has one, tells each
//! rank by variables where it stands, and puts the rank's number before
//! every line that it prints. Each rank leads a process group of its own, and whatever is left of it when the job is
//! over is killed. The first rank that fails is what the job failed of: the others are asked to end, and made to where
//! they do not.
//!
//! - [`rank`]: a rank's process, its lines, its end
//! - here: what is done about all of them

mod rank;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use process_group::store::{Deadline, TcpStore};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::rank::{End, Rank};
use crate::job_secret::JobSecret;
use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many ranks are started
    #[arg(short, long, default_value_t = 1)]
    n: usize,
    /// Port of the store on the loopback interface; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Have a store without a secret, for ranks that use PyTorch's store: any local user can connect to it then
    #[arg(long)]
    no_secret: bool,
    /// Seconds that ranks have to end after they were asked to
    #[arg(long, default_value = "10", value_parser = seconds)]
    grace: Duration,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{error}"))
}

/// What the launcher waits for.
enum Event {
    /// A rank's process has ended.
    Ended(usize, End),
    /// The launcher itself was sent a signal.
    Signal(Signal),
}

/// Runs the job; the exit code is that of the first rank that failed.
pub(crate) fn run(options: &Options) -> ExitCode {
    launch(options).unwrap_or_else(|error| {
        eprintln!("error: {}", shell::explain(&error));
        ExitCode::FAILURE
    })
}

fn launch(options: &Options) -> Result<ExitCode> {
    ensure!(options.n > 0, "no rank to start");
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

/// Hears the signals that would end the launcher, so that the ranks hear them too.
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
    /// Those that did not end when they were asked to.
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
    /// Those that ran then, and how they were asked to end.
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
        // Ranks that are started already do not outlive the job where a further one cannot be.
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
        // When those that still run are killed.
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
                        // Who was interrupted has been asked to end, and does it in its own way.
                        let asked =
                            if due.is_some() { "interrupted as well" } else { "sent SIGTERM after that" };
                        failure = Some(Failure { rank, end, after, others, asked });
                        if due.is_none() {
                            self.signal_all(Signal::TERM);
                            due = Some(Instant::now() + grace);
                        }
                    }
                }
                // Who is impatient asks twice.
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

    /// Kills what the ranks have left behind, and passes on the last of what they said.
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
        // Who listens may have left.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
