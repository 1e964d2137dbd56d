//! Replays the recorded training run through this rank's caching allocator, with every segment registered with every
//! communicator of the device.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use caching_alloc::core::{AllocError, Allocator, Block, Settings};
use caching_alloc::driver::{DriverEvents, Sharing, VirtualMemorySource};
use cuda_driver::{Stream, StreamFlags};
use process_group::registration::SegmentRegistrar;

use super::job::Job;
use super::protocol::{Message, Replayed, Reporter};
use crate::trace::{Event, Trace};

/// Events between two progress reports.
const STEP: usize = 4096;

/// Replays `trace` and reports the result. All of its memory is freed afterwards.
pub(super) fn run(job: &Job<'_>, trace: &Trace, reporter: &mut Reporter) -> Result<()> {
    replay(job, trace, reporter).map_err(|error| job.cause(error))
}

fn replay(job: &Job<'_>, trace: &Trace, reporter: &mut Reporter) -> Result<()> {
    let begun = Instant::now();
    // Segments that communicators register must be single physical handles that can be exported.
    let source = Arc::new(VirtualMemorySource::new(job.context, Sharing::by_descriptor())?);
    let events = Arc::new(DriverEvents::new(job.context));
    let streams = (0..trace.streams)
        .map(|_| Ok(events.register(&Stream::new(job.context, StreamFlags::NON_BLOCKING)?)))
        .collect::<Result<Vec<_>>>()?;
    let allocator = Allocator::new(source, events, Settings::default());

    let registrar = SegmentRegistrar::attach(&allocator)?;
    for member in &job.members {
        // SAFETY: every rank of the communicators does the same, and no graph captures their operations.
        unsafe { registrar.add(member.process_group.communicator()) }?;
    }

    let mut blocks: Vec<Option<Block>> = Vec::with_capacity(trace.allocations as usize);
    let (mut active, mut peak_active) = (0, 0);
    for (at, &event) in trace.events.iter().enumerate() {
        match event {
            Event::Allocate { bytes, stream, .. } => {
                let block = allocator
                    .allocate(bytes, streams[stream as usize])
                    .map_err(|error| explained(error, trace))
                    .with_context(|| format!("event {at} of the trace"))?;
                active += block.bytes();
                peak_active = u64::max(peak_active, active);
                blocks.push(Some(block));
            }
            // The recorded program's other streams are not modelled: a block lives until their last use has ended.
            Event::RequestFree { .. } => {}
            Event::CompleteFree { block } => {
                active -= blocks[block as usize].take().map_or(0, |block| block.bytes());
            }
        }
        if at % STEP == 0 {
            reporter.send(&Message::Progress { done: at as u64, total: trace.events.len() as u64 })?;
        }
    }
    drop(blocks);
    let stats = allocator.stats();
    allocator.empty_cache()?;
    registrar.check()?;
    let counts = registrar.counts();
    ensure!(
        counts.registered == stats.segments.total * job.members.len() as u64 && counts.registrations == 0,
        "{} segments of {} communicators were registered {} times, and {} registrations are left; the allocator has {} faults",
        stats.segments.total,
        job.members.len(),
        counts.registered,
        counts.registrations,
        allocator.faults().len()
    );
    registrar.detach()?;
    reporter.send(&Message::Replayed(Replayed {
        allocations: stats.all.blocks.total,
        segments: stats.segments.total,
        peak_active,
        peak_reserved: stats.reserved.peak,
        registrations: counts.registered,
        milliseconds: begun.elapsed().as_secs_f64() * 1e3,
    }))?;
    Ok(())
}

/// Replaces an error of the allocator for lack of memory by one that explains it for the demo.
fn explained(error: AllocError, trace: &Trace) -> anyhow::Error {
    let AllocError::OutOfMemory(memory) = &error else { return error.into() };
    // The allocator's own segments are available to the replay too. Other processes may have the rest of the device.
    let Some(has) = memory.info.map(|info| info.free.saturating_add(memory.reserved)) else {
        return error.into();
    };
    anyhow!(
        "device {} is out of memory: the trace needs at least {} bytes (its peak of live bytes), and the device has \
         {has} for it; use a larger device, free memory of this one, or name a smaller trace with --trace FILE",
        memory.device,
        trace.peak_active
    )
}
