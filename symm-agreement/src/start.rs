//! The start of a meeting on one member, and the conversion of the failures that are common to all kinds of meetings. A
//! meeting is one agreement on a commit, on a retirement, or on the length of an allocation.

use std::time::Duration;

use bootstrap::agreement::{Absence, Absentee, Failure, Member, Protocol, Waiting};

use super::{
    ValuesByRank,
    ending::Ending,
    meeting_id::{MeetingId, MeetingKind, generation_key},
    ranks::RankList,
    refusal::{MemberList, Refusal},
};

/// The arguments with which this rank starts a meeting.
#[derive(Debug, Clone)]
pub struct Start<P: Protocol> {
    /// This rank as a member of the agreement.
    pub member: Member,
    /// The record of this rank: its message to the other members.
    pub record: P::Record,
}

impl<P: Protocol> Start<P> {
    /// Prepares the start of `meeting` on rank `rank`. This member waits at most `patience` for the records of the
    /// others. From the post of its record until it has read the result, this member is in doubt: the others may act on
    /// its record. In this time, it repeats failed requests to the store until `deadline` ([`Member::deadline`]). Both
    /// times are counted from the start of the meeting.
    pub(crate) fn new(
        meeting: MeetingId,
        rank: u32,
        members: Vec<u32>,
        patience: Duration,
        deadline: Duration,
        record: P::Record,
    ) -> Self {
        // `name` already contains the domain's generation, so ranks of different generations never take part in the
        // same agreement. The field `generation` can therefore be 0 on all members.
        let (name, deadline) = (meeting.name(), Some(deadline));
        Self { member: Member { name, rank, members, generation: 0, patience, deadline }, record }
    }
}

/// Returns a member's patience, the limit of its wait for the records of the others: 3/8 of `deadline`. A meeting has
/// up to two actions (work of all members) with time limits of their own. Each of them, with the wait for the members'
/// reports on it, takes up to 3/4 of the longest patience among the members. So the meeting takes at most 15/16 of
/// `deadline`: 3/8 for the records, and 9/32 for each of the two actions. It can take longer in these cases:
/// - Another member has a longer deadline.
/// - A limit is at its lower bound.
/// - A further action [shares](Protocol::shares_limits) the limits of one of the two actions, and begins late.
pub fn patience(deadline: Duration) -> Duration {
    deadline / 8 * 3
}

/// Returns the store keys that count how often the missing ranks have created the pool's domain. See
/// [`Protocol::evidence`].
pub(crate) fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
    let domain = MeetingId::named(name).map(|meeting| meeting.domain);
    domain.map_or_else(Vec::new, |domain| missing.iter().map(|it| generation_key(domain, it.rank)).collect())
}

/// Explains why members are missing from a meeting. See [`Protocol::explain`].
/// - Returns [`Refusal::EpochMismatch`] if a missing rank waits in a commit of the same pool and group, but of another
///   [epoch](process_group::group::GroupId::epoch) of the group.
/// - Otherwise returns [`Refusal::GenerationMismatch`] if a missing rank has created the domain fewer times than the
///   present members. Such a rank cannot take part in the meeting.
/// - Otherwise returns `None`.
pub(crate) fn explain(absence: &Absence<'_>) -> Option<Refusal> {
    let Absence { name, members, missing, waited_ms, values } = *absence;
    let meeting = MeetingId::named(name)?;
    if let Some(epochs) = other_epoch(meeting, members, missing, &[]) {
        return Some(Refusal::EpochMismatch { epochs });
    }
    let MeetingId { domain, generation, .. } = meeting;
    let count = |bytes: &Option<Vec<u8>>| std::str::from_utf8(bytes.as_deref()?).ok()?.trim().parse().ok();
    let behind = missing.iter().zip(values).filter_map(|(it, bytes)| Some((it.rank, count(bytes)?)));
    let behind: Vec<(u32, u64)> = behind.filter(|(_, count)| *count < generation).collect();
    if behind.is_empty() {
        return None;
    }
    let is_present = |rank: &u32| missing.iter().all(|it| it.rank != *rank);
    let present = members.iter().copied().filter(is_present).map(|rank| (rank, generation));
    let generations = ValuesByRank::of(present.chain(behind));
    Some(Refusal::GenerationMismatch { domain, generations, waited_ms, circle: Vec::new() })
}

