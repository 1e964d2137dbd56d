//! Many scenarios from one seed.

use std::fmt;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::scenario::{Scenario, scenario};

/// A search for a scenario in which the allocator differs from the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// The seed of the scenarios: the n-th scenario of a seed is always the same.
    pub(crate) seed: u64,
    /// The number of operations to run.
    pub(crate) operations: u64,
    pub(crate) threads: usize,
    /// Run only the scenario with this number.
    pub(crate) only: Option<u64>,
}

/// A scenario that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    /// The scenario's number.
    pub(crate) index: u64,
    /// The scenario after shrinking.
    pub(crate) minimal: Scenario,
    pub(crate) reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, index, minimal, reason } = self;
        writeln!(f, "{reason}\nScenario {index} of seed {seed}, shrunk:\n{minimal:?}")?;
        write!(f, "Again: cargo xtask soak alloc --seed {seed} --only {index}")
    }
}

impl Search {
    /// Runs scenarios until there have been enough operations. Adds their number to `done`, and returns its value.
    pub(crate) fn run(&self, done: &AtomicU64) -> Result<u64, Box<Failure>> {
        if let Some(index) = self.only {
            self.scenario(index, done)?;
            return Ok(done.load(Ordering::Relaxed));
        }
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let found = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) && done.load(Ordering::Relaxed) < self.operations {
                if let Err(failure) = self.scenario(next.fetch_add(1, Ordering::Relaxed), done) {
                    stop.store(true, Ordering::Relaxed);
                    found.lock().unwrap().get_or_insert(failure);
                }
            }
        };
        std::thread::scope(|scope| {
            (0..self.threads).for_each(|_| _ = scope.spawn(work));
        });
        found.into_inner().unwrap().map_or_else(|| Ok(done.load(Ordering::Relaxed)), Err)
    }

    fn scenario(&self, index: u64, done: &AtomicU64) -> Result<(), Box<Failure>> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&index.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        let drawn = scenario().new_tree(&mut runner).expect("every scenario may be drawn").current();
        match attempt(&drawn) {
            Ok(operations) => {
                done.fetch_add(operations, Ordering::Relaxed);
                Ok(())
            }
            Err(reason) => {
                let (minimal, reason) = shrink(drawn, reason);
                Err(Box::new(Failure { seed: self.seed, index, minimal, reason }))
            }
        }
    }
}

/// Runs a scenario. Returns the number of operations, or the message of the panic.
fn attempt(scenario: &Scenario) -> Result<u64, String> {
    catch_unwind(|| scenario.run()).map_err(|panic| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(|| "a panic".into(), |words| (*words).into()),
    })
}

/// Removes steps, many at a time and then fewer, as long as the scenario still fails. Returns the shortened scenario,
/// and the message of its panic.
fn shrink(mut scenario: Scenario, mut reason: String) -> (Scenario, String) {
    let mut taken = scenario.steps.len().div_ceil(2);
    while taken > 0 {
        let before = scenario.steps.len();
        let mut at = 0;
        while at < scenario.steps.len() {
            let mut less = scenario.clone();
            less.steps.drain(at..(at + taken).min(less.steps.len()));
            match attempt(&less) {
                Ok(_) => at += taken,
                Err(words) => (scenario, reason) = (less, words),
            }
        }
        // After steps were removed, indices refer to other objects, so further steps may be removable now.
        if taken > 1 || scenario.steps.len() == before {
            taken /= 2;
        }
    }
    (scenario, reason)
}
