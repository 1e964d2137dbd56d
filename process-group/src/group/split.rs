//! Groups of some of a group's ranks.

use bootstrap::runtime::Instant;
use nccl_sys::Feature;

use super::{
    GroupErrorKind, GroupId, GroupSettings, Placement, ProcessGroup, Request, Result,
    group_parts::take_numbers,
    meeting::follow_up,
    split_plan::{Split, SplitRecord},
};
use crate::{profile, store::Deadline};

/// The operation in errors, and the name of its range in profiles.
const SPLIT: &str = "split";

impl ProcessGroup {
    /// Splits the group into subgroups, named `name[0]`, `name[1]` and so on. Collective: all members pass
    /// the same name, and either the same lists or each its own color. The requests are compared before NCCL
    /// is called. Members without a subgroup get `None`.
    ///
    /// The ids of the subgroups are consecutive, in the order of the subgroups, and greater than those of all
    /// groups made before. From NCCL 2.18, a subgroup's communicator is split from this group's communicator,
    /// after this rank's work in this group is done. With older releases, each subgroup makes a new
    /// communicator over the store. Subgroups of a [lazy](super::Builder::lazy) group also make new
    /// communicators, each when it is needed. Subgroups have this group's [settings](GroupSettings) and
    /// [policy](super::Builder::p2p) for messages; [`split_with`](Self::split_with) replaces settings.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::Request};
    /// # fn main() -> Result<(), process_group::group::GroupError> {
    /// # let world: ProcessGroup = ProcessGroup::builder().build()?;
    /// // Pairs of neighbouring ranks, and groups of ranks with the same position in their pair.
    /// let pairs = world.split("tp", &Request::Color { color: Some(world.rank() as u32 / 2), key: 0 })?;
    /// let rows = world.split("dp", &Request::Lists(vec![vec![0, 2], vec![1, 3]]))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`GroupErrorKind::Absent`], [`GroupErrorKind::NotAgreed`] and [`GroupErrorKind::Split`], the same on every
    ///   member that came. Nothing has changed.
    /// - [`GroupErrorKind::WorkTimeout`], and [`GroupErrorKind::Comm`] or [`GroupErrorKind::Store`] for an error that
    ///   this member finds before it meets the others. The other members then find this member absent.
    /// - [`GroupErrorKind::MemberFailed`] with this rank if the store failed while the others may have agreed.
    ///   The group has ended.
    /// - [`GroupErrorKind::Left`] if a member left this group meanwhile. On members that had already made the new
    ///   group, the new group fails with [`GroupErrorKind::MemberFailed`].
    /// - [`GroupErrorKind::Comm`] for an error of NCCL, after which this group's communicator may be poisoned.
    /// - [`GroupErrorKind::Joined`].
    pub fn split(&self, name: &str, request: &Request) -> Result<Option<Self>> {
        self.split_with(name, request, GroupSettings::new(), self.timeout())
    }

    /// Like [`split`](Self::split), with settings for the new group and a deadline. `settings` may be a
    /// [`Config`](crate::comm::Config) for the communicator. The new group inherits settings that are not
    /// set.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn split_with(
        &self,
        name: &str,
        request: &Request,
        settings: impl Into<GroupSettings>,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        self.in_call(SPLIT, self.split_group(name, request, settings.into(), deadline))
    }

    fn split_group(
        &self,
        name: &str,
        request: &Request,
        settings: GroupSettings,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        // This rank returns its own errors before it meets the other members, which would otherwise wait for
        // this rank inside NCCL.
        let _range = profile::range(SPLIT, &self.name, 0);
        self.agrees()?;
        let meeting = self.meeting("the split", "split");
        self.counter.health.check()?;
        let shared_settings = self.shared_settings.of_subgroup(settings);
        shared_settings.own.check(SPLIT, self.nccl())?;
        let config = shared_settings.own.communicator();
        self.refuse_suspended(SPLIT)?;
        if !self.shared_settings.lazy {
            self.communicator.check()?;
        }
        // Revoked work needs no wait.
        if self.counter.health.check_work().is_ok() {
            self.quiesce(deadline)?;
        }
        let began = Instant::now();
        // One number for each possible subgroup: there are at most as many subgroups as members.
        let taken = || Ok(take_numbers(&self.numbers, self.rank == 0, self.size())?);
        let number = self.counter.health.attend(taken)?;
        let numbered = began.elapsed();
        let began = Instant::now();
        let record = SplitRecord { request: request.clone(), name: name.to_owned(), number };
        let agreed = meeting.decide::<Split>(record, deadline)?;
        let (plan, first) = agreed.map_err(|source| GroupErrorKind::Split { source })?;
        let met = began.elapsed();
        let deadline = follow_up(deadline);
        let placement = plan.placement(self.rank);
        let parts = placement.map(|Placement { group, .. }| {
            let (name, path) = (format!("{name}[{group}]"), format!("{}/{group}/", meeting.name));
            let parts = self.group_parts(name, &plan.groups()[group], path, shared_settings);
            let id = GroupId { uid: first + group as u64, epoch: self.id().epoch };
            (self.counter.health.link_child(&parts.health), id, parts)
        });
        self.counter.health.check()?;
        let (mut group, pending) = if self.nccl().has(Feature::SPLIT) && !self.shared_settings.lazy {
            let (color, key) = placement.map_or((None, 0), |at| (Some(at.group as u32), at.rank as i32));
            let config =
                parts.as_ref().map_or_else(|| config.clone(), |(.., parts)| parts.config(config.clone()));
            let communicator = self.communicator.split(color, key, &config, deadline);
            let communicator = self.counter.health.explain_making(communicator)?;
            let (Some((pending, id, parts)), Some(communicator)) = (parts, communicator) else {
                return Ok(None);
            };
            (parts.take(id, communicator, follow_up(deadline))?, pending)
        } else {
            let Some((pending, id, parts)) = parts else { return Ok(None) };
            (parts.init(id, self.nccl(), self.context(), config, deadline)?, pending)
        };
        pending.detach();
        group.counter.health.check_made()?;
        group.startup.met(met, numbered);
        Ok(Some(group))
    }
}
