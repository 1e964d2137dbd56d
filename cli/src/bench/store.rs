//! `lockstep bench store`: our store's server and PyTorch's, called by the same client, in turns.
//!
//! - `attack`: our server under attack, and the time that another client waits for its answers meanwhile
//!
//! Each server is a process of its own. A turn takes a few ms and is followed at once by the other server's, over
//! connections that exist already; the order of the servers alternates. A busy or slow machine therefore affects both
//! alike. Clients that join are measured at the end: PyTorch's server may take seconds for them, and must close their
//! connections afterwards. The servers share one processor, of which the idle server uses nothing, and the clients
//! have the others. Without fixed processors, their placement would affect the figures more than the servers do.

mod attack;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use process_group::store::{Deadline, Store, TcpStore};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::figures::json;
use super::no_limits;
use super::peer::python_with_torch;
use crate::child::KillOnDrop;
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds; in each, every server is measured once for each kind of call and for throughput
    #[arg(long, default_value_t = 200, value_parser = values::whole::<usize>("a number of rounds", 1..=u32::MAX.into()), allow_negative_numbers = true)]
    rounds: usize,
    /// Calls of each kind in a round, for each thread
    #[arg(long, default_value_t = 100, value_parser = values::whole::<usize>("a number of calls", 1..=u32::MAX.into()), allow_negative_numbers = true)]
    calls: usize,
    /// Number of threads that call at the same time to measure throughput
    #[arg(long, default_value_t = 4, value_parser = values::whole::<usize>("a number of threads", 1..=1024), allow_negative_numbers = true)]
    threads: usize,
    /// Number of clients that join at the same time
    #[arg(long, default_value_t = 200, value_parser = values::whole::<usize>("a number of clients", 1..=65535), allow_negative_numbers = true)]
    clients: usize,
    /// Number of times that they join each server
    #[arg(long, default_value_t = 5, value_parser = values::whole::<usize>("a number of joins", 0..=u32::MAX.into()), allow_negative_numbers = true)]
    joins: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Attack our server instead, and measure how long another client waits during each attack
    #[arg(long, conflicts_with_all = ["rounds", "calls", "threads", "clients", "joins"])]
    attack: bool,
    #[command(flatten)]
    attacks: attack::Options,
    /// Run our server: print its port, and serve until standard input ends
    #[arg(long, hide = true)]
    serve: bool,
}

impl Options {
    /// Returns true for a server or an attacker, which another process measures.
    pub(super) fn is_part(&self) -> bool {
        self.serve || self.attacks.address.is_some()
    }
}

/// PyTorch's server alone.
const TORCH: &str = "
import sys
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, is_master=True, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
";

/// Long enough for a server that imports PyTorch, and for any call.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Serialize)]
struct Report {
    servers: Vec<Figures>,
    /// Ours divided by PyTorch's, if PyTorch's server was measured.
    ratios: Option<Ratios>,
}

#[derive(Serialize)]
struct Figures {
    server: &'static str,
    /// Latency of one thread's calls, in µs.
    latency_us: BTreeMap<&'static str, Quantiles>,
    /// Calls per second of all threads together, over sets, gets and adds; one sample per round.
    calls_per_second: Quantiles,
    /// From the start of the first connection until the last client has an answer, in ms; one sample per join.
    join_ms: Option<Quantiles>,
}

impl Report {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "median (bad end)",
            "set, µs (p99)",
            "get, µs (p99)",
            "add, µs (p99)",
            "calls/s (p1)",
            "join, ms (p99)",
        ]);
        for figures in &self.servers {
            let time = |times: Option<&Quantiles>| {
                times.map_or_else(String::new, |it| format!("{:.1} ({:.1})", it.median, it.p99))
            };
            let [set, get, add] = CALLS.map(|(name, _)| time(figures.latency_us.get(name)));
            let Quantiles { median, p1, .. } = figures.calls_per_second;
            let (all, join) = (format!("{median:.0} ({p1:.0})"), time(figures.join_ms.as_ref()));
            table.add_row([figures.server.to_owned(), set, get, add, all, join]);
        }
        if let Some(Ratios { latency, calls_per_second }) = &self.ratios {
            let ratio = |ratio: &f64| format!("{ratio:.3}");
            let [set, get, add] = CALLS.map(|(name, _)| latency.get(name).map_or_else(String::new, ratio));
            table.add_row(["ours / PyTorch's".to_owned(), set, get, add, ratio(calls_per_second)]);
        }
        table
    }
}

/// Medians of the rounds' ratios.
#[derive(Serialize)]
struct Ratios {
    /// Ratios of the median latencies of each turn.
    latency: BTreeMap<&'static str, f64>,
    calls_per_second: f64,
}

