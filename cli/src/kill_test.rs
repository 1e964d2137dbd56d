//! `lockstep kill-test`: kills or stops a rank while the others wait in a collective, wait at a barrier, or make no
//! call. Measures the time until each survivor has an error that names the rank, and checks that the survivors can
//! continue.

mod demo;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_driver::memory::{DeviceMemory, PinnedFlags, PinnedMemory};
use cuda_driver::{Stream, StreamFlags};
use process_group::ProcessGroup;
use process_group::comm::{DataType, ReduceOp, ShrinkMode};
use process_group::group::{Buffer, GroupError, GroupErrorKind, Witnesses};
use process_group::store::{Deadline, TcpStore};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::child::{self, End, KillOnDrop};
use crate::demo::{Backend, backend, die_with_launcher};
use crate::exit::{UsageError, explain};
use crate::json;
use crate::percentiles::{Percentiles, table};
use crate::progress::Progress;
use crate::values;

/// Longer than any step takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The hidden command that runs a rank. Its name resembles no other, so that it is not suggested for a mistyped command.
pub(crate) const RANK_COMMAND: &str = "__member";

/// The variable that names the folder for dumps of the ranks.
const DUMP_FOLDER: &str = "PROCESS_GROUP_DUMP_FOLDER";

/// Reported by a rank before it makes its last call.
const READY: &str = "waits";

/// Decimals of the times in JSON, which are in ms.
const DECIMALS: i32 = 1;

/// Time for survivors to enter their call, after all have reported that they are about to.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, one process each: from 2 to 64, and even with `--demo` [default: 4, or the number of GPUs]
    #[arg(long, value_parser = values::whole::<u32>("a number of ranks", 2..=64), allow_negative_numbers = true)]
    ranks: Option<u32>,
    /// Number of jobs, at least 1; each loses one rank
    #[arg(long, default_value_t = 20, value_parser = values::whole::<u32>("a number of rounds", 1..=u32::MAX.into()), allow_negative_numbers = true)]
    rounds: u32,
    /// The devices that the ranks use
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Pinned host memory of the rank that is killed, in GiB; with embedded devices at most the memory that the host has
    /// available
    #[arg(long, default_value_t = 0, value_parser = values::whole::<u64>("a number of GiB", 0..=1 << 16), allow_negative_numbers = true)]
    pinned: u64,
    /// Stop the rank with SIGSTOP instead of killing it
    #[arg(long)]
    stop: bool,
    /// Heartbeat interval of the ranks, in ms from 10 to 60000
    #[arg(long, default_value_t = 1000, value_parser = values::whole::<u64>("a number of ms", 10..=60_000), allow_negative_numbers = true)]
    heartbeat: u64,
    /// Let ranks detect failures through the store alone, as ranks of different hosts do
    #[arg(long)]
    apart: bool,
    /// Kill a random rank of the demo at a random time instead, and fail if another rank ends too late; not with --pinned,
    /// --stop, --heartbeat or --apart
    #[arg(long, conflicts_with_all = ["pinned", "stop", "heartbeat", "apart"])]
    demo: bool,
    /// Seed for the ranks and times of `--demo` [default: the clock]
    #[arg(long, requires = "demo", value_parser = values::whole::<u64>("a number", 0..=u64::MAX), allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Time limit of `--demo` for the end of every other rank, in ms
    #[arg(long, default_value_t = 1000, requires = "demo", value_parser = values::whole::<u64>("a number of ms", 1..=u64::MAX), allow_negative_numbers = true)]
    within: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One rank's part, as the command tells it.
#[derive(clap::Args)]
pub(crate) struct RankOptions {
    #[arg(long)]
    rank: usize,
    #[arg(long)]
    ranks: u32,
    #[arg(long)]
    round: usize,
    #[arg(long, value_enum)]
    backend: Backend,
    #[arg(long)]
    store: String,
    #[arg(long)]
    pinned: u64,
    #[arg(long)]
    heartbeat: u64,
    #[arg(long)]
    apart: bool,
    #[arg(long)]
    launcher: u32,
}

/// State of a survivor when the other rank is lost.
const PLACES: [&str; 3] = ["in a collective", "at a barrier", "in no call"];

