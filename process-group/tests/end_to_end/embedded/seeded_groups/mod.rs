//! Process groups with their watchdog, heartbeats and store in a seeded world: all threads of all ranks run in an order
//! that the seed chooses, on a virtual clock. Each seed stands for a program of two to five ranks, one of which may
//! have a fault.

mod oracle;
mod plan;
mod run;
mod store;

use std::{collections::BTreeMap, env};

use rusty_fork::rusty_fork_test;

use self::plan::Plan;

/// Seeds that have found bugs: a member of a split had the end of the parent group, and the others did not know it.
const FOUND: [u64; 2] = [2321, 4907];

/// The seeds of the variable `GROUP_SEEDS` (`A..B`, or their number), or [`FOUND`] and the first 100 times `TEST_EFFORT`.
fn seeds() -> Vec<u64> {
    let number = |text: &str| text.parse::<u64>().expect("GROUP_SEEDS is a number, or A..B");
    match env::var("GROUP_SEEDS") {
        Ok(seeds) => match seeds.split_once("..") {
            Some((from, to)) => (number(from)..number(to)).collect(),
            None => (0..number(&seeds)).collect(),
        },
        Err(_) => {
            let effort = env::var("TEST_EFFORT").map_or(1, |times| times.parse().expect("a whole number"));
            FOUND.into_iter().chain(0..100 * effort).collect()
        }
    }
}

/// Runs a seed twice. Returns the first rule that it breaks.
fn explore(seed: u64) -> Result<run::Run, String> {
    let plan = Plan::new(seed);
    let run = run::run(&plan)?;
    oracle::judge(&plan, &run)?;
    let again = run::run(&plan)?;
    if run.history != again.history {
        let at = run.history.iter().zip(&again.history).take_while(|(one, other)| one == other).count();
        let from = at.saturating_sub(5);
        let part = |run: &run::Run| run.history[from..run.history.len().min(at + 2)].to_vec();
        return Err(format!("two runs differ from step {at}: {:#?}", [part(&run), part(&again)]));
    }
    Ok(run)
}

rusty_fork_test! {
    #[test]
    fn groups_keep_their_promises_on_every_schedule() {
        let (mut failed, mut steps, mut checked, mut kinds) = (Vec::new(), 0, 0, BTreeMap::new());
        let is_told = env::var_os("GROUP_SEEDS").is_some();
        for seed in seeds() {
            if is_told {
                eprint!("\rseed {seed} ");
            }
            match explore(seed) {
                Ok(run) => {
                    for kind in oracle::kinds(&Plan::new(seed), &run) {
                        *kinds.entry(kind).or_insert(0) += 1;
                    }
                    steps += run.history.len();
                    checked += run.reports.iter().map(|report| report.checked).sum::<usize>();
                }
                Err(problem) => {
                    eprintln!("seed {seed}: {problem}\n{:?}", Plan::new(seed));
                    failed.push(seed);
                }
            }
        }
        eprintln!("{steps} steps, {checked} results, failed: {failed:?}, {kinds:#?}");
        assert!(failed.is_empty(), "seeds with violations: {failed:?}");
    }
}
