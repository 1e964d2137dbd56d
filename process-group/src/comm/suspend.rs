//! Suspending an idle communicator: NCCL releases device memory until the communicator is resumed.

use std::{ffi::c_int, fmt};

use nccl_sys::{Feature, NCCL_SUSPEND_MEM};

use super::{CommError, Communicator, Result, call::call, call_guard::Kind, open_group, shared::Serving};
use crate::store::Deadline;

const SUSPEND: &str = "ncclCommSuspend";
const RESUME: &str = "ncclCommResume";

impl Communicator {
    /// Releases device memory that the communicator holds, until it is [resumed](Self::resume).
    /// [`memory_statistics`](Self::memory_statistics) returns the amount as `suspendable`. NCCL moves part of the
    /// contents to host memory. Addresses stay reserved. The program's own memory, including windows, is not touched.
    ///
    /// Collective: every rank makes this call. NCCL waits for all work on this rank's device. A suspended
    /// communicator refuses work, windows, splitting and shrinking with [`CommError::Suspended`]. Resuming,
    /// destroying and aborting it remain possible. Until the communicator is resumed, do not launch a graph that
    /// captured its operations: the kernels would access unmapped memory, which is a device error. NCCL does not
    /// check this. Needs NCCL 2.29.7.
    ///
    /// # Errors
    /// - [`CommError::Missing`] below 2.29.7; [`CommError::Adopted`] for an [adopted](Self::adopt) communicator;
    ///   [`CommError::Suspended`] if the communicator is suspended already; [`CommError::Revoked`]. These errors
    ///   change nothing.
    /// - [`CommError::Nccl`], for example with `NCCL_DISABLE_MEM_MANAGER=1`.
    /// - [`CommError::DeadlineExceeded`], which poisons the communicator.
    #[doc(alias = "ncclCommSuspend")]
    pub fn suspend(&self, deadline: Deadline) -> Result<()> {
        self.refuse_work(deadline)?;
        self.suspend_while(deadline, || Ok(()))
    }

    /// Allocates the memory again that [`suspend`](Self::suspend) has released, at the same addresses. Collective.
    ///
    /// # Errors
    /// [`CommError::Missing`] below 2.29.7; [`CommError::NotSuspended`]. [`CommError::Nccl`], for example if the
    /// device lacks memory, and [`CommError::DeadlineExceeded`] poison the communicator. Exception: after
    /// `ncclInvalidArgument` or `ncclInvalidUsage` the communicator is not poisoned, and still suspended.
    #[doc(alias = "ncclCommResume")]
    pub fn resume(&self, deadline: Deadline) -> Result<()> {
        self.check_suspended()?;
        self.resume_while(deadline, || Ok(()))
    }

    /// Returns true from the beginning of a [suspension](Self::suspend) to the end of [`resume`](Self::resume).
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.shared().guard.is_suspended()
    }

    /// Makes the communicator refuse work from now on. Fails if the communicator cannot be suspended. Local.
    pub(crate) fn refuse_work(&self, deadline: Deadline) -> Result<()> {
        open_group::refuse_inside(SUSPEND)?;
        self.shared().refuse_adopted(SUSPEND)?;
        self.nccl().api().require(Feature::SUSPEND)?;
        // This query fails if the environment has switched NCCL's memory manager off.
        self.memory_statistics(deadline)?;
        let guard = &self.shared().guard;
        let _entry = guard.enter(SUSPEND, Kind::Collective, Some(deadline))?;
        guard.set_suspended(true);
        Ok(())
    }

    /// Accepts work again. Called when NCCL has not suspended the communicator.
    pub(crate) fn accept_work(&self) {
        self.shared().guard.set_suspended(false);
    }

    /// Fails unless the communicator is suspended and can be resumed.
    pub(crate) fn check_suspended(&self) -> Result<()> {
        open_group::refuse_inside(RESUME)?;
        self.nccl().api().require(Feature::SUSPEND)?;
        match self.shared().guard.check(RESUME) {
            Ok(()) => Err(CommError::NotSuspended { call: RESUME, communicator: self.name().into() }),
            Err(CommError::Suspended { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Suspends a communicator after [`refuse_work`](Self::refuse_work). Calls `go_on` from time to time during the
    /// wait. An error of `go_on` ends the wait and poisons the communicator.
    ///
    /// # Errors
    /// Those of NCCL and of `go_on`.
    pub(crate) fn suspend_while<E: From<CommError> + fmt::Display>(
        &self,
        deadline: Deadline,
        go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let waiting_for = "the other ranks to suspend the communicator".into();
        let call = (SUSPEND, Kind::Suspended);
        Serving::begin(&self.shared, &self.service, call, waiting_for, |shared| {
            let flags = NCCL_SUSPEND_MEM as c_int;
            // SAFETY: the call guard keeps the communicator alive during the call.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommSuspend(shared.raw(), flags)) }
                .inspect_err(|_| shared.guard.set_suspended(false))
        })
        .finish_while(deadline, go_on)
    }

    /// Like [`resume`](Self::resume), but calls `go_on` from time to time during the wait. An error of `go_on` ends
    /// the wait and poisons the communicator.
    ///
    /// # Errors
    /// Those of NCCL and of `go_on`.
    pub(crate) fn resume_while<E: From<CommError> + fmt::Display>(
        &self,
        deadline: Deadline,
        go_on: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let waiting_for = "the other ranks to resume the communicator".into();
        Serving::begin(&self.shared, &self.service, (RESUME, Kind::Suspended), waiting_for, |shared| {
            // SAFETY: the call guard keeps the communicator alive during the call.
            unsafe { call!(&shared.nccl, shared.name(), ncclCommResume(shared.raw())) }?;
            shared.guard.set_suspended(false);
            Ok(())
        })
        .finish_while(deadline, go_on)
    }
}
