//! Converts a snapshot into spans that can be drawn: the content of each address over time.
//!
//! A moment is a number of events: at moment 0 none has happened, at the last moment all have. The final state is
//! known, and the events are undone one by one. A trace that begins late is therefore complete enough.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::trace::snapshot::{Action, BlockState, Event, Snapshot};

/// A block or segment at an address from one moment until another. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) from: u32,
    /// The first moment without it.
    pub(super) until: u32,
    pub(super) stream: u64,
}

impl Span {
    pub(super) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) span: Span,
    /// The moment after which only other streams used it.
    pub(super) let_go: u32,
    /// Index of the owner.
    pub(super) owner: u32,
}

/// Memory from the driver. The allocator treats neighbouring pages as one segment, but not neighbouring segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) span: Span,
    pub(super) is_page: bool,
}

/// One device's history.
#[derive(Debug)]
pub(super) struct History {
    pub(super) device: u32,
    pub(super) blocks: Vec<Block>,
    pub(super) segments: Vec<Segment>,
    /// Call sites, and size classes for blocks without one.
    pub(super) owners: Vec<String>,
    /// Moments, the last one included.
    pub(super) moments: u32,
}

/// Samples of the state at some moments. Sizes in bytes.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Curves {
    pub(super) moment: Vec<u32>,
    /// Bytes in blocks that cannot be reused yet.
    pub(super) active: Vec<u64>,
    /// Bytes in segments.
    pub(super) reserved: Vec<u64>,
    /// The longest run of reserved bytes outside of blocks.
    pub(super) largest_free: Vec<u64>,
}

impl History {
    /// Builds the history of the device with the most events.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let traces = snapshot.device_traces.iter().enumerate();
        let busiest = traces.filter(|(_, trace)| !trace.is_empty()).max_by_key(|(_, trace)| trace.len());
        let first = snapshot.segments.first().map_or(0, |segment| segment.device);
        let (device, events) = match busiest {
            Some((device, events)) => (device as u32, &events[..]),
            None => (first, &[][..]),
        };
        let mut undo = Undo::default();
        let end = events.len() as u32 + 1;
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            let open = OpenSegment { bytes: segment.total_size, until: end, stream: segment.stream };
            undo.open_segments.insert(segment.address, (open, segment.is_expandable));
            let mut address = segment.address;
            for block in &segment.blocks {
                if block.state != BlockState::Inactive {
                    let owner = undo.owner(block.call_site.as_deref(), block.size);
                    let let_go = if block.state == BlockState::ActivePendingFree { 0 } else { end };
                    let open =
                        OpenBlock { bytes: block.size, until: end, let_go, stream: segment.stream, owner };
                    undo.open_blocks.insert(address, open);
                }
                address += block.size;
            }
        }
        for (at, event) in events.iter().enumerate().rev() {
            undo.event(event, at as u32 + 1);
        }
        undo.finish(device, end)
    }

    /// Returns the curves at no more than about `points` moments. Each interval keeps the moments with the highest
    /// and the lowest values, so that no peak is lost.
    pub(super) fn curves(&self, points: usize) -> Curves {
        let moments = self.moments as usize;
        let mut active = vec![0i64; moments + 1];
        let mut reserved = active.clone();
        for Block { span, .. } in &self.blocks {
            active[span.from as usize] += span.bytes as i64;
            active[span.until as usize] -= span.bytes as i64;
        }
        for Segment { span, .. } in &self.segments {
            reserved[span.from as usize] += span.bytes as i64;
            reserved[span.until as usize] -= span.bytes as i64;
        }
        for at in 1..moments {
            active[at] += active[at - 1];
            reserved[at] += reserved[at - 1];
        }
        let mut chosen = Vec::new();
        let stretch = (moments * 5).div_ceil(points.max(1)).max(1);
        for from in (0..moments).step_by(stretch) {
            let range = || from..(from + stretch).min(moments);
            let mut some = vec![from];
            some.extend(range().max_by_key(|at| active[*at]));
            some.extend(range().min_by_key(|at| active[*at]));
            some.extend(range().max_by_key(|at| reserved[*at]));
            some.extend(range().max_by_key(|at| reserved[*at] - active[*at]));
            some.sort_unstable();
            some.dedup();
            chosen.extend(some);
        }
        chosen.extend(moments.checked_sub(1).filter(|last| chosen.last() != Some(last)));
        let bytes = |curve: &[i64]| chosen.iter().map(|at| curve[*at].max(0) as u64).collect();
        Curves {
            active: bytes(&active),
            reserved: bytes(&reserved),
            largest_free: self.largest_free(&chosen),
            moment: chosen.into_iter().map(|at| at as u32).collect(),
        }
    }

    /// Returns the longest free run at each of these moments, which ascend.
    fn largest_free(&self, moments: &[usize]) -> Vec<u64> {
        let mut blocks = Sweep::new(self.blocks.iter().map(|block| (block.span, false)));
        let mut segments = Sweep::new(self.segments.iter().map(|segment| (segment.span, segment.is_page)));
        let largest = |moment: &usize| {
            blocks.advance(*moment as u32);
            segments.advance(*moment as u32);
            let mut used = blocks.live.iter().map(|(start, (end, _))| (*start, *end)).peekable();
            let (mut longest, mut free_from, mut joins) = (0, 0, 0);
            for (start, (end, is_page)) in &segments.live {
                if !(*is_page && joins == *start) {
                    free_from = *start;
                }
                while let Some((block, block_end)) = used.next_if(|(block, _)| block < end) {
                    longest = longest.max(block.saturating_sub(free_from));
                    free_from = free_from.max(block_end);
                }
                longest = longest.max(end.saturating_sub(free_from));
                joins = if *is_page { *end } else { 0 };
            }
            longest
        };
        moments.iter().map(largest).collect()
    }
}

