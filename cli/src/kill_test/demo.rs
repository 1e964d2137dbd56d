//! `lockstep kill-test --demo`: kills a random rank of the demo at a random moment. Measures the time until each
//! other rank has ended with an error, or has finished.
//!
//! The moment lies between the creation of the victim's last group and its end. Before a rank has its groups, only
//! its launcher knows that it exists.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use process_group::store::{Deadline, TcpStore};
use serde::Serialize;

use super::{DECIMALS, DUMP_FOLDER, LIMIT, Options, Times, times_of};
use crate::child::KillOnDrop;
use crate::demo::backend::{self, Plan};
use crate::demo::launcher;
use crate::demo::protocol::{self, Message, Stage};
use crate::demo::{Backend, RankOptions};
use crate::exit::UsageError;
use crate::job_secret::JobSecret;
use crate::json;
use crate::percentiles::table;

/// Time limit of a rank's wait for the others in one step. Survivors must take much less.
const DEADLINE: Duration = Duration::from_secs(60);

/// Heartbeat interval of the groups, in ms. The time that survivors take depends on it.
const HEARTBEAT: u64 = 1000;

#[derive(Serialize)]
struct Report {
    backend: &'static str,
    ranks: u32,
    rounds: u32,
    seed: u64,
    within_ms: u64,
    /// From the kill to the error or the end of each other rank, by the stage in which the victim was killed.
    ended: Vec<Times>,
    /// Ranks that took longer than allowed.
    late: Vec<String>,
}

/// A random sequence (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }

    /// Returns a number from 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    if let Some(ranks) = options.ranks.filter(|ranks| !ranks.is_multiple_of(2)) {
        return Err(UsageError(format!("--ranks {ranks}: expected an even number with --demo")).into());
    }
    let Plan { backend, ranks } = backend::plan(options.backend, options.ranks)?;
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = options.seed.unwrap_or_else(clock);
    eprintln!("seed {seed}");
    let mut random = Random(seed);
    let span = Job::start(backend, ranks, without_dumps)?.span().context("the demo without a kill")?;
    let within = Duration::from_millis(options.within);
    let mut ended: BTreeMap<Stage, Vec<f64>> = BTreeMap::new();
    let mut late = Vec::new();
    let mut round = 0;
    while round < options.rounds {
        let (victim, moment) = (random.below(ranks), span.mul_f64(random.part()));
        let killed = Job::start(backend, ranks, |_| {}).and_then(|job| job.kill(victim, moment));
        let Some(killed) = killed.with_context(|| format!("round {}", round + 1))? else {
            // The victim had finished before.
            continue;
        };
        for end in &killed.ends {
            ended.entry(killed.stage).or_default().push(end.after.as_secs_f64() * 1e3);
            if end.after > within {
                late.push(format!(
                    "round {}: rank {victim} was killed while {}; rank {} ended after {} ms while {}: {}",
                    round + 1,
                    killed.stage.describe(),
                    end.rank,
                    end.after.as_millis(),
                    end.stage.describe(),
                    end.error.as_deref().unwrap_or("finished"),
                ));
            }
        }
        round += 1;
        let worst = killed.ends.iter().map(|end| end.after).max().unwrap_or_default();
        eprintln!(
            "round {round}: rank {victim} killed while {}, worst {} ms",
            killed.stage.describe(),
            worst.as_millis()
        );
    }
    let mut ended: Vec<_> =
        ended.into_iter().map(|(stage, times)| times_of(stage.describe(), times)).collect();
    ended.sort_by(|one, other| other.took.most.total_cmp(&one.took.most));
    let report = Report {
        backend: backend.name(),
        ranks,
        rounds: round,
        seed,
        within_ms: options.within,
        ended,
        late,
    };
    if options.json {
        println!("{}", json::rounded(&report, DECIMALS)?);
    } else {
        let rows = report.ended.iter().map(|Times { place, count, took }| (place.as_str(), *count, took));
        println!("{}", table("killed while", rows));
    }
    ensure!(
        report.late.is_empty(),
        "ranks that ended later than {} ms after the kill: {} (seed {seed}; a busy host delays ranks):\n{}",
        options.within,
        report.late.len(),
        report.late.join("\n")
    );
    Ok(())
}

/// The end of a rank after the kill.
struct End {
    rank: u32,
    after: Duration,
    stage: Stage,
    /// Its error; `None` if it finished.
    error: Option<String>,
}

/// The result of a kill.
struct Killed {
    /// The victim's stage.
    stage: Stage,
    ends: Vec<End>,
}

/// Lets a rank write no dump. The job without a kill ends when rank 0 has finished, so its ranks may lose each other.
fn without_dumps(rank: &mut Command) {
    rank.env_remove(DUMP_FOLDER);
}

/// The ranks of a demo and what they report.
struct Job {
    ranks: Vec<KillOnDrop>,
    stages: Vec<Stage>,
    reports: Receiver<(u32, Instant, Message)>,
    _secret: JobSecret,
    _store: TcpStore,
}

