//! The operations measured on each contender. `peers/alloc_bench.cpp` does the same with PyTorch's allocator, under
//! the same names and in the same order.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::contenders::{Contender, Ours, STREAMS};
use crate::bench::programs::support::Result;

/// Runs one round of a case with one contender; returns ns per operation.
pub(crate) type Round<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

#[derive(Clone, Copy)]
pub(crate) enum Case {
    /// An allocation that is freed at once.
    Pair { bytes: u64 },
    /// One free and one allocation per operation, with `live` blocks of 512 bytes to `largest` alive, as many of each
    /// power of two, on a stream of its own.
    Churn { live: usize, largest: u64, stream: usize },
    /// Pairs of 1 MiB by several threads: ns of wall time per pair, over all threads together.
    Parallel { threads: usize, own: bool },
    /// A pair whose block another stream uses too; only our allocator supports it.
    Used,
    /// An allocation of 64 MiB from the source and its return to it; only our allocator supports it.
    Miss,
}

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        let pairs = [512, 4096, 64 << 10, 1 << 20, 16 << 20].map(|bytes| Self::Pair { bytes });
        // Blocks of the case with 10,000 are smaller, because all of them must fit on a device.
        let churns = [(256, 1 << 25, 1), (10_000, 1 << 22, 2)];
        let churns = churns.map(|(live, largest, stream)| Self::Churn { live, largest, stream });
        let threads = [1, 2, 4, STREAMS].into_iter();
        let parallel = threads.flat_map(|threads| [true, false].map(|own| Self::Parallel { threads, own }));
        pairs.into_iter().chain(churns).chain(parallel).chain([Self::Used, Self::Miss]).collect()
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Pair { bytes } => format!("hit pair, {bytes} B"),
            Self::Churn { live, largest, .. } => {
                format!("churn, {live} live, 512 B to {} MiB", largest >> 20)
            }
            Self::Parallel { threads, own } => {
                format!("{threads} threads, {}", if *own { "its own stream" } else { "one stream" })
            }
            Self::Used => "pair, used by another stream".into(),
            Self::Miss => "miss and release, 64 MiB".into(),
        }
    }

    /// Prepares the rounds with a contender and warms them up; `None` if the contender does not support the case.
    pub(crate) fn with<'a, C: Contender>(&self, contender: &'a C) -> Result<Option<Round<'a>>> {
        Ok(match *self {
            Self::Pair { bytes } => Some(pair(contender, bytes)?),
            Self::Churn { live, largest, stream } => Some(churn(contender, live, largest, stream)?),
            Self::Parallel { threads, own } => Some(Box::new(move || parallel(contender, threads, own))),
            Self::Used => contender.ours().map(used),
            Self::Miss => contender.ours().map(miss),
        })
    }
}

fn used(Ours { allocator, streams, .. }: &Ours) -> Round<'_> {
    Box::new(move || {
        timed(1000, || {
            for _ in 0..1000 {
                allocator.allocate(1 << 20, streams[0])?.record_stream(streams[1])?;
            }
            Ok(())
        })
    })
}

fn miss(Ours { allocator, streams, .. }: &Ours) -> Round<'_> {
    Box::new(move || {
        allocator.empty_cache()?;
        timed(10, || {
            for _ in 0..10 {
                drop(allocator.allocate(64 << 20, streams[0])?);
                allocator.empty_cache()?;
            }
            Ok(())
        })
    })
}

fn pair<C: Contender>(contender: &C, bytes: u64) -> Result<Round<'_>> {
    let pairs = move |count| {
        for _ in 0..count {
            black_box(contender.allocate(black_box(bytes), 0)?);
        }
        Ok(())
    };
    pairs(1000)?;
    Ok(Box::new(move || timed(20_000, || pairs(20_000))))
}

fn churn<C: Contender>(contender: &C, live: usize, largest: u64, stream: usize) -> Result<Round<'_>> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let octaves = (largest as f64).log2() - 9.0;
    let sizes: Vec<u64> =
        (0..4096).map(|_| 2f64.powf(9.0 + octaves * (random() % 1000) as f64 / 1000.0) as u64).collect();
    let mut blocks: Vec<Option<C::Block<'_>>> = (0..live).map(|_| None).collect();
    let mut step = move |count: usize| {
        for _ in 0..count {
            let at = random() % live;
            blocks[at] = None;
            blocks[at] = Some(contender.allocate(sizes[random() % sizes.len()], stream)?);
        }
        Ok(())
    };
    step(20_000.max(10 * live))?;
    Ok(Box::new(move || timed(20_000, || step(20_000))))
}

fn parallel<C: Contender>(contender: &C, threads: usize, own: bool) -> Result<f64> {
    const PAIRS: usize = 20_000;
    let pairs = |count, stream| {
        (0..count).try_for_each(|_| contender.allocate(1 << 20, stream).map(|block| drop(black_box(block))))
    };
    timed(PAIRS * threads, || {
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

/// The time of `run`, in ns per operation.
fn timed(operations: usize, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64 / operations as f64)
}
