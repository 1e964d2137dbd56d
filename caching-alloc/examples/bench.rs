//! What the allocator's calls cost on the host: figures, not tests.
//!
//! `cargo run --release -p caching-alloc --example bench`

use std::error::Error;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use caching_alloc::core::{Allocator, Block, Entry, Filter, Settings, StreamId, Tracker, TrackerError};
use caching_alloc::host::{HostSource, HostStreams};

fn allocator() -> Allocator {
    Allocator::new(Arc::new(HostSource::new(u64::MAX)), Arc::new(HostStreams::new()), Settings::default())
}

/// The median of several runs of `run`, in ns per operation.
fn median(operations: u32, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..11)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / f64::from(operations)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Pseudo-random numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Mostly small, some large, as in training.
    fn bytes(&mut self) -> u64 {
        let limit = [4 << 10, 64 << 10, 1 << 20, 16 << 20][(self.next() % 4) as usize];
        self.next() % limit + 1
    }
}

struct Count;

impl Tracker for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        black_box(entries.len());
        Ok(())
    }
}

fn pairs(allocator: &Allocator, stream: StreamId, count: u32) {
    for _ in 0..count {
        black_box(allocator.allocate(black_box(4096), stream)).ok();
    }
}

fn churn(live: usize) -> Result<f64, Box<dyn Error>> {
    let allocator = allocator();
    let mut numbers = Numbers(1);
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..live {
        blocks.push(allocator.allocate(numbers.bytes(), StreamId(1))?);
    }
    // One operation: a free and an allocation.
    Ok(median(20_000, || {
        for _ in 0..20_000 {
            let at = numbers.next() as usize % live;
            if let Ok(block) = allocator.allocate(numbers.bytes(), StreamId(1)) {
                blocks[at] = block;
            }
        }
    }))
}

fn threads(count: u64, own_streams: bool) -> f64 {
    const PAIRS: u32 = 200_000;
    let allocator = allocator();
    let barrier = Barrier::new(count as usize + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|worker| {
                let (allocator, barrier) = (allocator.clone(), &barrier);
                scope.spawn(move || {
                    let stream = StreamId(if own_streams { worker } else { 0 });
                    pairs(&allocator, stream, 1000);
                    barrier.wait();
                    pairs(&allocator, stream, PAIRS);
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        f64::from(PAIRS) * count as f64 / start.elapsed().as_secs_f64() / 1e6
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let quiet = allocator();
    println!("hit pair             {:8.1} ns", median(100_000, || pairs(&quiet, StreamId(1), 100_000)));
    let attachment = quiet.attach(Arc::new(Count), Filter::structural())?;
    println!("  structural tracker {:8.1} ns", median(100_000, || pairs(&quiet, StreamId(1), 100_000)));
    attachment.detach()?;
    let attachment = quiet.attach(Arc::new(Count), Filter::all())?;
    println!("  block tracker      {:8.1} ns", median(100_000, || pairs(&quiet, StreamId(1), 100_000)));
    attachment.detach()?;
    for live in [256, 10_000] {
        println!("churn, {live:5} live   {:8.1} ns", churn(live)?);
    }
    for count in [1, 2, 4, 8] {
        println!(
            "{count} threads: own streams {:6.1} M pairs/s, one stream {:6.1} M pairs/s",
            threads(count, true),
            threads(count, false)
        );
    }
    Ok(())
}