impl Job {
    /// Starts the ranks. `prepare` may change their commands.
    fn start(backend: Backend, size: u32, prepare: fn(&mut Command)) -> Result<Self> {
        let secret = JobSecret::make()?;
        let store = secret.store().host(0, Deadline::after(LIMIT))?;
        let (sender, reports) = mpsc::channel();
        let mut ranks = Vec::new();
        for rank in 0..size {
            let part = RankOptions {
                rank,
                ranks: size,
                backend,
                trace: None,
                store: store.address(),
                deadline: DEADLINE,
                heartbeat: HEARTBEAT,
                launcher: std::process::id(),
            };
            let (child, socket) = launcher::start(&part, &secret, prepare)
                .with_context(|| format!("cannot start rank {rank}"))?;
            ranks.push(child);
            let sender = sender.clone();
            thread::spawn(move || {
                for message in protocol::messages(socket).map_while(std::io::Result::ok) {
                    if sender.send((rank, Instant::now(), message)).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { stages: vec![Stage::Start; ranks.len()], ranks, reports, _secret: secret, _store: store })
    }

    /// Returns the next report before `until`; `None` if there is none.
    fn hear(&mut self, until: Instant) -> Result<Option<(u32, Instant, Message)>> {
        match self.reports.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((rank, at, message)) => {
                if let Message::Stage(stage) = message {
                    self.stages[rank as usize] = stage;
                }
                Ok(Some((rank, at, message)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("all ranks have ended, see their errors above"),
        }
    }

    /// Returns the time at which `rank` has its groups. Reports of other ranks until then are ignored.
    fn ready(&mut self, rank: u32) -> Result<Instant> {
        let limit = Instant::now() + LIMIT;
        loop {
            match self.hear(limit)? {
                Some((of, at, Message::Stage(Stage::Replay))) if of == rank => return Ok(at),
                Some((of, _, Message::Failed { error, .. })) => {
                    bail!("rank {of} failed before the kill: {error}")
                }
                Some(_) => {}
                None => bail!("rank {rank} had no groups within {LIMIT:?}"),
            }
        }
    }

    /// The time of rank 0 from the creation of its groups to its end, if no rank is killed.
    fn span(mut self) -> Result<Duration> {
        let begun = self.ready(0)?;
        loop {
            match self.hear(begun + LIMIT)? {
                Some((0, at, Message::Finished)) => return Ok(at - begun),
                Some((rank, _, Message::Failed { error, .. })) => bail!("rank {rank} failed: {error}"),
                Some(_) => {}
                None => bail!("rank 0 did not finish within {LIMIT:?}"),
            }
        }
    }

    /// Kills `victim`, `moment` after it has its groups. Returns `None` if it has finished by then.
    fn kill(mut self, victim: u32, moment: Duration) -> Result<Option<Killed>> {
        let until = self.ready(victim)? + moment;
        let mut finished = Vec::new();
        while let Some((rank, _, message)) = self.hear(until)? {
            match message {
                Message::Finished if rank == victim => return Ok(None),
                Message::Finished => finished.push(rank),
                Message::Failed { error, .. } => bail!("rank {rank} failed before the kill: {error}"),
                _ => {}
            }
        }
        let stage = self.stages[victim as usize];
        let killed = Instant::now();
        self.ranks[victim as usize].kill()?;
        let mut left: Vec<_> = (0..self.ranks.len() as u32).collect();
        left.retain(|rank| *rank != victim && !finished.contains(rank));
        let mut ends = Vec::new();
        while !left.is_empty() {
            let Some((rank, at, message)) = self.hear(killed + LIMIT)? else {
                bail!(
                    "ranks {left:?} had not ended {LIMIT:?} after rank {victim} was killed while {}",
                    stage.describe()
                );
            };
            let error = match message {
                Message::Finished => None,
                Message::Failed { error, .. } => Some(error),
                _ => continue,
            };
            if rank == victim {
                // The victim ended before the kill.
                return Ok(None);
            }
            left.retain(|other| *other != rank);
            let after = at.saturating_duration_since(killed);
            ends.push(End { rank, after, stage: self.stages[rank as usize], error });
        }
        Ok(Some(Killed { stage, ends }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_without_a_kill_leaves_no_dump() {
        let mut rank = Command::new("rank");
        rank.env(DUMP_FOLDER, "dumps");
        without_dumps(&mut rank);
        assert_eq!(rank.get_envs().collect::<Vec<_>>(), [(DUMP_FOLDER.as_ref(), None)]);
    }

    #[test]
    fn a_seed_gives_one_sequence_within_its_bounds() {
        let sequence = |seed| {
            let mut random = Random(seed);
            (0..100).map(|_| (random.below(8), random.part())).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
        assert!(sequence(7).iter().all(|(rank, part)| *rank < 8 && (0.0..1.0).contains(part)));
        assert_eq!((0..8).filter(|rank| sequence(7).iter().any(|(found, _)| found == rank)).count(), 8);
    }
}