/// Times in ms.
#[derive(Debug, Serialize)]
struct Times {
    place: String,
    count: usize,
    #[serde(flatten)]
    took: Percentiles,
}

#[derive(Serialize)]
struct Report {
    backend: &'static str,
    ranks: u32,
    rounds: u32,
    pinned_gib: u64,
    stopped: bool,
    heartbeat_ms: u64,
    /// True if survivors learned of the loss only from the store.
    apart: bool,
    /// From the signal to the error that names the rank.
    known: Vec<Times>,
    /// From the request to shrink the old group to a correct sum in the new one.
    shrunk: Times,
    /// From the request to create a new group to a correct sum in it.
    rebuilt: Times,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    check_dump_folder()?;
    if options.demo {
        return demo::run(options);
    }
    let (plan, without_gpus) = backend::choose(options.backend, options.ranks)?;
    if plan.backend == Backend::Sim {
        check_pinned(options.pinned, available_memory())?;
    }
    if let Some(why) = without_gpus {
        eprintln!("{why}");
    }
    let mut known: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let (mut shrunk, mut rebuilt) = (Vec::new(), Vec::new());
    let progress = Progress::start();
    for round in 0..options.rounds as usize {
        progress.show(format!("round {} of {}", round + 1, options.rounds));
        let number = round + 1;
        let job = Job::start(options, plan.backend, plan.ranks, round)?;
        for found in job.lose(options.stop).with_context(|| format!("round {number}"))? {
            known.entry(found.place).or_default().push(found.known);
            shrunk.push(found.shrunk);
            rebuilt.push(found.rebuilt);
        }
    }
    drop(progress);
    let known = known.into_iter().map(|(place, times)| times_of(PLACES[place], times)).collect();
    let report = Report {
        backend: plan.backend.name(),
        ranks: plan.ranks,
        rounds: options.rounds,
        pinned_gib: options.pinned,
        stopped: options.stop,
        heartbeat_ms: options.heartbeat,
        apart: options.apart,
        known,
        shrunk: times_of("a right sum after a shrink", shrunk),
        rebuilt: times_of("a right sum of a new group", rebuilt),
    };
    if options.json {
        println!("{}", json::rounded(&report, DECIMALS)?);
        return Ok(());
    }
    let all = report.known.iter().chain([&report.shrunk, &report.rebuilt]);
    let table = table("survivor", all.map(|Times { place, count, took }| (place.as_str(), *count, took)));
    println!("{table}");
    Ok(())
}

/// Checks that the ranks can write their dumps, if the environment names a folder for them.
fn check_dump_folder() -> Result<()> {
    let folder = std::env::var_os(DUMP_FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let Some(folder) = folder else { return Ok(()) };
    let written = fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
    written.map(drop).with_context(|| {
        format!("{DUMP_FOLDER}: no dump can be written to {}; give another folder", folder.display())
    })
}

/// Checks that the host has the pinned memory, in GiB, of an embedded device; `available` is in bytes.
fn check_pinned(pinned: u64, available: u64) -> Result<()> {
    let most = available >> 30;
    if pinned > most {
        let problem = format!(
            "--pinned {pinned}: expected at most {most} with embedded devices, the GiB of memory that this host has available"
        );
        return Err(UsageError(problem).into());
    }
    Ok(())
}

/// Returns the bytes of memory that this process can use: those available on the host, within the limit of its control
/// group. The largest number if the system does not tell.
fn available_memory() -> u64 {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limit.iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.chain(host.map(|kib| kib << 10)).min().unwrap_or(u64::MAX)
}

fn times_of(place: &str, times: Vec<f64>) -> Times {
    Times { place: place.into(), count: times.len(), took: Percentiles::of(times) }
}

/// ns of the clock that all processes of a host share.
fn now() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// A rank's process, and its output.
struct Rank {
    number: u32,
    child: KillOnDrop,
    lines: Receiver<String>,
}

impl Rank {
    /// Returns the rest of its next line, which must begin with `word`.
    fn hear(&mut self, word: &str) -> Result<String> {
        let rank = self.number;
        let line = match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("rank {rank} did not report {word:?} within {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let step = if word == READY { "was ready".into() } else { format!("reported {word:?}") };
                match End::from(self.child.wait()?) {
                    End::Exit(_) => bail!("rank {rank} ended before it {step}, see its error above"),
                    end => bail!("rank {rank} failed before it {step}: {end}"),
                }
            }
        };
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!("expected {word:?} of rank {rank}, found {line:?}"),
        }
    }
}

