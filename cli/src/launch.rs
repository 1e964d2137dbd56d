//! `lockstep launch`: starts the ranks of a job on this host, as `torchrun` does, without Python.
//!
//! The launcher hosts the job's store. Its secret is generated for the job unless the environment has one. Each rank
//! gets its position in environment variables, and each line that it prints is prefixed with its number. Each rank
//! leads a process group of its own; processes of that group that remain at the end of the job are killed. The first
//! rank that fails decides the job's result, unless another one is killed or crashes a moment later: such a rank takes
//! the others with it. The ranks that remain are asked to end, and are killed if they do not, or go on if the user
//! wants that (`--on-failure continue`). A signal that ends the launcher interrupts the job: it is passed on to the
//! ranks, and no rank counts as failed after it.
//!
//! - [`rank`]: a rank's process, its lines, its end
//! - here: all ranks together

mod rank;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::UnknownArgumentValueParser;
use process_group::store::{Deadline, TcpStore};
use rustix::process::Signal;
use signal_hook::consts::{SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM};
use signal_hook::iterator::Signals;

use self::rank::Rank;
use crate::child::{self, End};
use crate::job_secret::JobSecret;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, from 1 to 4096
    #[arg(short, alias = "n", value_name = "N", default_value_t = 1, value_parser = values::whole::<usize>("a number of ranks", 1..=4096), allow_negative_numbers = true)]
    // An alias, because errors name a `long` where the user typed `-n`.
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
    /// Action when a rank fails
    #[arg(long, value_enum, default_value_t = OnFailure::Stop)]
    on_failure: OnFailure,
    // Options of other launchers, and of other commands, for the number of ranks. They are errors that name `-n`.
    #[arg(long = "ranks", aliases = ["rank", "nproc"], value_name = "N", hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("-n <N>"))]
    _ranks: Option<String>,
    #[arg(long = "nproc-per-node", alias = "nproc_per_node", value_name = "N", hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("-n <N>"))]
    _nproc_per_node: Option<String>,
    /// The program of a rank, and its arguments; a program whose name begins with `-` goes after `--`
    // Without `allow_hyphen_values`, which would take unknown options, and `-n2`, for the program.
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Action when a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnFailure {
    /// End the other ranks
    Stop,
    /// Let the other ranks go on, such as those of a program that shrinks its group
    Continue,
}

/// Time in which the other ranks may end by themselves after one has failed. A rank that fails takes the others with
/// it, and they may end before it.
const SETTLE: Duration = Duration::from_millis(500);

/// Time after the first rank has ended successfully until a note says that others still run.
const EARLY: Duration = Duration::from_secs(5);

/// Time to wait for the launcher's own signal after the last rank has ended by the same signal. A signal to all
/// processes of a job can end a rank before the launcher has read its own.
const OWN_SIGNAL: Duration = Duration::from_millis(200);

/// The number of further failed ranks whose last lines are repeated.
const MOST_DESCRIBED: usize = 3;

/// Events of the launcher's main loop.
enum Event {
    /// A rank's process has ended.
    Ended(usize, End),
    /// The launcher itself received a signal.
    Signal(Signal),
}

/// Runs the job. Returns the exit code of the rank that failed, or the code for the signal if one interrupted the
/// job.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (sender, events) = mpsc::channel();
    let signals = watch_signals(sender.clone())?;
    let mut job = Job::start(options, &sender)?;
    let stop = job.watch(&events, options.grace, options.on_failure);
    signals.close();
    job.end();
    let Some(stop) = stop else { return Ok(ExitCode::SUCCESS) };
    job.report(&stop);
    Ok(ExitCode::from(stop.end().code()))
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
    /// Ranks that succeeded before any was asked to end. Ranks that still need them fail, or wait for them.
    finished: BTreeSet<usize>,
    /// Ranks that did not end when asked to.
    killed: BTreeSet<usize>,
    started: Instant,
    /// Held while the job runs.
    secret: JobSecret,
    _store: TcpStore,
}

/// The reason for which a job ended early.
enum Stop {
    Failure(Failure),
    Interrupt(Interrupt),
}

impl Stop {
    /// The end that decides the exit code.
    fn end(&self) -> End {
        match self {
            Stop::Failure(failure) => failure.end,
            Stop::Interrupt(interrupt) => interrupt.end(),
        }
    }
}

/// Returns true for the end of a process that was killed or crashed, which takes other ranks with it. Other signals may
/// follow from the failure of another rank.
fn is_killed(end: End) -> bool {
    matches!(end, End::Signal(SIGKILL | SIGSEGV | SIGBUS | SIGILL | SIGFPE))
}

/// A rank that was killed or crashed or, if there is none, the first rank that failed.
struct Failure {
    rank: usize,
    end: End,
    after: Duration,
    /// Other ranks that failed by themselves, in the order of their ends.
    also: Vec<(usize, End)>,
    /// Ranks that were asked to end.
    others: BTreeSet<usize>,
}

