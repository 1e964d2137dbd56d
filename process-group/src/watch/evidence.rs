//! Finds the first collective in which members' calls differ, and the rank that differs from the majority.
//!
//! Every member writes its call history to the store. The result depends on the histories alone, so every member that
//! has read all histories computes the same result.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bootstrap::{Ranges, wire::wire_struct};

use super::rolling::{Mark, Rolling};
use crate::{messages::message, record::Dump};

/// The first difference between the calls of a group's members.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// Ranks in the job whose calls differ from the calls of the majority. Without a majority: all members that were
    /// compared. If the members no longer keep the hashes that differ: the two members that were found to differ.
    pub ranks: Vec<usize>,
    /// Number of the last collective up to which all members are known to have made equal calls. 0 if there is none.
    pub after: u64,
    /// Number of a collective after which the members' call histories are known to differ. The first call that differs
    /// has a number above `after`, and at most `by`.
    pub by: u64,
    /// The calls with number `by`, of the ranks that differ and of one rank of the majority, at most 16. Empty if the
    /// number of the first different call is not known exactly, or if the calls are no longer recorded. If a method
    /// such as [`compare_calls`](crate::ProcessGroup::compare_calls) found the difference: the calls of that method.
    pub calls: Vec<DivergentCall>,
}
wire_struct!(Divergence { ranks, after, by, calls });

/// The call of one member, where other members made a different call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DivergentCall {
    /// The member's rank in the job.
    pub rank: usize,
    /// Description of the call, with element type, count, root and reduction.
    pub call: String,
    /// Call site, as `file:line`.
    pub site: String,
}
wire_struct!(DivergentCall { rank, call, site });

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = Ranges(&self.ranks);
        match (self.after + 1 == self.by, self.by) {
            (true, by) => write!(f, "rank(s) {ranks} differ in collective {by}")?,
            (false, by) => {
                write!(f, "rank(s) {ranks} differ in a collective from {} to {by}", self.after + 1)?
            }
        }
        let segment = self.common_segment();
        if let Some(segment) = segment {
            write!(f, ", with buffers{segment}")?;
        }
        for DivergentCall { rank, call, site } in &self.calls {
            let call = segment.and_then(|segment| call.strip_suffix(segment)).unwrap_or(call);
            write!(f, "; rank {rank} called {call} at {site}")?;
        }
        Ok(())
    }
}

impl Divergence {
    /// Returns the part of the calls' descriptions that names a segment of symmetric memory: the end of each
    /// description, from ` in segment ` on. Returns `None` unless every description names this one segment and no
    /// other. The text of the divergence then names the segment once, so that the offsets, which differ, stand out.
    fn common_segment(&self) -> Option<&str> {
        const IN: &str = " in segment ";
        let of = |call: &DivergentCall| call.call.find(IN);
        let (first, others) = self.calls.split_first()?;
        let segment = &first.call[of(first)?..];
        let is_same = |other: &DivergentCall| of(other).is_some_and(|at| other.call[at..] == *segment);
        // The calls of a batch are joined by "and".
        let is_one = !segment[1..].contains(IN) && !segment.contains(" and ");
        let is_common = !others.is_empty() && others.iter().all(is_same) && is_one;
        is_common.then_some(segment)
    }
}

/// One member's call history in a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CallHistory {
    /// The hash after each of the member's collectives, by the collective's number.
    pub(super) marks: BTreeMap<u64, u64>,
    /// Description and call site of each distinct call.
    distinct: Vec<(String, String)>,
    /// Indices of the member's calls in `distinct`, by the collective's number.
    calls: BTreeMap<u64, u32>,
}
wire_struct!(CallHistory { marks, distinct, calls });
message!(CallHistory, CALL_HISTORY);

