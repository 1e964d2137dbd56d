//! Checked mode: members compare their calls before anything is launched.
//!
//! Collectives are compared among all members, messages between sender and receiver. All members of a comparison see
//! the same data, so they reach the same result. After a mismatch nothing has been launched, and the group stays
//! usable.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::Location,
};

use bootstrap::{
    agreement::{PlainProtocol, ValuesByRank},
    wire::{wire_enum, wire_struct},
};

use super::{GroupErrorKind, KindResult, Misplaced, ProcessGroup, Result};
use crate::{
    comm::{Op, ReduceOp},
    messages,
    operation::{Operation, Primitive},
};

/// The calls that one rank is about to make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct CallRecord {
    /// The rank's position in the group.
    place: usize,
    /// Descriptions of the collectives, in the order of the calls.
    collectives: Vec<String>,
    /// Descriptions of the messages, by the peer's rank in the group: first those to the peer, then those from the
    /// peer.
    messages: BTreeMap<usize, (Vec<String>, Vec<String>)>,
    /// The buffers that collectives need at the same window offset on every rank. Each entry describes the call with
    /// its buffer, and the buffer's position.
    places: Vec<(String, String)>,
    /// The call site, as `file:line`. Shown in errors, but not compared.
    site: String,
}
wire_struct!(CallRecord { place, collectives, messages, places, site });

/// The agreement that compares the calls that members are about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison;

/// Calls that do not match.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mismatch {
    /// See [`GroupErrorKind::CallsDiffer`].
    Calls {
        rank: usize,
        call: String,
        other: usize,
        other_call: String,
    },
    Places(Misplaced),
}
wire_enum!(Mismatch { 0 => Calls { rank, call, other, other_call }, 1 => Places(misplaced) });

impl PlainProtocol for Comparison {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = CallRecord;
    type Agreed = ();
    type Refusal = Mismatch;

    fn conclude(records: &[(u32, CallRecord)]) -> Result<(), Mismatch> {
        compare(records).map_err(|[(rank, call), (other, other_call)]| {
            let (rank, other) = (rank as usize, other as usize);
            Mismatch::Calls { rank, call, other, other_call }
        })?;
        let Some((buffer, odd, usual)) = misplaced(records) else { return Ok(()) };
        let at = |index: usize| {
            let nowhere = || ("a buffer".to_owned(), "in memory that is compared with nothing".to_owned());
            let (rank, record) = &records[index];
            (*rank as usize, record.places.get(buffer).cloned().unwrap_or_else(nowhere))
        };
        let ((rank, (buffer, place)), (other, (_, other_place))) = (at(odd), at(usual));
        Err(Mismatch::Places(Misplaced { buffer, rank, place, other, other_place }))
    }
}

/// Returns true if all members make this call. A batch is collective if it contains a collective.
#[inline(always)]
pub(super) fn is_collective(operation: Operation, ops: &[Op]) -> bool {
    match operation {
        Operation::Batch => ops.iter().any(|op| !op.is_message() && !op.primitive.is_one_sided()),
        operation => !operation.is_message(),
    }
}

impl CallRecord {
    /// Describes `ops` for the comparison. With `peer`, the record contains only the messages with that rank. Without
    /// `peer`, it contains only the collectives.
    fn of(ops: &[Op], peer: Option<usize>) -> Self {
        let mut record = Self::default();
        for op in ops.iter().filter(|op| op.is_message() == peer.is_some()) {
            let Op { primitive, call, count, dtype, reduction, rank, .. } = *op;
            if let Primitive::Send | Primitive::Recv = primitive {
                if peer.is_none_or(|peer| peer == rank) {
                    let (to, from) = record.messages.entry(rank).or_default();
                    let calls = if primitive == Primitive::Send { to } else { from };
                    calls.push(format!("{count} {dtype}"));
                }
                // The sends and receives of a `_list` operation are not calls of their own, so the operation is added
                // once.
                let list = format!("{call} of {dtype}");
                if peer.is_none() && record.collectives.last() != Some(&list) {
                    record.collectives.push(list);
                }
                continue;
            }
            let mut words = format!("{call} of {count} {dtype}");
            match reduction {
                _ if !primitive.reduces() => {}
                // Each member may have its own factor, so the factor is not compared.
                ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => words += " by premul_sum",
                reduction => words += &format!(" by {reduction}"),
            }
            if let Some(role) = primitive.role() {
                words += &format!(" with {role} {rank}");
            }
            record.collectives.push(words);
        }
        record
    }

