//! Checks that a meeting (an agreement among ranks) ends with one of these results only if the trouble of the run, or
//! another known cause, explains it:
//!
//! - A refusal: the meeting has changed nothing, or a commit has left out segments.
//! - A [poisoned](symm_mem::Poison) group, whose members may have different windows.
//! - Undone plain registrations (`ncclCommRegister`): a member could not register its segments, so the others undo
//!   their registrations.
//!
//! The *trouble* is the fault of the run, or the difference between ranks. The *culprit* is the rank that it concerns.
//! Further terms, such as *circle of waits*, are defined in [`super`].

use std::{fmt, time::Duration};
use symm_agreement::{
    Divergence, Entry, MemberList, Plain, Poison, Refusal, Waiting, exchange::ExchangeRefusal,
    length_patience, patience, rendezvous::RendezvousRefusal,
};

use crate::{
    results::{Ended, Kind, MeetingResult},
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    world::World,
};

/// The circumstances of a meeting whose result reports a refusal or a poisoned group. They decide whether the trouble
/// explains this result.
struct Circumstances<'a> {
    world: &'a World,
    kind: Kind,
    /// The ends of the meeting on the members that have got a result.
    told: &'a [&'a Ended],
    members: Vec<u32>,
    /// The culprit is a member of the meeting.
    inside: bool,
    /// The trouble may concern members of the meeting other than the culprit: the culprit is one of several members.
    affected: bool,
    /// In this run, the culprit did not learn the result of a retirement or of an agreement on a length. So it has not
    /// retired the segments, or has not allocated, although the other ranks may have done so.
    missed_change: bool,
    /// The histories of the ranks' pools may differ.
    pools_may_differ: bool,
    /// In this run, the culprit did not learn the result of a commit, a plain registration or a retirement. This has
    /// poisoned groups on the culprit. So it enqueues no more collectives and messages on these groups, while the other
    /// members do.
    culprit_stopped: bool,
}

impl World {
    /// If the members got a refusal, a poisoned group or undone plain registrations, checks that this result has a
    /// valid cause: the trouble, or one of the few causes that do not depend on the trouble (see [the
    /// invariants](crate::oracle)). In most of these checks, a rank that the result blames must be the culprit. `told`
    /// are the ends of the meeting on the members that have got a result.
    pub(crate) fn judge_blame(
        &self,
        kind: Kind,
        said: &MeetingResult,
        told: &[&Ended],
    ) -> Result<(), Violation> {
        let (trouble, culprit) = (self.scenario.trouble, self.scenario.culprit);
        let circumstances = || Circumstances::of(self, kind, told);
        let wrong = |text: String| Violation(format!("under {trouble:?} on rank {culprit}: {text}"));
        let fit =
            |fits: bool, text: &dyn fmt::Display| fits.then_some(()).ok_or_else(|| wrong(text.to_string()));
        if let Some(refusal) = said.rendezvous() {
            return fit(circumstances().explain_rendezvous(refusal), refusal);
        }
        if let Some(refusal) = said.exchange() {
            return fit(circumstances().explain_exchange(refusal), refusal);
        }
        if let Some(poison) = said.poison() {
            return fit(circumstances().explain_poison(poison), poison);
        }
        if let MeetingResult::Plain(Ok(Plain::Undone { rank, cause })) = said {
            let lacks = !self.scenario.has_plain_registration() && cause.contains("ncclCommRegister");
            let fits = trouble.forbids_plain() && *rank == culprit || lacks;
            return fit(fits, &format_args!("rank {rank} registers nothing: {cause}"));
        }
        let Some(refusal) = said.refusal() else { return Ok(()) };
        // Under `Absent`, the culprit has skipped a commit without counting it. So each of its later commits meets a
        // commit that its peers make at another point of their programs, and any refusal may result.
        if trouble == Trouble::Absent && circumstances().affected {
            return Ok(());
        }
        fit(circumstances().explain_refusal(refusal), refusal)?;
        self.judge_divergence(told, refusal).map_err(|Violation(what)| wrong(what))
    }

