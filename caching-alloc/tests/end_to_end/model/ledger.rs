//! The model's knowledge of memory: its owner, the uses that have not ended, and memory that must stay.

use std::collections::HashMap;
use std::sync::Arc;

use caching_alloc::core::{Action, Entry, PoolId, Segment, SegmentMemory, StreamId};
use caching_alloc::host::HostStreams;

use super::intervals::{Intervals, Span};
use super::mirror::Mirror;

/// Work that has to come before the next use, as (stream, position).
pub(super) type Uses = Arc<[(StreamId, u64)]>;

/// An idle stream that waits for no other: other work is ordered before it only if the host has seen that
/// work end.
const HOST: StreamId = StreamId(u64::MAX);

/// The state of some memory.
#[derive(Clone, Debug)]
enum Tenure {
    /// A block that is handed out has it.
    Live,
    /// The last block that had it was freed. These uses of it may not have ended.
    Left(Uses),
}

#[derive(Debug)]
pub(super) struct Ledger {
    streams: Arc<HostStreams>,
    /// The state of each range of addresses. All ranges are in space 0.
    addresses: Intervals<Tenure>,
    /// The state of physical memory: each token is a space, and positions are offsets.
    physical: Intervals<Tenure>,
    /// The pool that the memory of each token has served.
    pools: HashMap<u64, PoolId>,
    /// Held memory, by token: its addresses, and the number of holds.
    held: HashMap<u64, (Span, u64)>,
    /// Pools that must keep their memory.
    pub(super) kept: Vec<PoolId>,
    pub(super) limit: Option<u64>,
    pub(super) mirror: Mirror,
    /// The first inconsistency.
    wrong: Option<String>,
}

/// The span of a range of addresses.
pub(super) fn at(address: u64, bytes: u64) -> Span {
    Span { space: 0, begin: address, end: address + bytes }
}

/// The span of all memory with this token.
fn all_of(token: u64) -> Span {
    Span { space: token, begin: 0, end: u64::MAX }
}

impl Ledger {
    pub(super) fn new(streams: Arc<HostStreams>, limit: Option<u64>) -> Self {
        Self {
            streams,
            addresses: Intervals::default(),
            physical: Intervals::default(),
            pools: HashMap::new(),
            held: HashMap::new(),
            kept: Vec::new(),
            limit,
            mirror: Mirror::default(),
            wrong: None,
        }
    }

    /// Records an inconsistency. It does not panic, since the allocator may be on the stack.
    pub(super) fn complain(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Takes the first inconsistency, if any.
    pub(super) fn take_wrong(&mut self) -> Option<String> {
        self.wrong.take()
    }

    /// Checks that a block of this physical memory may be handed out on `stream`, and records that it is.
    pub(super) fn take(&mut self, block: Span, memory: &[Span], pool: PoolId, stream: StreamId) {
        if self.has_blocks(block) {
            self.complain(format!("{block:x?} overlaps a block that is handed out"));
        }
        self.addresses.set(block, Tenure::Live);
        for span in memory {
            for tenure in self.physical.cut(*span) {
                match tenure {
                    Tenure::Live => self.complain(format!("{block:x?} has the memory of another block")),
                    Tenure::Left(uses) => {
                        for (user, position) in uses.iter() {
                            if !self.streams.comes_after(stream, *user, *position) {
                                let what = format!("{block:x?} is used on {stream} before {user} is done");
                                self.complain(what);
                            }
                        }
                    }
                }
            }
            self.physical.set(*span, Tenure::Live);
            let owner = *self.pools.entry(span.space).or_insert(pool);
            if owner != pool {
                self.complain(format!("memory of {owner:?} serves {pool:?}"));
            }
        }
    }

    /// Records that a block is freed. The uses in `uses` may not have ended.
    pub(super) fn leave(&mut self, block: Span, memory: &[Span], uses: &Uses) {
        self.addresses.set(block, Tenure::Left(uses.clone()));
        memory.iter().for_each(|span| self.physical.set(*span, Tenure::Left(uses.clone())));
    }

    /// Records a hold: the memory of a segment must stay, at its address.
    pub(super) fn hold(&mut self, memory: SegmentMemory) {
        self.held.entry(memory.token).or_insert((at(memory.address, memory.bytes), 0)).1 += 1;
    }

    /// Records that a hold is dropped.
    pub(super) fn drop_hold(&mut self, memory: SegmentMemory) {
        if let Some((_, count)) = self.held.get_mut(&memory.token) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&memory.token);
            }
        }
    }

    /// Checks a structural entry that trackers receive.
    pub(super) fn observe(&mut self, entry: &Entry) {
        if let Err(what) = self.mirror.read(entry) {
            self.complain(what);
        }
        match &entry.action {
            Action::SegmentFree(segment) => {
                self.check_idle("SegmentFree", segment);
                if !self.has_ended(at(segment.address(), segment.bytes())) {
                    self.complain(format!("SegmentFree of {segment:?} with work on it"));
                }
            }
            Action::SegmentUnmap(segment) => {
                self.check_idle("SegmentUnmap", segment);
                self.check_free("SegmentUnmap", segment.memory().token);
            }
            _ => {}
        }
    }

    fn check_idle(&mut self, what: &str, segment: &Segment) {
        if self.has_blocks(at(segment.address(), segment.bytes())) {
            self.complain(format!("{what} of {segment:?} with blocks handed out"));
        }
        if self.kept.contains(&segment.pool()) {
            self.complain(format!("{what} of {segment:?}, whose pool keeps what it has"));
        }
    }

    fn check_free(&mut self, what: &str, token: u64) {
        if self.held.contains_key(&token) {
            self.complain(format!("{what} of {token:#x}, which is held"));
        }
    }

    fn has_blocks(&self, span: Span) -> bool {
        self.addresses.over(span).any(|tenure| matches!(tenure, Tenure::Live))
    }

    /// Returns true if the host has seen all work at these addresses end.
    fn has_ended(&self, span: Span) -> bool {
        self.addresses.over(span).all(|tenure| self.is_over(tenure))
    }

    fn is_over(&self, tenure: &Tenure) -> bool {
        match tenure {
            Tenure::Live => false,
            Tenure::Left(uses) => {
                uses.iter().all(|(user, position)| self.streams.comes_after(HOST, *user, *position))
            }
        }
    }

    /// Checks that the source may unmap these addresses, and records that it does.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) {
        let span = at(address, bytes);
        if !self.addresses.cut(span).iter().all(|tenure| self.is_over(tenure)) {
            self.complain(format!("{span:x?} is unmapped while it is used"));
        }
        if self.held.values().any(|(held, _)| held.begin < span.end && span.begin < held.end) {
            self.complain(format!("{span:x?} is unmapped while it is held"));
        }
        if let Some(segment) = self.mirror.segment_at(address) {
            self.complain(format!("{segment:?} is unmapped before trackers are told"));
        }
    }

    /// Checks that the source may map a page, perhaps at one more address.
    pub(super) fn map(&mut self, token: u64) {
        self.check_free("mapping", token);
        if self.physical.over(all_of(token)).any(|tenure| matches!(tenure, Tenure::Live)) {
            self.complain(format!("page {token:#x} moves under a block"));
        }
    }

    /// Checks that the source may release memory, and records that it does.
    pub(super) fn discard(&mut self, token: u64) {
        self.check_free("giving back", token);
        self.pools.remove(&token);
        if !self.physical.cut(all_of(token)).iter().all(|tenure| self.is_over(tenure)) {
            self.complain(format!("{token:#x} goes back while it is used"));
        }
    }
}
