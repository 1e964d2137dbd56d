//! The model, run for long; `cargo xtask soak alloc` builds and runs it.

mod common;
mod model;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use model::search::Search;

fn main() -> ExitCode {
    let arguments: Option<Vec<u64>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let search = match arguments.as_deref() {
        Some([operations, seed, threads, only @ ..]) if only.len() < 2 => Search {
            seed: *seed,
            operations: *operations,
            threads: usize::try_from(*threads).unwrap_or(1).max(1),
            only: only.first().copied(),
        },
        _ => {
            eprintln!("OPERATIONS SEED THREADS [SCENARIO] are wanted; use `cargo xtask soak alloc`");
            return ExitCode::FAILURE;
        }
    };
    // What shrinking finds on its way is no news.
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
            // Once more, for where it is.
            failure.minimal.run();
            ExitCode::FAILURE
        }
    }
}

/// Searches, and shows how far it has come.
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
