//! The allocator against a model that keeps plain intervals and who used them last.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::common::{Bench, MIB, bench, check_tiling, s, tight, used};
use caching_alloc::core::{
    AllocError, Block, Fraction, Freeze, Pool, PoolKind, PoolSettings, Reuse, Rounding, Segment, Settings,
    StreamId, ThreadRoute,
};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Step {
    /// From a pool, or from whichever this thread uses.
    Allocate {
        bytes: u64,
        stream: u64,
        pool: Option<usize>,
    },
    Free(Index),
    Record(Index, u64),
    Complete(u64),
    Capture(u64, bool),
    Freeze(usize, bool),
    Trim(u64),
    Route(usize),
    Unroute(Index),
}

/// Stream 3 carries collectives.
const STREAMS: u64 = 4;
const COLLECTIVE: StreamId = StreamId(3);
/// A stream that has done nothing and waits for nobody.
const NOBODY: StreamId = StreamId(u64::MAX);
/// The default pool, one more, one that never splits, and one whose pages move.
const POOLS: usize = 4;
const PRIVATE: usize = 1;
const WHOLE: usize = 2;
const REMAPPED: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..4096u64, 1..MIB, MIB..5 * MIB, Just(2 * MIB)];
    prop_oneof![
        12 => (bytes, 0..STREAMS, prop::option::weighted(0.7, 0..POOLS))
            .prop_map(|(bytes, stream, pool)| Step::Allocate { bytes, stream, pool }),
        11 => any::<Index>().prop_map(Step::Free),
        4 => (any::<Index>(), 0..STREAMS).prop_map(|(index, stream)| Step::Record(index, stream)),
        3 => (0..STREAMS).prop_map(Step::Complete),
        1 => (0..STREAMS, any::<bool>()).prop_map(|(stream, on)| Step::Capture(stream, on)),
        1 => (0..POOLS, any::<bool>()).prop_map(|(pool, on)| Step::Freeze(pool, on)),
        1 => (0..64u64).prop_map(|mib| Step::Trim(mib * MIB)),
        1 => (0..POOLS).prop_map(Step::Route),
        1 => any::<Index>().prop_map(Step::Unroute),
    ]
}

struct Live {
    block: Block,
    users: Vec<StreamId>,
}

struct Model {
    bench: Bench,
    pools: Vec<Pool>,
    freezes: Vec<Option<Freeze>>,
    /// The pools that this thread uses, the last one first.
    routes: Vec<(usize, ThreadRoute)>,
    lends: bool,
    borrows: bool,
    capturing: [bool; STREAMS as usize],
    live: Vec<Live>,
    /// Who used each unit of physical memory last: what has to come before its next use.
    last_uses: HashMap<(u64, u64), Uses>,
    /// Who used each unit of addresses last: what has to come before it is unmapped.
    last_uses_at: HashMap<u64, Uses>,
    /// Live segments that have had a block, by address: number, length, pool.
    owners: BTreeMap<u64, (u64, u64, usize)>,
    /// Segments that have gone, or moved, but are still mapped: address and length.
    ghosts: Vec<(u64, u64)>,
}

/// As (stream, position).
type Uses = Vec<(StreamId, u64)>;

