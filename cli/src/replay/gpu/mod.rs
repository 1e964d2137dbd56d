//! A program's calls over the memory of a device: a GPU, or the embedded one.
//!
//! The trace's streams are streams of the device. A use by another stream is a stream that waits until the use ends
//! in the trace. With checks, every block is filled with a pattern of its own when it is allocated, and verified when
//! its last use ends, or at the end of the replay, all in stream order. Without checks, only the allocator's calls are timed.

mod ledger;
mod pattern;
#[cfg(test)]
mod tests;
mod uses;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use caching_alloc::core::{Allocator, Block, Settings};
use caching_alloc::driver::{DriverSource, Sharing, VirtualMemorySource};
use caching_alloc::sources::{LoggedCall, LoggingSource};
use cuda_driver::{Context, Driver, Stream};
use gpu_sim::World;

use self::ledger::Ledger;
use self::pattern::Pattern;
use self::uses::Uses;
use super::figures::{DriverTimes, Figures, least_capacity};
use super::host::{Outcome, ReplayError, driver_calls};
use super::options::{Backend, Policy};
use super::program::{Active, Call, Program};
use crate::demo::backend::NO_CUDA;

/// Timed replays; the fastest counts.
const ROUNDS: u32 = 5;
/// Capacity of the embedded device, in bytes: that of a large GPU. Only touched pages use host memory.
const CAPACITY: u64 = 140 << 30;
/// Operations of a check between two reports of its progress.
const REPORT_EVERY: u64 = 64;

/// The device that programs are replayed on.
pub(super) struct Gpu {
    // Declared before the world, so that it is dropped first.
    context: Context,
    _world: Option<World>,
}

impl Gpu {
    pub(super) fn open(backend: Backend) -> anyhow::Result<Self> {
        if backend == Backend::Cuda {
            let context = || Driver::load()?.device(0)?.retain_primary();
            return Ok(Self { context: context().context(NO_CUDA)?, _world: None });
        }
        let world = World::builder().capacity(CAPACITY).start()?;
        pattern::register(&world);
        // SAFETY: the embedded device's functions keep the contracts of the C API that they stand for, and the world
        // is dropped after all that is made from them.
        let api = unsafe { cuda_driver::sys::Api::from_parts(world.cuda()) }?;
        let context = Driver::new(api)?.device(0)?.retain_primary()?;
        Ok(Self { context, _world: Some(world) })
    }

    /// Replays a program. With `check`, verifies every block in one more replay. Passes each stage to `report`.
    pub(super) fn measure(
        &self,
        program: &Program,
        policy: Policy,
        capacity: u64,
        check: bool,
        report: &dyn Fn(String),
    ) -> Result<Figures, ReplayError> {
        let checked = check.then(|| self.check(program, policy, capacity, report)).transpose()?;
        report("timed replays".into());
        let run = |capacity| self.replay(program, policy, capacity, None);
        let mut fastest = run(capacity)?;
        for _ in 1..ROUNDS {
            let next = run(capacity)?;
            if next.time < fastest.time {
                fastest = next;
            }
        }
        let Replayed { outcome, time, driver_times, .. } = fastest;
        let min_capacity = least_capacity(outcome.calls.peak_bytes, |capacity| match run(capacity) {
            Err(error) if error.is_out_of_memory() => Ok(false),
            outcome => outcome.map(|_| true),
        })?;
        let figures = Figures::of(program, policy, outcome, time, min_capacity);
        Ok(figures.on_device(driver_times, checked))
    }

    /// Replays with a pattern in every block. Returns the number of correct bytes.
    fn check(
        &self,
        program: &Program,
        policy: Policy,
        capacity: u64,
        report: &dyn Fn(String),
    ) -> Result<u64, ReplayError> {
        let pattern = Pattern::new(&self.context)?;
        let check = Check { pattern: &pattern, report };
        let bytes = self.replay(program, policy, capacity, Some(check))?.checked;
        match pattern.wrong()? {
            0 => Ok(bytes),
            words => Err(ReplayError::Pattern { words }),
        }
    }

    fn replay(
        &self,
        program: &Program,
        policy: Policy,
        capacity: u64,
        check: Option<Check<'_>>,
    ) -> Result<Replayed, ReplayError> {
        let pattern = check.map(|check| check.pattern);
        let mut bench = Bench::new(&self.context, program, policy, capacity, pattern)?;
        let mut active = Active::new(program.blocks);
        let (mut before, mut steady) = (0, 0);
        for &call in &program.calls {
            let raises = active.follow(call);
            bench.make(call)?;
            if let Some(check) = check
                && bench.operation % REPORT_EVERY == 0
            {
                (check.report)(format!("check, operation {} of {}", bench.operation, program.operations));
            }
            let after = driver_calls(&bench.ledger.calls());
            if bench.operation > program.operations / 10 && !raises {
                steady += after - before;
            }
            before = after;
        }
        bench.look_at_rest()?;
        if let Some(check) = check {
            (check.report)("check, waiting for the device".into());
        }
        bench.uses.finish()?;
        if let Some(fault) = bench.allocator.faults().first() {
            return Err(ReplayError::Fault(format!("{fault:?}")));
        }
        let outcome = Outcome { calls: bench.ledger.calls(), steady };
        let driver_times = bench.ledger.times();
        Ok(Replayed { outcome, time: bench.time, driver_times, checked: bench.checked })
    }
}