    /// Returns true if one of these reasons explains why the ranks in `missing` are missing in a meeting:
    /// - The trouble delays ranks, and makes no rank lose the store.
    /// - All missing ranks [came late](Self::came_late). Under [`Trouble::CutOff`], the culprit may also be missing
    ///   because it could not reach the store.
    /// - The trouble is [`Trouble::CutOff`], and `circle`, the circle of waits, contains the culprit.
    fn may_be_late(&self, told: &[&Ended], missing: &[u32], circle: &[Waiting]) -> bool {
        let trouble = self.scenario.trouble;
        if !trouble.loses_store() {
            return trouble.delays() || self.came_late(told, missing);
        }
        let is_cut_off = |rank: u32| matches!(trouble, Trouble::CutOff(..)) && self.scenario.is_culprit(rank);
        let others: Vec<u32> = missing.iter().copied().filter(|rank| !is_cut_off(*rank)).collect();
        circle.iter().any(|it| is_cut_off(it.rank)) || self.came_late(told, &others)
    }

    /// Returns true if every rank in `missing` came late or has no result of the meeting. The time for which members
    /// wait for each other is the *patience*. A rank came late if it began the meeting about one patience after the
    /// first rank, or later. Ranks can be late even if the trouble delays none: if the store is slow, a rank with few
    /// groups may begin a meeting so early that the other members come late.
    fn came_late(&self, told: &[&Ended], missing: &[u32]) -> bool {
        let first = told.iter().map(|it| it.span.begun).min().unwrap_or(0);
        // A rank has come once the store has its record. Before that, the rank makes three requests, which enter the
        // meeting in its list of places, compare the member lists, and post the record. With a new connection, a
        // request takes up to 8 messages. Each message takes up to `slowest` µs.
        let messages = 3 * 8 * self.scenario.slowest;
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

    /// If a refusal says that the histories of the pools (their logs of operations) differ, checks that it reports the
    /// first operation that differs.
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

    /// Returns true if the devices have little memory and a group was poisoned. A poisoned group may keep memory on
    /// some ranks that others free. So allocations may fail on some ranks only.
    fn keeps_memory(&self) -> bool {
        self.scenario.scarce && self.ended.iter().any(|it| it.said.poison().is_some())
    }
}

impl<'a> Circumstances<'a> {
    /// Returns true if some members came late to a commit of the group, which [`World::came_late`] has to explain. The
    /// other members then make the group anew, before the late ones know of it.
    fn has_timed_out(&self) -> bool {
        let timed_out = |it: &&Ended| matches!(it.said.refusal(), Some(Refusal::SyncTimeout { .. }));
        let mut timed_out = self.world.ended.iter().filter(timed_out);
        timed_out.any(|it| it.span.meeting.kind.group() == self.kind.group())
    }

