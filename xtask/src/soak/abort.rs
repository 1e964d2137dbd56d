//! `cargo xtask soak abort`: communicators are aborted with work in flight, and while a thread is inside each call that
//! waits for other ranks. Every abort, with the call that it ends, is to be over within a second, and nothing left.
//!
//! The ranks are threads of one process, each with its device. The last one is absent: it makes every communicator and
//! joins nothing that is done with it, so the others wait for ever, until they are aborted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use cuda_driver::memory::DeviceMemory;
use cuda_driver::vmm::{Access, HandleTypes, Mapping, PhysicalMemory, Reservation};
use cuda_driver::{Context, Stream, StreamFlags};
use nccl_sys::Feature;
use process_group::ProcessGroup;
use process_group::comm::{
    AbortHandle, CommError, Communicator, Config, DataType, Group, Nccl, ReduceOp, ShrinkMode, UniqueId,
    WindowFacts, WindowRequest, wait_for_dropped,
};
use process_group::group::Buffer;
use process_group::store::{Deadline, HashStore};
use serde::Serialize;

use super::footprint::Footprint;
use crate::child::Owned;
use crate::demo::{Backend, backend};
use crate::percentiles::{Percentiles, table};
use crate::shell::{self, explain};

/// Longer than anything takes that does not hang.
const FAR: Duration = Duration::from_secs(60);

/// Communicators that are aborted together, with work in flight.
const TOGETHER: usize = 8;

/// Bytes of a device that are not taken for a leak: drivers keep some for what comes.
const SLACK: u64 = 64 << 20;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Rounds of every case
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Ranks, a device each; by default 2 of real GPUs, and 3 of the embedded device
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: Option<u32>,
    /// Real GPUs where there are enough, or the embedded device
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// Seconds that an abort may take, with the call that it ends
    #[arg(long, default_value_t = 1)]
    limit: u64,
    /// Only this case
    #[arg(long, value_enum)]
    only: Option<Case>,
    /// Build it with AddressSanitizer, and run that
    #[arg(long)]
    sanitize: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a rank is in when it is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Case {
    /// In no call, with work on the device of eight communicators
    Flight,
    /// Making a communicator; a deadline ends the wait, and the rest is aborted in the background
    Init,
    /// Splitting
    Split,
    /// Shrinking
    Shrink,
    /// Registering a window
    Window,
    /// Destroying, which waits for work in flight
    Destroy,
    /// Enqueueing a message, whose first one connects the two ranks
    Message,
    /// Ending a group of messages
    GroupEnd,
    /// Enqueueing, while another thread is inside a call
    Queue,
    /// Waiting for work
    Wait,
    /// At a barrier of the hosts
    Barrier,
    /// At the meeting of a group's split
    Meeting,
}

/// Times in ms.
#[derive(Debug, Serialize)]
struct Times {
    case: String,
    rounds: usize,
    #[serde(flatten)]
    took: Percentiles,
}

#[derive(Serialize)]
struct Report {
    backend: &'static str,
    ranks: u32,
    nccl: String,
    cases: Vec<Times>,
    skipped: Vec<String>,
}

pub(super) fn run(options: &Options) -> Result<()> {
    if options.sanitize {
        return run_sanitized(options);
    }
    let plan = backend::plan(options.backend, Some(options.ranks.unwrap_or(2)))?;
    let ranks = options.ranks.unwrap_or(if plan.backend == Backend::Cuda { 2 } else { 3 });
    let report = soak(plan.backend, ranks, options.times, options.only)?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let cases = report.cases.iter().map(|Times { case, rounds, took }| (case.as_str(), *rounds, took));
        let table = table("aborted", cases);
        println!("NCCL {}, {} ranks, {}\n{table}", report.nccl, report.ranks, report.backend);
        report.skipped.iter().for_each(|why| println!("skipped: {why}"));
    }
    let late: Vec<_> =
        report.cases.iter().filter(|times| times.took.most > options.limit as f64 * 1e3).collect();
    ensure!(late.is_empty(), "took longer than {} s: {late:?}", options.limit);
    Ok(())
}

