//! Retirement: all ranks of a domain retire segments, or none does. To retire a segment means to deregister its windows
//! on all ranks, and then to free its memory.
//!
//! All ranks of the domain take part, including ranks whose groups have not committed the segments. The reason is that
//! every rank computes the placement of blocks from the list of segments, so the lists must stay equal.
//!
//! | phase | work |
//! |---|---|
//! | records | every rank posts the segments to be retired and their remaining uses; [`decide_retirement`] computes the decision |
//! | quiet | every rank waits until its device is idle. Nothing has changed yet, so a failure refuses the retirement on all ranks |
//! | deregistration | every rank unmaps its peers' segments, then deregisters its windows, group by group |
//!
//! All ranks deregister in one order: groups by ascending id, and within a group by ascending
//! [ordinal](super::Segment::ordinal) of the segments. The reason is that deregistration frees symmetric addresses, and
//! the free addresses determine the placement of later windows, which must be equal on all ranks. NCCL does not ensure
//! one order, because deregistration is a local operation in every release of NCCL.
//!
//! Last, each rank frees the memory of its retired segments, after all ranks have posted that their windows are gone.
//! Exception: if a group of the pool is [poisoned](Poison), some windows may remain. The rank then frees the memory
//! only after its pool has forgotten that group.

use std::{collections::BTreeSet, time::Duration};

use bootstrap::agreement::{self, Absence, Absentee, Failure, Member, Protocol, Report};
use process_group::group::GroupId;

use super::{
    PROTOCOL, ValuesByRank,
    decide::{not_ready, unmatched_work},
    ending::Ending,
    meeting_id::{MeetingId, MeetingKind},
    poison::Poison,
    ranks::split,
    record::{Enqueued, LogPoint, PoolId, Readiness},
    refusal::Refusal,
    start::{self, Start, evidence, explain, patience},
    wire::{self, wire_enum, wire_struct},
};

/// A group that a rank passed to `SymmetricPool::retire`, and the rank's log of this group. The group need not have
/// committed any of the segments to retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: GroupId,
    /// The state of the group's [log](super::GroupLog::committed) of committed and retired segments.
    pub log: LogPoint,
}
wire_struct!(Committed { group, log });

/// The report of a rank on a segment that is to be retired. Any use of the segment prevents its retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The segment.
    pub ordinal: u32,
    /// The number of captures in progress and captured graphs on this rank that use the segment.
    pub graphs: u64,
    /// The number of blocks in the segment on this rank.
    pub blocks: u64,
    /// The groups for which the rank has committed the segment, but that it did not pass to the retirement.
    pub uncovered: Vec<GroupId>,
}
wire_struct!(Candidate { ordinal, graphs, blocks, uncovered });

/// The message of a rank to the others before anything is retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementRecord {
    /// The readiness of the rank.
    pub readiness: Readiness,
    /// The numbers of collectives and messages that the rank has enqueued, with one entry for each process group on the
    /// devices of [`groups`](Self::groups).
    pub enqueued: Vec<Enqueued>,
    /// The state of the pool's allocation log, the sequence of [operations](super::Operation) on the pool.
    pub log: LogPoint,
    /// The groups that the rank passed to the retirement, ascending.
    pub groups: Vec<Committed>,
    /// The segments that the rank asks to retire, in ascending order of ordinals.
    pub segments: Vec<Candidate>,
}
wire_struct!(RetirementRecord { readiness, enqueued, log, groups, segments });

type RankedRetirement<'a> = (u32, &'a RetirementRecord);

/// Decides from the records of all ranks: refuses the retirement, or returns the plan to wait until the devices are
/// idle. The result does not depend on the order of the records.
pub fn decide_retirement(records: &[(u32, RetirementRecord)]) -> RetireDecision {
    let mut records: Vec<RankedRetirement<'_>> =
        records.iter().map(|(rank, record)| (*rank, record)).collect();
    records.sort_by_key(|(rank, _)| *rank);
    let refusal = different_requests(&records)
        .or_else(|| not_ready(records.iter().map(|(rank, record)| (*rank, &record.readiness))))
        .or_else(|| unmatched_work(records.iter().map(|(rank, record)| (*rank, record.enqueued.as_slice()))))
        .or_else(|| still_used(&records))
        .or_else(|| different_logs(&records));
    match refusal {
        Some(refusal) => RetireDecision::Refused { refusal },
        None => RetireDecision::Act { plan: RetirePlan::Quiesce {} },
    }
}