/// The live spans as time advances.
struct Sweep {
    /// By their first moment, the latest first.
    begins: Vec<(Span, bool)>,
    /// By their last moment, the latest first.
    ends: Vec<Span>,
    live: BTreeMap<u64, (u64, bool)>,
}

impl Sweep {
    fn new(spans: impl Iterator<Item = (Span, bool)>) -> Self {
        let mut begins: Vec<_> = spans.filter(|(span, _)| span.from < span.until).collect();
        let mut ends: Vec<_> = begins.iter().map(|(span, _)| *span).collect();
        begins.sort_by_key(|(span, _)| std::cmp::Reverse(span.from));
        ends.sort_by_key(|span| std::cmp::Reverse(span.until));
        Self { begins, ends, live: BTreeMap::new() }
    }

    /// Advances to `moment`, in the order of events: an address may be freed and reused in between.
    fn advance(&mut self, moment: u32) {
        loop {
            let end = self.ends.last().filter(|span| span.until <= moment);
            let begin = self.begins.last().filter(|(span, _)| span.from <= moment);
            match (end, begin) {
                (Some(end), begin) if begin.is_none_or(|(begin, _)| end.until <= begin.from) => {
                    self.live.remove(&end.address);
                    self.ends.pop();
                }
                (_, Some((span, is_page))) => {
                    self.live.insert(span.address, (span.end(), *is_page));
                    self.begins.pop();
                }
                _ => return,
            }
        }
    }
}

struct OpenBlock {
    bytes: u64,
    until: u32,
    let_go: u32,
    stream: u64,
    owner: u32,
}

#[derive(Clone, Copy)]
struct OpenSegment {
    bytes: u64,
    until: u32,
    stream: u64,
}

/// The state at the moment to which events are undone.
#[derive(Default)]
struct Undo {
    open_blocks: HashMap<u64, OpenBlock>,
    open_segments: BTreeMap<u64, (OpenSegment, bool)>,
    blocks: Vec<Block>,
    segments: Vec<Segment>,
    owners: HashMap<String, u32>,
}

impl Undo {
    fn owner(&mut self, call_site: Option<&str>, bytes: u64) -> u32 {
        let label = call_site.map_or_else(|| size_class(bytes), str::to_owned);
        let next = self.owners.len() as u32;
        *self.owners.entry(label).or_insert(next)
    }

