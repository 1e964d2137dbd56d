//! The log of a symmetric pool: the number of operations, a hash of all of them, and the last ones in full.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::Location;

use super::Geometry;
use super::Placement;
use crate::core::size::UNIT;

/// The length of a log, and the hash of its operations. Unless hashes collide, equal states mean equal geometries and
/// equal operations. Tags and source locations are not hashed, so they may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogState {
    /// Number of operations.
    pub length: u64,
    /// Hash of the geometry, and of the kind and bytes of all operations. For a free or a retirement, it includes the
    /// place of the block or segment.
    pub hash: u64,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OperationKind {
    /// A block was placed.
    Allocate,
    /// A block was freed.
    Free,
    /// A request failed on this rank, because the source failed or the pool was frozen. This log therefore differs from
    /// those of ranks on which the request succeeded. If the next operation is a request for the same size that
    /// succeeds, it replaces this operation, and the logs are equal again.
    Refuse,
    /// A segment was [retired](super::SymmetricArena::retire): no more blocks are placed there.
    Retire,
}

/// One operation of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Operation {
    /// The number of the operation: 0, 1, 2…
    pub seq: u64,
    /// The kind.
    pub kind: OperationKind,
    /// The requested size in bytes. For a free, that of the allocation. For a retirement, the size of the segment.
    pub bytes: u64,
    /// The place of the block, or the beginning of the segment; `None` for [`OperationKind::Refuse`].
    pub placement: Option<Placement>,
    /// The tag that the program passed, if any.
    pub tag: Option<Cow<'static, str>>,
    /// Source file of the call that made the operation.
    pub file: Cow<'static, str>,
    /// Line of that call.
    pub line: u32,
    /// Hash of the log up to this operation, inclusive.
    pub hash: u64,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            OperationKind::Allocate => "allocate",
            OperationKind::Free => "free",
            OperationKind::Refuse => "refused",
            OperationKind::Retire => "retire",
        };
        write!(f, "operation {}: {kind} {} bytes", self.seq, self.bytes)?;
        if let Some(tag) = &self.tag {
            write!(f, " \"{tag}\"")?;
        }
        write!(f, " at {}:{}", self.file, self.line)
    }
}

/// A log of operations. It keeps the hash of all operations, the hashes that it had at the lengths 0, 1, 2, 4, 8…,
/// and the last operations in full.
#[derive(Debug, Clone)]
pub struct Log {
    state: LogState,
    powers: Vec<LogState>,
    /// The state of the log before the oldest operation in `recent`.
    before: LogState,
    /// The last operations. Operation `seq` has the index `seq` modulo `capacity`, which is a power of two.
    recent: Vec<Record>,
    /// The tags of recent operations that have one, oldest first.
    tags: VecDeque<(u64, Cow<'static, str>)>,
    capacity: usize,
}

/// An operation as the log stores it. It is small, because every allocation writes one.
#[derive(Debug, Clone, Copy)]
struct Record {
    what: What,
    place: PackedPlacement,
    site: &'static Location<'static>,
    /// Hash of the log up to this operation, inclusive.
    hash: u64,
}

/// The kind and the bytes of an operation in one word. 56 bits are enough for the size of any block or segment.
#[derive(Debug, Clone, Copy)]
struct What(u64);

impl What {
    const BYTES: u64 = (1 << 56) - 1;

    fn new(kind: OperationKind, bytes: u64) -> Self {
        Self(((kind as u64) << 56) | (bytes & Self::BYTES))
    }

    fn kind(self) -> OperationKind {
        match self.0 >> 56 {
            0 => OperationKind::Allocate,
            1 => OperationKind::Free,
            2 => OperationKind::Refuse,
            _ => OperationKind::Retire,
        }
    }

