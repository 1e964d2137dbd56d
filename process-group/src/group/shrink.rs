//! Groups of the surviving members.
//!
//! All survivors must agree on who has survived, or some would wait for ranks that wait for others. The survivors are
//! therefore the members of an agreement, which compares its member lists as soon as a second member comes.

use std::convert::Infallible;

use bootstrap::{Ranges, agreement::PlainProtocol, runtime::Instant, wire::wire_enum};
use nccl_sys::Feature;

use super::{
    GroupError, GroupId, GroupSettings, ProcessGroup, Result, ShrinkError,
    group_parts::take_numbers,
    meeting::{Meeting, different_lists, follow_up, id},
};
use crate::{
    comm::{self, CommError, ShrinkMode},
    messages, profile,
    store::Deadline,
};

/// The agreement of the survivors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shrink;

/// The state of a communicator that is to be shrunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// NCCL can shrink it.
    Alive,
    /// NCCL can shrink it after giving up its work.
    Hurt,
    /// It no longer exists.
    Gone,
}
wire_enum!(State { 0 => Alive {}, 1 => Hurt {}, 2 => Gone {} });

impl PlainProtocol for Shrink {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    /// Members that were left out must not agree under the name of the agreement that left them out.
    const KEEPS_MEMBERS: bool = true;
    /// The state of the communicator, and the number of the new group on the first survivor.
    type Record = (State, u64);
    /// The worst state, and the number.
    type Agreed = (State, u64);
    type Refusal = Infallible;

    fn conclude(records: &[(u32, (State, u64))]) -> Result<(State, u64), Infallible> {
        let worst = records.iter().map(|(_, (state, _))| *state).max();
        let number = records.first().map(|(_, (_, number))| *number);
        Ok((worst.unwrap_or(State::Gone), number.unwrap_or_default()))
    }
}

impl ProcessGroup {
    /// Makes a group of this group's members without the `excluded` ones, which are ranks of this group. The
    /// order of the members stays. Collective over the survivors, who all give the same list; the lists are
    /// compared before anything is made. The excluded members do not call, and may have died. After
    /// [`GroupError::Lost`] the survivors exclude the rank that it names.
    ///
    /// NCCL shrinks the communicator (2.27.3) if every survivor's is usable. Otherwise the survivors make a
    /// new one over the store, for example after a loss, which aborts the communicator, and always if the
    /// communicator is [adopted](comm::Communicator::adopt). [`startup`](Self::startup) tells which. This group stays, to be aborted. After an
    /// [orderly](ShrinkMode::Orderly) shrink it can also be destroyed by all its members.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, comm::ShrinkMode, group::GroupError};
    /// # fn go_on(world: ProcessGroup, error: GroupError) -> Result<ProcessGroup, GroupError> {
    /// let GroupError::Lost { rank, .. } = error else { return Err(error) };
    /// let rest = world.shrink(&[rank], ShrinkMode::AfterFailure)?;
    /// world.abort(rest.timeout())?;
    /// # Ok(rest) }
    /// ```
    ///
    /// # Errors
    /// - [`CommError::Argument`] for an invalid list, before the others are met.
    /// - [`GroupError::Shrink`] if two survivors gave different lists, and [`GroupError::Absent`] with the
    ///   survivors that did not come, the same on every one that came. Nothing has changed, and all may try
    ///   again. Members that come after others have made a group without them get [`GroupError::Shrink`] too.
    /// - [`GroupError::Lost`]: another member has died, and has to be excluded too.
    /// - [`CommError::Closed`] if this group was aborted meanwhile, and
    ///   [`StoreError::GivenUp`](crate::store::StoreError::GivenUp) if another survivor aborted it.
    /// - [`GroupError::WorkTimeout`], in an orderly shrink, for work that is not done. [`GroupError::Comm`]
    ///   from NCCL itself.
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(&self, excluded: &[usize], mode: ShrinkMode) -> Result<Self> {
        self.shrink_with(excluded, mode, GroupSettings::new(), self.timeout())
    }

