//! `cargo xtask bench store`: our store's server and PyTorch's, asked by the same client, in turns.
//!
//! Each server is a process of its own. A round asks one, then the other, so that a machine that others use too is as
//! slow for both. The servers share one processor, of which the one that is not asked takes nothing, and the clients
//! have the others: who runs where would decide more than what runs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets};
use process_group::store::{Deadline, Store, TcpStore};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::child::Owned;
use crate::torch_env;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often each server has its turn
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Calls of each kind in a round, by each thread
    #[arg(long, default_value_t = 500)]
    calls: usize,
    /// Threads that call at the same time for the throughput
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Clients that join at the same time
    #[arg(long, default_value_t = 200)]
    clients: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Be our server: print the port, serve until the input ends
    #[arg(long, hide = true)]
    serve: bool,
}

/// PyTorch's server, with nothing else to do.
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
struct Figures {
    server: &'static str,
    /// Of one thread's calls, in µs.
    latency_us: BTreeMap<&'static str, Quantiles>,
    /// Calls a second, sets, gets and adds alike, of all threads together; one figure a round.
    calls_per_second: Quantiles,
    /// From the first connection's beginning until the last of the clients has had an answer, in ms; one a round.
    join_ms: Quantiles,
}

#[derive(Serialize)]
struct Quantiles {
    median: f64,
    p99: f64,
    least: f64,
    most: f64,
}

impl Quantiles {
    fn of(samples: &mut [f64]) -> Result<Self> {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| {
            samples.get((samples.len() * part / 100).min(samples.len().saturating_sub(1))).copied()
        };
        let every = at(50).zip(at(99)).zip(at(0)).zip(at(100));
        let (((median, p99), least), most) = every.context("no round was made")?;
        Ok(Self { median, p99, least, most })
    }
}

/// A server in a process of its own, and what was measured of it.
struct Contender {
    name: &'static str,
    _process: Owned,
    address: String,
    latency: BTreeMap<&'static str, Vec<f64>>,
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
        let mut process = Owned(process);
        let mut port = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut port)?;
        }
        let port: u16 = port.trim().parse().with_context(|| format!("{name}: no port, but {port:?}"))?;
        let (latency, throughput, join) = (BTreeMap::new(), Vec::new(), Vec::new());
        Ok(Self { name, _process: process, address: format!("127.0.0.1:{port}"), latency, throughput, join })
    }

    fn round(&mut self, options: &Options) -> Result<()> {
        let store = TcpStore::connect(&self.address, Deadline::after(LIMIT))?;
        for (name, call) in CALLS {
            let samples = self.latency.entry(name).or_default();
            for _ in 0..options.calls {
                let started = Instant::now();
                call(&store)?;
                samples.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        let all = (options.threads * options.calls * CALLS.len()) as f64;
        self.throughput.push(
            all / self
                .at_once(options.threads, |store| {
                    (0..options.calls).try_for_each(|_| CALLS.iter().try_for_each(|(_, call)| call(store)))
                })?
                .calling
                .as_secs_f64(),
        );
        let joined = self.at_once(options.clients, add)?;
        self.join.push(joined.whole.as_secs_f64() * 1e3);
        Ok(())
    }

    /// Connects `threads` clients at once, and lets each `call` when all are connected.
    fn at_once(&self, threads: usize, call: impl Fn(&TcpStore) -> Result<()> + Sync) -> Result<Times> {
        let (ready, connected) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        ready.wait();
                        let store = TcpStore::connect(&self.address, Deadline::after(LIMIT));
                        connected.wait();
                        call(&store?)
                    })
                })
                .collect();
            ready.wait();
            let started = Instant::now();
            connected.wait();
            let calling = Instant::now();
            for client in clients {
                client.join().ok().context("a client panicked")??;
            }
            Ok(Times { whole: started.elapsed(), calling: calling.elapsed() })
        })
    }

    fn figures(&mut self) -> Result<Figures> {
        let latency = self.latency.iter_mut().map(|(name, samples)| Ok((*name, Quantiles::of(samples)?)));
        Ok(Figures {
            server: self.name,
            latency_us: latency.collect::<Result<_>>()?,
            calls_per_second: Quantiles::of(&mut self.throughput)?,
            join_ms: Quantiles::of(&mut self.join)?,
        })
    }
}

struct Times {
    whole: Duration,
    calling: Duration,
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
    ensure!(options.rounds > 0 && options.calls > 0 && options.threads > 0, "nothing to measure");
    let this = std::env::current_exe().context("this program's own path")?;
    let processors = Processors::divide()?;
    let mut contenders =
        vec![Contender::start("ours", Command::new(this).args(["bench", "store", "--serve"]))?];
    match std::env::var_os("PYTHON").map_or_else(torch_env::python, |python| Ok(Some(python.into())))? {
        Some(python) => contenders.push(Contender::start("PyTorch's", &mut torch(&python))?),
        None => eprintln!("PyTorch's server is left out: `cargo xtask torch-env` fetches it"),
    }
    processors.to_clients()?;
    for _ in 0..options.rounds {
        contenders.iter_mut().try_for_each(|contender| contender.round(options))?;
    }
    let figures = contenders.iter_mut().map(Contender::figures).collect::<Result<Vec<_>>>()?;
    if options.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&figures)?)?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "median (p99)",
        "set, µs",
        "get, µs",
        "add, µs",
        "calls/s",
        "join, ms",
    ]);
    for figures in &figures {
        let of = |quantiles: &Quantiles, digits| {
            format!("{:.digits$} ({:.digits$})", quantiles.median, quantiles.p99)
        };
        let latency = ["set", "get", "add"]
            .map(|name| figures.latency_us.get(name).map_or_else(String::new, |it| of(it, 1)));
        let [set, get, add] = latency;
        let (all, join) = (of(&figures.calls_per_second, 0), of(&figures.join_ms, 1));
        table.add_row([figures.server.to_owned(), set, get, add, all, join]);
    }
    writeln!(std::io::stdout(), "{table}")?;
    Ok(())
}

/// The processors that this process may run on.
struct Processors {
    clients: Option<CpuSet>,
}

impl Processors {
    /// Goes to the one that is the servers', for them to begin there.
    fn divide() -> Result<Self> {
        let allowed = sched_getaffinity(None).context("asking for this process's processors")?;
        let all: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let (Some((last, others)), 2..) = (all.split_last(), all.len()) else {
            eprintln!("one processor for servers and clients: they wait for each other");
            return Ok(Self { clients: None });
        };
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            cpus.iter().for_each(|cpu| set.set(*cpu));
            set
        };
        sched_setaffinity(None, &set(&[*last])).context("going to the servers' processor")?;
        Ok(Self { clients: Some(set(others)) })
    }

    /// Goes to the others; threads that begin later do too.
    fn to_clients(&self) -> Result<()> {
        self.clients.as_ref().map_or(Ok(()), |clients| {
            sched_setaffinity(None, clients).context("going to the clients' processors")
        })
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