#[derive(Serialize)]
struct Quantiles {
    median: f64,
    p1: f64,
    p99: f64,
    least: f64,
    most: f64,
}

impl Quantiles {
    fn of(samples: impl IntoIterator<Item = f64>) -> Result<Self> {
        let mut samples: Vec<_> = samples.into_iter().collect();
        samples.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| {
            samples.get((samples.len() * part / 100).min(samples.len().saturating_sub(1))).copied()
        };
        let every = at(50).zip(at(1)).zip(at(99)).zip(at(0)).zip(at(100));
        let ((((median, p1), p99), least), most) = every.context("no round was made")?;
        Ok(Self { median, p1, p99, least, most })
    }
}

/// A server in a process of its own, and its samples.
struct Contender {
    name: &'static str,
    _process: KillOnDrop,
    address: String,
    /// Connected clients, one for each thread.
    clients: Vec<TcpStore>,
    /// The samples of each turn.
    latency: BTreeMap<&'static str, Vec<Vec<f64>>>,
    throughput: Vec<f64>,
    join: Vec<f64>,
}

impl Contender {
    fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut process = KillOnDrop(process);
        let mut port = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut port)?;
        }
        let port: u16 = port.trim().parse().with_context(|| format!("{name}: no port, but {port:?}"))?;
        let address = format!("127.0.0.1:{port}");
        let (clients, latency, throughput, join) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Ok(Self { name, _process: process, address, clients, latency, throughput, join })
    }

    fn connect(&self) -> Result<TcpStore> {
        Ok(TcpStore::connect(&self.address, Deadline::after(LIMIT))?)
    }

    /// Times one thread's calls of a kind.
    fn call(&mut self, name: &'static str, call: Call, calls: usize) -> Result<()> {
        let store = self.clients.first().context("a client")?;
        let mut samples = Vec::with_capacity(calls);
        for _ in 0..calls {
            let started = Instant::now();
            call(store)?;
            samples.push(started.elapsed().as_secs_f64() * 1e6);
        }
        self.latency.entry(name).or_default().push(samples);
        Ok(())
    }

    /// Times all threads' calls of all kinds.
    fn call_at_once(&mut self, calls: usize) -> Result<()> {
        let all = (self.clients.len() * calls * CALLS.len()) as f64;
        let (took, _) = at_once(self.clients.iter().collect(), |store| {
            (0..calls).try_for_each(|_| CALLS.iter().try_for_each(|(_, call)| call(store)))
        })?;
        self.throughput.push(all / took.as_secs_f64());
        Ok(())
    }

    /// Times new clients that connect at the same time, until each has an answer. They stay connected until all have.
    fn join(&mut self, clients: usize) -> Result<()> {
        let (took, _joined) = at_once(vec![(); clients], |()| {
            let store = self.connect()?;
            add(&store)?;
            Ok(store)
        })?;
        self.join.push(took.as_secs_f64() * 1e3);
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let quantiles = |turns: &[Vec<f64>]| Quantiles::of(turns.iter().flatten().copied());
        let latency = self.latency.iter().map(|(name, turns)| Ok((*name, quantiles(turns)?)));
        Ok(Figures {
            server: self.name,
            latency_us: latency.collect::<Result<_>>()?,
            calls_per_second: Quantiles::of(self.throughput.iter().copied())?,
            join_ms: match self.join[..] {
                [] => None,
                _ => Some(Quantiles::of(self.join.iter().copied())?),
            },
        })
    }

    /// Computes the ratios round by round, so that changes between rounds affect neither figure.
    fn ratios(&self, to: &Self) -> Result<Ratios> {
        let median =
            |samples: &Vec<f64>| Ok::<_, anyhow::Error>(Quantiles::of(samples.iter().copied())?.median);
        let mut latency = BTreeMap::new();
        for (name, turns) in &self.latency {
            let theirs = to.latency.get(name).context("the same calls")?;
            let ratios = turns.iter().zip(theirs).map(|(ours, theirs)| Ok(median(ours)? / median(theirs)?));
            latency.insert(*name, median(&ratios.collect::<Result<_>>()?)?);
        }
        let throughput = self.throughput.iter().zip(&to.throughput).map(|(ours, theirs)| ours / theirs);
        Ok(Ratios { latency, calls_per_second: median(&throughput.collect())? })
    }
}

