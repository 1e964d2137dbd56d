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
    /// Hash of the geometry and of all operations: kind, bytes, and for frees the place.
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
}

/// One operation of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number: 0, 1, 2…
    pub seq: u64,
    /// What it was.
    pub kind: OperationKind,
    /// Bytes asked for (for a free: when the block was allocated).
    pub bytes: u64,
    /// Where the block is; for [`OperationKind::Refuse`] nothing.
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

    /// All that another rank needs to find where the two logs part.
    #[must_use]
    pub fn digest(&self) -> LogDigest {
        let known = self.powers.iter().copied().chain([self.before]).collect();
        LogDigest { state: self.state, known, recent: self.recent.clone() }
    }

    pub(crate) fn push(&mut self, new: NewOperation) {
        let NewOperation { kind, bytes, placement, tag, site } = new;
        let mut hash = mix(mix(self.state.hash, kind as u64 + 1), bytes);
        if let (OperationKind::Free, Some(Placement { ordinal, offset })) = (kind, placement) {
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

/// A log as another rank sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDigest {
    /// How far it has come.
    pub state: LogState,
    /// Its states at lengths 0, 1, 2, 4, 8… and before the first of `recent`.
    pub known: Vec<LogState>,
    /// Its last operations, oldest first.
    pub recent: VecDeque<Operation>,
}

impl LogDigest {
    fn hash_at(&self, length: u64) -> Option<u64> {
        if length == self.state.length {
            return Some(self.state.hash);
        }
        known_hash(&self.known, &self.recent, length)
    }
}

/// Where two logs part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Divergence {
    /// They do not: they are equal.
    None,
    /// At this operation; a log that ended before it has none.
    At {
        /// The operation's number.
        seq: u64,
        /// What the left log has there.
        left: Option<Operation>,
        /// What the right log has there.
        right: Option<Operation>,
    },
    /// At an operation that is no longer in both rings.
    Between {
        /// The first `equal` operations are the same.
        equal: u64,
        /// The first `different` operations are not.
        different: u64,
    },
}

/// Finds the first operation in which two logs differ, by bisection over the hashes of their prefixes.
#[must_use]
pub fn first_divergence(left: &LogDigest, right: &LogDigest) -> Divergence {
    if left.state == right.state {
        return Divergence::None;
    }
    // Lengths at which both hashes are known, in order. Once two prefixes differ, all longer ones do.
    let mut lengths: Vec<u64> = left.known.iter().map(|state| state.length).collect();
    lengths.extend(left.recent.iter().flat_map(|operation| [operation.seq, operation.seq + 1]));
    lengths.push(left.state.length);
    lengths.push(right.state.length);
    lengths.sort_unstable();
    lengths.dedup();
    lengths.retain(|length| left.hash_at(*length).is_some() && right.hash_at(*length).is_some());
    let same = lengths.partition_point(|length| left.hash_at(*length) == right.hash_at(*length));
    let equal = same.checked_sub(1).map(|at| lengths[at]);
    let different = lengths.get(same).copied().unwrap_or(left.state.length.min(right.state.length) + 1);
    match equal {
        Some(seq) if different == seq + 1 => {
            Divergence::At { seq, left: find(&left.recent, seq), right: find(&right.recent, seq) }
        }
        // The empty logs differ already: the geometries do.
        None => Divergence::Between { equal: 0, different: 0 },
        Some(equal) => Divergence::Between { equal, different },
    }
}

fn find(recent: &VecDeque<Operation>, seq: u64) -> Option<Operation> {
    operation(recent, seq).cloned()
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

    fn log_of(sizes: &[u64]) -> Log {
        let mut log = Log::new(Geometry::default(), 8);
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
        assert_eq!(Log::new(Geometry::default(), 8).state().hash, 294_558_605_038_270_209);
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

    #[test]
    fn the_first_difference_is_found() {
        let base: Vec<u64> = (1..=20).collect();
        for at in 0..20 {
            let mut other = base.clone();
            other[at] += 100;
            let found = first_divergence(&log_of(&base).digest(), &log_of(&other).digest());
            match found {
                Divergence::At { seq, left, right } => {
                    assert_eq!(seq, at as u64);
                    if let (Some(left), Some(right)) = (left, right) {
                        assert_eq!((left.bytes, right.bytes), (base[at], other[at]));
                    } else {
                        assert!(at < 12, "what the rings have is shown");
                    }
                }
                Divergence::Between { equal, different } => {
                    assert!(
                        at < 12 && equal <= at as u64 && (at as u64) < different,
                        "{at}: {equal} {different}"
                    );
                }
                Divergence::None => panic!("{at}: they differ"),
            }
        }
    }

    #[test]
    fn a_prefix_differs_where_it_ends() {
        let long: Vec<u64> = (1..=20).collect();
        let found = first_divergence(&log_of(&long).digest(), &log_of(&long[..15]).digest());
        assert!(
            matches!(&found, Divergence::At { seq: 15, left: Some(left), right: None } if left.bytes == 16),
            "{found:?}"
        );
        assert_eq!(first_divergence(&log_of(&long).digest(), &log_of(&long).digest()), Divergence::None);
        assert_eq!(
            first_divergence(&log_of(&[]).digest(), &log_of(&[]).digest()),
            Divergence::None,
            "nothing is equal to nothing"
        );
    }

    #[test]
    fn geometries_are_told_apart() {
        let other = Geometry { first_segment: 4 << 20, ..Geometry::default() };
        let found = first_divergence(&log_of(&[1]).digest(), &Log::new(other, 8).digest());
        assert_eq!(found, Divergence::Between { equal: 0, different: 0 });
    }
}
