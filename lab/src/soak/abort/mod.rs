//! `cargo xtask soak abort`: aborts communicators with work in flight, and while a thread is inside each call that
//! waits for other ranks. Every abort, with the call that it ends, must be over within a second, and must leave no
//! resources.
//!
//! The ranks are threads of one process, each with its device. The last one is absent: it creates every communicator
//! but makes no further call on it, so the others wait for ever, until they are aborted.
//!
//! Resources that libraries keep once, for reuse, are no leak, but are reported. A case begins with rounds that are
//! aborted at moments from the first to the last, so that the libraries allocate these resources; the growth during
//! these rounds counts as kept. Any later growth is an error.
//!
//! - [`case`]: the state of a rank when it is aborted.
//! - [`round`]: the ranks of a round, and the work of each.
//! - [`ids`]: unique ids that another process creates.
//! - [`alone`]: resources that NCCL alone leaves; more than that is an error.

mod alone;
mod case;
mod ids;
mod round;

use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use cuda_driver::Context;
use indicatif::{ProgressBar, ProgressStyle};
use process_group::comm::{Nccl, wait_for_dropped};
use process_group::store::Deadline;
use serde::Serialize;

use super::footprint::{Footprint, Growth};
use lockstep_cli::backend::{self, Backend};
use lockstep_cli::percentiles::{Percentiles, table};
use xtask::{sanitize, shell};

use case::Case;
use ids::IdMaker;
pub(super) use ids::{IdOptions, make_ids};
use round::{FAR, Round};

/// Bytes of a device that do not count as a leak: drivers keep some memory for reuse.
const SLACK: u64 = 64 << 20;

/// Time for ended threads and resources to disappear: normally, and after growth was found, which is an error
/// already.
const PATIENCE: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(200)];

/// Rounds at the start of a case, before growth counts.
const FIRST: u32 = 6;

/// Interval of progress lines, when no progress bar is visible.
const PACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(super) struct Options {
    /// Rounds of every case
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Ranks, a device each; by default 2 of real GPUs, and 3 of the embedded device
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: Option<u32>,
    /// The devices that the ranks use
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Time limit of an abort and of the call that it ends, in seconds
    #[arg(long, default_value_t = 1)]
    limit: u64,
    /// Only these cases, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Case>,
    /// Build with AddressSanitizer, and run that build
    #[arg(long)]
    sanitize: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    backend: &'static str,
    ranks: u32,
    nccl: String,
    cases: Vec<Soaked>,
    skipped: Vec<String>,
}

/// Result of a case.
#[derive(Debug, Serialize)]
struct Soaked {
    case: String,
    /// Number of timed aborts, of all ranks together.
    rounds: usize,
    /// Times in ms.
    #[serde(flatten)]
    took: Percentiles,
    /// Growth in the first rounds, which counts as kept.
    kept: Growth,
    /// Total growth in the rounds after them, including device bytes that are too few to be an error.
    left: Growth,
    /// The rounds after which there was growth, and the growth: errors, unless NCCL alone leaves as much.
    grew: Vec<Grew>,
    /// Rounds of the case itself, to which `left` refers.
    times: u32,
    /// Result of rounds with only NCCL's own calls, for a case that left something or was late.
    nccl_alone: Option<Alone>,
}

#[derive(Debug, Serialize)]
struct Alone {
    /// Growth scaled to as many rounds as the case had.
    #[serde(flatten)]
    left: Growth,
    /// The longest total time of a round's aborts, in ms.
    most: f64,
}

#[derive(Debug, Serialize)]
struct Grew {
    round: u32,
    #[serde(flatten)]
    more: Growth,
}

impl Soaked {
    /// Formats the result as one line.
    fn describe(&self) -> String {
        format!("{}: {:.2} ms at most; {}", self.case, self.took.most, self.leavings())
    }

    /// Formats the growth.
    fn leavings(&self) -> String {
        let Self { kept, left, times, .. } = self;
        let describe = |Alone { left, most }: &Alone| {
            format!(" (by NCCL's own calls alone: {left}, and {most:.2} ms at most)")
        };
        let alone = self.nccl_alone.as_ref().map(describe).unwrap_or_default();
        format!("kept once: {kept}; left by {times} rounds: {left}{alone}")
    }

    fn is_late(&self, limit: Duration) -> bool {
        self.took.most > limit.as_secs_f64() * 1e3
    }

