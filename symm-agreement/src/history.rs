//! The operations in a pool's allocation log, and the point at which the logs of the ranks diverge. The allocation log
//! of a pool is the sequence of all operations on the pool. It is equal on all ranks that made the same requests with
//! the same results.

use std::fmt;

use caching_alloc::core::symmetric::{LogState, RESERVED};

use super::{
    Ranks, ValuesByRank,
    wire::{wire_enum, wire_struct},
};

/// The state of an allocation log, or of a group's [log](super::GroupLog::committed) of committed and retired
/// [segments](super::Segment): the number of entries, and the hash over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LogPoint {
    /// The number of entries.
    pub length: u64,
    /// The hash over all entries. The hash of an allocation log also covers the pool's `Geometry`.
    pub hash: u64,
}
wire_struct!(LogPoint { length, hash });

impl From<LogState> for LogPoint {
    fn from(LogState { length, hash }: LogState) -> Self {
        Self { length, hash }
    }
}

impl fmt::Display for LogPoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} operation{} with hash {:016x}",
            self.length,
            if self.length == 1 { "" } else { "s" },
            self.hash
        )
    }
}

/// The kind of an operation on a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// A block was allocated.
    Allocate,
    /// A block was freed.
    Free,
    /// A request was refused, because the pool could not get a new segment. For example, memory was lacking, or the
    /// request was made during a declared capture.
    Refuse,
    /// A segment was retired.
    Retire,
}
wire_enum!(OperationKind { 0 => Allocate {}, 1 => Free {}, 2 => Refuse {}, 3 => Retire {} });

/// One operation of an allocation log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The kind of the operation.
    pub kind: OperationKind,
    /// The requested size in bytes. For a free, the requested size of the freed block. For a retirement, the size of
    /// the segment.
    pub bytes: u64,
    /// The place of the block. For a retirement, the start of the segment. `None` for a refused request.
    pub place: Option<BlockPlace>,
    /// The tag that the program gave the request, or `reserved` for a reservation.
    pub tag: Option<String>,
    /// The source file and line of the program's call. Empty for a free, because the drop of a block's last clone has
    /// no source line.
    pub call_site: String,
}
wire_struct!(Operation { kind, bytes, place, tag, call_site });

/// The place of a block in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// The [ordinal](super::Segment::ordinal) of the block's segment.
    pub ordinal: u32,
    /// The block's offset in the segment, in bytes.
    pub offset: u64,
}
wire_struct!(BlockPlace { ordinal, offset });

impl fmt::Display for BlockPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "segment {}, offset {}", self.ordinal, self.offset)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            OperationKind::Allocate => "allocated",
            OperationKind::Free => "freed",
            OperationKind::Refuse => "was refused",
            OperationKind::Retire => "retired",
        };
        write!(out, "{what} {} bytes", self.bytes)?;
        if let Some(tag) = &self.tag {
            write!(out, " ({tag})")?;
        }
        if !self.call_site.is_empty() {
            write!(out, " at {}", self.call_site)?;
        }
        match self.place {
            Some(place) => write!(out, ", {place}"),
            None => Ok(()),
        }
    }
}

