//! Runs the allocator and the model side by side, step by step.

use std::sync::Arc;

use caching_alloc::core::{
    AllocError, Allocator, Attachment, Block, Capture, Filter, Freeze, GraphMemory, GraphPool, GraphUse,
    Hold, Pool, PoolId, PoolKind, PoolSettings, Reuse, SegmentMemory, StreamId, ThreadRoute,
};
use caching_alloc::host::{HostSource, HostStreams};

use super::super::common::{MIB, s};
use super::intervals::Span;
use super::ledger::{Ledger, Uses, at};
use super::mirror::{Late, Mirror};
use super::scenario::Scenario;
use super::step::{STREAMS, Step, Which};
use super::watched::{Shared, Watched};

/// The stream that carries collectives.
const COLLECTIVE: StreamId = StreamId(STREAMS - 1);

pub(super) struct Machine {
    pub(super) lends: bool,
    pub(super) borrows: bool,
    /// True if a limit may be set.
    limited: bool,
    pub(super) allocator: Allocator,
    pub(super) source: Arc<Watched>,
    pub(super) streams: Arc<HostStreams>,
    pub(super) ledger: Arc<Shared>,
    /// The pools, indexed by [`Which`], without the graph pool.
    pub(super) pools: Vec<Pool>,
    graph_pool: GraphPool,
    pub(super) live: Vec<Live>,
    freezes: Vec<(Which, Freeze)>,
    /// The guards that route requests. The newest one takes precedence.
    guards: Vec<Guard>,
    capturing: [bool; STREAMS as usize],
    graphs: Vec<GraphMemory>,
    /// Graphs that use blocks, each with the addresses and the physical memory of these blocks.
    pub(super) used: Vec<(GraphUse, Vec<Span>)>,
    pub(super) holds: Vec<Hold>,
    /// The number of the streams' waits that have been checked.
    waits: usize,
    attachment: Attachment,
    pub(super) late: Option<(Attachment, Arc<Late>)>,
    pub(super) reader: Mirror,
}

pub(super) struct Live {
    pub(super) block: Block,
    /// The block's addresses, and its physical memory.
    span: Span,
    memory: Vec<Span>,
    users: Vec<StreamId>,
}

enum Guard {
    Thread { which: Which, id: PoolId, _route: ThreadRoute },
    Capture { stream: StreamId, capture: Capture },
}

/// The pool that a request goes to.
#[derive(Clone, Copy)]
struct Target {
    which: Which,
    id: PoolId,
}

