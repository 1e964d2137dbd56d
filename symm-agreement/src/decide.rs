//! The decision on the [records](CommitRecord) of a commit, and the verdict on the [outcomes](RegistrationOutcome) of
//! its registration. Both are pure functions of these messages of the members.
//!
//! Any member can compute a decision. The store keeps the first one, and all members follow it. A decision depends on
//! the set of messages and not on their order. So all members that have read the same messages compute the same
//! decision.

use std::{cmp::Reverse, collections::BTreeSet};

use process_group::group::GroupId;

use super::{
    Ranks, ValuesByRank,
    capabilities::{Capabilities, NOT_REQUESTED, WindowSupport},
    opening,
    plan::{After, Agreed, CommitDecision, CommitPlan, RegistrationOutcome, Rejection},
    poison::{NoWindows, Poison},
    ranks::{RankList, split},
    record::{CommitRecord, Enqueued, Policy, Readiness, Segment},
    refusal::{MemberList, Refusal, Shape},
    search::Range,
};

type RankedRecord<'a> = (u32, &'a CommitRecord);

fn refuse(refusal: Refusal) -> CommitDecision {
    CommitDecision::Refused { refusal: Rejection::Refused(refusal) }
}

fn poison(poison: Poison) -> CommitDecision {
    CommitDecision::Refused { refusal: Rejection::Poisoned(poison) }
}

/// Decides on a commit from the records of all members. The result does not depend on the order of the records.
///
/// Requires these conditions, checked in this order. If condition 1 or 3 is not met, the group is [poisoned](Poison).
/// If another one is not met, the commit is refused.
/// 1. No rank reports an earlier poisoning of the group.
/// 2. All ranks have equal [domains](CommitRecord::domain), [policies](Policy) and [capabilities](Capabilities).
/// 3. All ranks have equal [logs](super::GroupLog::committed) of the group's committed and retired segments.
/// 4. Every rank is [ready](Readiness). Exception: with [`Policy::Prefix`], the failed check of a segment after the
///    first difference between the ranks' [new segments](CommitRecord::segments) is ignored, because the commit leaves
///    out this segment.
/// 5. In each process group on the ranks' devices, not only in the group that commits, the counts of enqueued work
///    match: the ranks in the group have enqueued equal numbers of collectives, and each rank has enqueued as many
///    sends to a peer as the peer has enqueued receives from this rank. Pairs of ranks with messages in captured graphs
///    are not compared.
/// 6. All ranks have the same new segments and allocation logs (the sequences of [operations](super::Operation) on
///    their pools). Exception: with [`Policy::Prefix`], the segments before the first difference are committed. With
///    either policy, if the logs differ, the members first search for the first operation that differs. Then they
///    refuse the commit or continue it.
/// 7. If the segments become windows, they fit into the [address space](CommitRecord::address_space_left) that is left
///    for windows in the communicator.
pub fn decide(records: &[(u32, CommitRecord)]) -> CommitDecision {
    let mut sorted: Vec<RankedRecord<'_>> = records.iter().map(|(rank, record)| (*rank, record)).collect();
    sorted.sort_by_key(|(rank, _)| *rank);
    let records = sorted.as_slice();

    if let Some(earlier) = poisoned(records) {
        return poison(earlier);
    }
    if let Some(refusal) = unlike_members(records).or_else(|| unlike_capabilities(records)) {
        return refuse(refusal);
    }
    let committed = split(records, |record| record.committed);
    if !committed.is_unanimous() {
        return poison(Poison::CommittedLogDiverged { logs: committed });
    }
    let policy = records.first().map(|(_, record)| record.policy).unwrap_or_default();
    let common = common_segments(records);
    let enqueued = records.iter().map(|(rank, record)| (*rank, record.enqueued.as_slice()));
    if let Some(refusal) = unready(records, policy, common).or_else(|| unmatched_work(enqueued)) {
        return refuse(refusal);
    }

    let difference = difference(records, common);
    let search = difference.as_ref().and_then(|_| Range::of_difference(records));
    let pending = match (policy, difference) {
        (Policy::Strict, Some(refusal)) => {
            return match search {
                Some(range) => searched(range, After::Refuse(refusal)),
                None => refuse(refusal),
            };
        }
        (_, difference) => difference,
    };
    let without = without_windows(records);
    let segments = records.first().map_or(&[][..], |(_, record)| &record.segments[..common]);
    if without.is_none()
        && let Some(refusal) = exhausted(records, segments)
    {
        return refuse(refusal);
    }
    let (joined, peers) = (joined(records, common), opening::decide(records, common));
    let agreed = Agreed { segments: common as u32, joined, without, pending, peers };
    match search {
        Some(range) => searched(range, After::Commit(agreed)),
        None => agreed.proceed(),
    }
}

