//! What is done to each contender. `xtask/peers/alloc_bench.cpp` does the same to PyTorch's allocator, under the same
//! names.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::contenders::{Contender, Ours};
use super::{Result, STREAMS};

/// Runs of which the median is told.
const RUNS: usize = 11;

/// The cases that every allocator has.
pub(crate) fn all<C: Contender>(who: &str, make: impl Fn() -> C) -> Result<()> {
    let contender = make();
    for bytes in [512, 4096, 64 << 10, 1 << 20, 16 << 20] {
        pair(who, &contender, bytes)?;
    }
    for live in [256, 10_000] {
        // Of 10,000 blocks each is shorter: all of them have to fit a device.
        let largest = if live > 1000 { 1 << 22 } else { 1 << 25 };
        let name = format!("churn, {live} live, 512 B to {} MiB", largest >> 20);
        tell(&name, who, churn(&make(), live, largest)?);
    }
    for threads in [1, 2, 4, STREAMS] {
        for (which, own) in [("its own stream", true), ("one stream", false)] {
            tell(&format!("{threads} threads, {which}"), who, parallel(&contender, threads, own)?);
        }
    }
    Ok(())
}

/// What only our allocator can be asked, of the others in this program.
pub(crate) fn of_ours(who: &str, make: impl Fn() -> Ours) -> Result<()> {
    let Ours { allocator, streams } = make();
    let time = median(1000, || {
        for _ in 0..1000 {
            allocator.allocate(1 << 20, streams[0])?.record_stream(streams[1])?;
        }
        Ok(())
    })?;
    tell("pair, used by another stream", who, time);
    let time = median(10, || {
        for _ in 0..10 {
            drop(allocator.allocate(64 << 20, streams[0])?);
            allocator.empty_cache()?;
        }
        Ok(())
    })?;
    tell("miss and release, 64 MiB", who, time);
    Ok(())
}

/// An allocation that is freed at once.
pub(crate) fn pair<C: Contender>(who: &str, contender: &C, bytes: u64) -> Result<()> {
    let pairs = |count| {
        for _ in 0..count {
            black_box(contender.allocate(black_box(bytes), 0)?);
        }
        Ok(())
    };
    pairs(1000)?;
    tell(&format!("hit pair, {bytes} B"), who, median(20_000, || pairs(20_000))?);
    Ok(())
}

/// A free and an allocation an operation, with `live` blocks of 512 bytes to `largest` alive, as many of each power
/// of two.
fn churn<C: Contender>(contender: &C, live: usize, largest: u64) -> Result<f64> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let octaves = (largest as f64).log2() - 9.0;
    let sizes: Vec<u64> =
        (0..4096).map(|_| 2f64.powf(9.0 + octaves * (random() % 1000) as f64 / 1000.0) as u64).collect();
    let mut blocks: Vec<Option<C::Block<'_>>> = (0..live).map(|_| None).collect();
    let mut step = |count: usize| {
        for _ in 0..count {
            let at = random() % live;
            blocks[at] = None;
            blocks[at] = Some(contender.allocate(sizes[random() % sizes.len()], 0)?);
        }
        Ok(())
    };
    step(20_000.max(10 * live))?;
    median(20_000, || step(20_000))
}

/// Pairs of 1 MiB by several threads: ns of wall time for a pair, of all threads together.
fn parallel<C: Contender>(contender: &C, threads: usize, own: bool) -> Result<f64> {
    const PAIRS: usize = 50_000;
    let pairs = |count, stream| {
        (0..count).try_for_each(|_| contender.allocate(1 << 20, stream).map(|block| drop(black_box(block))))
    };
    median(PAIRS * threads, || {
        let barrier = Barrier::new(threads);
        let work = |stream| {
            pairs(100, stream)?;
            barrier.wait();
            pairs(PAIRS, stream)
        };
        std::thread::scope(|scope| {
            let start =
                |thread| scope.spawn(move || work(if own { thread } else { 0 }).map_err(|e| e.to_string()));
            let workers: Vec<_> = (0..threads).map(start).collect();
            let mut results = workers.into_iter().map(|worker| worker.join());
            results.try_for_each(|result| result.unwrap_or_else(|_| Err("a thread panicked".into())))
        })?;
        Ok(())
    })
}

fn tell(case: &str, who: &str, ns: f64) {
    println!("{case}\t{who}\t{ns:.1}");
}

/// The median of several runs of `run`, in ns per operation.
fn median(operations: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_nanos() as f64 / operations as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
