//! The rules that every run keeps.

use std::{collections::BTreeMap, time::Duration};

use process_group::{
    comm::CommError,
    group::{GroupError, GroupErrorKind::*},
    record::MemberProgress,
};

use super::{
    plan::{Fault, Plan, Step},
    run::{LIMIT, Report, Run, Seen},
};

/// The longest time from the end of a group to the end of a wait in it, for some requests to the store. A wait checks
/// its group at intervals of up to 500 ms.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Returns the rank that is gone, according to the reason of a group's end.
pub(super) fn lost(error: &GroupError) -> Option<usize> {
    match error.kind() {
        Lost { rank, .. } | Left { rank, .. } | MemberFailed { rank, .. } => Some(*rank),
        _ => None,
    }
}

/// Returns the ranks that an error names as its cause. `None` for an error that names no rank.
fn named(error: &GroupError) -> Option<Vec<usize>> {
    Some(match error.kind() {
        Lost { rank, .. } | Left { rank, .. } | MemberFailed { rank, .. } | Unmade { rank, .. } => {
            vec![*rank]
        }
        CallsDiffer { rank, other, .. } => vec![*rank, *other],
        Absent { ranks, .. } => ranks.clone(),
        CollectiveDiverged { divergence, .. } => divergence.ranks.clone(),
        // Members that are further ahead may also lack the newest calls.
        Overdue { progress, .. } => {
            let collectives =
                |member: &MemberProgress| member.last.as_ref().map_or(0, |last| last.collectives);
            let least = progress.members.iter().map(collectives).min();
            let last = progress.members.iter().filter(|member| Some(collectives(member)) == least);
            last.map(|member| member.rank).collect()
        }
        _ => return None,
    })
}

/// Returns the first rule that the run breaks.
pub(super) fn judge(plan: &Plan, run: &Run) -> Result<(), String> {
    for (rank, report) in run.reports.iter().enumerate() {
        if let Some(violation) = report.violations.first() {
            return Err(format!("rank {rank}: {violation}"));
        }
    }
    let at = run.reports[plan.culprit].fault;
    let fault = if at.is_some() { plan.fault } else { Fault::None };
    let judge = Judge { plan, run, fault, at: at.unwrap_or_default() };
    for (rank, report) in run.reports.iter().enumerate() {
        let judged = match &report.first {
            Some(seen) => judge.failed(rank, report, seen),
            None => judge.succeeded(rank),
        };
        judged.map_err(|problem| {
            format!("rank {rank}, {fault:?} of rank {} at {at:?}: {problem}: {report:#?}", plan.culprit)
        })?;
    }
    if run.time > LIMIT * 30 {
        return Err(format!("the last rank ends after {:?}", run.time));
    }
    if fault == Fault::Differ && run.reports.iter().all(|report| report.first.is_none()) {
        return Err("nobody has noticed that calls differ".into());
    }
    judge_end(plan, run)
}

struct Judge<'a> {
    plan: &'a Plan,
    run: &'a Run,
    /// The fault that the culprit had.
    fault: Fault,
    /// The time of the fault.
    at: Duration,
}

