//! The allocation log of a symmetric pool: what was asked for, as a length and a hash, and the last operations.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::Location;

use serde::{Deserialize, Serialize};

use super::Geometry;
use super::Placement;

/// How far a log has come, and the hash of everything in it. Equal states mean equal histories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogState {
    /// Number of operations.
    pub length: u64,
    /// Hash of the geometry and of all operations: kind, bytes, and for what is given up the place.
    pub hash: u64,
}

/// What an operation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationKind {
    /// A block was placed.
    Allocate,
    /// A block was taken back.
    Free,
    /// A request failed on this rank, for want of memory or because the pool was frozen. Ranks on which it did
    /// not fail differ from here on.
    Refuse,
    /// A segment was retired.
    Retire,
}

/// One operation of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number: 0, 1, 2…
    pub seq: u64,
    /// What it was.
    pub kind: OperationKind,
    /// Bytes asked for (for a free: when the block was allocated), or of the segment.
    pub bytes: u64,
    /// Where the block or the segment is; for [`OperationKind::Refuse`] nothing.
    pub placement: Option<Placement>,
    /// The program's word for it.
    pub tag: Option<Cow<'static, str>>,
    /// Source file of the call.
    pub file: Cow<'static, str>,
    /// Line of the call.
    pub line: u32,
    /// Hash of the log with this operation.
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

/// An operation before it is in the log.
#[derive(Debug, Clone)]
pub(crate) struct NewOperation {
    pub(crate) kind: OperationKind,
    pub(crate) bytes: u64,
    pub(crate) placement: Option<Placement>,
    pub(crate) tag: Option<Cow<'static, str>>,
    pub(crate) site: &'static Location<'static>,
}

/// A rolling hash of every operation, the hashes at lengths 1, 2, 4, 8…, and the last operations in full.
#[derive(Debug, Clone)]
pub struct Log {
    state: LogState,
    powers: Vec<LogState>,
    /// The state before the first of `recent`.
    before: LogState,
    recent: VecDeque<Operation>,
    capacity: usize,
}

impl Log {
    /// An empty log. Its hash depends on the geometry, so that ranks that differ in it are told apart.
    #[must_use]
    pub fn new(geometry: Geometry, capacity: usize) -> Self {
        let Geometry { first_segment, largest_segment } = geometry;
        let hash = mix(mix(SEED, first_segment), largest_segment);
        let capacity = capacity.max(2).next_power_of_two();
        let state = LogState { length: 0, hash };
        Self { state, powers: vec![state], before: state, recent: VecDeque::new(), capacity }
    }

    /// How far it has come.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.state
    }

    /// The last operations, oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &Operation> {
        self.recent.iter()
    }

    /// The hash when the log had `length` operations, if that is still known: for bisection between ranks.
    #[must_use]
    pub fn hash_at(&self, length: u64) -> Option<u64> {
        if length == self.state.length {
            return Some(self.state.hash);
        }
        let known = known_hash(&self.powers, &self.recent, length);
        known.or((length == self.before.length).then_some(self.before.hash))
    }

    /// Operation `seq`, if the ring still has it.
    #[must_use]
    pub fn operation(&self, seq: u64) -> Option<&Operation> {
        operation(&self.recent, seq)
    }

    pub(crate) fn push(&mut self, new: NewOperation) {
        let NewOperation { kind, bytes, placement, tag, site } = new;
        let mut hash = mix(mix(self.state.hash, kind as u64 + 1), bytes);
        let given_up = matches!(kind, OperationKind::Free | OperationKind::Retire);
        if let Some(Placement { ordinal, offset }) = placement.filter(|_| given_up) {
            hash = mix(mix(hash, u64::from(ordinal)), offset);
        }
        if self.recent.len() == self.capacity {
            let gone = self.recent.pop_front();
            self.before = gone.map_or(self.before, |gone| LogState { length: gone.seq + 1, hash: gone.hash });
        }
        self.recent.push_back(Operation {
            seq: self.state.length,
            kind,
            bytes,
            placement,
            tag,
            file: Cow::Borrowed(site.file()),
            line: site.line(),
            hash,
        });
        self.state = LogState { length: self.state.length + 1, hash };
        if self.state.length.is_power_of_two() {
            self.powers.push(self.state);
        }
    }
}

fn operation(recent: &VecDeque<Operation>, seq: u64) -> Option<&Operation> {
    let at = seq.checked_sub(recent.front()?.seq)?;
    recent.get(usize::try_from(at).ok()?)
}

fn known_hash(states: &[LogState], recent: &VecDeque<Operation>, length: u64) -> Option<u64> {
    let ringed = length.checked_sub(1).and_then(|seq| operation(recent, seq)).map(|operation| operation.hash);
    ringed.or_else(|| states.iter().find(|state| state.length == length).map(|state| state.hash))
}

const SEED: u64 = 0x51a6_5e61_0c5b_9d4b;

/// One step of the hash: the finaliser of SplitMix64 over a word added in. Part of the format that ranks compare,
/// so it never changes.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { first_segment: 64 << 20, largest_segment: 4 << 30 };

    fn log_of(sizes: &[u64]) -> Log {
        let mut log = Log::new(GEOMETRY, 8);
        for bytes in sizes {
            log.push(NewOperation {
                kind: OperationKind::Allocate,
                bytes: *bytes,
                placement: Some(Placement { ordinal: 0, offset: 0 }),
                tag: None,
                site: Location::caller(),
            });
        }
        log
    }

    /// Ranks of different builds compare these.
    #[test]
    fn the_hash_is_pinned() {
        let mut log = log_of(&[1, 512, 1 << 30]);
        assert_eq!(Log::new(GEOMETRY, 8).state().hash, 294_558_605_038_270_209);
        assert_eq!(log.state().hash, 15_013_113_259_403_531_601);
        log.push(NewOperation {
            kind: OperationKind::Free,
            bytes: 512,
            placement: Some(Placement { ordinal: 3, offset: 1024 }),
            tag: Some("tags are not hashed".into()),
            site: Location::caller(),
        });
        assert_eq!(log.state(), LogState { length: 4, hash: 4_718_518_264_129_775_086 });
    }

    /// What ranks bisect over: prefixes up to the first difference are the same, and no longer ones.
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

    #[test]
    fn geometries_are_told_apart() {
        let other = Geometry { first_segment: 4 << 20, ..GEOMETRY };
        assert_ne!(log_of(&[]).hash_at(0), Log::new(other, 8).hash_at(0));
    }
}
