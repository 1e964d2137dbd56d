//! Replays a trace, so that its blocks have addresses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use caching_alloc::core::{self, Entry, Filter, Tracker, TrackerError};

use crate::replay::{Bench, Call, Policy, Program};
use crate::trace::Trace;
use crate::trace::snapshot::{Action, Block, BlockState, Event, Segment, Snapshot};

/// Replays `trace` over memory that is only counted. Returns the snapshot at its end.
///
/// # Errors
/// The allocator failed.
pub(super) fn run(trace: &Trace, policy: Policy) -> Result<Snapshot> {
    let program = Program::of(trace);
    let mut bench = Bench::new(policy, u64::MAX, program.blocks)?;
    let log = Arc::new(Log::default());
    let attachment = bench.allocator.attach(log.clone(), Filter::structural())?;
    // Blocks by number, until they can be reused.
    let mut live = HashMap::new();
    for &call in &program.calls {
        match call {
            Call::Allocate { .. } => {}
            Call::Free { block } => {
                log.block(Action::FreeRequested, live.get(&block));
                log.block(Action::FreeCompleted, live.remove(&block).as_ref());
            }
            Call::FreeInUse { block } => log.block(Action::FreeRequested, live.get(&block)),
            Call::EndUse { block } => log.block(Action::FreeCompleted, live.remove(&block).as_ref()),
        }
        bench.make(call)?;
        if let Call::Allocate { block: number, .. } = call {
            let block = bench.blocks[number as usize].as_ref().context("a block that was handed out")?;
            let place = Place { address: block.address(), bytes: block.bytes(), stream: block.stream().0 };
            log.block(Action::Alloc, Some(&place));
            live.insert(number, place);
        }
    }
    attachment.detach()?;
    let state = bench.allocator.snapshot()?;
    let events = std::mem::take(&mut *log.events());
    let used: HashMap<u64, BlockState> = live
        .iter()
        .map(|(number, place)| {
            let owned = bench.blocks[*number as usize].is_some();
            let state = if owned { BlockState::ActiveAllocated } else { BlockState::ActivePendingFree };
            (place.address, state)
        })
        .collect();
    let segment = |segments: &[core::Segment], blocks: &[core::BlockState], is_expandable| Segment {
        device: 0,
        address: segments.first().map_or(0, core::Segment::address),
        total_size: segments.iter().map(core::Segment::bytes).sum(),
        stream: segments.first().map_or(0, |segment| segment.stream().0),
        is_expandable,
        blocks: blocks
            .iter()
            .map(|block| Block {
                size: block.bytes,
                requested_size: Some(block.requested),
                state: used.get(&block.address).copied().unwrap_or(BlockState::Inactive),
                call_site: None,
            })
            .collect(),
    };
    let fixed = state.segments.iter();
    let fixed = fixed.map(|state| segment(std::slice::from_ref(&state.segment), &state.blocks, false));
    let mapped = state.mapped.iter().map(|state| segment(&state.segments, &state.blocks, true));
    Ok(Snapshot {
        segments: fixed.chain(mapped).collect(),
        device_traces: vec![events],
        ..Snapshot::default()
    })
}

struct Place {
    address: u64,
    bytes: u64,
    stream: u64,
}

/// All events in order: the allocator's for segments, and the replay's for blocks.
#[derive(Default)]
struct Log(Mutex<Vec<Event>>);

impl Log {
    fn events(&self) -> std::sync::MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, action: Action, addr: u64, size: u64, stream: u64) {
        self.events().push(Event { action, addr, size, stream, time_us: 0, call_site: None });
    }

    fn block(&self, action: Action, place: Option<&Place>) {
        if let Some(Place { address, bytes, stream }) = place {
            self.push(action, *address, *bytes, *stream);
        }
    }
}

impl Tracker for Log {
    fn name(&self) -> &str {
        "viz"
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        for entry in entries {
            let (action, segment) = match &entry.action {
                core::Action::SegmentAlloc(segment) => (Action::SegmentAlloc, segment),
                core::Action::SegmentFree(segment) => (Action::SegmentFree, segment),
                core::Action::SegmentMap(segment) => (Action::SegmentMap, segment),
                core::Action::SegmentUnmap(segment) => (Action::SegmentUnmap, segment),
                _ => continue,
            };
            self.push(action, segment.address(), segment.bytes(), entry.stream.0);
        }
        Ok(())
    }
}