/// Returns the last part of the text of a [`Divergence::At`]: advice on making the ranks' pools equal again.
/// `operations` and `can_grant` are the fields of the divergence.
fn recovery(operations: &ValuesByRank<Option<Operation>>, can_grant: bool) -> String {
    let made = operations.entries.iter().filter_map(|entry| Some((entry, entry.value.as_ref()?)));
    let mut made = made.filter(|(_, operation)| operation.kind != OperationKind::Refuse);
    let impossible = "; the pools cannot be made equal again: drop the pool on all ranks, and make a new one";
    let Some((first, operation)) = made.next() else { return impossible.to_owned() };
    let Operation { kind, bytes, place, tag, .. } = operation;
    let request = if tag.as_deref() == Some(RESERVED) { "reserve" } else { "allocate" };
    let mut ahead = first.ranks.clone();
    for (entry, other) in made {
        if (other.kind, other.bytes, other.place) != (*kind, *bytes, *place) {
            return impossible.to_owned();
        }
        ahead.extend(&entry.ranks);
    }
    ahead.sort_unstable();
    let lacking =
        || operations.entries.iter().filter(|entry| !entry.ranks.iter().any(|it| ahead.contains(it)));
    let can_repeat =
        |refused: &Operation| can_grant && (*kind, *bytes) == (OperationKind::Allocate, refused.bytes);
    if !lacking().all(|entry| entry.value.as_ref().is_none_or(can_repeat)) {
        return impossible.to_owned();
    }
    let mut behind: Vec<u32> = lacking().flat_map(|entry| entry.ranks.iter().copied()).collect();
    behind.sort_unstable();
    let (behind, ahead) = (Ranks(&behind), Ranks(&ahead));
    match (kind, place) {
        (OperationKind::Allocate, _) => format!(
            "; to recover, let {behind} {request} {bytes} bytes next, as {ahead} did, then commit again"
        ),
        (OperationKind::Free, Some(place)) => {
            format!("; to recover, let {behind} drop the block at {place}, as {ahead} did, then commit again")
        }
        _ => impossible.to_owned(),
    }
}

/// The point at which the allocation logs of ranks diverge: the result of a [search](super::Range) in which the ranks
/// compare hashes of their logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Divergence {
    /// All logs are equal before this operation, and differ in it.
    At {
        /// The number of the operation in the log, from 0.
        sequence: u64,
        /// Each rank's operation with this number. `None` if the rank's log is shorter, or no longer has the operation.
        operations: ValuesByRank<Option<Operation>>,
        /// True if each refused request among the operations is the last operation in its rank's log. Such a rank can
        /// repeat the request. If the request then succeeds, the allocation replaces the refused request in the log.
        can_grant: bool,
    },
    /// No operation can be named as the first that differs, for one of these reasons:
    /// - The operation is too old. A log keeps only its latest operations, each with the hash after it, and a few older
    ///   hashes.
    /// - During the search, a log discarded a hash that the search needed, because of new operations.
    /// - The difference is not in an operation: the pools have different geometries.
    Forgotten {
        /// An upper bound: if an operation differs, the first one that differs has a smaller number than this.
        /// - 0: the hashes differ even at length 0, because the pools have different geometries.
        /// - Greater than 0: it is possible that no operation differs, but only the geometries of the pools. The search
        ///   compares the hashes at length 0 only if it starts there.
        before: u64,
    },
    /// The search was not completed, because a rank did not answer.
    NotFound {},
}
wire_enum!(Divergence {
    0 => At { sequence, operations, can_grant },
    1 => Forgotten { before },
    2 => NotFound {},
});

