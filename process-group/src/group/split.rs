//! Groups of some of a group's ranks.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bootstrap::wire::Message;
use nccl_sys::Feature;

use super::{
    GroupError, GroupId, Placement, ProcessGroup, Request, Result, SplitPlan, builder,
    plan::{self, SplitRecord},
    seat::Seat,
};
use crate::{
    comm::{self, Config},
    profile,
    store::{Deadline, PrefixStore, Store, rendezvous},
};

impl ProcessGroup {
    /// Splits off subgroups, named `name[0]`, `name[1]` and so on. Collective: all members call it with the
    /// same name, and with the same lists or each with its color. The requests are compared before NCCL is
    /// called. Members without a subgroup get `None`.
    ///
    /// The subgroups' ids are consecutive in the order of the subgroups, and greater than those of all groups
    /// made before. From NCCL 2.18 the communicator is split from this group's, after this rank's work in it
    /// is done. Before that, each subgroup makes a new one over the store. Subgroups of a
    /// [lazy](super::Builder::lazy) group also make a new one, each when it is needed. Subgroups have this
    /// group's [policy](super::Builder::p2p) for messages.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::Request};
    /// # fn main() -> Result<(), process_group::group::GroupError> {
    /// # let world: ProcessGroup = ProcessGroup::builder().build()?;
    /// // Neighbouring pairs, and those of the same place in their pair.
    /// let pairs = world.split("tp", &Request::Color { color: Some(world.rank() as u32 / 2), key: 0 })?;
    /// let rows = world.split("dp", &Request::Lists(vec![vec![0, 2], vec![1, 3]]))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`GroupError::Absent`] and [`GroupError::Split`], the same on every member that came. Nothing has
    ///   changed.
    /// - [`GroupError::WorkTimeout`], and [`GroupError::Comm`] for an error that this member finds on its own
    ///   before it meets the others. For them it is then absent.
    /// - [`GroupError::Comm`] from NCCL itself, after which this group may be poisoned.
    /// - [`GroupError::Joined`].
    pub fn split(&self, name: &str, request: &Request) -> Result<Option<Self>> {
        self.split_with(name, request, self.communicator.config().clone(), self.timeout())
    }

    /// [`split`](Self::split) with settings for the new communicator and a deadline.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn split_with(
        &self,
        name: &str,
        request: &Request,
        config: Config,
        deadline: Deadline,
    ) -> Result<Option<Self>> {
        // Counted even if this attempt fails, so that the members' next splits meet under the same number.
        // This rank reports its own errors before it meets the others, who would otherwise wait for it inside
        // NCCL.
        let _range = profile::range("split", &self.name, 0);
        self.agrees("split")?;
        let meeting = format!("split/{}", self.splits.fetch_add(1, Ordering::AcqRel));
        self.counter.vigil.check()?;
        comm::settings("split", self.nccl(), &config)?;
        if !self.terms.lazy {
            self.communicator.check()?;
        }
        // Revoked work needs no wait.
        if self.counter.vigil.check_work().is_ok() {
            self.quiesce(deadline)?;
        }
        let record = SplitRecord { request: request.clone(), name: name.to_owned() };
        let (record, began) = (record.to_bytes(), Instant::now());
        let cards = self.counter.vigil.attend(&meeting, || {
            rendezvous(&self.store, &meeting, self.rank, self.size(), &record, deadline)
                .map_err(|error| self.explain(error, "the split"))
        })?;
        let met = began.elapsed();
        let (plan, name) = plan::agree(&cards, &self.global_ranks())
            .map_err(|source| GroupError::Split { group: self.name.to_string(), source })?;
        let first = self.number(&meeting, plan.groups().len(), deadline)?;
        let exchanged = began.elapsed();
        let started = |mut group: Self| {
            group.startup.met(met, exchanged - met);
            group
        };
        let placement = plan.placement(self.rank);
        let seat = placement.map(|placement| {
            let seat = self.seat(&plan, placement, &name, &meeting, &config);
            let vigil = seat.vigil();
            (self.counter.vigil.bear(&vigil), vigil, seat)
        });
        self.counter.vigil.check()?;
        let id =
            |placement: Placement| GroupId { uid: first + placement.group as u64, epoch: self.id().epoch };
        if self.nccl().has(Feature::SPLIT) && !self.terms.lazy {
            let (color, key) = placement.map_or((None, 0), |at| (Some(at.group as u32), at.rank as i32));
            let config =
                seat.as_ref().map_or_else(|| config.clone(), |(.., seat)| seat.config(config.clone()));
            let communicator = self.communicator.split(color, key, &config, deadline);
            let communicator = self.counter.vigil.explain_making(communicator)?;
            return Ok(match (seat, placement, communicator) {
                (Some((_unborn, vigil, seat)), Some(placement), Some(communicator)) => {
                    Some(started(seat.take(vigil, id(placement), communicator, deadline)?))
                }
                _ => None,
            });
        }
        let (Some((_unborn, vigil, seat)), Some(placement)) = (seat, placement) else { return Ok(None) };
        seat.init(vigil, id(placement), self.nccl(), self.context(), config, deadline).map(started).map(Some)
    }

    /// Returns the first of `count` numbers for new groups. Rank 0 takes them, and tells the others.
    fn number(&self, meeting: &str, count: usize, deadline: Deadline) -> Result<u64> {
        let key = format!("{meeting}/number");
        if self.rank == 0 {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let first = (self.numbers.add("groups", count)? - count + 1).unsigned_abs();
            self.store.set(&key, &first.to_le_bytes())?;
            return Ok(first);
        }
        let leader = self.members[0].rank;
        builder::read_number(
            &self.name,
            leader,
            &self.counter.vigil.hear(&key, leader, "the split", deadline)?,
        )
    }

    /// Returns this rank's place in a subgroup.
    fn seat(
        &self,
        plan: &SplitPlan,
        placement: Placement,
        name: &str,
        meeting: &str,
        config: &Config,
    ) -> Seat {
        let places = &plan.groups()[placement.group];
        let messages = self.messages.of_subgroup(self.terms.lazy, places.len(), config);
        let members: Arc<[_]> = places.iter().map(|place| self.members[*place].clone()).collect();
        let store = PrefixStore::new(&format!("{meeting}/{}", placement.group), Arc::new(self.store.clone()));
        Seat {
            name: format!("{name}[{}]", placement.group).into(),
            rank: placement.rank,
            ranks: members.iter().map(|member| member.rank).collect(),
            members,
            numbers: self.numbers.clone(),
            job: self.job.clone(),
            store,
            terms: self.terms,
            messages,
            followers: self.followers.clone(),
            recorder: self.counter.track.recorder().clone(),
            desk: self.desk.clone(),
            watch: self.watch.clone(),
        }
    }
}