fn different_requests(records: &[RankedRetirement<'_>]) -> Option<Refusal> {
    let ordinals = split(records, |record| record.segments.iter().map(|it| it.ordinal).collect::<Vec<_>>());
    if !ordinals.is_unanimous() {
        return Some(Refusal::RetirementMismatch { ordinals });
    }
    let groups: BTreeSet<GroupId> =
        records.iter().flat_map(|(_, record)| &record.groups).map(|it| it.group).collect();
    groups.into_iter().find_map(|group| {
        let logs = records.iter().filter_map(|(rank, record)| {
            Some((*rank, record.groups.iter().find(|it| it.group == group)?.log))
        });
        let logs = ValuesByRank::of(logs);
        (!logs.is_unanimous()).then_some(Refusal::CommittedLogDiverged { group, logs })
    })
}

/// Returns a refusal if the ranks' allocation logs differ. The caller checks the uses of the segments first, with
/// [`still_used`]. If a rank still has a block that other ranks have freed, the logs differ too, but the refusal of
/// `still_used` names the cause.
fn different_logs(records: &[RankedRetirement<'_>]) -> Option<Refusal> {
    let logs = split(records, |record| record.log);
    let is_same = logs.is_unanimous();
    (!is_same).then_some(Refusal::AllocationDiverged { ordinal: None, common: 0, logs, divergence: None })
}

/// Returns a refusal if a segment still has uses on a rank, or is committed for a group that a rank did not pass to the
/// retirement. All records must list the same segments.
fn still_used(records: &[RankedRetirement<'_>]) -> Option<Refusal> {
    let count = records.first().map_or(0, |(_, record)| record.segments.len());
    (0..count).find_map(|at| {
        let all = || records.iter().filter_map(|(rank, record)| Some((*rank, record.segments.get(at)?)));
        let ordinal = all().next()?.1.ordinal;
        let uncovered = all()
            .find(|(_, it)| !it.uncovered.is_empty())
            .map(|(rank, it)| Refusal::SegmentCommitted { rank, ordinal, groups: it.uncovered.clone() });
        let uses = |count: fn(&Candidate) -> u64| {
            let counts = ValuesByRank::of(all().map(|(rank, it)| (rank, count(it))));
            counts.entries.iter().any(|entry| entry.value > 0).then_some(counts)
        };
        uncovered
            .or_else(|| Some(Refusal::SegmentPinned { ordinal, graphs: uses(|it| it.graphs)? }))
            .or_else(|| Some(Refusal::SegmentInUse { ordinal, blocks: uses(|it| it.blocks)? }))
    })
}

/// The outcome of the phase "quiet" or "deregistration" of a retirement on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// The rank completed the phase.
    Done {},
    /// The phase failed on the rank.
    Failed {
        /// A description of the failure.
        cause: String,
    },
    /// The rank did not complete the phase in time.
    Blocked {},
    /// The rank completed the phase, except for groups that have ended, for example because a member is lost. The
    /// windows of these groups are freed with their communicators.
    Over {
        /// The groups, ascending.
        groups: Vec<GroupId>,
        /// The error that ended the first of these groups.
        cause: String,
    },
}
wire_enum!(Release { 0 => Done {}, 1 => Failed { cause }, 2 => Blocked {}, 3 => Over { groups, cause } });

impl Release {
    /// Returns true if the rank completed the phase, at least for the groups that have not ended.
    fn is_done(&self) -> bool {
        matches!(self, Self::Done {} | Self::Over { .. })
    }
}

/// The plan of an action: the work that every rank executes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetirePlan {
    /// Wait until the rank's device is idle.
    Quiesce {},
    /// Unmap the retired segments of the peers. Then deregister the windows and the plain registrations
    /// (`ncclCommRegister`) of this rank's retired segments.
    Deregister {},
}
wire_enum!(RetirePlan { 0 => Quiesce {}, 1 => Deregister {} });

/// The outcome of an action on one rank: its report on the work of a [`RetirePlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireOutcome {
    /// The outcome of [`RetirePlan::Quiesce`].
    Quiet(Release),
    /// The outcome of [`RetirePlan::Deregister`].
    Deregistered(Release),
}
wire_enum!(RetireOutcome { 0 => Quiet(release), 1 => Deregistered(release) });

