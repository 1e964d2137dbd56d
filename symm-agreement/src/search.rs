//! Finds the first operation that differs between the ranks' allocation logs (the sequences of [operations](Operation)
//! on their pools), during a commit. The search compares the hashes of equally long prefixes of the logs.
//!
//! The hash after n operations covers all n of them, so it is equal on all ranks up to the first difference and unequal
//! after it. The search runs in rounds. In every round, each rank posts its hashes at the same few lengths, the points.
//! The next round searches the range between the last point with equal hashes and the first point with unequal hashes.
//! Once only one operation remains, each rank posts this operation.

use super::{
    ValuesByRank,
    history::{Divergence, Operation, OperationKind},
    record::CommitRecord,
    wire::wire_struct,
};

/// The greatest number of parts into which one round divides a range.
const PARTS: u64 = 32;

/// A range of lengths of the allocation log, in which the search looks for the first difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The lower end.
    /// - In the first round: the greatest [`log_since`](CommitRecord::log_since) of all ranks. So every rank has a hash
    ///   at each length in the range. Exception: if a log ends before this length, the lower end is the length of the
    ///   shortest log. The range then has only this length, and some ranks may have no hash there.
    /// - In later rounds: a length at which all ranks have the same hash.
    pub low: u64,
    /// The upper end. In the first round, the length of the shortest log. In later rounds, a length at which the hashes
    /// differ.
    pub high: u64,
}
wire_struct!(Range { low, high });

impl Range {
    /// Returns the range to search, or `None` if the logs of all records are equal.
    pub(crate) fn of_difference(records: &[(u32, &CommitRecord)]) -> Option<Self> {
        let (_, first) = records.first()?;
        if records.iter().all(|(_, record)| record.log == first.log) {
            return None;
        }
        let low = records.iter().map(|(_, record)| record.log_since).max()?;
        let high = records.iter().map(|(_, record)| record.log.length).min()?;
        Some(Self { low: low.min(high), high })
    }

    /// Returns the points: the lengths at which hashes are compared, in ascending order. The first is `low` and the
    /// last is `high`.
    pub fn points(&self) -> Vec<u64> {
        let width = self.high.saturating_sub(self.low);
        let parts = width.clamp(1, PARTS);
        let at = |part: u64| self.low + (u128::from(width) * u128::from(part) / u128::from(parts)) as u64;
        let mut points: Vec<u64> = (0..=parts).map(at).collect();
        points.dedup();
        points
    }
}

/// The result of one round of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The first difference lies in this range.
    Narrower { range: Range },
    /// The first operation that differs has this number.
    Operation { sequence: u64 },
    /// The search has ended with this result.
    End { divergence: Divergence },
}

/// The answer of a rank to [`CommitPlan::Recall`](super::CommitPlan::Recall), which asks for one operation of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    /// The requested operation. `None` if the rank's log ends before the operation, or no longer has it.
    pub(crate) operation: Option<Operation>,
    /// True if the rank's log, as it was at the start of the commit, ends with the operation or before it.
    pub(crate) is_last: bool,
}
wire_struct!(Recalled { operation, is_last });

/// Evaluates a round of the search. `answers` are the [hashes](super::CommitOutcome::Hashes) of all ranks at the points
/// of `range`.
pub(crate) fn narrow(range: Range, answers: &[Vec<Option<u64>>]) -> Finding {
    let points = range.points();
    let is_unknown =
        |index: usize| answers.iter().any(|hashes| hashes.get(index).copied().flatten().is_none());
    let equal = |index: usize| {
        let mut hashes = answers.iter().map(|hashes| hashes.get(index));
        let first = hashes.next();
        !is_unknown(index) && hashes.all(|hash| Some(hash) == first)
    };
    // Called only if a rank has no hash at `high` any more, or if the hashes at `high` differ. The number of the first
    // operation that differs is:
    // - at most `high`, if a hash at `high` is unknown;
    // - below `high`, if the hashes differ.
    let forgotten = || {
        let before = range.high.saturating_add(is_unknown(points.len() - 1).into());
        Finding::End { divergence: Divergence::Forgotten { before } }
    };
    // If the hashes are equal at a point, the logs are equal up to it.
    match (0..points.len()).rfind(|index| equal(*index)) {
        Some(last) if last + 1 == points.len() => Finding::Operation { sequence: range.high },
        // Reasons for an unknown hash:
        // - An allocation during the search has removed it.
        // - In the first round: the shortest log ends at a length at which another rank no longer has the hash.
        None if is_unknown(0) => forgotten(),
        Some(last) if is_unknown(last + 1) => forgotten(),
        None => Finding::End { divergence: Divergence::Forgotten { before: range.low } },
        Some(last) => {
            let (low, high) = (points[last], points[last + 1]);
            match high - low {
                1 => Finding::Operation { sequence: low },
                _ => Finding::Narrower { range: Range { low, high } },
            }
        }
    }
}