impl fmt::Display for Divergence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Divergence::At { sequence, operations, can_grant } => {
                write!(out, "the first allocation that differs is number {sequence}")?;
                // A tag, call site or place that is equal in all operations is written once here, and not again for
                // each rank.
                let mut remaining = operations.clone();
                let values = remaining.entries.iter_mut().map(|entry| &mut entry.value);
                let mut known: Vec<&mut Operation> = values.flatten().collect();
                if let [first, _, ..] = &known[..] {
                    let Operation { tag, call_site, place, .. } = Operation::clone(first);
                    if known.iter().all(|it| it.tag == tag) {
                        known.iter_mut().for_each(|it| it.tag = None);
                        tag.map_or(Ok(()), |tag| write!(out, ", tagged {tag}"))?;
                    }
                    if !call_site.is_empty() && known.iter().all(|it| it.call_site == call_site) {
                        known.iter_mut().for_each(|it| it.call_site.clear());
                        write!(out, ", at {call_site}")?;
                    }
                    if known.iter().all(|it| it.place == place) {
                        known.iter_mut().for_each(|it| it.place = None);
                        place.map_or(Ok(()), |place| write!(out, ", {place}"))?;
                    }
                }
                let what = remaining.describe(|operation| match operation {
                    None => "none".to_owned(),
                    Some(operation) => operation.to_string(),
                });
                write!(out, " ({what}){}", recovery(operations, *can_grant))
            }
            Divergence::Forgotten { before: 0 } => out.write_str(
                "the pools differ before their first allocation: drop the pool on all ranks, and make a new one with \
                 the same Geometry (first_segment, largest_segment) on all",
            ),
            Divergence::Forgotten { before } => write!(
                out,
                "the first allocation that differs lies before number {before}; drop the pool on all ranks, and make a \
                 new one"
            ),
            Divergence::NotFound {} => {
                out.write_str("a rank fell silent while the first allocation that differs was searched")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Finding, Recalled, conclude_search};

    fn operation(kind: OperationKind) -> Operation {
        Operation { kind, bytes: 4096, place: None, tag: None, call_site: "train.rs:12".to_owned() }
    }

    #[test]
    fn what_all_ranks_share_is_said_once() {
        let operation = |bytes, offset| Operation {
            bytes,
            place: Some(BlockPlace { ordinal: 0, offset }),
            tag: Some("bucket".to_owned()),
            ..operation(OperationKind::Allocate)
        };
        let said = |odd: Option<Operation>| {
            let of = |rank| (rank, if rank == 1 { odd.clone() } else { Some(operation(4096, 0)) });
            let operations = ValuesByRank::of((0..4).map(of));
            Divergence::At { sequence: 3, operations, can_grant: true }.to_string()
        };
        assert_eq!(
            said(Some(operation(8192, 0))),
            "the first allocation that differs is number 3, tagged bucket, at train.rs:12, segment 0, offset 0 (ranks \
             0, 2, 3: allocated 4096 bytes; rank 1: allocated 8192 bytes); the pools cannot be made equal again: drop the pool on all \
             ranks, and make a new one"
        );
        assert_eq!(
            said(Some(operation(4096, 512))),
            "the first allocation that differs is number 3, tagged bucket, at train.rs:12 (ranks 0, 2, 3: allocated \
             4096 bytes, segment 0, offset 0; rank 1: allocated 4096 bytes, segment 0, offset 512); the pools cannot be made equal again: \
             drop the pool on all ranks, and make a new one"
        );
        assert_eq!(
            said(None),
            "the first allocation that differs is number 3 (ranks 0, 2, 3: allocated 4096 bytes (bucket) at \
             train.rs:12, segment 0, offset 0; rank 1: none); to recover, let rank 1 allocate 4096 bytes next, as ranks \
             0, 2, 3 did, then commit again"
        );
    }

    #[test]
    fn the_advice_repeats_a_reservation_as_one() {
        let reserve = Operation { tag: Some(RESERVED.to_owned()), ..operation(OperationKind::Allocate) };
        let operations = ValuesByRank::of([(0, Some(reserve)), (1, None)]);
        let text = Divergence::At { sequence: 3, operations, can_grant: true }.to_string();
        assert!(
            text.ends_with("let rank 1 reserve 4096 bytes next, as rank 0 did, then commit again"),
            "{text}"
        );
    }

    #[test]
    fn a_refused_request_is_repeated_only_if_nothing_follows_it() {
        let advice = |is_last| {
            let answers = [(OperationKind::Allocate, false), (OperationKind::Refuse, is_last)];
            let recalled =
                answers.map(|(kind, is_last)| Recalled { operation: Some(operation(kind)), is_last });
            match conclude_search(3, (0..).zip(recalled)) {
                Finding::End { divergence } => divergence.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let text = advice(true);
        assert!(
            text.ends_with("let rank 1 allocate 4096 bytes next, as rank 0 did, then commit again"),
            "{text}"
        );
        let text = advice(false);
        assert!(text.contains("the pools cannot be made equal again: drop the pool on all ranks"), "{text}");
    }
}