    fn bytes(self) -> u64 {
        self.0 & Self::BYTES
    }
}

/// A placement in one word: the ordinal, and the offset divided by [`UNIT`]. Offsets are multiples of `UNIT`, and the
/// quotient fits in 32 bits.
#[derive(Debug, Clone, Copy)]
struct PackedPlacement(u64);

impl PackedPlacement {
    fn new(placement: Option<Placement>) -> Self {
        Self(placement.map_or(0, |it| (u64::from(it.ordinal) << 32) | (it.offset / UNIT)))
    }

    fn placement(self) -> Placement {
        let (ordinal, units) = ((self.0 >> 32) as u32, self.0 as u32);
        Placement { ordinal, offset: u64::from(units) * UNIT }
    }
}

impl Log {
    /// Makes an empty log that keeps the last `capacity` operations in full. The capacity is rounded up to a power of
    /// two, and is at least 2. The log's hash depends on the geometry, so ranks with different geometries have
    /// different hashes.
    #[must_use]
    pub fn new(geometry: Geometry, capacity: usize) -> Self {
        let Geometry { first_segment, largest_segment } = geometry;
        let hash = mix(mix(SEED, first_segment), largest_segment);
        let capacity = capacity.max(2).next_power_of_two();
        let state = LogState { length: 0, hash };
        let (recent, tags) = (Vec::new(), VecDeque::new());
        Self { state, powers: vec![state], before: state, recent, tags, capacity }
    }

    /// Returns the length and the hash of the log.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.state
    }

    /// Returns the operations that are kept in full, oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = Operation> {
        (self.before.length..self.state.length).filter_map(|seq| self.operation(seq))
    }

    /// Returns the number of the oldest operation that is kept in full. Returns 0 if the log is empty.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.before.length
    }

    /// Returns the hash of the log when it had `length` operations, if that is still known. With these hashes, ranks
    /// find the first difference between their logs by bisection.
    #[must_use]
    pub fn hash_at(&self, length: u64) -> Option<u64> {
        if let Some(record) = length.checked_sub(1).and_then(|seq| self.record(seq)) {
            return Some(record.hash);
        }
        let known = self.powers.iter().chain([&self.before]).find(|state| state.length == length);
        known.map(|state| state.hash)
    }

    /// Returns operation `seq`, if the log still has it in full.
    #[must_use]
    pub fn operation(&self, seq: u64) -> Option<Operation> {
        let Record { what, place, site, hash } = *self.record(seq)?;
        let kind = what.kind();
        let tag = self.tags.binary_search_by_key(&seq, |(tagged, _)| *tagged);
        Some(Operation {
            seq,
            kind,
            bytes: what.bytes(),
            placement: (kind != OperationKind::Refuse).then(|| place.placement()),
            tag: tag.ok().map(|at| self.tags[at].1.clone()),
            file: Cow::Borrowed(site.file()),
            line: site.line(),
            hash,
        })
    }

    /// Adds an operation. It is inlined, because every allocation calls it. Values that depend only on constant
    /// arguments are then computed at compile time.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        kind: OperationKind,
        bytes: u64,
        placement: Option<Placement>,
        site: &'static Location<'static>,
    ) {
        let (what, place) = (What::new(kind, bytes), PackedPlacement::new(placement));
        let given_up = matches!(kind, OperationKind::Free | OperationKind::Retire);
        let hash = mix(self.state.hash, what.0);
        let hash = if given_up { mix(hash, place.0) } else { hash };
        let seq = self.state.length;
        let record = Record { what, place, site, hash };
        let slot = self.slot(seq);
        match self.recent.get_mut(slot) {
            Some(oldest) => {
                self.before = LogState { length: self.before.length + 1, hash: oldest.hash };
                *oldest = record;
                if !self.tags.is_empty() {
                    self.forget_tags();
                }
            }
            None => self.recent.push(record),
        }
        self.state = LogState { length: seq + 1, hash };
        if self.state.length.is_power_of_two() {
            self.keep_power();
        }
    }

    /// If the last operation is a refused request for `bytes`, replaces it by the allocation and returns true.
    /// Otherwise returns false.
    #[cold]
    pub(crate) fn grant(
        &mut self,
        bytes: u64,
        placement: Placement,
        site: &'static Location<'static>,
    ) -> bool {
        let Some(seq) = self.state.length.checked_sub(1).filter(|_| self.has_refused(bytes)) else {
            return false;
        };
        let Some(before) = self.hash_at(seq) else { return false };
        let (what, place) =
            (What::new(OperationKind::Allocate, bytes), PackedPlacement::new(Some(placement)));
        let (hash, slot) = (mix(before, what.0), self.slot(seq));
        self.recent[slot] = Record { what, place, site, hash };
        self.state.hash = hash;
        if let Some(power) = self.powers.last_mut().filter(|power| power.length == seq + 1) {
            *power = self.state;
        }
        if self.tags.back().is_some_and(|(tagged, _)| *tagged == seq) {
            self.tags.pop_back();
        }
        true
    }

    /// Returns true if the last operation is a refused request for `bytes`.
    pub(crate) fn has_refused(&self, bytes: u64) -> bool {
        let last = self.state.length.checked_sub(1).and_then(|seq| self.record(seq));
        last.is_some_and(|last| last.what.0 == What::new(OperationKind::Refuse, bytes).0)
    }

    #[cold]
    fn keep_power(&mut self) {
        self.powers.push(self.state);
    }

    /// Forgets the tag of an operation that is no longer kept.
    #[cold]
    fn forget_tags(&mut self) {
        if self.tags.front().is_some_and(|(tagged, _)| *tagged < self.before.length) {
            self.tags.pop_front();
        }
    }

    /// Sets the tag of the last operation. The log must not be empty.
    pub(crate) fn tag(&mut self, tag: Cow<'static, str>) {
        let seq = self.state.length - 1;
        match self.tags.back_mut() {
            Some((tagged, last)) if *tagged == seq => *last = tag,
            _ => self.tags.push_back((seq, tag)),
        }
    }

    fn record(&self, seq: u64) -> Option<&Record> {
        let kept = self.before.length..self.state.length;
        kept.contains(&seq).then(|| &self.recent[self.slot(seq)])
    }

    fn slot(&self, seq: u64) -> usize {
        seq as usize & (self.capacity - 1)
    }
}

