//! Starts the ranks, receives their messages, and leaves no process behind.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use process_group::store::Deadline;

use super::backend::{self, Plan};
use super::groups;
use super::options::{Options, RankOptions};
use super::protocol::{self, Message, Stage};
use super::report::Figures;
use crate::child::KillOnDrop;
use crate::exit::UsageError;
use crate::job_secret::JobSecret;
use crate::progress::Progress;
use crate::trace::Trace;

/// Longer than any step of a rank takes beyond its deadline; a rank that is silent for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(120);
/// Heartbeat interval of the groups, in ms: a rank of an overloaded host may not run for some seconds.
const HEARTBEAT: u64 = 3000;
/// Time for a rank to clean up after its own failure or another rank's.
const GRACE: Duration = Duration::from_secs(10);

/// One message of a rank, or the end of its messages.
enum Heard {
    Message(Message),
    Broken(io::Error),
    Gone,
}

/// A rank's process.
struct Rank {
    child: KillOnDrop,
    stage: Stage,
    heard: Instant,
    finished: bool,
    error: Option<String>,
    gone: bool,
}

/// Runs all ranks and collects their messages.
pub(crate) fn run(options: &Options) -> Result<Figures> {
    // Every rank reads the trace again; loading it here reports a broken trace before any rank starts.
    Trace::load(options.trace.as_deref())?;
    let (Plan { backend, ranks: world_size }, without_gpus) =
        backend::choose(options.backend, options.ranks)?;
    if let Some(absent) = options.absent.filter(|&absent| absent >= world_size) {
        let last = world_size - 1;
        return Err(UsageError(format!("--absent {absent}: expected one of the ranks 0 to {last}")).into());
    }
    if let Some(why) = without_gpus {
        eprintln!("{why}");
    }
    let secret = JobSecret::make()?;
    let store = secret.store().host(options.port, Deadline::after(PATIENCE))?;

    let (sender, receiver) = mpsc::channel();
    let mut ranks = BTreeMap::new();
    for rank in (0..world_size).filter(|&rank| options.absent != Some(rank)) {
        let part = RankOptions {
            rank,
            ranks: world_size,
            backend,
            trace: options.trace.clone(),
            store: store.address(),
            deadline: options.deadline,
            heartbeat: HEARTBEAT,
            launcher: std::process::id(),
        };
        let (child, socket) =
            start(&part, &secret, |_| {}).with_context(|| format!("cannot start rank {rank}"))?;
        let heard = Instant::now();
        ranks.insert(
            rank,
            Rank { child, stage: Stage::Start, heard, finished: false, error: None, gone: false },
        );
        let sender = sender.clone();
        std::thread::spawn(move || {
            for message in protocol::messages(socket) {
                let heard = message.map_or_else(Heard::Broken, Heard::Message);
                if sender.send((rank, heard)).is_err() {
                    return;
                }
            }
            // The launcher may have stopped receiving.
            let _ = sender.send((rank, Heard::Gone));
        });
    }
    let mut figures = Figures::new(backend, world_size, groups::layout(world_size));
    listen(&mut ranks, &receiver, &mut figures, options.deadline + PATIENCE)?;
    for (rank, process) in &mut ranks {
        let status = process.child.wait().with_context(|| format!("cannot wait for rank {rank}"))?;
        if !status.success() {
            return Err(anyhow!("rank {rank} ended with {status} after it had finished"));
        }
    }
    Ok(figures)
}

/// Starts a rank. Returns its process, and the socket for its messages. `prepare` may change its command.
pub(crate) fn start(
    part: &RankOptions,
    secret: &JobSecret,
    prepare: impl FnOnce(&mut Command),
) -> io::Result<(KillOnDrop, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    secret.tell(&mut command);
    prepare(&mut command);
    let child = command
        .args(part.arguments())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // Standard output is the launcher's report, so libraries print to standard error.
        .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
        .spawn()?;
    Ok((KillOnDrop(child), ours))
}

/// Receives messages until all ranks have finished, or one has failed and the others had time to report their errors.
fn listen(
    ranks: &mut BTreeMap<u32, Rank>,
    receiver: &mpsc::Receiver<(u32, Heard)>,
    figures: &mut Figures,
    patience: Duration,
) -> Result<()> {
    let progress = Progress::start();
    let mut failed_at: Option<Instant> = None;
    let mut furthest = Stage::Start;
    while ranks.values().any(|rank| !rank.gone) {
        if failed_at.is_some_and(|at| at.elapsed() > GRACE) {
            break;
        }
        match receiver.recv_timeout(Duration::from_millis(200)) {
            Ok((number, heard)) => {
                let Some(rank) = ranks.get_mut(&number) else { continue };
                rank.heard = Instant::now();
                match heard {
                    Heard::Message(Message::Stage(stage)) => rank.stage = stage,
                    Heard::Message(Message::Progress { done, total }) => {
                        progress.show(format!("rank {number}: {}, {done} of {total}", rank.stage.describe()));
                    }
                    Heard::Message(Message::Finished) => rank.finished = true,
                    Heard::Message(Message::Failed { error, .. }) => rank.error = Some(error),
                    Heard::Message(message) => figures.hear(number, message),
                    Heard::Broken(error) => rank.error = Some(format!("its report broke off: {error}")),
                    Heard::Gone => {
                        rank.gone = true;
                        if !rank.finished && rank.error.is_none() {
                            rank.error = Some(ended(&mut rank.child, rank.stage));
                        }
                    }
                }
                if rank.error.is_some() {
                    failed_at.get_or_insert_with(Instant::now);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        for rank in ranks.values_mut().filter(|rank| !rank.gone && rank.heard.elapsed() > patience) {
            rank.error.get_or_insert_with(|| {
                format!("silent for {} s while {}", patience.as_secs(), rank.stage.describe())
            });
            failed_at.get_or_insert_with(Instant::now);
        }
        let slowest = ranks.values().map(|rank| rank.stage).min().unwrap_or(Stage::Finish);
        if slowest > furthest {
            furthest = slowest;
            progress.announce(slowest.describe());
        }
    }
    drop(progress);
    verdict(ranks)
}

fn ended(child: &mut Child, stage: Stage) -> String {
    match child.wait() {
        Ok(status) => format!("its process ended with {status} while {}", stage.describe()),
        Err(error) => format!("its process is gone while {}: {error}", stage.describe()),
    }
}

/// Combines the errors of the ranks: each text once, with the ranks that had it.
fn verdict(ranks: &BTreeMap<u32, Rank>) -> Result<()> {
    let mut errors: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (&number, rank) in ranks {
        if let Some(error) = &rank.error {
            errors.entry(error).or_default().push(number);
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let mut errors: Vec<_> = errors.into_iter().collect();
    // The error of most ranks comes first; equal counts are ordered by the lowest rank.
    errors.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
    let lines: Vec<_> = errors
        .into_iter()
        .map(|(error, ranks)| format!("{}: {error}", super::report::ranks(&ranks)))
        .collect();
    Err(anyhow!("{}", lines.join("\n       ")))
}

/// Ends this process when the launcher ends, for any reason.
pub(crate) fn die_with_launcher(launcher: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    if parent == launcher { Ok(()) } else { Err(io::Error::other("the launcher is gone")) }
}
