//! The invariants of a run. They hold under every [trouble](crate::trouble), the fault of the run or the difference
//! between ranks. The *culprit* is the rank that the trouble concerns. The terms *meeting*, *member*, *domain*,
//! *poisoned* and *lost store* are defined in [`super`].
//!
//! - Every rank ends its program, unless the trouble kills the rank.
//! - A rank ends each meeting in time: a commit at most [`COMMIT_FLOOR`](symm_agreement::COMMIT_FLOOR) after its
//!   deadline, and any other meeting at most [`RETIREMENT_FLOOR`](symm_agreement::RETIREMENT_FLOOR) after its deadline.
//!   A deadline below [`DEADLINE`] counts as [`DEADLINE`]. A rank that loses the store may repeat its requests for
//!   [`Retry::FLOOR`] longer. A rank that the trouble [stops](Trouble::Stopped) may end at any time.
//! - Members of a meeting get the same result. Exceptions: members that [lose the store](crate::lost), and retirements
//!   and agreements on a length under [`OtherDomain`](Trouble::OtherDomain) (see below).
//! - If two ranks wait for each other in different meetings for long enough, at least one of them gets an error that
//!   lists this [circle of waits](crate::waits).
//! - Under [`OtherDomain`](Trouble::OtherDomain), the ranks have different lists of the members of the domain. If a
//!   rank then gets a result other than a refusal from a retirement or an agreement on a length, every rank in its list
//!   gets the same result.
//! - A *refusal* is the reason why a meeting has changed nothing, or why a commit has left out segments. Each refusal
//!   has one of these causes:
//!   - The trouble, directly.
//!   - The trouble, through an earlier meeting: in a group without the culprit, a member is late because it waited for
//!     the culprit before.
//!   - The trouble, through a poisoned group: this group keeps memory on some ranks, and the devices have little
//!     memory. So an allocation fails on these ranks only.
//!   - Independent of the trouble: a slow store makes a rank late.
//!   - Independent of the trouble: a retirement names some of the segments that share a window, and not all of them.
//! - If the trouble causes a refusal that blames a rank, this rank is the culprit.
//! - A refusal that says that the histories of the ranks' pools differ names the first operation that differs.
//! - Members that have committed segments have mapped each other's segments, unless the trouble explains why not.
//! - In a collective, all members use a block in the same way: through the same window at the same offset, through
//!   plain registrations (`ncclCommRegister`), or without either. A window covers the memory of the block on every
//!   member.
//! - A one-sided transfer belongs to the last agreed plan among those with the same name. For this plan, the peer still
//!   lends the memory and the signal slot that the transfer accesses. See [`exchanges`](crate::exchanges) for *plan*,
//!   *lend* and *slot*.
//! - At the end of the run, no device memory is allocated. The store has only those keys of meetings that the trouble
//!   or the last meetings may leave.

use std::collections::BTreeMap;

use bootstrap::agreement::Retry;
use symm_agreement::{Agreed, PeerMappings, Refusal, Unmapped};

use crate::{
    results::{Ended, Kind, Meeting, MeetingResult},
    scenario::DEADLINE,
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    world::World,
};

impl World {
    /// Checks that every rank that is not dead has ended its program. Then checks all meetings, and all uses of blocks
    /// in collectives.
    pub(crate) fn judge(&self) -> Result<(), Violation> {
        for rank in self.ranks.iter().filter(|rank| !rank.dead) {
            ensure!(rank.task.is_none() && rank.program.is_empty(), "rank {} hangs", rank.number);
        }
        let mut meetings: BTreeMap<Meeting, Vec<&Ended>> = BTreeMap::new();
        for ended in &self.ended {
            meetings.entry(ended.span.meeting).or_default().push(ended);
        }
        for (meeting, ended) in &meetings {
            let at = |Violation(what)| Violation(format!("{meeting:?}: {what}"));
            self.judge_meeting(meeting.kind, ended).map_err(at)?;
        }
        self.judge_waits()?;
        self.judge_last(&meetings)?;
        self.judge_uses()
    }

    /// Checks that the last commit of every group succeeds. This commit is near the end of the programs, and has a long
    /// deadline. Exempts poisoned groups, and commits that the trouble can still make fail.
    fn judge_last(&self, meetings: &BTreeMap<Meeting, Vec<&Ended>>) -> Result<(), Violation> {
        let is_permanent = matches!(
            self.scenario.trouble,
            Trouble::OtherRelease
                | Trouble::OtherEnvironment
                | Trouble::AddressSpace
                | Trouble::HalfEnqueued
                | Trouble::HalfSent
                | Trouble::PrepareFails
                | Trouble::OtherDomain { .. }
                | Trouble::OtherProtocol
                | Trouble::Killed(_)
        );
        // Under these troubles, any last commit may fail. A rank has lost the store, or its meetings have other names
        // than those of its peers. Other ranks wait very long for this rank, and so come late to the last commits of
        // all their groups.
        if matches!(
            self.scenario.trouble,
            Trouble::StoreDies(_) | Trouble::CutOff(..) | Trouble::Absent | Trouble::ExtraDomain
        ) {
            return Ok(());
        }
        // The last commit may be refused if the culprit has skipped an earlier commit: the culprit waits in the last
        // commit, while the others still wait for it in the skipped commit. The refusal reports a circle of waits. If
        // the culprit has created the group again in the meantime, it may report different epochs of the group instead.
        let is_ahead = |it: &Ended| match it.said.refusal() {
            Some(Refusal::SyncTimeout { circle, .. }) => !circle.is_empty(),
            refusal => matches!(refusal, Some(Refusal::EpochMismatch { .. })),
        };
        for group in self.scenario.groups.keys() {
            let mut of_group = meetings.iter().filter(|(meeting, _)| meeting.kind == Kind::Commit(*group));
            let Some((_, ended)) = of_group.next_back() else { continue };
            let is_permanent = is_permanent && self.scenario.groups[group].contains(&self.scenario.culprit);
            let refused = ended
                .iter()
                .find(|it| it.said.poison().is_none() && !matches!(it.said, MeetingResult::Commit(Ok(_))));
            let skipped = |it: &Ended| self.scenario.trouble == Trouble::Skips && is_ahead(it);
            if let Some(refused) = refused.copied().filter(|it| !is_permanent && !skipped(it)) {
                let (trouble, Ended { rank, said, .. }) = (self.scenario.trouble, refused);
                bail!("under {trouble:?}: the last commit of group {group} fails on rank {rank}: {said:?}");
            }
        }
        Ok(())
    }

