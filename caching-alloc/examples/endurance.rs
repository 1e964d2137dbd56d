//! Checks that the allocator does not degrade. Measures memory and time per call after many streams and segments have
//! come and gone, the requests that fail although there is enough memory, and the longest hits while other threads
//! take snapshots and allocate segments. A hit is a request that cached memory serves.
//!
//! `cargo run --release -p lockstep-caching-alloc --example endurance [PART]…`, with any of the parts `streams`,
//! `segments`, `sharing` and `pauses`, or all of them if none is named. It needs no GPU, and prints one line for each
//! part. It exits with 1 if a part fails or a result exceeds its limit, the *bar*, and with 2 for an unknown part.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use caching_alloc::core::{Allocator, Settings, StreamId};
use caching_alloc::host::{HostSource, HostStreams};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const MIB: u64 = 1 << 20;
/// Number of equal groups into which [`repeat`] divides its calls, to compare their times.
const PARTS: u64 = 10;

/// A name, and a measurement that returns whether its bars hold.
type Measurement = (&'static str, fn() -> Result<bool>);

fn main() -> ExitCode {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let all: [Measurement; 4] =
        [("streams", streams), ("segments", segments), ("sharing", sharing), ("pauses", pauses)];
    if let Some(unknown) = named.iter().find(|name| all.iter().all(|(part, _)| part != name)) {
        eprintln!("unknown part {unknown}: expected streams, segments, sharing or pauses");
        return ExitCode::from(2);
    }
    let mut holds = true;
    for (part, run) in
        all.iter().filter(|(part, _)| named.is_empty() || named.iter().any(|name| name == part))
    {
        match run() {
            Ok(part_holds) => holds &= part_holds,
            Err(error) => {
                eprintln!("{part}: {error}");
                holds = false;
            }
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn allocator(capacity: u64) -> Allocator {
    Allocator::new(Arc::new(HostSource::new(capacity)), Arc::new(HostStreams::new()), Settings::default())
}

/// Returns the resident memory of this process in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Runs `call` `calls` times, in ten groups. Returns true if the process's memory has grown by at most 10 MiB since
/// the end of the first group, and the fastest of the last three groups takes at most 10 % more time than the fastest
/// of the first three.
fn repeat(what: &str, calls: u64, mut call: impl FnMut(u64) -> Result<()>) -> Result<bool> {
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    for part in 0..PARTS {
        let begun = Instant::now();
        for number in part * calls / PARTS..(part + 1) * calls / PARTS {
            call(number)?;
        }
        times.push(begun.elapsed().as_nanos() as f64 / (calls / PARTS) as f64);
        memory.push(resident()?);
    }
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let (first, last) = (least(&times[..3]), least(&times[7..]));
    let grown = memory[9].saturating_sub(memory[0]);
    let holds = grown <= 10 * 1024 && last <= 1.1 * first;
    println!(
        "{what}: {calls} come and go; {first:.0} ns each at first, {last:.0} ns at last (bar 1.10 times); memory grows by \
         {grown} KiB (bar 10240): {}",
        verdict(holds)
    );
    Ok(holds)
}

fn streams() -> Result<bool> {
    let allocator = allocator(1 << 36);
    repeat("streams", 100_000, |number| {
        let stream = StreamId(1 + number);
        for _ in 0..3 {
            drop(allocator.allocate(4096, stream)?);
        }
        allocator.forget_stream(stream)?;
        Ok(())
    })
}

fn segments() -> Result<bool> {
    let allocator = allocator(1 << 36);
    repeat("segments", 1_000_000, |_| {
        drop(allocator.allocate(64 * MIB, StreamId(1))?);
        allocator.empty_cache()?;
        Ok(())
    })
}

/// Eight threads on four streams allocate one block each at a time. The eight blocks together fill exactly the
/// capacity, so no request may fail.
fn sharing() -> Result<bool> {
    const THREADS: u64 = 8;
    const REQUESTS: u64 = 1_000_000;
    let allocator = allocator(THREADS * 8 * MIB);
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (allocator, failed) = (&allocator, &failed);
            scope.spawn(move || {
                for request in 0..REQUESTS / THREADS {
                    match allocator.allocate(8 * MIB, StreamId(number % 4)) {
                        Ok(block) if request % 3 == 0 => {
                            let recorded = block.record_stream(StreamId((number + 1) % 4));
                            failed.fetch_add(u64::from(recorded.is_err()), Ordering::Relaxed);
                        }
                        Ok(_) => {}
                        Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("sharing: {failed} of {REQUESTS} requests failed (bar 0): {}", verdict(failed == 0));
    Ok(failed == 0)
}

/// Measures the hits of one thread while a second thread takes snapshots, and a third one allocates and releases
/// segments.
fn pauses() -> Result<bool> {
    const BLOCKS: usize = 200_000;
    const HITS: usize = 2_000_000;
    let allocator = allocator(1 << 36);
    let kept = (0..BLOCKS).map(|_| allocator.allocate(512, StreamId(1)));
    let kept: Vec<_> = kept.collect::<std::result::Result<_, _>>()?;
    let is_over = AtomicBool::new(false);
    let mut times = Vec::with_capacity(HITS);
    let (snapshots, growths) = thread::scope(|scope| {
        let repeat = |call: &dyn Fn() -> bool| {
            (0..).take_while(|_| !is_over.load(Ordering::Relaxed) && call()).count()
        };
        let (here, is_over) = (&allocator, &is_over);
        let snapshots = scope.spawn(move || repeat(&|| here.snapshot().is_ok()));
        let growths = scope.spawn(move || {
            repeat(&|| here.allocate(64 * MIB, StreamId(2)).map(drop).is_ok() && here.empty_cache().is_ok())
        });
        for _ in 0..HITS {
            let begun = Instant::now();
            drop(here.allocate(1000, StreamId(1)));
            times.push(begun.elapsed().as_nanos());
        }
        is_over.store(true, Ordering::Relaxed);
        (snapshots.join().unwrap_or(0), growths.join().unwrap_or(0))
    });
    times.sort_unstable();
    let at = |per_million: usize| times[(HITS / 1_000_000 * per_million).min(HITS - 1)];
    let holds = at(999_900) <= 100_000 && snapshots > 0 && growths > 0;
    println!(
        "pauses: {HITS} pairs of a hit and a free beside {snapshots} snapshots of {} blocks and {growths} growths; p50 {} ns, \
         p99 {} ns, p99.9 {} ns, p99.99 {} ns (bar 100000), longest {} ns: {}",
        kept.len(),
        at(500_000),
        at(990_000),
        at(999_000),
        at(999_900),
        at(1_000_000),
        verdict(holds)
    );
    Ok(holds)
}

fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "does not hold" }
}