    fn words(&self) -> String {
        let calls =
            if self.collectives.is_empty() { "nothing".to_owned() } else { self.collectives.join(", ") };
        format!("calls {calls}{}", self.at_site())
    }

    /// Returns the call site, formatted as the end of a description. Empty if there is none.
    fn at_site(&self) -> String {
        if self.site.is_empty() { String::new() } else { format!(" at {}", self.site) }
    }

    /// Returns the descriptions of the messages to `peer`.
    fn to(&self, peer: usize) -> &[String] {
        self.messages.get(&peer).map_or(&[], |(to, _)| to)
    }

    /// Returns the descriptions of the messages from `peer`.
    fn from(&self, peer: usize) -> &[String] {
        self.messages.get(&peer).map_or(&[], |(_, from)| from)
    }
}

/// Returns the positions of those buffers in `ops` that need the same window offset on every rank, each with a
/// description of its call.
fn places(group: &ProcessGroup, ops: &[Op]) -> Vec<(String, String)> {
    let known = &group.buffer_cache.places;
    if known.are_none() {
        return Vec::new();
    }
    let of = |op: &Op| {
        let call = op.call;
        op.symmetric_buffers(group.communicator.place()).map(move |(buffer, address, bytes)| {
            let found = known.locate(address, bytes).unwrap_or_else(|| "in no symmetric memory".to_owned());
            (format!("the {buffer} buffer of {call}"), found)
        })
    };
    ops.iter().flat_map(of).collect()
}

/// Returns the index of the first value that differs from the majority, and the index of the first value that belongs
/// to the majority. On a tie, the first value counts as the majority.
fn find_minority<V: PartialEq>(values: impl Iterator<Item = V>) -> Option<(usize, usize)> {
    let values = ValuesByRank::of((0..).zip(values));
    let usual = values.entries.first()?.ranks.first()?;
    Some((*values.minority().first()? as usize, *usual as usize))
}

/// Returns the first buffer whose position is not the same on all ranks: the buffer's index, the index of a record that
/// differs from the majority, and the index of a record of the majority. The calls on all records must be equal.
fn misplaced(records: &[(u32, CallRecord)]) -> Option<(usize, usize, usize)> {
    let count = records.iter().map(|(_, record)| record.places.len()).max()?;
    (0..count).find_map(|buffer| {
        let places = records.iter().map(|(_, record)| record.places.get(buffer).map(|(_, place)| place));
        find_minority(places).map(|(odd, usual)| (buffer, odd, usual))
    })
}

/// Compares the records. On a mismatch, returns two ranks with descriptions of their calls: a rank whose collective
/// differs from the majority's and a rank of the majority, or the two ends of a message that do not match.
fn compare(records: &[(u32, CallRecord)]) -> Result<(), [(u32, String); 2]> {
    if let Some((odd, usual)) = find_minority(records.iter().map(|(_, record)| &record.collectives)) {
        let ((rank, odd), (other, usual)) = (&records[odd], &records[usual]);
        return Err([(*rank, odd.words()), (*other, usual.words())]);
    }
    for ((rank, from), (other, to)) in
        records.iter().flat_map(|from| records.iter().map(move |to| (from, to)))
    {
        let (sent, received) = (from.to(to.place), to.from(from.place));
        if sent != received && from.place != to.place {
            let words = |verb: &str, what: &[String], other: usize| match what {
                [] => format!("{verb} rank {other} nothing"),
                what => format!("{verb} rank {other} {}", what.join(", ")),
            };
            let sends = words("sends to", sent, to.place) + &from.at_site();
            let receives = words("receives from", received, from.place) + &to.at_site();
            return Err([(*rank, sends), (*other, receives)]);
        }
    }
    Ok(())
}