    /// [`shrink`](Self::shrink) with settings for the new group and a deadline. `settings` may be a
    /// [`Config`](comm::Config) for the communicator. The group inherits those that are not set.
    ///
    /// # Errors
    /// As for [`shrink`](Self::shrink).
    pub fn shrink_with(
        &self,
        excluded: &[usize],
        mode: ShrinkMode,
        settings: impl Into<GroupSettings>,
        deadline: Deadline,
    ) -> Result<Self> {
        const CALL: &str = "shrink";
        let _range = profile::range(CALL, &self.name, 0);
        self.agrees(CALL)?;
        let attempt = || self.meeting("the shrinking", "shrink");
        let shared_settings = self.shared_settings.of_subgroup(settings.into());
        if let Err(error) = self.prepare_shrink(&shared_settings.own, excluded, mode, deadline) {
            // The others count the attempt too, and miss this rank. Exception: the group has ended. Then they may wait in
            // the attempt for this rank's next call.
            if !self.counter.health.is_over() {
                drop(attempt());
            }
            return Err(error);
        }
        let meeting = attempt();
        let config = shared_settings.own.communicator();
        let left: Vec<usize> = (0..self.size()).filter(|rank| !excluded.contains(rank)).collect();
        let name = format!("{} without {}", self.name, Ranges(excluded));
        // Its path is set when the group has its number. Its health monitor knows the losses that ended this group, and
        // a further one ends the meeting.
        let mut parts = self.group_parts(name, &left, String::new(), shared_settings);
        let unborn = self.counter.health.link_child(&parts.health);
        let state = match (self.communicator.check(), mode) {
            _ if self.counter.health.is_over() => State::Gone,
            // Only its owner may have NCCL shrink it.
            _ if self.communicator.is_adopted() || self.is_suspended() => State::Gone,
            (Ok(()), ShrinkMode::Orderly) => State::Alive,
            (Ok(()), ShrinkMode::AfterFailure) | (Err(CommError::Poisoned { .. }), _) => State::Hurt,
            (Err(_), _) => State::Gone,
        };
        let mut excluded = excluded.to_vec();
        excluded.sort_unstable();
        let meeting = Meeting { health: Some(&parts.health), ranks: &parts.ranks, ..meeting };
        let began = Instant::now();
        let number = take_numbers(&self.numbers, parts.rank == 0, 1)?;
        let numbered = began.elapsed();
        let began = Instant::now();
        let agreed = meeting.decide::<Shrink>((state, number), deadline);
        // In doubt. The others may be about to shrink this group's communicator.
        if let Err(GroupError::MemberFailed { rank, reason, .. }) = &agreed
            && *rank == self.global_rank()
        {
            self.counter.health.fail(reason.clone());
        }
        let Ok((worst, uid)) = agreed.map_err(|error| self.differ(error))?;
        let met = began.elapsed();
        let deadline = follow_up(deadline);
        parts.path = format!("{}/{uid}/", meeting.name);
        let id = GroupId { uid, epoch: self.id().epoch };
        let by_nccl = self.nccl().has(Feature::SHRINK) && worst != State::Gone;
        let mut group = if by_nccl {
            let mode = if worst == State::Hurt { ShrinkMode::AfterFailure } else { ShrinkMode::Orderly };
            let config = parts.config(config);
            let made = self.communicator.shrink(&excluded, mode, &config, deadline);
            // A loss that was noticed meanwhile has aborted the attempt. The caller may try again.
            let made = self.counter.health.explain(parts.health.explain_making(made))?;
            parts.take(id, made, follow_up(deadline))?
        } else {
            parts.init(id, self.nccl(), self.context(), config, deadline)?
        };
        drop(unborn);
        group.counter.health.check_made()?;
        group.startup.met(met, numbered);
        Ok(group)
    }

    /// Checks the arguments of a shrink, and for an orderly one waits for this rank's work.
    fn prepare_shrink(
        &self,
        settings: &GroupSettings,
        excluded: &[usize],
        mode: ShrinkMode,
        deadline: Deadline,
    ) -> Result<()> {
        const CALL: &str = "shrink";
        settings.check(CALL, self.nccl())?;
        self.communicator.place().excluded(CALL, excluded)?;
        if mode == ShrinkMode::AfterFailure {
            return Ok(());
        }
        self.counter.health.check()?;
        // Revoked work needs no wait.
        if self.counter.health.check_work().is_ok() { self.quiesce(deadline) } else { Ok(()) }
    }

    /// Gives up the work that this rank has enqueued. Work that waits for other members ends unfinished, and
    /// waits for it return an error. The group accepts no further work. It can still be split, shrunk,
    /// destroyed and aborted. Local: every member that goes on must revoke it too. Requires NCCL 2.28.7; see
    /// [`Communicator::revoke`](comm::Communicator::revoke).
    ///
    /// # Errors
    /// [`GroupError::Lost`]; [`GroupError::Comm`] with those of
    /// [`Communicator::revoke`](comm::Communicator::revoke).
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        let health = &self.counter.health;
        health.check()?;
        self.nccl().api().require(Feature::REVOKE).map_err(CommError::from)?;
        // A refused call must not give up any work.
        comm::refuse_inside_group("ncclCommRevoke")?;
        self.communicator.shared().refuse_adopted("ncclCommRevoke")?;
        health.explain(self.communicator.check().map_err(GroupError::from))?;
        // Before NCCL's call, because work that NCCL gives up looks done.
        health.revoke(deadline);
        let all = std::iter::once(&self.communicator).chain(self.messages.communicators());
        let revoked: Vec<_> = all.map(|communicator| communicator.revoke(deadline)).collect();
        health.explain(revoked.into_iter().collect::<comm::Result<()>>().map_err(GroupError::from))
    }

    /// Returns the error for survivors with different lists, in place of that of the agreement.
    fn differ(&self, error: GroupError) -> GroupError {
        let Some([(rank, left), (other, other_left)]) = different_lists(&error) else { return error };
        let place = |rank| self.ranks.iter().position(|of_job| *of_job == rank).unwrap_or_default();
        let excluded = |left: &[u32]| -> Vec<usize> {
            (0..self.size()).filter(|place| !left.contains(&id(self.ranks[*place]))).collect()
        };
        let source = ShrinkError::Differ {
            rank: place(rank),
            excluded: excluded(left),
            other: place(other),
            other_excluded: excluded(other_left),
        };
        GroupError::Shrink { group: self.name.to_string(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*, sample::select};

    proptest! {
        /// NCCL shrinks as the worst communicator allows. The first survivor gives the number.
        #[test]
        fn the_worst_state_and_the_first_number_count(
            records in vec((select(vec![State::Alive, State::Hurt, State::Gone]), any::<u64>()), 1..6),
        ) {
            let has = |wanted: &State| records.iter().any(|(state, _)| state == wanted);
            let worst = [State::Gone, State::Hurt, State::Alive].into_iter().find(has).unwrap();
            let number = records[0].1;
            prop_assert_eq!(Shrink::conclude(&(3..).zip(records).collect::<Vec<_>>()), Ok((worst, number)));
        }
    }
}