impl Failure {
    /// All ranks that failed by themselves.
    fn ranks(&self) -> BTreeSet<usize> {
        self.also.iter().map(|(rank, _)| *rank).chain([self.rank]).collect()
    }

    /// Adds the failure of another rank, before any was asked to end.
    fn add(&mut self, rank: usize, end: End, after: Duration) {
        if is_killed(end) && !is_killed(self.end) {
            self.after = after;
            let first = (std::mem::replace(&mut self.rank, rank), std::mem::replace(&mut self.end, end));
            self.also.insert(0, first);
        } else {
            self.also.push((rank, end));
        }
    }
}

/// A signal that the launcher received before any rank had failed, or while the others went on after a failure.
struct Interrupt {
    signal: Signal,
    after: Duration,
    /// Ranks that failed before the signal, while the others went on.
    failed: BTreeSet<usize>,
    /// The ends of ranks after the signal.
    ends: BTreeMap<usize, End>,
}

impl Interrupt {
    /// The end of a process by this signal.
    fn end(&self) -> End {
        End::Signal(self.signal.as_raw())
    }
}

impl Job {
    fn start(options: &Options, events: &Sender<Event>) -> Result<Self> {
        let secret = if options.no_secret { JobSecret::none() } else { JobSecret::make()? };
        let store = secret.store().host(options.port, Deadline::after(Duration::from_secs(30)))?;
        let address = store.address();
        let (host, port) = address.rsplit_once(':').context("a store's address has a port")?;
        let (program, arguments) = options.program.split_first().context("no program")?;
        let started = Instant::now();
        let (ranks, running) = (Vec::new(), BTreeSet::new());
        let (finished, killed) = (BTreeSet::new(), BTreeSet::new());
        // Dropping the job ends the ranks that are started already if a later one cannot be.
        let mut job = Self { ranks, running, finished, killed, started, secret, _store: store };
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

    /// Waits until all ranks have ended; returns the reason if the job ended early.
    fn watch(&mut self, events: &Receiver<Event>, grace: Duration, on_failure: OnFailure) -> Option<Stop> {
        let mut stop: Option<Stop> = None;
        // Time at which the ranks that still run are asked to end, and time at which they are killed.
        let (mut settled, mut due): (Option<Instant>, Option<Instant>) = (None, None);
        // Time at which a note says that some ranks have ended and others still run.
        let mut note: Option<Instant> = None;
        while !self.running.is_empty() {
            let event = match settled.or(due).or(note) {
                Some(due) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Ended(rank, end)) => {
                    self.running.remove(&rank);
                    let after = self.started.elapsed();
                    match &mut stop {
                        Some(Stop::Interrupt(interrupt)) => drop(interrupt.ends.insert(rank, end)),
                        _ if end.is_success() => {
                            if due.is_none() {
                                if self.finished.is_empty() {
                                    note = Some(Instant::now() + EARLY);
                                }
                                self.finished.insert(rank);
                            }
                        }
                        Some(Stop::Failure(failure)) if settled.is_some() => failure.add(rank, end, after),
                        Some(Stop::Failure(failure)) if on_failure == OnFailure::Continue => {
                            failure.also.push((rank, end));
                            self.note_failure(rank, end);
                        }
                        Some(Stop::Failure(_)) => {}
                        None => {
                            let (also, others) = (Vec::new(), BTreeSet::new());
                            stop = Some(Stop::Failure(Failure { rank, end, after, also, others }));
                            match on_failure {
                                OnFailure::Stop => settled = Some(Instant::now() + SETTLE),
                                OnFailure::Continue => self.note_failure(rank, end),
                            }
                        }
                    }
                }
                Ok(Event::Signal(signal)) if is_interrupt(stop.as_ref(), signal, on_failure) => {
                    let failed = match &stop {
                        Some(Stop::Failure(failure)) if on_failure == OnFailure::Continue => failure.ranks(),
                        _ => BTreeSet::new(),
                    };
                    stop = Some(self.interrupted(signal, failed));
                    self.signal_all(signal);
                    (settled, due) = (None, Some(Instant::now() + grace));
                }
                Err(_) if settled.or(due).is_none() && note.take().is_some() => self.note_finished(),
                // The ranks were not asked to end yet.
                Ok(Event::Signal(_)) | Err(_) if settled.is_some() => {
                    settled = None;
                    due = Some(self.ask_to_end(&mut stop, grace));
                }
                // A signal to a job that is ending already kills the ranks at once.
                Ok(Event::Signal(_)) => due = Some(Instant::now()),
                Err(_) => {
                    self.killed.extend(&self.running);
                    self.signal_all(Signal::KILL);
                    (due, note) = (None, None);
                }
            }
        }
        if let Some(Stop::Failure(Failure { end: End::Signal(number), .. })) = stop
            && [SIGINT, SIGTERM, SIGHUP].contains(&number)
            && let Ok(Event::Signal(signal)) = events.recv_timeout(OWN_SIGNAL)
            && is_interrupt(stop.as_ref(), signal, OnFailure::Stop)
        {
            stop = Some(self.interrupted(signal, BTreeSet::new()));
        }
        stop
    }