impl ProcessGroup {
    /// Compares the ops that this rank is about to launch: collectives with those of all members, messages with those
    /// of the peer.
    ///
    /// # Errors
    /// [`GroupErrorKind::CallsDiffer`] or [`GroupErrorKind::SymmetricOffsetMismatch`], the same on all members of the
    /// comparison. [`GroupErrorKind::Absent`] with the members that did not come. [`GroupErrorKind::NotAgreed`] if the
    /// absent members wait for this member in another call. The error that ended the group.
    pub(super) fn compare(&self, ops: &[Op], site: &'static Location<'static>) -> KindResult<()> {
        let site = format!("{}:{}", site.file(), site.line());
        // One-sided operations have no matching call on the other rank.
        let ops: Vec<_> = ops.iter().filter(|op| !op.primitive.is_one_sided()).copied().collect();
        if ops.iter().any(|op| !op.is_message()) {
            let record =
                CallRecord { places: places(self, &ops), site: site.clone(), ..CallRecord::of(&ops, None) };
            self.meet("all", &self.ranks, record)?;
        }
        // Peers are met in ascending order, which excludes circular waits. In a circle, each rank would wait for a rank
        // lower than the rank that waits for it. No rank is lower than the lowest rank of the circle.
        let messages = ops.iter().filter(|op| op.is_message() && op.rank != self.rank);
        let peers: BTreeSet<usize> = messages.map(|op| op.rank).collect();
        for peer in peers {
            let pair = [self.rank.min(peer), self.rank.max(peer)];
            let name = format!("{}-{}", pair[0], pair[1]);
            let record = CallRecord { site: site.clone(), ..CallRecord::of(&ops, Some(peer)) };
            self.meet(&name, &pair.map(|place| self.ranks[place]), record)?;
        }
        Ok(())
    }

    /// In checked mode, reports to the other members, which are about to make the same call, that this rank's call of
    /// `operation` is invalid. Does nothing for messages, because the peer may be the invalid argument.
    pub(super) fn refused(&self, operation: Operation, is_collective: bool, error: &GroupErrorKind) {
        if self.shared_settings.checked && is_collective && !self.counter.health.is_over() {
            let call = format!("{operation} with arguments that were refused ({error})");
            let record = CallRecord { collectives: vec![call], ..CallRecord::default() };
            // The result is ignored: the caller returns this rank's own error.
            let _ = self.meet("all", &self.ranks, record);
        }
    }