impl CallHistory {
    /// Collects this rank's history of calls in the group `id`.
    pub(crate) fn of(id: &str, rolling: &Rolling, dump: &Dump) -> Self {
        let count = rolling.count();
        let near = count.saturating_sub(Rolling::NEAR)..=count;
        let far = (0..=count / Rolling::STRIDE).rev().take(1024).map(|number| number * Rolling::STRIDE);
        let numbers: BTreeSet<u64> = near.chain(far).filter(|number| *number > 0).collect();
        let marks = numbers.into_iter().filter_map(|number| Some((number, rolling.after(number)?))).collect();
        let mut calls = BTreeMap::<u64, (String, String)>::new();
        let place = dump.groups.iter().position(|group| group.id == id);
        let own = dump.entries.iter().filter(|entry| Some(entry.group) == place);
        for entry in own.filter(|entry| !entry.operation.is_message() && !entry.operation.is_end()) {
            let site = format!("{}:{}", entry.site.file(), entry.site.line());
            let words = entry.description();
            calls
                .entry(entry.collective)
                .and_modify(|(call, _)| *call = format!("{call} and {words}"))
                .or_insert((words, site));
        }
        Self::new(marks, calls)
    }

    /// Makes a history. `marks` are hashes, and `calls` are descriptions with call sites. Both are indexed by the
    /// collective's number.
    pub(super) fn new(marks: BTreeMap<u64, u64>, calls: BTreeMap<u64, (String, String)>) -> Self {
        let (mut distinct, mut places) = (Vec::new(), HashMap::new());
        let index = |(number, call): (u64, (String, String))| {
            let next = places.len() as u32;
            let index = *places.entry(call).or_insert_with_key(|call| {
                distinct.push(call.clone());
                next
            });
            (number, index)
        };
        let calls = calls.into_iter().map(index).collect();
        Self { marks, distinct, calls }
    }

    /// Returns the description and the call site of collective `number`.
    fn call(&self, number: u64) -> Option<&(String, String)> {
        self.distinct.get(*self.calls.get(&number)? as usize)
    }
}

/// Compares the members' histories, and finds the first difference and the ranks that differ. `members` are pairs of a
/// rank in the job and its history. `suspects` are two ranks whose hashes differed after collective `number`.
pub(super) fn find_divergence(
    members: &[(usize, CallHistory)],
    suspects: [usize; 2],
    number: u64,
) -> Divergence {
    // For each collective's number and each hash: the ranks that have this hash.
    let mut numbers: BTreeMap<u64, BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
    for (rank, history) in members {
        for (number, hash) in &history.marks {
            numbers.entry(*number).or_default().entry(*hash).or_default().push(*rank);
        }
    }
    let differing = numbers.iter().find(|(_, hashes)| hashes.len() > 1);
    let Some((by, hashes)) = differing else {
        // The members no longer keep the hashes that differ.
        return Divergence { ranks: suspects.to_vec(), after: 0, by: number, calls: Vec::new() };
    };
    // Hashes that differ once never become equal again. So equal hashes of all members after a collective show that all
    // calls up to it are equal.
    let agreed = |(number, hashes): (&u64, &BTreeMap<u64, Vec<usize>>)| {
        let known: usize = hashes.values().map(Vec::len).sum();
        (known == members.len()).then_some(*number)
    };
    let after = numbers.range(..*by).rev().find_map(agreed).unwrap_or(0);
    let (ranks, other) = minority(hashes.values());
    let calls = ranks.iter().chain(&other).filter(|_| after + 1 == *by).filter_map(|rank| {
        let (_, history) = members.iter().find(|(member, _)| member == rank)?;
        let (call, site) = history.call(*by)?.clone();
        Some(DivergentCall { rank: *rank, call, site })
    });
    let calls = calls.take(Divergence::NAMED).collect();
    Divergence { ranks, after, by: *by, calls }
}

/// Returns the ranks outside the majority, and one rank of the majority. Each of `groups` is the list of the ranks that
/// have the same value. Without a majority, every rank differs from some other rank, so all ranks are returned.
fn minority<'a>(groups: impl Iterator<Item = &'a Vec<usize>> + Clone) -> (Vec<usize>, Option<usize>) {
    let total: usize = groups.clone().map(Vec::len).sum();
    let majority = groups.clone().find(|ranks| 2 * ranks.len() > total);
    let mut ranks: Vec<_> = groups.filter(|ranks| Some(*ranks) != majority).flatten().copied().collect();
    ranks.sort_unstable();
    (ranks, majority.and_then(|majority| majority.first().copied()))
}

