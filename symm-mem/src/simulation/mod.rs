//! Whole programs of several ranks under seeded schedules, and what must hold of them whatever goes wrong.
//!
//! A seed draws ranks, overlapping groups, a program (allocations, commits alone and together, plain registration, agreed
//! lengths, graphs, retirements, rendezvous, exchanges and their transfers, groups that come late or are made anew), one trouble, and the order of everything. The pools,
//! seats and machines are those of life; the device, the store and the library are models here, in one thread and with a
//! clock of their own, so a seed gives the same run again.
//!
//! | file | subject |
//! |---|---|
//! | `scenario`, `trouble` | what a seed draws, and what goes wrong |
//! | `world` | the scheduler and the store |
//! | `acts`, `meetings`, `ends` | what ranks do by themselves and with others, and how that ends |
//! | `plans` | one-sided exchange |
//! | `registration` | windows and plain registration |
//! | `rank`, `work` | a rank, and the meeting that it is in |
//! | `device`, `library` | memory, and windows |
//! | `oracle`, `waits` | what must hold |
//! | `versions` | a rank of another release |
//! | `random` | the numbers |
//!
//! Not for: the driver's and NCCL's own behaviour, which the embedded device has.

mod acts;
mod device;
mod ends;
mod library;
mod meetings;
mod oracle;
mod plans;
mod random;
mod rank;
mod registration;
mod scenario;
#[cfg(test)]
mod tests;
mod trouble;
mod versions;
mod waits;
mod work;
mod world;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

#[cfg(test)]
pub(crate) use self::random::Random;
use self::world::World;

/// What seeds are bounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many ranks; `None`: as many as the seed draws, from 2 to 6.
    pub ranks: Option<u32>,
    /// At most so many phases of the program.
    pub phases: u64,
    /// At most so many groups.
    pub groups: usize,
    /// At most so many requests to the pool in a phase.
    pub requests: u64,
}

impl Default for Limits {
    /// What the seeds draw.
    fn default() -> Self {
        Self { ranks: None, phases: u64::MAX, groups: usize::MAX, requests: u64::MAX }
    }
}

/// What does not hold, and of which ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(String);

impl Violation {
    fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What came of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How many events happened.
    pub steps: u64,
    /// The states that were visited, each as a hash.
    pub states: HashSet<u64>,
    /// A hash of the order of events.
    pub record: u64,
    /// How often which result came of a meeting, under which trouble.
    pub tally: BTreeMap<(String, &'static str), u64>,
    /// What did not hold.
    pub violation: Option<Violation>,
    /// What happened, if that was asked for.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, limits: &Limits, trace: bool) -> Run {
    let mut run = Run {
        steps: 0,
        states: HashSet::new(),
        record: 0,
        tally: BTreeMap::new(),
        violation: None,
        trace: Vec::new(),
    };
    let mut world = match World::new(seed, limits, trace) {
        Ok(world) => world,
        Err(violation) => return Run { violation: Some(violation), ..run },
    };
    let begin = format!(
        "seed {seed}: {} ranks, {:?} on rank {}, groups {:?}, release {}, messages of up to {} us",
        world.ranks.len(),
        world.scenario.trouble,
        world.scenario.culprit,
        world.scenario.groups,
        world.scenario.release,
        world.scenario.slowest,
    );
    // A panic of what is tried out is a violation like others.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.run()?;
        world.judge()?;
        world.tear_down()
    }));
    let ran = ran.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of no text");
        Err(Violation(format!("a panic: {said}")))
    });
    let trouble = world.scenario.trouble.name();
    for ended in &world.ended {
        *run.tally.entry((trouble.clone(), ended.said.name())).or_default() += 1;
    }
    run.violation = ran.err().map(|Violation(what)| Violation(format!("{begin}: {what}")));
    run.trace = world.trace.take().unwrap_or_default();
    run.trace.insert(0, begin);
    (run.steps, run.record) = (world.steps, world.record);
    run.states = std::mem::take(&mut world.states);
    // What a violation leaves may not be dropped in any order: it is the process's.
    if run.violation.is_some() {
        std::mem::forget(world);
    }
    run
}

/// Smaller limits under which something of this seed does not hold either, for who reads its trace.
#[must_use]
pub fn shrink(seed: u64, limits: &Limits) -> Limits {
    let mut least = *limits;
    let mut attempt = |smaller: Limits| {
        if run(seed, &smaller, false).violation.is_some() {
            least = smaller;
        }
        least
    };
    let mut at = *limits;
    for phases in (1..=3).rev() {
        at = attempt(Limits { phases, ..at });
    }
    for groups in (1..=4).rev() {
        at = attempt(Limits { groups, ..at });
    }
    for requests in [12, 6, 3, 1, 0] {
        at = attempt(Limits { requests, ..at });
    }
    at
}

/// What came of many seeds; the same for any number of threads.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many seeds ran.
    pub seeds: u64,
    /// How many events happened.
    pub steps: u64,
    /// The states that were visited, each as a hash.
    pub states: HashSet<u64>,
    /// How often which result came of a meeting, under which trouble.
    pub tally: BTreeMap<(String, &'static str), u64>,
    /// The seeds of which something did not hold, with what.
    pub violations: BTreeMap<u64, Violation>,
}

/// Runs all seeds, on so many threads. `done` is told how many have run, now and then.
pub fn explore(seeds: Range<u64>, limits: &Limits, threads: usize, done: impl Fn(u64) + Sync) -> Summary {
    let summary = Mutex::new(Summary::default());
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut mine = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let run = run(seed, limits, false);
            mine.seeds += 1;
            mine.steps += run.steps;
            mine.states.extend(run.states);
            run.tally.into_iter().for_each(|(what, count)| *mine.tally.entry(what).or_default() += count);
            mine.violations.extend(run.violation.map(|violation| (seed, violation)));
            if seed.is_multiple_of(64) {
                done(seed - seeds.start);
            }
        }
        let mut all = summary.lock().unwrap_or_else(PoisonError::into_inner);
        all.seeds += mine.seeds;
        all.steps += mine.steps;
        all.states.extend(mine.states);
        mine.tally.into_iter().for_each(|(what, count)| *all.tally.entry(what).or_default() += count);
        all.violations.extend(mine.violations);
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}
