//! Runs the stress test and the model for a long time; `cargo xtask soak alloc` builds and runs it.

mod common;
mod model;
mod stress;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use model::search::Search;
use stress::Stress;

fn main() -> ExitCode {
    let arguments: Option<Vec<u64>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let (search, seconds) = match arguments.as_deref() {
        Some([operations, seed, threads, seconds, only @ ..]) if only.len() < 2 => {
            let threads = usize::try_from(*threads).unwrap_or(1).max(1);
            let only = only.first().copied();
            (Search { seed: *seed, operations: *operations, threads, only }, *seconds)
        }
        _ => {
            eprintln!("expected OPERATIONS SEED THREADS SECONDS [SCENARIO]; use `cargo xtask soak alloc`");
            return ExitCode::FAILURE;
        }
    };
    if search.only.is_none() {
        stress(search.seed, Duration::from_secs(seconds));
    }
    // Panics during shrinking are not reported.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let done = AtomicU64::new(0);
    let outcome = watch(&search, &done);
    let rate = done.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    std::panic::set_hook(hook);
    match outcome {
        Ok(operations) => {
            println!("{operations} operations, {rate:.0} a second, seed {}: no difference", search.seed);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}\n{rate:.0} operations a second until then");
            // Runs the failing scenario once more, so that the panic shows its location.
            failure.minimal.run();
            ExitCode::FAILURE
        }
    }
}

/// Runs each stress test on one processor and on all of them, a quarter of the time each. A failure panics.
fn stress(seed: u64, length: Duration) {
    for (threads, cores) in [(2, 1), (8, 0)] {
        let stress = Stress { threads, cores, length: length / 4, seed };
        let operations = stress.one_length() + stress.everything();
        println!(
            "{threads} threads on {}: {operations} operations",
            if cores == 1 { "one core" } else { "all cores" }
        );
    }
}

/// Searches, and prints its progress.
fn watch(search: &Search, done: &AtomicU64) -> Result<u64, Box<model::search::Failure>> {
    let bar = ProgressBar::new(search.operations);
    if let Ok(style) =
        ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len} operations, {per_sec}, {eta}")
    {
        bar.set_style(style);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                bar.set_position(done.load(Ordering::Relaxed).min(search.operations));
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let outcome = search.run(done);
        over.store(true, Ordering::Relaxed);
        outcome
    })
    .inspect(|_| bar.finish_and_clear())
    .inspect_err(|_| bar.abandon())
}
