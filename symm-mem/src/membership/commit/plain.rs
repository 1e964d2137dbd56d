//! Plain registration: if NCCL does not support windows for a group, a [commit](crate::SymmetricPool::commit) registers
//! the new segments with `ncclCommRegister`, on all members or on none.

use std::{any::Any, convert::Infallible, sync::Arc, time::Duration};

use bootstrap::agreement;
use cuda_driver::DevicePtr;
use process_group::store::{Deadline, StoreError};

use super::offer::cause;
use crate::{
    agreement::{ACTION_FLOOR, Attempt, Ending, Plain, RegistrationProtocol, Segment, plain_ending},
    membership::{
        group::{SymmetricGroup, object_of},
        group_state::GroupState,
        memberships::Memberships,
        plain_registration::PlainRegistration,
    },
};

impl Memberships {
    /// Registers `segments`, which the current commit leaves without windows, and agrees with the other members whether
    /// to keep the registrations. `left` is the time that remains until the commit's deadline. The time limit of the
    /// registration is the longer of `left` and [`ACTION_FLOOR`].
    ///
    /// Returns a result, and the store's error if the store failed. The result is:
    /// - `Ok(true)` if all members keep their registrations.
    /// - `Ok(false)` if the members agreed to undo them and this rank has undone its own.
    /// - An error if the agreement failed, or if this rank could not undo its registrations.
    pub(super) fn register_plainly(
        &self,
        group: &dyn SymmetricGroup,
        group_state: &mut GroupState,
        segments: &[Segment],
        left: Duration,
    ) -> (Result<bool, Ending>, Option<StoreError>) {
        let deadline = Deadline::after(left.max(ACTION_FLOOR));
        let mut registered = Vec::new();
        let attempt = match self.try_to_register(group, segments, &mut registered, deadline) {
            Ok(()) => Attempt::Done {},
            Err(error) => Attempt::Failed { cause: cause(group, error) },
        };
        let member = group_state.log.plain_member(deadline.remaining());
        let agreed = agreement::run::<RegistrationProtocol>(
            &**self.domain().store(),
            member,
            attempt,
            |plan: &Infallible, _, _| match *plan {},
            object_of(self.domain(), group),
        );
        let (result, failure) = match agreed {
            Ok(plain) => (Ok(plain), None),
            Err(failed) => (Err(plain_ending(failed.ending)), failed.store),
        };
        let undo_deadline = Deadline::after(ACTION_FLOOR);
        let undone = match &result {
            Ok(Plain::Registered {}) => {
                let all = registered.iter().map(|(_, it)| it.clone() as Arc<dyn Any + Send + Sync>);
                all.for_each(|registration| group.communicator().keep(registration));
                Ok(())
            }
            Ok(Plain::Undone { .. }) => registered
                .drain(..)
                .rev()
                .try_for_each(|(_, registration)| registration.deregister(undo_deadline)),
            _ => Ok(()),
        };
        let undone = undone.map_err(|error| cause(group, error));
        let store_cause = failure.as_ref().map(ToString::to_string);
        (self.end_plain(group_state, segments, result, undone, registered, store_cause), failure)
    }

    /// Applies the result of the agreement on the plain registration of `segments`, and publishes the group's new state
    /// in the pool's table of segments. Returns the result of [`GroupState::conclude_plain`].
    ///
    /// - `undone` is the result of this rank's attempt to undo its registrations, or `Ok` if no attempt was necessary.
    /// - `registered` are the registrations of this rank, each with the ordinal (number in the pool) of its segment.
    /// - `cause` is the store's error, if the store failed.
    pub fn end_plain(
        &self,
        group_state: &mut GroupState,
        segments: &[Segment],
        result: Result<Plain, Ending>,
        undone: Result<(), String>,
        registered: Vec<(u32, Arc<PlainRegistration>)>,
        cause: Option<String>,
    ) -> Result<bool, Ending> {
        let group = group_state.log.group();
        let why_undone = match &result {
            Ok(Plain::Undone { rank, cause }) => Some(format!("rank {rank}: {cause}")),
            _ => None,
        };
        let kept = group_state.conclude_plain(result, undone, cause);
        if kept.is_ok() {
            let ordinals = segments.iter().map(|segment| segment.ordinal);
            let mut states = self.table().states(group).cloned().unwrap_or_default();
            match why_undone {
                Some(cause) => states.unregistered.extend(ordinals.map(|ordinal| (ordinal, cause.clone()))),
                None => states.enter_registered(ordinals, registered),
            }
            self.update_table(|table| table.with_group(group, states));
        }
        self.publish_poison(group_state);
        kept
    }

    /// Registers `segments`, and adds the registrations to `registered`, by ordinal. Stops at the first failure.
    fn try_to_register(
        &self,
        group: &dyn SymmetricGroup,
        segments: &[Segment],
        registered: &mut Vec<(u32, Arc<PlainRegistration>)>,
        deadline: Deadline,
    ) -> Result<(), String> {
        let communicator = group.communicator();
        communicator.keep(self.memory().clone() as Arc<dyn Any + Send + Sync>);
        for Segment { ordinal, bytes, .. } in segments {
            let address =
                self.memory().arena().segments().get(*ordinal as usize).map_or(0, |it| it.memory.address);
            // SAFETY: the communicator keeps the segments allocated until the communicator has ended, except retired
            // segments. A retired segment is freed earlier, but only after all ranks have deregistered it. No member
            // enqueues collectives on the segment before the members have agreed on the registration.
            let registration =
                unsafe { communicator.register(DevicePtr(address), *bytes as usize, deadline) };
            let registration = registration.map_err(|error| error.to_string())?;
            if !registration.is_effective() {
                return Err(
                    "NCCL registers nothing with NCCL_LOCAL_REGISTER=0 or NCCL_P2P_USE_CUDA_MEMCPY=1"
                        .to_owned(),
                );
            }
            registered.push((*ordinal, Arc::new(PlainRegistration::new(registration))));
        }
        Ok(())
    }
}