/// Runs the same command again, from a build with the sanitizer.
fn run_sanitized(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut command = shell::cargo(&root, &["run", "--package", "xtask", "--", "soak", "abort"]);
    command.args(["--times", &options.times.to_string(), "--limit", &options.limit.to_string()]);
    command.args(["--backend", options.backend.name()]);
    if let Some(ranks) = options.ranks {
        command.args(["--ranks", &ranks.to_string()]);
    }
    if let Some(only) = options.only {
        command.args(["--only", &name_of(only)]);
    }
    if options.json {
        command.arg("--json");
    }
    crate::sanitize::set(&root, &mut command);
    shell::run(&mut command)
}

fn name_of(case: Case) -> String {
    case.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Runs every case, or one, so many times; an error as soon as something is left behind.
fn soak(backend: Backend, ranks: u32, times: u32, only: Option<Case>) -> Result<Report> {
    // A communicator that was dropped and could not be aborted is the soak's failure.
    let dropped: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = dropped.clone();
    process_group::comm::set_drop_error_hook(move |error| {
        told.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(error.to_string());
    });
    let mut ids = IdMaker::start(backend)?;
    let devices = backend::open(backend, ranks)?;
    let contexts = (0..ranks)
        .map(|device| Ok(devices.driver.device(device)?.retain_primary()?))
        .collect::<Result<Vec<Context>>>()?;
    let mut cases = Vec::new();
    let mut skipped = Vec::new();
    let wanted = Case::value_variants().iter().filter(|case| only.is_none_or(|only| **case == only));
    for &case in wanted {
        if let Some(why) = cannot(case, &devices.nccl) {
            skipped.push(format!("{}: {why}", name_of(case)));
            continue;
        }
        // The first round finds out what libraries keep for what comes.
        let mut footprint = None;
        let mut taken = Vec::new();
        for number in 0..=times {
            let round = Round {
                case,
                number,
                contexts: &contexts,
                nccl: &devices.nccl,
                backend,
                store: Arc::default(),
                id: match case {
                    Case::Init => Some(ids.next()?),
                    // A group makes its own.
                    Case::Wait | Case::Barrier | Case::Meeting => None,
                    _ => Some(devices.nccl.unique_id()?),
                },
                over: &Barrier::new(ranks as usize),
            };
            let took = round.run().with_context(|| format!("{}, round {number}", name_of(case)))?;
            ensure!(
                wait_for_dropped(Deadline::after(FAR)),
                "communicators that were dropped are still there"
            );
            let failures = std::mem::take(&mut *dropped.lock().map_err(|_| anyhow!("a hook panicked"))?);
            ensure!(failures.is_empty(), "{}, round {number}: {}", name_of(case), failures.join("; "));
            let Some(before) = &footprint else {
                footprint = Some(Footprint::settled(&contexts)?);
                continue;
            };
            let slack = if backend == Backend::Cuda { SLACK } else { 0 };
            if let Some(left) = Footprint::beyond(before, &contexts, slack)? {
                bail!("{}, round {number}: left behind: {left}", name_of(case));
            }
            taken.extend(took);
        }
        cases.push(times_of(name_of(case), taken));
    }
    let nccl = devices.nccl.release().to_string();
    drop(contexts);
    let backend::Devices { driver, nccl: library, world, .. } = devices;
    drop((driver, library));
    if let Some(world) = world {
        world.finish().context("the embedded device's account")?;
    }
    Ok(Report { backend: backend.name(), ranks, nccl, cases, skipped })
}

/// Why a case cannot be run with this release.
fn cannot(case: Case, nccl: &Nccl) -> Option<String> {
    let needed = match case {
        Case::Split => Feature::SPLIT,
        Case::Shrink => Feature::SHRINK,
        Case::Window => Feature::WINDOWS,
        _ => return None,
    };
    nccl.api().require(needed).err().map(|missing| missing.to_string())
}

fn times_of(case: String, times: Vec<Duration>) -> Times {
    let ms = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    Times { case, rounds: times.len(), took: Percentiles::of(ms) }
}

/// One round: all ranks, from nothing to nothing.
struct Round<'a> {
    case: Case,
    number: u32,
    contexts: &'a [Context],
    nccl: &'a Nccl,
    backend: Backend,
    store: Arc<HashStore>,
    id: Option<UniqueId>,
    /// Where the ranks meet when those that are aborted first are over.
    over: &'a Barrier,
}

