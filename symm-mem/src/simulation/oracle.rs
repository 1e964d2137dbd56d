//! The invariants of a run, which hold under every [trouble](super::trouble).
//!
//! - Every live rank ends its program.
//! - A rank ends each meeting at most [`FLOORS`](crate::agreement::FLOORS) after its deadline: the sum of the least
//!   time limits of all actions after a decision and of the waits for their outcomes. A rank that loses the store may
//!   repeat its requests for [`RETRY_FLOOR`] longer. Exception: the trouble stops the rank.
//! - Members of a meeting get the same result, except those that [lose the store](super::lost).
//! - If two ranks wait for each other in different meetings for long enough, at least one of them gets an error that
//!   lists this [circle of waits](super::waits).
//! - Under [`OtherDomain`](Trouble::OtherDomain), the ranks have different lists of the members of the domain. If a
//!   rank then gets a result other than a refusal from a retirement or an agreement on a length, every rank in its list
//!   gets the same result.
//! - Each refusal has one of these causes:
//!   - The trouble.
//!   - A slow store makes a rank late.
//!   - A retirement names only a part of the segments that share a window.
//!   - Under a trouble, in a group without the culprit: a member is late because it waited for the culprit.
//!   - Under a trouble: the devices have little memory, and a poisoned group keeps memory on some ranks. So an
//!     allocation fails on these ranks only.
//! - If the trouble causes a refusal that blames a rank, this is the culprit. A refusal that says that the histories of
//!   the ranks' pools differ names the first operation that differs.
//! - Members that commit segments have mapped each other's segments, unless the trouble explains why not.
//! - In a collective, the members use a block through the same window at the same offset, or all through plain
//!   registrations, or all without either. The window covers the memory of the block on every member.
//! - A one-sided transfer belongs to the last agreed [plan](super::plans) of its name. For this plan, the peer still
//!   lends the memory and the signal slot that the transfer accesses.
//! - At the end of the run, no device memory is allocated. The store has only those keys of meetings that the trouble
//!   or the last meetings may leave.

use std::{collections::BTreeMap, fmt, time::Duration};

use bootstrap::agreement::RETRY_FLOOR;

use super::{
    results::{Ended, Kind, Meeting, Said},
    scenario::DEADLINE,
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    world::World,
};
use crate::{
    agreement::{
        Agreed, Divergence, Entry, MemberList, PeerMappings, Plain, Poison, Refusal, Unmapped, Waiting,
        length_patience, patience,
    },
    exchange::ExchangeRefusal,
    rendezvous::RendezvousRefusal,
};

