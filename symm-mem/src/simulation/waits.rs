//! What must hold of ranks that wait for each other, and of ranks that take different ones for the domain.

use std::collections::BTreeSet;

use super::{
    Violation,
    oracle::{Ended, Kind},
    trouble::Trouble,
    world::World,
};
use crate::agreement::{Absentee, Refusal, Waiting};

impl World {
    /// Whether ranks that gave up waiting for each other, each in another meeting, were told that they did.
    pub(super) fn judge_waits(&self) -> Result<(), Violation> {
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
        // Before one sees that the other waits, and has looked a second time, some messages go by.
        let messages = 32 * self.scenario.slowest;
        for (at, (one, missing)) in waited.iter().enumerate() {
            for (other, others) in &waited[at + 1..] {
                let meeting = |it: &Ended| (it.kind, it.epoch, it.round);
                let both = one.ended.min(other.ended).saturating_sub(one.begun.max(other.begun));
                if meeting(one) != meeting(other)
                    && misses(missing, other.rank)
                    && misses(others, one.rank)
                    && both > messages
                {
                    let what = "wait for each other and are not told so";
                    let (first, second) = (one.rank, other.rank);
                    return Err(Violation(format!(
                        "under {trouble:?}: ranks {first} and {second} {what}: {one:?}, {other:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether ranks that wait in different generations of the domain are told so: not that the others have not come.
    pub(super) fn is_told_the_generation(&self, told: &[&Ended], circle: &[Waiting]) -> bool {
        let generations = circle.iter().map(|it| it.place.pool.generation);
        let alone = told.iter().all(|it| self.scenario.is_culprit(it.rank));
        // No other rank has made the culprit's last one.
        let missed = self.scenario.trouble == Trouble::ExtraDomain && alone;
        generations.collect::<BTreeSet<_>>().len() <= 1 && !missed
    }

    /// Whether what a rank was told to be agreed in the whole domain is agreed with all ranks that it takes for the domain,
    /// where ranks take different ones for it.
    pub(super) fn judge_domain(&self, kind: Kind, ended: &[&Ended]) -> Result<(), Violation> {
        let world = self.ranks.len() as u32;
        for it in ended.iter().filter(|it| it.said.refusal().is_none()) {
            for rank in self.scenario.domain(it.rank, world) {
                let counted = self.scenario.domain(rank, world).contains(&it.rank);
                let same = ended.iter().any(|other| (other.rank, &other.said) == (rank, &it.said));
                if !(counted && same) {
                    let (one, said) = (it.rank, &it.said);
                    let what = format!("rank {one} is told {said:?}, which rank {rank} has not agreed to");
                    return Err(Violation(what));
                }
            }
        }
        let mut met = ended.iter().filter(|it| !self.comes_after_all(it, ended));
        met.try_for_each(|it| self.judge_blame(kind, &it.said, ended))
    }

    /// Whether a rank came to a meeting that all that it misses had left, who do not take it for one of the domain: they have
    /// removed what they wrote there.
    fn comes_after_all(&self, late: &Ended, ended: &[&Ended]) -> bool {
        let Some(Refusal::SyncTimeout { missing, .. }) = late.said.refusal() else { return false };
        let world = self.ranks.len() as u32;
        // Before a rank looks for a decision, it has sent a few messages.
        let looks = late.begun + 8 * self.scenario.slowest;
        missing.iter().all(|it| {
            let counts = self.scenario.domain(it.rank, world).contains(&late.rank);
            !counts && ended.iter().any(|other| other.rank == it.rank && other.ended <= looks)
        })
    }
}
