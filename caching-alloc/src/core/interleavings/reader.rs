//! A tracker that records its entries and reports inconsistencies.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::lock::assert_may_call_trackers;
use crate::core::{
    Action, Allocator, Attachment, Block, Entry, Filter, PoolId, Segment, SegmentId, Snapshot, StreamId,
    Tracker, TrackerError, Usage,
};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The state that follows from a snapshot and the entries after it.
#[derive(Default)]
pub(super) struct ReplayedState {
    /// Number of the last structural entry.
    pub(super) generation: Option<u64>,
    pub(super) segments: BTreeSet<SegmentId>,
    /// Number of blocks handed out at each address. It is 0 or 1, except in `shared` pools.
    blocks: HashMap<u64, i32>,
    /// Re-mappable pools. Their streams share addresses, and the entries of different streams come in any order.
    shared: HashSet<PoolId>,
    /// Number of the last block entry of each cache.
    last: HashMap<(PoolId, StreamId), u64>,
    /// Blocks handed out since the snapshot.
    pub(super) handed_out: u64,
    pub(super) errors: Vec<String>,
}

impl ReplayedState {
    /// Starts with the state of a snapshot.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) {
        self.generation = Some(snapshot.generation);
        let mapped = snapshot.mapped.iter().flat_map(|range| &range.segments);
        self.shared = mapped.clone().map(Segment::pool).collect();
        let fixed = snapshot.segments.iter().map(|state| &state.segment);
        self.segments = fixed.chain(mapped).map(Segment::id).collect();
        let mapped = snapshot.mapped.iter().flat_map(|range| &range.blocks);
        let all = snapshot.segments.iter().flat_map(|state| &state.blocks).chain(mapped);
        let out = all.filter(|block| block.usage == Usage::Active).map(|block| (block.address, 1));
        self.blocks = out.collect();
    }

    pub(super) fn is_out(&self, block: &Block) -> bool {
        self.is_out_at(block.address())
    }

    pub(super) fn is_out_at(&self, address: u64) -> bool {
        self.blocks.get(&address) == Some(&1)
    }

    /// Adds `more`, 1 or -1, to the number of blocks at an address. Returns true if the result is consistent.
    fn count(&mut self, pool: PoolId, address: u64, more: i32) -> bool {
        let out = self.blocks.entry(address).or_default();
        *out += more;
        (0..=1).contains(out) || self.shared.contains(&pool)
    }

    /// Applies an entry.
    pub(super) fn apply(&mut self, entry: &Entry) {
        let fits = match &entry.action {
            Action::Alloc(span) => {
                self.handed_out += 1;
                self.count(entry.pool, span.address, 1)
            }
            Action::FreeRequested(span) => self.count(entry.pool, span.address, -1),
            Action::SegmentAlloc(segment) => self.segments.insert(segment.id()),
            Action::SegmentMap(segment) => {
                self.shared.insert(segment.pool());
                self.segments.insert(segment.id())
            }
            Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => {
                self.segments.remove(&segment.id())
            }
            _ => true,
        };
        let next = match entry.action {
            Action::Alloc(_) | Action::FreeRequested(_) | Action::FreeCompleted(_) => {
                let last = self.last.insert((entry.pool, entry.stream), entry.number);
                last.is_none_or(|last| entry.number == last + 1)
            }
            _ => {
                let last = self.generation.replace(entry.number);
                last.is_some_and(|last| entry.number == last + 1)
            }
        };
        if !fits || !next {
            self.errors.push(format!("{entry:?} does not follow (fits: {fits}, is the next: {next})"));
        }
    }
}

/// Maintains [`ReplayedState`] while it is attached.
pub(super) struct Reader {
    state: Mutex<ReplayedState>,
    /// True once no entry may come any more. This is an atomic of the checker, so the checker can switch threads at
    /// each access. It cannot switch threads at the lock of `state`, because that is a lock of the standard library.
    detached: AtomicBool,
}

/// A [`Reader`] that is attached to an allocator.
pub(super) struct AttachedReader {
    reader: Arc<Reader>,
    attachment: Attachment,
}

impl AttachedReader {
    /// Detaches the reader, and checks the entries that came. No entry may come from now on.
    pub(super) fn detach(self) -> Arc<Reader> {
        self.attachment.detach().unwrap();
        self.reader.detached.store(true, Ordering::SeqCst);
        self.reader.check();
        self.reader
    }
}

impl Reader {
    pub(super) fn attach(allocator: &Allocator, filter: Filter) -> AttachedReader {
        let reader = Arc::new(Self { state: Mutex::default(), detached: AtomicBool::new(false) });
        let attachment = allocator.attach(reader.clone(), filter).unwrap();
        AttachedReader { reader, attachment }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ReplayedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check(&self) {
        assert!(self.state().errors.is_empty(), "{:#?}", self.state().errors);
    }
}

impl Tracker for Reader {
    fn name(&self) -> &str {
        "reader"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        assert_may_call_trackers();
        self.state().begin(snapshot);
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        assert_may_call_trackers();
        let detached = self.detached.load(Ordering::SeqCst);
        let mut state = self.state();
        if detached {
            state.errors.push("called after it was detached".into());
        }
        entries.iter().for_each(|entry| state.apply(entry));
        Ok(())
    }
}
