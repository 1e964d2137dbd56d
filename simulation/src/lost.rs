//! Checks of ranks that lose the store and go on with their programs, and of the other members of their meetings. A
//! *meeting* is one agreement among ranks. In it, each member posts a *record*, its message to the others, in the
//! store. A member is *in doubt* if it does not know the result, and the others may have acted on its record. Further
//! terms are defined in [`super`].
//!
//! - Only a rank that the trouble separates from the store reports a failure of the store, and only for a meeting that
//!   it was in during the separation. If it begins a meeting during the separation, it reports this failure and no
//!   other result.
//! - A rank that reports a failure of the store is in doubt if it has asked the store to store its record. `judge_loss`
//!   lists two exceptions. A rank in doubt [poisons](symm_mem::Poison) all groups whose windows may depend on the
//!   result, and its error says so. A rank that is not in doubt poisons no group.
//! - If the store has no record from a rank that reports a failure of the store, the other members wait in vain for
//!   this record. Their error names this rank as missing, or reports a circle of waits.
//! - If the other members get a result that reports no missing records, a rank that reports a failure of the store has
//!   asked the store to store its record.
//! - A member that has not lost the store is reported as missing only if it came late, for example because it waited
//!   for a rank that lost the store.
//! - Segments become windows on all members of a group, or on none. A group that is poisoned on one member gets no new
//!   windows on the others.

use bootstrap::store::StoreError;
use process_group::group::GroupId;
use symm_agreement::{Agreed, Poison};
use symm_mem::ErrorKind;

use crate::{
    ends::LOST,
    results::{Ended, Kind, MeetingResult},
    trouble::Trouble,
    violation::{Violation, ensure},
    world::World,
};

impl World {
    /// Returns true if the trouble separates this rank from the store.
    pub(crate) fn loses_store(&self, rank: u32) -> bool {
        match self.scenario.trouble {
            Trouble::CutOff(..) => self.scenario.is_culprit(rank),
            Trouble::StoreDies(_) => true,
            _ => false,
        }
    }

    /// Returns true if this rank was in doubt at the end of a meeting of a kind for which `is_kind` returns true.
    pub(crate) fn was_in_doubt(&self, rank: u32, is_kind: impl Fn(Kind) -> bool) -> bool {
        let mut meetings = self.ended.iter().filter(|it| it.rank == rank && it.said.is_in_doubt());
        meetings.any(|it| is_kind(it.span.meeting.kind))
    }

    /// Returns the members of a meeting of this kind whose records are in the store. `record_prefix` is the key of a
    /// record without the rank at its end. Returns `None` if `record_prefix` is `None`, or if the trouble makes no rank
    /// lose the store.
    pub(crate) fn arrived(&self, kind: Kind, record_prefix: Option<&str>) -> Option<Vec<u32>> {
        let record_prefix = record_prefix.filter(|_| self.scenario.trouble.loses_store())?;
        let has_posted = |rank: &u32| self.network.value(&format!("{record_prefix}/{rank}")).is_some();
        Some(self.members(kind).into_iter().filter(has_posted).collect())
    }

    /// Checks the members of a meeting that have lost the store, and the results `told` of the other members.
    pub(crate) fn judge_lost(&self, kind: Kind, ended: &[&Ended], told: &[&Ended]) -> Result<(), Violation> {
        let is_outside =
            |it: &&&Ended| self.outage.as_ref().is_none_or(|outage| !outage.contains(&it.span.begun));
        for it in told.iter().filter(|it| self.loses_store(it.rank)) {
            ensure!(is_outside(&it), "rank {} gets a result that it cannot have read: {it:?}", it.rank);
        }
        for lost in ended.iter().filter(|it| it.said.store_failed()) {
            self.judge_loss(kind, lost, told).map_err(|Violation(what)| {
                Violation(format!("rank {} has lost the store: {what}: {lost:?}", lost.rank))
            })?;
        }
        Ok(())
    }

