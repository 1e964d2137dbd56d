//! What becomes of segments that could not become windows: registered plainly, by all members or by none.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
};

use cuda_driver::DevicePtr;
use process_group::{
    comm::{CommError, Registration},
    store::{Deadline, StoreError},
};

use super::{Seated, SymmetricGroup, driver::Line};
use crate::{
    agreement::{Attempt, Ending, Input, Next, Plain, Poison, Segment},
    pool::SymmetricPool,
};

/// A segment's registration, which the communicator keeps: with the pool it would end at another time on each rank.
#[derive(Debug)]
pub(crate) struct PlainRegistration(Mutex<Option<Registration>>);

impl PlainRegistration {
    /// Ends it.
    pub(crate) fn deregister(&self, deadline: Deadline) -> Result<(), CommError> {
        let registration = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        registration.map_or(Ok(()), |registration| registration.deregister(deadline))
    }
}

impl SymmetricPool {
    /// Registers `segments`, which the last commit left without windows, and agrees with the others whether that
    /// stays. Whether it did; with what the store said, if it failed.
    pub(super) fn register_plainly(
        &self,
        group: &dyn SymmetricGroup,
        seated: &mut Seated,
        segments: &[Segment],
        deadline: Deadline,
    ) -> (Result<bool, Ending>, Option<StoreError>) {
        let (attempt, registered) = match self.try_to_register(group, segments, deadline) {
            Ok(registered) => (Attempt::Done {}, registered),
            Err(cause) => (Attempt::Failed { cause }, Vec::new()),
        };
        let mut line = Line::new(self.domain().store());
        let mut vote = seated.seat.begin_plain(&attempt, deadline.remaining());
        let mut input = Input::Start;
        let meeting = loop {
            match vote.step(input) {
                Next::Ask(ask) => input = line.ask(ask, || group.standing().is_ok()),
                Next::Done(meeting) => break meeting,
            }
        };
        let result = match meeting.result {
            Ok(Plain::Registered {}) => {
                self.keep_registered(group, registered);
                Ok(true)
            }
            Ok(Plain::Undone { rank, cause }) => {
                let undone = registered.into_iter().rev().try_for_each(|(_, it)| it.deregister(deadline));
                let cause = format!("rank {rank}: {cause}");
                let why = segments.iter().map(|segment| (segment.ordinal, cause.clone()));
                seated.unregistered.extend(why);
                undone.map(|()| false).map_err(|error| {
                    let (rank, cause) = (self.domain().rank(), error.to_string());
                    Ending::Poisoned(Poison::RegistrationFailed { rank, ordinal: None, cause })
                })
            }
            Ok(Plain::Poison { poison }) => Err(Ending::Poisoned(poison)),
            Err(ending) => Err(ending),
        };
        match &result {
            Err(Ending::Poisoned(poison)) => seated.seat.set_poison(poison.clone()),
            Err(ending) => {
                let cause = line.failure.as_ref().map_or_else(|| format!("{ending:?}"), ToString::to_string);
                seated.seat.set_poison(Poison::StoreLost { rank: self.domain().rank(), cause });
            }
            Ok(_) => {}
        }
        if seated.seat.poison().is_some() {
            self.update_table(|table| table.without_group(group.id()));
        }
        (result, line.failure)
    }

    /// Registers all of `segments`, or none.
    fn try_to_register(
        &self,
        group: &dyn SymmetricGroup,
        segments: &[Segment],
        deadline: Deadline,
    ) -> Result<Vec<(u32, PlainRegistration)>, String> {
        let communicator = group.communicator();
        communicator.keep(self.memory().clone() as Arc<dyn Any + Send + Sync>);
        let mut registered = Vec::new();
        for Segment { ordinal, bytes, .. } in segments {
            let address =
                self.memory().arena().segments().get(*ordinal as usize).map_or(0, |it| it.memory.address);
            // SAFETY: the communicator keeps the memory until it is gone, and a retired segment goes when all have
            // deregistered it. The members agree on it before any of them enqueues more.
            let registration =
                unsafe { communicator.register(DevicePtr(address), *bytes as usize, deadline) };
            let registration = registration.map_err(|error| error.to_string())?;
            if !registration.is_effective() {
                return Err("NCCL registers nothing with NCCL_LOCAL_REGISTER=0".to_owned());
            }
            registered.push((*ordinal, PlainRegistration(Mutex::new(Some(registration)))));
        }
        Ok(registered)
    }

    fn keep_registered(&self, group: &dyn SymmetricGroup, registered: Vec<(u32, PlainRegistration)>) {
        let mut standings = self.table().standings(group.id()).cloned().unwrap_or_default();
        for (ordinal, registration) in registered {
            let registration = Arc::new(registration);
            group.communicator().keep(registration.clone() as Arc<dyn Any + Send + Sync>);
            standings.enter_registered(ordinal, registration);
        }
        self.update_table(|table| table.with_group(group.id(), standings));
    }
}