/// All ranks in ascending order, each with the outcome that it posted, or `None` if it posted none.
pub(crate) type Posted = Vec<(u32, Option<Release>)>;

fn posted(reports: &[(u32, Report<RetireOutcome>)]) -> Posted {
    let release = |report: &Report<RetireOutcome>| match report {
        Report::Outcome(RetireOutcome::Quiet(release) | RetireOutcome::Deregistered(release)) => {
            Some(release.clone())
        }
        Report::Pending | Report::Late => None,
    };
    let mut releases: Posted = reports.iter().map(|(rank, report)| (*rank, release(report))).collect();
    releases.sort_by_key(|(rank, _)| *rank);
    releases
}

fn failed(releases: &Posted) -> Option<(u32, String)> {
    releases.iter().find_map(|(rank, release)| match release {
        Some(Release::Failed { cause }) => Some((*rank, cause.clone())),
        _ => None,
    })
}

fn ranks_that(releases: &Posted, is: fn(&Option<Release>) -> bool) -> Vec<u32> {
    releases.iter().filter(|(_, release)| is(release)).map(|(rank, _)| *rank).collect()
}

/// Returns the verdict on [`RetirePlan::Quiesce`]: to deregister if all devices are idle, otherwise a refusal.
fn judge_quiet(releases: &Posted) -> RetireDecision {
    let first = |is: fn(&Option<Release>) -> bool| ranks_that(releases, is).first().copied();
    let is_blocked = |release: &Option<Release>| *release == Some(Release::Blocked {});
    let failed = failed(releases)
        .or_else(|| Some((first(Option::is_none)?, "the rank did not answer in time".to_owned())))
        .or_else(|| Some((first(is_blocked)?, "it works on past the deadline".to_owned())));
    match failed {
        Some((rank, cause)) => RetireDecision::Refused { refusal: Refusal::QuiesceFailed { rank, cause } },
        None => RetireDecision::Act { plan: RetirePlan::Deregister {} },
    }
}

/// Returns the result of the retirement from the outcomes of [`RetirePlan::Deregister`]. A rank is a culprit if it
/// posted [`Release::Failed`] or [`Release::Blocked`], or if it posted nothing. A rank that posted [`Release::Over`] is
/// not a culprit, because it is possible that another rank ended the group.
pub(crate) fn judge_released(releases: &Posted) -> Retired {
    let missing = ranks_that(releases, Option::is_none);
    let blocked = ranks_that(releases, |release| *release == Some(Release::Blocked {}));
    let culprits = ranks_that(releases, |release| !release.as_ref().is_some_and(Release::is_done));
    let ended = releases.iter().filter_map(|(rank, release)| match release {
        Some(Release::Over { groups, cause }) => Some((*rank, groups, cause)),
        _ => None,
    });
    let over: BTreeSet<GroupId> = ended.clone().flat_map(|(_, groups, _)| groups.iter().copied()).collect();
    let poison = if let Some((rank, cause)) = failed(releases) {
        Poison::RetirementFailed { rank, cause }
    } else if !culprits.is_empty() {
        Poison::MembersLost { missing, blocked }
    } else if let Some((rank, _, cause)) = ended.clone().next() {
        Poison::RetirementFailed { rank, cause: cause.clone() }
    } else {
        return Retired::Everywhere {};
    };
    Retired::Poisoned { poison, culprits, over: over.into_iter().collect() }
}

