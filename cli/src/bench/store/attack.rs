//! Our store's server under attack, and the time that another client waits for its answers meanwhile.
//!
//! Server, attackers and the other client (the probe) are separate processes. The probe calls at fixed times, every
//! 20 milliseconds, and a call's time counts from then: a server that hangs for a second delays 50 calls, not one.
//! The attackers run at low priority, so that the figures show the server's scheduling rather than the processors'.

mod attacks;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser};
use process_group::store::{Deadline, Store, TcpStore};
use serde::Serialize;

use super::{CALLS, Processors, add};
use crate::bench::figures;
use crate::child::KillOnDrop;
use crate::exit::UsageError;
use crate::percentiles::{self, Percentiles};
use crate::values;
use attacks::{ATTACKS, Attack};

#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Only these attacks
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "attack", value_parser = names())]
    only: Vec<String>,
    /// Duration of each attack, in seconds from 0.1 to 3600
    #[arg(long, default_value = "10", requires = "attack", value_parser = values::limit, allow_negative_numbers = true)]
    seconds: Duration,
    /// Fail if the 99th percentile of the other client's waiting time exceeds 50 ms
    #[arg(long)]
    pub(super) check: bool,
    /// The program whose server is attacked, another build of this program
    #[arg(long, value_name = "FILE", requires = "attack")]
    server: Option<PathBuf>,
    /// Perform the attack `only` on the server at this address
    #[arg(long, hide = true)]
    pub(super) address: Option<String>,
}

/// The most that an attack may cost another client, at the 99th percentile.
const LIMIT_MS: f64 = 50.0;

/// Time between two calls of the probe.
const PERIOD: Duration = Duration::from_millis(20);

/// Time limit of a call, and of the start of an attack.
const PATIENCE: Duration = Duration::from_secs(240);

/// Limit on the server's descriptors in attacks by silent connections.
const FEW: &str = "1024";

#[derive(Serialize)]
struct Row {
    attack: &'static str,
    calls: usize,
    /// Waiting times of all calls, in ms.
    wait_ms: Percentiles,
}

/// Parses the names of attacks.
fn names() -> PossibleValuesParser {
    let named = |attack: &'static Attack| PossibleValue::new(attack.name).help(attack.about);
    PossibleValuesParser::new(ATTACKS.iter().map(named))
}

/// Returns true if `file` is a file that this user can execute.
fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

pub(super) fn run(options: &Options, json: bool) -> Result<()> {
    if let Some(server) = options.server.as_ref().filter(|server| !is_program(server)) {
        let text = format!("--server {}: expected an executable file", server.display());
        return Err(UsageError(text).into());
    }
    let chosen =
        |attack: &&Attack| options.only.is_empty() || options.only.iter().any(|it| it == attack.name);
    let processors = Processors::divide()?;
    let mut rows = Vec::new();
    let attacks: Vec<_> = ATTACKS.iter().filter(chosen).collect();
    for (number, attack) in attacks.iter().enumerate() {
        let (number, count, seconds) = (number + 1, attacks.len(), options.seconds.as_secs_f64());
        eprintln!("attack {number} of {count}, {seconds} s: {}: {}", attack.name, attack.about);
        let wait_ms =
            measure(attack, options, &processors).with_context(|| format!("attack {}", attack.name))?;
        rows.push(Row { attack: attack.name, calls: wait_ms.len(), wait_ms: Percentiles::of(wait_ms) });
    }
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{}", figures::json(&rows)?)?;
    } else {
        let rows = rows.iter().map(|row| (row.attack, row.calls, &row.wait_ms));
        writeln!(out, "{}", percentiles::table("attack", rows))?;
    }
    let slow = rows.iter().filter(|row| row.wait_ms.p99 > LIMIT_MS);
    let slow: Vec<_> = slow.map(|row| format!("{} ({:.1} ms)", row.attack, row.wait_ms.p99)).collect();
    ensure!(
        !options.check || slow.is_empty(),
        "one call of the probe in 100 waits for more than {LIMIT_MS} ms (on an idle host none does) under {}",
        slow.join(", ")
    );
    Ok(())
}

/// Measures the waiting time of each call of the probe while the server is under attack, in ms.
fn measure(attack: &Attack, options: &Options, processors: &Processors) -> Result<Vec<f64>> {
    let this = std::env::current_exe().context("this program's own path")?;
    processors.to_servers()?;
    let (_server, address) = serve(options.server.as_ref().unwrap_or(&this), attack)?;
    processors.to_clients()?;
    let store = TcpStore::options().patience(PATIENCE).connect(&address, Deadline::after(PATIENCE))?;
    add(&store)?;
    let mut attackers = Command::new(&this);
    attackers.args(["bench", "store", "--attack", "--only", attack.name, "--address", &address]);
    let mut attackers = KillOnDrop(attackers.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    first_line(&mut attackers).context("the attackers have failed")?;
    let until = Instant::now() + options.seconds;
    let mut due = Instant::now();
    let mut times = Vec::new();
    while due < until {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if attack.probes_by_connecting {
            let options = TcpStore::options().patience(PATIENCE);
            add(&options.connect(&address, Deadline::after(PATIENCE))?)?;
        } else {
            let (_, call) = CALLS[times.len() % CALLS.len()];
            call(&store)?;
        }
        times.push(due.elapsed().as_secs_f64() * 1e3);
        due += PERIOD;
    }
    ensure!(attackers.0.try_wait()?.is_none(), "the attackers have given up");
    ensure!(store.check(&["count"])?, "what the probe has set is gone");
    Ok(times)
}

/// Starts a server; returns it and its address.
fn serve(program: &PathBuf, attack: &Attack) -> Result<(KillOnDrop, String)> {
    let mut command = Command::new("sh");
    let limit = if attack.has_few_descriptors { format!("ulimit -n {FEW} && ") } else { String::new() };
    command.args(["-c", &format!("{limit}exec \"$0\" bench store --serve")]).arg(program);
    let mut server = KillOnDrop(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let port = first_line(&mut server).context("the server has failed")?;
    Ok((server, format!("127.0.0.1:{port}")))
}

fn first_line(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("an output")?).read_line(&mut line)?;
    ensure!(line.ends_with('\n'), "it has ended before it was ready");
    Ok(line.trim().to_owned())
}

/// The attackers' process: attacks the server at `address` until it is killed.
pub(super) fn perform(options: &Options, address: &str) -> Result<()> {
    let [name] = &options.only[..] else { bail!("one attack at a time") };
    let attack = ATTACKS.iter().find(|attack| attack.name == name).context("no such attack")?;
    rustix::process::nice(19).context("leaving the processors to others")?;
    (attack.perform)(address)
}
