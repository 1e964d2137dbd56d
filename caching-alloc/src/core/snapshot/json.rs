//! A snapshot as PyTorch's memory viewer reads it: JSON of the layout that `torch.cuda.memory._snapshot()` has.
//!
//! The viewer computes a block's address by adding lengths from its segment's, so blocks tile their segments; it
//! replays the trace backwards from the final state, so both are of one moment. Addresses are numbers, below 2^53.

use std::io;

use serde::Serialize;

use super::{BlockState, Snapshot, Usage};
use crate::core::entry::{Action, Entry};
use crate::core::segment::{self as core, SizeClass};

#[derive(Serialize)]
struct Document<'a> {
    segments: Vec<Segment>,
    /// By device.
    device_traces: Vec<Vec<Trace>>,
    allocator_settings: Settings,
    external_annotations: Vec<Annotation<'a>>,
    generation: u64,
}

#[derive(Serialize)]
struct Segment {
    device: u32,
    address: u64,
    total_size: u64,
    allocated_size: u64,
    active_size: u64,
    requested_size: u64,
    stream: u64,
    segment_type: SizeClass,
    segment_pool_id: (u64, u64),
    is_expandable: bool,
    frames: [(); 0],
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: u64,
    size: u64,
    requested_size: u64,
    state: &'static str,
    frames: [(); 0],
}

#[derive(Serialize)]
struct Trace {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<u64>,
    size: u64,
    stream: u64,
    time_us: u64,
    pool_id: (u64, u64),
    frames: [(); 0],
}

#[derive(Serialize)]
struct Annotation<'a> {
    name: &'a str,
    stage: &'static str,
    device: u32,
    time_us: u64,
}

/// The viewer shows these; those that have no meaning here stay out.
#[derive(Serialize)]
struct Settings {
    expandable_segments: bool,
    max_split_size: i64,
    large_segment_size: u64,
    memory_limit: Option<u64>,
}

impl Snapshot {
    /// Writes it as JSON that PyTorch's browser viewer opens. Times in µs, sizes in bytes.
    ///
    /// # Errors
    /// What `writer` says.
    pub fn write_json(&self, writer: impl io::Write) -> io::Result<()> {
        serde_json::to_writer(writer, &self.document()).map_err(io::Error::from)
    }

    /// The same as a string.
    ///
    /// # Errors
    /// None that is known of: everything in a snapshot can be written.
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string(&self.document()).map_err(io::Error::from)
    }

    fn document(&self) -> Document<'_> {
        let mut device_traces: Vec<Vec<Trace>> = Vec::new();
        device_traces.resize_with(self.device as usize + 1, Vec::new);
        let fixed = self.segments.iter();
        let fixed =
            fixed.filter_map(|state| segment(std::slice::from_ref(&state.segment), &state.blocks, false));
        let mapped = self.mapped.iter().filter_map(|state| segment(&state.segments, &state.blocks, true));
        device_traces[self.device as usize] = self.trace.iter().filter_map(trace).collect();
        Document {
            segments: fixed.chain(mapped).collect(),
            device_traces,
            allocator_settings: Settings {
                expandable_segments: !self.mapped.is_empty(),
                max_split_size: -1,
                large_segment_size: self.settings.large_segment,
                memory_limit: self.settings.memory_limit,
            },
            external_annotations: self.trace.iter().filter_map(annotation).collect(),
            generation: self.generation,
        }
    }
}

/// Neighbouring segments as one; `blocks` tile them.
fn segment(segments: &[core::Segment], blocks: &[BlockState], is_expandable: bool) -> Option<Segment> {
    let first = segments.first()?;
    let sum = |of: fn(&BlockState) -> u64| blocks.iter().map(of).sum();
    Some(Segment {
        device: first.device(),
        address: first.address(),
        total_size: segments.iter().map(core::Segment::bytes).sum(),
        allocated_size: sum(BlockState::allocated_bytes),
        active_size: sum(BlockState::active_bytes),
        requested_size: sum(|block| block.requested),
        stream: first.stream().0,
        segment_type: first.class(),
        segment_pool_id: (0, u64::from(first.pool().0)),
        is_expandable,
        frames: [],
        blocks: blocks.iter().map(block).collect(),
    })
}

fn block(block: &BlockState) -> Block {
    let state = match block.usage {
        Usage::Active => "active_allocated",
        Usage::PendingFree => "active_pending_free",
        Usage::Inactive => "inactive",
    };
    Block { address: block.address, size: block.bytes, requested_size: block.requested, state, frames: [] }
}

/// Annotations have a list of their own.
fn trace(entry: &Entry) -> Option<Trace> {
    let (addr, device_free, size) = match &entry.action {
        Action::Alloc(span) | Action::FreeRequested(span) | Action::FreeCompleted(span) => {
            (Some(span.address), None, span.bytes)
        }
        Action::SegmentAlloc(segment)
        | Action::SegmentFree(segment)
        | Action::SegmentMap(segment)
        | Action::SegmentUnmap(segment) => (Some(segment.address()), None, segment.bytes()),
        Action::Snapshot => (Some(0), None, 0),
        Action::OutOfMemory { wanted, free } => (None, Some(free.unwrap_or(0)), *wanted),
        Action::Annotation(_) => return None,
    };
    Some(Trace {
        action: entry.action.kind().name(),
        addr,
        device_free,
        size,
        stream: entry.stream.0,
        time_us: entry.time_ns / 1000,
        pool_id: (0, u64::from(entry.pool.0)),
        frames: [],
    })
}

fn annotation(entry: &Entry) -> Option<Annotation<'_>> {
    let Action::Annotation(name) = &entry.action else { return None };
    Some(Annotation { name, stage: "START", device: entry.device, time_us: entry.time_ns / 1000 })
}