impl Round<'_> {
    /// How long each rank's abort took, with the call that it ended.
    fn run(&self) -> Result<Vec<Duration>> {
        thread::scope(|scope| {
            let ranks: Vec<_> =
                (0..self.contexts.len()).map(|rank| scope.spawn(move || self.rank(rank))).collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().unwrap_or_else(|_| Err(anyhow!("a rank panicked"))))
                .collect::<Result<Vec<_>>>()
                .map(|times| times.into_iter().flatten().collect())
        })
    }

    fn rank(&self, rank: usize) -> Result<Option<Duration>> {
        let seat = Seat { round: self, rank, context: &self.contexts[rank], over: Over(self.over) };
        let absent = rank + 1 == self.contexts.len();
        match self.case {
            Case::Flight => seat.flight(absent),
            Case::Init => seat.init(absent),
            Case::Wait | Case::Barrier | Case::Meeting => seat.group(absent),
            _ => seat.communicator(absent),
        }
        .with_context(|| format!("rank {rank}"))
    }
}

/// Meets the other ranks once, whatever happens: nobody is to wait for one that failed.
struct Over<'a>(&'a Barrier);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// One rank of a round.
struct Seat<'a> {
    round: &'a Round<'a>,
    rank: usize,
    context: &'a Context,
    over: Over<'a>,
}