impl Judge<'_> {
    /// Judges a rank without an error.
    fn succeeded(&self, rank: usize) -> Result<(), String> {
        let may = match self.fault {
            // A stall may be short, a cut may hit no call, and a group of other ranks has no part in a difference.
            Fault::None | Fault::Stall(_) | Fault::CutStore(_) | Fault::Differ => true,
            // The rank may have ended before.
            Fault::LoseStore(time) | Fault::Silence(time) | Fault::AbortAside(time) if !time.is_zero() => {
                true
            }
            _ => rank == self.plan.culprit,
        };
        if may { Ok(()) } else { Err("no error".into()) }
    }

    fn failed(&self, rank: usize, report: &Report, seen: &Seen) -> Result<(), String> {
        let is_own = rank == self.plan.culprit;
        if !self.explains(is_own, seen) {
            return Err(format!("an error in step {} that does not fit: {}", seen.step, seen.error));
        }
        if seen.ended - seen.begun > self.longest(is_own) {
            return Err("the error comes late".into());
        }
        // Heartbeats are watched from when the ranks have met.
        let met = if seen.step == 0 { LIMIT } else { Duration::ZERO };
        let latest = self.at.max(seen.begun) + met + self.plan.heartbeat * 2 + Duration::from_secs(1);
        if matches!(seen.error.kind(), Lost { .. }) && !is_own && seen.ended > latest + self.delay() {
            return Err("the loss is noticed late".into());
        }
        if self.stays_in_barrier(is_own, report, seen) {
            return Err("a barrier does not end with its group".into());
        }
        // An error in the first or the last step leaves no world.
        let has_world = (1..=self.plan.steps.len()).contains(&seen.step);
        match &report.survivors {
            Some(Err(error)) => Err(format!("the survivors have no group: {error}")),
            None if !is_own && has_world && self.plan.fault.is_end() => {
                Err("no end of the world group".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the rank was at a barrier when trouble ended the group, and the barrier has not ended at once.
    fn stays_in_barrier(&self, is_own: bool, report: &Report, seen: &Seen) -> bool {
        let step = seen.step.checked_sub(1).and_then(|at| self.plan.steps.get(at));
        let end = report.troubles.iter().find(|(group, _)| Some(&**group) == seen.error.group());
        let (Some(Step::Barrier { .. }), Some((_, end))) = (step, end) else { return false };
        let stalled = match self.fault {
            Fault::Stall(time) if is_own => time,
            _ => Duration::ZERO,
        };
        seen.ended > (*end).max(seen.begun + stalled) + AT_ONCE
    }

    /// The time after which the fault begins.
    fn delay(&self) -> Duration {
        match self.fault {
            Fault::LoseStore(time) | Fault::CutStore(time) => time,
            Fault::Silence(time) | Fault::AbortAside(time) => time,
            _ => Duration::ZERO,
        }
    }

    /// The longest time of a step that fails: all waits have the same limit.
    fn longest(&self, is_own: bool) -> Duration {
        LIMIT
            + Duration::from_secs(3)
            + match self.fault {
                // Calls of the store have no deadline of their own.
                Fault::Silence(_) if is_own => Duration::from_secs(130),
                Fault::Stall(time) if is_own => time,
                _ => Duration::ZERO,
            }
    }

    /// Returns true if the rank was at that time in a step that failed because the culprit did not come.
    fn waits_for_culprit(&self, rank: usize, time: Duration) -> bool {
        self.run.reports[rank].first.as_ref().is_some_and(|other| {
            let is_inside = (other.begun..other.ended).contains(&time);
            is_inside
                && matches!(other.error.kind(), Absent { ranks, .. } if ranks.contains(&self.plan.culprit))
        })
    }

    /// Returns true if the fault can be the cause of the error, and the error names a rank that others wait for.
    fn explains(&self, is_own: bool, seen: &Seen) -> bool {
        let (culprit, error) = (self.plan.culprit, &seen.error);
        let is_of_culprit = named(error).as_deref() == Some(&[culprit]);
        // A rank that has had an error leaves its groups.
        let left_before =
            |who: &usize| self.run.reports[*who].first.as_ref().is_some_and(|other| other.ended < seen.ended);
        match (self.fault, error.kind()) {
            (Fault::None, _) => false,
            (_, Left { rank, .. }) if left_before(rank) => true,
            // The rank had the end of the world while it made a split of it.
            (fault, MemberFailed { rank, reason, .. }) if fault.is_end() && left_before(rank) => {
                reason.contains(&format!("rank {culprit} "))
            }
            // A rank may wait for others that know the end of another group, or that wait for the culprit elsewhere.
            (_, Absent { ranks, .. }) => {
                let is_known = |who: &usize| left_before(who) || self.waits_for_culprit(*who, seen.ended);
                ranks.contains(&culprit) || ranks.iter().all(is_known)
            }
            (fault, NotAgreed { .. }) => fault.is_end(),
            // The work of a rank whose store does not answer names nobody.
            (Fault::Silence(_) | Fault::LoseStore(_), Overdue { progress, .. })
                if progress.members.is_empty() =>
            {
                is_own
            }
            (Fault::Stall(time), Overdue { .. }) if time < self.plan.work_timeout / 2 => false,
            (Fault::Stall(_), Overdue { .. }) => named(error).is_some_and(|ranks| ranks.contains(&culprit)),
            (_, Overdue { .. }) => {
                let is_known = |rank: &usize| *rank == culprit || left_before(rank);
                named(error).is_some_and(|ranks| ranks.iter().all(is_known))
            }
            (Fault::LoseStore(_) | Fault::Silence(_), Store(_) | WorkTimeout { .. } | Comm(_)) => is_own,
            (Fault::LoseStore(_) | Fault::Silence(_), Lost { .. } | MemberFailed { .. }) => is_of_culprit,
            // The rank still has the store, so it is not lost.
            (Fault::CutStore(_), Store(_)) => is_own,
            (Fault::CutStore(_), MemberFailed { .. }) => is_of_culprit,
            (Fault::Crash, Lost { .. }) => is_of_culprit,
            (Fault::AbortAside(_), Comm(CommError::Closed { .. })) => is_own,
            (Fault::Abort | Fault::AbortAside(_) | Fault::Drop, Left { .. }) => is_of_culprit,
            (Fault::Fail, MemberFailed { .. }) => is_of_culprit,
            (Fault::Differ, CallsDiffer { .. } | CollectiveDiverged { .. }) => {
                named(error).is_some_and(|ranks| ranks.contains(&culprit))
            }
            _ => false,
        }
    }
}

/// All members of a group agree on the reason of its end. The exceptions are a rank without the store, and members that
/// have ended the group themselves.
fn judge_end(plan: &Plan, run: &Run) -> Result<(), String> {
    let is_cut_off =
        |rank: usize| rank == plan.culprit && matches!(plan.fault, Fault::LoseStore(_) | Fault::Silence(_));
    let mut known = BTreeMap::new();
    for (rank, report) in run.reports.iter().enumerate().filter(|(rank, _)| !is_cut_off(*rank)) {
        for (group, end) in &report.ends {
            if matches!(end.kind(), Comm(CommError::Closed { .. })) {
                continue;
            }
            let (first, reason) = known.entry(group).or_insert_with(|| (rank, end.to_string()));
            if *reason != end.to_string() {
                return Err(format!(
                    "group {group} has ended for two reasons: {reason} on {first}, {end} on {rank}"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the fault and the kinds of the ranks' errors, for a summary of many runs.
pub(super) fn kinds(plan: &Plan, run: &Run) -> Vec<String> {
    let name = |value: &dyn std::fmt::Debug| {
        let text = format!("{value:?}");
        text.split([' ', '(']).next().unwrap_or_default().to_owned()
    };
    let fault = if run.reports[plan.culprit].fault.is_some() { plan.fault } else { Fault::None };
    let error =
        |report: &Report| report.first.as_ref().map_or("no error".to_owned(), |seen| name(&seen.error));
    run.reports.iter().map(|report| format!("{}: {}", name(&fault), error(report))).collect()
}