    /// Checks the end of a meeting on a rank that has lost the store, against the results `told` of the other members.
    fn judge_loss(&self, kind: Kind, lost: &Ended, told: &[&Ended]) -> Result<(), Violation> {
        let Some(outage) = self.outage.as_ref().filter(|_| self.loses_store(lost.rank)) else {
            return Err(Violation("the store has not failed".to_owned()));
        };
        let is_in = lost.span.begun < outage.end && outage.start <= lost.ended;
        ensure!(is_in, "it could reach the store at all times of the meeting");
        // A rank is in doubt exactly if it has posted its record, with two exceptions:
        // - In the agreement on a plain registration, a rank is always in doubt, because it has registered before.
        // - In a commit, the members may have refused already, and only search for the difference between their pools.
        //   Then a rank that has posted its record need not be in doubt.
        let only_explains = matches!(kind, Kind::Commit(_) | Kind::Second(_))
            && told.iter().all(|it| it.said.refusal().is_some_and(|refusal| refusal.divergence().is_some()));
        let in_doubt = lost.said.is_in_doubt();
        ensure!(
            in_doubt == (lost.posted || matches!(kind, Kind::Plain(_))) || lost.posted && only_explains,
            "in doubt: {in_doubt}"
        );
        let [before, after] = lost.poisoned;
        ensure!(
            after == if in_doubt { lost.groups } else { before },
            "of {} groups, {before} were poisoned, and now {after}",
            lost.groups
        );
        for it in told {
            match (it.said.missing(), &it.arrived) {
                (None, _) => ensure!(lost.posted, "rank {} needs its record: {:?}", it.rank, it.said),
                (Some((missing, in_circle)), Some(arrived)) => ensure!(
                    in_circle || missing.contains(&lost.rank) || arrived.contains(&lost.rank),
                    "rank {} does not miss it: {:?}",
                    it.rank,
                    it.said
                ),
                (Some(_), None) => {}
            }
        }
        Ok(())
    }

    /// Checks the error that a rank reports after its meeting has ended with `said`, a failure of the store. `groups`
    /// are the groups whose logs of committed segments the meeting uses. The error must say whether the failure poisons
    /// them. If one of them is poisoned because a member has lost the store, the poison must name `rank` as this
    /// member.
    pub(crate) fn judge_error(
        &self,
        rank: u32,
        kind: Kind,
        said: &MeetingResult,
        groups: &[GroupId],
    ) -> Result<(), Violation> {
        let pool = self.ranks[rank as usize].pool_of(kind);
        let error = || Some(StoreError::Argument(LOST.to_owned()));
        let named =
            groups.iter().copied().filter(|group| kind != Kind::Retire || pool.poison(*group).is_some());
        let named = named.collect();
        let error = match said.clone() {
            MeetingResult::Commit(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::Refused, error(), named)
            }
            MeetingResult::Plain(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::Refused, error(), named)
            }
            MeetingResult::Retire(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::Refused, error(), named)
            }
            MeetingResult::Length(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::Refused, error(), named)
            }
            MeetingResult::Meet(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::RendezvousRefused, error(), named)
            }
            MeetingResult::Exchange(Err(ending)) => {
                ErrorKind::of_ending(ending, ErrorKind::ExchangeRefused, error(), named)
            }
            _ => return Ok(()),
        };
        let poisons = said.is_in_doubt() && !groups.is_empty();
        ensure!(
            matches!(error, ErrorKind::Store { poisoned, .. } if poisoned == poisons),
            "rank {rank} has lost the store in {kind:?}, which poisons its groups: {poisons}, and reports {error}"
        );
        let is_named =
            |poison: &Poison| !matches!(poison, Poison::StoreLost { rank: named, .. } if *named != rank);
        ensure!(
            groups.iter().filter_map(|group| pool.poison(*group)).all(|poison| is_named(&poison)),
            "rank {rank} has lost the store, and its groups name another rank"
        );
        Ok(())
    }

    /// Checks which members have begun to register windows in a commit:
    /// - If the group was poisoned on a member before the end of the commit: no member. The commit must then fail.
    /// - If the commit has made windows: all members.
    ///
    /// `agreed` is the result of the commit, or `None` if it has failed.
    pub(crate) fn judge_windows(&self, ended: &[&Ended], agreed: Option<&Agreed>) -> Result<(), Violation> {
        let registered = ended.iter().filter(|it| it.registered).count();
        if let Some(poisoned) = ended.iter().find(|it| it.poisoned[0] > 0) {
            ensure!(
                registered == 0 && agreed.is_none(),
                "rank {} was poisoned, and {registered} members register: {agreed:?}",
                poisoned.rank
            );
        }
        let makes = agreed.is_some_and(|agreed| agreed.segments > 0 && agreed.without.is_none());
        ensure!(
            !makes || registered == ended.len(),
            "{registered} of {} members have registered: {agreed:?}",
            ended.len()
        );
        Ok(())
    }
}
