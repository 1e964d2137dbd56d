//! Groups with additional ranks.
//!
//! The members of a group and the new ranks meet as the ranks of a new job do, under a new name or epoch. The new group
//! has its own health monitor, so it does not depend on the old group. Only the new communicator is made from the old
//! group's communicator.

use std::time::Duration;

use bootstrap::runtime;

use super::{
    Builder, GroupErrorKind, KindResult, ProcessGroup, Result,
    form::{Readiness, stay_away},
    group_parts::GroupParts,
    meeting::{Meeting, follow_up},
    source::Source,
    store_keys::name_of_epoch,
};
use crate::{
    comm::{CommError, Communicator, Config, MemberSetup, UniqueId},
    error_text, profile,
    store::{Deadline, PrefixStore, Store},
};

/// The operation in errors, and the name of its range in profiles.
const GROW: &str = "grow";

/// The key of the unique id in the new group's part of the store.
const UNIQUE_ID: &str = "grow/unique_id";

/// The id and the size of the group that a rank grows. `None` for new ranks.
type Old = Option<(String, usize)>;

impl ProcessGroup {
    /// Makes a larger group. The members of this group keep their ranks, and new ranks follow. Collective: all members
    /// call `grow`, and every new rank calls [`Builder::join_grown`]. As for a new job, all builders have the same
    /// name, epoch, [world size](Builder::world_size) and settings. The name or the epoch must differ from this
    /// group's. Rank, device and library are taken from this group, and so is the store unless the builder has one. The
    /// builder's [timeout](Builder::timeout) limits the wait for the other ranks. Choose a short one: new ranks do not
    /// learn why `grow` has failed on a member before it met them.
    ///
    /// Errors and the files of dumps tell the two groups apart by their names. With the old name and epoch 1, the new
    /// group is `world@1` there (`world_1` in the names of files).
    ///
    /// A subgroup grows too. The ranks of the new job are then the ranks in the subgroup, not those of the old job. An
    /// error that names the old group has ranks of the old job.
    ///
    /// Needs NCCL 2.29.2. This group stays usable. Its members destroy it when they no longer need it. If this rank
    /// hosts this group's store and the builder has no other, this rank hosts the store for the new group too.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::GroupError};
    /// // Two ranks join a group of four. Members:
    /// # fn member(world: ProcessGroup) -> Result<ProcessGroup, GroupError> {
    /// let larger = world.grow(ProcessGroup::builder().name("six").world_size(6))?;
    /// world.destroy(larger.timeout())?;
    /// # Ok(larger) }
    /// // New ranks, here with the variables of a launcher; RANK is 4 or 5:
    /// # fn newcomer() -> Result<ProcessGroup, GroupError> {
    /// let larger = ProcessGroup::builder().name("six").world_size(6).join_grown()?;
    /// # Ok(larger) }
    /// ```
    ///
    /// # Errors
    /// - [`GroupErrorKind::Joined`] if this group was joined from PyTorch.
    /// - [`GroupErrorKind::Comm`] with [`CommError::Missing`] if NCCL is older than 2.29.2, before NCCL is called; with
    ///   [`CommError::Adopted`] if the communicator is adopted; with [`CommError::Suspended`] if the communicator is
    ///   suspended.
    /// - [`GroupErrorKind::Setting`] if the builder's settings do not fit this group; [`GroupErrorKind::WorkTimeout`]
    ///   if work of this member is not done by the builder's timeout.
    /// - [`GroupErrorKind::Grow`] if the ranks are not the members of one group, followed by new ranks.
    /// - [`GroupErrorKind::Absent`] with a new rank that dies before the processes of its host monitor each other. All
    ///   other ranks get this error, within the longer of the builder's timeout and 15 s. [`GroupErrorKind::Lost`] if
    ///   the new rank dies later.
    /// - Those of [`Builder::build`]. Nothing has changed after [`GroupErrorKind::Absent`],
    ///   [`GroupErrorKind::Disagreement`], and [`GroupErrorKind::Unmade`] for a rank that could not take part. If NCCL
    ///   fails or a rank is lost during the call, this group is unusable too, and all members must abort it.
    #[doc(alias = "ncclCommGrow")]
    pub fn grow(&self, builder: Builder) -> Result<Self> {
        self.in_call(GROW, self.grow_group(builder))
    }