    /// Undoes an event, which led to moment `at`.
    fn event(&mut self, event: &Event, at: u32) {
        let Event { addr, size: bytes, stream, .. } = *event;
        match event.action {
            Action::Alloc => {
                if let Some(open) = self.open_blocks.remove(&addr) {
                    let owner = match &event.call_site {
                        Some(site) => self.owner(Some(site), bytes),
                        None => open.owner,
                    };
                    self.close_block(addr, OpenBlock { owner, stream, ..open }, at);
                }
            }
            Action::FreeRequested => {
                self.open_blocks.entry(addr).and_modify(|open| open.let_go = at);
            }
            Action::FreeCompleted => {
                let owner = self.owner(None, bytes);
                self.open_blocks.insert(addr, OpenBlock { bytes, until: at, let_go: at, stream, owner });
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let is_page = event.action == Action::SegmentUnmap;
                self.open_segments.insert(addr, (OpenSegment { bytes, until: at, stream }, is_page));
            }
            Action::SegmentAlloc | Action::SegmentMap => self.cut(addr, addr + bytes, at),
            Action::Oom | Action::Other => {}
        }
    }

    /// The segments between two addresses began at moment `from`; parts outside of the range are older.
    fn cut(&mut self, start: u64, end: u64, from: u32) {
        let before = self.open_segments.range(..start).next_back();
        let first = before.filter(|(at, (open, _))| **at + open.bytes > start).map_or(start, |(at, _)| *at);
        let within: Vec<u64> = self.open_segments.range(first..end).map(|(at, _)| *at).collect();
        for at in within {
            let Some((open, is_page)) = self.open_segments.remove(&at) else { continue };
            let (cut_start, cut_end) = (at.max(start), (at + open.bytes).min(end));
            if at < cut_start {
                self.open_segments.insert(at, (OpenSegment { bytes: cut_start - at, ..open }, is_page));
            }
            if cut_end < at + open.bytes {
                let rest = OpenSegment { bytes: at + open.bytes - cut_end, ..open };
                self.open_segments.insert(cut_end, (rest, is_page));
            }
            self.close_segment(cut_start, OpenSegment { bytes: cut_end - cut_start, ..open }, is_page, from);
        }
    }

    fn close_block(&mut self, address: u64, open: OpenBlock, from: u32) {
        let OpenBlock { bytes, until, let_go, stream, owner } = open;
        let span = Span { address, bytes, from, until, stream };
        self.blocks.push(Block { span, let_go: let_go.max(from), owner });
    }

    fn close_segment(&mut self, address: u64, open: OpenSegment, is_page: bool, from: u32) {
        let OpenSegment { bytes, until, stream } = open;
        self.segments.push(Segment { span: Span { address, bytes, from, until, stream }, is_page });
    }

    fn finish(mut self, device: u32, moments: u32) -> History {
        for (address, open) in std::mem::take(&mut self.open_blocks) {
            self.close_block(address, open, 0);
        }
        for (address, (open, is_page)) in std::mem::take(&mut self.open_segments) {
            self.close_segment(address, open, is_page, 0);
        }
        self.blocks.sort_by_key(|block| (block.span.from, block.span.address));
        self.segments.sort_by_key(|segment| (segment.span.from, segment.span.address));
        let mut owners = vec![String::new(); self.owners.len()];
        for (label, at) in self.owners {
            owners[at as usize] = label;
        }
        History { device, blocks: self.blocks, segments: self.segments, owners, moments }
    }
}