impl Model {
    fn new(settings: Settings, capacity: u64, lends: bool, borrows: bool) -> Self {
        let bench = bench(capacity, settings);
        bench.allocator.mark_collective(COLLECTIVE);
        let private = PoolSettings { name: "private".into(), lends, borrows, ..PoolSettings::default() };
        let whole = PoolSettings { name: "whole".into(), kind: PoolKind::NoSplit, ..PoolSettings::default() };
        let remapped = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
        let pools = vec![
            bench.allocator.default_pool().clone(),
            bench.allocator.pool(private).unwrap(),
            bench.allocator.pool(whole).unwrap(),
            bench.allocator.pool(remapped).unwrap(),
        ];
        Self {
            bench,
            pools,
            freezes: (0..POOLS).map(|_| None).collect(),
            routes: Vec::new(),
            lends,
            borrows,
            capturing: [false; STREAMS as usize],
            live: Vec::new(),
            last_uses: HashMap::new(),
            last_uses_at: HashMap::new(),
            ghosts: Vec::new(),
            owners: BTreeMap::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        let waits = self.bench.streams.waits().len();
        match step {
            Step::Allocate { bytes, stream, pool } => self.allocate(*bytes, s(*stream), *pool),
            Step::Free(index) => {
                if !self.live.is_empty() {
                    let at = index.index(self.live.len());
                    self.free(at);
                }
            }
            Step::Record(index, stream) => {
                if !self.live.is_empty() {
                    let at = index.index(self.live.len());
                    let live = &mut self.live[at];
                    live.block.record_stream(s(*stream)).unwrap();
                    live.users.push(s(*stream));
                }
            }
            Step::Complete(stream) => self.bench.streams.complete(s(*stream)),
            Step::Capture(stream, on) => {
                self.bench.streams.set_capturing(s(*stream), *on);
                self.capturing[*stream as usize] = *on;
            }
            Step::Route(pool) => self.routes.push((*pool, self.pools[*pool].use_on_this_thread())),
            Step::Unroute(index) => {
                if !self.routes.is_empty() {
                    drop(self.routes.remove(index.index(self.routes.len())));
                }
            }
            Step::Freeze(pool, on) => self.freezes[*pool] = on.then(|| self.pools[*pool].freeze()),
            Step::Trim(bytes) => {
                let reserved = self.bench.allocator.stats().reserved.current;
                let went = self.bench.allocator.trim_to(*bytes).unwrap();
                assert_eq!(self.bench.allocator.stats().reserved.current, reserved - went);
            }
        }
        for (waiter, other) in &self.bench.streams.waits()[waits..] {
            for stream in [waiter, other] {
                assert!(*stream != COLLECTIVE, "collectives' streams neither wait nor are waited for");
                assert!(!self.capturing[stream.0 as usize], "nor do captured ones");
            }
        }
        self.check();
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId, by_name: Option<usize>) {
        let pool = by_name.unwrap_or_else(|| self.routes.last().map_or(0, |(pool, _)| *pool));
        let frozen = self.freezes[pool].is_some();
        let calls = self.bench.source.calls();
        let got = match by_name {
            Some(pool) => self.pools[pool].allocate(bytes, stream),
            None => self.bench.allocator.allocate(bytes, stream),
        };
        let block = match got {
            Ok(block) => block,
            Err(AllocError::OutOfMemory(error)) => {
                assert!(!frozen);
                assert_eq!((error.wanted, error.stream), (bytes, stream));
                let free = error.info.unwrap().free.min(error.limit.unwrap_or(u64::MAX) - error.reserved);
                assert!(error.segment > free, "{free} bytes would have been enough: {error}");
                return;
            }
            Err(AllocError::PoolWouldGrowDuringCapture { wanted, missing, .. }) => {
                assert!(frozen && wanted == bytes && missing >= bytes);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        if frozen {
            assert_eq!(self.bench.source.calls(), calls, "a frozen pool asks its source for nothing");
        }
        assert!(block.bytes() >= bytes && block.address().is_multiple_of(512));
        let settings = self.bench.allocator.settings();
        let long =
            settings.max_split.filter(|_| pool < WHOLE).map_or(u64::MAX, |max| max.next_multiple_of(2 * MIB));
        if pool != WHOLE && bytes <= long {
            assert!(block.bytes() < settings.rounding.round(bytes) + 512, "no more than was asked for");
        } else if pool != WHOLE {
            assert!(block.bytes() <= settings.rounding.round(bytes) + 512 + settings.max_unsplit_waste);
        }
        let range = block.address()..block.address() + block.bytes();
        for other in &self.live {
            let apart = range.end <= other.block.address()
                || other.block.address() + other.block.bytes() <= range.start;
            assert!(apart, "{block:?} overlaps {:?}", other.block);
        }
        for unit in range.step_by(512) {
            let physical = self.bench.source.physical(unit).expect("a block lies in memory");
            for (user, position) in self.last_uses.remove(&physical).unwrap_or_default() {
                let ordered = self.bench.streams.comes_after(stream, user, position);
                assert!(ordered, "{block:?} is used on {stream} before {user} is done with it");
            }
        }
        let of = self.pools.iter().position(|pool| pool.id() == block.pool()).expect("one of the pools");
        let lent = (pool, of) == (0, PRIVATE) && self.lends || (pool, of) == (PRIVATE, 0) && self.borrows;
        assert!(of == pool || lent, "{block:?} was asked of pool {pool}");
        let segments = block.segments();
        assert!(segments.len() == 1 || pool == REMAPPED);
        for segment in segments {
            let longest = settings.max_split.filter(|_| of < WHOLE).unwrap_or(u64::MAX).div_ceil(2 * MIB);
            let whole = segment.bytes() == block.bytes();
            assert!(whole || segment.bytes().div_ceil(2 * MIB) <= longest, "{segment:?} is not split");
            let now = (segment.id().0, segment.bytes(), of);
            let owner = self.owners.entry(segment.address()).or_insert(now);
            assert_eq!(*owner, now, "a segment serves one pool");
        }
        self.bench.streams.enqueue(stream);
        self.live.push(Live { block, users: Vec::new() });
    }

    fn free(&mut self, at: usize) {
        let Live { block, users } = self.live.swap_remove(at);
        let streams = users.iter().chain([&block.stream()]).copied().collect::<Vec<_>>();
        for stream in &streams {
            self.bench.streams.enqueue(*stream);
        }
        // Work of a captured stream runs when the graph is launched, in the order of whoever launches it.
        let uses: Vec<_> = streams
            .into_iter()
            .filter(|stream| *stream == block.stream() || !self.capturing[stream.0 as usize])
            .map(|stream| (stream, self.bench.streams.position(stream)))
            .collect();
        for unit in (block.address()..block.address() + block.bytes()).step_by(512) {
            let physical = self.bench.source.physical(unit).expect("a block lies in memory");
            self.last_uses.insert(physical, uses.clone());
            self.last_uses_at.insert(unit, uses.clone());
        }
    }

    fn check(&mut self) {
        let snapshot = self.bench.allocator.snapshot().unwrap();
        check_tiling(&snapshot);
        let blocks = used(&snapshot);
        for live in &self.live {
            assert_eq!(
                blocks.get(&live.block.address()),
                Some(&(live.block.bytes(), false)),
                "{:?}",
                live.block
            );
            let usable = self.bench.source.physical(live.block.address()).is_some();
            assert!(usable, "{:?} is mapped", live.block);
        }
        assert_eq!(blocks.values().filter(|(_, pending)| !pending).count(), self.live.len());
        let stats = self.bench.allocator.stats();
        let calls = self.bench.source.calls();
        let segments = || {
            let fixed = snapshot.segments.iter().map(|state| &state.segment);
            fixed.chain(snapshot.mapped.iter().flat_map(|state| &state.segments))
        };
        let reserved: u64 = segments().map(Segment::bytes).sum();
        assert_eq!((stats.reserved.current, reserved), (calls.live_bytes, calls.live_bytes), "conservation");
        // Pages that were made in vain are the source's peak alone.
        assert!(stats.reserved.peak == calls.peak_bytes || calls.discard > 0);
        assert!(stats.reserved.peak <= calls.peak_bytes);
        assert_eq!(stats.segments.current, segments().count() as u64);
        let sum = |of: fn(&Block) -> u64| self.live.iter().map(|live| of(&live.block)).sum::<u64>();
        assert_eq!(stats.all.allocated.current, sum(Block::bytes));
        assert_eq!(stats.all.requested.current, sum(Block::requested));
        assert_eq!(stats.all.blocks.current, self.live.len() as u64);
        assert_eq!(stats.all.active.current, blocks.values().map(|(bytes, _)| bytes).sum::<u64>());
        let both = stats.small.allocated.current + stats.large.allocated.current;
        assert_eq!(both, stats.all.allocated.current);
        let live: HashSet<u64> = segments().map(|segment| segment.id().0).collect();
        let gone = self.owners.iter().filter(|(_, (id, ..))| !live.contains(id));
        self.ghosts.extend(gone.map(|(address, (_, bytes, _))| (*address, *bytes)));
        self.ghosts.retain(|(address, bytes)| {
            if self.bench.source.physical(*address).is_some() {
                return true;
            }
            for unit in (*address..address + bytes).step_by(512) {
                for (user, position) in self.last_uses_at.remove(&unit).unwrap_or_default() {
                    let ended = self.bench.streams.comes_after(NOBODY, user, position);
                    assert!(ended, "{unit:#x} was unmapped while {user} used it");
                }
            }
            false
        });
        self.owners.retain(|_, (id, ..)| live.contains(id));
    }

    fn finish(mut self) {
        self.freezes.iter_mut().for_each(|freeze| *freeze = None);
        (0..STREAMS).for_each(|stream| self.bench.streams.set_capturing(s(stream), false));
        self.live.clear();
        (0..STREAMS).for_each(|stream| self.bench.streams.complete(s(stream)));
        self.bench.allocator.empty_cache().unwrap();
        let stats = self.bench.allocator.stats();
        assert_eq!((stats.reserved.current, stats.all.active.current), (0, 0), "everything goes back");
        assert_eq!(self.bench.source.calls().live_bytes, 0);
        assert_eq!(self.bench.streams.live_events(), 0, "every event is given back");
        assert!(self.bench.allocator.faults().is_empty(), "{:?}", self.bench.allocator.faults());
    }
}

fn reuse() -> impl Strategy<Value = Reuse> {
    prop_oneof![Just(Reuse::OwnStream), Just(Reuse::HostSeen), Just(Reuse::DeviceWait)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_handed_out_once_and_in_order(
        steps in prop::collection::vec(step(), 1..250),
        reuse in reuse(),
        replace_idle in any::<bool>(),
        (lends, borrows) in any::<(bool, bool)>(),
        max_split in prop::option::of(MIB..8 * MIB),
        divisions in (0..4u32).prop_map(|power| Rounding::divisions(1 << power).unwrap()),
        limit in prop::option::of((20..64u64).prop_map(|mib| mib * MIB)),
        // From ample to scarce.
        capacity in prop_oneof![Just(1u64 << 40), (16..64u64).prop_map(|mib| mib * MIB)],
    ) {
        let settings = Settings {
            reuse,
            replace_idle,
            max_split,
            max_unsplit_waste: 2 * MIB,
            rounding: divisions,
            memory_limit: limit,
            collect_above: Fraction::new(0.5),
            ..tight()
        };
        let mut model = Model::new(settings, capacity, lends, borrows);
        for step in &steps {
            model.apply(step);
        }
        model.finish();
    }
}