impl Divergence {
    /// Maximum number of calls in a report.
    const NAMED: usize = 16;

    /// Compares the members' last [`Mark`]s: the number of a member's last collective and the hash after it. Each of
    /// `members` consists of the member's rank in the job, its mark, and the site of its call of the method
    /// `comparison`, which requested the comparison. Returns `None` if all marks are equal. If the counts are unequal, the
    /// caller must know that the members' calls are equal up to the fewest: the marks do not show it.
    pub(crate) fn of_marks(comparison: &str, members: &[(usize, (Mark, String))]) -> Option<Self> {
        let mut marks: BTreeMap<Mark, Vec<usize>> = BTreeMap::new();
        for (rank, (mark, _)) in members {
            marks.entry(*mark).or_default().push(*rank);
        }
        let (((fewest, _), _), ((most, _), _)) = marks.first_key_value().zip(marks.last_key_value())?;
        if marks.len() < 2 {
            return None;
        }
        // If all counts are equal, the hashes do not show which call was the first to differ.
        let (after, by) = if fewest < most { (*fewest, fewest + 1) } else { (0, *most) };
        let (ranks, other) = minority(marks.values());
        let calls = ranks.iter().chain(&other).filter_map(|rank| {
            let (_, ((count, _), site)) = members.iter().find(|(member, _)| member == rank)?;
            let call = format!("{comparison} after {count} collectives");
            Some(DivergentCall { rank: *rank, call, site: site.clone() })
        });
        let calls = calls.take(Self::NAMED).collect();
        Some(Self { ranks, after, by, calls })
    }
}