/// Returns the range between powers of two that contains a size, such as `2 to 4 MiB`.
fn size_class(bytes: u64) -> String {
    if bytes < 512 {
        return "below 512 B".into();
    }
    let unit = bytes.ilog2() / 10;
    let name = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit as usize % 6];
    let low = 1u64 << (bytes.ilog2() % 10);
    if low == 512 {
        let next = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit as usize % 6];
        return format!("512 {name} to 1 {next}");
    }
    format!("{low} to {} {name}", low * 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Policy;
    use crate::trace::budget::ReadLimit;
    use crate::trace::{Format, Origin, Recording, Trace};

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { action, addr, size, stream: 3, time_us: 0, call_site: None }
    }

    #[test]
    fn a_trace_that_begins_late_is_undone_to_its_beginning() {
        let json = r#"{"segments": [{"address": 0, "total_size": 8192, "is_expandable": true, "blocks": [
                {"size": 4096, "state": "inactive"},
                {"size": 4096, "state": "active_pending_free", "frames": [
                    {"filename": "a.rs", "line": 7, "name": "??"}]}]}]}"#;
        let mut snapshot =
            Snapshot::read(json.as_bytes(), Format::Json, &Origin::BuiltIn, &ReadLimit::default().budget(0))
                .unwrap();
        snapshot.device_traces = vec![vec![
            event(Action::FreeRequested, 0, 1024),
            event(Action::FreeCompleted, 0, 1024),
            event(Action::SegmentMap, 4096, 2048),
            event(Action::SegmentUnmap, 16384, 512),
            event(Action::Alloc, 4096, 4096),
            event(Action::FreeRequested, 4096, 4096),
        ]];
        let history = History::of(&snapshot);
        let span = |address, bytes, from, until, stream| Span { address, bytes, from, until, stream };
        let blocks: Vec<_> = history
            .blocks
            .iter()
            .map(|block| (block.span, block.let_go, &*history.owners[block.owner as usize]))
            .collect();
        assert_eq!(
            blocks,
            [(span(0, 1024, 0, 2, 3), 1, "1 to 2 KiB"), (span(4096, 4096, 5, 7, 3), 6, "a.rs:7")]
        );
        let segments: Vec<_> = history.segments.iter().map(|segment| segment.span).collect();
        assert_eq!(
            segments,
            [
                span(0, 4096, 0, 7, 0),
                span(6144, 2048, 0, 7, 0),
                span(16384, 512, 0, 4, 3),
                span(4096, 2048, 3, 7, 0)
            ]
        );
        let curves = history.curves(1000);
        assert_eq!(curves.moment, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(curves.active, [1024, 1024, 0, 0, 0, 4096, 4096]);
        assert_eq!(curves.reserved, [6656, 6656, 6656, 8704, 8192, 8192, 8192]);
        assert_eq!(curves.largest_free, [3072, 3072, 4096, 8192, 8192, 4096, 4096]);
    }

    #[test]
    fn a_replay_is_drawn_as_it_was() {
        let path = crate::trace::recorded("two_stream.trace.gz");
        let Recording::Trace(trace) = Recording::load(&path, ReadLimit::default()).unwrap() else {
            panic!("a trace")
        };
        let Trace { allocations, peak_active, .. } = trace;
        for policy in [Policy::Fixed, Policy::Remap] {
            let history = History::of(&super::super::replay::run(&trace, policy).unwrap());
            assert_eq!(history.blocks.len(), allocations as usize);
            let all = history.curves(usize::MAX);
            assert_eq!(all.moment.len(), history.moments as usize);
            let peak = *all.active.iter().max().unwrap();
            assert!(peak_active <= peak && peak < peak_active * 5 / 4, "{peak}");
            for (at, active) in all.active.iter().enumerate() {
                assert!(all.largest_free[at] <= all.reserved[at] - active, "moment {at}");
            }
            // The omitted moments are neither peaks nor ends.
            let some = history.curves(200);
            assert!(some.moment.len() <= 220 && some.moment.is_sorted(), "{}", some.moment.len());
            assert_eq!(some.active.iter().max(), all.active.iter().max());
            assert_eq!(some.reserved.iter().max(), all.reserved.iter().max());
            assert_eq!(some.moment.last(), all.moment.last());
        }
    }

    #[test]
    fn size_classes_have_names() {
        for (bytes, name) in [
            (0, "below 512 B"),
            (512, "512 B to 1 KiB"),
            (1024, "1 to 2 KiB"),
            (3 << 20, "2 to 4 MiB"),
            (512 << 20, "512 MiB to 1 GiB"),
            (1 << 40, "1 to 2 TiB"),
        ] {
            assert_eq!(size_class(bytes), name);
        }
    }
}