    pub(crate) fn members(&self, kind: Kind) -> Vec<u32> {
        let all = || (0..self.ranks.len() as u32).collect();
        kind.group().map_or_else(all, |group| self.scenario.groups[&group].clone())
    }

    fn judge_meeting(&self, kind: Kind, ended: &[&Ended]) -> Result<(), Violation> {
        self.judge_ends(kind, ended)?;
        if matches!((self.scenario.trouble, kind), (Trouble::OtherDomain { .. }, Kind::Retire | Kind::Length))
        {
            return self.judge_domain(kind, ended);
        }
        // A rank whose meeting ended with a failure of the store did not learn the members' result.
        let told: Vec<&Ended> = ended.iter().copied().filter(|it| !it.said.store_failed()).collect();
        self.judge_lost(kind, ended, &told)?;
        let Some(first) = told.first() else { return Ok(()) };
        for it in &told {
            ensure!(
                it.said == first.said,
                "ranks {} and {} are told different things: {:?} and {:?}",
                first.rank,
                it.rank,
                first.said,
                it.said
            );
        }
        ensure!(first.said.is_agreed(), "no result that can be agreed: {:?}", first.said);
        if let MeetingResult::Commit(result) = &first.said {
            self.judge_windows(ended, result.as_ref().ok())?;
            let entered = told.iter().filter(|it| it.registered).count();
            let wrong = entered > 0 && first.said.refusal().is_some() && result.is_err();
            ensure!(!wrong, "{entered} of {} members registered: {result:?}", told.len());
        }
        if let MeetingResult::Commit(Ok(agreed)) = &first.said {
            self.judge_mapping(kind, agreed)?;
        }
        self.judge_blame(kind, &first.said, &told)
    }

    /// Checks that the ranks have ended a meeting in time.
    fn judge_ends(&self, kind: Kind, ended: &[&Ended]) -> Result<(), Violation> {
        let is_stopped = |it: &Ended| {
            matches!(self.scenario.trouble, Trouble::Stopped(..)) && self.scenario.is_culprit(it.rank)
        };
        for it in ended {
            // A rank in doubt has posted its record and does not know the result. It repeats a failed request for at
            // least this long.
            let retries = if self.loses_store(it.rank) { Retry::FLOOR.as_micros() as u64 } else { 0 };
            // An agreement on a length may take longer: a rank whose patience (the time for which it waits for missing
            // members) has ended searches for a circle of waits. It reads the waits of all ranks from the store twice
            // (`look`), and twice more if the two reads differ.
            let looks = if kind == Kind::Length { 4 * self.look() } else { 0 };
            // Store requests may take longer than a short deadline, so at least `DEADLINE` is allowed.
            let most = it.span.deadline.max(DEADLINE.as_micros() as u64) + it.said.budgets();
            let most = most + looks + retries;
            ensure!(
                is_stopped(it) || it.ended - it.span.begun <= most,
                "rank {} waits past its deadline: {it:?}",
                it.rank
            );
        }
        Ok(())
    }

    /// Checks that the members of a commit have mapped each other's segments, unless the trouble explains why not.
    fn judge_mapping(&self, kind: Kind, agreed: &Agreed) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.culprit);
        let members = self.members(kind);
        let cannot = trouble == Trouble::CannotMap && members.contains(&culprit) && members.len() > 1;
        let fits = match &agreed.peers {
            PeerMappings::Offered { .. } => false,
            PeerMappings::Opened {} => agreed.segments > 0 && !cannot,
            PeerMappings::Unmapped { reason } => match reason {
                Unmapped::NothingNew {} => agreed.segments == 0,
                Unmapped::NotOffered { rank, .. } => trouble == Trouble::PrepareFails && *rank == culprit,
                Unmapped::Failed { rank, .. } => *rank == culprit && (cannot || trouble.loses_outcome()),
                // The trouble is never a missing handle, or a device that cannot access another one.
                _ => false,
            },
        };
        ensure!(fits, "under {trouble:?} on rank {culprit}, members {members:?}: {agreed:?}");
        Ok(())
    }

    /// Checks that all members use a block in the same way in the same collective of a group.
    fn judge_uses(&self) -> Result<(), Violation> {
        for ((group, site), uses) in &self.uses {
            for one in uses {
                let other = uses.iter().find(|it| it.identity == one.identity && it.way != one.way);
                if let Some(other) = other {
                    bail!("group {group} uses a block by different ways at {site}: {one:?} and {other:?}");
                }
            }
        }
        Ok(())
    }
}
