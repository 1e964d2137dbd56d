//! Retirement: the ranks of a domain retire segments, on all of them or on none.
//!
//! The whole domain takes part, whichever groups have committed the segments, because the list of segments is part of
//! the placement that all ranks share.
//!
//! | phase | action |
//! |---|---|
//! | records | ranks post the segments to be retired and their remaining uses; [`decide_retirement`] |
//! | quiet | every device becomes idle; nothing has changed yet, so a failure refuses the retirement on all ranks |
//! | deregistration | every rank unmaps its peers' segments, then deregisters its windows, group by group |
//!
//! Deregistration is local in every release of NCCL, and frees addresses that determine the place of later windows.
//! All ranks therefore deregister in one order: groups by ascending id, and within a group by ascending ordinal of the
//! segments. They begin only after no device uses the windows any more. Memory is freed last, after all ranks have
//! posted that their windows are gone.

use std::{collections::BTreeSet, time::Duration};

use bootstrap::agreement::{self, Absence, Absentee, Failure, Member, Protocol, Report};
use process_group::group::GroupId;

use super::{
    PROTOCOL, ValuesByRank,
    decide::{half_enqueued, not_ready},
    ending::Ending,
    meeting_id::{MeetingId, MeetingKind},
    poison::Poison,
    record::{Enqueued, LogPoint, PoolId, Readiness},
    refusal::{Held, Refusal},
    start::{self, Start, evidence, explain, patience},
    wire::{self, wire_enum, wire_struct},
};

/// A group that a rank passed to a retirement, and the rank's log of the group. The group may have committed none of
/// the segments to retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: GroupId,
    /// The group's log of committed and retired segments.
    pub log: LogPoint,
}
wire_struct!(Committed { group, log });

/// The report of a rank on a segment that is to be retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The segment.
    pub ordinal: u32,
    /// The remaining uses of the segment on this rank.
    pub held: Held,
    /// The groups that have committed the segment, but that the rank did not pass to the retirement.
    pub uncovered: Vec<GroupId>,
}
wire_struct!(Candidate { ordinal, held, uncovered });

/// The message of a rank to the others before anything is retired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementRecord {
    /// The readiness of the rank.
    pub readiness: Readiness,
    /// The work enqueued on the rank's device, by group.
    pub enqueued: Vec<Enqueued>,
    /// The pool's allocation log.
    pub log: LogPoint,
    /// The groups of this rank that take part, ascending.
    pub groups: Vec<Committed>,
    /// The segments that the rank asks to retire, in ascending order of ordinals.
    pub segments: Vec<Candidate>,
}
wire_struct!(RetirementRecord { readiness, enqueued, log, groups, segments });

/// A rank and its record.
type Ranked<'a> = (u32, &'a RetirementRecord);

/// Decides from the records of all ranks: refuses the retirement, or returns the plan to quiesce the devices. The
/// result does not depend on the order of the records.
pub fn decide_retirement(records: &[(u32, RetirementRecord)]) -> Decision {
    let mut records: Vec<Ranked<'_>> = records.iter().map(|(rank, record)| (*rank, record)).collect();
    records.sort_by_key(|(rank, _)| *rank);
    let refusal = differing(&records)
        .or_else(|| not_ready(records.iter().map(|(rank, record)| (*rank, &record.readiness))))
        .or_else(|| half_enqueued(records.iter().map(|(rank, record)| (*rank, record.enqueued.as_slice()))))
        .or_else(|| holding(&records))
        .or_else(|| parted(&records));
    match refusal {
        Some(refusal) => Decision::Refused { refusal },
        None => Decision::Act { plan: RetirePlan::Quiesce {} },
    }
}