    /// Compares `record` with the records of the other members of `ranks`, which are ranks of the job.
    fn meet(&self, name: &str, ranks: &[usize], record: CallRecord) -> KindResult<()> {
        let meeting = self.meeting_of("a checked call", &format!("checked/{name}"), ranks);
        let record = CallRecord { place: self.rank, ..record };
        let Err(mismatch) = meeting.decide::<Comparison>(record, self.timeout())? else { return Ok(()) };
        Err(match mismatch {
            Mismatch::Calls { rank, call, other, other_call } => {
                GroupErrorKind::CallsDiffer { rank, call, other, other_call }
            }
            Mismatch::Places(misplaced) => {
                GroupErrorKind::SymmetricOffsetMismatch { misplaced: misplaced.into() }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::DataType;
    use cuda_driver::DevicePtr;
    use proptest::prelude::*;

    fn op(primitive: Primitive, count: usize, rank: usize) -> Op {
        Op::new(primitive, DevicePtr(8), DevicePtr(8), count, DataType::F32).with(rank)
    }

    #[test]
    fn a_segment_of_both_places_is_named_once() {
        let said = |place: &str, other_place: &str| {
            let [buffer, place, other_place] = ["the send buffer", place, other_place].map(str::to_owned);
            Misplaced { buffer, rank: 1, place, other: 0, other_place }.to_string()
        };
        assert_eq!(
            said("in segment 0 of pool 3 at offset 64", "in segment 0 of pool 3 at offset 0"),
            "the send buffer lies in segment 0 of pool 3 at offset 64 on rank 1, but at offset 0 on rank 0"
        );
        let apart = said("in segment 0 of pool 3 at offset 0", "in segment 1 of pool 3 at offset 0");
        assert!(apart.ends_with("but in segment 1 of pool 3 at offset 0 on rank 0"), "{apart}");
    }

    /// Returns the record as that of the rank with the number `place`.
    fn at(place: usize, record: CallRecord) -> (u32, CallRecord) {
        (place as u32, CallRecord { place, ..record })
    }

    fn calls(mismatch: Mismatch) -> ((usize, String), (usize, String)) {
        match mismatch {
            Mismatch::Calls { rank, call, other, other_call } => ((rank, call), (other, other_call)),
            Mismatch::Places(_) => panic!("{mismatch:?}"),
        }
    }

    /// Returns the ops of one rank in an all-to-all with these counts.
    fn all_to_all(counts: &[Vec<usize>], own: usize) -> Vec<Op> {
        let pair = |peer: usize| {
            let message = |primitive, count| op(primitive, count, peer).within(Operation::AllToAllList);
            [message(Primitive::Send, counts[own][peer]), message(Primitive::Recv, counts[peer][own])]
        };
        (0..counts.len()).flat_map(pair).collect()
    }

    proptest! {
        /// Each send matches its receive, or both ranks are named.
        #[test]
        fn splits_fit_or_are_named(
            size in 2usize..5, counts in prop::collection::vec(0usize..9, 25), odd in any::<[prop::sample::Index; 2]>(), more in 0usize..2,
        ) {
            let counts: Vec<Vec<usize>> = (0..size).map(|from| counts[from * 5..from * 5 + size].to_vec()).collect();
            let (from, to) = (odd[0].index(size), odd[1].index(size));
            let mut wrong = counts.clone();
            wrong[from][to] += more;
            let records: Vec<_> = (0..size).map(|own| {
                // Only the receiver has the wrong count.
                let counts = if own == to { &wrong } else { &counts };
                at(own, CallRecord::of(&all_to_all(counts, own), None))
            }).collect();
            match Comparison::conclude(&records) {
                Ok(()) => prop_assert!(more == 0 || from == to),
                Err(mismatch) => {
                    let ((rank, sent), (other, received)) = calls(mismatch);
                    prop_assert_eq!((rank, other), (from, to));
                    prop_assert!(sent.contains(&format!("{} f32", counts[from][to])), "{}", sent);
                    prop_assert!(received.contains(&format!("{} f32", counts[from][to] + more)), "{}", received);
                }
            }
        }

        /// The rank whose call differs from the majority's is named.
        #[test]
        fn the_odd_call_is_named(size in 3usize..7, odd in any::<prop::sample::Index>(), count in 1usize..9, root in 0usize..3) {
            let odd = odd.index(size);
            let call = |rank: usize| match rank == odd {
                true => op(Primitive::Broadcast, count, root + 1),
                false => op(Primitive::Broadcast, count, root),
            };
            let records: Vec<_> = (0..size).map(|rank| at(rank, CallRecord::of(&[call(rank)], None))).collect();
            let ((rank, call), (other, other_call)) = calls(Comparison::conclude(&records).unwrap_err());
            prop_assert_eq!(rank, odd);
            prop_assert_ne!(other, odd);
            prop_assert_eq!(call, format!("calls broadcast of {count} f32 with root {}", root + 1));
            prop_assert_eq!(other_call, format!("calls broadcast of {count} f32 with root {root}"));
        }
    }

    #[test]
    fn the_buffer_that_lies_elsewhere_is_named() {
        let on = |places: [&str; 2]| CallRecord {
            places: places.map(|place| ("a buffer".to_owned(), place.to_owned())).into(),
            ..CallRecord::default()
        };
        let (here, there, none) = (on(["here", "here"]), on(["here", "there"]), CallRecord::default());
        let [here, there, none] = [here, there, none].map(|record| move || (0, record.clone()));
        assert_eq!(misplaced(&[here(), here()]), None);
        assert_eq!(misplaced(&[there(), here(), here()]), Some((1, 0, 1)));
        assert_eq!(misplaced(&[here(), here(), none()]), Some((0, 2, 0)));
        assert_eq!(misplaced(&[here(), there()]), Some((1, 1, 0)));
        assert_eq!(misplaced(&[]), None);
    }

    #[test]
    fn messages_are_compared_by_the_two() {
        let sends = at(2, CallRecord::of(&[op(Primitive::Send, 3, 5), op(Primitive::Send, 9, 7)], Some(5)));
        let fits = at(5, CallRecord::of(&[op(Primitive::Recv, 3, 2)], Some(2)));
        let other = at(5, CallRecord::of(&[op(Primitive::Recv, 4, 2)], Some(2)));
        assert_eq!(Comparison::conclude(&[sends.clone(), fits]), Ok(()));
        let ((rank, sent), (peer, received)) = calls(Comparison::conclude(&[sends, other]).unwrap_err());
        assert_eq!(
            (rank, &sent[..], peer, &received[..]),
            (2, "sends to rank 5 3 f32", 5, "receives from rank 2 4 f32")
        );
    }
}