const SEED: u64 = 0x51a6_5e61_0c5b_9d4b;

/// Returns the hash after one more word, with the finaliser of SplitMix64. Ranks of different builds compare hashes, so
/// this function must never change.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::size::MAX_BLOCK;

    const GEOMETRY: Geometry = Geometry { first_segment: 64 << 20, largest_segment: 4 << 30 };

    const SITE: &Location<'static> = Location::caller();

    fn log_of(sizes: &[u64]) -> Log {
        let mut log = Log::new(GEOMETRY, 8);
        for bytes in sizes {
            let begin = Some(Placement { ordinal: 0, offset: 0 });
            log.push(OperationKind::Allocate, *bytes, begin, SITE);
        }
        log
    }

    /// Ranks of different builds compare hashes, so the hashes must not change.
    #[test]
    fn the_hash_is_pinned() {
        let mut log = log_of(&[1, 512, 1 << 30]);
        assert_eq!(Log::new(GEOMETRY, 8).state().hash, 294_558_605_038_270_209);
        assert_eq!(log.state().hash, 15_452_243_419_694_803_540);
        let place = Some(Placement { ordinal: 3, offset: 1024 });
        log.push(OperationKind::Free, 512, place, Location::caller());
        log.tag("tags are not hashed".into());
        assert_eq!(log.state(), LogState { length: 4, hash: 11_485_877_147_619_512_347 });
    }

    /// Ranks bisect over the hashes of [`Log::hash_at`], which are equal up to the first difference between two logs,
    /// and differ for all greater lengths.
    #[test]
    fn known_hashes_part_at_the_first_difference() {
        let base: Vec<u64> = (1..=20).collect();
        for at in 0..20 {
            let mut other = base.clone();
            other[at] += 100;
            let (left, right) = (log_of(&base), log_of(&other));
            for length in 0..=20 {
                let (a, b) = (left.hash_at(length), right.hash_at(length));
                let known = length.is_power_of_two() || length == 0 || length >= 12;
                assert_eq!(a.is_some(), known, "{length}");
                assert_eq!(b.is_some(), known, "{length}");
                assert!(!known || (a == b) == (length <= at as u64), "{at}: {length}");
            }
            let seen = right.operation(at as u64).map(|operation| operation.bytes);
            assert_eq!(seen, (at >= 12).then_some(other[at]));
        }
    }

    proptest::proptest! {
        #[test]
        fn the_last_operations_are_kept_as_they_were(
            operations in proptest::collection::vec(
                (0..4usize, 1..=MAX_BLOCK, 0..u32::MAX, 0..u32::MAX, proptest::option::of("[a-z]{1,3}")),
                0..40,
            ),
        ) {
            use OperationKind::{Allocate, Free, Refuse, Retire};
            let mut log = Log::new(GEOMETRY, 8);
            let mut all = Vec::new();
            for (kind, bytes, ordinal, units, tag) in operations {
                let kind = [Allocate, Free, Refuse, Retire][kind];
                let place = Placement { ordinal, offset: u64::from(units) * UNIT };
                let (placement, tag) = ((kind != Refuse).then_some(place), tag.map(Cow::<str>::Owned));
                let site = Location::caller();
                log.push(kind, bytes, placement, site);
                if let Some(tag) = &tag {
                    log.tag(tag.clone());
                }
                let (seq, hash) = (all.len() as u64, log.state().hash);
                all.push(Operation { seq, kind, bytes, placement, tag, file: site.file().into(), line: site.line(), hash });
            }
            let oldest = all.len().saturating_sub(8);
            proptest::prop_assert_eq!(log.oldest(), oldest as u64);
            proptest::prop_assert!(log.recent().eq(all[oldest..].iter().cloned()));
            proptest::prop_assert_eq!(log.operation(all.len() as u64), None);
            proptest::prop_assert_eq!(oldest.checked_sub(1).and_then(|seq| log.operation(seq as u64)), None);
        }
    }

    /// If a refused request succeeds when it is repeated, the log is the same as without the refusal. This holds for a
    /// full log too.
    #[test]
    fn a_granted_request_takes_the_place_of_its_refusal() {
        for before in 0..20 {
            let sizes: Vec<u64> = (1..=before).collect();
            let (mut log, mut expected) = (log_of(&sizes), log_of(&sizes));
            let begin = Placement { ordinal: 0, offset: 0 };
            assert!(!log.grant(7, begin, SITE));
            log.push(OperationKind::Refuse, 7, None, SITE);
            log.tag("refused".into());
            assert!(log.has_refused(7) && !log.has_refused(8) && !log.grant(8, begin, SITE));
            assert!(log.grant(7, begin, SITE));
            expected.push(OperationKind::Allocate, 7, Some(begin), SITE);
            for _ in 0..20 {
                assert_eq!((log.state(), &log.powers), (expected.state(), &expected.powers));
                assert!(log.recent().eq(expected.recent()));
                assert!((0..50).all(|length| log.hash_at(length) == expected.hash_at(length)));
                for log in [&mut log, &mut expected] {
                    log.push(OperationKind::Allocate, 100, Some(begin), SITE);
                    log.tag("tag".into());
                }
            }
        }
    }

    #[test]
    fn geometries_are_told_apart() {
        let other = Geometry { first_segment: 4 << 20, ..GEOMETRY };
        assert_ne!(log_of(&[]).hash_at(0), Log::new(other, 8).hash_at(0));
    }
}