fn differing(records: &[Ranked<'_>]) -> Option<Refusal> {
    let ordinals =
        |record: &RetirementRecord| record.segments.iter().map(|it| it.ordinal).collect::<Vec<_>>();
    let ordinals = ValuesByRank::of(records.iter().map(|(rank, record)| (*rank, ordinals(record))));
    if !ordinals.is_unanimous() {
        return Some(Refusal::RetirementMismatch { ordinals });
    }
    let mut groups: Vec<GroupId> =
        records.iter().flat_map(|(_, record)| &record.groups).map(|it| it.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.into_iter().find_map(|group| {
        let logs = records.iter().filter_map(|(rank, record)| {
            Some((*rank, record.groups.iter().find(|it| it.group == group)?.log))
        });
        let logs = ValuesByRank::of(logs);
        (!logs.is_unanimous()).then_some(Refusal::CommittedLogDiverged { group, logs })
    })
}

/// Returns a refusal if the ranks' allocation logs differ. This check comes last: if a rank still uses a segment that
/// others have released, their logs differ too, and the earlier refusal names the cause.
fn parted(records: &[Ranked<'_>]) -> Option<Refusal> {
    let logs = ValuesByRank::of(records.iter().map(|(rank, record)| (*rank, record.log)));
    let is_same = logs.is_unanimous();
    (!is_same).then_some(Refusal::AllocationDiverged { ordinal: None, common: 0, logs, divergence: None })
}

/// Returns a refusal if a segment still has uses on any rank, or is committed for groups that the rank did not pass to
/// the retirement. The records must list the same segments.
fn holding(records: &[Ranked<'_>]) -> Option<Refusal> {
    let count = records.first().map_or(0, |(_, record)| record.segments.len());
    (0..count).find_map(|at| {
        let all = || records.iter().filter_map(|(rank, record)| Some((*rank, record.segments.get(at)?)));
        let ordinal = all().next()?.1.ordinal;
        let uncovered = all()
            .find(|(_, it)| !it.uncovered.is_empty())
            .map(|(rank, it)| Refusal::SegmentCommitted { rank, ordinal, groups: it.uncovered.clone() });
        uncovered
            .or_else(|| {
                all().any(|(_, it)| it.held.graphs > 0).then(|| {
                    let graphs = ValuesByRank::of(all().map(|(rank, it)| (rank, it.held.graphs)));
                    Refusal::SegmentPinned { ordinal, graphs }
                })
            })
            .or_else(|| {
                all().any(|(_, it)| it.held.blocks > 0).then(|| {
                    let blocks = ValuesByRank::of(all().map(|(rank, it)| (rank, it.held.blocks)));
                    Refusal::SegmentInUse { ordinal, blocks }
                })
            })
    })
}

/// The outcome of one phase of a retirement on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// The rank completed the phase.
    Done {},
    /// The phase failed on the rank.
    Failed {
        /// A description of the failure.
        cause: String,
    },
    /// The phase did not end in time on the rank.
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
    /// Returns true if the rank completed its part.
    fn is_done(&self) -> bool {
        matches!(self, Self::Done {} | Self::Over { .. })
    }
}

/// The plan of an action of a retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetirePlan {
    /// Wait until the rank's device is idle.
    Quiesce {},
    /// Unmap the peers' segments, and deregister the windows and plain registrations of the segments.
    Deregister {},
}
wire_enum!(RetirePlan { 0 => Quiesce {}, 1 => Deregister {} });

/// The outcome of an action of a retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireOutcome {
    /// The outcome of [`RetirePlan::Quiesce`].
    Quiet {
        /// The outcome.
        release: Release,
    },
    /// The outcome of [`RetirePlan::Deregister`].
    Deregistered {
        /// The outcome.
        release: Release,
    },
}
wire_enum!(RetireOutcome { 0 => Quiet { release }, 1 => Deregistered { release } });

/// The outcome that each rank posted, in ascending order of ranks, or `None` if it posted none.
pub(super) type Posted = Vec<(u32, Option<Release>)>;

fn posted(reports: &[(u32, Report<RetireOutcome>)]) -> Posted {
    let release = |report: &Report<RetireOutcome>| match report {
        Report::Outcome(RetireOutcome::Quiet { release } | RetireOutcome::Deregistered { release }) => {
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

/// Judges whether all devices are idle.
fn judge_quiet(releases: &Posted) -> Decision {
    let missing = ranks_that(releases, Option::is_none);
    let blocked = ranks_that(releases, |release| *release == Some(Release::Blocked {}));
    let refusal = if let Some((rank, cause)) = failed(releases) {
        Refusal::QuiesceFailed { rank, cause }
    } else if let Some(rank) = missing.first() {
        Refusal::QuiesceFailed { rank: *rank, cause: "the rank did not answer in time".to_owned() }
    } else if let Some(rank) = blocked.first() {
        Refusal::QuiesceFailed { rank: *rank, cause: "it works on past the deadline".to_owned() }
    } else {
        return Decision::Act { plan: RetirePlan::Deregister {} };
    };
    Decision::Refused { refusal }
}

/// Judges whether all windows are gone. Blames ranks without a successful outcome. A report of an ended group is not
/// a failure of the reporting rank.
pub(super) fn judge_released(releases: &Posted) -> Retired {
    let missing = ranks_that(releases, Option::is_none);
    let blocked = ranks_that(releases, |release| *release == Some(Release::Blocked {}));
    let culprits = ranks_that(releases, |release| !release.as_ref().is_some_and(Release::is_done));
    let told = releases.iter().filter_map(|(rank, release)| match release {
        Some(Release::Over { groups, cause }) => Some((*rank, groups, cause)),
        _ => None,
    });
    let over: BTreeSet<GroupId> = told.clone().flat_map(|(_, groups, _)| groups.iter().copied()).collect();
    let poison = if let Some((rank, cause)) = failed(releases) {
        Poison::RetirementFailed { rank, cause }
    } else if !culprits.is_empty() {
        Poison::MembersLost { missing, blocked }
    } else if let Some((rank, _, cause)) = told.clone().next() {
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
    /// The segments are retired, but some windows may remain: the ranks in `culprits` did not confirm that their
    /// windows are gone, or groups have ended. The groups with a member in `culprits` and the groups in `over` are
    /// poisoned. A rank with a poisoned group does not free the memory now.
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

/// The agreement of one retirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetireProtocol;

type Decision = agreement::Decision<RetireProtocol>;

impl Protocol for RetireProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;
    /// If a rank arrives after the others with another member list, the stored result lets it fail with
    /// [`Refusal::MembersMismatch`]. Members remove the stored keys after the next meeting.
    const KEEPS_RESULT: bool = true;

    type Record = RetirementRecord;
    type Plan = RetirePlan;
    type Outcome = RetireOutcome;
    type Agreed = Retired;
    type Refusal = Refusal;

    fn decide(records: &[(u32, RetirementRecord)]) -> Decision {
        decide_retirement(records)
    }

    /// Only a failed wait for an idle device is final.
    ///
    /// While windows are deregistered, every live rank posts its outcome before the time limit. The wait must not end
    /// early, or ranks that are still deregistering would be blamed too.
    fn is_final(outcome: &RetireOutcome) -> bool {
        matches!(outcome, RetireOutcome::Quiet { release: Release::Failed { .. } })
    }

    fn judge(plan: &RetirePlan, reports: &[(u32, Report<RetireOutcome>)]) -> Decision {
        match plan {
            RetirePlan::Quiesce {} => judge_quiet(&posted(reports)),
            RetirePlan::Deregister {} => Decision::Agreed { agreed: judge_released(&posted(reports)) },
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
    /// Begins retirement number `round` of `rank` with its `record`, among `members`, which are the whole domain.
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

/// Converts the ending of a retirement on `member`. `last` is the plan of the last action that this member has begun.
/// `None` if it has begun none. If that plan is [`RetirePlan::Deregister`], a failure of the agreement returns
/// [`Retired::Poisoned`], because windows may be gone.
///
/// # Errors
/// The reason why nothing is retired, or why this rank does not know the result ([`Ending::StoreFailed`] in doubt,
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
