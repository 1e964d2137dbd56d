//! Checks of ranks that wait for each other, and of ranks that disagree about the members of the domain. The terms
//! *meeting*, *domain*, *trouble* and *culprit* are defined in [`super`].
//!
//! In a *circle of waits*, each rank waits in a meeting for another rank of the circle, which waits in a different
//! meeting. So none of these waits can succeed.

use std::collections::BTreeSet;
use symm_agreement::{Absentee, MeetingId, MeetingKind, Refusal, Waiting};

use crate::{
    results::{Ended, Kind},
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    world::World,
};

impl World {
    /// Checks the timeouts of ranks that waited in different meetings. If two ranks waited for each other for longer
    /// than the search for a circle of waits takes, at least one of them must get an error that lists the circle.
    /// Checks nothing if the trouble can silence a rank.
    pub(crate) fn judge_waits(&self) -> Result<(), Violation> {
        let trouble = self.scenario.trouble;
        if trouble.silences() {
            return Ok(());
        }
        let waited = self.ended.iter().filter_map(|it| match it.said.refusal() {
            Some(Refusal::SyncTimeout { missing, circle, .. }) if circle.is_empty() => Some((it, missing)),
            _ => None,
        });
        let waited: Vec<(&Ended, &Vec<Absentee>)> = waited.collect();
        let misses = |missing: &[Absentee], rank| missing.iter().any(|it| it.rank == rank);
        // Before it reports a timeout, a rank searches for a circle of waits: it reads the waits of all ranks twice
        // (see `look`), and counts only waits that are in both reads. The search needs up to 12 more messages to or
        // from the store. `messages` is the longest time in µs of the whole search.
        let messages = 2 * self.look() + 12 * self.scenario.slowest;
        for (at, (one, missing)) in waited.iter().enumerate() {
            for (other, others) in &waited[at + 1..] {
                let both = one.ended.min(other.ended).saturating_sub(one.span.begun.max(other.span.begun));
                if one.span.meeting != other.span.meeting
                    && misses(missing, other.rank)
                    && misses(others, one.rank)
                    && both > messages
                {
                    bail!(
                        "under {trouble:?}: two ranks wait for each other and are not told so: {one:?}, {other:?}"
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns the longest time in µs that a rank needs to read the waits of all ranks from the store. Each rank has a
    /// key there whose value lists the meetings in which it waits. The reading rank makes these requests, each with a
    /// message in both directions:
    /// - one that checks whether all keys exist
    /// - if some do not exist, one for each key, which checks this key
    /// - two that wait for the existing keys and read them
    pub(crate) fn look(&self) -> u64 {
        2 * (3 + self.ranks.len() as u64) * self.scenario.slowest
    }

    /// Returns true if a timeout with this circle of waits is the right error for the ranks `told`. Returns false in
    /// two cases, in which they should have got `Refusal::GenerationMismatch` instead:
    /// - The ranks of the circle wait in different generations of the domain: they have created it a different number
    ///   of times.
    /// - The trouble is [`Trouble::ExtraDomain`], `told` contains only the culprit (the rank with the trouble), and the
    ///   circle contains no rendezvous and no exchange.
    pub(crate) fn is_timeout_right(&self, told: &[&Ended], circle: &[Waiting]) -> bool {
        let generations = circle.iter().filter_map(|it| MeetingId::at(&it.place)).map(|it| it.generation);
        let alone = told.iter().all(|it| self.scenario.is_culprit(it.rank));
        // Under `ExtraDomain`, only the culprit has created the last generation of the domain. So it is alone in
        // meetings about pools, and gets the generation error. Exception: it gets a timeout if the circle contains a
        // rendezvous or an exchange, because their names contain no generation.
        let is_of_pools = circle.iter().all(|it| MeetingId::at(&it.place).is_some());
        let missed = self.scenario.trouble == Trouble::ExtraDomain && alone && is_of_pools;
        generations.collect::<BTreeSet<_>>().len() <= 1 && !missed
    }

    /// Returns true if the ranks disagree about the members of the domain, and a rank of the circle waits in a meeting
    /// of the whole domain. Ranks whose lists of members lack the waiting rank may have ended this meeting and gone on
    /// with their programs. So ranks may wait for each other in different meetings, although their programs have the
    /// same order.
    pub(crate) fn waits_in_other_domain(&self, circle: &[Waiting]) -> bool {
        let is_of_domain = |it: &Waiting| {
            let kind = MeetingId::at(&it.place).map(|meeting| meeting.kind);
            matches!(kind, Some(MeetingKind::Retire {} | MeetingKind::Length {}))
        };
        matches!(self.scenario.trouble, Trouble::OtherDomain { .. }) && circle.iter().any(is_of_domain)
    }

    /// Checks the results of a meeting of ranks that disagree about the members of the domain. If a rank A gets a
    /// result other than a refusal, every rank in A's list of members must get the same result, and must have A in its
    /// own list. The trouble must [explain](Self::judge_blame) each refusal, unless the rank only [came too
    /// late](Self::comes_after_next).
    pub(crate) fn judge_domain(&self, kind: Kind, ended: &[&Ended]) -> Result<(), Violation> {
        let world = self.ranks.len() as u32;
        for it in ended.iter().filter(|it| it.said.refusal().is_none()) {
            for rank in self.scenario.domain(it.rank, world) {
                let counted = self.scenario.domain(rank, world).contains(&it.rank);
                let same = ended.iter().any(|other| (other.rank, &other.said) == (rank, &it.said));
                ensure!(
                    counted && same,
                    "rank {} is told {:?}, which rank {rank} has not agreed to",
                    it.rank,
                    it.said
                );
            }
        }
        let mut met = ended.iter().filter(|it| !self.comes_after_next(it));
        met.try_for_each(|it| self.judge_blame(kind, &it.said, ended))
    }

    /// Returns true if `late` is a timeout of a rank, the late rank, that came too late to learn that the lists of
    /// members differ. The store has the member list of a meeting only until the next meeting of the same kind has
    /// ended. So for each rank that `late` reports as missing, both of these must hold:
    /// - Its own list lacks the late rank, so it has not waited for the late rank.
    /// - It has ended a later meeting of this kind before the late rank came.
    fn comes_after_next(&self, late: &Ended) -> bool {
        let Some(Refusal::SyncTimeout { missing, .. }) = late.said.refusal() else { return false };
        let world = self.ranks.len() as u32;
        // After it begins the meeting, the late rank needs up to 8 messages until it reads the decision. If a missing
        // rank ends a later meeting during this time, the late rank may also come too late.
        let looks = late.span.begun + 8 * self.scenario.slowest;
        let is_next = |it: &Ended| {
            it.span.meeting.kind == late.span.meeting.kind
                && it.span.meeting.round > late.span.meeting.round
                && it.ended <= looks
        };
        missing.iter().all(|it| {
            let counts = self.scenario.domain(it.rank, world).contains(&late.rank);
            !counts && self.ended.iter().any(|other| other.rank == it.rank && is_next(other))
        })
    }
}