    fn grow_group(&self, builder: Builder) -> Result<Self> {
        let _range = profile::range(GROW, &self.name, 0);
        self.agrees()?;
        self.counter.health.check()?;
        self.communicator.check_growth()?;
        if let Some(problem) = self.misfit(&builder) {
            return Err(builder.call(GROW).error(GroupErrorKind::Setting { problem }));
        }
        if self.counter.health.check_work().is_ok() {
            self.quiesce(Deadline::after(builder.settings.time_limit()))?;
        }
        let host = self.host.as_ref().filter(|_| builder.store.is_none());
        let store = builder.store.clone().unwrap_or_else(|| self.root.clone());
        let builder = builder.rank(self.rank).context(self.context()).nccl(self.nccl()).store(store);
        let context = builder.call(GROW);
        let group = builder.meet(Source::Grown(Some(self))).map_err(|error| context.error(error))?;
        Ok(match host {
            Some(host) => group.hosting_with(Some(host.store.clone()), host.grown.clone()),
            None => group,
        })
    }

    /// Returns the reason why this group cannot grow with `builder`, if there is one.
    fn misfit(&self, builder: &Builder) -> Option<String> {
        let size = builder.world_size.unwrap_or(self.size());
        if size <= self.size() {
            return Some(format!(
                "world size {size}, expected more than {}, the members that grow",
                self.size()
            ));
        }
        if builder.rank.is_some_and(|rank| rank != self.rank) {
            return Some(format!("the rank is {}, which a member keeps", self.rank));
        }
        let is_same = name_of_epoch(&builder.name, builder.epoch) == *self.name;
        is_same.then(|| format!("epoch {} is that of the group that grows: take another one", builder.epoch))
    }
}

impl Builder {
    /// Joins a group that grows, as a new rank. Collective, together with [`ProcessGroup::grow`] of the members.
    /// The [rank](Self::rank) is at least the number of members.
    ///
    /// # Errors
    /// As for [`ProcessGroup::grow`]. If `grow` fails on a member before it meets the others, or one side has another
    /// name or epoch, this rank waits until its timeout. It then gets [`GroupErrorKind::Absent`] with all ranks that
    /// did not come.
    pub fn join_grown(self) -> Result<ProcessGroup> {
        let context = self.call("join_grown");
        self.meet(Source::Grown(None)).map_err(|error| context.error(error))
    }
}