    /// Asks the ranks that still run to end, after one has failed. Returns the time at which they are killed.
    fn ask_to_end(&self, stop: &mut Option<Stop>, grace: Duration) -> Instant {
        if let Some(Stop::Failure(failure)) = stop {
            failure.others = self.running.clone();
        }
        self.signal_all(Signal::TERM);
        Instant::now() + grace
    }

    fn interrupted(&self, signal: Signal, failed: BTreeSet<usize>) -> Stop {
        Stop::Interrupt(Interrupt { signal, after: self.started.elapsed(), failed, ends: BTreeMap::new() })
    }

    /// Says at once that a rank has failed while the others go on. The report names the last rank.
    fn note_failure(&self, rank: usize, end: End) {
        if !self.running.is_empty() {
            // The reader of standard error may be gone.
            let _ = writeln!(std::io::stderr(), "note: rank {rank} failed: {end}; the others go on");
        }
    }

    /// Says once that ranks have ended successfully while others, which may wait for them, still run.
    fn note_finished(&self) {
        let (ended, running, seconds) = (list(&self.finished), list(&self.running), EARLY.as_secs());
        // The reader of standard error may be gone.
        let _ = writeln!(
            std::io::stderr(),
            "note: {ended} ended with exit status 0, the first {seconds} s ago; still running: {running}"
        );
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

    fn report(&self, stop: &Stop) {
        let mut text = match stop {
            Stop::Failure(failure) => self.describe_failure(failure),
            Stop::Interrupt(interrupt) => describe_interrupt(interrupt, &self.killed),
        };
        if !self.finished.is_empty() {
            text.push_str(&format!("also ended, with exit status 0: {}\n", list(&self.finished)));
        }
        if !self.killed.is_empty() {
            text.push_str(&format!("sent SIGKILL, as they did not end: {}\n", list(&self.killed)));
        }
        // The reader of standard error may be gone.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn describe_failure(&self, failure: &Failure) -> String {
        let Failure { rank, end, after, also, others } = failure;
        let seconds = after.as_secs_f64();
        // A rank that was killed is named first, although others may have ended before it.
        let is_first = !is_killed(*end) || also.iter().all(|(_, end)| is_killed(*end));
        let first = if is_first { " first" } else { "" };
        let mut text = format!("error: rank {rank} failed{first}: {end}, {seconds:.1} s after the start");
        self.describe_output(*rank, &mut text);
        for (rank, end) in also.iter().take(MOST_DESCRIBED) {
            text.push_str(&format!("rank {rank} failed too: {end}"));
            self.describe_output(*rank, &mut text);
        }
        if let Some(more) = also.get(MOST_DESCRIBED..).filter(|more| !more.is_empty()) {
            text.push_str(&format!("failed too: {}\n", list(&more.iter().map(|(rank, _)| *rank).collect())));
        }
        if !others.is_empty() {
            text.push_str(&format!("sent SIGTERM after that: {}\n", list(others)));
        }
        text
    }

    /// Adds the last lines of a rank.
    fn describe_output(&self, rank: usize, text: &mut String) {
        match &self.ranks[rank].last_lines()[..] {
            [] => text.push_str("; it had printed nothing\n"),
            lines => {
                text.push_str("; its last lines:\n");
                lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
            }
        }
    }
}

/// Returns true if a signal to the launcher interrupts the job: no rank has failed, or the others go on, or the failed
/// one has ended by the same signal, which was then sent to both.
fn is_interrupt(stop: Option<&Stop>, signal: Signal, on_failure: OnFailure) -> bool {
    match stop {
        None => true,
        Some(Stop::Failure(_)) if on_failure == OnFailure::Continue => true,
        Some(Stop::Failure(failure)) => {
            matches!(failure.end, End::Signal(number) if number == signal.as_raw())
        }
        Some(Stop::Interrupt(_)) => false,
    }
}

/// Describes an interrupt, and the ranks that ended neither successfully, nor by its signal, nor by SIGKILL of the
/// launcher.
fn describe_interrupt(interrupt: &Interrupt, killed: &BTreeSet<usize>) -> String {
    let name = child::name(interrupt.signal).unwrap_or("a signal");
    let after = interrupt.after.as_secs_f64();
    let mut text = format!("error: the job was interrupted by {name} {after:.1} s after the start\n");
    if !interrupt.failed.is_empty() {
        text.push_str(&format!("failed before that: {}\n", list(&interrupt.failed)));
    }
    let mut ends: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (&rank, end) in &interrupt.ends {
        // Shells exit with the code of the signal when it ends their child.
        let is_expected = end.is_success() || end.code() == interrupt.end().code();
        if !is_expected && !killed.contains(&rank) {
            ends.entry(end.to_string()).or_default().insert(rank);
        }
    }
    for (end, ranks) in ends {
        text.push_str(&format!("after that, {end}: {}\n", list(&ranks)));
    }
    text
}

/// `rank(s) 0, 2`.
fn list(ranks: &BTreeSet<usize>) -> String {
    let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    format!("rank(s) {}", ranks.join(", "))
}
