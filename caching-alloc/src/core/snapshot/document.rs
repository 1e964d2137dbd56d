//! A snapshot in the format of PyTorch's tools: the layout of `torch.cuda.memory._snapshot()`, as JSON or as
//! a pickle.
//!
//! The layout follows from the way in which the browser viewer works:
//! - It computes a block's address by adding the lengths of the blocks before it to the address of the segment. So
//!   blocks cover their segments without gaps.
//! - It replays the trace backwards from the final state. So the trace must have no gaps. The allocator keeps the
//!   structural entries in one ring, and the block entries of each stream of a pool in another. If a ring has dropped
//!   entries, the trace omits all entries, of any ring, that are older than the oldest entry left in that ring.
//! - It shows neighbouring pages of one stream as one segment. All streams of a re-mappable pool share its pages, so
//!   all pages are written with the same stream.
//! - It expects the requested size as the length of a block in the trace.
//! - Its pickle reader accepts integers of at most 8 bytes. `serde_pickle` writes large unsigned integers with 9
//!   bytes, so all fields of 64 bits are signed. The reader converts them to floating-point numbers, which are exact
//!   below 2^53. Addresses are below that limit.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::UNIX_EPOCH;

use serde::{Serialize, Serializer};

use super::{BlockState, Snapshot, Usage};
use crate::core::entry::{Action, ActionKind, Entry};
use crate::core::request::{Name, RequestInfo};
use crate::core::rounding::{Fraction, Rounding};
use crate::core::segment::{self as core, PoolId, SegmentId};
use crate::core::size::SizeClass;
use crate::core::stream::StreamId;

#[derive(Serialize)]
struct Document<'a> {
    segments: Vec<Segment>,
    /// The traces, indexed by device.
    device_traces: Vec<Vec<Trace>>,
    allocator_settings: Settings,
    external_annotations: Vec<Annotation<'a>>,
    generation: i64,
}

#[derive(Serialize)]
struct Segment {
    device: u32,
    address: i64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: i64,
    segment_type: SizeClass,
    segment_pool_id: (u32, u32),
    is_expandable: bool,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    address: i64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<Frame>,
}

/// A stack frame in the viewer's format: the request's source location, and the request's name as the function name.
#[derive(Serialize)]
struct Frame {
    filename: &'static str,
    line: u32,
    name: &'static str,
}

#[derive(Serialize)]
struct Trace {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<i64>,
    size: i64,
    stream: i64,
    time_us: i64,
    pool_id: (u32, u32),
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Annotation<'a> {
    name: &'a str,
    stage: &'static str,
    device: u32,
    time_us: i64,
}

/// The settings that the viewer shows. Settings that this allocator does not have are left out.
#[derive(Serialize)]
struct Settings {
    expandable_segments: bool,
    max_split_size: i64,
    garbage_collection_threshold: f64,
    #[serde(serialize_with = "divisions")]
    roundup_power2_divisions: Rounding,
    large_segment_size: i64,
    memory_limit: Option<i64>,
}

/// Serializes a rounding as a map from the smallest size of each range, in MiB, to its number of steps.
fn divisions<S: Serializer>(rounding: &Rounding, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rounding.by_mebibytes().map(|(least, steps)| (least.to_string(), int(steps))))
}