/// Calls `work` on one thread for each element of `what`, all at the same time. Returns the time from the start of
/// the first to the end of the last, and the results.
fn at_once<T: Send, U: Send>(
    what: Vec<T>,
    work: impl Fn(T) -> Result<U> + Sync,
) -> Result<(Duration, Vec<U>)> {
    let (ready, work) = (&Barrier::new(what.len()), &work);
    thread::scope(|scope| {
        let start = |each| {
            scope.spawn(move || {
                ready.wait();
                let began = Instant::now();
                work(each).map(|done| (began, Instant::now(), done))
            })
        };
        let threads: Vec<_> = what.into_iter().map(start).collect();
        let (mut began, mut ended, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for thread in threads {
            let (start, end, done) = thread.join().ok().context("a client panicked")??;
            began.push(start);
            ended.push(end);
            all.push(done);
        }
        let (first, last) = began.into_iter().min().zip(ended.into_iter().max()).context("no client")?;
        Ok((last - first, all))
    })
}

type Call = fn(&TcpStore) -> Result<()>;

const CALLS: [(&str, Call); 3] = [
    ("set", |store| store.set("key", b"a value of 32 bytes, as ids are.").map_err(Into::into)),
    ("get", |store| store.get("key", Deadline::after(LIMIT)).map(drop).map_err(Into::into)),
    ("add", add),
];

fn add(store: &TcpStore) -> Result<()> {
    store.add("count", 1)?;
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.serve {
        return serve();
    }
    if let Some(address) = &options.attacks.address {
        return attack::perform(&options.attacks, address);
    }
    if options.attack {
        return attack::run(&options.attacks, options.json);
    }
    if options.attacks.check {
        return Err(no_limits("store"));
    }
    let this = std::env::current_exe().context("this program's own path")?;
    let processors = Processors::divide()?;
    processors.to_servers()?;
    let mut contenders =
        vec![Contender::start("ours", Command::new(this).args(["bench", "store", "--serve"]))?];
    match python_with_torch("from torch.distributed import TCPStore") {
        Ok((python, _)) => contenders.push(Contender::start("PyTorch's", &mut torch(&python))?),
        Err(why) => eprintln!("PyTorch: skipped: {why:#}"),
    }
    processors.to_clients()?;
    measure(&mut contenders, options)?;
    let report = Report {
        servers: contenders.iter().map(Contender::figures).collect::<Result<_>>()?,
        ratios: match &contenders[..] {
            [ours, theirs] => Some(ours.ratios(theirs)?),
            _ => None,
        },
    };
    if options.json {
        writeln!(std::io::stdout(), "{}", json(&report)?)?;
    } else {
        writeln!(std::io::stdout(), "{}", report.table())?;
    }
    Ok(())
}

fn measure(contenders: &mut [Contender], options: &Options) -> Result<()> {
    for contender in &mut *contenders {
        contender.clients = (0..options.threads).map(|_| contender.connect()).collect::<Result<_>>()?;
    }
    let progress = Progress::start();
    for round in 0..options.rounds {
        progress.show(format!("round {} of {}", round + 1, options.rounds));
        let mut turns: Vec<_> = contenders.iter_mut().collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (name, call) in CALLS {
            turns.iter_mut().try_for_each(|contender| contender.call(name, call, options.calls))?;
        }
        turns.iter_mut().try_for_each(|contender| contender.call_at_once(options.calls))?;
    }
    for join in 0..options.joins {
        progress.show(format!("join {} of {}", join + 1, options.joins));
        contenders.iter_mut().try_for_each(|contender| contender.join(options.clients))?;
    }
    Ok(())
}

/// The processors that this process may use: one for servers, the others for clients. `None` if there is only one.
struct Processors(Option<[CpuSet; 2]>);

impl Processors {
    fn divide() -> Result<Self> {
        let allowed = sched_getaffinity(None).context("asking for this process's processors")?;
        let all: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let (Some((last, others)), 2..) = (all.split_last(), all.len()) else {
            eprintln!("one processor for servers and clients: they wait for each other");
            return Ok(Self(None));
        };
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            cpus.iter().for_each(|cpu| set.set(*cpu));
            set
        };
        Ok(Self(Some([set(&[*last]), set(others)])))
    }

    /// Moves this thread to the servers' processor; processes that it starts inherit that.
    fn to_servers(&self) -> Result<()> {
        self.go(0)
    }

    /// Moves this thread to the clients' processors; threads and processes started later inherit that.
    fn to_clients(&self) -> Result<()> {
        self.go(1)
    }

    fn go(&self, which: usize) -> Result<()> {
        let Some(sets) = &self.0 else { return Ok(()) };
        sched_setaffinity(None, &sets[which]).context("going to other processors")
    }
}

fn torch(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", TORCH]);
    command
}

fn serve() -> Result<()> {
    let store = TcpStore::host(0)?;
    let port = store.address().rsplit(':').next().map(str::to_owned).context("an address has a port")?;
    writeln!(std::io::stdout(), "{port}")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