    /// Returns the fault of the case, if there is one.
    fn wrong(&self, limit: Duration) -> Option<String> {
        let late = self
            .is_late(limit)
            .then(|| format!("took {:.0} ms, {} s is the limit", self.took.most, limit.as_secs()));
        let alone = self.nccl_alone.as_ref().is_some_and(|alone| self.left.is_within(&alone.left, SLACK));
        let ends = self.grew.first().zip(self.grew.last()).filter(|_| !alone);
        let grew = ends.map(|(first, last)| {
            let times = self.grew.len();
            format!(
                "left something {times} times, first {} in round {}, last {} in round {}",
                first.more, first.round, last.more, last.round
            )
        });
        let wrong: Vec<_> = late.into_iter().chain(grew).collect();
        (!wrong.is_empty()).then(|| format!("{}: {}", self.case, wrong.join("; ")))
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    if options.sanitize {
        return run_sanitized(options);
    }
    let plan = backend::plan(options.backend, Some(options.ranks.unwrap_or(2)))?;
    let ranks = options.ranks.unwrap_or(if plan.backend == Backend::Cuda { 2 } else { 3 });
    let limit = Duration::from_secs(options.limit);
    let report = soak(plan.backend, ranks, options.times, &options.only, limit)?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let cases = report.cases.iter().map(|soaked| (soaked.case.as_str(), soaked.rounds, &soaked.took));
        let table = table("aborted", cases);
        println!("NCCL {}, {} ranks, {}\n{table}", report.nccl, report.ranks, report.backend);
        for soaked in report.cases.iter().filter(|it| !it.kept.is_none() || !it.left.is_none()) {
            println!("{}: {}", soaked.case, soaked.leavings());
        }
        report.skipped.iter().for_each(|why| println!("skipped: {why}"));
    }
    let wrong: Vec<_> = report.cases.iter().filter_map(|soaked| soaked.wrong(limit)).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Runs the same command again, in a build with AddressSanitizer.
fn run_sanitized(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut command = shell::cargo(&root, &["run", "--package", "lab", "--", "soak", "abort"]);
    command.args(["--times", &options.times.to_string(), "--limit", &options.limit.to_string()]);
    command.args(["--backend", options.backend.name()]);
    if let Some(ranks) = options.ranks {
        command.args(["--ranks", &ranks.to_string()]);
    }
    if !options.only.is_empty() {
        let only: Vec<_> = options.only.iter().map(|case| case.name()).collect();
        command.args(["--only", &only.join(",")]);
    }
    if options.json {
        command.arg("--json");
    }
    sanitize::set(&root, &mut command);
    shell::run(&mut command)
}

/// Runs every case, or those in `only`, `times` times.
fn soak(backend: Backend, ranks: u32, times: u32, only: &[Case], limit: Duration) -> Result<Report> {
    let dropped = Dropped::listen();
    let devices = backend::open(backend, ranks)?;
    let contexts = (0..ranks)
        .map(|device| Ok(devices.driver.device(device)?.retain_primary()?))
        .collect::<Result<Vec<Context>>>()?;
    let mut cases = Vec::new();
    let mut skipped = Vec::new();
    let wanted: Vec<_> =
        Case::value_variants().iter().filter(|case| only.is_empty() || only.contains(case)).collect();
    let progress = Progress::start(wanted.len() as u64 * u64::from(times))?;
    let mut soak = Soak {
        backend,
        contexts: &contexts,
        nccl: &devices.nccl,
        ids: IdMaker::start(backend)?,
        dropped,
        progress,
    };
    for &case in wanted {
        match case.missing(&devices.nccl) {
            Some(why) => skipped.push(format!("{}: {why}", case.name())),
            None => {
                let soaked = soak.case(case, times, limit)?;
                soak.progress.tell(&soaked.describe());
                cases.push(soaked);
            }
        }
    }
    soak.progress.bar.finish_and_clear();
    drop(soak);
    let nccl = devices.nccl.release().to_string();
    drop(contexts);
    let backend::Devices { driver, nccl: library, world, .. } = devices;
    drop((driver, library));
    if let Some(world) = world {
        world.finish().context("the embedded device's account")?;
    }
    Ok(Report { backend: backend.name(), ranks, nccl, cases, skipped })
}

struct Soak<'a> {
    backend: Backend,
    contexts: &'a [Context],
    nccl: &'a Nccl,
    ids: IdMaker,
    dropped: Dropped,
    progress: Progress,
}

