//! Groups of some of a group's ranks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bootstrap::{
    agreement::{Decision, Protocol, Report, Verdict},
    wire::wire_enum,
};
use nccl_sys::Feature;

use super::{
    GroupError, GroupId, Placement, ProcessGroup, Request, Result, SplitError, SplitPlan,
    meeting::{Meeting, follow_up},
    plan::{self, SplitRecord, Subgroups},
    seat::Seat,
};
use crate::{
    comm::{self, Config},
    messages, profile,
    store::{Deadline, Store},
};

/// The agreement on subgroups. The first member takes their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Split;

/// A member's part in taking the numbers of the subgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Numbers {
    /// Those from `first` on are theirs.
    Taken {
        first: u64,
    },
    Failed {
        problem: String,
    },
    /// The first member takes them.
    Waits,
}
wire_enum!(Numbers { 0 => Taken { first }, 1 => Failed { problem }, 2 => Waits {} });

/// The reason why there is no split.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    /// The requests do not fit together.
    Requests(SplitError),
    /// This rank of the job has taken no numbers.
    NoNumbers { rank: u32, problem: String },
}
wire_enum!(Refusal { 0 => Requests(error), 1 => NoNumbers { rank, problem } });

impl Refusal {
    fn error(self, group: &str) -> GroupError {
        let group = group.to_owned();
        match self {
            Self::Requests(source) => GroupError::Split { group, source },
            Self::NoNumbers { rank, problem } => {
                GroupError::Unmade { group, what: "a subgroup", rank: rank as usize, problem }
            }
        }
    }
}

impl Protocol for Split {
    const PROTOCOL: bootstrap::wire::Protocol = messages::PROTOCOL;
    type Record = SplitRecord;
    type Plan = Subgroups;
    type Outcome = Numbers;
    /// The subgroups, and the number of the first one.
    type Agreed = (Subgroups, u64);
    type Refusal = Refusal;

    fn decide(records: &[(u32, SplitRecord)]) -> Decision<Self> {
        match plan::agree(records) {
            Ok(plan) => Decision::Act { plan },
            Err(error) => Decision::Refused { refusal: Refusal::Requests(error) },
        }
    }

    fn is_final(outcome: &Numbers) -> bool {
        *outcome != Numbers::Waits
    }

    fn judge(plan: &Subgroups, reports: &[(u32, Report<Numbers>)]) -> Verdict<Self> {
        let (rank, problem) = match reports.first() {
            Some((_, Report::Outcome(Numbers::Taken { first }))) => {
                return Verdict::Agreed { agreed: (plan.clone(), *first) };
            }
            Some((rank, Report::Outcome(Numbers::Failed { problem }))) => (*rank, problem.clone()),
            other => (other.map_or(0, |(rank, _)| *rank), "it took no numbers in time".to_owned()),
        };
        Verdict::Failed { refusal: Refusal::NoNumbers { rank, problem } }
    }
}

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
    /// - [`GroupError::Absent`], [`GroupError::NotAgreed`] and [`GroupError::Split`], the same on every member
    ///   that came. Nothing has changed.
    /// - [`GroupError::WorkTimeout`], and [`GroupError::Comm`] for an error that this member finds on its own
    ///   before it meets the others. For them it is then absent.
    /// - [`GroupError::MemberFailed`] with this rank if the store failed while the others may have agreed. The
    ///   group has ended.
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
        // This rank reports its own errors before it meets the others, who would otherwise wait for it inside
        // NCCL.
        let _range = profile::range("split", &self.name, 0);
        self.agrees("split")?;
        let meeting = self.meeting("the split", "split");
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
        let (Subgroups { plan, name }, first, [met, exchanged]) =
            self.subgroups(&meeting, record, deadline)?;
        let deadline = follow_up(deadline);
        let started = |mut group: Self| {
            group.startup.met(met, exchanged);
            group
        };
        let placement = plan.placement(self.rank);
        let seat = placement.map(|placement| {
            let seat = self.seat(&plan, placement, &name, &meeting.name, &config);
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
                    Some(started(seat.take(vigil, id(placement), communicator, follow_up(deadline))?))
                }
                _ => None,
            });
        }
        let (Some((_unborn, vigil, seat)), Some(placement)) = (seat, placement) else { return Ok(None) };
        seat.init(vigil, id(placement), self.nccl(), self.context(), config, deadline).map(started).map(Some)
    }

    /// Agrees on the subgroups. Returns the number of the first one, and the time until the members had met and that for
    /// the numbers.
    fn subgroups(
        &self,
        meeting: &Meeting<'_>,
        record: SplitRecord,
        deadline: Deadline,
    ) -> Result<(Subgroups, u64, [Duration; 2])> {
        let (began, mut met, mut failed) = (Instant::now(), Duration::ZERO, None);
        let take = |subgroups: &Subgroups, _, _: &dyn Fn() -> bool| {
            met = began.elapsed();
            if self.rank != 0 {
                return Numbers::Waits;
            }
            let count = i64::try_from(subgroups.plan.groups().len()).unwrap_or(i64::MAX);
            match self.numbers.add("groups", count) {
                Ok(last) => Numbers::Taken { first: (last - count + 1).unsigned_abs() },
                Err(error) => {
                    let problem = crate::chain(&error);
                    failed = Some(error);
                    Numbers::Failed { problem }
                }
            }
        };
        let agreed = meeting.run::<Split>(record, deadline, take)?;
        let (subgroups, first) = agreed.map_err(|refusal| match failed {
            Some(error) => error.into(),
            None => refusal.error(&self.name),
        })?;
        Ok((subgroups, first, [met, began.elapsed() - met]))
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
        Seat {
            name: format!("{name}[{}]", placement.group).into(),
            rank: placement.rank,
            ranks: members.iter().map(|member| member.rank).collect(),
            members,
            numbers: self.numbers.clone(),
            job: self.job.clone(),
            path: format!("{meeting}/{}/", placement.group),
            terms: self.terms,
            messages,
            followers: self.followers.clone(),
            recorder: self.counter.track.recorder().clone(),
            desk: self.desk.clone(),
            watch: self.watch.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first member's outcome decides, with or without those of the others.
    #[test]
    fn the_first_member_takes_the_numbers() {
        let record = |color| {
            let request = Request::Color { color: Some(color), key: 0 };
            SplitRecord { request, name: "tp".into() }
        };
        let Decision::Act { plan } = Split::decide(&[(4, record(0)), (6, record(1))]) else {
            panic!("the requests fit together");
        };
        assert_eq!((&*plan.name, plan.plan.groups().len()), ("tp", 2));
        for other in [Report::Pending, Report::Outcome(Numbers::Waits), Report::Late] {
            let judge = |first| Split::judge(&plan, &[(4, first), (6, other.clone())]);
            let taken = judge(Report::Outcome(Numbers::Taken { first: 9 }));
            assert_eq!(taken, Verdict::Agreed { agreed: (plan.clone(), 9) });
            let failed = Report::Outcome(Numbers::Failed { problem: "no store".into() });
            for (first, why) in [(failed, "no store"), (Report::Late, "in time")] {
                let Verdict::Failed { refusal } = judge(first) else { panic!("there are no numbers") };
                let text = refusal.error("world").to_string();
                assert!(text.contains("for rank 4") && text.contains(why), "{text}");
            }
        }
        assert!(Split::is_final(&Numbers::Taken { first: 1 }) && !Split::is_final(&Numbers::Waits));
    }
}