/// Ends the search and returns its result. `sequence` is the number of the first operation that differs. `answers` has,
/// for each rank, its operation with this number.
pub(crate) fn conclude_search(sequence: u64, answers: impl IntoIterator<Item = (u32, Recalled)>) -> Finding {
    let mut can_grant = true;
    let operations = ValuesByRank::of(answers.into_iter().map(|(rank, Recalled { operation, is_last })| {
        can_grant &= is_last || operation.as_ref().is_none_or(|it| it.kind != OperationKind::Refuse);
        (rank, operation)
    }));
    let divergence = match operations.entries.iter().any(|entry| entry.value.is_some()) {
        true => Divergence::At { sequence, operations, can_grant },
        // Each rank's log ends before this operation, or no longer has it.
        false => Divergence::Forgotten { before: sequence + 1 },
    };
    Finding::End { divergence }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_difference_is_found(
            low in 0u64..1000,
            common in 0u64..100_000,
            rest in proptest::collection::vec(0u64..100_000, 2..5),
        ) {
            // All histories are equal in their first `low + common` operations. Each has as many more operations as its
            // entry in `rest`.
            let parted = low + common;
            let lengths: Vec<u64> = rest.iter().map(|rest| parted + rest).collect();
            let high = *lengths.iter().min().expect("there are ranks");
            let hash = |rank: u64, length: u64| if length <= parted { length } else { length ^ (rank << 40) };
            let mut range = Range { low, high };
            let mut rounds = 0;
            let found = loop {
                rounds += 1;
                prop_assert!(rounds < 8);
                let hashes = |rank| range.points().iter().map(|&at| Some(hash(rank, at))).collect();
                let answers: Vec<_> = (1..=lengths.len() as u64).map(hashes).collect();
                match narrow(range, &answers) {
                    Finding::Narrower { range: narrower } => range = narrower,
                    Finding::Operation { sequence } => break sequence,
                    Finding::End { divergence } => panic!("{divergence}"),
                }
            };
            prop_assert_eq!(found, parted);
        }
    }

    proptest! {
        /// During the search, other threads of a rank may allocate. The rank's log then loses the hashes below some
        /// length, except those at 0 and at powers of two. The search must still find the correct operation, or end
        /// with a correct [`Divergence::Forgotten`].
        #[test]
        fn hashes_that_a_rank_loses_are_no_difference(
            common in 0u64..3000,
            rest in proptest::collection::vec(1u64..3000, 2..5),
            losses in proptest::collection::vec(proptest::collection::vec(0u64..6000, 0..4), 2..5),
        ) {
            let high = common + *rest.iter().min().expect("there are ranks");
            let mut range = Range { low: 0, high };
            let mut lost = vec![0; rest.len()];
            for round in 0..8 {
                let answers: Vec<_> = (0..rest.len()).map(|rank| {
                    lost[rank] += losses.get(rank).and_then(|it| it.get(round)).copied().unwrap_or(0);
                    let hash = |&at: &u64| {
                        let is_known = at >= lost[rank] || at == 0 || at.is_power_of_two();
                        is_known.then_some(if at <= common { at } else { at ^ (rank as u64 + 1) << 40 })
                    };
                    range.points().iter().map(hash).collect()
                }).collect();
                match narrow(range, &answers) {
                    Finding::Narrower { range: narrower } => range = narrower,
                    Finding::Operation { sequence } => {
                        prop_assert_eq!(sequence, common);
                        return Ok(());
                    }
                    Finding::End { divergence: Divergence::Forgotten { before } } => {
                        prop_assert!((common + 1..=high + 1).contains(&before));
                        prop_assert!(lost.iter().any(|lost| *lost > 0));
                        return Ok(());
                    }
                    Finding::End { divergence } => panic!("{divergence}"),
                }
            }
            prop_assert!(false, "the search does not end");
        }
    }

    #[test]
    fn what_is_forgotten_is_said() {
        let narrowed = |low, high, answers: [&[Option<u64>]; 2]| {
            narrow(Range { low, high }, &answers.map(<[_]>::to_vec))
        };
        let forgotten = |before| Finding::End { divergence: Divergence::Forgotten { before } };
        let differ = [&[Some(1), Some(2), Some(3)][..], &[Some(4), Some(5), Some(6)][..]];
        assert_eq!(narrowed(10, 12, differ), forgotten(10));
        // The shortest log ends at length 10, where a rank has no hash. Operation 10 may be the first one that differs.
        assert_eq!(narrowed(10, 10, [&[None], &[Some(1)]]), forgotten(11));
        // The hashes differ at length 12. At length 11, one rank no longer has its hash.
        assert_eq!(
            narrowed(10, 12, [&[Some(1), None, Some(2)], &[Some(1), Some(3), Some(4)]]),
            forgotten(12)
        );
        let recalled = Recalled { operation: None, is_last: true };
        assert_eq!(conclude_search(10, [(0, recalled.clone()), (1, recalled)]), forgotten(11));
    }

    #[test]
    fn points_reach_both_ends() {
        for (low, high) in [(0, 0), (5, 6), (0, 31), (0, 33), (7, 1_000_003), (0, u64::MAX)] {
            let points = Range { low, high }.points();
            assert_eq!((points[0], points[points.len() - 1]), (low, high));
            assert!(points.is_sorted() && points.len() <= PARTS as usize + 1);
        }
    }
}