impl Soak<'_> {
    fn case(&mut self, case: Case, times: u32, limit: Duration) -> Result<Soaked> {
        let slack = if self.backend == Backend::Cuda { SLACK } else { 0 };
        let longest = case.longest_pause(self.backend);
        let before = Footprint::settled(self.contexts)?;
        for number in 0..FIRST {
            let pause = longest * number / (FIRST - 1);
            self.round(case, &format!("first round {number}"), pause)?;
        }
        let begin = Footprint::settled(self.contexts)?;
        let mut mark = begin.clone();
        let (mut taken, mut grew) = (Vec::new(), Vec::new());
        for number in 1..=times {
            let pause = case.moment(self.backend, number);
            taken.extend(self.round(case, &format!("round {number}"), pause)?);
            let more = mark.beyond(self.contexts, slack, PATIENCE[usize::from(!grew.is_empty())])?;
            if !more.is_none() {
                self.progress.tell(&format!("{}, round {number}: left behind: {more}", case.name()));
                mark = mark.with(&more);
                grew.push(Grew { round: number, more });
            }
        }
        let ms = taken.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        let left = begin.growth(&Footprint::settled(self.contexts)?, 0);
        let mut soaked = Soaked {
            case: case.name(),
            rounds: taken.len(),
            took: Percentiles::of(ms),
            kept: before.growth(&begin, 0),
            left,
            grew,
            times,
            nccl_alone: None,
        };
        let asked = soaked.is_late(limit) || !soaked.grew.is_empty();
        if self.backend == Backend::Cuda && asked && alone::knows(case) {
            soaked.nccl_alone = Some(self.alone(case, times)?);
        }
        Ok(soaked)
    }

    /// Measures rounds of NCCL's own calls, after some rounds for resources that it keeps. Returns their growth,
    /// scaled to `times` rounds, and the longest time of a round's aborts, in ms.
    fn alone(&mut self, case: Case, times: u32) -> Result<Alone> {
        let rounds = alone::rounds(case, times);
        let mut most = Duration::ZERO;
        let mut begin = Footprint::settled(self.contexts)?;
        for number in 0..FIRST + rounds {
            if number == FIRST {
                begin = Footprint::settled(self.contexts)?;
            }
            self.progress.next(&format!("{}, NCCL alone, round {number}", case.name()));
            let id = if case == Case::Init { self.ids.next()? } else { self.nccl.unique_id()? };
            let pause = alone::pause(case, number);
            most = most.max(alone::round(case, self.contexts, self.nccl.api(), &id, pause)?);
        }
        let left = begin.growth(&Footprint::settled(self.contexts)?, 0);
        // Growth that happens only now and then cannot be scaled down to fewer rounds.
        Ok(Alone { left: left.of_rounds(rounds, times.max(rounds)), most: most.as_secs_f64() * 1e3 })
    }

    /// Runs a round and returns the time of each abort, after all earlier work has ended.
    fn round(&mut self, case: Case, number: &str, pause: Duration) -> Result<Vec<Duration>> {
        let name = format!("{}, {number}", case.name());
        self.progress.next(&name);
        let id = match case {
            // Not all ranks join.
            Case::Init => Some(self.ids.next()?),
            // A group creates its own id.
            Case::Wait | Case::Barrier | Case::Meeting => None,
            _ => Some(self.nccl.unique_id()?),
        };
        let (contexts, nccl) = (self.contexts, self.nccl);
        let took =
            Round { case, name: &name, contexts, nccl, id, pause }.run().with_context(|| name.clone())?;
        ensure!(
            wait_for_dropped(Deadline::after(FAR)),
            "{name}: communicators that were dropped are still there"
        );
        let failures = self.dropped.take();
        ensure!(failures.is_empty(), "{name}: {}", failures.join("; "));
        Ok(took)
    }
}

/// Communicators that were dropped and could not be aborted: failures of the soak.
struct Dropped(Arc<Mutex<Vec<String>>>);

impl Dropped {
    fn listen() -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = told.clone();
        process_group::comm::set_drop_error_hook(move |error| {
            told.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
        });
        Self(heard)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reports progress: with a bar, or with lines if no bar is visible.
struct Progress {
    bar: ProgressBar,
    lines: bool,
    told: Instant,
}

impl Progress {
    fn start(rounds: u64) -> Result<Self> {
        let bar = ProgressBar::new(rounds);
        bar.set_style(ProgressStyle::with_template("{wide_bar} {elapsed} {pos} of {len}: {msg}")?);
        Ok(Self { bar, lines: !io::stderr().is_terminal(), told: Instant::now() })
    }

    /// Begins the next round.
    fn next(&mut self, round: &str) {
        self.bar.set_message(round.to_owned());
        self.bar.inc(1);
        if self.lines && self.told.elapsed() > PACE {
            self.tell(round);
        }
    }

    /// Prints a permanent line.
    fn tell(&mut self, line: &str) {
        self.told = Instant::now();
        if self.lines {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }
}