impl Seat<'_> {
    fn far() -> Deadline {
        Deadline::after(FAR)
    }

    fn config(&self) -> Config {
        let mut config = Config::new().name("soak");
        config.window_facts =
            WindowFacts { one_host: Some(true), peer_access: Some(true), ..WindowFacts::default() };
        config
    }

    fn join(&self, deadline: Deadline) -> Result<Communicator> {
        let id = self.round.id.context("a case of groups")?;
        self.join_with(&id, deadline)
    }

    fn join_with(&self, id: &UniqueId, deadline: Deadline) -> Result<Communicator> {
        let Round { nccl, contexts, .. } = self.round;
        let size = contexts.len();
        Ok(Communicator::init(nccl, self.context, id, self.rank, size, &self.config(), deadline)?)
    }

    /// Gives a call the time to block; another one each round, so that aborts come before it, too.
    fn settle(&self) {
        let longest = if self.round.backend == Backend::Cuda { 50_000 } else { 2_000 };
        thread::sleep(Duration::from_micros(u64::from(self.round.number) * 7919 % longest));
    }

    fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.context, StreamFlags::NON_BLOCKING)?)
    }

    /// Waits for the others, and aborts what is left; then nothing of the rank is on the device.
    fn end(
        self,
        handles: &[AbortHandle],
        streams: &[&Stream],
        took: Option<Duration>,
    ) -> Result<Option<Duration>> {
        drop(self.over);
        let began = Instant::now();
        aborted(handles)?;
        let took = took.unwrap_or_else(|| began.elapsed());
        // What was given up may be an error of the stream, and is off the device all the same.
        streams.iter().for_each(|stream| drop(stream.synchronize()));
        Ok(Some(took))
    }

    /// Eight communicators with work that waits for the absent rank.
    fn flight(self, absent: bool) -> Result<Option<Duration>> {
        let first = self.join(Self::far())?;
        let mut communicators = vec![first];
        for number in 1..TOGETHER {
            let id = self.share(&format!("id/{number}"))?;
            communicators.push(self.join_with(&id, Self::far())?);
        }
        let handles: Vec<_> = communicators.iter().map(Communicator::abort_handle).collect();
        let streams = communicators.iter().map(|_| self.stream()).collect::<Result<Vec<_>>>()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        let mut took = None;
        if !absent {
            for (communicator, stream) in communicators.iter().zip(&streams) {
                all_reduce(communicator, &memory, stream)?;
            }
            self.settle();
            let began = Instant::now();
            aborted(&handles)?;
            took = Some(began.elapsed());
        }
        let streams: Vec<_> = streams.iter().collect();
        self.end(&handles, &streams, took)
    }

    /// A unique id from rank 0.
    fn share(&self, key: &str) -> Result<UniqueId> {
        use process_group::store::Store as _;
        if self.rank == 0 {
            self.round.store.set(key, self.round.nccl.unique_id()?.as_bytes())?;
        }
        Ok(UniqueId::try_from(&self.round.store.get(key, Self::far())?[..])?)
    }

    /// The absent rank does not come.
    fn init(self, absent: bool) -> Result<Option<Duration>> {
        if absent {
            return Ok(None);
        }
        let longest = if self.round.backend == Backend::Cuda { 200_000 } else { 3_000 };
        let patience = Duration::from_micros(u64::from(self.round.number) * 7919 % longest);
        let began = Instant::now();
        let made = self.join(Deadline::after(patience));
        ensure!(made.is_err(), "a communicator was made without one of its ranks");
        ensure!(wait_for_dropped(Self::far()), "it is not aborted");
        Ok(Some(began.elapsed().saturating_sub(patience)))
    }

    /// The cases of a communicator and a call on it.
    fn communicator(self, absent: bool) -> Result<Option<Duration>> {
        let communicator = self.join(Self::far())?;
        let handles = [communicator.abort_handle()];
        let stream = self.stream()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        let segment = if self.round.case == Case::Window { Some(segment(self.context)?) } else { None };
        if absent {
            return self.end(&handles, &[&stream], None);
        }
        let peer = self.round.contexts.len() - 1;
        let split = |communicator: &Communicator| {
            communicator.split(Some(0), 0, &self.config(), Self::far()).map(drop)
        };
        let message = |communicator: &Communicator| {
            // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
            unsafe { communicator.send(memory.ptr(), 1024, DataType::F32, peer, &stream) }
        };
        let case = self.round.case;
        let took = match case {
            Case::Split => self.under(&handles, true, || split(&communicator)),
            Case::Shrink => {
                // The last two are to go, of whom one asks for it.
                let survivors: Vec<_> = (0..=peer).filter(|rank| *rank != self.rank).collect();
                let excluded = &survivors[..1];
                self.under(&handles, self.round.contexts.len() > 2, || {
                    let (mode, config) = (ShrinkMode::Orderly, self.config());
                    communicator.shrink(excluded, mode, &config, Self::far()).map(drop)
                })
            }
            Case::Window => {
                let segment = segment.as_ref().context("a window needs memory")?;
                let request = WindowRequest::symmetric(segment.ptr(), segment.bytes());
                self.under(&handles, true, || {
                    // SAFETY: the segment is mapped until the communicator is gone.
                    let made = unsafe { communicator.register_windows(&[request], Self::far()) };
                    made.map(drop)
                })
            }
            Case::Destroy => {
                all_reduce(&communicator, &memory, &stream)?;
                self.under(&handles, false, || communicator.destroy(Self::far()))
            }
            Case::Message => self.under(&handles, false, || message(&communicator)),
            Case::GroupEnd => self.under(&handles, false, || {
                let group = Group::begin(self.round.nccl)?;
                message(&communicator)?;
                group.finish()
            }),
            _ => thread::scope(|scope| {
                let inside = scope.spawn(|| split(&communicator));
                let took = self.under(&handles, false, || all_reduce(&communicator, &memory, &stream));
                ensure!(matches!(inside.join(), Ok(Err(_))), "a split without one of its ranks");
                took
            }),
        }?;
        self.end(&handles, &[&stream], Some(took))
    }

    /// The cases of a process group.
    fn group(self, absent: bool) -> Result<Option<Duration>> {
        let Round { nccl, contexts, store, case, .. } = self.round;
        let builder = ProcessGroup::builder().store(store.clone()).rank(self.rank).world_size(contexts.len());
        let group = builder.context(self.context).nccl(nccl).timeout(FAR).build()?;
        let handles = [group.abort_handle()];
        let stream = self.stream()?;
        let memory = DeviceMemory::new(self.context, 4096)?;
        if absent {
            return self.end(&handles, &[&stream], None);
        }
        let took = match case {
            Case::Wait => {
                let buffer = Buffer::new(memory.ptr(), 1024, DataType::F32);
                // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
                let work = unsafe { group.all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }?;
                self.under(&handles, true, || work.wait_timeout(Self::far()))
            }
            Case::Barrier => self.under(&handles, true, || group.barrier(Self::far())),
            _ => self.under(&handles, true, || {
                let request = process_group::group::Request::Color { color: Some(0), key: 0 };
                group.split_with("half", &request, self.config(), Self::far()).map(drop)
            }),
        }?;
        self.end(&handles, &[&stream], Some(took))
    }

    /// Aborts while another thread is in `call`, which is to fail if it `fails`: until both are over.
    fn under<E: std::error::Error + Send + Sync + 'static>(
        &self,
        handles: &[AbortHandle],
        fails: bool,
        call: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Duration> {
        thread::scope(|scope| {
            let inside = scope.spawn(call);
            self.settle();
            let began = Instant::now();
            aborted(handles)?;
            let ended = inside.join().map_err(|_| anyhow!("the call panicked"))?;
            let took = began.elapsed();
            ensure!(!fails || ended.is_err(), "the call succeeded without one of its ranks");
            Ok(took)
        })
    }
}