impl Snapshot {
    /// Writes the snapshot as JSON, which PyTorch's browser viewer opens, and flushes `writer`. Times are in µs, and
    /// sizes in bytes.
    ///
    /// ```
    /// use caching_alloc::core::{Allocator, Settings};
    /// use caching_alloc::host::{HostSource, HostStreams};
    /// use std::{fs::File, io::BufWriter, sync::Arc};
    ///
    /// let source = Arc::new(HostSource::new(1 << 30));
    /// let allocator = Allocator::new(source, Arc::new(HostStreams::new()), Settings::default());
    /// # let folder = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&folder)?;
    /// allocator.snapshot()?.write_json(BufWriter::new(File::create("snapshot.json")?))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `writer`.
    #[cfg(feature = "json")]
    pub fn write_json(&self, mut writer: impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut writer, &self.document())?;
        writer.flush()
    }

    /// Returns the JSON of [`write_json`](Self::write_json) as a string.
    ///
    /// # Errors
    /// None is known: every snapshot can be written.
    #[cfg(feature = "json")]
    pub fn to_json(&self) -> io::Result<String> {
        serde_json::to_string(&self.document()).map_err(io::Error::from)
    }

    /// Writes the snapshot as a pickle, which PyTorch's `_memory_viz.py` and its browser viewer open, and flushes
    /// `writer`. Times are in µs, and sizes in bytes.
    ///
    /// ```
    /// use caching_alloc::core::{Allocator, Settings};
    /// use caching_alloc::host::{HostSource, HostStreams};
    /// use std::{fs::File, io::BufWriter, sync::Arc};
    ///
    /// let source = Arc::new(HostSource::new(1 << 30));
    /// let allocator = Allocator::new(source, Arc::new(HostStreams::new()), Settings::default());
    /// # let folder = tempfile::tempdir()?;
    /// # std::env::set_current_dir(&folder)?;
    /// allocator.snapshot()?.write_pickle(BufWriter::new(File::create("snapshot.pickle")?))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `writer`.
    #[cfg(feature = "pickle")]
    pub fn write_pickle(&self, mut writer: impl io::Write) -> io::Result<()> {
        serde_pickle::to_writer(&mut writer, &self.document(), serde_pickle::SerOptions::new()).map_err(
            |error| match error {
                serde_pickle::Error::Io(error) => error,
                other => io::Error::other(other),
            },
        )?;
        writer.flush()
    }

    fn document(&self) -> Document<'_> {
        let mut device_traces: Vec<Vec<Trace>> = Vec::new();
        device_traces.resize_with(self.device as usize + 1, Vec::new);
        let fixed = self.segments.iter();
        let fixed = fixed.filter_map(|state| {
            segment(std::slice::from_ref(&state.segment), &state.blocks, state.segment.stream(), false)
        });
        let mapped = self.mapped.iter();
        let mapped = mapped.filter_map(|state| segment(&state.segments, &state.blocks, EVERY_STREAM, true));
        let kept = &self.trace[complete_from(&self.trace)..];
        device_traces[self.device as usize] = self.traces(kept);
        Document {
            segments: fixed.chain(mapped).collect(),
            device_traces,
            allocator_settings: Settings {
                expandable_segments: !self.mapped.is_empty(),
                max_split_size: self.settings.max_split.map_or(-1, int),
                garbage_collection_threshold: self.settings.collect_above.map_or(0.0, Fraction::part),
                roundup_power2_divisions: self.settings.rounding,
                large_segment_size: int(self.settings.large_segment),
                memory_limit: self.settings.memory_limit.map(int),
            },
            external_annotations: kept.iter().filter_map(|entry| self.annotation(entry)).collect(),
            generation: int(self.generation),
        }
    }

    fn traces(&self, kept: &[Entry]) -> Vec<Trace> {
        let pages = self.trace.iter().filter_map(|entry| match &entry.action {
            Action::SegmentMap(page) => Some(page.id()),
            _ => None,
        });
        let pages = pages.collect();
        kept.iter().filter_map(|entry| self.trace_entry(entry, &pages)).collect()
    }

    /// Returns an entry in the form of the viewer. Returns `None` for annotations, which are in a separate list, and
    /// for moves of segments to another stream. When a pool is dropped, its pages get `SegmentFree` entries. These are
    /// written as unmappings, which the viewer expects for pages. `pages` has the ids of the pages whose `SegmentMap`
    /// entry is in the snapshot.
    fn trace_entry(&self, entry: &Entry, pages: &HashSet<SegmentId>) -> Option<Trace> {
        let (mut kind, mut stream) = (entry.action.kind(), entry.stream);
        let mut request = None;
        let (addr, device_free, size) = match &entry.action {
            Action::Alloc(span) | Action::FreeRequested(span) | Action::FreeCompleted(span) => {
                request = Some(span.request);
                (Some(span.address), None, span.requested)
            }
            Action::SegmentAlloc(segment)
            | Action::SegmentFree(segment)
            | Action::SegmentMap(segment)
            | Action::SegmentUnmap(segment) => {
                if pages.contains(&segment.id()) && kind == ActionKind::SegmentFree {
                    kind = ActionKind::SegmentUnmap;
                }
                if matches!(kind, ActionKind::SegmentMap | ActionKind::SegmentUnmap) {
                    stream = EVERY_STREAM;
                }
                (Some(segment.address()), None, segment.bytes())
            }
            Action::Snapshot => (Some(0), None, 0),
            Action::OutOfMemory { wanted, free } => (None, Some(free.unwrap_or(0)), *wanted),
            // The tools know a segment's stream from the final state.
            Action::Annotation(_) | Action::SegmentMoved { .. } => return None,
        };
        Some(Trace {
            action: kind.name(),
            addr: addr.map(int),
            device_free: device_free.map(int),
            size: int(size),
            stream: int(stream.0),
            time_us: self.time_us(entry),
            pool_id: pool_id(entry.pool),
            frames: frames(request),
        })
    }

    fn annotation<'a>(&self, entry: &'a Entry) -> Option<Annotation<'a>> {
        let Action::Annotation(name) = &entry.action else { return None };
        Some(Annotation { name, stage: "START", device: entry.device, time_us: self.time_us(entry) })
    }

    /// Returns the wall-clock time of an entry, in µs since the Unix epoch.
    fn time_us(&self, entry: &Entry) -> i64 {
        let began = self.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        int(u64::try_from(began).unwrap_or(u64::MAX).saturating_add(entry.time_ns / 1000))
    }
}