fn searched(range: Range, after: After) -> CommitDecision {
    CommitDecision::Act { plan: CommitPlan::Hashes { range, after } }
}

fn poisoned(records: &[RankedRecord<'_>]) -> Option<Poison> {
    records.iter().find_map(|(_, record)| match &record.readiness {
        Readiness::Poisoned(poison) => Some(poison.clone()),
        _ => None,
    })
}

/// Returns a refusal if ranks have different domains or policies. The pool, the group and the number of the commit need
/// no check here, because they are part of the agreement's name. The lists of the group's members need no check either,
/// because [`bootstrap::agreement`] has compared them.
fn unlike_members(records: &[RankedRecord<'_>]) -> Option<Refusal> {
    let lists: ValuesByRank<RankList> = split(records, |record| record.domain.clone());
    if !lists.is_unanimous() {
        return Some(Refusal::MembersMismatch { what: MemberList::Domain, lists });
    }
    let policies = split(records, |record| record.policy);
    (!policies.is_unanimous()).then_some(Refusal::PolicyMismatch { policies })
}

fn unlike_capabilities(records: &[RankedRecord<'_>]) -> Option<Refusal> {
    let of_ranks: Vec<_> = records.iter().map(|(rank, record)| (*rank, &record.capabilities)).collect();
    let (what, values) = Capabilities::difference(&of_ranks)?;
    Some(Refusal::CapabilityMismatch { what, values })
}

fn unready(records: &[RankedRecord<'_>], policy: Policy, common: usize) -> Option<Refusal> {
    let is_in_question = |record: &CommitRecord| match record.readiness {
        // With `Prefix`, the failed check of a segment after the first difference is ignored, because the commit leaves
        // out this segment.
        Readiness::Failed { ordinal: Some(ordinal), .. } if policy == Policy::Prefix => {
            record.segments.iter().take(common).any(|segment| segment.ordinal == ordinal)
        }
        _ => true,
    };
    let records = records.iter().filter(|(_, record)| is_in_question(record));
    not_ready(records.map(|(rank, record)| (*rank, &record.readiness)))
}

/// Returns a refusal if some of `ranks` cannot take part now, or `None` if all can. `ranks` must be in ascending order.
/// Ignores [`Readiness::Poisoned`]: [`decide`] checks it earlier, and the record of a retirement never contains it.
pub(crate) fn not_ready<'a>(ranks: impl Iterator<Item = (u32, &'a Readiness)> + Clone) -> Option<Refusal> {
    let failed = ranks.clone().find_map(|(rank, readiness)| match readiness {
        Readiness::Failed { ordinal, cause } => {
            Some(Refusal::PeerPrepareFailed { rank, ordinal: *ordinal, cause: cause.clone() })
        }
        _ => None,
    });
    let ranks_that = |wanted: Readiness| -> Option<Vec<u32>> {
        let ranks = ranks.clone().filter(|(_, readiness)| **readiness == wanted);
        let ranks: Vec<u32> = ranks.map(|(rank, _)| rank).collect();
        (!ranks.is_empty()).then_some(ranks)
    };
    failed
        .or_else(|| Some(Refusal::CommitDuringCapture { ranks: ranks_that(Readiness::Capturing)? }))
        .or_else(|| Some(Refusal::CommitInsideGroup { ranks: ranks_that(Readiness::GroupOpen)? }))
}

/// For each group, compares the [numbers of enqueued calls](Enqueued) of the ranks that have an entry for the group.
/// Returns a refusal if these ranks have enqueued different numbers of collectives, or if one of them has enqueued more
/// or fewer sends to a peer than the peer has enqueued receives from it. `ranks` must be in ascending order.
pub(crate) fn unmatched_work<'a>(
    ranks: impl Iterator<Item = (u32, &'a [Enqueued])> + Clone,
) -> Option<Refusal> {
    let groups: BTreeSet<GroupId> =
        ranks.clone().flat_map(|(_, enqueued)| enqueued).map(|enqueued| enqueued.group).collect();
    groups.into_iter().find_map(|group| {
        let of_group = |(rank, enqueued): (u32, &'a [Enqueued])| {
            Some((rank, enqueued.iter().find(|enqueued| enqueued.group == group)?))
        };
        let ranks: Vec<(u32, &Enqueued)> = ranks.clone().filter_map(of_group).collect();
        let collectives =
            ValuesByRank::of(ranks.iter().map(|(rank, enqueued)| (*rank, enqueued.collectives)));
        match collectives.is_unanimous() {
            true => unmatched_messages(group, &ranks),
            false => Some(Refusal::CollectivesOutstanding { group, collectives }),
        }
    })
}

/// Compares the messages of each pair of `ranks`: the number of sends that one rank has enqueued to the other, with the
/// number of receives that the other has enqueued from it. Returns a refusal for the first pair in which the numbers
/// differ, or `None` if there is no such pair. `ranks` must be in ascending order. Skips pairs with a peer that is not
/// in `ranks`, because the peer's counts are unknown. Skips pairs with captured messages, because the number of graph
/// launches is unknown.
fn unmatched_messages(group: GroupId, ranks: &[(u32, &Enqueued)]) -> Option<Refusal> {
    let ends = ranks.iter().flat_map(|(rank, enqueued)| enqueued.messages.iter().map(|own| (*rank, own)));
    ends.filter(|(_, own)| !own.captured).find_map(|(rank, own)| {
        let at = ranks.binary_search_by_key(&own.peer, |(rank, _)| *rank).ok()?;
        let others = &ranks[at].1.messages;
        let other = others.binary_search_by_key(&rank, |other| other.peer).ok().map(|at| others[at]);
        let (sent, received) = match other {
            Some(other) if other.captured => return None,
            Some(other) => (other.sent, other.received),
            None => (0, 0),
        };
        let outstanding = |from, to, sent, received| {
            (sent != received).then_some(Refusal::MessagesOutstanding { group, from, to, sent, received })
        };
        outstanding(rank, own.peer, own.sent, received)
            .or_else(|| outstanding(own.peer, rank, sent, own.received))
    })
}

/// Returns the length of the longest common prefix of the lists of new segments in all records.
fn common_segments(records: &[RankedRecord<'_>]) -> usize {
    let Some(((_, first), others)) = records.split_first() else { return 0 };
    let same = |(at, segment): (usize, &Segment)| {
        let alone = segment.alone();
        others.iter().all(|(_, record)| record.segments.get(at).is_some_and(|other| other.alone() == alone))
    };
    first.segments.iter().enumerate().take_while(|entry| same(*entry)).count()
}

/// Returns the [ordinals](Segment::ordinal) of the segments that all ranks mark as [`Segment::FOLLOWS`], among the
/// first `common` new segments. Each of them shares a window with the new segment before it. The first new segment is
/// never among them, because this commit does not register the segment before it.
fn joined(records: &[RankedRecord<'_>], common: usize) -> Vec<u32> {
    let Some((_, first)) = records.first() else { return Vec::new() };
    let follows = |at: usize| records.iter().all(|(_, it)| it.segments.get(at).is_some_and(Segment::follows));
    (1..common).filter(|at| follows(*at)).map(|at| first.segments[at].ordinal).collect()
}

/// Returns the first difference between the new segments or the allocation logs of the records, as a refusal. Returns
/// `None` if there is no difference. `common` is the number of new segments, from the first, that are equal on all
/// ranks.
fn difference(records: &[RankedRecord<'_>], common: usize) -> Option<Refusal> {
    let next = |record: &CommitRecord| record.segments.get(common).map(|segment| segment.alone());
    let common = common as u32;
    let diverged = |ordinal, logs| Refusal::AllocationDiverged { ordinal, common, logs, divergence: None };
    let at = split(records, next);
    if at.is_unanimous() {
        // All lists of new segments are equal and end at index `common`: an equal segment there would be counted in
        // `common`. The logs may still differ in the operations after the last new segment.
        let logs = split(records, |record| record.log);
        return (!logs.is_unanimous()).then(|| diverged(None, logs));
    }
    let ordinal = at.entries.iter().filter_map(|entry| Some(entry.value?.ordinal)).min().unwrap_or(0);
    let at_ordinal = |record: &CommitRecord| next(record).filter(|it| it.ordinal == ordinal);
    let shape = |segment: Segment| Shape { bytes: segment.bytes, flags: segment.flags };
    let present: Option<Vec<(u32, Segment)>> =
        records.iter().map(|(rank, record)| Some((*rank, at_ordinal(record)?))).collect();
    let Some(segments) = present else {
        return Some(Refusal::SegmentCountMismatch {
            ordinal,
            common,
            counts: split(records, |record| record.segments.len() as u32),
            shapes: split(records, |record| at_ordinal(record).map(shape)),
            divergence: None,
        });
    };
    let shapes = ValuesByRank::of(segments.iter().map(|(rank, segment)| (*rank, shape(*segment))));
    let logs = ValuesByRank::of(segments.iter().map(|(rank, segment)| (*rank, segment.log)));
    Some(match shapes.is_unanimous() {
        true => diverged(Some(ordinal), logs),
        false => Refusal::SegmentShapeMismatch { ordinal, common, shapes, divergence: None },
    })
}

fn without_windows(records: &[RankedRecord<'_>]) -> Option<NoWindows> {
    if records.len() <= 1 {
        return Some(NoWindows::SingleMember {});
    }
    records.iter().find_map(|(_, record)| match &record.capabilities.windows {
        WindowSupport::Available => None,
        WindowSupport::Unavailable { reason } => Some(NoWindows::Unsupported { reason: reason.clone() }),
        WindowSupport::NotRequested => Some(NoWindows::Unsupported { reason: NOT_REQUESTED.to_owned() }),
    })
}

fn exhausted(records: &[RankedRecord<'_>], segments: &[Segment]) -> Option<Refusal> {
    let needed = segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.bytes));
    // On every member, NCCL reserves as much address space as the largest device of all members has memory. Each rank
    // knows only its own device, and computes `address_space_left` as if no member had a larger one. So the greatest
    // value, that of the rank with the largest device, is correct for all members.
    let left = records.iter().filter_map(|(rank, record)| Some((record.address_space_left?, *rank)));
    let (left, rank) = left.max_by_key(|(left, rank)| (*left, Reverse(*rank)))?;
    (left < needed).then_some(Refusal::AddressSpaceExhausted { rank, needed, left })
}

/// Computes the verdict on the registration of the segments of `agreed`. `outcomes` contains each member with its
/// outcome, or with `None` if it posted none. The result does not depend on the order of `outcomes`.
///
/// The first rule that applies determines the verdict:
/// 1. A member posted [`RegistrationOutcome::Ended`]: the group is poisoned, and the poison blames only the rank that
///    this outcome names. The end of a group aborts the communicators of all members, so the registrations of other
///    members can fail without their fault.
/// 2. A member posted [`RegistrationOutcome::Failed`]: the group is poisoned. This rule comes before rule 3, because a
///    failure has a cause that the poison can report.
/// 3. An outcome is missing: the group is poisoned.
/// 4. A member posted [`RegistrationOutcome::Unsupported`]: if all did, the segments are committed without windows.
///    Otherwise the group is poisoned.
/// 5. A member posted [`RegistrationOutcome::Blocked`]: the group is poisoned. This rule comes after rules 2 to 4,
///    because a member that failed, is missing or lacks windows can be the reason why the registrations of others
///    block.
/// 6. All members registered the segments: they are committed with windows.
pub fn judge_registrations(
    agreed: &Agreed,
    outcomes: &[(u32, Option<RegistrationOutcome>)],
) -> CommitDecision {
    let mut outcomes: Vec<&(u32, Option<RegistrationOutcome>)> = outcomes.iter().collect();
    outcomes.sort_by_key(|(rank, _)| *rank);
    let ranks_that = |is: fn(&Option<RegistrationOutcome>) -> bool| -> Vec<u32> {
        outcomes.iter().filter(|(_, outcome)| is(outcome)).map(|(rank, _)| *rank).collect()
    };

    let ended = outcomes.iter().find_map(|(_, outcome)| match outcome {
        Some(RegistrationOutcome::Ended { rank }) => Some(*rank),
        _ => None,
    });
    let failure = outcomes.iter().find_map(|(rank, outcome)| match outcome {
        Some(RegistrationOutcome::Failed { ordinal, cause }) if ended.is_none_or(|it| it == *rank) => {
            Some(Poison::RegistrationFailed { rank: *rank, ordinal: *ordinal, cause: cause.clone() })
        }
        _ => None,
    });
    if let Some(failure) = failure {
        return poison(failure);
    }
    let missing = ended.map_or_else(|| ranks_that(Option::is_none), |rank| vec![rank]);
    let blocked = ranks_that(|outcome| *outcome == Some(RegistrationOutcome::Blocked));
    if !missing.is_empty() {
        return poison(Poison::MembersLost { missing, blocked });
    }
    let reason = outcomes.iter().find_map(|(_, outcome)| match outcome {
        Some(RegistrationOutcome::Unsupported { reason }) => Some(reason.clone()),
        _ => None,
    });
    let with = ranks_that(|outcome| *outcome == Some(RegistrationOutcome::Registered));
    let without = ranks_that(|outcome| matches!(outcome, Some(RegistrationOutcome::Unsupported { .. })));
    if !blocked.is_empty() {
        return poison(match reason {
            None => Poison::RegistrationBlocked { ranks: blocked },
            Some(reason) => {
                let reason = format!("{reason}; registration did not return on {} in time", Ranks(&blocked));
                Poison::WindowsUnsupported { with, without, reason }
            }
        });
    }
    match reason {
        None => agreed.clone().open(),
        Some(reason) if with.is_empty() => {
            let without = Some(NoWindows::Unsupported { reason });
            Agreed { without, ..agreed.clone() }.open()
        }
        Some(reason) => poison(Poison::WindowsUnsupported { with, without, reason }),
    }
}
