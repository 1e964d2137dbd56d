//! The agreement on one commit of a pool for a group: all members register the pool's [new
//! segments](CommitRecord::segments) as NCCL windows, or none does.
//!
//! Every member posts its [record](CommitRecord) in the store of the job. The decision on the records can assign an
//! action, which is work that every member executes. Each member then posts an outcome, and a verdict on the outcomes
//! of all members follows. The verdict can assign the next action. The phases:
//!
//! | phase | work |
//! |---|---|
//! | records | every member posts its record; [`decide`] computes the decision |
//! | search | only if the allocation logs differ: the members search for the first operation that differs ([`super::search`]). Each step of the search is an action. All steps together have the time limits of one action |
//! | registration | only if the segments become windows: every member registers them and posts its outcome; [`judge_registrations`] computes the verdict |
//! | opening | only if every member can open the memory of the others: every member opens it and posts its outcome ([`super::opening`]). If another action came before the opening, usually the registration, the opening shares its time limits |
//!
//! A member waits for the records of the others for 3/8 of its own deadline. If records are then still missing, the
//! commit is refused. This does not [poison](super::Poison) the group: its members cannot have different windows. After
//! the decision, all members have the same time limits, computed from the longest of their deadlines. The limits have
//! lower bounds, because a registration that exceeds its limit poisons the group.
//!
//! A member is in doubt from the post of its record until it has read the result. If its requests to the store fail in
//! this time, it cannot find out which windows the other members have registered, so it poisons the group on its own
//! rank. Exception: after a decision to refuse the commit, the members only search for details of the error. A member
//! whose requests fail in this search does not poison the group.

use bootstrap::agreement::{self, Absence, Absentee, Failure, Member, Protocol, Report};

use super::{
    PROTOCOL,
    decide::{decide, judge_registrations},
    ending::Ending,
    history::Divergence,
    opening,
    plan::{
        Agreed, CommitDecision, CommitOutcome, CommitPlan, CommitProtocol, RegistrationOutcome, Rejection,
    },
    record::CommitRecord,
    search::{Finding, conclude_search, narrow},
    start::{self, evidence, explain},
    wire,
};

impl Protocol for CommitProtocol {
    const PROTOCOL: wire::Protocol = PROTOCOL;

    type Record = CommitRecord;
    type Plan = CommitPlan;
    type Outcome = CommitOutcome;
    type Agreed = Agreed;
    type Refusal = Rejection;

    fn decide(records: &[(u32, CommitRecord)]) -> CommitDecision {
        decide(records)
    }

    fn is_final(outcome: &CommitOutcome) -> bool {
        matches!(
            outcome,
            CommitOutcome::Registered(RegistrationOutcome::Failed { .. } | RegistrationOutcome::Ended { .. })
        )
    }

    fn judge(plan: &CommitPlan, reports: &[(u32, Report<CommitOutcome>)]) -> CommitDecision {
        let (after, found) = match plan {
            CommitPlan::Hashes { range, after } => {
                let hashes = all(reports, |_, outcome| match outcome {
                    CommitOutcome::Hashes(hashes) => Some(hashes.clone()),
                    _ => None,
                });
                (after, hashes.map(|hashes| narrow(*range, &hashes)))
            }
            CommitPlan::Recall { sequence, after } => {
                let recalled = all(reports, |rank, outcome| match outcome {
                    CommitOutcome::Recalled(recalled) => Some((rank, recalled.clone())),
                    _ => None,
                });
                (after, recalled.map(|recalled| conclude_search(*sequence, recalled)))
            }
            CommitPlan::Register(agreed) => {
                let outcomes: Vec<_> =
                    reports.iter().map(|(rank, report)| (*rank, registered(report))).collect();
                return judge_registrations(agreed, &outcomes);
            }
            CommitPlan::Open(agreed) => return opening::judge(agreed, reports),
        };
        let after = after.clone();
        match found.unwrap_or(Finding::End { divergence: Divergence::NotFound {} }) {
            Finding::Narrower { range } => CommitDecision::Act { plan: CommitPlan::Hashes { range, after } },
            Finding::Operation { sequence } => {
                CommitDecision::Act { plan: CommitPlan::Recall { sequence, after } }
            }
            Finding::End { divergence } => after.with(divergence),
        }
    }

    /// Returns true for an action that uses the time limits of the action before it. For the first action of an
    /// agreement, the result has no effect: that action has limits of its own. The kinds of actions that share limits:
    /// - The steps of a search share the limits of its first step: the steps are short, and there may be many.
    /// - The opening shares the limits of the registration or, if no windows are to be registered, of the search. If no
    ///   time is left for the opening, the segments are committed without it.
    fn shares_limits(plan: &CommitPlan) -> bool {
        matches!(plan, CommitPlan::Hashes { .. } | CommitPlan::Recall { .. } | CommitPlan::Open { .. })
    }

    fn evidence(name: &str, missing: &[Absentee]) -> Vec<String> {
        evidence(name, missing)
    }

    fn explain(absence: &Absence<'_>) -> Option<Rejection> {
        explain(absence).map(Rejection::from)
    }
}

/// Applies `read` to each member's rank and outcome, and returns the results. Returns `None` if a member has not
/// answered, or if `read` returns `None` for an outcome.
fn all<T>(
    reports: &[(u32, Report<CommitOutcome>)],
    read: impl Fn(u32, &CommitOutcome) -> Option<T>,
) -> Option<Vec<T>> {
    let one = |(rank, report): &(u32, Report<CommitOutcome>)| match report {
        Report::Outcome(outcome) => read(*rank, outcome),
        Report::Pending | Report::Late => None,
    };
    reports.iter().map(one).collect()
}

fn registered(report: &Report<CommitOutcome>) -> Option<RegistrationOutcome> {
    match report {
        Report::Outcome(CommitOutcome::Registered(outcome)) => Some(outcome.clone()),
        _ => None,
    }
}

/// Converts the ending of a commit (the reason why it has no result on `member`) from the form of
/// [`bootstrap::agreement`] to an [`Ending`]. `last` is the plan of the last action that the member has begun, or
/// `None` if it has begun none.
#[must_use]
pub fn ending(
    ending: agreement::Ending<CommitProtocol>,
    member: &Member,
    last: Option<&CommitPlan>,
) -> Ending {
    let only_explains = last.is_some_and(CommitPlan::only_explains);
    if only_explains && ending == agreement::Ending::InDoubt {
        return Ending::StoreFailed { in_doubt: false };
    }
    let failed = |failure: Failure| match last {
        // In these actions, some members may have registered or opened segments. In a search, none has: the members
        // agreed on the failure instead of on the next action.
        Some(CommitPlan::Register { .. } | CommitPlan::Open { .. }) => Ending::Poisoned(failure.into()),
        _ => start::failed(member, failure),
    };
    Ending::of(ending, failed)
}