/// The stream that is written for memory that all streams share.
const EVERY_STREAM: StreamId = StreamId(0);

/// Returns the index of the first entry from which on the trace has no gaps. Entries come from several rings, one for
/// structural entries and one for each stream of a pool. A ring has dropped entries if its first entry in the trace has
/// a number greater than 1. The trace is then complete only from that entry on.
///
/// A ring that has no entry in the trace, or whose numbers began at 1 again, leaves a gap that is not detected:
/// - When a pool is dropped, its rings are dropped too.
/// - When the allocator drops its state of a stream in a pool, the ring is dropped too. The numbers of later entries of
///   this stream then begin at 1 again.
/// - While a ring is copied for the snapshot, other threads may overwrite all entries that are to be copied.
fn complete_from(trace: &[Entry]) -> usize {
    let mut firsts = HashMap::new();
    for (at, entry) in trace.iter().enumerate() {
        let ring = entry.action.kind().is_block().then_some((entry.pool, entry.stream));
        firsts.entry(ring).or_insert((at, entry.number));
    }
    firsts.values().filter(|(_, number)| *number > 1).map(|(at, _)| *at).max().unwrap_or(0)
}

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn pool_id(pool: PoolId) -> (u32, u32) {
    (0, pool.0)
}

/// Returns the stack of a request: one frame with its source location and its name, or none if there is no request.
fn frames(request: Option<RequestInfo>) -> Vec<Frame> {
    let frame = request.map(|RequestInfo { call_site, name }| Frame {
        filename: call_site.file(),
        line: call_site.line(),
        name: name.map_or("??", Name::as_str),
    });
    frame.into_iter().collect()
}

/// Returns neighbouring segments as one segment of the viewer, with all of their blocks. Returns `None` if `segments`
/// is empty.
fn segment(
    segments: &[core::Segment],
    blocks: &[BlockState],
    stream: StreamId,
    is_expandable: bool,
) -> Option<Segment> {
    let first = segments.first()?;
    let sum = |of: fn(&BlockState) -> u64| int(blocks.iter().map(of).sum());
    Some(Segment {
        device: first.device(),
        address: int(first.address()),
        total_size: int(segments.iter().map(core::Segment::bytes).sum()),
        allocated_size: sum(BlockState::allocated_bytes),
        active_size: sum(BlockState::active_bytes),
        requested_size: sum(|block| block.requested),
        stream: int(stream.0),
        segment_type: first.class(),
        segment_pool_id: pool_id(first.pool()),
        is_expandable,
        frames: Vec::new(),
        blocks: blocks.iter().map(block).collect(),
    })
}

fn block(block: &BlockState) -> Block {
    let state = match block.usage {
        Usage::Active => "active_allocated",
        Usage::PendingFree => "active_pending_free",
        Usage::Inactive => "inactive",
    };
    Block {
        address: int(block.address),
        size: int(block.bytes),
        requested_size: int(block.requested),
        state,
        frames: frames(block.request),
    }
}