/// Aborts communicators; one that was leaked is a failure.
fn aborted(handles: &[AbortHandle]) -> Result<()> {
    for result in AbortHandle::abort_together(handles, Deadline::after(FAR)) {
        result.map_err(|error| anyhow!("the abort: {}", explain(&error.into())))?;
    }
    Ok(())
}

fn all_reduce(communicator: &Communicator, memory: &DeviceMemory, stream: &Stream) -> Result<(), CommError> {
    let at = memory.ptr();
    // SAFETY: the memory holds as many elements, and outlives the work, whose end is forced.
    unsafe { communicator.all_reduce(at, at, 1024, DataType::F32, ReduceOp::Sum, stream) }
}

/// Memory that can become a window.
fn segment(context: &Context) -> Result<Mapping> {
    const BYTES: usize = 2 << 20;
    let physical = PhysicalMemory::create(context, BYTES, HandleTypes::POSIX_FD)?;
    let reservation = Reservation::new(context.driver(), BYTES, BYTES)?;
    let mapping = reservation.map(0, &physical, 0, BYTES)?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
    Ok(mapping)
}

/// Makes unique ids in another process. NCCL listens for the ranks of an id in the process that made it, until all
/// have come; of an id that not all use, the thread and the sockets stay for as long as that process.
struct IdMaker {
    _process: Owned,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl IdMaker {
    fn start(backend: Backend) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["soak", "ids", "--backend", backend.name()]);
        let mut process = Owned(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let ask = process.stdin.take().context("no pipe")?;
        let answers = BufReader::new(process.stdout.take().context("no pipe")?);
        Ok(Self { _process: process, ask, answers })
    }

    fn next(&mut self) -> Result<UniqueId> {
        writeln!(self.ask)?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let bytes: Vec<u8> = serde_json::from_str(&line).context("the process that makes unique ids")?;
        Ok(UniqueId::try_from(&bytes[..])?)
    }
}

#[derive(clap::Args)]
pub(super) struct IdOptions {
    #[arg(long, value_enum)]
    backend: Backend,
}

/// Makes an id for each line of the standard input.
pub(super) fn make_ids(options: &IdOptions) -> Result<()> {
    let devices = backend::open(options.backend, 1)?;
    for line in std::io::stdin().lines() {
        line?;
        crate::child::answer(&devices.nccl.unique_id()?.as_bytes().to_vec())?;
    }
    Ok(())
}
