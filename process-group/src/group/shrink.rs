//! Groups of the surviving members.
//!
//! All survivors must agree on who has survived. Otherwise a survivor could wait for ranks that do not wait for it. Each
//! survivor therefore joins an agreement whose member list is its own list of survivors. The agreement compares these
//! lists as soon as a second member comes.

use std::convert::Infallible;

use bootstrap::{
    Ranges,
    agreement::{OtherMembers, PlainProtocol},
    runtime::Instant,
    wire::{wire_enum, wire_struct},
};
use nccl_sys::Feature;

use super::{
    GroupErrorKind, GroupId, GroupSettings, KindResult, ProcessGroup, Result, ShrinkError,
    group_parts::take_numbers,
    meeting::{Meeting, different_lists, follow_up, id},
};
use crate::{
    comm::{self, CommError, ShrinkMode, check_excluded},
    messages, profile,
    store::Deadline,
};

/// The agreement of the survivors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shrink;

/// The state of a communicator that is to be shrunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// NCCL can shrink the communicator.
    Alive,
    /// NCCL can shrink the communicator after its work is given up.
    Hurt,
    /// The communicator no longer exists, or NCCL must not shrink it.
    Gone,
}
wire_enum!(State { 0 => Alive {}, 1 => Hurt {}, 2 => Gone {} });

/// The group as a survivor sees it, or as all survivors do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    /// The state of the survivor's communicator, or the worst among the survivors.
    state: State,
    /// True if the shrink is orderly, and the group has ended on no survivor.
    is_intact: bool,
    /// The number of the new group. Only the first survivor's number counts.
    number: u64,
}
wire_struct!(View { state, is_intact, number });

impl PlainProtocol for Shrink {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    /// Prevents the excluded members from reaching an agreement of their own under the same name. They also see whether
    /// they were excluded from a group that was intact.
    const KEEPS_RESULT: bool = true;
    type Record = View;
    type Agreed = View;
    type Refusal = Infallible;

    fn conclude(records: &[(u32, View)]) -> Result<View, Infallible> {
        let worst = records.iter().map(|(_, view)| view.state).max();
        let number = records.first().map(|(_, view)| view.number);
        Ok(View {
            state: worst.unwrap_or(State::Gone),
            is_intact: records.iter().all(|(_, view)| view.is_intact),
            number: number.unwrap_or_default(),
        })
    }
}

/// The operation in errors, and the name of its range in profiles.
const SHRINK: &str = "shrink";

impl ProcessGroup {
    /// Makes a group of this group's members without the `excluded` ones, which are ranks of this group. The remaining
    /// members keep their order. Collective among the survivors, which all pass the same list; the lists are compared
    /// before anything is made. The excluded members do not call this method, and may have died. After
    /// [`GroupErrorKind::Lost`] the survivors exclude the rank that the error names.
    ///
    /// A member is excluded only if all survivors name it. If survivors name different members, because they know
    /// of different losses, nothing is made, and each gets both lists. A list that joins the two may exclude a
    /// member that is alive: exclude a member only after an error has named it as lost, or if the program gives it up.
    ///
    /// An excluded member that is alive may take part in a later shrink of this group, if the shrink without it was
    /// [orderly](ShrinkMode::Orderly), the group had not ended, and a survivor of that shrink takes part in the later
    /// one too. Otherwise the survivors may take the member for dead, or not know that the group is to be shrunk again.
    /// In that case the member's next call of `shrink` fails with [`GroupErrorKind::Shrink`], so that the member learns
    /// of the group that was made without it. Its call after that may take part again.
    ///
    /// NCCL (from 2.27.3) shrinks the communicator if every survivor's communicator is usable. Otherwise the survivors
    /// make a new communicator over the store: for example after a loss, because a loss aborts the communicator, and
    /// always if the communicator is [adopted](comm::Communicator::adopt). [`startup`](Self::startup) tells how the new
    /// communicator was made. This group remains, and must be aborted. After an [orderly](ShrinkMode::Orderly) shrink
    /// all its members may destroy it instead.
    ///
    /// The survivors meet in the store. By default rank 0 hosts the store, so they cannot shrink the group after the
    /// death of rank 0. If rank 0 may die, host the store outside of the ranks: give the
    /// [builder](super::Builder::store) a store, or set `TORCHELASTIC_USE_AGENT_STORE=True` for a store of another
    /// process at `MASTER_ADDR` and `MASTER_PORT`.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, comm::ShrinkMode, group::{GroupError, GroupErrorKind}};
    /// # fn go_on(world: ProcessGroup, error: GroupError) -> Result<ProcessGroup, GroupError> {
    /// let GroupErrorKind::Lost { rank, .. } = error.kind() else { return Err(error) };
    /// let rest = world.shrink(&[*rank], ShrinkMode::AfterFailure)?;
    /// world.abort(rest.timeout())?;
    /// # Ok(rest) }
    /// ```
    ///
    /// # Errors
    /// - [`GroupErrorKind::Argument`] for an invalid list, before this rank meets the other survivors.
    /// - [`GroupErrorKind::Shrink`] if two survivors passed different lists, and [`GroupErrorKind::Absent`] with the
    ///   survivors that did not come before the deadline, although they may be alive. Every survivor that came gets the
    ///   same error. Nothing has changed, and all may try again. A member that comes after others have made a group
    ///   without it, as described above, also gets [`GroupErrorKind::Shrink`].
    /// - [`GroupErrorKind::Lost`] if another member has died, and must be excluded too.
    /// - [`CommError::Closed`] if this group was aborted meanwhile, and
    ///   [`StoreError::GivenUp`](crate::store::StoreError::GivenUp) if another survivor aborted it.
    /// - [`StoreError::HostDied`](crate::store::StoreError::HostDied) if the process that hosts the store has died.
    /// - [`GroupErrorKind::WorkTimeout`], in an orderly shrink, for work that is not done. [`GroupErrorKind::Comm`] for
    ///   an error of NCCL.
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(&self, excluded: &[usize], mode: ShrinkMode) -> Result<Self> {
        self.shrink_with(excluded, mode, GroupSettings::new(), self.timeout())
    }