    fn of(world: &'a World, kind: Kind, told: &'a [&'a Ended]) -> Self {
        let (trouble, culprit) = (world.scenario.trouble, world.scenario.culprit);
        let members = world.members(kind);
        let inside = members.contains(&culprit);
        let missed_change = world.was_in_doubt(culprit, |kind| matches!(kind, Kind::Retire | Kind::Length));
        Self {
            world,
            kind,
            told,
            inside,
            affected: inside && members.len() > 1,
            members,
            missed_change,
            pools_may_differ: trouble.makes_pools_differ() || world.keeps_memory() || missed_change,
            culprit_stopped: world.was_in_doubt(culprit, |kind| kind.is_of_pool() && kind != Kind::Length),
        }
    }

    /// Returns true if `missing` is not empty, and one of these holds:
    /// - There is a [reason](World::may_be_late) why these ranks are missing.
    /// - The ranks in `circle` wait for each other, [because the ranks disagree about the
    ///   domain](World::waits_in_other_domain).
    fn may_miss(&self, missing: &[u32], circle: &[Waiting]) -> bool {
        !missing.is_empty()
            && (self.world.waits_in_other_domain(circle)
                || self.world.may_be_late(self.told, missing, circle))
    }

    /// Returns true if the culprit alone is `missing`, and the trouble can make the other members [miss its
    /// outcome](Trouble::loses_outcome).
    fn is_lost(&self, missing: &[u32]) -> bool {
        self.world.scenario.trouble.loses_outcome() && missing == [self.world.scenario.culprit]
    }

    fn cannot_map(&self, rank: u32) -> bool {
        self.world.scenario.trouble == Trouble::CannotMap && self.world.scenario.is_culprit(rank)
    }

    /// Returns true if the circumstances explain the refusal of a rendezvous, in which members map each other's memory.
    fn explain_rendezvous(&self, refusal: &RendezvousRefusal) -> bool {
        let (trouble, culprit) = (self.world.scenario.trouble, self.world.scenario.culprit);
        let differs = matches!(trouble, Trouble::MeetsOtherwise(_));
        match refusal {
            RendezvousRefusal::RendezvousTimeout { missing, circle, .. } => self.may_miss(missing, circle),
            RendezvousRefusal::MembersLost { missing, .. } => self.is_lost(missing),
            RendezvousRefusal::VersionMismatch { versions } => self.world.speaks_otherwise_alone(versions),
            RendezvousRefusal::SharingFailed { rank, .. } => self.cannot_map(*rank),
            RendezvousRefusal::RendezvousDuringCapture { ranks } => {
                (trouble == Trouble::Capturing && *ranks == [culprit]) || differs
            }
            RendezvousRefusal::SubjectMismatch { .. }
            | RendezvousRefusal::SizeMismatch { .. }
            | RendezvousRefusal::OffsetMismatch { .. } => self.pools_may_differ || self.affected && differs,
            _ => self.inside && differs,
        }
    }

    /// Returns true if the circumstances explain the refusal of an exchange, in which members agree on one-sided
    /// transfers.
    fn explain_exchange(&self, refusal: &ExchangeRefusal) -> bool {
        let trouble = self.world.scenario.trouble;
        match refusal {
            ExchangeRefusal::ExchangeTimeout { missing, circle, .. } => self.may_miss(missing, circle),
            ExchangeRefusal::MembersLost { missing, .. } => self.is_lost(missing),
            ExchangeRefusal::VersionMismatch { versions } => self.world.speaks_otherwise_alone(versions),
            ExchangeRefusal::OpeningFailed { rank, .. } => self.cannot_map(*rank),
            _ => self.inside && matches!(trouble, Trouble::ExchangesOtherwise(_)),
        }
    }

    /// Returns true if the circumstances explain that a group was poisoned.
    fn explain_poison(&self, poison: &Poison) -> bool {
        let (trouble, culprit) = (self.world.scenario.trouble, self.world.scenario.culprit);
        match poison {
            Poison::RegistrationFailed { rank, .. } => {
                self.affected && matches!(trouble, Trouble::RegistrationFails(_)) && *rank == culprit
            }
            Poison::MembersLost { missing, .. } => match self.kind {
                Kind::Plain(_) => {
                    self.inside && trouble.silences() && self.world.may_be_late(self.told, missing, &[])
                }
                _ => self.is_lost(missing),
            },
            Poison::StoreLost { rank, .. } => self.inside && *rank == culprit && self.culprit_stopped,
            Poison::RegistrationBlocked { .. } => self.affected && trouble.blocks_registration(),
            // The committed log of a group lists its committed and retired segments. The log of the culprit can differ
            // from those of the other members in two cases:
            // - The culprit has skipped a commit without counting it, and then creates the group again. Its log of the
            //   group is then empty, and its next commit has the number of the skipped commit. The other members may
            //   still wait in that commit, with the log of the old group.
            // - The group is created after a retirement whose result the culprit did not learn.
            Poison::CommittedLogDiverged { .. } => {
                self.affected && (trouble == Trouble::Absent || self.missed_change)
            }
            Poison::WindowsUnsupported { .. } => self.affected && trouble == Trouble::SomeWithoutWindows,
            Poison::RetirementFailed { rank, .. } => {
                trouble == Trouble::DeregistrationFails && *rank == culprit
            }
            _ => false,
        }
    }

    /// Returns true if the circumstances explain the refusal of a commit, a retirement or an agreement on a length.
    fn explain_refusal(&self, refusal: &Refusal) -> bool {
        let (trouble, culprit) = (self.world.scenario.trouble, self.world.scenario.culprit);
        match refusal {
            Refusal::SyncTimeout { missing, circle, .. } => {
                let missing: Vec<u32> = missing.iter().map(|it| it.rank).collect();
                !missing.is_empty()
                    && self.world.is_timeout_right(self.told, circle)
                    && missing.iter().all(|rank| self.members.contains(rank))
                    && self.world.may_be_late(self.told, &missing, circle)
            }
            Refusal::SegmentCountMismatch { .. }
            | Refusal::SegmentShapeMismatch { .. }
            | Refusal::AllocationDiverged { .. } => {
                self.affected && (trouble.makes_pools_differ() || self.missed_change)
                    || self.world.keeps_memory()
            }
            Refusal::MemberLost { rank, .. } => trouble.silences() && *rank == culprit,
            Refusal::EpochMismatch { .. } => {
                trouble.delays() && !trouble.loses_store() || self.has_timed_out()
            }
            Refusal::GenerationMismatch { generations, .. } => {
                let culprits = Entry { value: 2, ranks: vec![culprit] };
                trouble == Trouble::ExtraDomain && generations.entries.contains(&culprits)
            }
            Refusal::MembersMismatch { what: MemberList::Domain, lists } => {
                matches!(trouble, Trouble::OtherDomain { .. }) && !lists.is_unanimous()
            }
            Refusal::VersionMismatch { versions } => self.world.speaks_otherwise_alone(versions),
            Refusal::RetirementMismatch { .. } | Refusal::SegmentInUse { .. } => self.pools_may_differ,
            Refusal::SegmentPinned { graphs, .. } => {
                (trouble == Trouble::KeepsGraphs && !graphs.is_unanimous()) || self.pools_may_differ
            }
            Refusal::PeerPrepareFailed { cause, .. }
                if self.kind == Kind::Retire && cause.contains("shares a window") =>
            {
                self.world.scenario.release >= 23003
            }
            Refusal::PeerPrepareFailed { rank, .. } => {
                trouble == Trouble::PrepareFails && *rank == culprit || self.pools_may_differ
            }
            Refusal::CommitDuringCapture { ranks } => {
                matches!(trouble, Trouble::Capturing | Trouble::CapturingUndeclared) && *ranks == [culprit]
            }
            Refusal::CapabilityMismatch { values, .. } => {
                matches!(trouble, Trouble::OtherRelease | Trouble::OtherEnvironment)
                    && self.affected
                    && values.entries.iter().any(|side| side.ranks == [culprit])
            }
            Refusal::AddressSpaceExhausted { rank, .. } => {
                trouble == Trouble::AddressSpace && *rank == culprit
            }
            Refusal::MessagesOutstanding { from, to, sent, received, .. } => {
                trouble == Trouble::HalfSent && *from == culprit && to != from && *sent == received + 1
                    || self.culprit_stopped && [*from, *to].contains(&culprit)
            }
            Refusal::CollectivesOutstanding { collectives, .. } => {
                (trouble == Trouble::HalfEnqueued || self.culprit_stopped)
                    && collectives.entries.iter().any(|side| side.ranks == [culprit])
            }
            Refusal::QuiesceFailed { rank, .. } => {
                let rests_not = matches!(trouble, Trouble::NeverAtRest | Trouble::RestsLate);
                (rests_not || trouble.loses_outcome()) && *rank == culprit
            }
            _ => false,
        }
    }
}