/// The pattern of a replay with checks, and the receiver of its progress.
#[derive(Clone, Copy)]
struct Check<'a> {
    pattern: &'a Pattern,
    report: &'a dyn Fn(String),
}

struct Replayed {
    outcome: Outcome,
    /// Time of the allocator's calls.
    time: Duration,
    /// The part of `time` that the driver's calls took.
    driver_times: DriverTimes,
    /// Verified bytes.
    checked: u64,
}

/// An allocator, and the program's blocks in it.
struct Bench<'a> {
    // In drop order: blocks before their allocator, and the last work on them before that.
    blocks: Vec<Option<(Block, u32)>>,
    allocator: Allocator,
    ledger: Arc<Ledger>,
    streams: Vec<(Stream, caching_alloc::core::StreamId)>,
    uses: Arc<Uses>,
    pattern: Option<&'a Pattern>,
    operation: u64,
    time: Duration,
    checked: u64,
}

impl<'a> Bench<'a> {
    fn new(
        context: &Context,
        program: &Program,
        policy: Policy,
        capacity: u64,
        pattern: Option<&'a Pattern>,
    ) -> Result<Self, ReplayError> {
        let uses = Uses::new(context);
        let limit = Some(capacity).filter(|capacity| *capacity != u64::MAX);
        let settings = Settings { memory_limit: limit, ..Settings::default() };
        let ledger = Arc::new(Ledger::default());
        let sum = ledger.clone();
        let sink = move |call: &LoggedCall| sum.record(call);
        let allocator = match policy {
            Policy::Fixed => {
                let source = Arc::new(LoggingSource::new(DriverSource::new(context), sink));
                Allocator::new(source, uses.clone(), settings)
            }
            Policy::Remap => {
                let source = VirtualMemorySource::new(context, Sharing::none());
                let source = Arc::new(LoggingSource::new(source.map_err(ReplayError::Source)?, sink));
                Allocator::remapping(source, uses.clone(), settings).map_err(ReplayError::Make)?
            }
        };
        let streams = (0..program.streams).map(|_| uses.stream()).collect::<cuda_driver::Result<_>>()?;
        let blocks = (0..program.blocks).map(|_| None).collect();
        let (operation, time, checked) = (0, Duration::ZERO, 0);
        Ok(Self { blocks, allocator, ledger, streams, uses, pattern, operation, time, checked })
    }

    fn make(&mut self, call: Call) -> Result<(), ReplayError> {
        self.operation += 1;
        let operation = self.operation;
        match call {
            Call::Allocate { block, bytes, stream } => {
                let (queue, id) = &self.streams[stream as usize];
                let start = Instant::now();
                let allocated = self.allocator.allocate(bytes.max(1), *id);
                self.time += start.elapsed();
                let failed = |source| ReplayError::Allocate { operation, bytes, source };
                let owned = allocated.map_err(failed)?;
                if let Some(pattern) = self.pattern {
                    // SAFETY: the block is this stream's until it is let go, in stream order.
                    unsafe { pattern.write(queue, owned.address(), owned.bytes(), block)? };
                }
                self.blocks[block as usize] = Some((owned, stream));
            }
            Call::Free { block } => {
                let Some((owned, stream)) = self.blocks[block as usize].take() else { return Ok(()) };
                self.look(&self.streams[stream as usize].0.clone(), &owned, block)?;
                let start = Instant::now();
                drop(owned);
                self.time += start.elapsed();
            }
            Call::FreeInUse { block } => {
                let Some((owned, stream)) = self.blocks[block as usize].take() else { return Ok(()) };
                let (user, id) = self.uses.begin(block, &self.streams[stream as usize].0)?;
                self.look(&user, &owned, block)?;
                let failed = |source| ReplayError::Free { operation, block, source };
                let start = Instant::now();
                owned.record_stream(id).map_err(failed)?;
                drop(owned);
                self.time += start.elapsed();
            }
            Call::EndUse { block } => {
                self.operation -= 1;
                self.uses.end(block)?;
            }
        }
        Ok(())
    }

    /// Enqueues the verification of the blocks that the program does not free.
    fn look_at_rest(&mut self) -> Result<(), ReplayError> {
        for block in 0..self.blocks.len() {
            let Some((owned, stream)) = self.blocks[block].take() else { continue };
            self.look(&self.streams[stream as usize].0.clone(), &owned, block as u32)?;
            self.blocks[block] = Some((owned, stream));
        }
        Ok(())
    }

    /// Enqueues the verification of a block on `stream`.
    fn look(&mut self, stream: &Stream, owned: &Block, block: u32) -> Result<(), ReplayError> {
        if let Some(pattern) = self.pattern {
            // SAFETY: the block is let go only after this, and in the order of this stream, which uses it.
            unsafe { pattern.check(stream, owned.address(), owned.bytes(), block)? };
            self.checked += owned.bytes();
        }
        Ok(())
    }
}

impl Drop for Bench<'_> {
    /// Waits for the device, so that no block is freed while work on it still runs.
    fn drop(&mut self) {
        let _ = self.uses.finish();
    }
}
