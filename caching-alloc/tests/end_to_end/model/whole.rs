//! Invariants of the whole allocator.

use caching_alloc::core::{Block, BlockState, Fault, PoolId, Segment, Snapshot, Usage};

use super::super::common::{check_tiling, s, used};
use super::machine::Machine;
use super::mirror::Mirror;
use super::step::STREAMS;

impl Machine {
    /// Checks all invariants that hold between any two steps.
    pub(super) fn check_whole(&mut self) {
        let snapshot = self.allocator.snapshot().unwrap();
        check_tiling(&snapshot);
        let blocks = used(&snapshot);
        for live in &self.live {
            let block = &live.block;
            assert_eq!(blocks.get(&block.address()), Some(&(block.bytes(), false)), "{block:?}");
        }
        assert_eq!(blocks.values().filter(|(_, pending)| !pending).count(), self.live.len());
        self.check_figures(&snapshot);
        let seen = Mirror::of(&snapshot);
        assert_eq!(self.ledger.open().mirror, seen, "entries lead to the state");
        if let Some((_, late)) = &self.late {
            assert_eq!(*late.mirror(), seen, "for those who come late, too");
        }
        self.reader.catch_up(&self.allocator).unwrap();
        assert_eq!(self.reader, seen, "and for those who read later");
        self.check_faults();
    }

    /// Checks the statistics: no memory is missing, and none is counted twice.
    fn check_figures(&self, snapshot: &Snapshot) {
        let stats = self.allocator.stats();
        let calls = self.source.host.calls();
        let segments = || {
            let fixed = snapshot.segments.iter().map(|state| &state.segment);
            fixed.chain(snapshot.mapped.iter().flat_map(|state| &state.segments)).chain(&snapshot.quarantined)
        };
        let reserved: u64 = segments().map(Segment::bytes).sum();
        assert_eq!((stats.reserved.current, reserved), (calls.live_bytes, calls.live_bytes), "conservation");
        assert_eq!(stats.quarantined, snapshot.quarantined.iter().map(Segment::bytes).sum::<u64>());
        // Pages of a plan that then failed count only in the peak of the source.
        assert!(stats.reserved.peak == calls.peak_bytes || calls.discard > 0);
        assert!(stats.reserved.peak <= calls.peak_bytes);
        assert_eq!(stats.segments.current, segments().count() as u64);
        let sum = |of: fn(&Block) -> u64| self.live.iter().map(|live| of(&live.block)).sum::<u64>();
        assert_eq!(stats.all.allocated.current, sum(Block::bytes));
        assert_eq!(stats.all.requested.current, sum(Block::requested));
        assert_eq!(stats.all.blocks.current, self.live.len() as u64);
        let fixed = snapshot.segments.iter().flat_map(|state| &state.blocks);
        let blocks = fixed.chain(snapshot.mapped.iter().flat_map(|state| &state.blocks));
        // A dropped pool's memory is shown as whole segments, without a call site.
        let owned = blocks.filter(|block| block.request.is_some());
        assert_eq!(stats.all.active.current, owned.map(BlockState::active_bytes).sum::<u64>());
        let both = stats.small.allocated.current + stats.large.allocated.current;
        assert_eq!(both, stats.all.allocated.current);
        for pool in &self.pools {
            let of = |segment: &&Segment| segment.pool() == pool.id();
            let reserved: u64 = segments().filter(of).map(Segment::bytes).sum();
            assert_eq!(pool.stats().reserved.current, reserved, "conservation in {pool:?}");
        }
    }

    /// Checks that the only faults are quarantined segments, which were held.
    fn check_faults(&self) {
        let mut faults = self.allocator.faults();
        faults.retain(|fault| !matches!(fault, Fault::Quarantined { .. }));
        assert!(faults.is_empty(), "{faults:?}");
    }

    /// Checks that a request failed for a reason: no idle memory is left, and no block is pending that could be
    /// waited for: graphs may be launched again. `but` is as in [`check_nothing_idle`](Self::check_nothing_idle).
    pub(super) fn check_exhausted(&self, but: Option<PoolId>) {
        self.check_nothing_idle(but);
        let stats = self.allocator.stats();
        let waited = stats.all.active.current == stats.all.allocated.current;
        let exempt = self.is_anything_captured() || !self.used.is_empty();
        assert!(waited || exempt, "blocks were not waited for");
    }

    /// Checks that all idle memory was released, except memory that must be kept, and pages of the pool `but`.
    pub(super) fn check_nothing_idle(&self, but: Option<PoolId>) {
        let snapshot = self.allocator.snapshot().unwrap();
        for state in &snapshot.segments {
            let idle = state.blocks.iter().all(|block| block.usage == Usage::Inactive);
            assert!(!idle || !self.may_go(&state.segment), "{:?} is idle", state.segment);
        }
        if self.is_anything_captured() {
            return;
        }
        for state in &snapshot.mapped {
            let used: Vec<_> = state.blocks.iter().filter(|block| block.usage != Usage::Inactive).collect();
            for page in &state.segments {
                let (begin, end) = (page.address(), page.memory().end());
                let idle = !used.iter().any(|used| used.address < end && begin < used.address + used.bytes);
                let stays = Some(page.pool()) == but || !page.holders().is_empty() || !self.may_go(page);
                assert!(!idle || stays, "{page:?} is idle");
            }
        }
    }

    /// Checks that a trim has merged all free neighbours, except in segments that must be kept.
    pub(super) fn check_merged(&self) {
        let snapshot = self.allocator.snapshot().unwrap();
        for state in snapshot.segments.iter().filter(|state| self.may_go(&state.segment)) {
            let merged = |pair: &[_]| {
                let [left, right] = [0, 1].map(|at: usize| -> Usage { pair[at] });
                left != Usage::Inactive || right != Usage::Inactive
            };
            let usages: Vec<_> = state.blocks.iter().map(|block| block.usage).collect();
            assert!(usages.windows(2).all(merged), "free neighbours in {:?}: {usages:?}", state.segment);
        }
    }

    fn is_anything_captured(&self) -> bool {
        (0..STREAMS).any(|stream| self.is_capturing(s(stream)))
    }

    /// Returns true if a segment is released when it is idle and memory is needed.
    fn may_go(&self, segment: &Segment) -> bool {
        let kept = self.ledger.open().kept.contains(&segment.pool());
        // The memory of a dropped pool stays until no part of it is used any more.
        let there = self.pools.iter().any(|pool| pool.id() == segment.pool());
        there && !kept && !self.is_capturing(segment.stream())
    }

    /// Checks that everything is released at the end.
    pub(super) fn finish(mut self) {
        self.check_whole();
        self.release_all();
        self.check_whole();
        self.allocator.empty_cache().unwrap();
        self.check_whole();
        let stats = self.allocator.stats();
        assert_eq!(stats.reserved.current, 0);
        assert_eq!(stats.all.active.current, 0);
        assert_eq!(self.streams.live_events(), 0, "every event is given back");
        assert_eq!(self.dismantle(), 0, "all of it goes back");
    }
}