impl World {
    /// Checks that every live rank has ended its program, and checks all meetings and uses of blocks.
    pub(super) fn judge(&self) -> Result<(), Violation> {
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
        let lasts = matches!(
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
        // Under these troubles, any last commit may fail. A rank has lost the store, or names its meetings differently
        // from its peers. Other ranks wait very long for it, and so come late to the last commits of all their groups.
        if matches!(
            self.scenario.trouble,
            Trouble::StoreDies(_) | Trouble::CutOff(..) | Trouble::Absent | Trouble::ExtraDomain
        ) {
            return Ok(());
        }
        // The last commit may be refused if a rank has skipped an earlier one: it waits in the last commit, and the
        // others still wait for it in the skipped one. The refusal reports a circle of waits or different epochs of the
        // group.
        let is_ahead = |it: &Ended| match it.said.refusal() {
            Some(Refusal::SyncTimeout { circle, .. }) => !circle.is_empty(),
            refusal => matches!(refusal, Some(Refusal::EpochMismatch { .. })),
        };
        for group in self.scenario.groups.keys() {
            let mut of_group = meetings.iter().filter(|(meeting, _)| meeting.kind == Kind::Commit(*group));
            let Some((_, ended)) = of_group.next_back() else { continue };
            let lasts = lasts && self.scenario.groups[group].contains(&self.scenario.culprit);
            let refused =
                ended.iter().find(|it| it.said.poison().is_none() && !matches!(it.said, Said::Commit(Ok(_))));
            let skipped = |it: &Ended| self.scenario.trouble == Trouble::Skips && is_ahead(it);
            if let Some(refused) = refused.copied().filter(|it| !lasts && !skipped(it)) {
                let (trouble, Ended { rank, said, .. }) = (self.scenario.trouble, refused);
                bail!("under {trouble:?}: the last commit of group {group} fails on rank {rank}: {said:?}");
            }
        }
        Ok(())
    }

    pub(super) fn members(&self, kind: Kind) -> Vec<u32> {
        let all = || (0..self.ranks.len() as u32).collect();
        kind.group().map_or_else(all, |group| self.scenario.groups[&group].clone())
    }

    fn judge_meeting(&self, kind: Kind, ended: &[&Ended]) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.culprit);
        for it in ended {
            let exempt = matches!(trouble, Trouble::Stopped(..)) && it.rank == culprit;
            // A rank that is in doubt waits at least this long for the store to answer again.
            let retries = if self.loses_store(it.rank) { RETRY_FLOOR.as_micros() as u64 } else { 0 };
            // An agreement on a length may take longer: a rank whose patience (the time for which it waits for missing
            // members) has ended searches for a circle of waits. It reads the waits of all ranks from the store twice
            // (`look`), and twice more if the two reads differ.
            let looks = if kind == Kind::Length { 4 * self.look() } else { 0 };
            // Store requests may take longer than a short deadline, so at least `DEADLINE` is allowed.
            let most = it.span.deadline.max(DEADLINE.as_micros() as u64) + it.said.budgets();
            let most = most + looks + retries;
            ensure!(
                exempt || it.ended - it.span.begun <= most,
                "rank {} waits past its deadline: {it:?}",
                it.rank
            );
        }
        if matches!((trouble, kind), (Trouble::OtherDomain { .. }, Kind::Retire | Kind::Length)) {
            return self.judge_domain(kind, ended);
        }
        // A rank that has lost the store gets no result.
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
        if let Said::Commit(result) = &first.said {
            self.judge_windows(ended, result.as_ref().ok())?;
            let entered = told.iter().filter(|it| it.registered).count();
            let wrong = entered > 0 && first.said.refusal().is_some() && result.is_err();
            ensure!(!wrong, "{entered} of {} members registered: {result:?}", told.len());
        }
        if let Said::Commit(Ok(agreed)) = &first.said {
            self.judge_mapping(kind, agreed)?;
        }
        self.judge_blame(kind, &first.said, &told)
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
                Unmapped::Failed { rank, .. } => {
                    *rank == culprit && (cannot || trouble.silences_past_budgets())
                }
                Unmapped::NoHandle { .. } | Unmapped::NoPeerAccess { .. } => false,
            },
        };
        ensure!(fits, "under {trouble:?} on rank {culprit}, members {members:?}: {agreed:?}");
        Ok(())
    }

    /// If the members got a refusal, a poisoned group or undone plain registrations, checks that the trouble can cause
    /// this. If the result blames a rank, checks that this rank is the culprit, the rank that the trouble concerns. A
    /// few causes do not depend on the trouble, see [the invariants](self).
    pub(super) fn judge_blame(&self, kind: Kind, said: &Said, told: &[&Ended]) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.culprit);
        let members = self.members(kind);
        let inside = members.contains(&culprit);
        let affected = inside && members.len() > 1 || kind == Kind::Retire;
        // A rank that is in doubt does not retire segments, and does not allocate, as the others may have done.
        let parted = self.was_in_doubt(culprit, |kind| matches!(kind, Kind::Retire | Kind::Length));
        let parts = trouble.parts_pools() || self.keeps_memory() || parted;
        // A rank that is in doubt enqueues nothing more on the groups of the meeting, and the others do.
        let stops = self.was_in_doubt(culprit, |kind| kind.is_of_pool() && kind != Kind::Length);
        let wrong = |text: String| Violation(format!("under {trouble:?} on rank {culprit}: {text}"));
        let fit =
            |fits: bool, text: &dyn fmt::Display| fits.then_some(()).ok_or_else(|| wrong(text.to_string()));
        let may_miss = |missing: &[u32], circle: &[Waiting]| {
            !missing.is_empty()
                && (self.waits_in_other_domain(circle) || self.may_be_late(told, missing, circle))
        };
        let lost = |missing: &[u32]| trouble.silences_past_budgets() && missing == [culprit];
        let cannot_map = |rank: u32| trouble == Trouble::CannotMap && rank == culprit;
        if let Some(refusal) = said.rendezvous() {
            let differs = matches!(trouble, Trouble::MeetsOtherwise(_));
            let fits = match refusal {
                RendezvousRefusal::RendezvousTimeout { missing, circle, .. } => may_miss(missing, circle),
                RendezvousRefusal::MembersLost { missing, .. } => lost(missing),
                RendezvousRefusal::VersionMismatch { versions } => self.speaks_otherwise_alone(versions),
                RendezvousRefusal::SharingFailed { rank, .. } => cannot_map(*rank),
                RendezvousRefusal::RendezvousDuringCapture { ranks } => {
                    (trouble == Trouble::Capturing && *ranks == [culprit]) || differs
                }
                RendezvousRefusal::SubjectMismatch { .. }
                | RendezvousRefusal::SizeMismatch { .. }
                | RendezvousRefusal::OffsetMismatch { .. } => parts || affected && differs,
                _ => inside && differs,
            };
            return fit(fits, refusal);
        }
        if let Some(refusal) = said.exchange() {
            let fits = match refusal {
                ExchangeRefusal::ExchangeTimeout { missing, circle, .. } => may_miss(missing, circle),
                ExchangeRefusal::MembersLost { missing, .. } => lost(missing),
                ExchangeRefusal::VersionMismatch { versions } => self.speaks_otherwise_alone(versions),
                ExchangeRefusal::OpeningFailed { rank, .. } => cannot_map(*rank),
                _ => inside && matches!(trouble, Trouble::ExchangesOtherwise(_)),
            };
            return fit(fits, refusal);
        }
        if let Some(poison) = said.poison() {
            let fits = match poison {
                Poison::RegistrationFailed { rank, .. } => {
                    affected && matches!(trouble, Trouble::RegistrationFails(_)) && *rank == culprit
                }
                Poison::MembersLost { missing, .. } => match kind {
                    Kind::Plain(_) => inside && trouble.silences() && self.may_be_late(told, missing, &[]),
                    _ => lost(missing),
                },
                Poison::StoreLost { rank, .. } => inside && *rank == culprit && stops,
                Poison::RegistrationBlocked { .. } => affected && trouble.blocks_past_budgets(),
                // Possible if the culprit has skipped a commit without counting it, and then creates the group anew.
                // Its committed log begins again, and its next commit has the number of the skipped one, in which the
                // other members may still wait with the committed log of the old group.
                // Possible too for a group that is created after a retirement about which the culprit was in doubt.
                Poison::CommittedLogDiverged { .. } => affected && (trouble == Trouble::Absent || parted),
                Poison::WindowsUnsupported { .. } => affected && trouble == Trouble::SomeWithoutWindows,
                Poison::RetirementFailed { rank, .. } => {
                    trouble == Trouble::DeregistrationFails && *rank == culprit
                }
                _ => false,
            };
            return fit(fits, poison);
        }
        if let Said::Plain(Ok(Plain::Undone { rank, cause })) = said {
            let lacks = !self.scenario.has_plain_registration() && cause.contains("ncclCommRegister");
            let fits = trouble.forbids_plain() && *rank == culprit || lacks;
            return fit(fits, &format_args!("rank {rank} registers nothing: {cause}"));
        }
        let Some(refusal) = said.refusal() else { return Ok(()) };
        // Any refusal fits: the culprit has skipped a commit without counting it, so it meets the other members at
        // another point of its program.
        if trouble == Trouble::Absent && affected {
            return Ok(());
        }
        let fits = match refusal {
            Refusal::SyncTimeout { missing, circle, .. } => {
                let missing: Vec<u32> = missing.iter().map(|it| it.rank).collect();
                !missing.is_empty()
                    && self.is_told_the_generation(told, circle)
                    && missing.iter().all(|rank| members.contains(rank))
                    && self.may_be_late(told, &missing, circle)
            }
            Refusal::SegmentCountMismatch { .. }
            | Refusal::SegmentShapeMismatch { .. }
            | Refusal::AllocationDiverged { .. } => {
                affected && (trouble.parts_pools() || parted) || self.keeps_memory()
            }
            Refusal::MemberLost { rank, .. } => trouble.silences() && *rank == culprit,
            Refusal::EpochMismatch { .. } => trouble.delays() && !trouble.loses_store(),
            Refusal::GenerationMismatch { generations, .. } => {
                let culprits = Entry { value: 2, ranks: vec![culprit] };
                trouble == Trouble::ExtraDomain && generations.entries.contains(&culprits)
            }
            Refusal::MembersMismatch { what: MemberList::Domain, lists } => {
                matches!(trouble, Trouble::OtherDomain { .. }) && !lists.is_unanimous()
            }
            Refusal::VersionMismatch { versions } => self.speaks_otherwise_alone(versions),
            Refusal::RetirementMismatch { .. } | Refusal::SegmentInUse { .. } => parts,
            Refusal::SegmentPinned { graphs, .. } => {
                (trouble == Trouble::KeepsGraphs && !graphs.is_unanimous()) || parts
            }
            Refusal::PeerPrepareFailed { cause, .. }
                if kind == Kind::Retire && cause.contains("shares a window") =>
            {
                self.scenario.release >= 23003
            }
            Refusal::PeerPrepareFailed { rank, .. } => {
                trouble == Trouble::PrepareFails && *rank == culprit || parts
            }
            Refusal::CommitDuringCapture { ranks } => {
                matches!(trouble, Trouble::Capturing | Trouble::CapturingUndeclared) && *ranks == [culprit]
            }
            Refusal::CapabilityMismatch { values, .. } => {
                matches!(trouble, Trouble::OtherRelease | Trouble::OtherEnvironment)
                    && affected
                    && values.entries.iter().any(|side| side.ranks == [culprit])
            }
            Refusal::AddressSpaceExhausted { rank, .. } => {
                trouble == Trouble::AddressSpace && *rank == culprit
            }
            Refusal::MessagesOutstanding { from, to, sent, received, .. } => {
                trouble == Trouble::HalfSent && *from == culprit && to != from && *sent == received + 1
                    || stops && [*from, *to].contains(&culprit)
            }
            Refusal::CollectivesOutstanding { collectives, .. } => {
                (trouble == Trouble::HalfEnqueued || stops)
                    && collectives.entries.iter().any(|side| side.ranks == [culprit])
            }
            Refusal::QuiesceFailed { rank, .. } => {
                let rests_not = matches!(trouble, Trouble::NeverAtRest | Trouble::RestsLate);
                (rests_not || trouble.silences_past_budgets()) && *rank == culprit
            }
            _ => false,
        };
        fit(fits, refusal)?;
        self.judge_divergence(told, refusal).map_err(|Violation(what)| wrong(what))
    }

    /// Returns true if the trouble explains why these ranks are missing. If ranks lose the store, a missing rank is the
    /// culprit, which is cut off, or it [came late](Self::came_late), or it waits in a circle with the culprit.
    fn may_be_late(&self, told: &[&Ended], missing: &[u32], circle: &[Waiting]) -> bool {
        let trouble = self.scenario.trouble;
        if !trouble.loses_store() {
            return trouble.delays() || self.came_late(told, missing);
        }
        let is_cut_off = |rank: u32| matches!(trouble, Trouble::CutOff(..)) && self.scenario.is_culprit(rank);
        let others: Vec<u32> = missing.iter().copied().filter(|rank| !is_cut_off(*rank)).collect();
        circle.iter().any(|it| is_cut_off(it.rank)) || self.came_late(told, &others)
    }

    /// Returns true if every missing rank came late or has no result of the meeting. A rank came late if it began the
    /// meeting about `patience` after the first rank, or later. `patience` is the time that members wait for each
    /// other. Ranks can be late without a trouble too: with a slow store, a rank with few groups begins a meeting so
    /// early that the others come late.
    fn came_late(&self, told: &[&Ended], missing: &[u32]) -> bool {
        let first = told.iter().map(|it| it.span.begun).min().unwrap_or(0);
        // The other ranks need up to 8 messages to see that a rank has come. Each message takes up to `slowest` µs.
        let messages = 8 * self.scenario.slowest;
        let late = |it: &&Ended| {
            let deadline = Duration::from_micros(it.span.deadline);
            let patience = match it.span.meeting.kind {
                Kind::Meet(_) | Kind::Exchange(_) => deadline / 2,
                Kind::Length => length_patience(deadline),
                Kind::Commit(_) | Kind::Second(_) | Kind::Plain(_) | Kind::Retire => patience(deadline),
            };
            it.span.begun + messages >= first + patience.as_micros() as u64
        };
        told.iter().filter(|it| missing.contains(&it.rank)).all(late)
    }

    /// If a refusal says that the pools' histories differ, checks that it reports the first operation that differs.
    fn judge_divergence(&self, told: &[&Ended], refusal: &Refusal) -> Result<(), Violation> {
        let Some(divergence) = refusal.divergence() else { return Ok(()) };
        let Divergence::At { sequence, operations, .. } = divergence else {
            bail!("the first allocation that differs was not found: {refusal}");
        };
        let history = |ended: &&Ended| self.ranks[ended.rank as usize].history(ended.history);
        let histories: Vec<_> = told.iter().map(history).collect();
        let longest = histories.iter().map(Vec::len).max().unwrap_or(0);
        let parts = |at: &usize| histories.iter().any(|history| history.get(*at) != histories[0].get(*at));
        let first = (0..longest).find(parts);
        // Checked only if `told` has the results of all ranks that the refusal names. A dead rank has none, so its
        // history is unknown here.
        let named: usize = operations.entries.iter().map(|entry| entry.ranks.len()).sum();
        ensure!(
            told.len() != named || (first == Some(*sequence as usize) && !operations.is_unanimous()),
            "histories part at {first:?}: {refusal}"
        );
        Ok(())
    }

    /// Returns true if the devices have little memory and a group was poisoned. Some ranks may then keep memory that
    /// others free, so allocations may fail on some ranks only.
    fn keeps_memory(&self) -> bool {
        self.scenario.scarce && self.ended.iter().any(|it| it.said.poison().is_some())
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