/// The sender and the receiver of a message have made different calls. The ranks are ranks of the group in
/// [`PathError::Differ`](crate::group::PathError::Differ), and ranks of the job in
/// [`GroupErrorKind::MessagesDiffer`](crate::group::GroupErrorKind::MessagesDiffer).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {number} of rank {from} to rank {to}: {sent} were sent, but {received} received")]
pub struct MessageDifference {
    /// The sender's rank.
    pub from: usize,
    /// The receiver's rank.
    pub to: usize,
    /// The number of the message among those from the sender to the receiver, beginning with 1.
    pub number: u64,
    /// The data sent: the number of elements and their type.
    pub sent: String,
    /// The data that the receiver's call would receive: the number of elements and their type.
    pub received: String,
}
wire_struct!(MessageDifference { from, to, number, sent, received });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::rolling::Fold;
    use bootstrap::wire::Message;
    use proptest::prelude::*;

    /// Returns the history of a member that made these calls.
    fn member(calls: &[u64]) -> CallHistory {
        let rolling = Rolling::new();
        calls.iter().for_each(|call| rolling.step(Fold::default().with(*call, 8)));
        let marks = (1..=calls.len() as u64).map(|number| (number, rolling.after(number).unwrap())).collect();
        let call = |(at, call): (usize, &u64)| (at as u64 + 1, (format!("call {call}"), "a.rs:1".to_owned()));
        CallHistory::new(marks, calls.iter().enumerate().map(call).collect())
    }

    proptest! {
        /// A member with one different call is named, with the number, its call and another member's call.
        #[test]
        fn the_member_with_a_different_call_is_named(
            calls in prop::collection::vec(0u64..4, 1..60), odd in 0usize..5, at in any::<prop::sample::Index>(), size in 3usize..6,
            cuts in prop::collection::vec(0usize..10, 6),
        ) {
            let (odd, at) = (odd % size, at.index(calls.len()));
            let members: Vec<_> = (0..size).map(|rank| {
                let mut own = calls.clone();
                if rank == odd {
                    own[at] += 7;
                }
                // Members have made different numbers of calls, but all have made the call in question.
                own.truncate((calls.len() - cuts[rank].min(calls.len() - 1)).max(at + 1));
                let history = member(&own);
                prop_assert_eq!(CallHistory::from_bytes(&history.to_bytes()), Ok(history.clone()));
                Ok((rank + 10, history))
            }).collect::<Result<_, _>>()?;
            let found = find_divergence(&members, [10, 11], calls.len() as u64);
            prop_assert_eq!((&found.ranks[..], found.after, found.by), (&[odd + 10][..], at as u64, at as u64 + 1));
            prop_assert_eq!(found.calls.len(), 2);
            prop_assert_eq!(&found.calls[0].call, &format!("call {}", calls[at] + 7));
            prop_assert_eq!(&found.calls[1].call, &format!("call {}", calls[at]));
        }
    }

    #[test]
    fn a_member_with_other_marks_than_the_majority_is_named() {
        let of = |marks: [Mark; 3]| {
            let members = (4..).zip(marks.map(|mark| (mark, "a.rs:1".to_owned())));
            Divergence::of_marks("compare_calls", &members.collect::<Vec<_>>())
        };
        assert_eq!(of([(10, 7); 3]), None);
        assert_eq!(
            of([(10, 7), (9, 6), (10, 7)]).unwrap().to_string(),
            "rank(s) 5 differ in collective 10; rank 5 called compare_calls after 9 collectives at a.rs:1; rank 4 \
             called compare_calls after 10 collectives at a.rs:1"
        );
        assert_eq!(of([(10, 3), (9, 2), (8, 1)]).unwrap().ranks, [4, 5, 6]);
        let found = of([(10, 7), (10, 7), (10, 8)]).unwrap();
        assert_eq!((&found.ranks[..], found.after, found.by), (&[6][..], 0, 10));
    }

    #[test]
    fn of_two_both_are_named() {
        let members = [(0, member(&[1, 2, 3])), (1, member(&[1, 5, 3]))];
        let found = find_divergence(&members, [0, 1], 3);
        assert_eq!((&found.ranks[..], found.after, found.by, found.calls.len()), (&[0, 1][..], 1, 2, 2));
        let text = "rank(s) 0, 1 differ in collective 2; rank 0 called call 2 at a.rs:1; rank 1 called call 5 at a.rs:1";
        assert_eq!(found.to_string(), text);
    }

    #[test]
    fn a_segment_of_all_calls_is_named_once() {
        let call = |rank, offset, pool| DivergentCall {
            rank,
            call: format!(
                "all_reduce of 8 f32, send and receive buffers at offset {offset} in segment 0 of pool {pool}"
            ),
            site: "a.rs:1".to_owned(),
        };
        let said = |calls: [DivergentCall; 2]| {
            Divergence { ranks: vec![1], after: 1, by: 2, calls: calls.into() }.to_string()
        };
        assert_eq!(
            said([call(1, 64, 3), call(0, 0, 3)]),
            "rank(s) 1 differ in collective 2, with buffers in segment 0 of pool 3; rank 1 called all_reduce of 8 f32, \
             send and receive buffers at offset 64 at a.rs:1; rank 0 called all_reduce of 8 f32, send and receive \
             buffers at offset 0 at a.rs:1"
        );
        let apart = said([call(1, 0, 3), call(0, 0, 4)]);
        assert!(apart.contains("in segment 0 of pool 3 at a.rs:1") && apart.contains("of pool 4"), "{apart}");
    }

    #[test]
    fn what_is_forgotten_leaves_a_range() {
        let mut members = [(0, member(&[1; 130])), (1, member(&[2; 130])), (2, member(&[1; 130]))];
        for (_, history) in &mut members {
            history.marks.retain(|number, _| *number == 128);
        }
        let found = find_divergence(&members, [0, 1], 130);
        assert_eq!((&found.ranks[..], found.after, found.by, found.calls.len()), (&[1][..], 0, 128, 0));
        assert_eq!(
            find_divergence(&[], [0, 1], 9),
            Divergence { ranks: vec![0, 1], after: 0, by: 9, calls: Vec::new() }
        );
    }

    #[test]
    fn a_difference_names_both_values() {
        let (sent, received) = ("3 f32".to_owned(), "4 f32".to_owned());
        let text = MessageDifference { from: 5, to: 6, number: 2, sent, received }.to_string();
        assert_eq!(text, "message 2 of rank 5 to rank 6: 3 f32 were sent, but 4 f32 received");
    }
}