/// Converts a failure of the agreement in which `member` takes part to an [`Ending`]. Call this only if the members
/// have not decided on a plan to register, open or deregister memory. After such a decision, a failure
/// [poisons](super::Poison) the groups instead.
pub(crate) fn failed(member: &Member, failure: Failure) -> Ending {
    match failure {
        // Two processes run as this rank. The other members may have acted on the record of the other process.
        Failure::Taken { rank } if rank == member.rank => Ending::StoreFailed { in_doubt: true },
        failure => Ending::Refused(refusal(member, failure)),
    }
}

/// Converts a failure of the agreement in which `member` takes part to the refusal that all members get.
fn refusal(member: &Member, failure: Failure) -> Refusal {
    let meeting = MeetingId::named(&member.name);
    match failure {
        Failure::Absent { missing, waited_ms, circle, .. } => {
            let epochs = meeting.and_then(|it| other_epoch(it, &member.members, &missing, &circle));
            if let Some(epochs) = epochs {
                return Refusal::EpochMismatch { epochs };
            }
            match meeting.and_then(|it| Some((it.domain, generations(it.domain, &circle)?))) {
                Some((domain, generations)) => {
                    Refusal::GenerationMismatch { domain, generations, waited_ms, circle }
                }
                None => Refusal::SyncTimeout { missing, waited_ms, circle },
            }
        }
        Failure::Protocols { protocols } => {
            Refusal::VersionMismatch { versions: protocols.map(|spoken| spoken.version) }
        }
        Failure::Members { lists } => {
            let what = match meeting.map(|meeting| meeting.kind) {
                Some(MeetingKind::Commit { .. }) => MemberList::Group,
                _ => MemberList::Domain,
            };
            Refusal::MembersMismatch { what, lists: lists.map(RankList) }
        }
        Failure::Unreadable { rank, cause } => Refusal::RecordUnreadable { rank, cause },
        Failure::Left { rank, cause } => Refusal::MemberLost { rank, cause },
        failure => {
            let rank = failure.culprits().first().copied().unwrap_or_default();
            Refusal::PeerPrepareFailed { rank, ordinal: None, cause: failure.to_string() }
        }
    }
}

/// If a missing rank waits in a commit of the same pool and group as `meeting`, but of another epoch of the group,
/// returns the epochs of all members whose epoch is known. Otherwise returns `None`. `circle` lists the ranks of a
/// circular wait, each with the agreement in which it waits.
fn other_epoch(
    meeting: MeetingId,
    members: &[u32],
    missing: &[Absentee],
    circle: &[Waiting],
) -> Option<ValuesByRank<u64>> {
    let MeetingKind::Commit { group: own } = meeting.kind else { return None };
    let pool = |it: &MeetingId| (it.domain, it.generation, it.pool);
    let epoch_of = |rank: u32| {
        let Some(absentee) = missing.iter().find(|it| it.rank == rank) else { return Some(own.epoch) };
        let waits = circle.iter().filter(|it| it.rank == rank).map(|it| &it.place);
        let meetings = absentee.elsewhere.iter().chain(waits).filter_map(MeetingId::at);
        meetings.filter(|it| pool(it) == pool(&meeting)).find_map(|it| match it.kind {
            MeetingKind::Commit { group } if group.uid == own.uid => Some(group.epoch),
            _ => None,
        })
    };
    let epochs = ValuesByRank::of(members.iter().filter_map(|rank| Some((*rank, epoch_of(*rank)?))));
    (!epochs.is_unanimous()).then_some(epochs)
}

/// Compares the generations of `domain` in which ranks wait. A generation is the number of times that a rank has
/// created the domain. `circle` lists the ranks of a circular wait, each with the agreement in which it waits. For each
/// rank that waits in a meeting of `domain`, the result contains the generation from the meeting's name. Returns `None`
/// if all these generations are equal.
fn generations(domain: u64, circle: &[Waiting]) -> Option<ValuesByRank<u64>> {
    let meetings = circle.iter().filter_map(|it| Some((it.rank, MeetingId::at(&it.place)?)));
    let generations = meetings.filter(|(_, it)| it.domain == domain).map(|(rank, it)| (rank, it.generation));
    let generations = ValuesByRank::of(generations);
    (!generations.is_unanimous()).then_some(generations)
}