impl GroupParts {
    /// Makes this group's communicator by growing the communicator of `old`, together with all ranks of this group.
    /// `old` is `None` on new ranks.
    pub(super) fn grow(
        &self,
        old: Option<&ProcessGroup>,
        setup: &MemberSetup<'_>,
        config: Config,
        deadline: Deadline,
    ) -> KindResult<Communicator> {
        let pending = old.map(|old| old.counter.health.link_grown(&self.health));
        let all = Meeting {
            health: Some(&self.health),
            is_larger: false,
            job: &self.job,
            what: "the grown communicator",
            name: format!("{}grow", self.path),
            rank: self.ranks[self.rank],
            ranks: &self.ranks,
        };
        let records: Vec<(u32, Old)> =
            all.gather(old.map(|old| (old.id().to_string(), old.size())), deadline)?;
        compare(&records).map_err(|problem| GroupErrorKind::Grow { problem })?;
        let deadline = follow_up(deadline);
        let all = all.part("the grown communicator", "make");
        let made = match Communicator::prepare(setup, self.ranks.len(), &self.config(config)) {
            Ok(made) => made,
            Err(error) => return Err(all.refuse(error.into(), deadline)),
        };
        // The loss of a rank aborts the communicator, which ends the NCCL call.
        self.health.guard(&made.abort_handle());
        let parent = old.map(|old| &old.communicator);
        let mut has_acted = false;
        let grown = all.make(Readiness::ready(), deadline, |_, until, go_on| {
            has_acted = true;
            // The end of the old group aborts its communicator, and that abort waits until NCCL's call has returned. So
            // the end of the old group must also end the wait below.
            let mut go_on = || {
                go_on()?;
                old.map_or(Ok(()), |old| old.counter.health.check())
            };
            let id = match parent {
                Some(parent) if self.rank == 0 => {
                    let id = parent.growth_id(until)?;
                    self.job.set(UNIQUE_ID, id.as_bytes())?;
                    id
                }
                _ => wait_for_id(&self.job, &made, until, &mut go_on)?,
            };
            let id = (self.rank == 0 || parent.is_none()).then_some(id);
            made.grow_from(parent, id, until, go_on).or_else(|error| match error {
                GroupErrorKind::Comm(error) => self.health.explain_making(Err(error)),
                error => Err(error),
            })
        });
        grown.inspect_err(|error| {
            if has_acted {
                // The old communicator is unusable too, because NCCL may have used its connections, on this rank or
                // another.
                parent.into_iter().chain([&made]).for_each(|it| it.give_up(&error_text(error)));
            }
        })?;
        if let Some(pending) = pending {
            pending.detach();
            // Only this rank may know that a member has left the old group.
            self.health.check().inspect_err(|_| stay_away(&self.job, &self.path, all.rank))?;
        }
        Ok(made)
    }
}

/// Waits for the unique id of rank 0.
fn wait_for_id(
    job: &PrefixStore,
    made: &Communicator,
    until: Deadline,
    go_on: &mut dyn FnMut() -> KindResult<()>,
) -> KindResult<UniqueId> {
    const PAUSE: Duration = Duration::from_millis(5);
    while !job.check(&[UNIQUE_ID])? {
        go_on()?;
        if until.expired() {
            let (communicator, waited) = (made.name().to_owned(), until.waited());
            let waiting_for = "the unique id of rank 0".into();
            return Err(CommError::DeadlineExceeded { communicator, waiting_for, waited }.into());
        }
        runtime::sleep(PAUSE);
    }
    Ok(UniqueId::try_from(&*job.get(UNIQUE_ID, until)?)?)
}

/// Checks that the first ranks are all members of one group, and that all ranks after them are new.
fn compare(records: &[(u32, Old)]) -> Result<(), String> {
    let Some((_, Some((id, size)))) = records.first() else {
        return Err("rank 0 is new, expected a member of the group that grows".into());
    };
    for (rank, record) in records {
        let is_member = (*rank as usize) < *size;
        match record {
            Some((other, _)) if other != id => {
                return Err(format!("rank {rank} grows group {other}, but rank 0 group {id}"));
            }
            Some(_) if !is_member => return Err(format!("rank {rank} is no member of group {id}")),
            None if is_member => {
                return Err(format!("rank {rank} is new, but group {id} has {size} members"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, option, prelude::*, sample::select};

    proptest! {
        /// `compare` accepts all members of one group followed by new ranks, and nothing else.
        #[test]
        fn the_members_come_first_and_new_ranks_behind_them(
            records in vec(option::of((select(vec!["1.0", "2.0"]), 1..4usize)), 1..6),
        ) {
            let records: Vec<Old> =
                records.into_iter().map(|old| old.map(|(id, size)| (id.to_owned(), size))).collect();
            let expected = records[0].as_ref().is_some_and(|(id, size)| {
                records.iter().enumerate().all(|(rank, record)| match record {
                    Some((other, _)) => rank < *size && other == id,
                    None => rank >= *size,
                })
            });
            prop_assert_eq!(compare(&(0..).zip(records).collect::<Vec<_>>()).is_ok(), expected);
        }
    }
}