/// The result of a retirement, after all ranks have agreed to deregister the windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retired {
    /// The windows are gone on all ranks, and the memory may be freed.
    Everywhere {},
    /// The segments are retired, but some windows may remain, because the ranks in `culprits` did not confirm that
    /// their windows are gone, or because groups have ended. Each group with a member in `culprits`, and each group in
    /// `over`, is poisoned. A rank frees the memory only after its pool has forgotten every poisoned group.
    Poisoned {
        /// The reason.
        poison: Poison,
        /// The ranks that did not confirm that their windows are gone, ascending.
        culprits: Vec<u32>,
        /// The groups that ended during the retirement, ascending.
        over: Vec<GroupId>,
    },
}
wire_enum!(Retired { 0 => Everywhere {}, 1 => Poisoned { poison, culprits, over } });

/// The kind of agreement that decides a retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetireProtocol;

type RetireDecision = agreement::Decision<RetireProtocol>;

impl Protocol for RetireProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;
    /// True, so that the member list stays in the store. If a rank with another list arrives after the others, it finds
    /// the stored list and fails with [`Refusal::MembersMismatch`]. Without the stored list, the rank would wait until
    /// its [patience](Member::patience) ends. Members remove the stored keys after a later retirement in the same pool
    /// has succeeded.
    const KEEPS_RESULT: bool = true;

    type Record = RetirementRecord;
    type Plan = RetirePlan;
    type Outcome = RetireOutcome;
    type Agreed = Retired;
    type Refusal = Refusal;

    fn decide(records: &[(u32, RetirementRecord)]) -> RetireDecision {
        decide_retirement(records)
    }

    /// Returns true for a failed wait for an idle device: this outcome alone decides the verdict, so the members do not
    /// wait for the other outcomes.
    ///
    /// An outcome of the deregistration is never final, so the members wait for the outcomes of all ranks. Every live
    /// rank posts one before the time limit. If a failure were final, the verdict would come earlier, and would also
    /// list the ranks that are still deregistering as culprits.
    fn is_final(outcome: &RetireOutcome) -> bool {
        matches!(outcome, RetireOutcome::Quiet(Release::Failed { .. }))
    }

    fn judge(plan: &RetirePlan, reports: &[(u32, Report<RetireOutcome>)]) -> RetireDecision {
        match plan {
            RetirePlan::Quiesce {} => judge_quiet(&posted(reports)),
            RetirePlan::Deregister {} => RetireDecision::Agreed { agreed: judge_released(&posted(reports)) },
        }
    }

    fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
        evidence(name, missing)
    }

    fn explain(absence: &Absence<'_>) -> Option<Refusal> {
        explain(absence)
    }
}

impl Start<RetireProtocol> {
    /// Prepares the start of retirement number `round` of `pool` on rank `rank`. `members` are all ranks of the domain.
    /// `record` is the record of this rank. `deadline` is the time limit of the retirement, counted from its start.
    #[must_use]
    pub fn retirement(
        pool: PoolId,
        round: u64,
        rank: u32,
        members: Vec<u32>,
        record: RetirementRecord,
        deadline: Duration,
    ) -> Self {
        let meeting = MeetingId::new(pool, MeetingKind::Retire {}, round);
        Self::new(meeting, rank, members, patience(deadline), deadline, record)
    }
}

/// Converts the ending of a retirement (the reason why the agreement has no result on `member`) from the form of
/// [`bootstrap::agreement`]. `last` is the plan of the last action that the member has begun, or `None` if it has begun
/// none. If the agreement failed after the member began to deregister, returns `Ok` with [`Retired::Poisoned`], because
/// some windows may be gone.
///
/// # Errors
/// The reason why nothing is retired, or why this rank cannot find out the result ([`Ending::StoreFailed`] in doubt,
/// [`Ending::Unreadable`], [`Ending::OutOfStep`]).
pub fn retirement_ending(
    ending: agreement::Ending<RetireProtocol>,
    member: &Member,
    last: Option<&RetirePlan>,
) -> Result<Retired, Ending> {
    match (ending, last) {
        (agreement::Ending::Failed(failure), Some(RetirePlan::Deregister {})) => {
            let culprits = failure.culprits();
            Ok(Retired::Poisoned { poison: failure.into(), culprits, over: Vec::new() })
        }
        (ending, _) => Err(Ending::of(ending, |failure: Failure| start::failed(member, failure))),
    }
}