    /// Like [`shrink`](Self::shrink), with settings for the new group and a deadline. `settings` may be a
    /// [`Config`](comm::Config) for the communicator. The new group inherits settings that are not set.
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
        self.in_call(SHRINK, self.shrink_group(excluded, mode, settings.into(), deadline))
    }

    fn shrink_group(
        &self,
        excluded: &[usize],
        mode: ShrinkMode,
        settings: GroupSettings,
        deadline: Deadline,
    ) -> Result<Self> {
        let _range = profile::range(SHRINK, &self.name, 0);
        self.agrees()?;
        let attempt = || self.meeting("the shrinking", "shrink");
        let shared_settings = self.shared_settings.of_subgroup(settings);
        if let Err(error) = self.prepare_shrink(&shared_settings.own, excluded, mode, deadline) {
            // Count this attempt, because the other survivors count it too, and find this rank absent. Exception: if
            // the group has ended, the others may wait in this attempt for this rank's next call.
            if !self.counter.health.is_over() {
                drop(attempt());
            }
            return Err(error);
        }
        let meeting = attempt();
        let config = shared_settings.own.communicator();
        let left: Vec<usize> = (0..self.size()).filter(|rank| !excluded.contains(rank)).collect();
        let mut excluded = excluded.to_vec();
        excluded.sort_unstable();
        let name = format!("{} without {}", self.name, Ranges(&excluded));
        // The key prefix of the new group is set below, when the group's number is known. The watch has reported
        // earlier losses to the new group's health. An earlier or later loss ends the meeting only if the lost rank is
        // in `left`.
        let mut parts = self.group_parts(name, &left, String::new(), shared_settings);
        let pending = self.counter.health.link_child(&parts.health);
        let state = match (self.communicator.check(), mode) {
            _ if self.counter.health.is_over() => State::Gone,
            // Only the owner of an adopted communicator may have NCCL shrink it.
            _ if self.communicator.is_adopted() || self.is_suspended() => State::Gone,
            (Ok(()), ShrinkMode::Orderly) => State::Alive,
            (Ok(()), ShrinkMode::AfterFailure) | (Err(CommError::Poisoned { .. }), _) => State::Hurt,
            (Err(_), _) => State::Gone,
        };
        let of_survivors = |meeting| Meeting { health: Some(&parts.health), ranks: &parts.ranks, ..meeting };
        let mut meeting = of_survivors(meeting);
        let began = Instant::now();
        let is_intact = mode == ShrinkMode::Orderly && !self.counter.health.is_over();
        let number = take_numbers(&self.numbers, parts.rank == 0, 1)?;
        let numbered = began.elapsed();
        let began = Instant::now();
        let agreed = loop {
            let mut others = None;
            let agreed =
                meeting.decide_beside::<Shrink>(View { state, is_intact, number }, deadline, &mut others);
            match others {
                Some(others) if agreed.is_err() && self.is_passed_over(&others, &parts.ranks) => {
                    meeting = of_survivors(attempt());
                }
                _ => break agreed,
            }
        };
        // This rank cannot know whether the others agreed. They may be about to shrink this group's communicator.
        if let Err(GroupErrorKind::MemberFailed { rank, reason, .. }) = &agreed
            && *rank == self.global_rank()
        {
            self.counter.health.fail(reason.clone());
        }
        let Ok(View { state: worst, number: uid, .. }) = agreed.map_err(|error| self.differ(error))?;
        let met = began.elapsed();
        let deadline = follow_up(deadline);
        parts.path = format!("{}/{uid}/", meeting.name);
        let id = GroupId { uid, epoch: self.id().epoch };
        let by_nccl = self.nccl().has(Feature::SHRINK) && worst != State::Gone;
        let mut group = if by_nccl {
            let mode = if worst == State::Hurt { ShrinkMode::AfterFailure } else { ShrinkMode::Orderly };
            let config = parts.config(config);
            let made = self.communicator.shrink(&excluded, mode, &config, deadline);
            // A loss that was noticed meanwhile has aborted this attempt. The caller may try again after that error.
            let made = self.counter.health.explain(parts.health.explain_making(made))?;
            parts.take(id, made, follow_up(deadline))?
        } else {
            parts.init(id, self.nccl(), self.context(), config, deadline)?
        };
        pending.detach();
        group.counter.health.check_made()?;
        group.startup.met(met, numbered);
        Ok(group)
    }

    /// Checks the arguments of a shrink. For an orderly shrink, also waits for this rank's work.
    fn prepare_shrink(
        &self,
        settings: &GroupSettings,
        excluded: &[usize],
        mode: ShrinkMode,
        deadline: Deadline,
    ) -> Result<()> {
        settings.check(SHRINK, self.nccl())?;
        check_excluded(self.communicator.place(), SHRINK, excluded).map_err(GroupErrorKind::of_argument)?;
        if mode == ShrinkMode::AfterFailure {
            return Ok(());
        }
        self.counter.health.check()?;
        // Revoked work needs no wait.
        if self.counter.health.check_work().is_ok() { self.quiesce(deadline) } else { Ok(()) }
    }

    /// Gives up the work that this rank has enqueued. Work that waits for other members ends before completion, and
    /// waits for that work return an error. The group accepts no further work, but can still be split, shrunk,
    /// destroyed and aborted. Local: every member that continues with this group must revoke the group too. Requires
    /// NCCL 2.28.7; see [`Communicator::revoke`](comm::Communicator::revoke).
    ///
    /// # Errors
    /// If the group is over: the error that ended it, such as [`GroupErrorKind::Lost`]. Otherwise
    /// [`GroupErrorKind::Comm`] with the errors of [`Communicator::revoke`](comm::Communicator::revoke).
    #[doc(alias = "ncclCommRevoke")]
    pub fn revoke(&self, deadline: Deadline) -> Result<()> {
        self.in_call("revoke", self.revoke_work(deadline))
    }

    fn revoke_work(&self, deadline: Deadline) -> KindResult<()> {
        let health = &self.counter.health;
        health.check()?;
        self.nccl().api().require(Feature::REVOKE).map_err(CommError::from)?;
        // These checks come first, because a refused call must not give up any work.
        comm::refuse_inside_group("ncclCommRevoke")?;
        self.communicator.shared().refuse_adopted("ncclCommRevoke")?;
        health.explain(self.communicator.check().map_err(GroupErrorKind::from))?;
        // Called before NCCL revokes the work, because work that NCCL has given up looks done.
        health.revoke(deadline);
        let all = std::iter::once(&self.communicator).chain(self.messages.communicators());
        let revoked: Vec<_> = all.map(|communicator| communicator.revoke(deadline)).collect();
        health.explain(revoked.into_iter().collect::<comm::Result<()>>().map_err(GroupErrorKind::from))
    }

    /// Returns true if this rank must skip the attempt of `others`, so that its next attempt has the number of their
    /// next one. There are three conditions. The others excluded this rank. Their attempt failed, or shrank an intact
    /// group. At least one of them is in `left`, the survivors in this rank's call: otherwise the others may not know
    /// that the group is to be shrunk once more. If the result is false, this rank's error reports their group.
    fn is_passed_over(&self, others: &OtherMembers<View>, left: &[usize]) -> bool {
        let is_known = |rank: &usize| others.members.contains(&id(*rank));
        !is_known(&self.global_rank())
            && left.iter().any(is_known)
            && others.agreed.is_none_or(|view| view.is_intact)
    }

    /// Converts the agreement's error for different member lists to [`GroupErrorKind::Shrink`]. Returns other errors
    /// unchanged.
    fn differ(&self, error: GroupErrorKind) -> GroupErrorKind {
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
        GroupErrorKind::Shrink { source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*, sample::select};

    proptest! {
        /// The worst state among the communicators decides how NCCL shrinks. The first survivor provides the number. The
        /// group is intact if it is so on all survivors.
        #[test]
        fn the_worst_state_and_the_first_number_count(
            views in vec((select(vec![State::Alive, State::Hurt, State::Gone]), any::<bool>(), any::<u64>()), 1..6),
        ) {
            let views = views.into_iter().map(|(state, is_intact, number)| View { state, is_intact, number });
            let views: Vec<_> = views.collect();
            let has = |wanted: &State| views.iter().any(|view| view.state == *wanted);
            let state = [State::Gone, State::Hurt, State::Alive].into_iter().find(has).unwrap();
            let agreed = View { state, is_intact: !views.iter().any(|view| !view.is_intact), number: views[0].number };
            prop_assert_eq!(Shrink::conclude(&(3..).zip(views).collect::<Vec<_>>()), Ok(agreed));
        }
    }
}
