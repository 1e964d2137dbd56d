//! Suspending an idle group: all members release memory of its communicators, or none does.

use nccl_sys::Feature;

use super::{GroupErrorKind, KindResult, ProcessGroup, Result, meeting::Meeting};
use crate::{
    comm::{CommError, Communicator, refuse_inside_group},
    error_text, profile,
    store::{Deadline, StoreError},
};

/// The operations in errors, and the names of their ranges in profiles.
const SUSPEND: &str = "suspend";
const RESUME: &str = "resume";

/// A step on one communicator. Its arguments are a deadline, and a function whose error ends the wait.
type Step = fn(&Communicator, Deadline, &mut dyn FnMut() -> KindResult<()>) -> KindResult<()>;

impl ProcessGroup {
    /// Releases device memory of the group's communicators, including those for messages, until the group is
    /// [resumed](Self::resume). [`memory_statistics`](Communicator::memory_statistics) tells how much memory
    /// is released. Collective: all members suspend, or none does. Every member must have waited for its own
    /// work, and no other thread may use the group during the call. NCCL waits for all work on the device of
    /// each member.
    ///
    /// A suspended group refuses operations, splits and new communicators with [`CommError::Suspended`]. The
    /// group can be resumed, destroyed and aborted. It can also be [shrunk](Self::shrink): the survivors
    /// then make a new communicator over the store. The program's memory and its windows stay allocated.
    /// Messages on a [path](crate::Path) are not affected. The group does not notice launches of graphs
    /// that captured its operations. Do not launch such graphs before [`resume`](Self::resume): their
    /// kernels would access memory that is not mapped, which is an error of the device. After `resume` the
    /// graphs are valid again.
    ///
    /// Requires NCCL 2.29.7. Groups split from this one are suspended separately.
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, group::GroupError};
    /// # fn sleep(world: &ProcessGroup) -> Result<(), GroupError> {
    /// world.quiesce(world.timeout())?;
    /// world.suspend(world.timeout())?;
    /// // The released device memory can be used for other things.
    /// world.resume(world.timeout())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`GroupErrorKind::Comm`]: with [`CommError::Missing`] if NCCL is older than 2.29.7, before NCCL is
    ///   called; with [`CommError::Adopted`] if the communicator is adopted; with [`CommError::Suspended`] if
    ///   the group is suspended already.
    /// - [`GroupErrorKind::InFlight`] with the work of this member that is not done. The other members get
    ///   [`GroupErrorKind::Unmade`].
    /// - [`GroupErrorKind::Absent`] with the members that did not come. [`GroupErrorKind::NotAgreed`] if the absent
    ///   members wait for this member in another call.
    ///
    /// After these errors nothing has changed. If NCCL fails on a member, the group ends on all members with
    /// [`GroupErrorKind::MemberFailed`].
    #[doc(alias = "ncclCommSuspend")]
    pub fn suspend(&self, deadline: Deadline) -> Result<()> {
        self.in_call(SUSPEND, self.suspend_all(deadline))
    }

    fn suspend_all(&self, deadline: Deadline) -> KindResult<()> {
        let all = self.begin_step(SUSPEND, "the suspension")?;
        let _range = profile::range(SUSPEND, &self.name, 0);
        let communicators = self.communicators();
        let mut closed = Vec::new();
        let mut ready = communicators.iter().try_for_each(|communicator| {
            communicator.refuse_work(deadline)?;
            closed.push(*communicator);
            Ok(())
        });
        ready = ready.and_then(|()| self.idle());
        let step: Step = |communicator, until, go_on| communicator.suspend_while(until, go_on);
        let suspended = self.take_step(&all, &communicators, ready, deadline, step);
        suspended.inspect_err(|_| {
            // After a failure of NCCL the group has ended, and communicators may be suspended.
            if !self.counter.health.is_over() {
                closed.iter().for_each(|communicator| communicator.accept_work());
            }
        })
    }

    /// Allocates again the memory that [`suspend`](Self::suspend) has released. Collective: all members
    /// resume, or none does. The devices need as much free memory as was released.
    ///
    /// If NCCL fails to resume on a member, for example for lack of memory, the group ends on all members with
    /// [`GroupErrorKind::MemberFailed`]. It cannot be resumed again; make a new group.
    ///
    /// # Errors
    /// As for [`suspend`](Self::suspend), and [`GroupErrorKind::Comm`] with [`CommError::NotSuspended`].
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self, deadline: Deadline) -> Result<()> {
        self.in_call(RESUME, self.resume_all(deadline))
    }

    fn resume_all(&self, deadline: Deadline) -> KindResult<()> {
        let all = self.begin_step(RESUME, "the resumption")?;
        let _range = profile::range(RESUME, &self.name, 0);
        let communicators = self.communicators();
        let ready = communicators.iter().try_for_each(|communicator| Ok(communicator.check_suspended()?));
        let step: Step = |communicator, until, go_on| communicator.resume_while(until, go_on);
        self.take_step(&all, &communicators, ready, deadline, step)
    }

    /// Returns true if the group is [suspended](Self::suspend).
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.communicator.is_suspended()
    }

    /// Fails if the group is suspended.
    pub(super) fn refuse_suspended(&self, call: &'static str) -> KindResult<()> {
        if self.is_suspended() {
            return Err(CommError::Suspended { call, communicator: self.communicator.name().into() }.into());
        }
        Ok(())
    }

    /// Makes the checks that involve no other member, and returns the agreement for the step.
    fn begin_step(&self, call: &'static str, what: &'static str) -> KindResult<Meeting<'_>> {
        self.agrees()?;
        refuse_inside_group(call)?;
        self.nccl().api().require(Feature::SUSPEND).map_err(CommError::from)?;
        self.counter.health.check()?;
        Ok(self.meeting(what, call))
    }

    /// Returns all communicators of the group, in the order that all members use.
    fn communicators(&self) -> Vec<&Communicator> {
        let mut all = self.messages.in_order(self.rank);
        all.push(&self.communicator);
        all
    }

    /// Fails if this member's work is not done.
    fn idle(&self) -> KindResult<()> {
        let Some(work) = self.outstanding.settle().into_iter().next() else { return Ok(()) };
        Err(GroupErrorKind::InFlight { operation: work.operation(), sequence: work.sequence() })
    }

    /// Runs `step` on the communicators of all members. If one member is not `ready`, no member runs the
    /// step.
    fn take_step(
        &self,
        all: &Meeting<'_>,
        communicators: &[&Communicator],
        ready: KindResult<()>,
        deadline: Deadline,
        step: Step,
    ) -> KindResult<()> {
        if let Err(error) = ready {
            return Err(all.refuse(error, deadline));
        }
        let mut has_acted = false;
        let taken = self.make_together(all, deadline, |until, go_on| {
            has_acted = true;
            communicators.iter().try_for_each(|communicator| step(communicator, until, go_on))
        });
        taken.map_err(|error| if has_acted { self.end_step(error) } else { error })
    }

    /// Ends the group after the step has failed. Returns the error that ended the group.
    fn end_step(&self, error: GroupErrorKind) -> GroupErrorKind {
        let health = &self.counter.health;
        if health.is_over() {
            return health.reason(error);
        }
        let (rank, reason) = match &error {
            GroupErrorKind::Unmade { rank, problem, .. } => (*rank, problem.clone()),
            GroupErrorKind::Absent { ranks, .. } if !ranks.is_empty() => (ranks[0], error_text(&error)),
            GroupErrorKind::Store(StoreError::GivenUp { rank, .. }) => (*rank, error_text(&error)),
            _ => (self.global_rank(), error_text(&error)),
        };
        health.fail_for(rank, reason);
        health.reason(error)
    }
}