/// Result of a survivor; times in ms.
struct Found {
    /// Index in [`PLACES`].
    place: usize,
    /// Until it had the error.
    known: f64,
    /// Time to shrink the group and get a correct sum.
    shrunk: f64,
    /// Time to create a new group and get a correct sum.
    rebuilt: f64,
}

/// A job whose last rank will be lost.
struct Job {
    ranks: Vec<Rank>,
    _store: TcpStore,
}

impl Job {
    fn start(options: &Options, backend: Backend, size: u32, round: usize) -> Result<Self> {
        let store = TcpStore::host(0)?;
        let start = |rank: u32| -> Result<Rank> {
            let mut command = Command::new(std::env::current_exe()?);
            let pinned = if rank + 1 == size { options.pinned } else { 0 };
            let numbers = [
                ("--rank", u64::from(rank)),
                ("--ranks", size.into()),
                ("--round", round as u64),
                ("--pinned", pinned),
                ("--heartbeat", options.heartbeat),
                ("--launcher", std::process::id().into()),
            ];
            command.arg(RANK_COMMAND);
            for (name, number) in numbers {
                command.args([name.to_owned(), number.to_string()]);
            }
            command.args(["--backend", backend.name(), "--store", &store.address()]);
            command.args(options.apart.then_some("--apart"));
            let mut child = KillOnDrop(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
            let lines = child::lines(child.stdout.take());
            Ok(Rank { number: rank, child, lines })
        };
        let ranks = (0..size).map(start).collect::<Result<_>>()?;
        Ok(Self { ranks, _store: store })
    }

    /// Kills or stops the last rank. Returns the result of each of the others.
    fn lose(mut self, stop: bool) -> Result<Vec<Found>> {
        let mut victim = self.ranks.pop().context("a job has ranks")?;
        for rank in self.ranks.iter_mut().chain([&mut victim]) {
            rank.hear(READY)?;
        }
        thread::sleep(SETTLE);
        let signal = if stop { Signal::STOP } else { Signal::KILL };
        let lost = now();
        kill_process(Pid::from_child(&victim.child), signal)?;
        let mut found = Vec::new();
        for rank in &mut self.ranks {
            let line = rank.hear("lost")?;
            let mut words = line.split_whitespace();
            let place: usize = words.next().context("no place")?.parse()?;
            let known: i128 = words.next().context("no time")?.parse()?;
            let mut took = |what: &str| -> Result<f64> { Ok(rank.hear(what)?.parse::<u64>()? as f64 / 1e6) };
            let (shrunk, rebuilt) = (took("shrunk")?, took("rebuilt")?);
            found.push(Found { place, known: (known - lost) as f64 / 1e6, shrunk, rebuilt });
        }
        for rank in &mut self.ranks {
            let status = rank.child.wait()?;
            ensure!(status.success(), "rank {} ended with {status}, see its error above", rank.number);
        }
        Ok(found)
    }
}

/// Prints a line for the command that started this rank.
fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

pub(crate) fn run_rank(options: &RankOptions) -> Result<()> {
    die_with_launcher(options.launcher)?;
    let (rank, victim) = (options.rank, options.ranks as usize - 1);
    let deadline = || Deadline::after(LIMIT);
    let devices = backend::open(options.backend, options.ranks)?;
    let context = devices.driver.device(u32::try_from(rank)?)?.retain_primary()?;
    let store = std::sync::Arc::new(TcpStore::connect(&options.store, deadline())?);
    let builder = || {
        let builder = ProcessGroup::builder().store(store.clone()).rank(rank).context(&context);
        let builder = builder.nccl(&devices.nccl).timeout(LIMIT);
        let witnesses = if options.apart { Witnesses::Store } else { Witnesses::Kernel };
        builder.heartbeat(Duration::from_millis(options.heartbeat)).witnesses(witnesses)
    };
    let world = builder().world_size(options.ranks as usize).build()?;
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    let memory = DeviceMemory::new(&context, 4 * 1024)?;
    let buffer = Buffer::new(memory.ptr(), 1024, DataType::F32);
    let all_reduce = |group: &ProcessGroup, stream: &Stream| -> Result<(), GroupError> {
        memory.copy_from_host(0, &[1f32; 1024])?;
        // SAFETY: the memory holds 1024 elements and outlives the work, whose end is waited for or forced.
        let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, stream) }?;
        work.wait_until(deadline())
    };
    all_reduce(&world, &stream)?;
    world.barrier(deadline())?;
    if rank == victim {
        let pinned = usize::try_from(options.pinned << 30)?;
        let _held =
            if pinned > 0 { Some(PinnedMemory::new(&context, pinned, PinnedFlags::empty())?) } else { None };
        say(READY)?;
        loop {
            thread::sleep(LIMIT);
        }
    }
    let place = (rank + options.round) % PLACES.len();
    say(READY)?;
    let ended = match place {
        0 => all_reduce(&world, &stream),
        1 => world.barrier(deadline()),
        _ => loop {
            thread::sleep(Duration::from_micros(100));
            if let Err(error) = world.check() {
                break Err(error);
            }
        },
    };
    let known = now();
    match ended {
        Err(error) if matches!(error.kind(), GroupErrorKind::Lost { rank, .. } if *rank == victim) => {}
        Err(error) => bail!("expected that rank {victim} is lost: {}", explain(&error.into())),
        Ok(()) => bail!("expected that rank {victim} is lost"),
    }
    say(&format!("lost {place} {known}"))?;
    let begun = Instant::now();
    world.abort_handle().abort(deadline())?;
    let right_sum = |rest: &ProcessGroup| -> Result<()> {
        // Aborted work may still run on the old stream for a moment, so each group gets a stream of its own.
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
        all_reduce(rest, &stream).with_context(|| format!("{:.1?} after the loss", begun.elapsed()))?;
        let mut sums = [0f32; 1024];
        memory.copy_to_host(0, &mut sums)?;
        ensure!(sums == [victim as f32; 1024], "expected sums of {victim}, found {}", sums[0]);
        Ok(())
    };
    let shrinking = Instant::now();
    let rest = world.shrink(&[victim], ShrinkMode::AfterFailure)?;
    right_sum(&rest)?;
    say(&format!("shrunk {}", shrinking.elapsed().as_nanos()))?;
    rest.destroy(deadline())?;
    let rebuilding = Instant::now();
    let rest = builder().epoch(1).world_size(victim).build()?;
    right_sum(&rest)?;
    say(&format!("rebuilt {}", rebuilding.elapsed().as_nanos()))?;
    rest.destroy(deadline())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_a_signal_ended_is_told_with_the_signal() {
        for (program, expected) in [
            ("kill -KILL $$", "rank 3 failed before it was ready: ended by signal 9 (SIGKILL"),
            ("exit 1", "rank 3 ended before it was ready, see its error above"),
        ] {
            let mut command = Command::new("sh");
            let mut child = KillOnDrop(command.args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap());
            let lines = child::lines(child.stdout.take());
            let error = Rank { number: 3, child, lines }.hear(READY).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn pinned_memory_of_embedded_devices_is_what_the_host_has() {
        assert!(check_pinned(3, (4 << 30) - 1).is_ok());
        let error = check_pinned(4, (4 << 30) - 1).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("expected at most 3"), "{error}");
        assert!((1..u64::MAX).contains(&available_memory()));
    }

    #[test]
    fn percentiles_are_of_what_there_is() {
        let Times { count, took, .. } = times_of("x", (1..=200).rev().map(f64::from).collect());
        assert_eq!((count, took.p50, took.p99, took.most), (200, 100.0, 198.0, 200.0));
        let one = times_of("x", vec![3.0]).took;
        assert_eq!((one.p50, one.p99, one.most), (3.0, 3.0, 3.0));
    }
}