impl Machine {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let &Scenario { ref settings, capacity, lends, borrows, .. } = scenario;
        let streams = Arc::new(HostStreams::new());
        let ledger = Shared::new(Ledger::new(streams.clone(), settings.memory_limit));
        let source = Arc::new(Watched { host: HostSource::new(capacity), ledger: ledger.clone() });
        let allocator = Allocator::new(source.clone(), streams.clone(), settings.clone());
        allocator.mark_collective(COLLECTIVE);
        let attachment = allocator.attach(ledger.clone(), Filter::structural()).unwrap();
        let made = |which| match which {
            Which::Default => allocator.default_pool().clone(),
            other => allocator.pool(pool_settings(other, lends, borrows)).unwrap(),
        };
        let pools = Which::ALL[..4].iter().copied().map(made).collect();
        let graph_pool = allocator.graph_pool(PoolSettings::default()).unwrap();
        let mut machine = Self {
            lends,
            borrows,
            limited: settings.memory_limit.is_some(),
            allocator,
            source,
            streams,
            ledger,
            pools,
            graph_pool,
            live: Vec::new(),
            freezes: Vec::new(),
            guards: Vec::new(),
            capturing: [false; STREAMS as usize],
            graphs: Vec::new(),
            used: Vec::new(),
            holds: Vec::new(),
            waits: 0,
            attachment,
            late: None,
            reader: Mirror::default(),
        };
        machine.note_kept();
        machine
    }

    /// Does a step. Returns true if there was anything to do. Panics if the model finds an inconsistency.
    pub(super) fn apply(&mut self, step: Step) -> bool {
        let done = self.step(step);
        self.check_waits();
        if let Some(wrong) = self.ledger.open().take_wrong() {
            panic!("{wrong}, in {step:?}");
        }
        done
    }

    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Allocate { bytes, stream, pool } => self.allocate(bytes, s(stream), pool),
            Step::Free(index) if !self.live.is_empty() => self.free(index % self.live.len()),
            Step::Record(index, stream) if !self.live.is_empty() => {
                self.record(index % self.live.len(), s(stream));
            }
            Step::Complete(stream) => self.streams.complete(s(stream)),
            Step::Capture(stream, on) if self.capture_of(s(stream)).is_none() => {
                self.set_capturing(s(stream), on);
            }
            Step::Graph(stream, keep) => self.graph(s(stream), keep),
            Step::DropGraph(index) if !self.graphs.is_empty() => {
                let graph = self.graphs.swap_remove(index % self.graphs.len());
                graph.segments().for_each(|segment| self.ledger.open().drop_hold(segment.memory()));
                drop(graph);
                self.note_kept();
            }
            Step::UseInGraph(index) if !self.live.is_empty() => self.use_in_graph(index % self.live.len()),
            Step::EndUse(index) if !self.used.is_empty() => {
                drop(self.used.swap_remove(index % self.used.len()));
            }
            Step::Freeze(which, on) => {
                self.freezes.retain(|(frozen, _)| *frozen != which);
                if on {
                    let freeze = match which {
                        Which::Graph => self.graph_pool.freeze(),
                        other => self.pools[other as usize].freeze(),
                    };
                    self.freezes.push((which, freeze));
                }
                self.note_kept();
            }
            Step::Trim(bytes) => self.trim(bytes),
            Step::Route(which) => {
                let pool = &self.pools[which as usize];
                self.guards.push(Guard::Thread { which, id: pool.id(), _route: pool.use_on_this_thread() });
            }
            Step::Unroute(index) if !self.guards.is_empty() => {
                let at = index % self.guards.len();
                if matches!(self.guards[at], Guard::Thread { .. }) {
                    drop(self.guards.remove(at));
                }
            }
            Step::Hold(index) if !self.live.is_empty() => {
                for segment in self.live[index % self.live.len()].block.segments() {
                    self.holds.push(segment.hold("somebody").unwrap());
                    self.ledger.open().hold(segment.memory());
                }
            }
            Step::LetGo(index) if !self.holds.is_empty() => {
                let hold = self.holds.swap_remove(index % self.holds.len());
                self.ledger.open().drop_hold(hold.segment().memory());
            }
            Step::Renew(which) => {
                self.freezes.retain(|(frozen, _)| *frozen != which);
                self.note_kept();
                let settings = pool_settings(which, self.lends, self.borrows);
                self.pools[which as usize] = self.allocator.pool(settings).unwrap();
            }
            Step::Limit(bytes) if self.limited => {
                let limit = (bytes > 0).then_some(bytes);
                self.allocator.set_memory_limit(limit);
                self.ledger.open().limit = limit;
            }
            Step::Attach => {
                let late = Arc::new(Late::default());
                let attachment = self.allocator.attach(late.clone(), Filter::structural()).unwrap();
                self.late = Some((attachment, late));
            }
            Step::CatchUp => self.reader.catch_up(&self.allocator).unwrap(),
            _ => return false,
        }
        true
    }

    /// Checks the waits between streams since the last check.
    fn check_waits(&mut self) {
        for (waiter, other) in self.streams.waits_after(self.waits) {
            self.waits += 1;
            assert_eq!(self.allocator.settings().reuse, Reuse::DeviceWait, "{waiter} waits for {other}");
            for stream in [waiter, other] {
                assert!(stream != COLLECTIVE, "collectives' streams neither wait nor are waited for");
                assert!(!self.is_capturing(stream), "nor do captured ones");
            }
        }
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId, by_name: Option<Which>) {
        let named = by_name.map(|which| Target { which, id: self.pools[which as usize].id() });
        let target = named.unwrap_or_else(|| self.target(stream));
        let frozen = self.ids_of_frozen().contains(&target.id);
        let calls = self.source.host.calls();
        let refused = self.is_capturing(stream) && !self.ledger.open().kept.contains(&target.id);
        let got = match by_name {
            Some(which) => self.pools[which as usize].allocate(bytes, stream),
            None => self.allocator.allocate(bytes, stream),
        };
        let block = match got {
            Ok(block) => block,
            Err(AllocError::OutOfMemory(error)) => {
                assert!(!frozen);
                assert_eq!((error.wanted, error.stream, error.pool), (bytes, stream, target.id));
                let room = error.limit.unwrap_or(u64::MAX).saturating_sub(error.reserved);
                let free = error.info.unwrap().free.min(room);
                assert!(error.segment > free, "{free} bytes would have been enough: {error}");
                let but = (target.which == Which::Remapped).then_some(target.id);
                return self.check_exhausted(but);
            }
            Err(AllocError::PoolWouldGrowDuringCapture { wanted, missing, pool }) => {
                assert!(frozen && wanted == bytes && missing >= bytes && pool == target.id);
                return;
            }
            Err(AllocError::CaptureOutsideGraphPool { pool, stream: captured }) => {
                assert!(refused && (pool, captured) == (target.id, stream));
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!refused, "memory of pool {} does not stay for a graph", target.id.0);
        if frozen {
            assert_eq!(self.source.host.calls(), calls, "a frozen pool asks its source for nothing");
        }
        assert_eq!((block.stream(), block.requested()), (stream, bytes));
        self.check_pool(&block, target);
        let (span, memory) = self.check_place(&block, target.which);
        let spans = || memory.iter().chain([&span]);
        let is_used = |used: &Span| {
            spans().any(|span| used.space == span.space && used.begin < span.end && span.begin < used.end)
        };
        assert!(!self.used.iter().any(|(_, used)| used.iter().any(is_used)), "a graph uses {block:?}");
        self.ledger.open().take(span, &memory, block.pool(), stream);
        self.streams.enqueue(stream);
        self.live.push(Live { block, span, memory, users: Vec::new() });
    }

    /// The pool that a request to the allocator itself should use.
    fn target(&self, stream: StreamId) -> Target {
        let of = |guard: &Guard| match guard {
            Guard::Thread { which, id, .. } => Some(Target { which: *which, id: *id }),
            Guard::Capture { stream: captured, .. } => {
                (*captured == stream).then(|| Target { which: Which::Graph, id: self.graph_pool.id() })
            }
        };
        let default = Target { which: Which::Default, id: PoolId::default() };
        self.guards.iter().rev().find_map(of).unwrap_or(default)
    }

    /// Checks that a block is of the requested pool, or of one that lends to it.
    fn check_pool(&self, block: &Block, target: Target) {
        let of = block.pool();
        if of == target.id {
            return;
        }
        let default = PoolId::default();
        let (from_private, to_private) = (self.names_private(of), target.which == Which::Private);
        let lent = target.id == default && from_private && self.lends;
        let borrowed = to_private && of == default && self.borrows;
        assert!(lent || borrowed, "{block:?} was asked of pool {}", target.id.0);
        assert!(!self.ids_of_frozen().contains(&of), "a frozen pool lends nothing");
        assert!(!self.is_capturing(block.stream()), "nothing is borrowed for a graph");
    }

    /// Returns true for a private pool: the current one, or an earlier one that was replaced.
    fn names_private(&self, id: PoolId) -> bool {
        let others = [Which::Default, Which::Whole, Which::Remapped];
        id != self.graph_pool.id() && others.iter().all(|which| self.pools[*which as usize].id() != id)
    }

    /// Checks the place of a block; returns its addresses and its physical memory.
    fn check_place(&self, block: &Block, which: Which) -> (Span, Vec<Span>) {
        let settings = self.allocator.settings();
        assert!(block.bytes() >= block.requested() && block.bytes().is_multiple_of(512));
        assert!(block.address().is_multiple_of(512));
        let cached = matches!(which, Which::Default | Which::Private | Which::Graph);
        let longest = settings.max_split.filter(|_| cached).map(|max| max.next_multiple_of(2 * MIB));
        let asked = settings.rounding.round(block.requested());
        if which != Which::Whole && longest.is_none_or(|longest| block.requested() <= longest) {
            assert!(block.bytes() < asked + 512, "no more than was asked for");
        } else if which != Which::Whole {
            assert!(block.bytes() <= asked + 512 + settings.max_unsplit_waste);
        }
        let segments = block.segments();
        assert!(segments.len() == 1 || which == Which::Remapped);
        let ledger = self.ledger.open();
        let (begin, end) = (block.address(), block.address() + block.bytes());
        let mut next = begin;
        let mut memory = Vec::new();
        for segment in segments {
            let SegmentMemory { address, bytes, token } = segment.memory();
            assert_eq!(ledger.mirror.segment_at(address), Some(&segment), "trackers know it already");
            assert_eq!(segment.pool(), block.pool());
            assert!((address..address + bytes).contains(&next), "{block:?} lies in its segments");
            let whole = bytes == block.bytes();
            let longest =
                longest.filter(|_| block.pool() == self.pools[which as usize % self.pools.len()].id());
            assert!(whole || longest.is_none_or(|longest| bytes <= longest), "{segment:?} is not split");
            let to = end.min(address + bytes);
            assert_eq!(self.source.host.physical(next), Some((token, next - address)), "it is mapped");
            memory.push(Span { space: token, begin: next - address, end: to - address });
            next = to;
        }
        assert_eq!(next, end, "{block:?} lies in its segments");
        let usable = which != Which::Remapped || self.source.host.is_usable(begin, block.bytes());
        assert!(usable, "the device may use it");
        (at(begin, block.bytes()), memory)
    }

    pub(super) fn free(&mut self, index: usize) {
        let Live { block, span, memory, users } = self.live.swap_remove(index);
        let streams: Vec<_> = users.iter().chain([&block.stream()]).copied().collect();
        streams.iter().for_each(|stream| self.streams.enqueue(*stream));
        // Work of a captured stream runs when the graph is launched, and the program orders these launches.
        let counts = |stream: &StreamId| *stream == block.stream() || !self.is_capturing(*stream);
        let uses = streams.into_iter().filter(counts);
        let uses: Uses = uses.map(|stream| (stream, self.streams.position(stream))).collect();
        self.ledger.open().leave(span, &memory, &uses);
        drop(block);
    }

    fn record(&mut self, index: usize, stream: StreamId) {
        let live = &mut self.live[index];
        live.block.record_stream(stream).unwrap();
        live.users.push(stream);
    }

    /// Makes the newest graph, or a new one, a user of a block. The blocks of the graph pool may be reused.
    fn use_in_graph(&mut self, index: usize) {
        let Live { block, span, memory, .. } = &self.live[index];
        if self.used.is_empty() || index.is_multiple_of(2) {
            self.used.push(Default::default());
        }
        let (graph, used) = self.used.last_mut().expect("there is one");
        assert!(self.allocator.used_by_graph(block.address(), block.bytes(), graph), "{block:?}");
        if block.pool() != self.graph_pool.id() {
            used.extend(memory.iter().chain([span]));
        }
    }

    fn set_capturing(&mut self, stream: StreamId, on: bool) {
        self.streams.set_capturing(stream, on);
        self.capturing[stream.0 as usize] = on;
    }

    pub(super) fn is_capturing(&self, stream: StreamId) -> bool {
        self.capturing[stream.0 as usize]
    }

    fn capture_of(&self, stream: StreamId) -> Option<usize> {
        let of =
            |guard: &Guard| matches!(guard, Guard::Capture { stream: captured, .. } if *captured == stream);
        self.guards.iter().position(of)
    }

    /// Begins a capture of the stream, or ends it.
    fn graph(&mut self, stream: StreamId, keep: bool) {
        if let Some(at) = self.capture_of(stream) {
            self.set_capturing(stream, false);
            if let Guard::Capture { capture, .. } = self.guards.remove(at)
                && keep
            {
                let graph = capture.end();
                graph.segments().for_each(|segment| self.ledger.open().hold(segment.memory()));
                self.graphs.push(graph);
            }
        } else if !self.is_capturing(stream) {
            self.guards.push(Guard::Capture { stream, capture: self.graph_pool.capture(&[stream]) });
            self.set_capturing(stream, true);
        }
        self.note_kept();
    }

    fn ids_of_frozen(&self) -> Vec<PoolId> {
        let id = |which: Which| match which {
            Which::Graph => self.graph_pool.id(),
            other => self.pools[other as usize].id(),
        };
        self.freezes.iter().map(|(which, _)| id(*which)).collect()
    }

    /// Updates the ledger's list of pools that must keep their memory.
    fn note_kept(&mut self) {
        let mut kept = self.ids_of_frozen();
        let captured = self.guards.iter().any(|guard| matches!(guard, Guard::Capture { .. }));
        if captured || !self.graphs.is_empty() {
            kept.push(self.graph_pool.id());
        }
        self.ledger.open().kept = kept;
    }

    fn trim(&mut self, bytes: u64) {
        let reserved = self.allocator.stats().reserved.current;
        let went = self.allocator.trim_to(bytes).unwrap();
        assert_eq!(self.allocator.stats().reserved.current, reserved - went);
        if bytes == 0 {
            self.check_nothing_idle(None);
            self.check_merged();
        }
    }

    /// Ends all captures, drops all guards, holds, graphs and blocks, and completes all work.
    pub(super) fn release_all(&mut self) {
        self.freezes.clear();
        (0..STREAMS).for_each(|stream| self.set_capturing(s(stream), false));
        self.guards.clear();
        for hold in self.holds.drain(..) {
            self.ledger.open().drop_hold(hold.segment().memory());
        }
        for graph in self.graphs.drain(..) {
            graph.segments().for_each(|segment| self.ledger.open().drop_hold(segment.memory()));
        }
        self.used.clear();
        self.note_kept();
        while !self.live.is_empty() {
            self.free(self.live.len() - 1);
        }
        (0..STREAMS).for_each(|stream| self.streams.complete(s(stream)));
    }

    /// Drops the allocator with its pools. Returns the number of bytes that the source has not got back.
    pub(super) fn dismantle(self) -> u64 {
        let Self { allocator, pools, graph_pool, attachment, late, source, ledger, .. } = self;
        ledger.open().kept.clear();
        drop((pools, graph_pool, late));
        drop(attachment);
        drop(allocator);
        if let Some(wrong) = ledger.open().take_wrong() {
            panic!("{wrong}, at the end");
        }
        source.host.calls().live_bytes
    }
}

fn pool_settings(which: Which, lends: bool, borrows: bool) -> PoolSettings {
    match which {
        Which::Private => PoolSettings { lends, borrows, ..PoolSettings::default() },
        Which::Whole => PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() },
        Which::Remapped => PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() },
        Which::Default | Which::Graph => PoolSettings::default(),
    }
}
