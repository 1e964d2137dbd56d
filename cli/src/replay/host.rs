//! A program's calls over memory that is only counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caching_alloc::core::{AllocError, Allocator, Block, Settings, SourceError, StreamId};
use caching_alloc::host::{Calls, HostSource, HostStreams};
use thiserror::Error;

use super::options::Policy;
use super::program::{Active, Call};

/// First stream number for other uses, each on a stream of its own; streams of the trace have lower numbers.
const OTHER_USES: u64 = 1 << 32;

#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    #[error("operation {operation}, which asks for {bytes} bytes")]
    Allocate { operation: u64, bytes: u64, source: AllocError },
    #[error("operation {operation}, which lets go of block {block}")]
    Free { operation: u64, block: u32, source: AllocError },
    #[error(
        "operation {operation}: the allocator handed out {bytes} bytes at {address:#x}, where not all is mapped"
    )]
    NotMapped { operation: u64, address: u64, bytes: u64 },
    #[error("the allocator reported a fault: {0}")]
    Fault(String),
    #[error("the allocator could not be made")]
    Make(#[source] AllocError),
    #[error("the device's memory cannot be had")]
    Source(#[source] SourceError),
    #[error("a call of the replay's own failed")]
    Device(#[from] cuda_driver::Error),
    #[error("{words} words of blocks were not what had been written there: two blocks had the same memory")]
    Pattern { words: u64 },
}

impl ReplayError {
    /// True if the only fault was too little memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Allocate { source: AllocError::OutOfMemory(_), .. })
    }
}

/// Result of a replay.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) calls: Calls,
    /// Driver calls after the first tenth of the operations, except those of operations that raised the peak.
    pub(super) steady: u64,
}

/// An allocator, and the program's blocks in it.
pub(crate) struct Bench {
    source: Arc<HostSource>,
    streams: Arc<HostStreams>,
    pub(crate) allocator: Allocator,
    pub(crate) blocks: Vec<Option<Block>>,
    operation: u64,
}

impl Bench {
    pub(crate) fn new(policy: Policy, capacity: u64, blocks: usize) -> Result<Self, ReplayError> {
        let source = Arc::new(HostSource::new(capacity));
        let streams = Arc::new(HostStreams::new());
        let settings = Settings::default();
        let allocator = match policy {
            Policy::Fixed => Allocator::new(source.clone(), streams.clone(), settings),
            Policy::Remap => {
                Allocator::remapping(source.clone(), streams.clone(), settings).map_err(ReplayError::Make)?
            }
        };
        let blocks = (0..blocks).map(|_| None).collect();
        Ok(Self { source, streams, allocator, blocks, operation: 0 })
    }

    #[inline]
    pub(crate) fn make(&mut self, call: Call) -> Result<(), ReplayError> {
        self.operation += 1;
        let operation = self.operation;
        match call {
            Call::Allocate { block, bytes, stream } => {
                // PyTorch also counts requests for 0 bytes; the allocator has no blocks of that size.
                let allocated = self.allocator.allocate(bytes.max(1), StreamId(stream.into()));
                let failed = |source| ReplayError::Allocate { operation, bytes, source };
                self.blocks[block as usize] = Some(allocated.map_err(failed)?);
            }
            Call::Free { block } => self.blocks[block as usize] = None,
            Call::FreeInUse { block } => {
                let user = StreamId(OTHER_USES + u64::from(block));
                self.streams.enqueue(user);
                if let Some(owned) = self.blocks[block as usize].take() {
                    let failed = |source| ReplayError::Free { operation, block, source };
                    owned.record_stream(user).map_err(failed)?;
                }
            }
            Call::EndUse { block } => {
                self.operation -= 1;
                self.streams.complete(StreamId(OTHER_USES + u64::from(block)));
            }
        }
        Ok(())
    }

    /// Checks that a call's new block lies in memory which the device can use.
    fn check(&self, call: Call) -> Result<(), ReplayError> {
        let Call::Allocate { block, .. } = call else { return Ok(()) };
        match &self.blocks[block as usize] {
            Some(block) if !self.source.is_usable(block.address(), block.bytes()) => {
                let (operation, address, bytes) = (self.operation, block.address(), block.bytes());
                Err(ReplayError::NotMapped { operation, address, bytes })
            }
            _ => Ok(()),
        }
    }

    fn finish(&self) -> Result<(), ReplayError> {
        match self.allocator.faults().first() {
            None => Ok(()),
            Some(fault) => Err(ReplayError::Fault(format!("{fault:?}"))),
        }
    }
}

/// Returns the number of calls that a driver would have received.
pub(super) fn driver_calls(calls: &Calls) -> u64 {
    let Calls { allocate, release, create, discard, map, enable, unmap, .. } = *calls;
    allocate + release + create + discard + map + enable + unmap
}

/// Replays the calls. After each it passes the active bytes and the source's counts to `watch`.
pub(super) fn watched(
    calls: &[Call],
    blocks: usize,
    policy: Policy,
    capacity: u64,
    mut watch: impl FnMut(Call, &Active, Calls),
) -> Result<Outcome, ReplayError> {
    let operations = calls.iter().filter(|call| !matches!(call, Call::EndUse { .. })).count() as u64;
    let mut bench = Bench::new(policy, capacity, blocks)?;
    let mut active = Active::new(blocks);
    let (mut before, mut steady) = (0, 0);
    for &call in calls {
        let raises = active.follow(call);
        bench.make(call)?;
        if policy == Policy::Remap {
            bench.check(call)?;
        }
        let counts = bench.source.calls();
        let after = driver_calls(&counts);
        if bench.operation > operations / 10 && !raises {
            steady += after - before;
        }
        before = after;
        watch(call, &active, counts);
    }
    bench.finish()?;
    Ok(Outcome { calls: bench.source.calls(), steady })
}

/// True if the calls succeed with this capacity.
pub(super) fn fits(
    calls: &[Call],
    blocks: usize,
    policy: Policy,
    capacity: u64,
) -> Result<bool, ReplayError> {
    let mut bench = Bench::new(policy, capacity, blocks)?;
    for &call in calls {
        match bench.make(call) {
            Err(error) if error.is_out_of_memory() => return Ok(false),
            outcome => outcome?,
        }
    }
    Ok(true)
}

/// Returns the time of the calls, with nothing else between them.
pub(super) fn timed(
    calls: &[Call],
    blocks: usize,
    policy: Policy,
    capacity: u64,
) -> Result<Duration, ReplayError> {
    let mut bench = Bench::new(policy, capacity, blocks)?;
    let start = Instant::now();
    for &call in calls {
        bench.make(call)?;
    }
    Ok(start.elapsed())
}
